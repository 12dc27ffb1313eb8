use burn::module::AutodiffModule;
use burn::optim::{GradientsParams, LearningRate, MultiGradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::ops::Device;
use serde::{Deserialize, Serialize};

use super::check::Check;
use super::clip::{GradClipping, clip};
use super::devices::{device_of, devices_of, report, scalers_of, trained_on};
use super::hold_on_skip;
use super::reduce::reduce;
use super::statistics::Statistics;
use super::widen::{has_half, in_f32};
use super::{AmpOptimizerRecord, StepCounters, StepOutcome, TrainingMonitor};
use crate::full_precision;
use crate::loss_scale::{LossScaler, OptimizerId, ScaleUpdate, SharedScaler};
use crate::policy::{self, DeviceKey};

/// When an [`AmpOptimizer`] looks whether the gradients are finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GradientCheck {
    /// Where losses are scaled: in f16, and not in bf16 or f32.
    #[default]
    Auto,
    /// Before every step, at one read by the host a step.
    Always,
    /// Never: a gradient that is not finite reaches the parameters.
    Never,
}

/// Configures an [`AmpOptimizer`].
///
/// # Example
///
/// ```
/// use burn::backend::Flex;
/// use burn::nn::Linear;
/// use burn::optim::{AdamWConfig, Optimizer};
/// use burn_amp::{Amp, AmpOptimizerConfig, Autodiff};
///
/// type B = Autodiff<Amp<Flex>>;
/// let optim = AmpOptimizerConfig::new().init(AdamWConfig::new().init::<B, Linear<B>>());
/// # fn is_optimizer<O: Optimizer<Linear<B>, B>>(_: O) {}
/// # is_optimizer(optim);
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AmpOptimizerConfig {
    gradient_check: GradientCheck,
    grad_clipping: Option<GradClipping>,
    gradient_norm: bool,
    statistics_guard: bool,
}

impl Default for AmpOptimizerConfig {
    fn default() -> Self {
        Self {
            gradient_check: GradientCheck::default(),
            grad_clipping: None,
            gradient_norm: false,
            statistics_guard: true,
        }
    }
}

impl AmpOptimizerConfig {
    /// The defaults: gradients are checked where losses are scaled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets when gradients are checked (default: [`GradientCheck::Auto`]).
    pub fn with_gradient_check(mut self, gradient_check: GradientCheck) -> Self {
        self.gradient_check = gradient_check;
        self
    }

    /// Clips the gradients of each step, in f32, after they were found to be finite (default: no
    /// clipping). Unlike clipping that is set on the inner optimizer, a norm is that over all
    /// parameters.
    pub fn with_grad_clipping(mut self, grad_clipping: Option<GradClipping>) -> Self {
        self.grad_clipping = grad_clipping;
        self
    }

    /// Computes the norm over all gradients of each step, for
    /// [`TrainingMonitor::gradient_norm`](crate::TrainingMonitor::gradient_norm) (default: only where
    /// gradients are clipped by it). It is not read before it is asked for.
    pub fn with_gradient_norm(mut self, gradient_norm: bool) -> Self {
        self.gradient_norm = gradient_norm;
        self
    }

    /// Whether a skipped step takes the running statistics of batch norms back to what they were after the
    /// step before, if the forward pass left some that are not finite, as after a batch with NaN (default:
    /// yes, where gradients are checked).
    ///
    /// They go back together. Where all are finite they stay as the forward pass left them, and parameters,
    /// frozen ones included, are not touched. If the very first step is skipped, they go back to what the
    /// last forward pass found: not past a poisoned micro-batch before it.
    ///
    /// A skipped step of a module with statistics or frozen parameters costs one more read by the host,
    /// and two if any are not finite; other steps cost none. Tensors without gradient that the program
    /// replaces by itself are kept in memory until the next step.
    pub fn with_statistics_guard(mut self, statistics_guard: bool) -> Self {
        self.statistics_guard = statistics_guard;
        self
    }

    /// Wraps an optimizer.
    ///
    /// # Panics
    ///
    /// If the bound of the clipping is not positive and finite.
    pub fn init<O>(&self, optim: O) -> AmpOptimizer<O> {
        if let Some(clipping) = self.grad_clipping {
            clipping.assert_valid();
        }
        AmpOptimizer {
            optim,
            config: self.clone(),
            id: OptimizerId::new(),
            scaler: None,
            devices: Vec::new(),
            counters: StepCounters::default(),
            outcome: None,
            update: None,
            statistics: Statistics::default(),
            warned_of_order: false,
        }
    }
}

