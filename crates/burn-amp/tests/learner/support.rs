//! The device, a loader, models, and a `Learner` whose steps are recorded.

use std::marker::PhantomData;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::backend::Flex;
use burn::backend::flex::FlexDevice;
use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::lr_scheduler::LrScheduler;
use burn::module::{AutodiffModule, Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{
    Adam, AdamConfig, GradientsParams, LearningRate, MultiGradientsParams, Optimizer, Sgd,
    SgdConfig, SimpleOptimizer,
};
use burn::record::{FullPrecisionSettings, NamedMpkFileRecorder, Record, Recorder};
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Tensor, TensorData};
use burn::train::checkpoint::KeepLastNCheckpoints;
use burn::train::metric::LossMetric;
use burn::train::{
    InferenceStep, Learner, LearningComponentsMarker, RegressionOutput, SupervisedTraining,
    TrainStep,
};
use burn_amp::loss_scale::{DynamicLossScaleConfig, LossScaleConfig, LossScaler};
use burn_amp::{Amp, AmpConfig, AmpOptimizer, AmpOptimizerConfig, StepOutcome};

use crate::common::{SplitMix64, parameter_bits, randomize};
pub use crate::renderer::{Losses, Silent};

/// The undecorated training backend.
pub type Plain = burn::backend::Autodiff<Flex>;
pub type Ours = burn_amp::Autodiff<Amp<Flex>>;

/// Burn's default recorder would store weights and moments in 16 bits.
pub type FullRecorder = NamedMpkFileRecorder<FullPrecisionSettings>;

pub type SgdOf<B, M> = OptimizerAdaptor<Sgd<<B as AutodiffBackend>::InnerBackend>, M, B>;

