//! Automatic mixed precision for [Burn](https://burn.dev).
//!
//! [`Amp`] decorates a backend: each op runs in the precision that is safe for it, matrix products and
//! convolutions in f16 or bf16, exponentials, sums and norms in f32. Parameters, gradients and optimizer
//! state stay f32, and in f16 the loss is scaled so that small gradients survive.
//!
//! A program changes in three places: the type alias, one line of configuration, and the optimizer.
//!
//! ```
//! use burn::backend::Flex;
//! use burn::nn::{Linear, LinearConfig};
//! use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
//! use burn::tensor::Tensor;
//! use burn_amp::{Amp, AmpConfig, AmpOptimizerConfig, Autodiff};
//!
//! type MyBackend = Amp<Flex>; // was: Flex
//! type MyAutodiffBackend = Autodiff<MyBackend>; // burn_amp::Autodiff; was: Burn's
//!
//! # fn main() -> Result<(), burn_amp::AmpError> {
//! let device = Default::default();
//! AmpConfig::bf16().init(&device)?;
//!
//! let mut model: Linear<MyAutodiffBackend> = LinearConfig::new(4, 1).init(&device);
//! let mut optim = AmpOptimizerConfig::new().init(AdamWConfig::new().init());
//!
//! let x = Tensor::<MyAutodiffBackend, 2>::ones([8, 4], &device);
//! let loss = model.forward(x).powi_scalar(2).mean();
//! let grads = GradientsParams::from_grads(loss.backward(), &model);
//! model = optim.step(1e-3, model, grads);
//! # Ok(())
//! # }
//! ```
//!
//! - [`AmpConfig`] says which precision, with exceptions for single ops; [`autocast`] and
//!   [`full_precision`] say it for a region of code.
//! - [`OpClass`] explains what happens to an op; [`Op`] lists them all.
//! - [`AmpOptimizer`] skips steps whose gradients are not finite: in f16, and wherever [`GradientCheck`] says
//!   so. [`GradScaler`] is for loops that are written by hand.
//! - [`Ema`] averages parameters, [`HoldOnSkip`] holds a learning rate; both know of skipped steps.
//! - [`loss_scale`] has the scaler itself.
//!
//! # Several devices
//!
//! Configure the devices that train one model with [`AmpConfig::init_devices`], then use Burn's strategies
//! as they are. There is one decision a step: gradients are reduced first, so an overflow on one device is
//! seen wherever there is an optimizer, and no device steps. Loss scales move together.
//!
//! - Burn's `Learner` with `ExecutionStrategy::MultiDevice`, and any other use of `step_multi`: the
//!   [`AmpOptimizer`] sums the gradients in f32, checks and clips the sum, and tells all devices.
//! - `ExecutionStrategy::ddp`, with the feature `ddp`: each worker has an optimizer and a loss scale of its
//!   own, which come to the same because all see the same reduced gradients. Starting refuses devices that
//!   are configured differently. Only [`Autodiff<Amp<B>>`](Autodiff) is supported; around Burn's own order,
//!   Burn leaves out the passes after a skipped step.
//! - [`AmpConfig::with_reduction`] sets the type in which gradients are sent: f32, bf16 or f16.
//!
//! This relies on a reduction that gives every worker the same bits. Burn's server and strategies were
//! tested with two workers on the CPU and a reduction of the tests' own; on several GPUs, with NCCL, nothing
//! was run.
//!
//! # Features
//!
//! `flex` (default), `ndarray`, `cuda`, `vulkan`: Burn's backends. `fusion`: Burn's kernel fusion for the
//! GPU backends. `autotune` (default): they time the ways to run a product. `train`: metrics
//! and checkpoints of Burn's `Learner`. `ddp`: Burn's distributed data parallel training; with it, Burn
//! trains on CubeCL's backends only, and not on `flex` or `ndarray`.

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide.md")]
struct Guide;

mod autocast;
mod autodiff;
mod backend;
mod config;
mod counters;
mod device;
#[cfg(feature = "ddp")]
mod distributed;
mod ema;
mod error;
pub mod loss_scale;
pub mod memory;
mod optim;
mod policy;
pub mod record;
#[cfg(feature = "train")]
pub mod train;

/// What the methods of [`AmpBackend`] exchange, for backends that override them.
pub mod extension {
    pub use crate::backend::{
        Arithmetic, Attention, AttentionGrads, LayerNorm, LayerNormGrads, Moments,
    };
}

pub use autocast::{Autocast, autocast};
pub use autodiff::{AmpGradients, Autodiff, TrainingOrder};
pub use backend::{Amp, AmpBackend};
pub use config::AmpConfig;
pub use counters::Counters;
pub use device::AmpDevice;
pub use ema::{Ema, EmaAverageItem, EmaConfig, EmaError, EmaRecord, EmaRecordItem};
pub use error::AmpError;
pub use optim::{
    AmpGradientsAccumulator, AmpOptimizer, AmpOptimizerConfig, AmpOptimizerRecord,
    AmpOptimizerRecordItem, BadMicroBatch, GradClipping, GradScaler, GradientCheck, HoldOnSkip,
    HoldOnSkipRecord, HoldOnSkipRecordItem, NonFinite, NonFiniteGradient, NothingRecorded,
    ScaledGradients, ScaledLoss, StepCounters, StepOutcome, TrainingMonitor, UnscaledGradients,
    clip_grad_norm, clip_grad_value, grad_norm,
};
pub use policy::{
    Half, Op, OpClass, Precision, Readback, Reduction, ScopeGuard, UnknownOp, UnknownPrecision,
    enter_full_precision, full_precision,
};
