//! The recorded run's model, a small character-level GPT, in plain Burn modules.

use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Embedding, EmbeddingConfig, Gelu, Initializer, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::tensor::activation::softmax;
use burn::tensor::backend::Backend;
use burn::tensor::{Bool, Int, Tensor, TensorData};

use crate::common::SplitMix64;

pub const CONTEXT: usize = 64;
const WIDTH: usize = 64;
const HEADS: usize = 4;
const LAYERS: usize = 2;

/// Pre-norm transformer without dropout, its head not tied to the embedding.
#[derive(Module, Debug)]
pub struct Gpt<B: Backend> {
    wte: Embedding<B>,
    wpe: Embedding<B>,
    blocks: Vec<Block<B>>,
    lnf: LayerNorm<B>,
    head: Linear<B>,
}

#[derive(Module, Debug)]
struct Block<B: Backend> {
    ln1: LayerNorm<B>,
    qkv: Linear<B>,
    proj: Linear<B>,
    ln2: LayerNorm<B>,
    fc: Linear<B>,
    out: Linear<B>,
    gelu: Gelu,
}

impl<B: Backend> Gpt<B> {
    /// Draws the weights as the record does: normals in PyTorch's parameter order and layout.
    pub fn new(vocab: usize, seed: u64, device: &B::Device) -> Self {
        let mut init = Init {
            rng: SplitMix64::new(1000 + seed),
            device,
        };
        // The draws follow each other in this order.
        Self {
            wte: init.embedding(vocab),
            wpe: init.embedding(CONTEXT),
            blocks: (0..LAYERS).map(|_| init.block()).collect(),
            lnf: init.layer_norm(),
            head: init.linear(WIDTH, vocab, false),
        }
    }

    /// The mean loss of predicting each next token.
    ///
    /// # Shapes
    ///
    /// - tokens, targets: `[batch, CONTEXT]`
    /// - returns: `[1]`
    pub fn loss(&self, tokens: Tensor<B, 2, Int>, targets: Tensor<B, 2, Int>) -> Tensor<B, 1> {
        let device = tokens.device();
        let [batch, length] = tokens.dims();
        let positions = Tensor::<B, 1, Int>::arange(0..length as i64, &device).unsqueeze();

        let x = self.wte.forward(tokens) + self.wpe.forward(positions);
        let x = self.blocks.iter().fold(x, |x, block| block.forward(x));
        let logits: Tensor<B, 3> = self.head.forward(self.lnf.forward(x));
        let [.., vocab] = logits.dims();

        CrossEntropyLossConfig::new().init(&device).forward(
            logits.reshape([batch * length, vocab]),
            targets.reshape([batch * length]),
        )
    }
}

impl<B: Backend> Block<B> {
    fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let x = x.clone() + self.proj.forward(self.attend(self.ln1.forward(x)));
        let hidden = self
            .gelu
            .forward(self.fc.forward(self.ln2.forward(x.clone())));
        x + self.out.forward(hidden)
    }

    /// Causal attention written out, as the record has it.
    fn attend(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let [batch, length, width] = x.dims();
        let head = width / HEADS;
        let [q, k, v]: [_; 3] = self
            .qkv
            .forward(x)
            .chunk(3, 2)
            .into_iter()
            .map(|part| part.reshape([batch, length, HEADS, head]).swap_dims(1, 2))
            .collect::<Vec<_>>()
            .try_into()
            .expect("the width of qkv is three times that of the model");

        let scores = q.matmul(k.transpose()).div_scalar((head as f64).sqrt());
        let future =
            Tensor::<B, 2, Bool>::tril_mask([length, length], 0, &scores.device()).unsqueeze();
        let scores = scores.mask_fill(future, f64::NEG_INFINITY);
        softmax(scores, 3)
            .matmul(v)
            .swap_dims(1, 2)
            .reshape([batch, length, width])
    }
}

/// Makes modules with recorded weights, drawing them in the order of the calls.
struct Init<'a, B: Backend> {
    rng: SplitMix64,
    device: &'a B::Device,
}

impl<B: Backend> Init<'_, B> {
    fn block(&mut self) -> Block<B> {
        Block {
            ln1: self.layer_norm(),
            qkv: self.linear(WIDTH, 3 * WIDTH, true),
            proj: self.linear(WIDTH, WIDTH, true),
            ln2: self.layer_norm(),
            fc: self.linear(WIDTH, 4 * WIDTH, true),
            out: self.linear(4 * WIDTH, WIDTH, true),
            gelu: Gelu::new_approximate(),
        }
    }

    fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count)
            .map(|_| (0.02 * self.rng.next_normal()) as f32)
            .collect()
    }

    fn embedding(&mut self, rows: usize) -> Embedding<B> {
        let mut embedding = EmbeddingConfig::new(rows, WIDTH)
            .with_initializer(Initializer::Zeros)
            .init(self.device);
        let weight = TensorData::new(self.normals(rows * WIDTH), [rows, WIDTH]);
        embedding.weight = Param::from_data(weight, self.device);
        embedding
    }

    /// Burn holds `[inputs, outputs]`, PyTorch and the record `[outputs, inputs]`.
    fn linear(&mut self, inputs: usize, outputs: usize, bias: bool) -> Linear<B> {
        let mut linear = LinearConfig::new(inputs, outputs)
            .with_bias(bias)
            .with_initializer(Initializer::Zeros)
            .init(self.device);
        let recorded = self.normals(inputs * outputs);
        let weight = (0..inputs)
            .flat_map(|input| (0..outputs).map(move |output| output * inputs + input))
            .map(|at| recorded[at])
            .collect();
        linear.weight = Param::from_data(TensorData::new(weight, [inputs, outputs]), self.device);
        linear
    }

    fn layer_norm(&mut self) -> LayerNorm<B> {
        LayerNormConfig::new(WIDTH).init(self.device)
    }
}
