//! Kills a training of `examples/digits` with SIGKILL, resumes it, and compares it with one that ran
//! through: outcome, loss scale and parameters of every step, the losses in the logs, the closing table.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use xshell::{Shell, cmd};

/// Settings with which the loss scale goes up and down all the time.
const TRAINING: &[&str] = &[
    "--precision=f16",
    "--epochs=6",
    "--batch=64",
    "--growth-interval=5",
    "--seed=3",
    "--no-tui",
    "--json",
    "--trace",
];
/// The trainings that are killed while files of a checkpoint are missing, the hardest time.
const KILLS_WHILE_WRITING: usize = 3;

/// How often, and where.
#[derive(Args)]
pub struct Options {
    /// Trainings that are killed at a random time; three more are while they write a checkpoint.
    #[arg(long, default_value_t = Options::default().kills)]
    kills: usize,
    /// Seed of the times.
    #[arg(long, default_value_t = Options::default().seed)]
    seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { kills: 10, seed: 0 }
    }
}

/// When to kill.
enum Moment {
    After(Duration),
    /// As soon as a checkpoint of this epoch is begun.
    Writing(usize),
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::After(time) => write!(f, "after {:.2} s", time.as_secs_f64()),
            Self::Writing(epoch) => write!(f, "writing epoch {epoch}"),
        }
    }
}

/// Runs all trainings; fails at the first difference.
#[allow(clippy::print_stdout)]
pub fn run(shell: &Shell, options: &Options) -> Result<()> {
    // With the features that the tests were built with.
    cmd!(shell, "cargo build --release --workspace --bin digits").run()?;
    let program = crate::target_directory(shell)?.join("release/digits");
    let folder = tempfile::tempdir()?;

    let start = Instant::now();
    let whole = Training::new(&program, folder.path().join("whole"));
    let row = whole.finish(false)?;
    let time = start.elapsed();
    let whole = Outcome::read(&whole, row)?;
    let skipped = whole.row["steps_skipped"].as_u64().unwrap_or(0);
    ensure!(
        skipped > 0,
        "no step was skipped: there is little to compare"
    );
    println!(
        "uninterrupted: {} steps, {skipped} of them skipped, in {:.1} s",
        whole.steps.lines().count(),
        time.as_secs_f64()
    );

    let mut random = ChaCha8Rng::seed_from_u64(options.seed);
    let at_random = (0..options.kills).map(|_| Moment::After(time.mul_f64(random.random())));
    let mut moments: Vec<_> = at_random.collect();
    moments.extend((1..=KILLS_WHILE_WRITING).map(Moment::Writing));
    for (index, moment) in moments.iter().enumerate() {
        let training = Training::new(&program, folder.path().join(index.to_string()));
        let was_killed = training.kill(moment)?;
        let done = training.steps_written()?;
        let from = training.newest_checkpoint();
        let row = training.finish(true)?;
        let resumed = Outcome::read(&training, row)?;
        resumed
            .compare(&whole, from)
            .with_context(|| format!("killed {moment}"))?;
        println!(
            "killed {moment}{}: {done} steps were done; the same bits after going on from epoch {from}",
            if was_killed {
                ""
            } else {
                ", when it had ended"
            },
        );
    }
    Ok(())
}

struct Training {
    program: PathBuf,
    folder: PathBuf,
}

