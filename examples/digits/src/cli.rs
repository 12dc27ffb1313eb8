//! The command line: raw arguments, and the validated job that they describe.

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::builder::RangedU64ValueParser;
use clap::{Parser, ValueEnum};

use crate::data::{self, Split};
use crate::run::{DeviceName, Precision};
use crate::train::Plan;

/// Trains a small convolutional network on handwritten digits and compares precisions.
///
/// The closing table goes to standard output; progress and notes go to standard error.
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub struct Args {
    /// What to compute in; `all` trains the same model in each, one after the other.
    #[arg(long, value_enum, default_value_t = PrecisionArg::All)]
    pub precision: PrecisionArg,

    /// Where to train.
    #[arg(long, value_enum, default_value_t)]
    pub device: DeviceName,

    /// Times that every training sample is seen.
    #[arg(long, default_value_t = 12, value_parser = at_least(1))]
    pub epochs: usize,

    /// Samples in a step.
    #[arg(long, default_value_t = 32, value_parser = at_least(1))]
    pub batch: usize,

    /// Highest learning rate, more than 0 and at most 1.
    #[arg(long, default_value_t = 3e-3)]
    pub lr: f64,

    /// Seed of the weights and of the order of the samples.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// Finite steps after which the loss scale doubles, in f16.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub growth_interval: u32,

    /// Stop early, after so many epochs without a better test loss.
    #[arg(long, value_name = "EPOCHS", value_parser = at_least(1))]
    pub patience: Option<usize>,

    /// Folder for checkpoints and logs, one in it for each precision [default: none are kept].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Go on from the newest complete checkpoint in the folder; without one, begin.
    #[arg(long, requires = "out")]
    pub resume: bool,

    /// Write a line for each step to `steps.csv` in the folder: what was done, and a checksum of the model.
    #[arg(long, requires = "out")]
    pub trace: bool,

    /// Show Burn's dashboard, as is the default in a terminal; needs the feature `tui`.
    #[arg(long, conflicts_with_all = ["no_tui", "json"])]
    pub tui: bool,

    /// Show a bar on standard error instead of the dashboard.
    #[arg(long)]
    pub no_tui: bool,

    /// Print the closing table as JSON, and nothing else to standard output.
    #[arg(long)]
    pub json: bool,
}

/// One precision or all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PrecisionArg {
    /// 32-bit floats throughout.
    F32,
    /// Mixed precision with bfloat16.
    Bf16,
    /// Mixed precision with half floats and dynamic loss scaling.
    F16,
    /// Each of them.
    All,
}

/// What the arguments ask for, checked.
#[derive(Debug, Clone)]
pub struct Job {
    /// The digits.
    pub split: Split,
    /// How to train.
    pub plan: Plan,
    /// What to train in, in this order.
    pub precisions: Vec<Precision>,
    /// Where to train.
    pub device: DeviceName,
    /// Where to leave checkpoints and logs, if anywhere.
    pub out: Option<PathBuf>,
    /// Whether to go on from a checkpoint.
    pub resume: bool,
    /// Whether to write down every step.
    pub trace: bool,
    /// Whether to show Burn's dashboard.
    pub dashboard: bool,
}

impl Args {
    /// Checks that the job can be done.
    pub fn into_job(self) -> Result<Job> {
        ensure!(
            self.lr > 0.0 && self.lr <= 1.0,
            "learning rate is {}, it must be more than 0 and at most 1",
            self.lr
        );
        let split = data::split(data::bundled());
        ensure!(
            self.batch <= split.train.len(),
            "batch is {}, there are {} training samples",
            self.batch,
            split.train.len()
        );
        Ok(Job {
            dashboard: self.dashboard()?,
            split,
            plan: Plan {
                epochs: self.epochs,
                batch: self.batch,
                learning_rate: self.lr,
                seed: self.seed,
                growth_interval: self.growth_interval,
                patience: self.patience,
            },
            precisions: self.precision.list(),
            device: self.device,
            out: self.out,
            resume: self.resume,
            trace: self.trace,
        })
    }

    /// Whether to show the dashboard: if asked to it must be possible.
    fn dashboard(&self) -> Result<bool> {
        let is_built = cfg!(feature = "tui");
        let is_terminal = io::stdout().is_terminal();
        if self.tui {
            ensure!(is_built, "--tui needs a build with the feature tui");
            ensure!(is_terminal, "--tui needs a terminal as standard output");
        }
        Ok(is_built && is_terminal && !self.no_tui && !self.json)
    }
}

impl PrecisionArg {
    fn list(self) -> Vec<Precision> {
        match self {
            Self::F32 => vec![Precision::F32],
            Self::Bf16 => vec![Precision::Bf16],
            Self::F16 => vec![Precision::F16],
            Self::All => vec![Precision::F32, Precision::Bf16, Precision::F16],
        }
    }
}

fn at_least(lowest: u64) -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(lowest..)
}
