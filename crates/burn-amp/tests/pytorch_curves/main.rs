//! Training from the same weights on the same batches as recorded PyTorch runs: in each precision
//! the losses must be PyTorch's in the same mode.
//!
//! The record, `tests/data/curves.json`, was made with torch 2.9.1 on a CPU. Its half-precision
//! modes come in two kinds, between which our rules lie, so both are compared with: CPU autocast,
//! which like us takes the loss from f32 log-probabilities but runs softmax in half, and
//! `cuda_like`, which like us runs softmax in f32. Unlike both, we hold the residual stream in half.
//!
//! Debug builds train the first steps only; release builds train all 300 and validate.

#[path = "../common/mod.rs"]
mod common;

mod model;
mod text;

use std::sync::LazyLock;

use burn::backend::Flex;
use burn::module::AutodiffModule;
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::DType;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_amp::{Amp, AmpConfig, AmpOptimizerConfig, Autocast, Autodiff};
use model::Gpt;
use rstest::rstest;
use serde::Deserialize;
use text::Text;

#[derive(Deserialize)]
struct Recorded {
    text: RecordedText,
    runs: Vec<RecordedRun>,
}

#[derive(Deserialize)]
struct RecordedText {
    vocab_size: usize,
    train_characters: usize,
}

#[derive(Deserialize)]
struct RecordedRun {
    mode: String,
    seed: u64,
    loss_at_step: Vec<(usize, f64)>,
    val_loss: f64,
    val_loss_evaluated_in_f32: f64,
    #[serde(default)]
    skipped_steps: Vec<usize>,
}

static RECORDED: LazyLock<Recorded> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../data/curves.json"))
        .expect("the recorded data is of this form")
});

static TEXT: LazyLock<Text> = LazyLock::new(Text::load);

/// How many steps are trained; the record has 300.
const STEPS: usize = if cfg!(debug_assertions) { 21 } else { 300 };

/// A precision, PyTorch's modes for it, and how near to their losses ours have to stay.
struct Mode {
    config: AmpConfig,
    theirs: &'static [&'static str],
    first: f64,
    tolerance: f64,
}

impl Mode {
    fn f32() -> Self {
        Self {
            config: AmpConfig::f32(),
            theirs: &["fp32"],
            first: 1e-4,
            tolerance: 5e-4,
        }
    }

    fn f16() -> Self {
        Self {
            config: AmpConfig::f16(),
            theirs: &["autocast_fp16_scaler", "autocast_fp16_scaler_cuda_like"],
            first: 2e-3,
            tolerance: 2e-3,
        }
    }

    fn bf16() -> Self {
        Self {
            config: AmpConfig::bf16(),
            theirs: &["autocast_bf16", "autocast_bf16_cuda_like"],
            first: 5e-3,
            tolerance: 5e-3,
        }
    }

    /// The recorded runs with a seed.
    fn runs(&self, seed: u64) -> impl Iterator<Item = &'static RecordedRun> {
        self.theirs.iter().map(move |mode| {
            RECORDED
                .runs
                .iter()
                .find(|run| run.mode == *mode && run.seed == seed)
                .unwrap_or_else(|| panic!("{mode} with seed {seed} is not recorded"))
        })
    }
}

/// What a training run comes to.
struct Trained<B: Backend> {
    model: Gpt<B>,
    /// The loss before each step.
    losses: Vec<f64>,
    skipped: u64,
}

fn train<B: AutodiffBackend>(amp: &Autocast, seed: u64) -> Trained<B> {
    let device = B::Device::default();
    let mut model = Gpt::<B>::new(TEXT.vocab, seed, &device);
    let mut optim = AmpOptimizerConfig::new().init(
        AdamWConfig::new()
            .with_epsilon(1e-8)
            .with_weight_decay(0.01)
            .init(),
    );

    let losses = TEXT
        .batches::<B>(seed, &device)
        .take(STEPS)
        .map(|(tokens, targets)| {
            amp.run(|| {
                let loss = model.loss(tokens, targets);
                assert_eq!(loss.dtype(), DType::F32);
                let grads = GradientsParams::from_grads(loss.backward(), &model);
                model = optim.step(1e-3, model.clone(), grads);
                common::values(loss)[0]
            })
        })
        .collect();

    Trained {
        model,
        losses,
        skipped: optim.counters().skipped,
    }
}

fn validation_loss<B: Backend>(model: &Gpt<B>) -> f64 {
    let (tokens, targets) = TEXT.validation::<B>(&B::Device::default());
    common::values(model.loss(tokens, targets))[0]
}

#[track_caller]
fn assert_near(what: &str, ours: f64, theirs: f64, tolerance: f64) {
    assert!(
        (ours - theirs).abs() <= tolerance,
        "{what}: {ours}, PyTorch's {theirs}, tolerance {tolerance:e}"
    );
}

#[test]
fn should_read_the_recorded_text() {
    assert_eq!(TEXT.vocab, RECORDED.text.vocab_size);
    assert_eq!(TEXT.train_len(), RECORDED.text.train_characters);
}

#[rstest]
fn should_train_as_pytorch_does(
    #[values(Mode::f32(), Mode::f16(), Mode::bf16())] mode: Mode,
    #[values(0, 1)] seed: u64,
) {
    let amp = Autocast::new(&mode.config).unwrap();
    let trained = train::<Autodiff<Amp<Flex>>>(&amp, seed);

    for run in mode.runs(seed) {
        for (step, loss) in run.loss_at_step.iter().filter(|(step, _)| *step < STEPS) {
            let tolerance = if *step == 0 {
                mode.first
            } else {
                mode.tolerance
            };
            let what = format!("{} seed {seed}, loss before step {step}", run.mode);
            assert_near(&what, trained.losses[*step], *loss, tolerance);
        }
        assert_eq!(trained.skipped, run.skipped_steps.len() as u64);
    }

    if STEPS == 300 {
        let model = trained.model.valid();
        let [ours, ours_in_f32] = [amp.run(|| validation_loss(&model)), validation_loss(&model)];
        for run in mode.runs(seed) {
            let what = format!("{} seed {seed}, validation loss", run.mode);
            assert_near(&what, ours, run.val_loss, mode.tolerance);
            let what = format!("{what} in f32");
            assert_near(
                &what,
                ours_in_f32,
                run.val_loss_evaluated_in_f32,
                mode.tolerance,
            );
        }
    }
}
