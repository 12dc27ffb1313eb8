//! Compiles every kernel of burn-amp by NVRTC and prints what each needs: `cargo xtask nvrtc`.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn_amp_nvrtc::cases::{self, Case, Outcome};
use burn_amp_nvrtc::nvrtc::Nvrtc;
use burn_amp_nvrtc::report::{self, Row};
use burn_amp_nvrtc::resources::{Instructions, Resources};
use burn_amp_nvrtc::runtime::Kernel;
use burn_amp_nvrtc::{properties, verdict};
use clap::Parser;

/// Compiles every kernel of burn-amp by NVRTC, without a GPU.
///
/// Exits with 1 if a source is not valid, a product on tensor cores has no instruction of theirs, or a
/// kernel other than a product spills registers.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The folder with CUDA's `include` and `lib`; the loader's path has to hold `lib`.
    #[arg(long, value_name = "DIR")]
    nvrtc: PathBuf,
    /// Ten times the compute capability, one or several.
    #[arg(long, value_delimiter = ',', default_value = "80,90")]
    arch: Vec<u32>,
    /// Writes a row for each kernel.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// The same as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Keeps sources, PTX, machine code and the assembler's log in a folder.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Sources to compile at a time; as many as there are cores if not given.
    #[arg(long)]
    threads: Option<usize>,
}

struct Job<'a> {
    case: &'a Case,
    version: u32,
    kernel: &'a Kernel,
}

#[allow(clippy::print_stdout)]
fn main() -> Result<()> {
    let cli = Cli::parse();
    for version in &cli.arch {
        ensure!(
            properties::is_known(*version),
            "the architecture has to be 80 or 90, got {version}"
        );
    }
    let nvrtc = Nvrtc::load(&cli.nvrtc)?;
    let (major, minor) = nvrtc.version()?;
    if let Some(folder) = &cli.keep {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make {}", folder.display()))?;
    }

    let start = Instant::now();
    let outcomes: Vec<_> = cli.arch.iter().flat_map(|arch| cases::all(*arch)).collect();
    let jobs = jobs(&outcomes);
    println!(
        "{} cases, {} kernels written in {:.0} s",
        outcomes.len(),
        jobs.len(),
        start.elapsed().as_secs_f64()
    );
    let mut failures = verdict::of_cases(&outcomes);

    let start = Instant::now();
    let threads = cli
        .threads
        .or_else(|| std::thread::available_parallelism().ok().map(usize::from));
    let compiled = compile_all(&nvrtc, &jobs, threads.unwrap_or(1), cli.keep.as_deref());
    let mut rows = Vec::new();
    for (job, compiled) in jobs.iter().zip(compiled) {
        match compiled {
            Ok(row) => {
                failures.extend(verdict::of_row(job.case, &row));
                rows.push(row);
            }
            Err(error) => failures.push(format!(
                "sm_{}, {}, {}: {error:#}",
                job.version, job.case, job.kernel.entry
            )),
        }
    }
    println!("{}", report::table(&rows));
    for line in report::not_offered(&outcomes) {
        println!("not offered: {line}");
    }
    println!(
        "{} of {} kernels compiled by NVRTC {major}.{minor} in {:.0} s",
        rows.len(),
        jobs.len(),
        start.elapsed().as_secs_f64()
    );
    if let Some(path) = &cli.csv {
        report::write_csv(path, &rows)?;
    }
    if let Some(path) = &cli.json {
        report::write_json(path, &rows)?;
    }
    ensure!(
        failures.is_empty(),
        "{} kernels or cases failed:\n{}",
        failures.len(),
        failures.join("\n")
    );
    Ok(())
}

fn jobs(outcomes: &[Outcome]) -> Vec<Job<'_>> {
    outcomes
        .iter()
        .flat_map(|outcome| {
            let kernels = outcome
                .kernels
                .iter()
                .filter_map(|kernel| kernel.as_ref().ok());
            kernels.map(|kernel| Job {
                case: &outcome.case,
                version: outcome.version,
                kernel,
            })
        })
        .collect()
}

/// The results are in the order of the jobs.
fn compile_all(
    nvrtc: &Nvrtc,
    jobs: &[Job<'_>],
    threads: usize,
    keep: Option<&Path>,
) -> Vec<Result<Row>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(jobs.len()));
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(index) else {
                        break;
                    };
                    let keep = keep.map(|folder| folder.join(format!("{index:04}_{}", file(job))));
                    let row = compile(nvrtc, job, keep.as_deref());
                    done.lock()
                        .expect("no thread panics while it holds the lock")
                        .push((index, row));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .expect("no thread panics while it holds the lock");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, row)| row).collect()
}

fn compile(nvrtc: &Nvrtc, job: &Job<'_>, keep: Option<&Path>) -> Result<Row> {
    let Job {
        case,
        version,
        kernel,
    } = job;
    let write = |extension: &str, bytes: &[u8]| match keep {
        Some(path) => {
            let path = path.with_extension(extension);
            std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))
        }
        None => Ok(()),
    };
    write("cu", kernel.source.as_bytes())?;
    let compiled = nvrtc.compile(&kernel.source, *version)?;
    write("ptx", compiled.ptx.as_bytes())?;
    write("cubin", &compiled.cubin)?;
    write("log", compiled.log.as_bytes())?;
    let resources = Resources::parse(&compiled.log).with_context(|| {
        format!(
            "the assembler did not report what it used: {}",
            compiled.log
        )
    })?;
    let instructions = Instructions::parse(&compiled.ptx);
    Ok(Row::new(case, *version, kernel, resources, instructions))
}

fn file(job: &Job<'_>) -> String {
    let name = format!("sm{} {} {}", job.version, job.case, job.kernel.entry);
    let name: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    name.chars().take(160).collect()
}
