//! Leaving one bad micro-batch out of a window.

use burn::module::AutodiffModule;
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::AutodiffBackend;
use burn::train::TrainStep;
use burn_amp::loss_scale::DynamicLossScaleConfig;
use burn_amp::{
    AmpConfig, AmpGradientsAccumulator, AmpOptimizer, AmpOptimizerConfig, BadMicroBatch, Counters,
    NonFinite, StepOutcome,
};

use crate::support::{
    Batch, Configured, Dictated, Ours, Plain, Product, Rows, SgdOf, f16_from, f16_with,
};

const BAD: f32 = f32::INFINITY;

/// A loop over windows of dictated gradients.
struct Loop<B: AutodiffBackend> {
    model: Dictated<B>,
    optim: AmpOptimizer<SgdOf<B, Dictated<B>>>,
    accumulator: AmpGradientsAccumulator<Dictated<B>>,
}

impl<B: AutodiffBackend> Loop<B> {
    fn new(bad: BadMicroBatch) -> Self {
        Self {
            model: Dictated::new(&[0.0]),
            optim: AmpOptimizerConfig::new().init(SgdConfig::new().init()),
            accumulator: AmpGradientsAccumulator::new(bad),
        }
    }

    fn window(&mut self, gradients: &[f32]) -> f32 {
        for x in gradients {
            let step = TrainStep::step(&self.model, Batch::new(&Rows::dictated(&[*x])));
            self.accumulator.accumulate(&self.model, step.grads);
        }
        let grads = self.accumulator.grads(&self.model);
        self.model = self.optim.step(1.0, self.model.clone(), grads);
        self.model.values()[0]
    }
}

#[test]
fn a_window_is_the_mean_over_the_good_micro_batches() {
    let device = Configured::take();
    for bad in [BAD, f32::NEG_INFINITY, f32::NAN] {
        device.init(&f16_from(1024.0));
        let mut training = Loop::<Ours>::new(BadMicroBatch::Drop);
        // (1 + 5 + 3) / 3, and 65 / 2.
        assert_eq!(training.window(&[1.0, bad, 5.0, 3.0]), -3.0);
        assert_eq!(training.optim.scale(), 512.0);
        assert_eq!(training.window(&[61.0, 4.0]), -35.5);
        assert_eq!(training.optim.counters().applied, 2);
        assert_eq!(training.optim.counters().skipped, 0);
    }
}

#[test]
fn what_was_dropped_is_named_and_counted() {
    let device = Configured::take();
    device.init(&f16_from(1024.0));
    let model = Dictated::<Ours>::new(&[0.0, 0.0]);
    let mut accumulator = AmpGradientsAccumulator::new(BadMicroBatch::Drop);
    let mut accumulate = |x: [f32; 2]| {
        let step = TrainStep::step(&model, Batch::new(&Rows::dictated(&x)));
        accumulator.accumulate(&model, step.grads)
    };
    assert!(accumulate([1.0, 2.0]).is_empty());
    let found = accumulate([1.0, f32::NAN]);
    assert_eq!(
        (found[0].path.as_str(), found[0].kind),
        ("w", NonFinite::NaN)
    );
    assert_eq!(accumulate([BAD, 0.0])[0].kind, NonFinite::Infinity);
    assert_eq!((accumulator.kept(), accumulator.dropped()), (1, 2));
    assert_eq!(accumulator.grads(&model).len(), 1);
    assert_eq!((accumulator.kept(), accumulator.dropped()), (0, 0));
}

