//! The training of the Burn Book's guide, generic over backend and optimizer: a convolutional
//! classifier, trained by the `Learner` with its file checkpointer, metrics and summary. Nothing here
//! knows of mixed precision; `guide_plain.rs` and `guide_amp.rs` call it.

use burn::config::Config;
use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig};
use burn::nn::{Dropout, DropoutConfig, Linear, LinearConfig, Relu};
use burn::optim::{AdamConfig, Optimizer};
use burn::record::CompactRecorder;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor, TensorData};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{
    ClassificationOutput, InferenceStep, Learner, SupervisedTraining, TrainOutput, TrainStep,
};

use crate::support::Silent;

/// Pixels of a side of an image.
pub const SIDE: usize = 8;
pub const CLASSES: usize = 4;

#[derive(Module, Debug)]
pub struct Model<B: Backend> {
    conv1: Conv2d<B>,
    conv2: Conv2d<B>,
    pool: AdaptiveAvgPool2d,
    dropout: Dropout,
    linear1: Linear<B>,
    linear2: Linear<B>,
    activation: Relu,
}

#[derive(Config, Debug)]
pub struct ModelConfig {
    num_classes: usize,
    hidden_size: usize,
    #[config(default = "0.1")]
    dropout: f64,
}

impl ModelConfig {
    pub fn init<B: Backend>(&self, device: &B::Device) -> Model<B> {
        Model {
            conv1: Conv2dConfig::new([1, 8], [3, 3]).init(device),
            conv2: Conv2dConfig::new([8, 16], [3, 3]).init(device),
            pool: AdaptiveAvgPool2dConfig::new([2, 2]).init(),
            activation: Relu::new(),
            linear1: LinearConfig::new(16 * 2 * 2, self.hidden_size).init(device),
            linear2: LinearConfig::new(self.hidden_size, self.num_classes).init(device),
            dropout: DropoutConfig::new(self.dropout).init(),
        }
    }
}

impl<B: Backend> Model<B> {
    /// Gives the logits `[batch, CLASSES]` of images `[batch, SIDE, SIDE]`.
    pub fn forward(&self, images: Tensor<B, 3>) -> Tensor<B, 2> {
        let [batch, height, width] = images.dims();
        let x = images.reshape([batch, 1, height, width]);
        let x = self.activation.forward(self.conv1.forward(x));
        let x = self
            .activation
            .forward(self.conv2.forward(self.dropout.forward(x)));
        let x = self.pool.forward(x).flatten(1, 3);
        let x = self.dropout.forward(self.linear1.forward(x));
        self.linear2.forward(self.activation.forward(x))
    }

    fn forward_classification(&self, batch: ImageBatch<B>) -> ClassificationOutput<B> {
        let output = self.forward(batch.images);
        let loss = CrossEntropyLossConfig::new()
            .init(&output.device())
            .forward(output.clone(), batch.targets.clone());
        ClassificationOutput::new(loss, output, batch.targets)
    }
}

impl<B: AutodiffBackend> TrainStep for Model<B> {
    type Input = ImageBatch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: ImageBatch<B>) -> TrainOutput<ClassificationOutput<B>> {
        let item = self.forward_classification(batch);
        TrainOutput::new(self, item.loss.backward(), item)
    }
}

impl<B: Backend> InferenceStep for Model<B> {
    type Input = ImageBatch<B>;
    type Output = ClassificationOutput<B>;

    fn step(&self, batch: ImageBatch<B>) -> ClassificationOutput<B> {
        self.forward_classification(batch)
    }
}

/// An image and which of its quarters is the brightest.
#[derive(Debug, Clone)]
pub struct Image {
    pub pixels: Vec<f32>,
    pub label: i64,
}

#[derive(Debug, Clone)]
pub struct ImageBatch<B: Backend> {
    pub images: Tensor<B, 3>,
    pub targets: Tensor<B, 1, Int>,
}

#[derive(Debug, Clone)]
pub struct ImageBatcher;

impl<B: Backend> Batcher<B, Image, ImageBatch<B>> for ImageBatcher {
    fn batch(&self, items: Vec<Image>, device: &B::Device) -> ImageBatch<B> {
        let count = items.len();
        let labels: Vec<i64> = items.iter().map(|item| item.label).collect();
        let pixels: Vec<f32> = items.into_iter().flat_map(|item| item.pixels).collect();
        ImageBatch {
            images: Tensor::from_data(TensorData::new(pixels, [count, SIDE, SIDE]), device),
            targets: Tensor::from_data(TensorData::new(labels, [count]), device),
        }
    }
}

#[derive(Config, Debug)]
pub struct TrainingConfig {
    pub model: ModelConfig,
    pub optimizer: AdamConfig,
    #[config(default = 4)]
    pub num_epochs: usize,
    #[config(default = 32)]
    pub batch_size: usize,
    #[config(default = 1)]
    pub num_workers: usize,
    #[config(default = 42)]
    pub seed: u64,
    #[config(default = 5.0e-3)]
    pub learning_rate: f64,
    /// The epoch after which to go on.
    pub checkpoint: Option<usize>,
}

pub fn train<B, O>(
    artifact_dir: &str,
    config: TrainingConfig,
    optim: O,
    [train, test]: [Vec<Image>; 2],
    device: &B::Device,
) -> Model<B::InnerBackend>
where
    B: AutodiffBackend,
    O: Optimizer<Model<B>, B> + 'static,
{
    B::seed(device, config.seed);

    let dataloader_train = DataLoaderBuilder::new(ImageBatcher)
        .batch_size(config.batch_size)
        .shuffle(config.seed)
        .num_workers(config.num_workers)
        .build(InMemDataset::new(train));
    let dataloader_test = DataLoaderBuilder::new(ImageBatcher)
        .batch_size(config.batch_size)
        .num_workers(config.num_workers)
        .build(InMemDataset::new(test));

    let mut training = SupervisedTraining::new(artifact_dir, dataloader_train, dataloader_test)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_file_checkpointer(CompactRecorder::new())
        .num_epochs(config.num_epochs)
        .summary();
    if let Some(epoch) = config.checkpoint {
        training = training.checkpoint(epoch);
    }
    // A test shows nothing.
    training = training
        .renderer(Silent::default())
        .with_application_logger(None);

    let model = config.model.init::<B>(device);
    let learner = Learner::new(model, optim, config.learning_rate);
    let result = training.launch(learner);

    result
        .model
        .clone()
        .save_file(format!("{artifact_dir}/model"), &CompactRecorder::new())
        .expect("Trained model should be saved successfully");
    result.model
}
