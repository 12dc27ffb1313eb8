//! Trains a classifier of handwritten digits in one or several precisions and compares them.
#![recursion_limit = "256"]

use std::io::{self, Write};

use anyhow::{Context, Result};
use clap::Parser;
use digits::checkpoint::Artifacts;
use digits::cli::Args;
use digits::report;
use digits::run::{run, warm_up};

fn main() -> Result<()> {
    let args = Args::parse();
    let as_json = args.json;
    let job = args.into_job()?;
    writeln!(
        io::stderr(),
        "{} digits for training, {} for testing",
        job.split.train.len(),
        job.split.test.len()
    )?;

    // Removed when it is dropped.
    let temporary;
    let out = match &job.out {
        Some(out) => out,
        None => {
            temporary = tempfile::tempdir().context("cannot create a temporary folder")?;
            temporary.path()
        }
    };
    warm_up(&job)?;
    let mut rows = Vec::new();
    for precision in job.precisions.iter().copied() {
        let artifacts = Artifacts::new(out.join(precision.to_string()));
        rows.push(run(&job, precision, &artifacts)?);
    }

    let table = if as_json {
        report::json(&rows)?
    } else {
        report::table(&rows)
    };
    writeln!(io::stdout(), "{table}")?;
    Ok(())
}