#[test]
fn each_dropped_micro_batch_halves_the_scale_once() {
    let device = Configured::take();
    // A gradient of 200 overflows at every scale above 256: without a lower scale all would be dropped.
    device.init(&f16_with(
        DynamicLossScaleConfig::new().with_init_scale(1024.0),
    ));
    let model = Product::<Ours>::new(0.0);
    let mut optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
    let mut accumulator = AmpGradientsAccumulator::new(BadMicroBatch::Drop);
    let mut scales = Vec::new();
    for _micro_batch in 0..4 {
        let loss = model
            .run(Batch::new(&Rows::dictated(&[1.0]).weighted(200.0)))
            .loss;
        let grads = loss.backward();
        scales.push(grads.scale());
        accumulator.accumulate(&model, GradientsParams::from_grads(grads, &model));
    }
    assert_eq!(scales, [1024.0, 512.0, 256.0, 256.0]);
    assert_eq!((accumulator.kept(), accumulator.dropped()), (2, 2));
    let grads = accumulator.grads(&model);
    let model: Product<Ours> = optim.step(1.0, model, grads);
    assert_eq!(model.value(), -200.0);
    let scaler = optim.loss_scaler().unwrap();
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (256.0, 1));
    assert_eq!(
        (scaler.counters().applied, scaler.counters().skipped),
        (1, 2)
    );
}

#[test]
fn a_window_of_bad_ones_only_has_nothing_to_do_and_lowers_the_scale() {
    let device = Configured::take();
    device.init(&f16_from(1024.0));
    let mut training = Loop::<Ours>::new(BadMicroBatch::Drop);
    assert_eq!(training.window(&[BAD, BAD, BAD]), 0.0);
    assert_eq!(training.optim.outcome(), Some(&StepOutcome::NothingToDo));
    assert_eq!(training.optim.scale(), 128.0);
    assert_eq!(training.window(&[2.0, 4.0]), -3.0);
    let scaler = training.optim.loss_scaler().unwrap();
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (128.0, 1));
    assert_eq!(scaler.counters().skipped, 3);
}

#[test]
fn a_bad_one_at_the_end_is_part_of_the_steps_verdict() {
    let device = Configured::take();
    device.init(&f16_from(1024.0));
    let mut training = Loop::<Ours>::new(BadMicroBatch::Drop);
    assert_eq!(training.window(&[2.0, 4.0, BAD]), -3.0);
    assert!(training.optim.outcome().unwrap().is_applied());
    let scaler = training.optim.loss_scaler().unwrap();
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (512.0, 0));
}

#[test]
fn without_dropping_the_window_is_skipped_and_nothing_more_is_read() {
    let device = Configured::take();
    device.init(&f16_from(1024.0));
    let mut training = Loop::<Ours>::new(BadMicroBatch::SkipWindow);
    assert_eq!(training.window(&[1.0, BAD, 5.0]), 0.0);
    assert!(training.optim.outcome().unwrap().is_skipped());
    assert_eq!(training.optim.scale(), 512.0);
    assert_eq!(training.window(&[1.0, 2.0, 6.0]), -3.0);

    for (bad, reads) in [(BadMicroBatch::SkipWindow, 0), (BadMicroBatch::Drop, 1)] {
        let mut accumulator = AmpGradientsAccumulator::new(bad);
        let model = &training.model;
        let step = TrainStep::step(model, Batch::new(&Rows::dictated(&[1.0])));
        Counters::reset();
        accumulator.accumulate(model, step.grads);
        assert_eq!(Counters::get().reads, reads);
    }
}

#[test]
fn a_mean_is_that_of_the_plain_backend_bitwise() {
    fn mean<B: AutodiffBackend>() -> f32
    where
        Dictated<B>: AutodiffModule<B>,
    {
        Loop::<B>::new(BadMicroBatch::Drop).window(&[0.1, 0.7, 1.0 / 3.0])
    }
    let device = Configured::take();
    let plain = mean::<Plain>();
    assert_eq!(plain, -((0.1f32 + 0.7 + 1.0 / 3.0) / 3.0));
    for config in [f16_from(1024.0), AmpConfig::bf16(), AmpConfig::f32()] {
        device.init(&config);
        assert_eq!(mean::<Ours>(), plain);
    }
    // Also where no loss is scaled a bad one is left out.
    device.init(&AmpConfig::bf16());
    assert_eq!(
        Loop::<Ours>::new(BadMicroBatch::Drop).window(&[BAD, 2.0]),
        -2.0
    );
}
