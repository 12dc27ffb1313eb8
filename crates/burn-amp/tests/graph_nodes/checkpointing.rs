//! What is kept differs with the checkpointing strategy; gradients do not.

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

fn gradients<B: AutodiffBackend>() -> Vec<u64> {
    let layers = Layers::<B>::new();
    let gradients = layers.loss().backward();
    let mut bits = Vec::new();
    let mut push = |values: Vec<f64>| bits.extend(values.iter().map(|value| value.to_bits()));
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
    bits
}

#[test]
fn should_have_the_same_gradients_with_and_without_checkpointing() {
    for config in [AmpConfig::bf16(), AmpConfig::f16()] {
        let [kept, computed_again] = [
            gradients::<Autodiff<Amp<Flex>>> as fn() -> Vec<u64>,
            gradients::<Autodiff<Amp<Flex>, BalancedCheckpointing>>,
        ]
        .map(|gradients| Autocast::new(&config).unwrap().run(gradients));
        assert!(kept.iter().any(|bits| f64::from_bits(*bits) != 0.0));
        assert_eq!(kept, computed_again);
    }
}
