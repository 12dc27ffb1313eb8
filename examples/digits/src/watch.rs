//! What an optimizer does, seen from outside of the `Learner` that owns it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use burn::module::{AutodiffModule, ModuleVisitor, Param};
use burn::optim::{GradientsParams, LearningRate, MultiGradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_amp::{AmpOptimizer, StepCounters};

/// Counters and loss scale of an [`AmpOptimizer`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Status {
    /// The steps so far, those before a resume included.
    pub counters: StepCounters,
    /// The loss scale; 1 where losses are not scaled.
    pub scale: f32,
}

/// Where a [`Watched`] optimizer leaves its [`Status`]; clones see the same.
#[derive(Debug, Clone)]
pub struct Watch(Arc<Mutex<Status>>);

impl Watch {
    /// The status after the last step or record.
    pub fn status(&self) -> Status {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A line for each step, for comparing two trainings bit by bit: its number, what was done, the loss scale
/// after it, and a checksum of all floats of the module.
#[derive(Debug, Clone)]
pub struct Trace(Arc<Mutex<File>>);

impl Trace {
    /// Goes on with the file at `path`, or begins it.
    pub fn open(path: &Path, resume: bool) -> Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(!resume)
            .open(path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        Ok(Self(Arc::new(Mutex::new(file))))
    }

    /// Drops what was written after step `steps`.
    fn keep(&self, steps: u64) -> Result<()> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        file.seek(SeekFrom::Start(0))?;
        file.read_to_string(&mut text)?;
        let lines = text.split_inclusive('\n').take(steps as usize);
        let kept: Vec<&str> = lines.filter(|line| line.ends_with('\n')).collect();
        ensure!(
            kept.len() as u64 == steps,
            "the trace has {} steps, the checkpoint {steps}",
            kept.len()
        );
        let length = kept.iter().map(|line| line.len() as u64).sum();
        file.set_len(length)?;
        file.seek(SeekFrom::Start(length))?;
        Ok(())
    }

    /// Not buffered: a line that is lost by a kill could not be told from one that never was.
    fn write(&self, line: &str) -> io::Result<()> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(line.as_bytes())
    }
}

/// FNV-1a over the bits of all floats of a module, in the order of its fields.
fn checksum<B: Backend>(module: &impl burn::module::Module<B>) -> u64 {
    struct Fnv(u64);

    impl<B: Backend> ModuleVisitor<B> for Fnv {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let data = param.val().into_data();
            for byte in data.iter::<f32>().flat_map(f32::to_le_bytes) {
                self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
    }

    let mut fnv = Fnv(0xcbf2_9ce4_8422_2325);
    module.visit(&mut fnv);
    fnv.0
}

/// An [`AmpOptimizer`] that shows its status to a [`Watch`], and its steps to a [`Trace`].
#[derive(Debug, Clone)]
pub struct Watched<O> {
    optim: AmpOptimizer<O>,
    watch: Watch,
    trace: Option<Trace>,
}

impl<O> Watched<O> {
    /// Watches an optimizer.
    pub fn new(optim: AmpOptimizer<O>, trace: Option<Trace>) -> (Self, Watch) {
        let watch = Watch(Arc::new(Mutex::new(status(&optim))));
        let watched = Self {
            optim,
            watch: watch.clone(),
            trace,
        };
        (watched, watch)
    }

    fn show(&self) {
        let mut shown = self.watch.0.lock().unwrap_or_else(PoisonError::into_inner);
        *shown = status(&self.optim);
    }

    fn after_step<B: Backend>(&self, module: &impl burn::module::Module<B>) {
        self.show();
        if let Some(trace) = &self.trace {
            let Status { counters, scale } = status(&self.optim);
            let outcome = match self.optim.outcome() {
                Some(outcome) if outcome.is_skipped() => "skipped",
                _ => "applied",
            };
            let step = steps(&counters);
            let line = format!("{step},{outcome},{scale},{:016x}\n", checksum(module));
            trace
                .write(&line)
                .unwrap_or_else(|error| panic!("cannot write the trace of step {step}: {error}"));
        }
    }
}

fn steps(counters: &StepCounters) -> u64 {
    counters.applied + counters.skipped + counters.empty
}

fn status<O>(optim: &AmpOptimizer<O>) -> Status {
    Status {
        counters: optim.counters(),
        scale: optim.scale(),
    }
}

impl<O, M, B> Optimizer<M, B> for Watched<O>
where
    O: Optimizer<M, B>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    type Record = <AmpOptimizer<O> as Optimizer<M, B>>::Record;

    fn step(&mut self, lr: LearningRate, module: M, grads: GradientsParams) -> M {
        let module = self.optim.step(lr, module, grads);
        self.after_step::<B>(&module);
        module
    }

    fn step_multi(&mut self, lr: LearningRate, module: M, grads: MultiGradientsParams) -> M {
        let module = self.optim.step_multi(lr, module, grads);
        self.after_step::<B>(&module);
        module
    }

    fn to_record(&self) -> Self::Record {
        self.optim.to_record()
    }

    /// # Panics
    ///
    /// If there is a trace that lacks steps of the record.
    fn load_record(mut self, record: Self::Record) -> Self {
        self.optim = self.optim.load_record(record);
        self.show();
        if let Some(trace) = &self.trace {
            trace
                .keep(steps(&self.optim.counters()))
                .unwrap_or_else(|error| panic!("cannot go on with the trace: {error:#}"));
        }
        self
    }
}
