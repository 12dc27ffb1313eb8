//! Trains a small GAN whose discriminator overflows now and then, and prints who stepped when.
#![recursion_limit = "256"]

use std::io::{self, Write};

use anyhow::Result;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use two_optimizers::{Plan, Steps, TARGET_DEVIATION, TARGET_MEAN, Training, train};

fn main() -> Result<()> {
    let plan = Plan {
        steps: 2000,
        overflow_every: 250,
        growth_interval: 400,
        seed: 0,
    };
    let report = train::<Training>(&plan, &Default::default())?;

    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header([
        "optimizer",
        "applied",
        "skipped",
        "skipped steps",
    ]);
    let row = |name: &str, steps: &Steps| {
        let skipped: Vec<_> = steps.skipped.iter().map(usize::to_string).collect();
        [
            name.to_owned(),
            steps.counters.applied.to_string(),
            steps.counters.skipped.to_string(),
            skipped.join(" "),
        ]
    };
    table.add_row(row("discriminator", &report.discriminator));
    table.add_row(row("generator", &report.generator));
    for column in table.column_iter_mut().skip(1).take(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }

    let mut out = io::stdout();
    writeln!(out, "{table}")?;
    let mut scales = report.scales.clone();
    scales.dedup();
    let scales: Vec<_> = scales.iter().map(f32::to_string).collect();
    writeln!(out, "loss scale: {}", scales.join(" "))?;
    writeln!(
        out,
        "the generator makes {:.2} +- {:.2}, what it imitates is {TARGET_MEAN:.2} +- {TARGET_DEVIATION:.2}",
        report.mean, report.deviation
    )?;
    Ok(())
}
