//! A small GAN in plain Burn: a generator and a discriminator, each with its optimizer, in f16.
//!
//! At some steps the discriminator's loss is multiplied until its gradients overflow. Its optimizer
//! leaves these steps out; the generator's takes its own, as if nothing had happened.
#![recursion_limit = "256"]

use burn::backend::Flex;
use burn::module::{AutodiffModule, Module};
use burn::nn::loss::BinaryCrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Int, Tensor};
use burn_amp::{
    Amp, AmpConfig, AmpDevice, AmpError, AmpOptimizer, AmpOptimizerConfig, Autodiff, StepCounters,
    StepOutcome,
};

/// The backend of the program and of the tests.
pub type Training = Autodiff<Amp<Flex>>;

/// Numbers that the generator makes of one sample.
const NOISE: usize = 4;
const WIDTH: usize = 32;
const BATCH: usize = 64;

/// Mean of what the generator is to imitate.
pub const TARGET_MEAN: f32 = 3.0;
/// Standard deviation of what the generator is to imitate.
pub const TARGET_DEVIATION: f32 = 0.5;

/// Three linear layers.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    layers: [Linear<B>; 3],
    relu: Relu,
}

impl<B: Backend> Mlp<B> {
    /// Builds the layers with new random weights.
    pub fn new(inputs: usize, device: &B::Device) -> Self {
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        Self {
            layers: [layer(inputs, WIDTH), layer(WIDTH, WIDTH), layer(WIDTH, 1)],
            relu: Relu::new(),
        }
    }

    /// Computes one number for each row.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, inputs]`
    /// - output: `[batch, 1]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let [first, second, last] = &self.layers;
        let x = self.relu.forward(first.forward(x));
        last.forward(self.relu.forward(second.forward(x)))
    }
}

/// How to train.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Steps of each optimizer.
    pub steps: usize,
    /// The discriminator's gradients overflow in every step whose number, from 1, is a multiple.
    pub overflow_every: usize,
    /// Finite steps after which the loss scale doubles.
    pub growth_interval: u32,
    /// Seed of weights, noise and samples.
    pub seed: u64,
}

/// What a model's optimizer did.
#[derive(Debug, Clone, PartialEq)]
pub struct Steps {
    /// How many steps were applied, skipped, and without gradients.
    pub counters: StepCounters,
    /// The numbers of the steps that were skipped, from 1.
    pub skipped: Vec<usize>,
}

impl Steps {
    fn new() -> Self {
        Self {
            counters: StepCounters::default(),
            skipped: Vec::new(),
        }
    }

    fn note<O>(&mut self, step: usize, optim: &AmpOptimizer<O>) {
        self.counters = optim.counters();
        if matches!(optim.outcome(), Some(StepOutcome::Skipped { .. })) {
            self.skipped.push(step);
        }
    }
}

/// What [`train`] gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// The discriminator's steps.
    pub discriminator: Steps,
    /// The generator's steps.
    pub generator: Steps,
    /// The loss scale after each step, which both share.
    pub scales: Vec<f32>,
    /// Mean of what the trained generator makes.
    pub mean: f32,
    /// Its standard deviation.
    pub deviation: f32,
}

/// The mean cross-entropy of taking all rows for real, or for made up.
fn loss<B: Backend>(logits: Tensor<B, 2>, are_real: bool) -> Tensor<B, 1> {
    let device = logits.device();
    let targets: Tensor<B, 2, Int> = Tensor::full(logits.dims(), i64::from(are_real), &device);
    let entropy = BinaryCrossEntropyLossConfig::new().with_logits(true);
    entropy.init(&device).forward(logits, targets)
}

/// Trains both models against each other.
///
/// # Errors
///
/// The growth interval is 0.
pub fn train<B: AutodiffBackend>(plan: &Plan, device: &B::Device) -> Result<Report, AmpError>
where
    B::Device: AmpDevice,
{
    let config = AmpConfig::f16().with_growth_interval(plan.growth_interval);
    config.init(device)?;
    B::seed(device, plan.seed);

    let mut generator = Mlp::<B>::new(NOISE, device);
    let mut discriminator = Mlp::<B>::new(1, device);
    let adam = || AdamConfig::new().with_beta_1(0.5);
    let mut generator_optim = AmpOptimizerConfig::new().init(adam().init());
    let mut discriminator_optim = AmpOptimizerConfig::new().init(adam().init());

    let noise = || Tensor::<B, 2>::random([BATCH, NOISE], Distribution::Default, device);
    let target = Distribution::Normal(TARGET_MEAN.into(), TARGET_DEVIATION.into());
    let (mut of_generator, mut of_discriminator) = (Steps::new(), Steps::new());
    let mut scales = Vec::with_capacity(plan.steps);
    for step in 1..=plan.steps {
        let real = discriminator.forward(Tensor::random([BATCH, 1], target, device));
        let made = discriminator.forward(generator.forward(noise()).detach());
        let mut error = loss(real, true) + loss(made, false);
        if step.is_multiple_of(plan.overflow_every) {
            // Finite in f32; what flows back through the layers is f16, and ends at 65504.
            error = error * 1e12;
        }
        let grads = GradientsParams::from_grads(error.backward(), &discriminator);
        discriminator = discriminator_optim.step(2e-3, discriminator, grads);
        of_discriminator.note(step, &discriminator_optim);

        let error = loss(discriminator.forward(generator.forward(noise())), true);
        let grads = GradientsParams::from_grads(error.backward(), &generator);
        generator = generator_optim.step(1e-3, generator, grads);
        of_generator.note(step, &generator_optim);
        scales.push(generator_optim.scale());
    }

    let generator = generator.valid();
    let noise = Tensor::random([4096, NOISE], Distribution::Default, device);
    let made = generator.forward(noise).into_data();
    let made: Vec<f32> = made.iter().collect();
    let mean = made.iter().sum::<f32>() / made.len() as f32;
    let squares = made.iter().map(|it| (it - mean).powi(2)).sum::<f32>();
    Ok(Report {
        discriminator: of_discriminator,
        generator: of_generator,
        scales,
        mean,
        deviation: (squares / made.len() as f32).sqrt(),
    })
}
