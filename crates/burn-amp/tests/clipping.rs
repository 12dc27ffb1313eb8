//! Clipping over all parameters at once, and what a step tells about itself.

use std::sync::Mutex;

use burn::backend::Flex;
use burn::module::{Module, Param};
use burn::optim::{GradientsAccumulator, GradientsParams, Optimizer, SgdConfig};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_amp::{
    Amp, AmpConfig, AmpOptimizerConfig, Autocast, Autodiff, GradClipping, TrainingMonitor,
    clip_grad_norm, clip_grad_value, grad_norm,
};

type B = Autodiff<Amp<Flex>>;
type Inner = <B as AutodiffBackend>::InnerBackend;

/// Held by tests whose steps tell the device's monitor a norm.
static MONITOR: Mutex<()> = Mutex::new(());

/// A matrix and a vector whose gradients are what they are multiplied with.
#[derive(Module, Debug)]
struct Pair<B: Backend> {
    matrix: Param<Tensor<B, 2>>,
    vector: Param<Tensor<B, 1>>,
}

fn pair() -> Pair<B> {
    let device = Default::default();
    Pair {
        matrix: Param::from_tensor(Tensor::zeros([2, 2], &device)),
        vector: Param::from_tensor(Tensor::zeros([3], &device)),
    }
}

fn grads_of(model: &Pair<B>, matrix: [f32; 4], vector: [f32; 3]) -> GradientsParams {
    let device = Default::default();
    let mut grads = GradientsParams::new();
    let matrix = Tensor::<Inner, 1>::from_floats(matrix, &device).reshape([2, 2]);
    grads.register::<Inner, 2>(model.matrix.id, matrix);
    grads.register::<Inner, 1>(model.vector.id, Tensor::from_floats(vector, &device));
    grads
}

fn values(model: &Pair<B>, grads: &GradientsParams) -> Vec<f32> {
    let matrix = grads.get::<Inner, 2>(model.matrix.id).unwrap().into_data();
    let vector = grads.get::<Inner, 1>(model.vector.id).unwrap().into_data();
    matrix.iter().chain(vector.iter()).collect()
}

fn norm_of(values: &[f32]) -> f64 {
    let squares = values.iter().map(|value| f64::from(*value).powi(2));
    squares.sum::<f64>().sqrt()
}

#[test]
fn norm_is_that_over_all_parameters() {
    let model = pair();
    for scale in [1e-12, 1.0, 1e20, 1e37] {
        let matrix = [1.0, -2.0, 0.5, 0.0].map(|value| value * scale);
        let vector = [3.0, -0.25, 1.5].map(|value| value * scale);
        let mut grads = grads_of(&model, matrix, vector);
        let all: Vec<f32> = matrix.into_iter().chain(vector).collect();
        let expected = norm_of(&all);
        for norm in [
            grad_norm::<B, _>(&grads, &model),
            clip_grad_norm::<B, _>(&mut grads, &model, 0.5),
        ] {
            let norm = f64::from(norm.into_scalar());
            assert!(
                (norm / expected - 1.0).abs() < 1e-6,
                "{norm}, not {expected}"
            );
        }
        let factor = (0.5 / (expected + 1e-6)).min(1.0);
        for (value, clipped) in all.iter().zip(values(&model, &grads)) {
            let expected = f64::from(*value) * factor;
            let error = (f64::from(clipped) - expected).abs();
            assert!(error <= 1e-6 * expected.abs(), "{clipped}, not {expected}");
        }
    }
}

#[test]
fn what_is_small_enough_stays_bitwise() {
    let model = pair();
    let mut grads = grads_of(&model, [0.1, 0.2, 0.3, 1e-30], [0.4, -0.5, 1e-8]);
    let before = values(&model, &grads);
    clip_grad_norm::<B, _>(&mut grads, &model, 1.0);
    assert_eq!(before, values(&model, &grads));
}

#[test]
fn values_are_clamped() {
    let model = pair();
    let mut grads = grads_of(&model, [0.1, -2.0, 0.5, 0.0], [3.0, -0.25, 1e30]);
    clip_grad_value::<B, _>(&mut grads, &model, 0.5);
    assert_eq!(
        values(&model, &grads),
        [0.1, -0.5, 0.5, 0.0, 0.5, -0.25, 0.5]
    );
}

#[test]
fn no_gradients_have_no_norm() {
    let model = pair();
    let mut grads = GradientsParams::new();
    let norm = clip_grad_norm::<B, _>(&mut grads, &model, 1.0);
    assert_eq!(norm.into_scalar(), 0.0);
    assert!(grads.is_empty());
}

