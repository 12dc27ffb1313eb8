//! Theme 5: gradients of several micro-batches.

use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::{GradientsAccumulator, GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor};
use burn::train::{RegressionOutput, TrainOutput, TrainStep};
use burn_amp::loss_scale::{DynamicLossScaleConfig, LossScaleConfig};
use burn_amp::{
    AmpConfig, AmpOptimizerConfig, Autocast, GradClipping, clip_grad_norm, clip_grad_value,
};

use crate::common::parameter_bits;
use crate::support::{
    Batch, Configured, Dictated, Epochs, FEATURES, Mlp, Ours, Plain, Plan, Product, Rows, Step,
    adam, f16_from, f16_with, folder, learns, saved_adam, sgd, steps,
};

fn dictated_windows<B: AutodiffBackend>(gradients: &[&[f32]], count: usize) -> Vec<Step> {
    let folder = folder();
    let (optim, log) = sgd::<B, Dictated<B>>();
    let plan = Plan::new(&folder, 1).accumulating(count);
    let model = Dictated::<B>::new(&[0.0]);
    let train = Epochs::dictated(gradients);
    plan.fit(model, optim, 1.0, train, Epochs::none());
    steps(&log)
}

#[test]
fn case_32_a_window_sums_true_gradients() {
    let device = Configured::take();
    for gradients in [[1.0, 2.0, 3.0, 4.0], [0.1, 0.7, 1.0 / 3.0, -4.4]] {
        let gradients = gradients.each_ref().map(std::slice::from_ref);
        device.init(&AmpConfig::f32());
        let plain = dictated_windows::<Plain>(&gradients, 4);
        device.init(&f16_from(1024.0));
        let ours = dictated_windows::<Ours>(&gradients, 4);
        assert_eq!((ours.len(), ours[0].scale()), (1, 1024.0));
        assert_eq!(ours[0].params, plain[0].params);
    }
    let exact = dictated_windows::<Ours>(&[&[1.0], &[2.0], &[3.0], &[4.0]], 4);
    assert_eq!(exact[0].values(), [-10.0]);
}

/// Adds the gradients of one container to another.
struct Add<'a> {
    sum: &'a mut GradientsParams,
    more: &'a GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Add<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let more = self.more.get::<B::InnerBackend, D>(param.id).unwrap();
        let sum = match self.sum.remove::<B::InnerBackend, D>(param.id) {
            Some(sum) => sum + more,
            None => more,
        };
        self.sum.register(param.id, sum);
    }
}

/// The scale doubles after each window, and one of them overflows.
#[test]
fn case_32_accumulation_across_changes_of_the_scale_is_the_sum_by_hand() {
    const WINDOW: usize = 3;
    const LR: f64 = 0.01;

    let device = Configured::take();
    let folder = folder();
    let scaling = DynamicLossScaleConfig::new()
        .with_init_scale(1024.0)
        .with_growth_interval(1);
    device.init(&f16_with(scaling));
    let mut batches: Vec<Rows> = (0..4 * WINDOW as u64)
        .map(|seed| Rows::regression(6, FEATURES, seed))
        .collect();
    batches[5].weight = f32::INFINITY;
    let (optim, log) = sgd::<Ours, Mlp<Ours>>();
    let model = Mlp::<Ours>::new(1);
    let plan = Plan::new(&folder, 1).accumulating(WINDOW);
    let train = Epochs::all(batches.clone());
    plan.fit(model.clone(), optim, LR, train, Epochs::none());

    let steps = steps(&log);
    let scales: Vec<f32> = steps.iter().map(Step::scale).collect();
    assert_eq!(scales, [2048.0, 1024.0, 2048.0, 4096.0]);

    device.init(&AmpConfig::f32());
    let mut model = model;
    let mut optim = SgdConfig::new().init();
    let before = [1024.0, 2048.0, 1024.0, 2048.0];
    for ((window, scale), step) in batches.chunks(WINDOW).zip(before).zip(&steps) {
        assert_eq!(step.is_skipped(), window[2].weight.is_infinite());
        if !step.is_skipped() {
            let scaling = LossScaleConfig::fixed(scale);
            let amp = Autocast::new(&AmpConfig::f16().with_loss_scale(scaling)).unwrap();
            let mut sum = GradientsParams::new();
            for rows in window {
                let more = &amp.run(|| TrainStep::step(&model, Batch::new(rows)).grads);
                let sum = &mut sum;
                model.visit(&mut Add { sum, more });
            }
            model = optim.step(LR, model, sum);
        }
        assert!(step.params == parameter_bits(&model));
    }
}

