//! With mixed precision off, the decorated backend is the plain one, bit for bit.

mod common;

use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::backend::Flex;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::module::{AutodiffModule, Module};
use burn::nn::attention::{MhaInput, MultiHeadAttention, MultiHeadAttentionConfig};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Embedding, EmbeddingConfig, Gelu,
    LayerNorm, LayerNormConfig, Linear, LinearConfig, Lstm, LstmConfig, Relu,
};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};
use burn_amp::{Amp, AmpConfig, AmpOptimizerConfig, Autodiff, Counters, autocast};

const STEPS: usize = 20;

/// Bits of the losses, and of every parameter and running statistic at the end.
#[derive(PartialEq)]
struct Run {
    losses: Vec<u32>,
    state: Vec<Vec<u32>>,
}

impl Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let losses: Vec<f32> = self.losses.iter().copied().map(f32::from_bits).collect();
        write!(f, "losses {losses:?} and {} tensors", self.state.len())
    }
}

/// A model with its data.
trait Problem<B: AutodiffBackend>: AutodiffModule<B> {
    fn new(device: &B::Device) -> Self;
    fn loss(&self) -> Tensor<B, 1>;
}

/// Trains with plain Adam.
fn train<B: AutodiffBackend, P: Problem<B>>() -> Run {
    train_with::<B, P, _>(AdamConfig::new().init())
}

/// Trains with Adam in the wrapper.
fn train_wrapped<B: AutodiffBackend, P: Problem<B>>() -> Run {
    train_with::<B, P, _>(AmpOptimizerConfig::new().init(AdamConfig::new().init()))
}

fn train_with<B: AutodiffBackend, P: Problem<B>, O: Optimizer<P, B>>(mut optim: O) -> Run {
    let device = Default::default();
    B::seed(&device, 1);
    let mut model = common::randomize::<B, _>(P::new(&device), 5);
    let mut losses = Vec::new();

    for _ in 0..STEPS {
        let loss = model.loss();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        losses.push(loss.into_data().to_vec::<f32>().unwrap()[0].to_bits());
        model = optim.step(1e-2, model, grads);
    }
    assert!(
        f32::from_bits(losses[STEPS - 1]) < f32::from_bits(losses[0]),
        "the model learns"
    );
    Run {
        losses,
        state: common::parameter_bits::<B, _>(&model),
    }
}

// Models

/// A transformer block on a sequence of tokens, with an additive mask of its own.
#[derive(Module, Debug)]
struct Transformer<B: Backend> {
    embedding: Embedding<B>,
    norm: LayerNorm<B>,
    attention: MultiHeadAttention<B>,
    up: Linear<B>,
    down: Linear<B>,
    head: Linear<B>,
    dropout: Dropout,
    activation: Gelu,
}

impl<B: Backend> Transformer<B> {
    fn with_dropout(device: &B::Device, dropout: f64) -> Self {
        Self {
            embedding: EmbeddingConfig::new(11, 16).init(device),
            norm: LayerNormConfig::new(16).init(device),
            attention: MultiHeadAttentionConfig::new(16, 2)
                .with_dropout(dropout)
                .init(device),
            up: LinearConfig::new(16, 32).init(device),
            down: LinearConfig::new(32, 16).init(device),
            head: LinearConfig::new(16, 11).init(device),
            dropout: DropoutConfig::new(dropout).init(),
            activation: Gelu::new(),
        }
    }

    fn loss(&self) -> Tensor<B, 1> {
        let device = self.head.weight.val().device();
        let tokens: Vec<i32> = (0..3 * 6).map(|index| index * 7 % 11).collect();
        let tokens = Tensor::<B, 1, Int>::from_data(tokens.as_slice(), &device).reshape([3, 6]);

        let x = self.embedding.forward(tokens.clone());
        let mask = burn::nn::attention::generate_autoregressive_mask(3, 6, &device);
        let input = MhaInput::self_attn(self.norm.forward(x.clone())).mask_attn(mask);
        let x = x + self.attention.forward(input).context;
        let hidden = self.activation.forward(self.up.forward(x.clone()));
        let x = x + self.dropout.forward(self.down.forward(hidden));
        let logits = self.head.forward(x).reshape([18, 11]);
        CrossEntropyLossConfig::new()
            .init(&device)
            .forward(logits, tokens.reshape([18]))
    }
}

impl<B: AutodiffBackend> Problem<B> for Transformer<B> {
    fn new(device: &B::Device) -> Self {
        Self::with_dropout(device, 0.0)
    }

    fn loss(&self) -> Tensor<B, 1> {
        Transformer::loss(self)
    }
}

/// The transformer with dropout, which draws from Burn's generator.
#[derive(Module, Debug)]
struct Dropping<B: Backend> {
    block: Transformer<B>,
}

