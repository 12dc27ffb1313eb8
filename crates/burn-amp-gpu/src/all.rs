//! Everything in turn, in a given time.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use burn_amp_bench::gpt::AttentionKind;

use crate::budget::Budget;
use crate::check::attempt;
use crate::device::Gpu;
use crate::records::Outcome;
use crate::report::{failed, no_time};
use crate::train::{Mode, Plan};
use crate::{bandwidth, check, matmul, train};

/// A part of the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Every kernel against its reference.
    Check,
    /// Rates of kernels that are bound by memory.
    Bandwidth,
    /// Rates of products.
    Matmul,
    /// Training steps.
    Train,
}

impl Part {
    /// In the order that they run in.
    pub const ALL: [Self; 4] = [Self::Check, Self::Bandwidth, Self::Matmul, Self::Train];

    /// The part's share of the time, in hundredths of the whole.
    fn share(self) -> u32 {
        match self {
            Self::Check => 20,
            Self::Bandwidth => 10,
            Self::Matmul => 30,
            Self::Train => 100,
        }
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Summary {
    /// What was left out, and why.
    pub left_out: Vec<String>,
    /// Comparisons that failed.
    pub failures: usize,
}

/// Runs parts one after the other. What a part does not use of its share is left to the next; each
/// writes its records as they come.
///
/// # Errors
///
/// When a file cannot be written.
pub fn run(
    gpu: &Gpu,
    parts: &[Part],
    total: Duration,
    batch: usize,
    attention: AttentionKind,
    quick: bool,
    out: &Path,
) -> Result<Summary> {
    let budget = Budget::lasting(total);
    let mut summary = Summary::default();
    for part in Part::ALL {
        if !parts.contains(&part) {
            continue;
        }
        let share = if parts.len() == 1 { 100 } else { part.share() };
        let time = budget.part(total * share / 100);
        match part {
            Part::Check => {
                let records = check::run(gpu, quick, time, Some(out))?;
                let count = |outcome| records.iter().filter(|r| r.outcome == outcome).count();
                summary.failures += count(Outcome::Failed);
                let left_out = no_time(count(Outcome::Skipped), "comparisons");
                summary.left_out.extend(left_out);
            }
            Part::Bandwidth => {
                let timed = attempt(gpu, || bandwidth::run(gpu, quick, time, Some(out)));
                match timed {
                    Ok((_, left_out)) => summary.left_out.extend(left_out),
                    Err(error) => summary.left_out.push(failed("bandwidth", &error)),
                }
            }
            Part::Matmul => {
                let (_, left_out) = matmul::run(gpu, quick, time, Some(out))?;
                summary.left_out.extend(left_out);
            }
            Part::Train => {
                let plan = if quick {
                    Plan::quick(attention)
                } else {
                    Plan::gpt2(batch, attention)
                };
                let (_, left_out) = train::run(gpu, &plan, &Mode::ALL, time, Some(out))?;
                summary.left_out.extend(left_out);
            }
        }
    }
    Ok(summary)
}
