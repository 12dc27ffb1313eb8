//! What the last step on a device did, for those who do not hold the optimizer: metrics, a program that
//! has handed it to Burn's `Learner`.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use burn::tensor::Tensor;
use burn::tensor::backend::{Backend, DeviceOps};

use super::StepCounters;
use crate::loss_scale::{LossScaler, SharedScaler};
use crate::policy::DeviceKey;

static LAST: LazyLock<Mutex<HashMap<DeviceKey, TrainingMonitor>>> = LazyLock::new(Mutex::default);

/// The state of the [`AmpOptimizer`](crate::AmpOptimizer) that stepped last on a device.
///
/// # Example
///
/// ```standalone_crate
/// use burn::backend::Flex;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{GradientsParams, Optimizer, SgdConfig};
/// use burn::tensor::Tensor;
/// use burn_amp::{Amp, AmpOptimizerConfig, Autodiff, TrainingMonitor};
///
/// type B = Autodiff<Amp<Flex>>;
/// let device = Default::default();
/// let model: Linear<B> = LinearConfig::new(2, 1).init(&device);
/// let mut optim = AmpOptimizerConfig::new()
///     .with_gradient_norm(true)
///     .init(SgdConfig::new().init::<B, Linear<B>>());
/// let loss = model.forward(Tensor::<B, 2>::ones([1, 2], &device)).sum();
/// let grads = GradientsParams::from_grads(loss.backward(), &model);
/// let model: Linear<B> = optim.step(0.1, model, grads);
///
/// let monitor = TrainingMonitor::of(&device).unwrap();
/// assert_eq!(monitor.counters().applied, 1);
/// assert!((monitor.gradient_norm().unwrap() - 3f32.sqrt()).abs() < 1e-6);
/// ```
#[derive(Clone)]
pub struct TrainingMonitor {
    counters: StepCounters,
    scaler: Option<SharedScaler>,
    norm: Option<Arc<dyn Fn() -> f32 + Send + Sync>>,
}

impl TrainingMonitor {
    /// That of the last step on a device; `None` before the first in this process.
    pub fn of<D: DeviceOps>(device: &D) -> Option<Self> {
        Self::of_key(DeviceKey::of(device))
    }

    pub(crate) fn of_key(device: DeviceKey) -> Option<Self> {
        let last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        last.get(&device).cloned()
    }

    /// How many steps the optimizer has applied, skipped, and taken without gradients.
    pub fn counters(&self) -> StepCounters {
        self.counters
    }

    /// The state of the loss scale now; `None` where losses are not scaled.
    pub fn loss_scaler(&self) -> Option<LossScaler> {
        self.scaler.as_ref().map(SharedScaler::state)
    }

    /// The loss scale now; 1 where losses are not scaled.
    pub fn scale(&self) -> f32 {
        self.loss_scaler().map_or(1.0, |scaler| scaler.scale())
    }

    /// The norm over all gradients of the last step that was applied, before clipping: waits for the
    /// device. `None` if the optimizer neither clips by norm nor was asked for it, with
    /// [`with_gradient_norm`](crate::AmpOptimizerConfig::with_gradient_norm).
    pub fn gradient_norm(&self) -> Option<f32> {
        self.norm.as_ref().map(|norm| norm())
    }

    pub(super) fn new(counters: StepCounters, scaler: Option<SharedScaler>) -> Self {
        Self {
            counters,
            scaler,
            norm: None,
        }
    }

    pub(super) fn with_norm<B: Backend>(mut self, norm: Option<Tensor<B, 1>>) -> Self {
        if let Some(norm) = norm {
            self.norm = Some(Arc::new(move || {
                let values: Vec<f32> = norm.to_data().iter().collect();
                values[0]
            }));
        }
        self
    }

    /// Keeps the last norm if there is no new one.
    pub(super) fn publish(mut self, device: DeviceKey) {
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.remove(&device) {
            self.norm = self.norm.or(last.norm);
        }
        last.insert(device, self);
    }
}

impl fmt::Debug for TrainingMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrainingMonitor")
            .field("counters", &self.counters)
            .field("scale", &self.scale())
            .finish_non_exhaustive()
    }
}