/// An optimizer that steps only on finite gradients, and moves the loss scale.
///
/// It makes one decision a step over exactly the gradients that it was handed: either the inner
/// optimizer steps, in full precision, or module and state stay bitwise what they were. In f16 that
/// costs one read by the host a step, in bf16 and f32 none. What a forward pass has done to running
/// statistics before is taken back if it is not finite; see
/// [`with_statistics_guard`](AmpOptimizerConfig::with_statistics_guard).
///
/// The parameters are the f32 master weights; there is no other copy. Gradients come out of
/// `backward()` as true gradients, so clipping that is set on the inner optimizer with
/// `with_grad_clipping` sees them unscaled.
///
/// The scale is that of the device, or of the [`Autocast`](crate::Autocast) scope that the step runs
/// in. Several optimizers share it: what they report between two backward passes moves it once.
///
/// L-BFGS evaluates the loss by a closure and is not an `Optimizer` in Burn, so it cannot be wrapped:
///
/// ```compile_fail
/// # use burn::{backend::Flex, nn::Linear, optim::{LBFGSConfig, Optimizer}};
/// # use burn_amp::{Amp, AmpOptimizerConfig, Autodiff};
/// # type B = Autodiff<Amp<Flex>>;
/// # fn is_optimizer<O: Optimizer<Linear<B>, B>>(_: O) {}
/// is_optimizer(AmpOptimizerConfig::new().init(LBFGSConfig::new().init::<B>()));
/// ```
///
/// Use it as it is, in bf16, with the closure's backward passes on an `Autodiff<Amp<B>>`.
#[derive(Debug)]
pub struct AmpOptimizer<O> {
    optim: O,
    config: AmpOptimizerConfig,
    id: OptimizerId,
    /// The scaler of the last step or record, and the devices it took place on: it is that of the first.
    scaler: Option<SharedScaler>,
    devices: Vec<DeviceKey>,
    counters: StepCounters,
    outcome: Option<StepOutcome>,
    update: Option<ScaleUpdate>,
    statistics: Statistics,
    warned_of_order: bool,
}

impl<O: Clone> Clone for AmpOptimizer<O> {
    /// A clone reports to the loss scale as an optimizer of its own.
    fn clone(&self) -> Self {
        Self {
            optim: self.optim.clone(),
            config: self.config.clone(),
            id: OptimizerId::new(),
            scaler: self.scaler.clone(),
            devices: self.devices.clone(),
            counters: self.counters,
            outcome: self.outcome.clone(),
            update: self.update,
            statistics: self.statistics.clone(),
            warned_of_order: self.warned_of_order,
        }
    }
}

impl<O> AmpOptimizer<O> {
    /// What the last step did; `None` before the first.
    pub fn outcome(&self) -> Option<&StepOutcome> {
        self.outcome.as_ref()
    }

    /// How many steps were applied, skipped, and without gradients.
    pub fn counters(&self) -> StepCounters {
        self.counters
    }

    /// What the last step reported to the loss scale; `None` where losses are not scaled.
    pub fn scale_update(&self) -> Option<&ScaleUpdate> {
        self.update.as_ref()
    }

    /// The state of the loss scale; `None` where losses are not scaled, and before the first step or
    /// record of this optimizer. Needs no read of the device.
    pub fn loss_scaler(&self) -> Option<LossScaler> {
        self.scaler.as_ref().map(SharedScaler::state)
    }

    /// The loss scale; 1 where [`loss_scaler`](AmpOptimizer::loss_scaler) has none.
    pub fn scale(&self) -> f32 {
        self.loss_scaler().map_or(1.0, |scaler| scaler.scale())
    }

    /// The wrapped optimizer.
    pub fn inner(&self) -> &O {
        &self.optim
    }

    /// Unwraps the optimizer, with its state.
    pub fn into_inner(self) -> O {
        self.optim
    }
}

/// Where the inner optimizer steps.
enum StepScope {
    /// Mixed precision is off and the gradients are f32: as without the wrapper.
    Plain,
    FullPrecision,
}

impl<O, M, B> Optimizer<M, B> for AmpOptimizer<O>
where
    O: Optimizer<M, B>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    type Record = AmpOptimizerRecord<O::Record>;

    fn step(&mut self, lr: LearningRate, module: M, mut grads: GradientsParams) -> M {
        let devices = trained_on::<B, M>(&module);
        match self.prepare::<B, M>(&module, &devices, &mut [&mut grads]) {
            None => module,
            Some(StepScope::Plain) => self.optim.step(lr, module, grads),
            Some(StepScope::FullPrecision) => full_precision(|| {
                let grads = in_f32::<B, M>(grads, &module);
                self.optim.step(lr, module, grads)
            }),
        }
    }

    /// Steps on the gradients of several devices, as one: they are summed in f32 before the decision,
    /// the clipping and the norm. [`AmpConfig::with_reduction`](crate::AmpConfig::with_reduction) sets
    /// the type in which they are sent.
    fn step_multi(&mut self, lr: LearningRate, module: M, mut grads: MultiGradientsParams) -> M {
        let mut devices = trained_on::<B, M>(&module);
        let home = devices.first().cloned().unwrap_or_default();
        let reduction = policy::reduction(DeviceKey::of(&home));
        full_precision(|| reduce::<B, M>(&mut grads, &module, reduction));

        devices.extend(grads.grads.iter().map(|(_, id)| device_of::<B>(*id)));
        let mut parts: Vec<_> = grads.grads.iter_mut().map(|(grads, _)| grads).collect();
        match self.prepare::<B, M>(&module, &devices, &mut parts) {
            None => module,
            Some(StepScope::Plain) => self.optim.step_multi(lr, module, grads),
            Some(StepScope::FullPrecision) => full_precision(|| {
                for (part, _device) in &mut grads.grads {
                    *part = in_f32::<B, M>(std::mem::take(part), &module);
                }
                self.optim.step_multi(lr, module, grads)
            }),
        }
    }

    fn to_record(&self) -> Self::Record {
        AmpOptimizerRecord {
            optim: self.optim.to_record(),
            scaler: self.loss_scaler().map(|scaler| scaler.to_record()),
            counters: self.counters,
            device: self.devices.first().copied(),
            is_default_device: false,
        }
    }

    /// Loads the inner optimizer's state, and the loss scale into the device's scaler, which may be
    /// configured before or after. A record that was read for the default device goes to the device, or the
    /// group of devices, that is configured, if the default one is not and there is only one.
    ///
    /// # Panics
    ///
    /// If the recorded scale is not a scale, with its value.
    fn load_record(mut self, record: Self::Record) -> Self {
        self.optim = self.optim.load_record(record.optim);
        self.counters = record.counters;
        self.statistics = Statistics::default();
        if let Some(device) = record.device {
            // Burn's `Learner` loads records for the default device, wherever the module is.
            let other = record
                .is_default_device
                .then(|| policy::only_configured(device));
            self.devices = vec![other.flatten().unwrap_or(device)];
        }
        if let (Some(scaler), Some(device)) = (record.scaler, self.devices.first().copied()) {
            let restored = policy::restore_scaler(device, scaler)
                .unwrap_or_else(|error| panic!("the optimizer's record is not usable: {error}"));
            self.scaler = Some(restored);
        }
        self
    }
}

