//! A training step of a GPT of GPT-2's sizes, in f32 and in mixed precision.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use burn::backend::Autodiff as PlainAutodiff;
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend as _};
use burn_amp::memory::{DeviceMemory, MemorySource};
use burn_amp::{Amp, AmpConfig, AmpOptimizer, AmpOptimizerConfig, Autodiff};
use burn_amp_bench::gpt::{AttentionKind, Gpt, GptConfig};
use burn_amp_kernels::FloatType;

use crate::budget::Budget;
use crate::device::{Backend, Device, Gpu, Runtime};
use crate::records::{self, Training};
use crate::report::failed;
use crate::stats::{has_settled, median};

type Plain = PlainAutodiff<Backend>;
type Mixed = Autodiff<Amp<Backend>>;

/// A run takes about this, tuning included; with less it is not begun.
const A_RUN: Duration = Duration::from_secs(40);

const LEARNING_RATE: f64 = 3e-4;

/// What a model is trained in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// Plain Burn.
    F32,
    /// The decorator, with mixed precision off.
    AmpF32,
    /// Mixed precision in bf16.
    Bf16,
    /// Mixed precision in f16, with loss scaling.
    F16,
}

impl Mode {
    /// All of them, the ones that count first.
    pub const ALL: [Self; 4] = [Self::Bf16, Self::F32, Self::F16, Self::AmpF32];

    fn names(self) -> [&'static str; 2] {
        match self {
            Self::F32 => ["Burn", "f32"],
            Self::AmpF32 => ["burn-amp", "f32"],
            Self::Bf16 => ["burn-amp", "bf16"],
            Self::F16 => ["burn-amp", "f16"],
        }
    }

    fn half(self) -> Option<FloatType> {
        match self {
            Self::F32 | Self::AmpF32 => None,
            Self::Bf16 => Some(FloatType::BF16),
            Self::F16 => Some(FloatType::F16),
        }
    }
}

/// What is trained, and how often.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The model's sizes.
    pub model: GptConfig,
    /// The most steps before the clock starts.
    pub warm_up: usize,
    /// Steps on the clock.
    pub steps: usize,
}

impl Plan {
    /// GPT-2's 124 million parameters, and an output layer of its own.
    pub fn gpt2(batch: usize, attention: AttentionKind) -> Self {
        Self {
            model: GptConfig {
                batch,
                tokens: 1024,
                width: 768,
                heads: 12,
                layers: 12,
                vocabulary: crate::shapes::VOCABULARY,
                dropout: 0.0,
                attention,
            },
            warm_up: 6,
            steps: 20,
        }
    }

    /// One that any device trains in no time.
    pub fn quick(attention: AttentionKind) -> Self {
        Self {
            model: GptConfig {
                batch: 2,
                tokens: 16,
                width: 32,
                heads: 2,
                layers: 1,
                vocabulary: 61,
                dropout: 0.0,
                attention,
            },
            warm_up: 2,
            steps: 4,
        }
    }

    /// The sizes as a name: the same that `torch_reference.py` writes.
    pub fn name(&self) -> String {
        let GptConfig {
            batch,
            tokens,
            width,
            heads,
            layers,
            ..
        } = self.model;
        format!("gpt-b{batch}t{tokens}c{width}h{heads}l{layers}")
    }
}

/// Trains in each of the modes that the device has, and writes what it has after each.
///
/// Returns the records, and the modes that were left out, with the reason.
///
/// # Errors
///
/// When the file cannot be written. A run that fails is left out.
pub fn run(
    gpu: &Gpu,
    plan: &Plan,
    modes: &[Mode],
    budget: Budget,
    out: Option<&Path>,
) -> Result<(Vec<Training>, Vec<String>)> {
    let mut records = Vec::new();
    let mut left_out = Vec::new();
    for mode in modes {
        let label = mode.names().join(" ");
        if mode
            .half()
            .is_some_and(|half| !gpu.halves().contains(&half))
        {
            left_out.push(format!("{label}: the device lacks the type"));
            continue;
        }
        if !budget.has(A_RUN) {
            left_out.push(format!("{label}: no time was left"));
            continue;
        }
        let run = AssertUnwindSafe(|| train(gpu, plan, *mode, budget));
        let trained = catch_unwind(run).unwrap_or_else(|_| Err(anyhow!("it panicked; see above")));
        match trained {
            Ok(record) => records.push(record),
            Err(error) => left_out.push(failed(&label, &error)),
        }
        // What the next one needs is not what this one left behind.
        Backend::memory_cleanup(&gpu.device);
        if let Some(out) = out {
            records::write(out, &records)?;
        }
    }
    Ok((records, left_out))
}

