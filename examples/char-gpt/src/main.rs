//! Trains a small character-level GPT in one or several precisions and compares them.
#![recursion_limit = "256"]

use std::io::{self, Write};

use anyhow::Result;
use char_gpt::cli::{Args, Job};
use char_gpt::report;
use char_gpt::run::{Precision, run, warm_up};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};

fn main() -> Result<()> {
    let args = Args::parse();
    let as_json = args.json;
    let job = args.into_job()?;
    let mut notes = io::stderr();
    writeln!(
        notes,
        "{} characters for training, {} for validation, {} different",
        job.corpus.train().len(),
        job.corpus.valid().len(),
        job.corpus.vocab().len()
    )?;

    warm_up(&job)?;
    let mut rows = Vec::new();
    for precision in job.precisions.iter().copied() {
        let bar = progress_bar(&job, precision)?;
        let outcome = run(&job, precision, |losses| {
            bar.set_position(losses.len() as u64);
            if let Some(loss) = losses.last() {
                bar.set_message(format!("loss {loss:.3}"));
            }
        })?;
        bar.finish_and_clear();
        if job.sample > 0 {
            let prompt = job.corpus.decode(&job.prompt);
            writeln!(notes, "\n{precision} continues {prompt:?}:")?;
            writeln!(notes, "{}\n", outcome.sample)?;
        }
        rows.push(outcome.row);
    }

    let table = if as_json {
        report::json(&rows)?
    } else {
        report::table(&rows)
    };
    writeln!(io::stdout(), "{table}")?;
    Ok(())
}

/// A bar on standard error, drawn only if that is a terminal.
fn progress_bar(job: &Job, precision: Precision) -> Result<ProgressBar> {
    let style = ProgressStyle::with_template(
        "{prefix:>4} {wide_bar} {pos}/{len} steps, {msg}, {eta} left",
    )?;
    Ok(ProgressBar::new(job.plan.steps as u64)
        .with_style(style)
        .with_prefix(precision.to_string()))
}
