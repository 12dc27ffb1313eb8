//! One step on the gradients of two devices.

use burn::module::{Module, Param, ParamId};
use burn::optim::{AdamConfig, GradientsParams, MultiGradientsParams, Optimizer, SgdConfig};
use burn::prelude::DeviceOps as _;
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use burn_amp::loss_scale::{DynamicLossScaleConfig, LossScaleConfig};
use burn_amp::{
    AmpConfig, AmpError, AmpOptimizer, AmpOptimizerConfig, GradClipping, Precision, Reduction,
    StepCounters, TrainingMonitor, autocast,
};

use crate::backend::Worker;
use crate::common::parameter_bits;
use crate::net::Training;

/// Parameters whose gradients are the factors of the loss.
#[derive(Module, Debug)]
struct Vectors<B: Backend> {
    w: Vec<Param<Tensor<B, 1>>>,
}

const WIDTH: usize = 3;

impl<B: Backend> Vectors<B> {
    /// Three of them, of which Burn gives each device of two at least one: by the parity of the id.
    fn new(device: &B::Device) -> Self {
        let w = [(2, 1.0f32), (3, -2.0), (4, 3.0)].map(|(id, value)| {
            let tensor = Tensor::full([WIDTH], value, device).require_grad();
            Param::initialized(ParamId::from(id), tensor)
        });
        Self { w: w.into() }
    }
}

impl Vectors<Training> {
    /// A backward pass on a device, with true gradients of `factor` plus the index, and its loss scale.
    fn differentiate(&self, device: &Worker, factor: f32) -> (GradientsParams, f32) {
        let local = self.clone().fork(device);
        let terms = local.w.iter().enumerate().map(|(index, w)| {
            let factor = factor + index as f32;
            w.val().mul_scalar(factor).sum()
        });
        let loss = terms.reduce(|sum, term| sum + term).unwrap();
        let grads = loss.backward();
        let scale = grads.scale();
        (GradientsParams::from_grads(grads, &local), scale)
    }

    fn multi(&self, devices: &[Worker; 2], factors: [f32; 2]) -> MultiGradientsParams {
        let parts = devices.iter().zip(factors);
        let grads = parts.map(|(device, factor)| {
            let (grads, _) = self.differentiate(device, factor);
            (grads, device.to_id())
        });
        MultiGradientsParams {
            grads: grads.collect(),
        }
    }
}

/// f16 with a scale that doubles at every finite step.
fn eager_f16() -> AmpConfig {
    AmpConfig::f16().with_loss_scale(LossScaleConfig::Dynamic(
        DynamicLossScaleConfig::new()
            .with_init_scale(1024.0)
            .with_growth_interval(1),
    ))
}

fn adam() -> AmpOptimizer<impl Optimizer<Vectors<Training>, Training>> {
    AmpOptimizerConfig::new().init(AdamConfig::new().init())
}

/// The scales that the next backward passes on the devices begin with.
fn scales(model: &Vectors<Training>, devices: &[Worker; 2]) -> [f32; 2] {
    [0, 1].map(|index| model.differentiate(&devices[index], 1.0).1)
}

/// Back on one device, and its bits.
fn bits(model: &Vectors<Training>, device: &Worker) -> Vec<Vec<u32>> {
    parameter_bits(&model.clone().fork(device))
}

#[test]
fn should_step_as_one_device_does_on_the_sum() {
    let devices = [Worker(1), Worker(2)];
    let alone = Worker(3);
    eager_f16().init_devices(&devices).unwrap();
    eager_f16().init(&alone).unwrap();

    let (mut optim, mut optim_alone) = (adam(), adam());
    let mut model = Vectors::<Training>::new(&devices[0]);
    let mut model_alone = model.clone().fork(&alone);
    for step in 0..4 {
        // The sums are exact: 2.5 + 0.25 and so on.
        let factors = [2.5 + step as f32, 0.25];
        let grads = model.multi(&devices, factors);
        model = optim.step_multi(0.1, model, grads);

        let mut sum = GradientsParams::new();
        for (index, w) in model_alone.w.iter().enumerate() {
            let grad = factors[0] + factors[1] + 2.0 * index as f32;
            let grad = Tensor::full([WIDTH], grad, &alone);
            sum.register::<burn_amp::Amp<crate::backend::Workers>, 1>(w.id, grad);
        }
        model_alone = optim_alone.step(0.1, model_alone, sum);

        assert_eq!(bits(&model, &alone), parameter_bits(&model_alone));
        let scale = 1024.0 * 2f32.powi(step + 1);
        assert_eq!(scales(&model, &devices), [scale; 2], "moved once");
        assert_eq!(optim.scale(), optim_alone.scale());
    }
    assert_eq!(optim.counters().applied, 4);
    let homes: std::collections::HashSet<u16> =
        model.w.iter().map(|w| w.val().device().0).collect();
    assert_eq!(homes.len(), 2, "each device steps on a part of the model");
}