/// The device, for one test at a time; mixed precision is off at both ends.
pub struct Configured(#[allow(dead_code)] MutexGuard<'static, ()>);

impl Configured {
    pub fn take() -> Self {
        static DEVICE: Mutex<()> = Mutex::new(());
        Self(DEVICE.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Begins a run.
    pub fn init(&self, config: &AmpConfig) {
        config.init(&FlexDevice).unwrap();
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        self.init(&AmpConfig::f32());
    }
}

pub fn f16_with(scaling: DynamicLossScaleConfig) -> AmpConfig {
    AmpConfig::f16().with_loss_scale(LossScaleConfig::Dynamic(scaling))
}

/// f16 with a scale that starts at `init_scale`.
pub fn f16_from(init_scale: f32) -> AmpConfig {
    f16_with(DynamicLossScaleConfig::new().with_init_scale(init_scale))
}

/// Where the training of one test leaves its files.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

// Data

/// A batch, before it is on a device.
#[derive(Debug, Clone)]
pub struct Rows {
    pub x: Vec<f32>,
    pub y: Vec<f32>,
    pub count: usize,
    pub weight: f32,
}

impl Rows {
    /// One row of inputs, of which the models here take the gradients that a test dictates.
    pub fn dictated(x: &[f32]) -> Self {
        Self {
            x: x.to_vec(),
            y: vec![1.0],
            count: 1,
            weight: 1.0,
        }
    }

    /// Normal inputs, and a function of them to learn.
    pub fn regression(count: usize, width: usize, seed: u64) -> Self {
        let mut rng = SplitMix64::new(seed);
        let x: Vec<f32> = (0..count * width)
            .map(|_| rng.next_normal() as f32)
            .collect();
        let y = x
            .chunks(width)
            .map(|row| row.iter().sum::<f32>() / width as f32)
            .collect();
        Self {
            x,
            y,
            count,
            weight: 1.0,
        }
    }

    /// The same with a loss that is multiplied.
    pub fn weighted(mut self, weight: f32) -> Self {
        self.weight = weight;
        self
    }
}

/// Inputs `[batch, width]`, targets `[batch, 1]`, and a weight of the loss.
#[derive(Debug, Clone)]
pub struct Batch<B: Backend> {
    pub x: Tensor<B, 2>,
    pub y: Tensor<B, 2>,
    pub weight: f32,
}

impl<B: Backend> Batch<B> {
    pub fn new(rows: &Rows) -> Self {
        let device = B::Device::default();
        let count = rows.count;
        let x = TensorData::new(rows.x.clone(), [count, rows.x.len() / count]);
        let y = TensorData::new(rows.y.clone(), [count, rows.y.len() / count]);
        Self {
            x: Tensor::from_data(x, &device),
            y: Tensor::from_data(y, &device),
            weight: rows.weight,
        }
    }
}

/// Gives the batches of each epoch; beyond the last list that list again.
#[derive(Debug)]
pub struct Epochs {
    epochs: Arc<[Vec<Rows>]>,
    next: AtomicUsize,
}

impl Epochs {
    pub fn new(epochs: impl Into<Vec<Vec<Rows>>>) -> Self {
        Self::from_epoch(epochs, 1)
    }

    /// As of a run that goes on with `epoch`, counted from 1.
    pub fn from_epoch(epochs: impl Into<Vec<Vec<Rows>>>, epoch: usize) -> Self {
        Self {
            epochs: epochs.into().into(),
            next: AtomicUsize::new(epoch - 1),
        }
    }

    /// The same batches in every epoch.
    pub fn all(batches: Vec<Rows>) -> Self {
        Self::new([batches])
    }

    /// No batches, for a training without validation.
    pub fn none() -> Self {
        Self::all(Vec::new())
    }

    /// One dictated gradient a batch.
    pub fn dictated(gradients: &[&[f32]]) -> Self {
        Self::all(gradients.iter().map(|x| Rows::dictated(x)).collect())
    }
}

impl Clone for Epochs {
    fn clone(&self) -> Self {
        Self {
            epochs: self.epochs.clone(),
            next: AtomicUsize::new(self.next.load(Ordering::Relaxed)),
        }
    }
}

struct Batches<'a, B> {
    rows: &'a [Rows],
    done: usize,
    backend: PhantomData<B>,
}

impl<B: Backend> DataLoader<B, Batch<B>> for Epochs {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch<B>> + 'a> {
        let epoch = self.next.fetch_add(1, Ordering::Relaxed);
        let rows = &self.epochs[epoch.min(self.epochs.len() - 1)];
        Box::new(Batches {
            rows,
            done: 0,
            backend: PhantomData::<B>,
        })
    }

    fn num_items(&self) -> usize {
        self.epochs[0].len()
    }

    fn to_device(&self, _device: &B::Device) -> Arc<dyn DataLoader<B, Batch<B>>> {
        Arc::new(self.clone())
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<B, Batch<B>>> {
        let epochs = self.epochs.iter().map(|rows| rows[start..end].to_vec());
        Arc::new(Self {
            epochs: epochs.collect(),
            next: AtomicUsize::new(self.next.load(Ordering::Relaxed)),
        })
    }
}

impl<B: Backend> Iterator for Batches<'_, B> {
    type Item = Batch<B>;

    fn next(&mut self) -> Option<Batch<B>> {
        let rows = self.rows.get(self.done)?;
        self.done += 1;
        Some(Batch::new(rows))
    }
}

impl<B: Backend> DataLoaderIterator<Batch<B>> for Batches<'_, B> {
    fn progress(&self) -> Progress {
        Progress::new(self.done, self.rows.len())
    }
}

// Models

/// Implements the steps of the `Learner` by a model's method `run`.
macro_rules! learns {
    ($model:ident) => {
        impl<B: burn::tensor::backend::AutodiffBackend> burn::train::TrainStep for $model<B> {
            type Input = $crate::support::Batch<B>;
            type Output = burn::train::RegressionOutput<B>;

            fn step(&self, batch: Self::Input) -> burn::train::TrainOutput<Self::Output> {
                let output = self.run(batch);
                burn::train::TrainOutput::new(self, output.loss.backward(), output)
            }
        }

        learns!($model evaluates);
    };
    ($model:ident evaluates) => {
        impl<B: burn::tensor::backend::Backend> burn::train::InferenceStep for $model<B> {
            type Input = $crate::support::Batch<B>;
            type Output = burn::train::RegressionOutput<B>;

            fn step(&self, batch: Self::Input) -> Self::Output {
                self.run(batch)
            }
        }
    };
}
pub(crate) use learns;

