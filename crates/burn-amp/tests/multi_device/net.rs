//! What is trained: a small network by Burn's `Learner`, which logs what each worker went through.

use std::sync::{Mutex, PoisonError};

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::InMemDataset;
use burn::module::{AutodiffModule, Module};
use burn::nn::loss::{MseLoss, Reduction};
use burn::nn::{Gelu, Linear, LinearConfig};
use burn::optim::Optimizer;
use burn::prelude::DeviceOps as _;
use burn::tensor::backend::{AutodiffBackend, Backend, DeviceId};
use burn::tensor::{Tensor, TensorData};
use burn::train::{
    ExecutionStrategy, InferenceStep, Learner, RegressionOutput, SupervisedTraining, TrainOutput,
    TrainStep,
};
use burn_amp::{Amp, AmpBackend, Autodiff};

use crate::backend::Workers;
use crate::common::{self, SplitMix64};
use crate::renderer::Silent;

/// The training backend on as many devices as a test wants.
pub type Training = Autodiff<Amp<Workers>>;

/// A training backend that knows the scale of its gradients.
pub trait Trains: AutodiffBackend {
    fn scale(grads: &Self::Gradients) -> f32;
}

impl<B> Trains for Amp<B>
where
    B: AmpBackend + AutodiffBackend,
    B::InnerBackend: AmpBackend,
{
    fn scale(grads: &Self::Gradients) -> f32 {
        grads.scale()
    }
}

pub const INPUTS: usize = 4;

/// A regression with one hidden layer.
#[derive(Module, Debug)]
pub struct Net<B: Backend> {
    hidden: Linear<B>,
    gelu: Gelu,
    output: Linear<B>,
}

impl<B: Backend> Net<B> {
    pub fn new(device: &B::Device) -> Self {
        let net = Self {
            hidden: LinearConfig::new(INPUTS, 16).init(device),
            gelu: Gelu::new(),
            output: LinearConfig::new(16, 1).init(device),
        };
        common::randomize(net, 5)
    }

    pub fn regress(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let hidden = self.gelu.forward(self.hidden.forward(batch.x));
        let output = self.output.forward(hidden);
        let loss = MseLoss::new().forward(output.clone(), batch.y.clone(), Reduction::Mean);
        RegressionOutput::new(loss, output, batch.y)
    }
}

/// What one backward pass of a worker began with, and what came out.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    pub device: DeviceId,
    pub parameters: Vec<Vec<u32>>,
    pub scale: f32,
}

static LOG: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

/// The entries of a device, in order. Tests use different devices.
pub fn log_of<D: burn::tensor::backend::DeviceOps>(device: D) -> Vec<Entry> {
    let log = LOG.lock().unwrap_or_else(PoisonError::into_inner);
    let id = device.to_id();
    log.iter()
        .filter(|entry| entry.device == id)
        .cloned()
        .collect()
}

impl<B: Trains> TrainStep for Net<B> {
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<RegressionOutput<B>> {
        let device = batch.x.device();
        let output = self.regress(batch);
        let grads = output.loss.backward();
        let entry = Entry {
            device: device.to_id(),
            parameters: common::parameter_bits(self),
            scale: B::scale(&grads),
        };
        LOG.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(entry);
        TrainOutput::new(self, grads, output)
    }
}

impl<B: Backend> InferenceStep for Net<B> {
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> RegressionOutput<B> {
        self.regress(batch)
    }
}

/// Inputs and what is to come out.
#[derive(Debug, Clone)]
pub struct Batch<B: Backend> {
    pub x: Tensor<B, 2>,
    pub y: Tensor<B, 2>,
}

/// A sample: its inputs.
pub type Sample = [f32; INPUTS];

/// Samples without a surprise.
pub fn samples(count: usize) -> Vec<Sample> {
    let mut rng = SplitMix64::new(11);
    (0..count)
        .map(|_| std::array::from_fn(|_| rng.next_normal() as f32))
        .collect()
}

#[derive(Debug, Clone)]
pub struct Batches;

impl<B: Backend> Batcher<B, Sample, Batch<B>> for Batches {
    fn batch(&self, samples: Vec<Sample>, device: &B::Device) -> Batch<B> {
        let count = samples.len();
        let y: Vec<f32> = samples.iter().map(|x| x[0] - 0.5 * x[1] * x[2]).collect();
        Batch {
            x: Tensor::from_data(TensorData::new(samples.concat(), [count, INPUTS]), device),
            y: Tensor::from_data(TensorData::new(y, [count, 1]), device),
        }
    }
}

/// The loss over samples, in f32.
pub fn loss<B: Backend>(net: &Net<B>, samples: &[Sample]) -> f32 {
    let device = net.devices().remove(0);
    let batch = Batches.batch(samples.to_vec(), &device);
    burn_amp::full_precision(|| common::values(net.regress(batch).loss)[0] as f32)
}

/// A training: which samples, in batches of what size, how often.
#[derive(Debug, Clone)]
pub struct Plan {
    pub samples: Vec<Sample>,
    pub batch: usize,
    pub epochs: usize,
    pub accumulate: Option<usize>,
}

impl Plan {
    /// Trains from the same parameters each time.
    pub fn train<B, O>(
        &self,
        optim: O,
        device: &B::Device,
        strategy: ExecutionStrategy<B>,
    ) -> Net<B::InnerBackend>
    where
        B: Trains,
        O: Optimizer<Net<B>, B> + 'static,
    {
        let folder = tempfile::tempdir().unwrap();
        let train = DataLoaderBuilder::<B, _, _>::new(Batches)
            .batch_size(self.batch)
            .set_device(device.clone())
            .build(InMemDataset::new(self.samples.clone()));
        let valid = DataLoaderBuilder::<B::InnerBackend, _, _>::new(Batches)
            .batch_size(self.batch)
            .set_device(device.clone())
            .build(InMemDataset::new(self.samples.clone()));
        let mut training = SupervisedTraining::new(folder.path(), train, valid)
            .renderer(Silent::default())
            .with_application_logger(None)
            .with_training_strategy(strategy.into())
            .num_epochs(self.epochs);
        if let Some(accumulate) = self.accumulate {
            training = training.grads_accumulation(accumulate);
        }
        let learner = Learner::new(Net::<B>::new(device), optim, 0.05);
        training.launch(learner).model
    }

    /// The loss of the network that training starts from.
    pub fn initial_loss<B: Trains>(&self, samples: &[Sample], device: &B::Device) -> f32 {
        loss(&Net::<B>::new(device).valid(), samples)
    }
}