impl<B: AutodiffBackend> Problem<B> for Dropping<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            block: Transformer::with_dropout(device, 0.2),
        }
    }

    fn loss(&self) -> Tensor<B, 1> {
        self.block.loss()
    }
}

#[derive(Module, Debug)]
struct ConvNet<B: Backend> {
    conv: Conv2d<B>,
    norm: BatchNorm<B>,
    pool: MaxPool2d,
    average: AdaptiveAvgPool2d,
    head: Linear<B>,
    activation: Relu,
}

impl<B: AutodiffBackend> Problem<B> for ConvNet<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            conv: Conv2dConfig::new([2, 6], [3, 3]).init(device),
            norm: BatchNormConfig::new(6).init(device),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            average: AdaptiveAvgPool2dConfig::new([2, 2]).init(),
            head: LinearConfig::new(24, 3).init(device),
            activation: Relu::new(),
        }
    }

    fn loss(&self) -> Tensor<B, 1> {
        let device = self.head.weight.val().device();
        let x = common::normal::<B, 4>([6, 2, 10, 10], 1, &device);
        let targets = Tensor::from_data([0, 1, 2, 0, 1, 2], &device);
        let x = self
            .activation
            .forward(self.norm.forward(self.conv.forward(x)));
        let x = self.average.forward(self.pool.forward(x));
        let logits = self.head.forward(x.reshape([6, 24]));
        CrossEntropyLossConfig::new()
            .init(&device)
            .forward(logits, targets)
    }
}

#[derive(Module, Debug)]
struct Recurrent<B: Backend> {
    lstm: Lstm<B>,
    head: Linear<B>,
}

impl<B: AutodiffBackend> Problem<B> for Recurrent<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            lstm: LstmConfig::new(4, 8, true).init(device),
            head: LinearConfig::new(8, 1).init(device),
        }
    }

    fn loss(&self) -> Tensor<B, 1> {
        let device = self.head.weight.val().device();
        let x = common::normal::<B, 3>([4, 5, 4], 2, &device);
        let y = x.clone().sum_dim(2).tanh();
        let (hidden, _) = self.lstm.forward(x, None);
        (self.head.forward(hidden) - y).powi_scalar(2).mean()
    }
}

// Comparison

type Plain = burn::backend::Autodiff<Flex>;
type Ours = Autodiff<Amp<Flex>>;
type Burns = burn::backend::Autodiff<Amp<Flex>>;
type PlainBalanced = burn::backend::Autodiff<Flex, BalancedCheckpointing>;
type OursBalanced = Autodiff<Amp<Flex>, BalancedCheckpointing>;
type BurnsBalanced = burn::backend::Autodiff<Amp<Flex>, BalancedCheckpointing>;

/// Burn's random generator is one for the process: one training at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn off<R>(f: impl FnOnce() -> R) -> R {
    autocast(&AmpConfig::f32(), f).unwrap()
}

/// Trains the same model on every backend, and compares with the plain one.
macro_rules! check_all {
    ($problem:ident) => {
        let _turn = alone();
        let plain = train::<Plain, $problem<_>>();
        let balanced = train::<PlainBalanced, $problem<_>>();
        Counters::reset();
        for (order, run) in [
            ("ours", train::<Ours, $problem<_>>()),
            ("Burn's", train::<Burns, $problem<_>>()),
            ("ours, wrapped", train_wrapped::<Ours, $problem<_>>()),
            ("Burn's, wrapped", train_wrapped::<Burns, $problem<_>>()),
            ("ours, f32 scope", off(train::<Ours, $problem<_>>)),
            ("ours, both", off(train_wrapped::<Ours, $problem<_>>)),
            ("Burn's, both", off(train_wrapped::<Burns, $problem<_>>)),
        ] {
            assert_eq!(run, plain, "{order}");
        }
        for (order, run) in [
            ("ours", train::<OursBalanced, $problem<_>>()),
            (
                "ours, both",
                off(train_wrapped::<OursBalanced, $problem<_>>),
            ),
            ("Burn's", train_wrapped::<BurnsBalanced, $problem<_>>()),
        ] {
            assert_eq!(run, balanced, "{order}, with checkpointing");
        }
        assert_eq!(Counters::get().casts, 0);
    };
}

#[test]
fn should_train_a_transformer_block_bitwise_as_plain_burn() {
    check_all!(Transformer);
}

#[test]
fn should_train_with_dropout_bitwise_as_plain_burn() {
    check_all!(Dropping);
}

#[test]
fn should_train_a_convolutional_net_with_batch_norm_bitwise_as_plain_burn() {
    check_all!(ConvNet);
}

#[test]
fn should_train_an_lstm_bitwise_as_plain_burn() {
    check_all!(Recurrent);
}