pub fn output<B: Backend>(
    loss: Tensor<B, 1>,
    output: Tensor<B, 2>,
    batch: Batch<B>,
) -> RegressionOutput<B> {
    RegressionOutput::new(loss.mul_scalar(batch.weight), output, batch.y)
}

/// Weights `[1, n]` whose gradients are the inputs, in f32.
#[derive(Module, Debug)]
pub struct Dictated<B: Backend> {
    pub w: Param<Tensor<B, 2>>,
}

impl<B: Backend> Dictated<B> {
    pub fn new(values: &[f32]) -> Self {
        let data = TensorData::new(values.to_vec(), [1, values.len()]);
        Self {
            w: Param::from_data(data, &B::Device::default()),
        }
    }

    pub fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let product = self.w.val() * batch.x.clone();
        output(product.clone().sum(), product, batch)
    }

    pub fn values(&self) -> Vec<f32> {
        self.w.val().into_data().to_vec().unwrap()
    }
}
learns!(Dictated);

/// A weight in a matrix product, whose gradient is the weight of the loss as the compute type rounds it.
#[derive(Module, Debug)]
pub struct Product<B: Backend> {
    pub w: Param<Tensor<B, 2>>,
}

impl<B: Backend> Product<B> {
    pub fn new(value: f32) -> Self {
        let data = TensorData::new(vec![value], [1, 1]);
        Self {
            w: Param::from_data(data, &B::Device::default()),
        }
    }

    pub fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let product = batch.x.clone().matmul(self.w.val());
        output(product.clone().sum(), product, batch)
    }

    pub fn value(&self) -> f32 {
        self.w.val().into_data().to_vec::<f32>().unwrap()[0]
    }
}
learns!(Product);

/// Features that [`Mlp`] takes.
pub const FEATURES: usize = 8;

#[derive(Module, Debug)]
pub struct Mlp<B: Backend> {
    pub up: Linear<B>,
    norm: LayerNorm<B>,
    pub down: Linear<B>,
    activation: Gelu,
}

impl<B: Backend> Mlp<B> {
    pub fn new(seed: u64) -> Self {
        let device = B::Device::default();
        let model = Self {
            up: LinearConfig::new(FEATURES, 16).init(&device),
            norm: LayerNormConfig::new(16).init(&device),
            down: LinearConfig::new(16, 1).init(&device),
            activation: Gelu::new(),
        };
        randomize(model, seed)
    }

    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let hidden = self.activation.forward(self.up.forward(x));
        self.down.forward(self.norm.forward(hidden))
    }

    pub fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let y = self.forward(batch.x.clone());
        let loss = (y.clone() - batch.y.clone()).powi_scalar(2).mean();
        output(loss, y, batch)
    }
}
learns!(Mlp);

/// Pixels that [`ConvNet`] takes.
pub const PIXELS: usize = 36;

#[derive(Module, Debug)]
pub struct ConvNet<B: Backend> {
    conv: Conv2d<B>,
    norm: BatchNorm<B>,
    head: Linear<B>,
}

impl<B: Backend> ConvNet<B> {
    pub fn new(seed: u64) -> Self {
        let device = B::Device::default();
        let model = Self {
            conv: Conv2dConfig::new([1, 4], [3, 3]).init(&device),
            norm: BatchNormConfig::new(4).init(&device),
            head: LinearConfig::new(64, 1).init(&device),
        };
        randomize(model, seed)
    }

    pub fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let [batch, _] = x.dims();
        let x = self.conv.forward(x.reshape([batch, 1, 6, 6]));
        self.head.forward(relu(self.norm.forward(x)).flatten(1, 3))
    }

    pub fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let y = self.forward(batch.x.clone());
        let loss = (y.clone() - batch.y.clone()).powi_scalar(2).mean();
        output(loss, y, batch)
    }
}
learns!(ConvNet);

