//! Bytes kept for backward and peak bytes, in plain Burn and in mixed precision.

use burn::backend::Flex;
use burn::tensor::Tensor;
use burn::tensor::backend::AutodiffBackend;
use burn_amp::memory::{HeapMeter, MemoryMeter, PassMemory};
use burn_amp::{Amp, AmpConfig, AmpError, Autocast, Precision};

use crate::gpt::GptConfig;
use crate::resnet::ResNetConfig;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Model {
    /// A transformer stack.
    Gpt(GptConfig),
    /// A residual network.
    ResNet(ResNetConfig),
}

/// Runs one forward and backward pass of a model, in plain Burn for f32, else in mixed precision.
///
/// # Errors
///
/// When the backend lacks the precision.
pub fn measure(
    meter: &MemoryMeter<&HeapMeter>,
    model: &Model,
    precision: Precision,
) -> Result<PassMemory, AmpError> {
    if precision == Precision::F32 {
        return Ok(pass::<burn::backend::Autodiff<Flex>>(meter, model));
    }
    let config = AmpConfig::new(precision);
    Ok(Autocast::new(&config)?.run(|| pass::<burn_amp::Autodiff<Amp<Flex>>>(meter, model)))
}

fn pass<B: AutodiffBackend>(meter: &MemoryMeter<&HeapMeter>, model: &Model) -> PassMemory {
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
    // The first pass initializes parameters and fills caches.
    drop(loss().backward());
    meter.pass(&loss, |loss| loss.backward()).1
}