impl Training {
    fn new(program: &Path, folder: PathBuf) -> Self {
        Self {
            program: program.to_owned(),
            folder,
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(TRAINING).arg("--out").arg(&self.folder);
        command.stdin(Stdio::null());
        command
    }

    /// Where the program leaves what belongs to its precision.
    fn artifacts(&self) -> PathBuf {
        self.folder.join("f16")
    }

    /// Runs to the end and returns the row of the closing table.
    fn finish(&self, resume: bool) -> Result<Value> {
        let mut command = self.command();
        if resume {
            command.arg("--resume");
        }
        let output = command.output().context("cannot run digits")?;
        ensure!(
            output.status.success(),
            "digits failed with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let rows: Value = serde_json::from_slice(&output.stdout)?;
        let mut row = rows[0].clone();
        let fields = row.as_object_mut().context("the table has no row")?;
        for what_differs in ["seconds", "peak_bytes"] {
            fields.remove(what_differs);
        }
        Ok(row)
    }

    /// Whether the program still ran when it was killed.
    fn kill(&self, moment: &Moment) -> Result<bool> {
        let mut command = self.command();
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().context("cannot run digits")?;
        match moment {
            Moment::After(time) => sleep(*time),
            Moment::Writing(epoch) => {
                let begun = self
                    .artifacts()
                    .join(format!("checkpoint/model-{epoch}.mpk"));
                while !begun.exists() && child.try_wait()?.is_none() {
                    sleep(Duration::from_micros(100));
                }
            }
        }
        let was_running = child.try_wait()?.is_none();
        // SIGKILL, which no program can answer.
        child.kill()?;
        child.wait()?;
        Ok(was_running)
    }

    /// The newest epoch with all three files, 0 if there is none.
    fn newest_checkpoint(&self) -> usize {
        let exists = |part: &str, epoch: usize| {
            let name = format!("checkpoint/{part}-{epoch}.mpk");
            self.artifacts().join(name).exists()
        };
        let is_complete = |epoch: &usize| {
            ["model", "optim", "scheduler"]
                .iter()
                .all(|part| exists(part, *epoch))
        };
        (1..100).rev().find(is_complete).unwrap_or(0)
    }

    fn steps_written(&self) -> Result<usize> {
        let path = self.artifacts().join("steps.csv");
        if !path.exists() {
            return Ok(0);
        }
        Ok(fs::read_to_string(path)?.lines().count())
    }
}

/// What a training left behind.
struct Outcome {
    row: Value,
    steps: String,
    /// Of each log of the loss, by split and epoch: a line for each step or batch.
    losses: BTreeMap<(&'static str, usize), String>,
}

impl Outcome {
    fn read(training: &Training, row: Value) -> Result<Self> {
        let artifacts = training.artifacts();
        let steps = fs::read_to_string(artifacts.join("steps.csv"))
            .context("digits left no trace of its steps")?;
        let mut losses = BTreeMap::new();
        for split in ["train", "valid"] {
            for epoch in fs::read_dir(artifacts.join(split))? {
                let folder = epoch?.path();
                let name = folder.to_string_lossy();
                let (_, epoch) = name.rsplit_once('-').context("a folder for an epoch")?;
                let path = folder.join("Loss.log");
                let text = fs::read_to_string(&path)
                    .with_context(|| format!("cannot read {}", path.display()))?;
                losses.insert((split, epoch.parse()?), text);
            }
        }
        Ok(Self { row, steps, losses })
    }

    /// `from` is the epoch after which the training was resumed.
    fn compare(&self, whole: &Self, from: usize) -> Result<()> {
        let lines = self.steps.lines().zip(whole.steps.lines());
        if let Some((ours, theirs)) = lines.clone().find(|(ours, theirs)| ours != theirs) {
            bail!("a step is {ours}, and was {theirs} without an interruption");
        }
        ensure!(
            self.steps.len() == whole.steps.len(),
            "there are {} steps, and were {} without an interruption",
            self.steps.lines().count(),
            whole.steps.lines().count()
        );
        for (split, epoch) in whole.losses.keys().filter(|(_, epoch)| *epoch > from) {
            // Burn takes the first epoch after a checkpoint for the first of all.
            let log = if *epoch == from + 1 { 1 } else { *epoch };
            let losses = self.losses.get(&(split, log));
            let expected = whole.losses.get(&(split, *epoch));
            ensure!(
                losses == expected,
                "the losses of epoch {epoch} ({split}) are {losses:?}, and were {expected:?}"
            );
        }
        ensure!(
            self.row == whole.row,
            "the table is {}, and was {}",
            self.row,
            whole.row
        );
        Ok(())
    }
}
