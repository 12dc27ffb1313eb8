//! Backends, models and training steps that the cases share.

use burn::backend::Flex;
use burn::module::{AutodiffModule, Module, ModuleMapper, Param};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor};
use burn_amp::loss_scale::{DynamicLossScaleConfig, LossScaleConfig, LossScaler};
use burn_amp::{
    Amp, AmpConfig, AmpOptimizer, AmpOptimizerConfig, Autocast, GradScaler, StepOutcome,
    UnscaledGradients,
};

use crate::common;

/// The undecorated training backend.
pub type Plain = burn::backend::Autodiff<Flex>;
/// The recommended order: mixed precision outermost.
pub type Ours = burn_amp::Autodiff<Amp<Flex>>;
/// Burn's own autodiff around the decorated backend.
pub type Burns = burn::backend::Autodiff<Amp<Flex>>;

/// Runs a check that is generic over the backend without autodiff and in both orders.
macro_rules! on_every_backend {
    ($check:ident($($arg:expr),* $(,)?)) => {{
        $check::<burn_amp::Amp<burn::backend::Flex>>($($arg),*);
        $check::<$crate::support::Ours>($($arg),*);
        $check::<$crate::support::Burns>($($arg),*);
    }};
}

/// Runs a check that is generic over the training backend in both orders.
macro_rules! in_both_orders {
    ($check:ident($($arg:expr),* $(,)?)) => {{
        $check::<$crate::support::Ours>($($arg),*);
        $check::<$crate::support::Burns>($($arg),*);
    }};
}

/// Runs a check that takes a [`Scaling`] in every combination that scales losses.
macro_rules! in_every_way {
    ($check:ident()) => {{
        use $crate::support::{Burns, Ours, Scaling};
        $check::<Ours>(Scaling::Automatic);
        $check::<Ours>(Scaling::Manual);
        $check::<Burns>(Scaling::Manual);
    }};
}

pub fn amp16() -> Autocast {
    Autocast::new(&AmpConfig::f16()).unwrap()
}

pub fn ampbf() -> Autocast {
    Autocast::new(&AmpConfig::bf16()).unwrap()
}

/// `amp16` with a scale that starts elsewhere.
pub fn amp16_from(init_scale: f32) -> Autocast {
    amp16_with(DynamicLossScaleConfig::new().with_init_scale(init_scale))
}

pub fn amp16_with(scaling: DynamicLossScaleConfig) -> Autocast {
    let scaling = LossScaleConfig::Dynamic(scaling);
    Autocast::new(&AmpConfig::f16().with_loss_scale(scaling)).unwrap()
}

/// Some vectors to optimize, whose gradients a test can dictate.
#[derive(Module, Debug)]
pub struct Vectors<B: Backend> {
    pub w: Vec<Param<Tensor<B, 1>>>,
}

impl<B: Backend> Vectors<B> {
    pub fn new(values: &[&[f32]]) -> Self {
        let device = B::Device::default();
        let w = values
            .iter()
            .map(|values| Param::from_tensor(Tensor::from_floats(*values, &device)))
            .collect();
        Self { w }
    }

    pub fn values(&self) -> Vec<Vec<f32>> {
        self.w
            .iter()
            .map(|w| w.val().into_data().to_vec().unwrap())
            .collect()
    }
}

impl<B: AutodiffBackend> Vectors<B> {
    /// A loss with the given gradients, all in f32.
    pub fn loss(&self, grads: &[&[f32]]) -> Tensor<B, 1> {
        let device = B::Device::default();
        self.w
            .iter()
            .zip(grads)
            .map(|(w, grad)| (w.val() * Tensor::from_floats(*grad, &device)).sum())
            .reduce(|sum, term| sum + term)
            .unwrap()
    }

    /// The given gradients, without a backward pass.
    pub fn gradients(&self, grads: &[&[f32]]) -> GradientsParams {
        let device = B::Device::default();
        let mut params = GradientsParams::new();
        for (w, grad) in self.w.iter().zip(grads) {
            let grad = Tensor::<B::InnerBackend, 1>::from_floats(*grad, &device);
            params.register::<B::InnerBackend, 1>(w.id, grad);
        }
        params
    }

    /// What a container holds for each vector.
    pub fn read(&self, grads: &GradientsParams) -> Vec<Vec<f32>> {
        self.w
            .iter()
            .map(|w| {
                let grad = grads.get::<B::InnerBackend, 1>(w.id).unwrap();
                grad.into_data().to_vec().unwrap()
            })
            .collect()
    }
}

/// One weight in a matrix product, so that values and gradients go through the compute type.
#[derive(Module, Debug)]
pub struct Scalar<B: Backend> {
    pub w: Param<Tensor<B, 2>>,
}

impl<B: Backend> Scalar<B> {
    pub fn new(value: f32) -> Self {
        Self {
            w: Param::from_tensor(Tensor::from_floats([[value]], &B::Device::default())),
        }
    }

