//! A schedule that waits for steps that count.

use std::cell::Cell;

use burn::lr_scheduler::LrScheduler;
use burn::optim::LearningRate;
use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::Backend;
use serde::{Deserialize, Serialize};

use super::{StepCounters, StepOutcome};

thread_local! {
    /// What the optimizers of this thread have done, whatever their records say.
    static STEPS: Cell<StepCounters> = const {
        Cell::new(StepCounters {
            applied: 0,
            skipped: 0,
            empty: 0,
        })
    };
}

/// Counts a step of an optimizer on this thread.
pub(super) fn count(outcome: &StepOutcome) {
    let mut steps = STEPS.get();
    steps.count(outcome);
    STEPS.set(steps);
}

/// A learning-rate schedule that does not advance over skipped steps.
///
/// After a step that was skipped [`step`](LrScheduler::step) gives the same rate again, until a step was
/// applied with it: the rates of the applied steps are those of a run that skips nothing. Without this a
/// schedule goes on, as Burn's do, and its warm-up can be over before the loss scale has settled.
///
/// It serves Burn's `Learner` too, which asks for a rate before each batch: with gradient accumulation
/// a window whose step was skipped is held as a whole, and repeats the last of its rates.
///
/// It knows of the steps that any [`AmpOptimizer`](crate::AmpOptimizer) took on its thread, which is where
/// `Learner` has both, also with several devices and for each worker of `ddp`. Several optimizers are not told
/// apart: rates are held when a step was skipped since the last rate, and none was applied. A
/// [`GradScaler`](crate::GradScaler)'s steps are not seen.
///
/// # Example
///
/// ```
/// use burn::lr_scheduler::{LrScheduler, linear::LinearLrSchedulerConfig};
/// use burn_amp::HoldOnSkip;
///
/// # fn main() -> Result<(), String> {
/// let mut schedule = HoldOnSkip::new(LinearLrSchedulerConfig::new(0.4, 0.1, 3).init()?);
/// let rate = schedule.step();
/// assert!((rate - 0.4).abs() < 1e-12);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct HoldOnSkip<S> {
    scheduler: S,
    /// The last rate, `None` before the first.
    rate: Option<LearningRate>,
    is_held: bool,
    /// What the thread had done when the last rate was asked for; `None` after a record was loaded, which may
    /// be on another thread.
    seen: Option<StepCounters>,
}

impl<S> HoldOnSkip<S> {
    /// Wraps any of Burn's schedules.
    pub fn new(scheduler: S) -> Self {
        Self {
            scheduler,
            rate: None,
            is_held: false,
            seen: None,
        }
    }

    /// The wrapped schedule.
    pub fn inner(&self) -> &S {
        &self.scheduler
    }

    /// Whether the next step is to have the last rate again.
    pub fn is_held(&self) -> bool {
        self.is_held_after(STEPS.get())
    }

    fn is_held_after(&self, now: StepCounters) -> bool {
        let Some(seen) = self.seen else {
            return self.is_held;
        };
        // Neither an accumulating batch nor a step without gradients changes anything.
        self.rate.is_some()
            && now.applied == seen.applied
            && (self.is_held || now.skipped > seen.skipped)
    }
}

impl<S: LrScheduler> LrScheduler for HoldOnSkip<S> {
    type Record<B: Backend> = HoldOnSkipRecord<S::Record<B>>;

    fn step(&mut self) -> LearningRate {
        let now = STEPS.get();
        self.is_held = self.is_held_after(now);
        self.seen = Some(now);
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
            rate: record.rate,
            is_held: record.is_held,
            seen: None,
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
