//! What the benchmarks of burn-amp measure.

pub mod gpt;
pub mod memory;
pub mod report;
pub mod resnet;

use burn::module::Module;
use burn::nn::{Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Tensor};

/// A small MLP: two linear layers around a GELU and a layer norm.
#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    up: Linear<B>,
    activation: Gelu,
    norm: LayerNorm<B>,
    down: Linear<B>,
}

impl<B: Backend> Mlp<B> {
    /// Creates the layers: `width` inputs and outputs, four times as many hidden values.
    pub fn new(width: usize, device: &B::Device) -> Self {
        Self {
            up: LinearConfig::new(width, 4 * width).init(device),
            activation: Gelu::new(),
            norm: LayerNormConfig::new(4 * width).init(device),
            down: LinearConfig::new(4 * width, width).init(device),
        }
    }

    /// Applies the layers.
    ///
    /// # Shapes
    ///
    /// - x: `[batch, width]`
    /// - returns: `[batch, width]`
    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let hidden = self.activation.forward(self.up.forward(x));
        self.down.forward(self.norm.forward(hidden))
    }
}

/// A model, its optimizer and a batch: everything that a training step needs.
#[derive(Debug)]
pub struct Training<B: AutodiffBackend, O> {
    model: Mlp<B>,
    optim: O,
    x: Tensor<B, 2>,
}

impl<B: AutodiffBackend, O: Optimizer<Mlp<B>, B>> Training<B, O> {
    /// Prepares training on random numbers.
    pub fn new(batch: usize, width: usize, optim: O) -> Self {
        let device = B::Device::default();
        B::seed(&device, 42);
        Self {
            model: Mlp::new(width, &device),
            optim,
            x: Tensor::random([batch, width], Distribution::Default, &device),
        }
    }

    /// Runs one step: forward, backward, update.
    pub fn step(&mut self) {
        let loss = self.model.forward(self.x.clone()).powi_scalar(2).mean();
        let grads = GradientsParams::from_grads(loss.backward(), &self.model);
        self.model = self.optim.step(1e-4, self.model.clone(), grads);
    }
}
