use burn::module::AutodiffModule;
use burn::optim::{GradientsParams, LearningRate, Optimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{FloatDType, Tensor};

use super::check::Check;
use super::{NonFiniteGradient, StepOutcome};
use crate::full_precision;
use crate::loss_scale::{
    LossScaleConfig, LossScaleConfigError, LossScaler, OptimizerId, ScaleUpdate, SharedScaler,
    reciprocal,
};
use crate::policy::{ManualScalingGuard, is_half};

/// Scales losses and unscales gradients in a training loop that is written by hand.
///
/// Needed for f16 with Burn's own `Autodiff<Amp<B>>`; with [`Autodiff`](crate::Autodiff) the scale is
/// applied by itself, and a `GradScaler` takes its place for the passes that go through it.
///
/// The order of the calls is in the types: gradients can be unscaled only once, and stepped on only
/// when they are.
///
/// # Example
///
/// ```
/// use burn::backend::{Autodiff, Flex};
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::SgdConfig;
/// use burn::tensor::Tensor;
/// use burn_amp::{Amp, GradScaler, loss_scale::LossScaleConfig};
///
/// type B = Autodiff<Amp<Flex>>;
/// let device = Default::default();
/// let mut model: Linear<B> = LinearConfig::new(4, 1).init(&device);
/// let mut optim = SgdConfig::new().init::<B, Linear<B>>();
/// let mut scaler = GradScaler::new(LossScaleConfig::dynamic())?;
///
/// for _step in 0..2 {
///     let loss = model.forward(Tensor::<B, 2>::ones([8, 4], &device)).powi_scalar(2).mean();
///     let mut scaled = scaler.scale(loss).backward();
///     let grads = scaler.unscale(&mut scaled, &model);
///     // inspect or clip grads.params() here
///     let outcome;
///     (model, outcome) = scaler.step(&mut optim, 0.1, model, grads);
///     assert!(outcome.is_applied());
///     scaler.update()?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Differences from PyTorch
///
/// - Unscaling returns new gradients, in f32, with the check's result; the scaled ones are consumed.
/// - A step on no gradients does nothing, where PyTorch fails an assertion.
/// - Forgetting `update` is harmless: the next `scale` makes up for it.
#[derive(Debug, Clone)]
pub struct GradScaler {
    scaler: SharedScaler,
}

/// [`GradScaler::update`] was called when no step was taken since the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no step was taken since the last update, so there is nothing to move the loss scale by")]
pub struct NothingRecorded;

impl GradScaler {
    /// Starts at the configured scale.
    ///
    /// # Errors
    ///
    /// A setting is out of range.
    pub fn new(config: LossScaleConfig) -> Result<Self, LossScaleConfigError> {
        LossScaler::new(config).map(Self::from)
    }

    /// Multiplies the loss by the scale, in f32.
    ///
    /// # Shapes
    ///
    /// - loss: any, usually `[1]`
    pub fn scale<B: AutodiffBackend, const D: usize>(
        &self,
        loss: Tensor<B, D>,
    ) -> ScaledLoss<B, D> {
        let scale = self.scaler.begin_backward();
        let loss = if is_half(loss.dtype()) {
            loss.cast(FloatDType::F32)
        } else {
            loss
        };
        ScaledLoss {
            loss: loss.mul_scalar(scale),
            scale,
        }
    }

    /// Takes the gradients of a module's parameters out of `scaled`, divides them by the scale they
    /// were made with, in f32, and flags those that are not finite. Nothing is read back.
    ///
    /// A second call for the same module finds nothing left: gradients are never divided twice.
    pub fn unscale<B, M>(&self, scaled: &mut ScaledGradients<B>, module: &M) -> UnscaledGradients<B>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        let taken = GradientsParams::from_module(&mut scaled.grads, module);
        let inv_scale = reciprocal(scaled.scale);
        let (params, check) =
            full_precision(|| Check::of_unscaled::<B, M>(module, taken, inv_scale));
        UnscaledGradients { params, check }
    }

    /// Steps on gradients that are finite, in full precision; otherwise returns the module as it is.
    ///
    /// Reads the flags, once for each device.
    pub fn step<B, M, O>(
        &mut self,
        optim: &mut O,
        lr: LearningRate,
        module: M,
        grads: UnscaledGradients<B>,
    ) -> (M, StepOutcome)
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
        O: Optimizer<M, B>,
    {
        if grads.check.is_empty() {
            return (module, StepOutcome::NothingToDo);
        }
        let gradients = grads.check.read();
        // Every call is an optimizer of its own until the next update.
        let update = self
            .scaler
            .report(OptimizerId::new(), !gradients.is_empty());
        if gradients.is_empty() {
            let module = full_precision(|| optim.step(lr, module, grads.params));
            return (module, StepOutcome::Applied);
        }
        let scale = Some(update);
        (module, StepOutcome::Skipped { gradients, scale })
    }

    /// Moves the scale by what the steps since the last update found, once, however many they were.
    ///
    /// # Errors
    ///
    /// [`NothingRecorded`] if there was no step.
    pub fn update(&mut self) -> Result<ScaleUpdate, NothingRecorded> {
        self.scaler.commit().ok_or(NothingRecorded)
    }

    /// The state of the scale, for its counters and to save it.
    pub fn loss_scaler(&self) -> LossScaler {
        self.scaler.state()
    }
}