// Recording

/// What an optimizer's step did, and what it left.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// `None` of an optimizer that does not say.
    pub outcome: Option<StepOutcome>,
    pub scaler: Option<LossScaler>,
    pub lr: f64,
    pub params: Vec<Vec<u32>>,
}

impl Step {
    pub fn is_skipped(&self) -> bool {
        self.outcome.as_ref().is_some_and(StepOutcome::is_skipped)
    }

    /// The loss scale that the step left.
    pub fn scale(&self) -> f32 {
        self.scaler.as_ref().map_or(1.0, LossScaler::scale)
    }

    /// The parameters that it left, as numbers.
    pub fn values(&self) -> Vec<f32> {
        let bits = self.params.iter().flatten();
        bits.map(|bits| f32::from_bits(*bits)).collect()
    }
}

/// The steps of a [`Recorded`] optimizer, of which the `Learner` keeps a clone.
pub type Log = Arc<Mutex<Vec<Step>>>;

/// What an optimizer tells about itself.
pub trait Tells {
    fn tells(&self) -> (Option<StepOutcome>, Option<LossScaler>) {
        (None, None)
    }
}

impl<O> Tells for AmpOptimizer<O> {
    fn tells(&self) -> (Option<StepOutcome>, Option<LossScaler>) {
        (self.outcome().cloned(), self.loss_scaler())
    }
}

impl<O, M, B> Tells for OptimizerAdaptor<O, M, B>
where
    O: SimpleOptimizer<B::InnerBackend>,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
}

/// An optimizer whose steps are seen from outside of the `Learner` that owns it.
#[derive(Clone)]
pub struct Recorded<O> {
    optim: O,
    log: Log,
}

impl<O: Tells> Recorded<O> {
    pub fn new(optim: O) -> (Self, Log) {
        let log = Log::default();
        let recorded = Self {
            optim,
            log: log.clone(),
        };
        (recorded, log)
    }

    fn record(&self, lr: f64, params: Vec<Vec<u32>>) {
        let (outcome, scaler) = self.optim.tells();
        self.log.lock().unwrap().push(Step {
            outcome,
            scaler,
            lr,
            params,
        });
    }
}

impl<O, M, B> Optimizer<M, B> for Recorded<O>
where
    O: Optimizer<M, B> + Tells,
    M: AutodiffModule<B>,
    B: AutodiffBackend,
{
    type Record = O::Record;

    fn step(&mut self, lr: LearningRate, module: M, grads: GradientsParams) -> M {
        let module = self.optim.step(lr, module, grads);
        self.record(lr, parameter_bits(&module));
        module
    }

    fn step_multi(&mut self, lr: LearningRate, module: M, grads: MultiGradientsParams) -> M {
        let module = self.optim.step_multi(lr, module, grads);
        self.record(lr, parameter_bits(&module));
        module
    }

    fn to_record(&self) -> Self::Record {
        self.optim.to_record()
    }

    fn load_record(mut self, record: Self::Record) -> Self {
        self.optim = self.optim.load_record(record);
        self
    }
}

/// The steps so far.
pub fn steps(log: &Log) -> Vec<Step> {
    log.lock().unwrap().clone()
}

/// An SGD optimizer of ours, and its steps.
pub fn sgd<B: AutodiffBackend, M: AutodiffModule<B>>() -> (Recorded<AmpOptimizer<SgdOf<B, M>>>, Log)
{
    Recorded::new(AmpOptimizerConfig::new().init(SgdConfig::new().init()))
}

pub type AdamOf<M> = OptimizerAdaptor<Adam, M, Ours>;

/// An Adam optimizer of ours, and its steps.
pub fn adam<M: AutodiffModule<Ours>>() -> (Recorded<AmpOptimizer<AdamOf<M>>>, Log) {
    Recorded::new(AmpOptimizerConfig::new().init(AdamConfig::new().init()))
}

