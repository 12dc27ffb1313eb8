//! Automatic mixed precision for Burn.

mod autocast;
mod autodiff;
mod backend;
mod config;
mod counters;
mod device;
mod error;
pub mod loss_scale;
mod optim;
mod policy;

pub use autocast::{Autocast, autocast};
pub use autodiff::{AmpGradients, Autodiff, TrainingOrder};
pub use backend::{Amp, AmpBackend};
pub use config::AmpConfig;
pub use counters::Counters;
pub use device::AmpDevice;
pub use error::AmpError;
pub use optim::{
    AmpOptimizer, AmpOptimizerConfig, AmpOptimizerRecord, AmpOptimizerRecordItem, GradScaler,
    GradientCheck, NonFinite, NonFiniteGradient, NothingRecorded, ScaledGradients, ScaledLoss,
    StepCounters, StepOutcome, UnscaledGradients,
};
pub use policy::{
    Half, Op, OpClass, Precision, Readback, ScopeGuard, UnknownOp, UnknownPrecision,
    enter_full_precision, full_precision,
};
