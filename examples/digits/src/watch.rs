//! What an optimizer counts, seen from outside of the `Learner` that owns it.

use std::sync::{Arc, Mutex, PoisonError};

use burn::module::AutodiffModule;
use burn::optim::{GradientsParams, LearningRate, MultiGradientsParams, Optimizer};
use burn::tensor::backend::AutodiffBackend;
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

/// An [`AmpOptimizer`] that shows its status to a [`Watch`].
#[derive(Debug, Clone)]
pub struct Watched<O> {
    optim: AmpOptimizer<O>,
    watch: Watch,
}

impl<O> Watched<O> {
    /// Watches an optimizer.
    pub fn new(optim: AmpOptimizer<O>) -> (Self, Watch) {
        let watch = Watch(Arc::new(Mutex::new(status(&optim))));
        let watched = Self {
            optim,
            watch: watch.clone(),
        };
        (watched, watch)
    }

    fn show(&self) {
        let mut shown = self.watch.0.lock().unwrap_or_else(PoisonError::into_inner);
        *shown = status(&self.optim);
    }
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
        self.show();
        module
    }

    fn step_multi(&mut self, lr: LearningRate, module: M, grads: MultiGradientsParams) -> M {
        let module = self.optim.step_multi(lr, module, grads);
        self.show();
        module
    }

    fn to_record(&self) -> Self::Record {
        self.optim.to_record()
    }

    fn load_record(mut self, record: Self::Record) -> Self {
        self.optim = self.optim.load_record(record);
        self.show();
        self
    }
}
