//! The optimizer's side: the check before a step, the wrapper around any Burn optimizer, and the
//! scaler for loops that are written by hand.

mod accumulator;
mod amp_optimizer;
mod change;
mod check;
mod clip;
mod collect;
mod devices;
mod grad_scaler;
mod hold_on_skip;
mod monitor;
mod outcome;
mod record;
mod reduce;
mod statistics;
mod widen;

pub use accumulator::{AmpGradientsAccumulator, BadMicroBatch};
pub use amp_optimizer::{AmpOptimizer, AmpOptimizerConfig, GradientCheck};
pub use clip::{GradClipping, clip_grad_norm, clip_grad_value, grad_norm};
pub use grad_scaler::{
    GradScaler, NothingRecorded, ScaledGradients, ScaledLoss, UnscaledGradients,
};
pub use hold_on_skip::{HoldOnSkip, HoldOnSkipRecord, HoldOnSkipRecordItem};
pub use monitor::TrainingMonitor;
pub use outcome::{NonFinite, NonFiniteGradient, StepCounters, StepOutcome};
pub use record::{AmpOptimizerRecord, AmpOptimizerRecordItem};
pub(crate) use widen::widened;
