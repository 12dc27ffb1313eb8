//! The model: token and position embedding, pre-norm transformer blocks, a linear head.

use burn::config::Config;
use burn::module::{Initializer, Module};
use burn::nn::attention::{
    MhaInput, MultiHeadAttention, MultiHeadAttentionConfig, generate_autoregressive_mask,
};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{
    Dropout, DropoutConfig, Embedding, EmbeddingConfig, Gelu, LayerNorm, LayerNormConfig, Linear,
    LinearConfig,
};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};
use thiserror::Error;

/// Channels of the residual stream, unless configured otherwise.
pub const DEFAULT_WIDTH: usize = 96;
/// Attention heads, unless configured otherwise.
pub const DEFAULT_HEADS: usize = 4;
/// Transformer blocks, unless configured otherwise.
pub const DEFAULT_LAYERS: usize = 2;
/// Dropout probability, unless configured otherwise.
pub const DEFAULT_DROPOUT: f64 = 0.05;

/// Sizes of a [`Gpt`].
#[derive(Config, Debug)]
pub struct GptConfig {
    /// Number of different characters.
    pub vocab: usize,
    /// Longest sequence that the model sees at once.
    pub seq: usize,
    /// Channels of the residual stream; a multiple of `heads`.
    #[config(default = "DEFAULT_WIDTH")]
    pub width: usize,
    /// Attention heads.
    #[config(default = "DEFAULT_HEADS")]
    pub heads: usize,
    /// Transformer blocks.
    #[config(default = "DEFAULT_LAYERS")]
    pub layers: usize,
    /// Dropout probability after the embedding and at the end of each residual branch, in [0, 1).
    #[config(default = "DEFAULT_DROPOUT")]
    pub dropout: f64,
}

/// A [`GptConfig`] that no model can be built from.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum ConfigError {
    /// A size is zero.
    #[error("{field} is 0, it must be at least 1")]
    Zero {
        /// The field's name.
        field: &'static str,
    },
    /// The width does not split evenly among the heads.
    #[error("width {width} is not a multiple of heads {heads}")]
    UnevenHeads {
        /// Channels of the residual stream.
        width: usize,
        /// Attention heads.
        heads: usize,
    },
    /// The dropout probability is not one.
    #[error("dropout is {dropout}, it must be at least 0 and less than 1")]
    Dropout {
        /// The value given.
        dropout: f64,
    },
}

impl GptConfig {
    /// Checks that a model can be built, naming the first field that prevents it.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let sizes = [
            ("vocab", self.vocab),
            ("seq", self.seq),
            ("width", self.width),
            ("heads", self.heads),
            ("layers", self.layers),
        ];
        if let Some((field, _)) = sizes.into_iter().find(|(_, size)| *size == 0) {
            return Err(ConfigError::Zero { field });
        }
        if !self.width.is_multiple_of(self.heads) {
            return Err(ConfigError::UnevenHeads {
                width: self.width,
                heads: self.heads,
            });
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(ConfigError::Dropout {
                dropout: self.dropout,
            });
        }
        Ok(())
    }

    /// Builds the model with new random weights.
    ///
    /// # Panics
    ///
    /// If [`validate`](Self::validate) finds an error.
    pub fn init<B: Backend>(&self, device: &B::Device) -> Gpt<B> {
        if let Err(error) = self.validate() {
            panic!("invalid GptConfig: {error}");
        }
        // Of 0.02, 0.1, 0.2, 0.5 and Burn's default of 1, this reached the lowest loss at these sizes.
        let embedding = |count| {
            EmbeddingConfig::new(count, self.width)
                .with_initializer(Initializer::Normal {
                    mean: 0.0,
                    std: 0.1,
                })
                .init(device)
        };
        Gpt {
            tokens: embedding(self.vocab),
            positions: embedding(self.seq),
            dropout: DropoutConfig::new(self.dropout).init(),
            blocks: (0..self.layers).map(|_| self.block(device)).collect(),
            norm: LayerNormConfig::new(self.width).init(device),
            head: LinearConfig::new(self.width, self.vocab)
                .with_bias(false)
                .init(device),
        }
    }

    fn block<B: Backend>(&self, device: &B::Device) -> Block<B> {
        Block {
            attention_norm: LayerNormConfig::new(self.width).init(device),
            // Burn's attention applies its dropout to the scores in front of the softmax, where a
            // dropped score is an average one: only the branch's output is dropped here.
            attention: MultiHeadAttentionConfig::new(self.width, self.heads)
                .with_dropout(0.0)
                .init(device),
            mlp_norm: LayerNormConfig::new(self.width).init(device),
            expand: LinearConfig::new(self.width, 4 * self.width).init(device),
            gelu: Gelu::new(),
            contract: LinearConfig::new(4 * self.width, self.width).init(device),
            dropout: DropoutConfig::new(self.dropout).init(),
        }
    }
}

