//! Burn's checkpointing strategies change what is kept, and not the gradients.

use burn::backend::Flex;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::module::{Module, Param};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Gelu, GroupNorm, GroupNormConfig, LayerNorm, LayerNormConfig,
    Linear, LinearConfig,
};
use burn::tensor::Tensor;
use burn::tensor::activation::{log_softmax, relu, sigmoid};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_amp::{Amp, AmpConfig, Autocast, Autodiff};

use crate::common;

/// A layer of every kind that has a node.
#[derive(Module, Debug)]
struct Layers<B: Backend> {
    convolution: Conv2d<B>,
    batch_norm: BatchNorm<B>,
    group_norm: GroupNorm<B>,
    attention: MultiHeadAttention<B>,
    norm: LayerNorm<B>,
    up: Linear<B>,
    gelu: Gelu,
    gate: Param<Tensor<B, 2>>,
}

impl<B: Backend> Layers<B> {
    fn new() -> Self {
        let device = Default::default();
        let layers = Self {
            convolution: Conv2dConfig::new([2, 4], [3, 3]).init(&device),
            batch_norm: BatchNormConfig::new(4).init(&device),
            group_norm: GroupNormConfig::new(2, 4).init(&device),
            attention: MultiHeadAttentionConfig::new(8, 2)
                .with_dropout(0.0)
                .init(&device),
            norm: LayerNormConfig::new(8).init(&device),
            up: LinearConfig::new(8, 8).init(&device),
            gelu: Gelu::new(),
            gate: Param::from_tensor(Tensor::ones([8, 8], &device)),
        };
        common::randomize(layers, 61)
    }

    fn loss(&self) -> Tensor<B, 1> {
        let images = common::normal::<B, 4>([2, 2, 6, 10], 62, &Default::default());
        let x = relu(self.batch_norm.forward(self.convolution.forward(images)));
        let x = self.group_norm.forward(x).reshape([2, 16, 8]);
        let x = self.norm.forward(x);
        let x = self.attention.forward(MhaInput::self_attn(x)).context;
        let x = self.gelu.forward(self.up.forward(x));
        let gate = sigmoid(self.gate.val()).unsqueeze();
        let x = x.clone().matmul(gate) * x.exp();
        log_softmax(x, 2).mean().neg()
    }
}

fn gradients<B: AutodiffBackend>() -> Vec<f64> {
    let layers = Layers::<B>::new();
    let gradients = layers.loss().backward();
    let mut all = Vec::new();
    let mut push = |values: Vec<f64>| all.extend(values);
    push(common::values(
        layers.convolution.weight.grad(&gradients).unwrap(),
    ));
    push(common::values(
        layers.attention.query.weight.grad(&gradients).unwrap(),
    ));
    push(common::values(
        layers.attention.value.weight.grad(&gradients).unwrap(),
    ));
    push(common::values(layers.norm.gamma.grad(&gradients).unwrap()));
    push(common::values(layers.up.weight.grad(&gradients).unwrap()));
    push(common::values(layers.gate.grad(&gradients).unwrap()));
    all
}

/// Arithmetic that is computed again starts from rounded operands, where forward went on from what they
/// were before: see `autodiff/unrounded.rs`.
#[test]
fn should_have_the_gradients_with_checkpointing_that_it_has_without() {
    for (config, tolerance) in [(AmpConfig::bf16(), 1e-2), (AmpConfig::f16(), 1e-3)] {
        let [kept, computed_again] = [
            gradients::<Autodiff<Amp<Flex>>> as fn() -> Vec<f64>,
            gradients::<Autodiff<Amp<Flex>, BalancedCheckpointing>>,
        ]
        .map(|gradients| Autocast::new(&config).unwrap().run(gradients));
        let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
        let difference: Vec<f64> = kept
            .iter()
            .zip(&computed_again)
            .map(|(kept, again)| kept - again)
            .collect();
        assert!(norm(&kept) > 0.0);
        assert!(norm(&difference) < tolerance * norm(&kept));
    }
}

/// Where no such chain is, every bit is the same.
#[test]
fn should_have_the_same_bits_with_checkpointing_without_composed_norms() {
    fn gradient<B: AutodiffBackend>() -> Vec<f64> {
        let device = Default::default();
        let norm = LayerNormConfig::new(8).init::<B>(&device);
        let up = common::randomize(LinearConfig::new(8, 8).init::<B>(&device), 65);
        let x = common::normal::<B, 3>([2, 4, 8], 66, &device);
        let x = burn::tensor::activation::gelu(up.forward(norm.forward(x)));
        let x = x.clone().matmul(sigmoid(x.clone()).transpose()).exp();
        let loss = log_softmax(x * 0.1, 2).mean();
        let gradients = loss.backward();
        common::values(up.weight.grad(&gradients).unwrap())
    }
    for config in [AmpConfig::bf16(), AmpConfig::f16()] {
        let [kept, computed_again] = [
            gradient::<Autodiff<Amp<Flex>>> as fn() -> Vec<f64>,
            gradient::<Autodiff<Amp<Flex>, BalancedCheckpointing>>,
        ]
        .map(|gradient| Autocast::new(&config).unwrap().run(gradient));
        assert!(kept.iter().any(|value| *value != 0.0));
        assert_eq!(kept, computed_again);
    }
}
