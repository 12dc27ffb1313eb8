//! The model: three convolutions with batch norm, a linear head; and its steps for Burn's `Learner`.

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d, Relu};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};

use crate::data::{CLASSES, SIDE};
use crate::loader::Batch;

/// Channels after each convolution.
const CHANNELS: [usize; 3] = [16, 32, 32];
/// Pixels of a side after the two poolings.
const POOLED: usize = SIDE / 4;

/// A convolution, batch norm and ReLU.
#[derive(Module, Debug)]
pub struct Block<B: Backend> {
    /// 3 x 3, of which the output has the size of the input.
    pub conv: Conv2d<B>,
    /// Normalizes each channel.
    pub norm: BatchNorm<B>,
    /// The activation.
    pub relu: Relu,
}

impl<B: Backend> Block<B> {
    fn new(channels: [usize; 2], device: &B::Device) -> Self {
        Self {
            // Batch norm subtracts a bias again.
            conv: Conv2dConfig::new(channels, [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .with_bias(false)
                .init(device),
            norm: BatchNormConfig::new(channels[1]).init(device),
            relu: Relu::new(),
        }
    }

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        self.relu.forward(self.norm.forward(self.conv.forward(x)))
    }
}

/// A classifier of digits.
#[derive(Module, Debug)]
pub struct DigitNet<B: Backend> {
    /// The convolutions.
    pub blocks: [Block<B>; 3],
    /// Halves the image, after the second and the third of them.
    pub pool: MaxPool2d,
    /// Gives one logit for each digit.
    pub head: Linear<B>,
}

impl<B: Backend> DigitNet<B> {
    /// Builds the model with new random weights.
    pub fn new(device: &B::Device) -> Self {
        let [first, second, third] = CHANNELS;
        Self {
            blocks: [
                Block::new([1, first], device),
                Block::new([first, second], device),
                Block::new([second, third], device),
            ],
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            head: LinearConfig::new(third * POOLED * POOLED, CLASSES).init(device),
        }
    }

    /// Computes the logits.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, 1, SIDE, SIDE]`
    /// - output: `[batch, CLASSES]`
    pub fn forward(&self, images: Tensor<B, 4>) -> Tensor<B, 2> {
        let [first, second, third] = &self.blocks;
        let x = second.forward(first.forward(images));
        let x = third.forward(self.pool.forward(x));
        let x = self.pool.forward(x);
        self.head.forward(x.flatten(1, 3))
    }

    /// Computes the logits and the mean cross-entropy.
    pub fn classify(&self, batch: Batch<B>) -> ClassificationOutput<B> {
        let logits = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), batch.labels.clone());
        ClassificationOutput::new(loss, logits, batch.labels)
    }
}

impl<B: AutodiffBackend> TrainStep for DigitNet<B> {
    type Input = Batch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<ClassificationOutput<B>> {
        let output = self.classify(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl<B: Backend> InferenceStep for DigitNet<B> {
    type Input = Batch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: Batch<B>) -> ClassificationOutput<B> {
        self.classify(batch)
    }
}

/// What [`evaluate`] measures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Score {
    /// The share of samples that are recognized, from 0 to 1.
    pub accuracy: f64,
    /// The mean cross-entropy in nats.
    pub loss: f64,
}

/// Measures a model on all samples of `batches`.
pub fn evaluate<B: Backend>(model: &DigitNet<B>, batches: impl Iterator<Item = Batch<B>>) -> Score {
    let (mut right, mut loss, mut count) = (0, 0.0, 0);
    for batch in batches {
        let output = model.classify(batch);
        let [size, _] = output.output.dims();
        let guess = output.output.argmax(1).reshape([size]);
        let hits = guess.equal(output.targets).int().sum();
        right += hits.into_data().iter::<i64>().sum::<i64>();
        loss += size as f64 * output.loss.into_data().iter::<f64>().sum::<f64>();
        count += size;
    }
    Score {
        accuracy: right as f64 / count as f64,
        loss: loss / count as f64,
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::Flex;

    use super::*;
    use crate::data;
    use crate::loader::Loader;

    #[test]
    fn should_give_one_logit_for_each_digit() {
        let model = DigitNet::<Flex>::new(&Default::default());
        for batch in [1, 5] {
            let images = Tensor::zeros([batch, 1, SIDE, SIDE], &Default::default());
            assert_eq!(model.forward(images).dims(), [batch, CLASSES]);
        }
        // Burn counts the running mean and variance of a norm too.
        assert_eq!(
            model.num_params(),
            144 + 64 + 4608 + 128 + 9216 + 128 + 1290
        );
    }

    #[test]
    fn should_score_alike_in_batches_of_any_size() {
        let device = Default::default();
        let model = DigitNet::<Flex>::new(&device);
        let samples = &data::bundled()[..50];
        let score = |size| evaluate(&model, Loader::in_order(samples, size, &device).batches());
        let (whole, parts) = (score(50), score(7));
        assert_eq!(whole.accuracy, parts.accuracy);
        assert!((whole.loss - parts.loss).abs() < 1e-5);
        assert!(
            (whole.loss - (CLASSES as f64).ln()).abs() < 1.0,
            "{whole:?}"
        );
    }
}
