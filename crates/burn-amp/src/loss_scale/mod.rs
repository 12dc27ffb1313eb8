//! Loss scaling: the state machine and its settings. No tensors here.
//!
//! Half-precision gradients lose what is smaller than the format's smallest number, so the loss is
//! multiplied by a scale before backward and the gradients are divided by it afterwards. A scale
//! that is too high shows itself as infinities or NaN: that step is skipped and the scale lowered.
//!
//! # The rule
//!
//! One pure function, [`LossScaler::after`], takes the state and whether any gradient was not
//! finite, and gives the next state:
//!
//! - not finite: the step is skipped, the growth tracker returns to 0 and, once
//!   [`hysteresis`](DynamicLossScaleConfig::hysteresis) such steps were counted, the scale is
//!   multiplied by [`backoff_factor`](DynamicLossScaleConfig::backoff_factor);
//! - finite: the step is applied and the growth tracker advances; when it reaches
//!   [`growth_interval`](DynamicLossScaleConfig::growth_interval) it returns to 0 and the scale is
//!   multiplied by [`growth_factor`](DynamicLossScaleConfig::growth_factor).
//!
//! Products are taken in `f64` and rounded to `f32` once, as PyTorch does.
//!
//! [`LossScaler`] is the value to use with one optimizer. [`SharedScaler`] is a handle for several
//! optimizers that share one loss. [`LossScalerRecord`] is what a checkpoint stores.
//!
//! # Differences from PyTorch
//!
//! With the same settings, and as long as the scale stays within the bounds, scales and growth
//! trackers are those of `torch.amp.GradScaler`, bit for bit. Otherwise:
//!
//! - **Floor.** The scale never falls below
//!   [`min_scale`](DynamicLossScaleConfig::min_scale), so its reciprocal is always finite.
//!   PyTorch's scale can reach 0.
//! - **Ceiling.** The scale never rises above [`max_scale`](DynamicLossScaleConfig::max_scale).
//!   PyTorch's only limit is that a growth whose product is not finite keeps the scale, which
//!   holds here too.
//! - **Tracker.** The tracker is compared with the interval by `>=`. PyTorch compares by `==`, so
//!   lowering the interval below the tracker stops growth until the next overflow.
//! - **Hysteresis.** More than one overflow can be asked for before the scale is lowered. The
//!   default, 1, is PyTorch's behaviour.
//! - **Validation.** Settings that cannot work (a negative backoff factor, an interval of 0, a
//!   scale without a finite reciprocal) are refused.
//! - **Counters.** Applied and skipped steps are counted and reported with each update, also
//!   without dynamic scaling, where PyTorch does not look.

mod config;
mod error;
mod record;
mod scaler;
mod shared;
mod update;

pub use config::{DynamicLossScaleConfig, HysteresisMode, LossScaleConfig};
pub use error::{LossScaleConfigError, LossScaleError};
pub use record::{LossScalerRecord, LossScalerRecordV1};
pub use scaler::LossScaler;
pub(crate) use scaler::reciprocal;
pub use shared::{OptimizerId, SharedScaler};
pub use update::{LossScaleCounters, ScaleUpdate};