/// A decoder-only transformer over characters.
#[derive(Module, Debug)]
pub struct Gpt<B: Backend> {
    /// One vector for each character.
    pub tokens: Embedding<B>,
    /// One vector for each position.
    pub positions: Embedding<B>,
    /// Applied to the sum of the two embeddings.
    pub dropout: Dropout,
    /// The transformer blocks.
    pub blocks: Vec<Block<B>>,
    /// Normalizes the residual stream for the head.
    pub norm: LayerNorm<B>,
    /// Maps the residual stream to one logit for each character.
    pub head: Linear<B>,
}

impl<B: Backend> Gpt<B> {
    /// The longest sequence that [`forward`](Self::forward) takes.
    pub fn seq(&self) -> usize {
        self.positions.weight.dims()[0]
    }

    /// Computes the logits of the character that follows each position.
    ///
    /// # Shapes
    ///
    /// - tokens: `[batch, time]`
    /// - output: `[batch, time, vocab]`
    ///
    /// # Panics
    ///
    /// If `time` is more than [`seq`](Self::seq).
    pub fn forward(&self, tokens: Tensor<B, 2, Int>) -> Tensor<B, 3> {
        let device = tokens.device();
        let [_, time] = tokens.dims();
        let seq = self.seq();
        assert!(
            time <= seq,
            "a sequence of {time} tokens does not fit a model of seq {seq}"
        );

        let positions = Tensor::arange(0..time as i64, &device).unsqueeze();
        let x = self.tokens.forward(tokens) + self.positions.forward(positions);
        let mut x = self.dropout.forward(x);
        for block in &self.blocks {
            x = block.forward(x);
        }
        self.head.forward(self.norm.forward(x))
    }

    /// Computes the mean cross-entropy, in nats, of predicting `targets` from `tokens`.
    ///
    /// # Shapes
    ///
    /// - tokens, targets: `[batch, time]`
    /// - output: `[1]`
    pub fn loss(&self, tokens: Tensor<B, 2, Int>, targets: Tensor<B, 2, Int>) -> Tensor<B, 1> {
        let logits = self.forward(tokens);
        let [batch, time, vocab] = logits.dims();
        CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(
                logits.reshape([batch * time, vocab]),
                targets.reshape([batch * time]),
            )
    }
}

/// A pre-norm transformer block.
#[derive(Module, Debug)]
pub struct Block<B: Backend> {
    /// Normalizes the attention's input.
    pub attention_norm: LayerNorm<B>,
    /// Causal self-attention.
    pub attention: MultiHeadAttention<B>,
    /// Normalizes the feed-forward network's input.
    pub mlp_norm: LayerNorm<B>,
    /// The feed-forward network's first layer, four times as wide as the block.
    pub expand: Linear<B>,
    /// The feed-forward network's activation.
    pub gelu: Gelu,
    /// The feed-forward network's second layer.
    pub contract: Linear<B>,
    /// Applied to the output of both branches.
    pub dropout: Dropout,
}