#[test]
fn should_skip_everywhere_when_one_device_overflows() {
    for worker in [0, 1] {
        let devices = [Worker(4 + 2 * worker), Worker(5 + 2 * worker)];
        eager_f16().init_devices(&devices).unwrap();
        let mut optim = adam();
        let model = Vectors::<Training>::new(&devices[0]);
        let grads = model.multi(&devices, [1.0, 1.0]);
        let model = optim.step_multi(0.1, model, grads);
        let before = bits(&model, &devices[0]);
        assert_eq!(scales(&model, &devices), [2048.0; 2]);

        let mut factors = [1.0; 2];
        factors[usize::from(worker)] = 1e36; // Times 2048 it is infinite.
        let grads = model.multi(&devices, factors);
        let model = optim.step_multi(0.1, model, grads);

        assert!(optim.outcome().unwrap().is_skipped());
        assert_eq!(bits(&model, &devices[0]), before);
        assert_eq!(scales(&model, &devices), [1024.0; 2]);
        let monitor = TrainingMonitor::of(&model.devices()[0]).unwrap();
        let counters = StepCounters {
            applied: 1,
            skipped: 1,
            empty: 0,
        };
        assert_eq!(monitor.counters(), counters);
    }
}

#[test]
fn should_see_an_overflow_of_the_sum() {
    let devices = [Worker(8), Worker(9)];
    let mut optim = AmpOptimizerConfig::new()
        .with_gradient_check(burn_amp::GradientCheck::Always)
        .init(SgdConfig::new().init());
    let model = Vectors::<Training>::new(&devices[0]);
    let before = parameter_bits(&model);
    let grads = model.multi(&devices, [3e38, 3e38]);
    let model = optim.step_multi(0.1, model, grads);
    assert!(optim.outcome().unwrap().is_skipped());
    assert_eq!(parameter_bits(&model), before);
}

/// As the learner's strategy that optimizes on the main device: the optimizer sees nothing of the others.
#[test]
fn should_move_the_scale_of_a_device_whose_gradients_were_sent_away() {
    let step = |devices: &[Worker; 2]| {
        let mut optim = adam();
        let model = Vectors::<Training>::new(&devices[0]);
        let (grads, _) = model.differentiate(&devices[1], f32::MAX);
        let grads = grads.to_device(&devices[0], &model);
        let model = optim.step(0.1, model, grads);
        assert!(optim.outcome().unwrap().is_skipped());
        scales(&model, devices)
    };
    let together = [Worker(10), Worker(11)];
    eager_f16().init_devices(&together).unwrap();
    assert_eq!(step(&together), [512.0, 512.0]);

    let each = [Worker(12), Worker(13)];
    for device in &each {
        eager_f16().init(device).unwrap();
    }
    assert_eq!(step(&each), [512.0, 1024.0]);

    // One that is configured by itself again has left, and begins anew.
    eager_f16().init(&together[1]).unwrap();
    assert_eq!(step(&together), [256.0, 1024.0]);
}

#[test]
fn should_clip_by_the_norm_of_the_sum() {
    let devices = [Worker(14), Worker(15)];
    let mut optim = AmpOptimizerConfig::new()
        .with_grad_clipping(Some(GradClipping::GlobalNorm(1.0)))
        .init(SgdConfig::new().init());
    let model = Vectors::<Training>::new(&devices[0]);
    let grads = model.multi(&devices, [5.0, -4.0]);
    let model = optim.step_multi(1.0, model, grads);

    // The sums are 1, 3 and 5, three times each.
    let norm = (3.0f32 * (1.0 + 9.0 + 25.0)).sqrt();
    let monitor = TrainingMonitor::of(&model.devices()[0]).unwrap();
    let measured = monitor.gradient_norm().unwrap();
    assert!((measured - norm).abs() < 1e-5, "{measured}");
    for (index, old) in [1.0f32, -2.0, 3.0].into_iter().enumerate() {
        let value = crate::common::values(model.w[index].val())[0] as f32;
        let expected = old - (1.0 + 2.0 * index as f32) / norm;
        assert!((value - expected).abs() < 1e-5, "{value} for {expected}");
    }
}