/// A critic that steps on every micro-batch moves the scale inside the other's window.
#[test]
fn case_32_the_scale_may_change_inside_a_window() {
    fn run<B: AutodiffBackend>() -> (Vec<f32>, Vec<f32>) {
        let mut model = Dictated::<B>::new(&[0.0]);
        let mut critic = Dictated::<B>::new(&[0.0]);
        let mut optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
        let mut critic_optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
        let mut accumulator = GradientsAccumulator::new();
        let mut scales = Vec::new();
        for epoch in 0..3 {
            for batch in 0..4 {
                let x = 0.1 + (4 * epoch + batch) as f32 / 3.0;
                let of_critic = if batch == 2 { f32::INFINITY } else { x };
                let step = TrainStep::step(&model, Batch::new(&Rows::dictated(&[x])));
                accumulator.accumulate(&model, step.grads);
                let step = TrainStep::step(&critic, Batch::new(&Rows::dictated(&[of_critic])));
                critic = critic_optim.step(1.0, critic, step.grads);
                scales.push(critic_optim.scale());
                if batch % 2 == 1 {
                    model = optim.step(1.0, model, accumulator.grads());
                    assert!(optim.outcome().unwrap().is_applied());
                }
            }
        }
        (model.values(), scales)
    }
    let device = Configured::take();
    let (plain, _) = run::<Plain>();
    device.init(&f16_from(1024.0));
    let (ours, scales) = run::<Ours>();
    assert_eq!(ours, plain);
    // The second window of each epoch began with twice the scale that it ended with.
    assert_eq!(scales[1..4], [1024.0, 512.0, 512.0]);
    assert_eq!(scales[11], 128.0);
}

#[test]
fn case_34_a_skipped_window_leaves_nothing_behind() {
    let device = Configured::take();
    for [first, second] in [
        [1.0, f32::INFINITY],
        [f32::NAN, 1.0],
        [f32::INFINITY, f32::NEG_INFINITY],
        // Finite each, but not their sum.
        [3e38, 3e38],
    ] {
        // Small enough for the last.
        device.init(&f16_from(1.0));
        let steps = dictated_windows::<Ours>(&[&[first], &[second], &[1.0], &[1.0]], 2);
        let [skipped, applied] = steps.as_slice() else {
            panic!("{steps:?}")
        };
        assert!(skipped.is_skipped() && !applied.is_skipped());
        assert_eq!((skipped.scale(), applied.scale()), (0.5, 0.5));
        assert_eq!(
            (skipped.values(), applied.values()),
            (vec![0.0], vec![-2.0])
        );
    }
}

#[test]
fn case_34_one_bad_micro_batch_leaves_the_moments_bitwise() {
    let device = Configured::take();
    let rows = |gradients: [f32; 3]| gradients.map(|x| Rows::dictated(&[x, 0.3 * x])).to_vec();
    let good = [rows([1.0, -2.0, 0.7]), rows([0.1, 0.2, 0.3])];
    let bad = rows([5.0, f32::NAN, 5.0]);
    let model = Dictated::<Ours>::new(&[1.0, 2.0]);
    let run = |epochs: Vec<Vec<Rows>>| {
        device.init(&f16_from(1024.0));
        let folder = folder();
        let (optim, log) = adam();
        let plan = Plan::new(&folder, epochs.len()).accumulating(3);
        let train = Epochs::new(epochs);
        plan.fit(model.clone(), optim, 0.1, train, Epochs::none());
        let steps = steps(&log);
        let moments = (1..=steps.len())
            .map(|epoch| saved_adam::<Dictated<Ours>>(folder.path(), epoch)["V1"]["optim"].clone());
        (steps, moments.collect::<Vec<_>>())
    };
    let [first, second] = good;
    let (with, moments) = run(vec![first.clone(), bad, second.clone()]);
    let (without, expected) = run(vec![first, second]);
    assert!(with[1].is_skipped() && with[1].scale() == 512.0);
    assert_eq!(with[1].params, with[0].params);
    assert_eq!(moments[1], moments[0]);
    assert_ne!(moments[2], moments[1]);
    // As if it had never been.
    assert_eq!(with[2].params, without[1].params);
    assert_eq!(moments[2], expected[1]);
}