impl<O> AmpOptimizer<O> {
    /// Decides whether the gradients are to be applied, clips them if so, and tells the monitor.
    fn prepare<B, M>(
        &mut self,
        module: &M,
        devices: &[Device<B>],
        grads: &mut [&mut GradientsParams],
    ) -> Option<StepScope>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        let shared: Vec<_> = grads.iter().map(|grads| &**grads).collect();
        let scope = self.decide::<B, M>(module, devices, &shared);
        let norm = scope
            .as_ref()
            .and_then(|_| self.clip::<B, M>(grads, module));
        let monitor = TrainingMonitor::new(self.counters, self.scaler.clone()).with_norm(norm);
        for device in &self.devices {
            monitor.clone().publish(*device);
        }
        scope
    }

    /// Makes the step's one decision: whether the gradients are to be applied, and where.
    fn decide<B, M>(
        &mut self,
        module: &M,
        devices: &[Device<B>],
        grads: &[&GradientsParams],
    ) -> Option<StepScope>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        let scalers = self.find_scalers::<B, M>(module, devices);
        let check = match self.config.gradient_check {
            GradientCheck::Auto => !scalers.is_empty(),
            GradientCheck::Always => true,
            GradientCheck::Never => false,
        };

        let (is_empty, non_finite) = if check {
            let check = Check::of::<B, M>(module, grads);
            (check.is_empty(), check.read())
        } else {
            (grads.iter().all(|grads| grads.is_empty()), Vec::new())
        };
        let found_inf = !non_finite.is_empty();
        if !is_empty {
            self.update = report(&scalers, self.id, found_inf, self.update);
        }
        let (outcome, scope) = match (is_empty, found_inf) {
            (true, _) => (StepOutcome::NothingToDo, None),
            (false, true) => {
                let scale = self.update;
                let gradients = non_finite;
                (StepOutcome::Skipped { gradients, scale }, None)
            }
            (false, false) => {
                let is_off = devices
                    .iter()
                    .all(|device| policy::is_off(DeviceKey::of(device)));
                let scope = if is_off && !has_half::<B, M>(grads, module) {
                    StepScope::Plain
                } else {
                    StepScope::FullPrecision
                };
                (StepOutcome::Applied, Some(scope))
            }
        };
        if check && self.config.statistics_guard {
            self.statistics.after::<B, M>(module, &outcome);
        }
        self.counters.count(&outcome);
        hold_on_skip::count(&outcome);
        self.outcome = Some(outcome);
        scope
    }

    fn clip<B, M>(
        &self,
        parts: &mut [&mut GradientsParams],
        module: &M,
    ) -> Option<Tensor<B::InnerBackend, 1>>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        let AmpOptimizerConfig {
            grad_clipping,
            gradient_norm,
            ..
        } = self.config;
        full_precision(|| clip::<B, M>(parts, module, grad_clipping, gradient_norm))
    }

    fn find_scalers<B, M>(&mut self, module: &M, devices: &[Device<B>]) -> Vec<SharedScaler>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        self.devices = devices_of::<B, M>(module, devices);
        let scalers = scalers_of(&self.devices);
        self.scaler = scalers.first().cloned();

        if let Some(device) = devices.first()
            && !scalers.is_empty()
            && !self.warned_of_order
            && B::name(device).starts_with("autodiff<amp<")
        {
            self.warned_of_order = true;
            log::warn!(
                "{} does not scale losses by itself: use burn_amp::Autodiff, or a GradScaler",
                B::name(device)
            );
        }
        scalers
    }
}
