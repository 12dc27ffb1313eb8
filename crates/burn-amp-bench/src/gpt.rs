//! The GPT-2 style stack whose kept bytes were recorded in PyTorch.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear,
    LinearConfig,
};
use burn::tensor::activation::softmax;
use burn::tensor::backend::Backend;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Int, Tensor};
use serde::{Deserialize, Serialize};

/// How a block attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttentionKind {
    /// Two products around a softmax, a mask and a dropout.
    Explicit,
    /// Burn's attention op, which has no dropout.
    Op,
}

/// The sizes of a stack, named as in the recorded data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GptConfig {
    /// Sequences.
    pub batch: usize,
    /// Tokens of a sequence.
    pub tokens: usize,
    /// Width.
    pub width: usize,
    /// Attention heads.
    pub heads: usize,
    /// Blocks.
    pub layers: usize,
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// Probability of dropping a value.
    pub dropout: f64,
    /// How a block attends.
    pub attention: AttentionKind,
}

/// Embeddings, blocks, a norm and an output layer without a bias, of its own weights.
#[derive(Module, Debug)]
pub struct Gpt<B: Backend> {
    tokens: Embedding<B>,
    positions: Embedding<B>,
    dropout: Dropout,
    blocks: Vec<Block<B>>,
    norm: LayerNorm<B>,
    head: Linear<B>,
}

#[derive(Module, Debug)]
struct Block<B: Backend> {
    attention_norm: LayerNorm<B>,
    query_key_value: Linear<B>,
    projection: Linear<B>,
    mlp_norm: LayerNorm<B>,
    up: Linear<B>,
    gelu: Gelu,
    down: Linear<B>,
    dropout: Dropout,
    heads: usize,
}

impl GptConfig {
    /// Creates the stack.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Gpt<B> {
        let width = self.width;
        let norm = || LayerNormConfig::new(width).init(device);
        let dropout = || DropoutConfig::new(self.dropout).init();
        let blocks = (0..self.layers).map(|_| Block {
            attention_norm: norm(),
            query_key_value: LinearConfig::new(width, 3 * width).init(device),
            projection: LinearConfig::new(width, width).init(device),
            mlp_norm: norm(),
            up: LinearConfig::new(width, 4 * width).init(device),
            gelu: Gelu::new(),
            down: LinearConfig::new(4 * width, width).init(device),
            dropout: dropout(),
            heads: self.heads,
        });
        Gpt {
            tokens: EmbeddingConfig::new(self.vocabulary, width).init(device),
            positions: EmbeddingConfig::new(self.tokens, width).init(device),
            dropout: dropout(),
            blocks: blocks.collect(),
            norm: norm(),
            head: LinearConfig::new(width, self.vocabulary)
                .with_bias(false)
                .init(device),
        }
    }

    /// Token ids and targets, the same in every run.
    pub fn data<B: Backend>(&self, device: &B::Device) -> [Tensor<B, 2, Int>; 2] {
        [7, 11].map(|step| {
            let count = (self.batch * self.tokens) as i64;
            Tensor::<B, 1, Int>::arange(0..count, device)
                .mul_scalar(step)
                .remainder_scalar(self.vocabulary as i64)
                .reshape([self.batch, self.tokens])
        })
    }

    /// True where a key comes after its query: `[1, 1, tokens, tokens]`.
    pub fn mask<B: Backend>(&self, device: &B::Device) -> Tensor<B, 4, Bool> {
        Tensor::<B, 2, Bool>::tril_mask([self.tokens, self.tokens], 0, device).unsqueeze()
    }
}

impl<B: Backend> Gpt<B> {
    /// The mean cross-entropy of the targets.
    ///
    /// # Shapes
    ///
    /// - ids, targets: `[batch, tokens]`, mask: `[1, 1, tokens, tokens]`
    /// - returns: `[1]`
    pub fn loss(
        &self,
        ids: Tensor<B, 2, Int>,
        targets: Tensor<B, 2, Int>,
        mask: Tensor<B, 4, Bool>,
        kind: AttentionKind,
    ) -> Tensor<B, 1> {
        let device = ids.device();
        let [batch, tokens] = ids.dims();
        let positions = Tensor::arange(0..tokens as i64, &device).unsqueeze();

        let x = self.tokens.forward(ids) + self.positions.forward(positions);
        let mut x = self.dropout.forward(x);
        for block in &self.blocks {
            x = block.forward(x, &mask, kind);
        }
        let logits = self.head.forward(self.norm.forward(x));
        let [_, _, vocabulary] = logits.dims();
        CrossEntropyLossConfig::new().init(&device).forward(
            logits.reshape([batch * tokens, vocabulary]),
            targets.reshape([batch * tokens]),
        )
    }
}

impl<B: Backend> Block<B> {
    fn forward(
        &self,
        x: Tensor<B, 3>,
        mask: &Tensor<B, 4, Bool>,
        kind: AttentionKind,
    ) -> Tensor<B, 3> {
        let attended = self.attend(self.attention_norm.forward(x.clone()), mask, kind);
        let x = x + self.dropout.forward(self.projection.forward(attended));
        let hidden = self.up.forward(self.mlp_norm.forward(x.clone()));
        let hidden = self.down.forward(self.gelu.forward(hidden));
        x + self.dropout.forward(hidden)
    }

    fn attend(
        &self,
        x: Tensor<B, 3>,
        mask: &Tensor<B, 4, Bool>,
        kind: AttentionKind,
    ) -> Tensor<B, 3> {
        let [batch, tokens, width] = x.dims();
        let head = width / self.heads;
        let [query, key, value] = {
            let all = self.query_key_value.forward(x);
            [0, 1, 2].map(|part| {
                all.clone()
                    .slice([0..batch, 0..tokens, part * width..(part + 1) * width])
                    .reshape([batch, tokens, self.heads, head])
                    .swap_dims(1, 2)
            })
        };
        let attended = match kind {
            AttentionKind::Explicit => {
                let scores = query.matmul(key.transpose()) / (head as f64).sqrt();
                let mask = mask.clone().expand([batch, self.heads, tokens, tokens]);
                let scores = scores.mask_fill(mask, f32::NEG_INFINITY);
                self.dropout.forward(softmax(scores, 3)).matmul(value)
            }
            AttentionKind::Op => {
                let options = AttentionModuleOptions {
                    is_causal: true,
                    ..Default::default()
                };
                attention(query, key, value, None, None, options)
            }
        };
        attended.swap_dims(1, 2).reshape([batch, tokens, width])
    }
}
