//! One training run in a chosen precision: the only module that knows of precision.

use std::fmt;

use anyhow::{Result, ensure};
use burn::module::AutodiffModule;
use burn::optim::AdamWConfig;
use burn::tensor::backend::AutodiffBackend;
use burn_amp::{Amp, AmpConfig, AmpDevice, AmpOptimizerConfig, Autodiff};
use clap::ValueEnum;
use serde::Serialize;

use crate::cli::Job;
use crate::data::{Batcher, Windows};
use crate::generate::generate;
use crate::memory::METER;
use crate::model::Gpt;
use crate::report::Row;
use crate::train::{Plan, train_steps, validation_loss};

#[cfg(not(any(feature = "flex", feature = "cuda", feature = "vulkan")))]
compile_error!("enable at least one of the features flex, cuda and vulkan");

/// The backend that trains on `X`; without mixed precision it is `burn::backend::Autodiff<X>`.
type Training<X> = Autodiff<Amp<X>>;

/// Validation windows, spread over the validation text.
const WINDOWS: usize = 128;

/// Last training steps whose mean loss is reported.
const RECENT_STEPS: usize = 20;

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

/// What a run gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The run's line of the closing table.
    pub row: Row,
    /// Text that the trained model wrote.
    pub sample: String,
}

/// Trains, validates and samples a new model, calling `on_read` with the losses as they come in.
pub fn run(job: &Job, precision: Precision, on_read: impl FnMut(&[f32])) -> Result<Outcome> {
    match job.device {
        #[cfg(feature = "flex")]
        DeviceName::Flex => run_on::<Training<burn::backend::Flex>>(job, precision, on_read),
        #[cfg(feature = "cuda")]
        DeviceName::Cuda => run_on::<Training<burn::backend::Cuda>>(job, precision, on_read),
        #[cfg(feature = "vulkan")]
        DeviceName::Vulkan => run_on::<Training<burn::backend::Vulkan>>(job, precision, on_read),
    }
}

/// Runs one step in f32, which leaves a loss scale alone: what a device allocates once would be counted
/// for the first precision only.
///
/// # Errors
///
/// As [`run`].
pub fn warm_up(job: &Job) -> Result<()> {
    let plan = Plan {
        steps: 1,
        warmup: 0,
        ..job.plan
    };
    let job = Job {
        plan,
        sample: job.sample.min(1),
        ..job.clone()
    };
    run(&job, Precision::F32, |_| {}).map(drop)
}

fn run_on<B: AutodiffBackend>(
    job: &Job,
    precision: Precision,
    on_read: impl FnMut(&[f32]),
) -> Result<Outcome>
where
    B::Device: AmpDevice,
{
    let (outcome, peak) = METER.peak(|| train_on::<B>(job, precision, on_read));
    let mut outcome = outcome?;
    outcome.row.peak_heap_bytes = peak;
    Ok(outcome)
}

/// Trains and samples; the peak of the heap is measured around it.
fn train_on<B: AutodiffBackend>(
    job: &Job,
    precision: Precision,
    on_read: impl FnMut(&[f32]),
) -> Result<Outcome>
where
    B::Device: AmpDevice,
{
    let device = B::Device::default();
    config(job, precision).init(&device)?;
    B::seed(&device, job.seed);

    let model: Gpt<B> = job.model.init(&device);
    let adam = AdamWConfig::new()
        .with_epsilon(1e-8)
        .with_weight_decay(0.01);
    let mut optim = AmpOptimizerConfig::new().init(adam.init());
    let mut batcher = Batcher::new(&job.corpus, job.batch, job.model.seq, job.seed)?;
    let trained = train_steps(model, &mut optim, &mut batcher, &job.plan, &device, on_read)?;
    let train_loss = trained.recent_loss(RECENT_STEPS);

    let model = trained.model.valid();
    let windows = Windows::new(&job.corpus, job.model.seq, WINDOWS)?;
    let valid_loss = validation_loss(&model, &windows, job.batch, &device);
    ensure!(
        train_loss.is_finite() && valid_loss.is_finite(),
        "training in {precision} diverged: train loss {train_loss}, validation loss {valid_loss}"
    );
    let sample = generate(&model, &job.prompt, job.sample, job.seed, &device);

    let seconds = trained.time_per_step.as_secs_f64();
    Ok(Outcome {
        row: Row {
            precision,
            train_loss,
            valid_loss,
            applied: optim.counters().applied,
            skipped: optim.counters().skipped,
            scale: optim.scale(),
            ms_per_step: 1e3 * seconds,
            tokens_per_second: (job.batch * job.model.seq) as f64 / seconds,
            peak_heap_bytes: 0,
        },
        sample: job.corpus.decode(&sample),
    })
}

/// Mixed precision, or none, for everything on the device from here on.
fn config(job: &Job, precision: Precision) -> AmpConfig {
    match precision {
        Precision::F32 => AmpConfig::f32(),
        Precision::Bf16 => AmpConfig::bf16(),
        Precision::F16 => AmpConfig::f16().with_growth_interval(job.growth_interval),
    }
}