#[test]
fn should_send_gradients_in_the_type_that_is_configured() {
    // What is summed: 1 + 2^-10, which f16 holds and bf16 does not, at home and sent.
    let odd = 1.0 + 2f32.powi(-10);
    for (index, (reduction, sum)) in [
        (Reduction::F32, 2.0 * odd),
        (Reduction::F16, 2.0 * odd),
        (Reduction::Bf16, odd + 1.0),
    ]
    .into_iter()
    .enumerate()
    {
        let first = 16 + 2 * index as u16;
        let devices = [Worker(first), Worker(first + 1)];
        let config = AmpConfig::f16().with_reduction(reduction);
        config.init_devices(&devices).unwrap();
        let mut optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
        let mut model = Vectors::<Training>::new(&devices[0]);
        model.w.truncate(1);
        let grads = model.multi(&devices, [odd, odd]);
        let model = optim.step_multi(1.0, model, grads);
        let values = crate::common::values(model.w[0].val());
        assert_eq!(values, [f64::from(1.0 - sum); WIDTH], "{reduction:?}");
    }
}

#[test]
fn should_overflow_where_a_gradient_is_sent_in_f16() {
    let devices = [Worker(24), Worker(25)];
    let config = AmpConfig::f16().with_reduction(Reduction::F16);
    config.init_devices(&devices).unwrap();
    let mut optim = adam();
    let model = Vectors::<Training>::new(&devices[0]);
    let grads = model.multi(&devices, [1e5, 1e5]);
    optim.step_multi(0.1, model, grads);
    assert!(optim.outcome().unwrap().is_skipped());
}

#[test]
fn should_start_devices_from_the_scale_of_the_first() {
    let devices = [Worker(26), Worker(27)];
    eager_f16().init(&devices[0]).unwrap();
    let mut optim = adam();
    let model = Vectors::<Training>::new(&devices[0]);
    let (grads, _) = model.differentiate(&devices[0], 1.0);
    let model = optim.step(0.1, model, grads);

    // A run begins where the record of the first device's left off. A device may be named twice.
    let record = optim.to_record();
    let mut optim = optim.load_record(record);
    let named = [devices[0], devices[1], devices[1]];
    assert_eq!(eager_f16().init_devices(&named).unwrap(), Precision::F16);
    assert_eq!(scales(&model, &devices), [2048.0; 2]);

    // A record is loaded into all.
    let record = optim.to_record();
    let (grads, _) = model.differentiate(&devices[0], 1.0);
    let model = optim.step(0.1, model, grads);
    assert_eq!(scales(&model, &devices), [4096.0; 2]);
    let mut optim = optim.load_record(record);
    assert_eq!(scales(&model, &devices), [2048.0; 2]);

    // A switch, of one after the other, leaves them together.
    for device in &devices {
        eager_f16().switch(device).unwrap();
    }
    let (grads, _) = model.differentiate(&devices[1], f32::MAX);
    let grads = grads.to_device(&devices[0], &model);
    let model = optim.step(0.1, model, grads);
    assert_eq!(scales(&model, &devices), [1024.0; 2]);
}

/// Replicas of a module share running statistics, which may be on the device of another.
#[test]
fn should_not_report_to_the_device_of_what_is_not_trained() {
    let devices = [Worker(30), Worker(31)];
    for device in &devices {
        eager_f16().init(device).unwrap();
    }
    let mut model = Vectors::<Training>::new(&devices[0]);
    let (grads, _) = model.differentiate(&devices[0], f32::MAX);
    let elsewhere = Tensor::full([WIDTH], 5.0, &devices[1]);
    model.w[2] = Param::from_tensor(elsewhere).set_require_grad(false);
    let mut optim = adam();
    let model = optim.step(0.1, model, grads);
    assert!(optim.outcome().unwrap().is_skipped());
    assert_eq!(scales(&model, &devices), [512.0, 1024.0]);
}

/// A program that never calls `init`: a record has come first.
#[test]
fn should_scale_in_a_scope_after_a_record_was_loaded() {
    let [before, after] = [Worker(32), Worker(33)];
    eager_f16().init(&before).unwrap();
    let mut optim = adam();
    let model = Vectors::<Training>::new(&before);
    let (grads, _) = model.differentiate(&before, f32::MAX);
    optim.step(0.1, model, grads);
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
    let bytes = Recorder::<Training>::record(&recorder, optim.to_record(), ()).unwrap();

    let record = Recorder::<Training>::load(&recorder, bytes, &after).unwrap();
    let mut optim = adam().load_record(record);
    autocast(&eager_f16(), || {
        let model = Vectors::<Training>::new(&after);
        // An op finds the scope's settings.
        let _ = model.w[0].val().exp();
        let (grads, scale) = model.differentiate(&after, f32::MAX);
        assert_eq!(scale, 512.0);
        optim.step(0.1, model, grads);
    })
    .unwrap();
    assert!(optim.outcome().unwrap().is_skipped());
    assert_eq!(optim.counters().skipped, 2);
}

#[test]
fn should_refuse_an_empty_list_of_devices() {
    let error = AmpConfig::f16().init_devices::<Worker>(&[]).unwrap_err();
    assert!(matches!(error, AmpError::NoDevice), "{error}");
}
