//! A schedule that waits for steps that count.

use burn::lr_scheduler::LrScheduler;
use burn::optim::LearningRate;
use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::{Backend, DeviceOps};
use serde::{Deserialize, Serialize};

use super::StepCounters;
use super::monitor::steps_on;
use crate::policy::DeviceKey;

/// A learning-rate schedule that does not advance over skipped steps.
///
/// After a step that was skipped [`step`](LrScheduler::step) gives the same rate again, until a step was
/// applied with it: the rates of the applied steps are those of a run that skips nothing. Without this a
/// schedule goes on, as Burn's do, and its warm-up can be over before the loss scale has settled.
///
/// It serves Burn's `Learner` too, which asks for a rate before each batch: with gradient accumulation
/// a window whose step was skipped is held as a whole, and repeats the last of its rates.
///
/// What was skipped it learns from the device, as [`TrainingMonitor`](crate::TrainingMonitor) does. An
/// [`AmpOptimizer`](crate::AmpOptimizer) that steps a module on several devices reports to the first of
/// them. Several optimizers on a device are not told apart: rates are held when the steps since the last
/// rate were skipped in all of them, and none was applied.
///
/// # Example
///
/// ```
/// use burn::backend::Flex;
/// use burn::lr_scheduler::{LrScheduler, linear::LinearLrSchedulerConfig};
/// use burn::tensor::Device;
/// use burn_amp::{Amp, HoldOnSkip};
///
/// # fn main() -> Result<(), String> {
/// let device: Device<Amp<Flex>> = Default::default();
/// let mut schedule = HoldOnSkip::new(LinearLrSchedulerConfig::new(0.4, 0.1, 3).init()?, &device);
/// let rate = schedule.step();
/// assert!((rate - 0.4).abs() < 1e-12);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct HoldOnSkip<S> {
    scheduler: S,
    device: DeviceKey,
    /// The last rate, `None` before the first.
    rate: Option<LearningRate>,
    is_held: bool,
    /// What was done on the device when the last rate was asked for.
    seen: StepCounters,
}

impl<S> HoldOnSkip<S> {
    /// Wraps a schedule.
    ///
    /// # Arguments
    ///
    /// * `scheduler` - Any of Burn's.
    /// * `device` - The device of the module that is trained.
    pub fn new<D: DeviceOps>(scheduler: S, device: &D) -> Self {
        let device = DeviceKey::of(device);
        Self {
            scheduler,
            device,
            rate: None,
            is_held: false,
            seen: steps_on(device),
        }
    }

    /// The wrapped schedule.
    pub fn inner(&self) -> &S {
        &self.scheduler
    }

    /// Whether the next step is to have the last rate again.
    pub fn is_held(&self) -> bool {
        self.is_held_after(steps_on(self.device))
    }

    fn is_held_after(&self, now: StepCounters) -> bool {
        // Neither an accumulating batch nor a step without gradients changes anything.
        self.rate.is_some()
            && now.applied == self.seen.applied
            && (self.is_held || now.skipped > self.seen.skipped)
    }
}

impl<S: LrScheduler> LrScheduler for HoldOnSkip<S> {
    type Record<B: Backend> = HoldOnSkipRecord<S::Record<B>>;

    fn step(&mut self) -> LearningRate {
        let now = steps_on(self.device);
        self.is_held = self.is_held_after(now);
        self.seen = now;
        match self.rate {
            Some(rate) if self.is_held => rate,
            _ => *self.rate.insert(self.scheduler.step()),
        }
    }

    fn to_record<B: Backend>(&self) -> Self::Record<B> {
        HoldOnSkipRecord {
            scheduler: self.scheduler.to_record::<B>(),
            rate: self.rate,
            // Whoever loads this cannot see the step since the last rate.
            is_held: self.is_held(),
        }
    }

    fn load_record<B: Backend>(self, record: Self::Record<B>) -> Self {
        Self {
            scheduler: self.scheduler.load_record::<B>(record.scheduler),
            device: self.device,
            rate: record.rate,
            is_held: record.is_held,
            seen: steps_on(self.device),
        }
    }
}

/// What a [`HoldOnSkip`] saves: the record of the wrapped schedule, and where it is held.
#[derive(Debug, Clone)]
pub struct HoldOnSkipRecord<R> {
    /// The record of the wrapped schedule.
    pub scheduler: R,
    /// The last rate; `None` before the first.
    pub rate: Option<LearningRate>,
    /// Whether the next step is to have that rate again.
    pub is_held: bool,
}

impl<R> From<R> for HoldOnSkipRecord<R> {
    /// Takes over the record of a plain schedule, which is not held.
    fn from(scheduler: R) -> Self {
        Self {
            scheduler,
            rate: None,
            is_held: false,
        }
    }
}

/// The serialized form of a [`HoldOnSkipRecord`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound = "I: Serialize + serde::de::DeserializeOwned")]
pub enum HoldOnSkipRecordItem<I> {
    /// The first version.
    V1 {
        /// The item of the wrapped schedule.
        scheduler: I,
        /// The last rate.
        rate: Option<LearningRate>,
        /// Whether the next step is to have that rate again.
        is_held: bool,
    },
}

impl<B: Backend, R: Record<B>> Record<B> for HoldOnSkipRecord<R> {
    type Item<S: PrecisionSettings> = HoldOnSkipRecordItem<R::Item<S>>;

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        HoldOnSkipRecordItem::V1 {
            scheduler: self.scheduler.into_item(),
            rate: self.rate,
            is_held: self.is_held,
        }
    }

    fn from_item<S: PrecisionSettings>(item: Self::Item<S>, device: &B::Device) -> Self {
        let HoldOnSkipRecordItem::V1 {
            scheduler,
            rate,
            is_held,
        } = item;
        Self {
            scheduler: R::from_item(scheduler, device),
            rate,
            is_held,
        }
    }
}
