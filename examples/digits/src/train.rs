//! Training by Burn's `Learner`.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use burn::lr_scheduler::composed::{ComposedLrScheduler, ComposedLrSchedulerConfig};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::optim::Optimizer;
use burn::tensor::backend::AutodiffBackend;
use burn::train::checkpoint::KeepLastNCheckpoints;
use burn::train::metric::store::{Aggregate, Direction, Split};
use burn::train::metric::{AccuracyMetric, LearningRateMetric, LossMetric};
use burn::train::{
    Learner, LearningComponentsMarker, MetricEarlyStoppingStrategy, StoppingCondition,
    SupervisedTraining,
};
use burn_amp::train::metric::{
    GradientNormMetric, LossScaleMetric, PeakMemoryMetric, SkippedStepsMetric, ThroughputMetric,
};
use serde::Serialize;

use crate::checkpoint::{Artifacts, CheckpointRecorder};
use crate::data;
use crate::loader::Loader;
use crate::memory::METER;
use crate::model::DigitNet;
use crate::progress::Bar;

/// Checkpoints that a training keeps.
const KEPT_CHECKPOINTS: usize = 2;
/// Epochs in which the learning rate rises to its highest value.
const WARMUP_EPOCHS: usize = 1;

/// The settings that decide what a training gives.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    /// Times that every training sample is seen.
    pub epochs: usize,
    /// Samples in a step.
    pub batch: usize,
    /// Highest learning rate.
    pub learning_rate: f64,
    /// Seed of the weights and of the order of the samples.
    pub seed: u64,
    /// Finite steps after which the loss scale doubles.
    pub growth_interval: u32,
    /// Epochs without a better test loss after which training ends.
    pub patience: Option<usize>,
}

impl Plan {
    /// A linear rise over the first epoch, then half a cosine down to a hundredth.
    ///
    /// # Errors
    ///
    /// The learning rate is out of Burn's range.
    pub fn schedule(&self, samples: usize) -> Result<ComposedLrScheduler> {
        let steps = samples.div_ceil(self.batch);
        let warmup = WARMUP_EPOCHS * steps;
        ComposedLrSchedulerConfig::new()
            .linear(LinearLrSchedulerConfig::new(
                1.0 / warmup as f64,
                1.0,
                warmup,
            ))
            .cosine(
                CosineAnnealingLrSchedulerConfig::new(self.learning_rate, self.epochs * steps)
                    .with_min_lr(self.learning_rate / 100.0),
            )
            .init()
            .map_err(|message| anyhow!("learning rate {}: {message}", self.learning_rate))
    }
}

/// Where a training shows how it goes.
#[derive(Debug)]
pub enum Display {
    /// Burn's dashboard, or its plain output if standard output is no terminal.
    Dashboard,
    /// A bar on standard error, with a name.
    Bar(String),
}

/// What `SupervisedTraining` is generic over here.
type Components<B, O> = LearningComponentsMarker<B, ComposedLrScheduler, DigitNet<B>, O>;

/// The metrics of a training: what the dashboard shows and the log files hold.
fn with_metrics<B, O>(
    training: SupervisedTraining<Components<B, O>>,
    device: &B::Device,
) -> SupervisedTraining<Components<B, O>>
where
    B: AutodiffBackend,
    O: Optimizer<DigitNet<B>, B> + 'static,
{
    training
        .metric_train_numeric(AccuracyMetric::new())
        .metric_valid_numeric(AccuracyMetric::new())
        .metric_train_numeric(LossMetric::new())
        .metric_valid_numeric(LossMetric::new())
        .metric_train_numeric(LearningRateMetric::new())
        .metric_train_numeric(LossScaleMetric::new(device))
        .metric_train_numeric(SkippedStepsMetric::new(device))
        .metric_train_numeric(GradientNormMetric::new(device))
        .metric_train_numeric(ThroughputMetric::samples())
        .metric_train_numeric(PeakMemoryMetric::new(*METER.source()))
}

/// Trains a model, from the checkpoint of epoch `resume` if there is one, and returns it for inference.
pub fn train<B, O>(
    plan: &Plan,
    split: &data::Split,
    optim: O,
    artifacts: &Artifacts,
    resume: Option<usize>,
    display: Display,
    device: &B::Device,
) -> Result<DigitNet<B::InnerBackend>>
where
    B: AutodiffBackend,
    O: Optimizer<DigitNet<B>, B> + 'static,
{
    let schedule = plan.schedule(split.train.len())?;
    let first_epoch = resume.map_or(1, |epoch| epoch + 1);
    let train =
        Loader::<B>::in_order(&split.train, plan.batch, device).shuffled(plan.seed, first_epoch);
    let valid = Loader::<B::InnerBackend>::in_order(&split.test, plan.batch, device);

    let training = SupervisedTraining::new(artifacts.folder(), Arc::new(train), Arc::new(valid));
    let mut training = with_metrics::<B, O>(training, device)
        .with_file_checkpointer(CheckpointRecorder::default())
        .with_checkpointing_strategy(KeepLastNCheckpoints::new(KEPT_CHECKPOINTS))
        .with_application_logger(None)
        .num_epochs(plan.epochs);
    if let Some(epoch) = resume {
        training = training.checkpoint(epoch);
    }
    if let Some(n_epochs) = plan.patience {
        training = training.early_stopping(MetricEarlyStoppingStrategy::new(
            &LossMetric::<B>::new(),
            Aggregate::Mean,
            Direction::Lowest,
            Split::Valid,
            StoppingCondition::NoImprovementSince { n_epochs },
        ));
    }
    if let Display::Bar(name) = display {
        training = training.renderer(Bar::new(&name, plan.epochs));
    }

    let learner = Learner::new(DigitNet::new(device), optim, schedule);
    Ok(training.launch(learner).model)
}