    /// The weight as a product with one gives it.
    pub fn forward(&self) -> Tensor<B, 2> {
        let one = Tensor::ones([1, 1], &B::Device::default());
        one.matmul(self.w.val())
    }

    pub fn value(&self) -> f32 {
        self.w.val().into_data().to_vec::<f32>().unwrap()[0]
    }
}

impl<B: AutodiffBackend> Scalar<B> {
    /// A loss whose gradient is `grad`, after the compute type has rounded it.
    pub fn loss(&self, grad: f32) -> Tensor<B, 1> {
        // The sum is in f32, so the factor is not rounded.
        self.forward().sum().mul_scalar(grad)
    }
}

/// Replaces every parameter by a constant, behind the optimizer's back.
pub struct SetTo(pub f32);

impl<B: Backend> ModuleMapper<B> for SetTo {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        param.map(|w| w.zeros_like().add_scalar(self.0).require_grad())
    }
}

/// Who multiplies the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scaling {
    /// `backward`, and an [`AmpOptimizer`] steps.
    Automatic,
    /// A [`GradScaler`], around the plain optimizer.
    Manual,
}

/// A training loop's state beside the module, in either way of scaling.
pub enum Training<O> {
    Automatic(AmpOptimizer<O>),
    Manual(O, GradScaler),
}

impl<O> Training<O> {
    /// Starts at the scale of `amp`.
    pub fn new(scaling: Scaling, amp: &Autocast, optim: O) -> Self {
        match scaling {
            Scaling::Automatic => Self::Automatic(AmpOptimizerConfig::new().init(optim)),
            Scaling::Manual => Self::Manual(optim, amp.loss_scaler().state().into()),
        }
    }

    pub fn step<B, M>(&mut self, lr: f64, module: M, loss: Tensor<B, 1>) -> (M, StepOutcome)
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
        O: Optimizer<M, B>,
    {
        match self {
            Self::Automatic(_) => {
                let grads = self.differentiate(loss, &module);
                self.apply(lr, module, grads)
            }
            Self::Manual(optim, scaler) => {
                let mut scaled = scaler.scale(loss).backward();
                let grads = scaler.unscale(&mut scaled, &module);
                let (module, outcome) = scaler.step(optim, lr, module, grads);
                let _ = scaler.update();
                (module, outcome)
            }
        }
    }

    /// Scales and differentiates without a step, for micro-batches.
    pub fn differentiate<B, M>(&self, loss: Tensor<B, 1>, module: &M) -> GradientsParams
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        match self {
            Self::Automatic(_) => GradientsParams::from_grads(loss.backward(), module),
            Self::Manual(_, scaler) => {
                let mut scaled = scaler.scale(loss).backward();
                scaler.unscale(&mut scaled, module).into_params()
            }
        }
    }

    /// Steps on gradients that are true already.
    pub fn apply<B, M>(&mut self, lr: f64, module: M, grads: GradientsParams) -> (M, StepOutcome)
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
        O: Optimizer<M, B>,
    {
        match self {
            Self::Automatic(optim) => {
                let module = optim.step(lr, module, grads);
                (module, optim.outcome().unwrap().clone())
            }
            Self::Manual(optim, scaler) => {
                let grads = UnscaledGradients::<B>::from_params(grads, &module);
                let (module, outcome) = scaler.step(optim, lr, module, grads);
                let _ = scaler.update();
                (module, outcome)
            }
        }
    }

    pub fn scale(&self, amp: &Autocast) -> f32 {
        self.state(amp).scale()
    }

    pub fn state(&self, amp: &Autocast) -> LossScaler {
        match self {
            Self::Automatic(_) => amp.loss_scaler().state(),
            Self::Manual(_, scaler) => scaler.loss_scaler(),
        }
    }

    pub fn set_scale(&mut self, amp: &Autocast, scale: f32) {
        match self {
            Self::Automatic(_) => amp.loss_scaler().set_scale(scale).unwrap(),
            Self::Manual(_, scaler) => {
                let mut state = scaler.loss_scaler();
                state.set_scale(scale).unwrap();
                *scaler = state.into();
            }
        }
    }
}

pub fn assert_values<B: Backend, const D: usize>(
    tensor: Tensor<B, D>,
    dtype: DType,
    expected: &[f64],
) {
    assert_eq!(tensor.dtype(), dtype);
    assert_eq!(common::values(tensor), expected);
}

pub fn assert_all_finite(values: &[f64]) {
    assert!(values.iter().all(|value| value.is_finite()), "{values:?}");
}

/// Compares with a tolerance relative to the expected value, and absolute below one.
pub fn assert_close(actual: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len());
    for (actual, expected) in actual.iter().zip(expected) {
        let allowed = tolerance * expected.abs().max(1.0);
        assert!(
            (actual - expected).abs() <= allowed,
            "{actual}, expected {expected} within {allowed}"
        );
    }
}

pub fn assert_within(actual: f64, expected: f64, relative: f64) {
    assert!(
        (actual - expected).abs() <= relative * expected.abs(),
        "{actual}, expected {expected} within {relative}"
    );
}
