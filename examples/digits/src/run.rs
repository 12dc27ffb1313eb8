//! One training run in a chosen precision: the only module that knows of precision.

use std::fmt;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use burn::lr_scheduler::composed::ComposedLrScheduler;
use burn::optim::AdamW;
use burn::optim::AdamWConfig;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::tensor::backend::AutodiffBackend;
use burn_amp::{Amp, AmpConfig, AmpDevice, AmpOptimizerConfig, Autodiff};
use clap::ValueEnum;
use serde::Serialize;

use crate::checkpoint::Artifacts;
use crate::cli::Job;
use crate::loader::Loader;
use crate::memory::METER;
use crate::model::{DigitNet, evaluate};
use crate::report::Row;
use crate::train::{Display, train};
use crate::watch::{Trace, Watched};

#[cfg(not(any(feature = "flex", feature = "cuda", feature = "vulkan")))]
compile_error!("enable at least one of the features flex, cuda and vulkan");

/// The backend that trains on `X`; without mixed precision it is `burn::backend::Autodiff<X>`.
type Training<X> = Autodiff<Amp<X>>;

/// The optimizer of a model on `B`, as a checkpoint holds it.
pub type Optim<B> = Watched<OptimizerAdaptor<AdamW, DigitNet<B>, B>>;

/// The file of `--trace`.
const TRACE: &str = "steps.csv";
/// Samples in a batch when a trained model is measured.
const TEST_BATCH: usize = 128;

/// What the model computes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floats throughout.
    F32,
    /// Mixed precision with bfloat16.
    Bf16,
    /// Mixed precision with half floats and dynamic loss scaling.
    F16,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        })
    }
}

/// Where to train; one variant for each of the crate's device features.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DeviceName {
    /// The CPU.
    #[cfg(feature = "flex")]
    Flex,
    /// The first NVIDIA GPU.
    #[cfg(feature = "cuda")]
    Cuda,
    /// The best Vulkan device.
    #[cfg(feature = "vulkan")]
    Vulkan,
}

impl Default for DeviceName {
    fn default() -> Self {
        Self::value_variants()[0]
    }
}

/// Trains a model, or goes on with one, and tests it; its checkpoints are left in `artifacts`.
pub fn run(job: &Job, precision: Precision, artifacts: &Artifacts) -> Result<Row> {
    match job.device {
        #[cfg(feature = "flex")]
        DeviceName::Flex => run_on::<Training<burn::backend::Flex>>(job, precision, artifacts),
        #[cfg(feature = "cuda")]
        DeviceName::Cuda => run_on::<Training<burn::backend::Cuda>>(job, precision, artifacts),
        #[cfg(feature = "vulkan")]
        DeviceName::Vulkan => run_on::<Training<burn::backend::Vulkan>>(job, precision, artifacts),
    }
}

/// Trains on one batch in f32, which leaves a loss scale alone: what is allocated once would be counted for
/// the first precision only.
///
/// # Errors
///
/// As [`run`].
pub fn warm_up(job: &Job) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot create a temporary folder")?;
    let mut job = job.clone();
    job.plan.epochs = 1;
    job.split.train.truncate(job.plan.batch);
    job.resume = false;
    job.trace = false;
    job.dashboard = false;
    run(&job, Precision::F32, &Artifacts::new(folder.path())).map(drop)
}

fn run_on<B: AutodiffBackend>(job: &Job, precision: Precision, artifacts: &Artifacts) -> Result<Row>
where
    B::Device: AmpDevice,
{
    let (row, peak) = METER.peak(|| train_on::<B>(job, precision, artifacts));
    let mut row = row?;
    row.peak_bytes = peak;
    Ok(row)
}

/// Trains and tests; the peak of the heap is measured around it.
fn train_on<B: AutodiffBackend>(
    job: &Job,
    precision: Precision,
    artifacts: &Artifacts,
) -> Result<Row>
where
    B::Device: AmpDevice,
{
    let device = B::Device::default();
    let resume = resume_from::<B>(job, artifacts, &device)?;
    config(job, precision).init(&device)?;
    B::seed(&device, job.plan.seed);

    let adam = AdamWConfig::new().with_epsilon(1e-8).init();
    let optim = AmpOptimizerConfig::new()
        .with_gradient_norm(true)
        .init(adam);
    let trace = match job.trace {
        true => Some(Trace::open(
            &artifacts.folder().join(TRACE),
            resume.is_some(),
        )?),
        false => None,
    };
    let (optim, watch): (Optim<B>, _) = Watched::new(optim, trace);
    let display = if job.dashboard {
        Display::Dashboard
    } else {
        Display::Bar(precision.to_string())
    };

    let start = Instant::now();
    let model = train::<B, _>(
        &job.plan, &job.split, optim, artifacts, resume, display, &device,
    )?;
    let seconds = start.elapsed().as_secs_f64();

    let score = |samples| {
        let batches = Loader::in_order(samples, TEST_BATCH, &device);
        evaluate(&model, batches.batches())
    };
    let (train, test) = (score(&job.split.train), score(&job.split.test));
    ensure!(
        train.loss.is_finite() && test.loss.is_finite(),
        "training in {precision} diverged: train loss {}, test loss {}",
        train.loss,
        test.loss
    );
    let status = watch.status();
    Ok(Row {
        precision,
        test_accuracy: test.accuracy,
        test_loss: test.loss,
        train_loss: train.loss,
        steps_applied: status.counters.applied,
        steps_skipped: status.counters.skipped,
        loss_scale: status.scale,
        seconds,
        peak_bytes: 0,
    })
}

/// The epoch to go on after; the folder is made ready for a new training if there is none.
fn resume_from<B: AutodiffBackend>(
    job: &Job,
    artifacts: &Artifacts,
    device: &B::Device,
) -> Result<Option<usize>> {
    let newest = if job.resume {
        artifacts.newest::<B, Optim<B>, ComposedLrScheduler>(device)?
    } else {
        None
    };
    match newest {
        Some(_) => artifacts.check(&job.plan)?,
        None => {
            ensure!(
                !job.resume || artifacts.epochs()?.is_empty(),
                "none of the checkpoints in {} can be read",
                artifacts.folder().display()
            );
            artifacts.begin(&job.plan)?;
        }
    }
    ensure!(
        !job.trace || newest.is_none() || artifacts.folder().join(TRACE).exists(),
        "{} holds a training without a trace, it cannot go on with --trace",
        artifacts.folder().display()
    );
    Ok(newest)
}

/// Mixed precision, or none, for everything on the device from here on.
fn config(job: &Job, precision: Precision) -> AmpConfig {
    match precision {
        Precision::F32 => AmpConfig::f32(),
        Precision::Bf16 => AmpConfig::bf16(),
        Precision::F16 => AmpConfig::f16().with_growth_interval(job.plan.growth_interval),
    }
}