impl<B: Backend> Block<B> {
    /// Adds attention and the feed-forward network to the residual stream.
    ///
    /// # Shapes
    ///
    /// - x, output: `[batch, time, width]`
    pub fn forward(&self, x: Tensor<B, 3>) -> Tensor<B, 3> {
        let [_, time, _] = x.dims();
        let mask = generate_autoregressive_mask(1, time, &x.device());
        let input = MhaInput::self_attn(self.attention_norm.forward(x.clone())).mask_attn(mask);
        let attended = self.attention.forward(input).context;
        let x = x + self.dropout.forward(attended);

        let hidden = self.expand.forward(self.mlp_norm.forward(x.clone()));
        let hidden = self.contract.forward(self.gelu.forward(hidden));
        x + self.dropout.forward(hidden)
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::{Autodiff, Flex};
    use burn::tensor::TensorData;

    use super::*;

    fn config() -> GptConfig {
        GptConfig::new(11, 8)
            .with_width(12)
            .with_heads(3)
            .with_layers(2)
    }

    fn tokens<B: Backend, const N: usize>(ids: [i32; N]) -> Tensor<B, 2, Int> {
        let data = TensorData::new(ids.to_vec(), [1, N]);
        Tensor::from_data(data, &Default::default())
    }

    fn logits(model: &Gpt<Flex>, tokens: Tensor<Flex, 2, Int>) -> Vec<f32> {
        model.forward(tokens).into_data().to_vec().unwrap()
    }

    #[test]
    fn should_give_one_logit_for_each_character_at_each_position() {
        let model = config().init::<Flex>(&Default::default());
        let tokens = Tensor::zeros([5, 7], &Default::default());
        assert_eq!(model.forward(tokens).dims(), [5, 7, 11]);
    }

    #[test]
    fn should_not_change_earlier_logits_when_a_later_token_changes() {
        let model = config().init::<Flex>(&Default::default());
        let before = logits(&model, tokens([1, 2, 3, 4, 5, 6]));
        let after = logits(&model, tokens([1, 2, 3, 4, 9, 6]));

        let changed = 4 * 11;
        assert_eq!(before[..changed], after[..changed]);
        assert_ne!(before[changed..changed + 11], after[changed..changed + 11]);
        assert_ne!(before[changed + 11..], after[changed + 11..]);
    }

    #[test]
    fn should_tell_positions_apart() {
        let model = config().init::<Flex>(&Default::default());
        let logits = logits(&model, tokens([4, 4]));
        assert_ne!(logits[..11], logits[11..]);
    }

    #[test]
    fn should_start_near_the_loss_of_a_uniform_guess() {
        let model = config().init::<Flex>(&Default::default());
        let loss = model
            .loss(tokens([1, 2, 3, 4]), tokens([2, 3, 4, 5]))
            .into_scalar();
        assert!((loss - 11f32.ln()).abs() < 1.0, "loss {loss}");
    }

    #[test]
    fn should_drop_in_training_only() {
        let model = config().with_dropout(0.5).init(&Default::default());
        let input = || tokens::<Autodiff<Flex>, 4>([1, 2, 3, 4]);
        let run = || model.forward(input()).into_data();
        assert_ne!(run(), run());

        let model = burn::module::AutodiffModule::valid(&model);
        let input = || tokens::<Flex, 4>([1, 2, 3, 4]);
        assert_eq!(logits(&model, input()), logits(&model, input()));
    }

    #[test]
    #[should_panic(expected = "a sequence of 9 tokens does not fit a model of seq 8")]
    fn should_refuse_a_sequence_longer_than_the_position_table() {
        let model = config().init::<Flex>(&Default::default());
        model.forward(tokens([0; 9]));
    }

    #[test]
    fn should_name_the_field_that_prevents_a_model() {
        let check = |config: GptConfig, message: &str| {
            let error = config.validate().unwrap_err().to_string();
            assert_eq!(error, message);
        };
        check(
            config().with_heads(5),
            "width 12 is not a multiple of heads 5",
        );
        check(config().with_heads(0), "heads is 0, it must be at least 1");
        check(
            config().with_layers(0),
            "layers is 0, it must be at least 1",
        );
        check(
            config().with_dropout(1.0),
            "dropout is 1, it must be at least 0 and less than 1",
        );
        assert!(
            config().with_dropout(f64::NAN).validate().is_err(),
            "NaN is no probability"
        );
        assert_eq!(config().validate(), Ok(()));
    }
}