/// Trains a new model from the same seed.
fn train(gpu: &Gpu, plan: &Plan, mode: Mode, budget: Budget) -> Result<Training> {
    let adam = AdamWConfig::new().with_weight_decay(0.01);
    let config = match mode {
        Mode::F32 => {
            return measure::<Plain, _>(gpu, plan, mode, budget, adam.init(), |_| 0);
        }
        Mode::AmpF32 => AmpConfig::f32(),
        Mode::Bf16 => AmpConfig::bf16(),
        Mode::F16 => AmpConfig::f16(),
    };
    config.init(&gpu.device)?;
    let optim = AmpOptimizerConfig::new().init(adam.init());
    let skipped = |optim: &AmpOptimizer<_>| optim.counters().skipped as usize;
    let trained = measure::<Mixed, _>(gpu, plan, mode, budget, optim, skipped);
    AmpConfig::f32().init(&gpu.device)?;
    trained
}

/// The bytes at the points of a step where they are looked at.
#[derive(Debug, Clone, Copy, Default)]
struct Bytes {
    kept: u64,
    peak: u64,
    reserved: u64,
}

fn measure<B, O>(
    gpu: &Gpu,
    plan: &Plan,
    mode: Mode,
    budget: Budget,
    mut optim: O,
    skipped: impl Fn(&O) -> usize,
) -> Result<Training>
where
    B: AutodiffBackend<Device = Device>,
    O: Optimizer<Gpt<B>, B>,
{
    let device = &gpu.device;
    B::seed(device, 42);
    let mut model: Gpt<B> = plan.model.init(device);
    let [ids, targets] = plan.model.data::<B>(device);
    let mask = plan.model.mask::<B>(device);
    let memory = DeviceMemory::<Backend, Runtime>::new(device);
    let loss_of = |model: &Gpt<B>| {
        model.loss(
            ids.clone(),
            targets.clone(),
            mask.clone(),
            plan.model.attention,
        )
    };
    let mut losses = Vec::new();
    let mut step = |model: Gpt<B>, optim: &mut O, bytes: Option<&mut Bytes>| -> Result<Gpt<B>> {
        let before = bytes.as_ref().map(|_| memory.in_use());
        let loss = loss_of(&model);
        losses.push(loss.clone().inner());
        let Some((bytes, before)) = bytes.zip(before) else {
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            return Ok(optim.step(LEARNING_RATE, model, grads));
        };
        let forward = memory.in_use();
        let grads = loss.backward();
        let backward = memory.in_use();
        let grads = GradientsParams::from_grads(grads, &model);
        let model = optim.step(LEARNING_RATE, model, grads);
        let update = memory.in_use();
        *bytes = Bytes {
            kept: forward.saturating_sub(before),
            peak: forward.max(backward).max(update),
            reserved: memory.peak(),
        };
        Ok(model)
    };

    let mut warm = Vec::new();
    while warm.len() < plan.warm_up && !has_settled(&warm) {
        let start = Instant::now();
        model = step(model, &mut optim, None)?;
        B::sync(device).map_err(|error| anyhow!("{error:?}"))?;
        warm.push(start.elapsed());
        ensure!(
            budget.has(Duration::from_secs(1)),
            "no time was left after a warm-up"
        );
    }
    // What tuning took is given back, so that what is held then is what training needs.
    memory.reset_peak();
    let mut bytes = Bytes::default();
    for _ in 0..2 {
        model = step(model, &mut optim, Some(&mut bytes))?;
    }
    let mut times = Vec::new();
    while times.len() < plan.steps && (times.len() < 3 || budget.has(Duration::from_secs(2))) {
        let start = Instant::now();
        model = step(model, &mut optim, None)?;
        B::sync(device).map_err(|error| anyhow!("{error:?}"))?;
        times.push(start.elapsed());
    }
    drop(model);

    let losses = losses
        .into_iter()
        .map(|loss| {
            let value = loss.into_data().iter::<f64>().next();
            value.ok_or_else(|| anyhow!("a loss without a value"))
        })
        .collect::<Result<Vec<f64>>>()?;
    let time = median(&times);
    let [framework, name] = mode.names();
    Ok(Training {
        framework: framework.to_owned(),
        mode: name.to_owned(),
        attention: attention_name(plan.model.attention).to_owned(),
        model: plan.name(),
        step_ms: time.as_secs_f64() * 1e3,
        tokens_per_s: (plan.model.batch * plan.model.tokens) as f64 / time.as_secs_f64(),
        kept_bytes: bytes.kept,
        peak_bytes: bytes.peak,
        reserved_bytes: bytes.reserved,
        steps: losses.len(),
        skipped: skipped(&optim),
        first_loss: losses.first().copied().unwrap_or(f64::NAN),
        last_loss: losses.last().copied().unwrap_or(f64::NAN),
    })
}

fn attention_name(attention: AttentionKind) -> &'static str {
    match attention {
        AttentionKind::Explicit => "explicit",
        AttentionKind::Op => "op",
    }
}