/// In f16, with a loss scale: the optimizer clips true gradients.
#[test]
fn the_optimizer_clips_before_its_step() {
    let _alone = MONITOR.lock();
    let device = Default::default();
    let amp = Autocast::new(&AmpConfig::f16()).unwrap();
    let step = |clipping| {
        let model = pair();
        let mut optim = AmpOptimizerConfig::new()
            .with_grad_clipping(clipping)
            .init(SgdConfig::new().init::<B, Pair<B>>());
        amp.run(|| {
            let matrix = Tensor::<B, 2>::from_floats([[3.0, 0.0], [0.0, 0.0]], &device);
            let vector = Tensor::<B, 1>::from_floats([0.0, 4.0, 0.0], &device);
            let loss = (model.matrix.val() * matrix).sum() + (model.vector.val() * vector).sum();
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            let model = optim.step(1.0, model, grads);
            let matrix = model.matrix.val().into_data();
            let vector = model.vector.val().into_data();
            let all: Vec<f32> = matrix.iter().chain(vector.iter()).collect();
            [-all[0], -all[5]]
        })
    };
    assert_eq!(step(None), [3.0, 4.0]);
    let [a, b] = step(Some(GradClipping::GlobalNorm(1.0)));
    assert!((a - 0.6).abs() < 1e-6 && (b - 0.8).abs() < 1e-6, "{a} {b}");
    assert_eq!(step(Some(GradClipping::Value(3.5))), [3.0, 3.5]);
    assert_eq!(step(Some(GradClipping::GlobalNorm(6.0))), [3.0, 4.0]);
}

/// Clipping what was accumulated is not accumulating what was clipped.
#[test]
fn both_orders_with_accumulation() {
    let model = pair();
    let micro = || {
        [
            grads_of(&model, [3.0, 0.0, 0.0, 0.0], [0.0; 3]),
            grads_of(&model, [0.0; 4], [0.0, 4.0, 0.0]),
        ]
    };
    let mut accumulator = GradientsAccumulator::new();
    for grads in micro() {
        accumulator.accumulate::<B>(&model, grads);
    }
    let mut whole = accumulator.grads();
    clip_grad_norm::<B, _>(&mut whole, &model, 1.0);
    assert!((norm_of(&values(&model, &whole)) - 1.0).abs() < 1e-5);

    for mut grads in micro() {
        clip_grad_norm::<B, _>(&mut grads, &model, 1.0);
        accumulator.accumulate::<B>(&model, grads);
    }
    let parts = accumulator.grads();
    assert!((norm_of(&values(&model, &parts)) - 2f64.sqrt()).abs() < 1e-5);
}

#[test]
#[should_panic(expected = "the bound of GlobalNorm(-1.0) has to be positive and finite")]
fn a_bound_has_to_be_positive() {
    let clipping = Some(GradClipping::GlobalNorm(-1.0));
    let _ = AmpOptimizerConfig::new()
        .with_grad_clipping(clipping)
        .init(());
}

#[test]
#[should_panic(expected = "the bound of Value(NaN) has to be positive and finite")]
fn a_bound_has_to_be_a_number() {
    let model = pair();
    clip_grad_value::<B, _>(&mut GradientsParams::new(), &model, f32::NAN);
}

#[test]
fn settings_survive_a_file() {
    let config = AmpOptimizerConfig::new()
        .with_grad_clipping(Some(GradClipping::GlobalNorm(0.5)))
        .with_gradient_norm(true);
    let text = serde_json::to_string(&config).unwrap();
    assert_eq!(
        serde_json::from_str::<AmpOptimizerConfig>(&text).unwrap(),
        config
    );
    assert_eq!(
        serde_json::from_str::<AmpOptimizerConfig>("{}").unwrap(),
        AmpOptimizerConfig::new()
    );
}

#[test]
fn the_monitor_knows_the_last_norm_and_the_scale() {
    let _alone = MONITOR.lock();
    let device = Default::default();
    let amp = Autocast::new(&AmpConfig::f16()).unwrap();
    let model = pair();
    let mut optim = AmpOptimizerConfig::new()
        .with_gradient_norm(true)
        .init(SgdConfig::new().init::<B, Pair<B>>());
    let monitor = amp.run(|| {
        let vector = Tensor::<B, 1>::from_floats([30.0, 40.0, 0.0], &device);
        let loss = (model.vector.val() * vector).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let _ = optim.step(1.0, model, grads);
        TrainingMonitor::of(&device).unwrap()
    });
    assert_eq!(monitor.gradient_norm(), Some(50.0));
    assert_eq!(monitor.counters(), optim.counters());
    assert_eq!(monitor.scale(), 65536.0);
}
