//! Metrics for the dashboard and the log files of Burn's `Learner`.
//!
//! `Learner` owns its optimizer; what these show comes from the
//! [`TrainingMonitor`](crate::TrainingMonitor) of the device. Burn computes metrics on a thread of its own,
//! so a value may be that of a step that came after the one it is shown with.
//!
//! # Example
//!
//! ```
//! use burn::backend::Flex;
//! use burn::train::{LearningComponentsTypes, SupervisedTraining};
//! use burn::tensor::backend::DeviceOps;
//! use burn_amp::train::metric::{
//!     GradientNormMetric, LossScaleMetric, SkippedStepsMetric, ThroughputMetric,
//! };
//!
//! fn with_metrics<LC: LearningComponentsTypes>(
//!     training: SupervisedTraining<LC>,
//!     device: &impl DeviceOps,
//! ) -> SupervisedTraining<LC> {
//!     training
//!         .metric_train_numeric(LossScaleMetric::new(device))
//!         .metric_train_numeric(SkippedStepsMetric::new(device))
//!         .metric_train_numeric(GradientNormMetric::new(device))
//!         .metric_train_numeric(ThroughputMetric::samples())
//! }
//! ```

mod gauge;
mod loss_scale;
mod memory;
mod norm;
mod skipped;
mod throughput;

pub use loss_scale::LossScaleMetric;
pub use memory::PeakMemoryMetric;
pub use norm::GradientNormMetric;
pub use skipped::SkippedStepsMetric;
pub use throughput::ThroughputMetric;