#[test]
fn case_35_many_small_gradients_and_losses_add_up() {
    const COUNT: usize = 5000;

    let device = Configured::take();
    for (config, half) in [
        (f16_from(1024.0), DType::F16),
        (AmpConfig::bf16(), DType::BF16),
    ] {
        device.init(&config);
        let folder = folder();
        let (optim, log) = sgd::<Ours, Product<Ours>>();
        let model = Product::<Ours>::new(1.0);
        let one = Batch::new(&Rows::dictated(&[1.0]));
        assert_eq!(model.run(one).output.dtype(), half);
        let train = Epochs::all(vec![Rows::dictated(&[1.0]); COUNT]);
        let plan = Plan::new(&folder, 1).accumulating(COUNT);
        let (_, losses) = plan.fit(model, optim, 1.0, train, Epochs::none());
        let steps = steps(&log);
        assert_eq!((steps.len(), steps[0].values()), (1, vec![-4999.0]));
        assert_eq!(losses.train, [1.0; COUNT]);
    }
}

/// Clips each micro-batch by itself.
#[derive(Module, Debug)]
struct Clipped<B: Backend> {
    model: Dictated<B>,
    by_norm: bool,
}

impl<B: Backend> Clipped<B> {
    fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        self.model.run(batch)
    }
}

impl<B: AutodiffBackend> TrainStep for Clipped<B> {
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<RegressionOutput<B>> {
        let output = self.run(batch);
        let mut step = TrainOutput::new(self, output.loss.backward(), output);
        if self.by_norm {
            clip_grad_norm::<B, _>(&mut step.grads, self, 1.0);
        } else {
            clip_grad_value::<B, _>(&mut step.grads, self, 3.5);
        }
        step
    }
}
learns!(Clipped evaluates);

#[test]
fn clipping_a_sum_is_not_summing_what_was_clipped() {
    let device = Configured::take();
    let micro: [&[f32]; 2] = [&[3.0, 0.0, 1.0], &[0.0, 4.0, 3.0]];
    let norms = [10f32.sqrt(), 5.0];
    let of_sum = (9f32 + 16.0 + 16.0).sqrt();
    for (by_norm, clipping, sum_clipped, clipped_summed) in [
        (
            true,
            GradClipping::GlobalNorm(1.0),
            [3.0 / of_sum, 4.0 / of_sum, 4.0 / of_sum],
            [3.0 / norms[0], 0.8, 1.0 / norms[0] + 0.6],
        ),
        (
            false,
            GradClipping::Value(3.5),
            [3.0, 3.5, 3.5],
            [3.0, 3.5, 4.0],
        ),
    ] {
        device.init(&f16_from(65536.0));
        let fit = |clipping, each| {
            let folder = folder();
            let config = AmpOptimizerConfig::new().with_grad_clipping(clipping);
            let plan = Plan::new(&folder, 1).accumulating(2);
            let train = Epochs::dictated(&micro);
            let model = Dictated::<Ours>::new(&[0.0; 3]);
            let none = Epochs::none();
            if each {
                let optim = config.init(SgdConfig::new().init());
                let model = Clipped { model, by_norm };
                plan.fit::<Ours, _, _, _>(model, optim, 1.0, train, none)
                    .0
                    .model
                    .values()
            } else {
                let optim = config.init(SgdConfig::new().init());
                plan.fit::<Ours, _, _, _>(model, optim, 1.0, train, none)
                    .0
                    .values()
            }
        };
        for (actual, expected) in [
            (fit(Some(clipping), false), sum_clipped),
            (fit(None, true), clipped_summed),
        ] {
            for (actual, expected) in actual.iter().zip(expected) {
                assert!(
                    (actual + expected).abs() < 1e-5,
                    "{actual}, not -{expected}"
                );
            }
        }
    }
}
