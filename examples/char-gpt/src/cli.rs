//! The command line: raw arguments, and the validated job that they describe.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::builder::RangedU64ValueParser;
use clap::{Parser, ValueEnum};

use crate::data::Corpus;
use crate::model::{DEFAULT_DROPOUT, DEFAULT_HEADS, DEFAULT_LAYERS, DEFAULT_WIDTH, GptConfig};
use crate::run::{DeviceName, Precision};
use crate::train::Plan;

/// Characters of the validation text that a sample continues, unless a prompt is given.
const PROMPT: usize = 32;

/// Trains a small character-level GPT and compares precisions.
///
/// The closing table goes to standard output; progress, samples and notes go to standard error.
#[derive(Debug, Clone, Parser)]
#[command(version)]
pub struct Args {
    /// What to compute in; `all` trains the same model in each, one after the other.
    #[arg(long, value_enum, default_value_t = PrecisionArg::All)]
    pub precision: PrecisionArg,

    /// Where to train.
    #[arg(long, value_enum, default_value_t)]
    pub device: DeviceName,

    /// UTF-8 text to train on instead of the bundled novel.
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,

    /// Training steps.
    #[arg(long, default_value_t = 800, value_parser = at_least(1))]
    pub steps: usize,

    /// Sequences in a step.
    #[arg(long, default_value_t = 8, value_parser = at_least(1))]
    pub batch: usize,

    /// Characters in a sequence.
    #[arg(long, default_value_t = 64, value_parser = at_least(1))]
    pub seq: usize,

    /// Channels of the residual stream, a multiple of the heads.
    #[arg(long, default_value_t = DEFAULT_WIDTH, value_parser = at_least(1))]
    pub width: usize,

    /// Attention heads.
    #[arg(long, default_value_t = DEFAULT_HEADS, value_parser = at_least(1))]
    pub heads: usize,

    /// Transformer blocks.
    #[arg(long, default_value_t = DEFAULT_LAYERS, value_parser = at_least(1))]
    pub layers: usize,

    /// Dropout probability, at least 0 and less than 1.
    #[arg(long, default_value_t = DEFAULT_DROPOUT)]
    pub dropout: f64,

    /// Highest learning rate, more than 0 and at most 1.
    #[arg(long, default_value_t = 3e-3)]
    pub learning_rate: f64,

    /// Steps in which the learning rate rises to its highest value.
    #[arg(long, default_value_t = 40, value_parser = at_least(1))]
    pub warmup: usize,

    /// Seed of the weights, the batches, dropout and the sample.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,

    /// Finite steps after which the loss scale doubles, in f16.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    pub growth_interval: u32,

    /// Characters of text to write at the end.
    #[arg(long, default_value_t = 300)]
    pub sample: usize,

    /// Text for the sample to continue [default: the start of the validation text].
    #[arg(long)]
    pub prompt: Option<String>,

    /// Print the closing table as JSON.
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
    /// The text.
    pub corpus: Corpus,
    /// The model's sizes.
    pub model: GptConfig,
    /// How long and how fast to train.
    pub plan: Plan,
    /// Sequences in a step.
    pub batch: usize,
    /// Seed of the weights, the batches, dropout and the sample.
    pub seed: u64,
    /// Finite steps after which the loss scale doubles.
    pub growth_interval: u32,
    /// What to train in, in this order.
    pub precisions: Vec<Precision>,
    /// Where to train.
    pub device: DeviceName,
    /// What the sample continues; not empty.
    pub prompt: Vec<i32>,
    /// Characters of the sample.
    pub sample: usize,
}

impl Args {
    /// Reads the text and checks that the job can be done, so that no error comes after training.
    pub fn into_job(self) -> Result<Job> {
        let corpus = match &self.text {
            None => Corpus::bundled(),
            Some(path) => fs::read_to_string(path)
                .map_err(anyhow::Error::from)
                .and_then(|text| Ok(Corpus::new(&text)?))
                .with_context(|| format!("cannot train on {}", path.display()))?,
        };
        corpus.check_seq(self.seq)?;

        let model = GptConfig::new(corpus.vocab().len(), self.seq)
            .with_width(self.width)
            .with_heads(self.heads)
            .with_layers(self.layers)
            .with_dropout(self.dropout);
        model.validate()?;
        ensure!(
            self.learning_rate > 0.0 && self.learning_rate <= 1.0,
            "learning rate is {}, it must be more than 0 and at most 1",
            self.learning_rate
        );

        let prompt = match &self.prompt {
            None => corpus.valid()[..PROMPT.min(self.seq)].to_vec(),
            Some(text) => corpus.encode(text).context("cannot continue the prompt")?,
        };
        ensure!(!prompt.is_empty(), "the prompt is empty");

        Ok(Job {
            corpus,
            model,
            plan: Plan {
                steps: self.steps,
                learning_rate: self.learning_rate,
                warmup: self.warmup,
            },
            batch: self.batch,
            seed: self.seed,
            growth_interval: self.growth_interval,
            precisions: self.precision.list(),
            device: self.device,
            prompt,
            sample: self.sample,
        })
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