impl From<LossScaler> for GradScaler {
    /// Goes on from a state, for example one that was loaded.
    fn from(scaler: LossScaler) -> Self {
        Self {
            scaler: SharedScaler::new(scaler),
        }
    }
}

/// A loss times the scale.
#[derive(Debug, Clone)]
pub struct ScaledLoss<B: AutodiffBackend, const D: usize> {
    loss: Tensor<B, D>,
    scale: f32,
}

impl<B: AutodiffBackend, const D: usize> ScaledLoss<B, D> {
    /// Differentiates the scaled loss.
    pub fn backward(self) -> ScaledGradients<B> {
        // The loss is scaled already.
        let _manual = ManualScalingGuard::enter();
        ScaledGradients {
            grads: self.loss.backward(),
            scale: self.scale,
        }
    }

    /// The scaled loss.
    pub fn tensor(&self) -> &Tensor<B, D> {
        &self.loss
    }
}

/// Gradients times the scale.
pub struct ScaledGradients<B: AutodiffBackend> {
    grads: B::Gradients,
    scale: f32,
}

impl<B: AutodiffBackend> std::fmt::Debug for ScaledGradients<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ScaledGradients")
            .field("scale", &self.scale)
            .finish_non_exhaustive()
    }
}

/// True f32 gradients, and flags on the device that say whether they are finite.
///
/// Dropping them discards the step: scale and growth tracker are not affected.
#[derive(Debug)]
pub struct UnscaledGradients<B: AutodiffBackend> {
    params: GradientsParams,
    check: Check<B::InnerBackend>,
}

impl<B: AutodiffBackend> UnscaledGradients<B> {
    /// Flags gradients that are true already, for example accumulated ones.
    pub fn from_params<M: AutodiffModule<B>>(params: GradientsParams, module: &M) -> Self {
        Self {
            check: Check::of::<B, M>(module, &[&params]),
            params,
        }
    }

    /// The gradients.
    pub fn params(&self) -> &GradientsParams {
        &self.params
    }

    /// The gradients, to clip them: the verdict stays that of the gradients as they were unscaled.
    pub fn params_mut(&mut self) -> &mut GradientsParams {
        &mut self.params
    }

    /// The gradients without the check, to accumulate them.
    pub fn into_params(self) -> GradientsParams {
        self.params
    }

    /// Reads which gradients are not finite; [`GradScaler::step`] does so by itself.
    pub fn read_check(&self) -> Vec<NonFiniteGradient> {
        self.check.clone().read()
    }
}
