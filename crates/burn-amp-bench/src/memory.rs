//! Bytes kept for backward and peak bytes, in plain Burn and in mixed precision.

use burn::backend::Flex;
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_amp::memory::{MemoryMeter, MemorySource, PassMemory};
use burn_amp::{Amp, AmpConfig, AmpError, Autocast, Precision};
use serde::Serialize;

use crate::gpt::{AttentionKind, GptConfig};
use crate::resnet::ResNetConfig;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Model {
    /// A transformer stack.
    Gpt(GptConfig),
    /// A residual network.
    ResNet(ResNetConfig),
}

/// The precisions that are compared, the plain one first.
pub const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::F16];

/// The smaller stack of the recorded data.
pub const SMALL_STACK: GptConfig = GptConfig {
    batch: 8,
    tokens: 256,
    width: 256,
    heads: 8,
    layers: 4,
    vocabulary: 512,
    dropout: 0.0,
    attention: AttentionKind::Explicit,
};

/// The larger stack of the recorded data.
pub const LARGE_STACK: GptConfig = GptConfig {
    batch: 4,
    tokens: 512,
    width: 384,
    heads: 6,
    layers: 6,
    vocabulary: 1024,
    dropout: 0.0,
    attention: AttentionKind::Explicit,
};

/// Twelve layers of a convolution, a batch norm and a ReLU.
pub const CONV_NET: ResNetConfig = ResNetConfig {
    batch: 8,
    size: 32,
    channels: 32,
    layers: 12,
    classes: 10,
};

impl Model {
    /// Every model that the benchmark measures.
    pub fn all() -> Vec<Self> {
        let mut models = Vec::new();
        for stack in [SMALL_STACK, LARGE_STACK] {
            for attention in [AttentionKind::Explicit, AttentionKind::Op] {
                for dropout in [0.0, 0.1] {
                    models.push(Model::Gpt(GptConfig {
                        attention,
                        dropout,
                        ..stack
                    }));
                }
            }
        }
        models.push(Model::ResNet(CONV_NET));
        models
    }

    /// The name in tables, by its sizes.
    pub fn name(&self) -> String {
        match self {
            Model::Gpt(config) => format!(
                "gpt-b{}t{}c{}h{}l{}",
                config.batch, config.tokens, config.width, config.heads, config.layers
            ),
            Model::ResNet(config) => format!(
                "resnet-b{}s{}c{}l{}",
                config.batch, config.size, config.channels, config.layers
            ),
        }
    }

    /// What half activations come to without computing anything again, dropout or statistics: 32 bytes
    /// a token and channel in a layer (two for each of 16 values), and two for each probability.
    pub fn ideal_bytes(&self) -> Option<u64> {
        let Model::Gpt(config) = self else {
            return None;
        };
        if config.dropout > 0.0 {
            return None;
        }
        let activations = 32 * config.batch * config.tokens * config.width;
        let probabilities = match config.attention {
            AttentionKind::Explicit => {
                2 * config.batch * config.heads * config.tokens * config.tokens
            }
            AttentionKind::Op => 0,
        };
        Some((config.layers * (activations + probabilities)) as u64)
    }
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measurement {
    /// The model's name.
    pub model: String,
    /// How a transformer attends.
    pub attention: Option<AttentionKind>,
    /// Probability of dropping a value.
    pub dropout: f64,
    /// `f32` is plain Burn.
    pub mode: String,
    /// In use between forward and backward, over what was in use before.
    pub kept_bytes: u64,
    /// The most in use at once, over what was in use before.
    pub peak_bytes: u64,
}

impl Measurement {
    /// Whether both are of one model, in whatever mode.
    pub fn is_same_model(&self, other: &Self) -> bool {
        self.model == other.model
            && self.attention == other.attention
            && self.dropout == other.dropout
    }
}

/// Runs one forward and backward pass of a model, in plain Burn for f32, else in mixed precision.
///
/// # Errors
///
/// When the backend lacks the precision.
pub fn measure<S: MemorySource>(
    meter: &MemoryMeter<S>,
    model: &Model,
    precision: Precision,
) -> Result<Measurement, AmpError> {
    let memory = if precision == Precision::F32 {
        pass::<burn::backend::Autodiff<Flex>, S>(meter, model)
    } else {
        let amp = Autocast::new(&AmpConfig::new(precision))?;
        amp.run(|| pass::<burn_amp::Autodiff<Amp<Flex>>, S>(meter, model))
    };
    let (attention, dropout) = match model {
        Model::Gpt(config) => (Some(config.attention), config.dropout),
        Model::ResNet(_) => (None, 0.0),
    };
    Ok(Measurement {
        model: model.name(),
        attention,
        dropout,
        mode: precision.to_string(),
        kept_bytes: memory.kept,
        peak_bytes: memory.peak,
    })
}

/// The memory of one pass on any backend.
pub fn pass<B: AutodiffBackend, S: MemorySource>(
    meter: &MemoryMeter<S>,
    model: &Model,
) -> PassMemory {
    let device = B::Device::default();
    B::seed(&device, 42);
    let loss: Box<dyn Fn() -> Tensor<B, 1>> = match model {
        Model::Gpt(config) => {
            let gpt = config.init::<B>(&device);
            let [ids, targets] = config.data::<B>(&device);
            let mask = config.mask::<B>(&device);
            let attention = config.attention;
            Box::new(move || gpt.loss(ids.clone(), targets.clone(), mask.clone(), attention))
        }
        Model::ResNet(config) => {
            let network = config.init::<B>(&device);
            let (images, classes) = config.data::<B>(&device);
            Box::new(move || network.loss(images.clone(), classes.clone()))
        }
    };
    // The first pass makes the parameters, which are lazy, and fills caches.
    drop(loss().backward());
    meter.pass(&loss, |loss| loss.backward()).1
}
