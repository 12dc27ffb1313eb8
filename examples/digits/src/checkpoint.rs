//! What a training leaves in its folder: its settings, and checkpoints to go on from.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use burn::lr_scheduler::LrScheduler;
use burn::module::Module;
use burn::optim::Optimizer;
use burn::record::{DefaultRecorder, Record, Recorder};
use burn::tensor::backend::AutodiffBackend;
use burn_amp::record::AtomicFileRecorder;
use burn_amp::train::checkpoints;
use serde_json::{Map, Value};

use crate::model::DigitNet;
use crate::train::Plan;

/// In full precision: Burn's compact recorder stores weights in 16 bits.
pub type CheckpointRecorder = AtomicFileRecorder<DefaultRecorder>;

/// A folder for what one training leaves.
#[derive(Debug, Clone)]
pub struct Artifacts(PathBuf);

impl Artifacts {
    /// Uses `folder`, which need not exist.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// The epochs of which there is a checkpoint, the newest first.
    pub fn epochs(&self) -> Result<Vec<usize>> {
        checkpoints(&self.0).with_context(|| format!("cannot read {}", self.0.display()))
    }

    /// The newest epoch whose checkpoint can be read; those that cannot are named on standard error.
    pub fn newest<B, O, S>(&self, device: &B::Device) -> Result<Option<usize>>
    where
        B: AutodiffBackend,
        O: Optimizer<DigitNet<B>, B>,
        S: LrScheduler,
    {
        for epoch in self.epochs()? {
            let read = self
                .load::<B, <DigitNet<B> as Module<B>>::Record>("model", epoch, device)
                .and_then(|_| self.load::<B, O::Record>("optim", epoch, device))
                .and_then(|_| self.load::<B, S::Record<B>>("scheduler", epoch, device));
            match read {
                Ok(_) => return Ok(Some(epoch)),
                Err(error) => writeln!(io::stderr(), "passed over: {error:#}")?,
            }
        }
        Ok(None)
    }

    /// Reads a part of a checkpoint: `model`, `optim` or `scheduler`.
    pub fn load<B, R>(&self, part: &str, epoch: usize, device: &B::Device) -> Result<R>
    where
        B: AutodiffBackend,
        R: Record<B>,
    {
        let path = self.part(part, epoch);
        Recorder::<B>::load(&CheckpointRecorder::default(), path, device)
            .with_context(|| format!("cannot go on from epoch {epoch}"))
    }

    fn part(&self, part: &str, epoch: usize) -> PathBuf {
        self.0.join("checkpoint").join(format!("{part}-{epoch}"))
    }

    /// Prepares the folder for a new training.
    ///
    /// # Errors
    ///
    /// It holds another one's checkpoints.
    pub fn begin(&self, plan: &Plan) -> Result<()> {
        ensure!(
            self.epochs()?.is_empty(),
            "{} holds checkpoints already; --resume goes on from them",
            self.0.display()
        );
        fs::create_dir_all(&self.0)
            .with_context(|| format!("cannot create {}", self.0.display()))?;
        let file = BufWriter::new(File::create(self.settings())?);
        Ok(serde_json::to_writer_pretty(file, plan)?)
    }

    /// Checks that the checkpoints are those of a training with the same settings.
    ///
    /// # Errors
    ///
    /// A setting differs: it is named with its two values.
    pub fn check(&self, plan: &Plan) -> Result<()> {
        let path = self.settings();
        let file = File::open(&path).with_context(|| format!("cannot open {}", path.display()))?;
        let before: Map<String, Value> = serde_json::from_reader(BufReader::new(file))
            .with_context(|| format!("cannot read {}", path.display()))?;
        let Value::Object(now) = serde_json::to_value(plan)? else {
            unreachable!("a plan has fields");
        };
        for (name, value) in now {
            let was = before.get(&name).unwrap_or(&Value::Null);
            if *was != value {
                bail!(
                    "{} holds a training with {name} {was}, it cannot go on with {value}",
                    self.0.display()
                );
            }
        }
        Ok(())
    }

    fn settings(&self) -> PathBuf {
        self.0.join("settings.json")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan {
            epochs: 4,
            batch: 32,
            learning_rate: 0.01,
            seed: 1,
            growth_interval: 2000,
            patience: None,
        }
    }

    #[test]
    fn should_find_epochs_of_which_all_files_exist() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::new(folder.path());
        assert!(artifacts.epochs().unwrap().is_empty());

        fs::create_dir(folder.path().join("checkpoint")).unwrap();
        for name in ["model-2", "optim-2", "scheduler-2", "model-10", "optim-10"] {
            fs::write(folder.path().join(format!("checkpoint/{name}.mpk")), "").unwrap();
        }
        assert_eq!(artifacts.epochs().unwrap(), [2]);
        fs::write(folder.path().join("checkpoint/scheduler-10.mpk"), "").unwrap();
        assert_eq!(artifacts.epochs().unwrap(), [10, 2]);

        let error = artifacts.begin(&plan()).unwrap_err().to_string();
        assert!(error.contains("holds checkpoints already"), "{error}");
    }

    #[test]
    fn should_name_the_setting_that_differs() {
        let folder = tempfile::tempdir().unwrap();
        let artifacts = Artifacts::new(folder.path().join("new/folder"));
        artifacts.begin(&plan()).unwrap();
        artifacts.check(&plan()).unwrap();

        let other = Plan {
            learning_rate: 0.02,
            ..plan()
        };
        let error = artifacts.check(&other).unwrap_err().to_string();
        assert!(
            error.ends_with("with learning_rate 0.01, it cannot go on with 0.02"),
            "{error}"
        );
    }
}
