//! `burn-amp-bench memory`: the bytes that training keeps, next to PyTorch's.

use std::path::PathBuf;

use anyhow::{Context, Result};
use burn_amp::memory::{HeapMeter, MemoryMeter};
use burn_amp_bench::memory::{Model, PRECISIONS, measure};
use burn_amp_bench::report::{self, PyTorch};
use clap::{Parser, Subcommand};

#[global_allocator]
static HEAP: HeapMeter = HeapMeter::system();

/// Benchmarks of burn-amp. Those about time run with `cargo bench`.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Bytes kept for backward and peak bytes of two transformer stacks and a residual network, in plain
    /// Burn and in mixed precision.
    Memory(MemoryArgs),
}

#[derive(Debug, clap::Args)]
struct MemoryArgs {
    /// Print a JSON array instead of the table.
    #[arg(long)]
    json: bool,

    /// Measure only models whose name contains this.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Where memory.csv and memory.svg go.
    #[arg(
        long,
        value_name = "DIRECTORY",
        default_value = "target/burn-amp-bench"
    )]
    out: PathBuf,
}

fn main() -> Result<()> {
    let Command::Memory(args) = Args::parse().command;
    memory(&args)
}

#[allow(clippy::print_stdout, clippy::print_stderr)] // A program's results and notes.
fn memory(args: &MemoryArgs) -> Result<()> {
    let wanted = args.model.as_deref().unwrap_or_default();
    let models: Vec<Model> = Model::all()
        .into_iter()
        .filter(|model| model.name().contains(wanted))
        .collect();
    let names = || Model::all().iter().map(Model::name).collect::<Vec<_>>();
    anyhow::ensure!(
        !models.is_empty(),
        "no model's name contains `{wanted}`; there are {}",
        {
            let mut names = names();
            names.dedup();
            names.join(", ")
        }
    );

    let meter = MemoryMeter::new(&HEAP);
    let mut measurements = Vec::new();
    for model in &models {
        for precision in PRECISIONS {
            eprintln!("{} in {precision}", model.name());
            measurements.push(measure(&meter, model, precision)?);
        }
    }

    let pytorch = PyTorch::recorded()?;
    std::fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot create {}", args.out.display()))?;
    report::write_csv(&args.out, &measurements, &pytorch)?;
    report::write_chart(&args.out, &measurements, &pytorch)?;
    eprintln!(
        "wrote memory.csv and memory.svg into {}",
        args.out.display()
    );
    if args.json {
        println!("{}", serde_json::to_string_pretty(&measurements)?);
    } else {
        println!("{}", report::table(&measurements, &models, &pytorch));
    }
    Ok(())
}
