//! `burn-amp-gpu`: checks and measures burn-amp on a GPU.

#![recursion_limit = "256"]

use std::path::{Path, PathBuf};

use anyhow::Result;
use burn_amp_gpu::report::report;
use clap::{Parser, Subcommand};

/// Checks burn-amp's kernels on a GPU, and measures what they and mixed precision gain there.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[cfg(any(feature = "cuda", feature = "vulkan"))]
    #[command(flatten)]
    Measure(measure::Measure),
    /// Prints the tables of a directory and draws its chart, with what PyTorch left there.
    Report {
        /// Where the CSV files are.
        #[arg(long, value_name = "DIRECTORY", default_value = "results")]
        out: PathBuf,
    },
}

fn main() -> Result<std::process::ExitCode> {
    match Args::parse().command {
        #[cfg(any(feature = "cuda", feature = "vulkan"))]
        Command::Measure(measure) => measure.run(),
        Command::Report { out } => {
            print_report(&out)?;
            Ok(std::process::ExitCode::SUCCESS)
        }
    }
}

#[allow(clippy::print_stdout)] // A program's result.
fn print_report(out: &Path) -> Result<()> {
    println!("{}", report(out)?);
    Ok(())
}

#[cfg(any(feature = "cuda", feature = "vulkan"))]
mod measure {
    use std::path::PathBuf;
    use std::process::ExitCode;
    use std::time::Duration;

    use anyhow::Result;
    use burn_amp_bench::gpt::AttentionKind;
    use burn_amp_gpu::all::{self, Part};
    use burn_amp_gpu::device::{API, Gpu};
    use burn_amp_gpu::records::Outcome;
    use burn_amp_gpu::train::{self, Mode, Plan};
    use burn_amp_gpu::{bandwidth, budget::Budget, check, matmul};
    use clap::{Subcommand, ValueEnum};

    use super::print_report;

    #[derive(Debug, Subcommand)]
    pub enum Measure {
        /// Compares every kernel with a reference in f64; fails if one is off.
        Check(Common),
        /// Times products: ours, Burn's, in half types and in f32.
        Matmul(Common),
        /// Times the kernels that are bound by memory, next to a copy.
        Bandwidth(Common),
        /// Times training steps in f32, bf16 and f16.
        Train {
            #[command(flatten)]
            common: Common,
            #[command(flatten)]
            model: Model,
            /// In which precision.
            #[arg(long, value_enum, value_delimiter = ',', default_values_t = Mode::ALL)]
            mode: Vec<Mode>,
            /// Steps on the clock.
            #[arg(long)]
            steps: Option<usize>,
        },
        /// All of it in turn, as far as the time goes.
        All {
            #[command(flatten)]
            common: Common,
            #[command(flatten)]
            model: Model,
            /// Which parts.
            #[arg(long, value_enum, value_delimiter = ',', default_values_t = Part::ALL)]
            parts: Vec<Part>,
        },
    }

    #[derive(Debug, clap::Args)]
    pub struct Common {
        /// Where CSV files and the chart go.
        #[arg(long, value_name = "DIRECTORY", default_value = "results")]
        out: PathBuf,
        /// Seconds for everything.
        #[arg(long, value_name = "SECONDS", default_value_t = 420)]
        budget: u64,
        /// Tiny sizes and few kernels, to see that it runs: the figures mean nothing.
        #[arg(long)]
        quick: bool,
    }

    #[derive(Debug, clap::Args)]
    pub struct Model {
        /// Sequences of 1024 tokens in a batch.
        #[arg(long, default_value_t = 8)]
        batch: usize,
        /// How a block attends.
        #[arg(long, value_enum, default_value_t = Attention::Explicit)]
        attention: Attention,
    }

    #[derive(Debug, Clone, Copy, ValueEnum)]
    enum Attention {
        /// Two products around a softmax.
        Explicit,
        /// Burn's attention op.
        Op,
    }

    impl Attention {
        fn kind(self) -> AttentionKind {
            match self {
                Self::Explicit => AttentionKind::Explicit,
                Self::Op => AttentionKind::Op,
            }
        }
    }

    impl Measure {
        pub fn run(self) -> Result<ExitCode> {
            let (Self::Check(common)
            | Self::Matmul(common)
            | Self::Bandwidth(common)
            | Self::Train { common, .. }
            | Self::All { common, .. }) = &self;
            let gpu = Gpu::open()?;
            note(&describe(&gpu));
            let total = Duration::from_secs(common.budget);
            let budget = Budget::lasting(total);
            let Common { out, quick, .. } = common;
            let mut failures = 0;
            let mut left_out = Vec::new();
            match &self {
                Self::Check(_) => {
                    let records = check::run(&gpu, *quick, budget, Some(out))?;
                    failures = records
                        .iter()
                        .filter(|record| record.outcome == Outcome::Failed)
                        .count();
                }
                Self::Matmul(_) => {
                    left_out = matmul::run(&gpu, *quick, budget, Some(out))?.1;
                }
                Self::Bandwidth(_) => {
                    left_out = bandwidth::run(&gpu, *quick, budget, Some(out))?.1;
                }
                Self::Train {
                    model, mode, steps, ..
                } => {
                    let mut plan = if *quick {
                        Plan::quick(model.attention.kind())
                    } else {
                        Plan::gpt2(model.batch, model.attention.kind())
                    };
                    plan.steps = steps.unwrap_or(plan.steps);
                    left_out = train::run(&gpu, &plan, mode, budget, Some(out))?.1;
                }
                Self::All { model, parts, .. } => {
                    let attention = model.attention.kind();
                    let summary =
                        all::run(&gpu, parts, total, model.batch, attention, *quick, out)?;
                    failures = summary.failures;
                    left_out = summary.left_out;
                }
            }
            print_report(out)?;
            for line in left_out {
                note(&format!("left out: {line}"));
            }
            Ok(if failures == 0 {
                ExitCode::SUCCESS
            } else {
                note(&format!("{failures} comparisons FAILED"));
                ExitCode::FAILURE
            })
        }
    }

    fn describe(gpu: &Gpu) -> String {
        let properties = gpu.client.properties();
        let tuned = if cfg!(feature = "autotune") {
            "with"
        } else {
            "without"
        };
        format!(
            "{API}, half types {:?}, {} tensor-core shapes by cmma, {} by mma; {tuned} autotune",
            gpu.halves(),
            properties.features.matmul.cmma.len(),
            properties.features.matmul.mma.len(),
        )
    }

    #[allow(clippy::print_stderr)] // A program's notes.
    fn note(line: &str) {
        eprintln!("{line}");
    }
}