/// The optimizer's record in a checkpoint.
pub fn load_adam<M: AutodiffModule<Ours>>(
    folder: &Path,
    epoch: usize,
) -> <AmpOptimizer<AdamOf<M>> as Optimizer<M, Ours>>::Record {
    let path = folder.join(format!("checkpoint/optim-{epoch}"));
    Recorder::<Ours>::load(&FullRecorder::new(), path, &FlexDevice).unwrap()
}

/// The same as it is stored, to compare.
pub fn saved_adam<M: AutodiffModule<Ours>>(folder: &Path, epoch: usize) -> serde_json::Value {
    let record = load_adam::<M>(folder, epoch);
    serde_json::to_value(Record::<Ours>::into_item::<FullPrecisionSettings>(record)).unwrap()
}

// Training

pub type Training<B, S, M, O> = SupervisedTraining<LearningComponentsMarker<B, S, M, O>>;

/// How the `Learner` is to train.
#[derive(Debug, Clone)]
pub struct Plan<'a> {
    pub folder: &'a Path,
    pub epochs: usize,
    pub accumulation: Option<usize>,
    pub resume: Option<usize>,
}

impl<'a> Plan<'a> {
    pub fn new(folder: &'a tempfile::TempDir, epochs: usize) -> Self {
        Self {
            folder: folder.path(),
            epochs,
            accumulation: None,
            resume: None,
        }
    }

    pub fn accumulating(mut self, count: usize) -> Self {
        self.accumulation = Some(count);
        self
    }

    pub fn from(mut self, epoch: usize) -> Self {
        self.resume = Some(epoch);
        self
    }

    /// Trains, and returns the model for inference and the losses.
    pub fn fit<B, M, O, S>(
        &self,
        model: M,
        optim: O,
        schedule: S,
        train: Epochs,
        valid: Epochs,
    ) -> (M::InnerModule, Losses)
    where
        B: AutodiffBackend,
        S: LrScheduler + 'static,
        O: Optimizer<M, B> + 'static,
        M: TrainStep<Input = Batch<B>, Output = RegressionOutput<B>>
            + AutodiffModule<B>
            + std::fmt::Display
            + 'static,
        M::InnerModule: InferenceStep<
                Input = Batch<B::InnerBackend>,
                Output = RegressionOutput<B::InnerBackend>,
            >,
    {
        self.fit_with(model, optim, schedule, train, valid, |training| training)
    }

    /// As [`Plan::fit`], with more settings.
    pub fn fit_with<B, M, O, S>(
        &self,
        model: M,
        optim: O,
        schedule: S,
        train: Epochs,
        valid: Epochs,
        more: impl FnOnce(Training<B, S, M, O>) -> Training<B, S, M, O>,
    ) -> (M::InnerModule, Losses)
    where
        B: AutodiffBackend,
        S: LrScheduler + 'static,
        O: Optimizer<M, B> + 'static,
        M: TrainStep<Input = Batch<B>, Output = RegressionOutput<B>>
            + AutodiffModule<B>
            + std::fmt::Display
            + 'static,
        M::InnerModule: InferenceStep<
                Input = Batch<B::InnerBackend>,
                Output = RegressionOutput<B::InnerBackend>,
            >,
    {
        let silent = Silent::default();
        let mut training = SupervisedTraining::new(self.folder, Arc::new(train), Arc::new(valid))
            .metric_train_numeric(LossMetric::new())
            .metric_valid_numeric(LossMetric::new())
            .with_file_checkpointer(FullRecorder::new())
            .with_checkpointing_strategy(KeepLastNCheckpoints::new(usize::MAX))
            .with_application_logger(None)
            .renderer(silent.clone())
            .num_epochs(self.epochs);
        if let Some(count) = self.accumulation {
            training = training.grads_accumulation(count);
        }
        if let Some(epoch) = self.resume {
            training = training.checkpoint(epoch);
        }
        let result = more(training).launch(Learner::new(model, optim, schedule));
        (result.model, silent.losses())
    }
}
