//! Theme 8: evaluation, and switching precision during a run.

use burn::backend::Flex;
use burn::module::Module;
use burn::record::Recorder;
use burn::tensor::DType;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::{InferenceStep, RegressionOutput, TrainOutput, TrainStep};
use burn_amp::{Amp, AmpConfig, Autocast, Counters, autocast};

use crate::common::values;
use crate::support::{
    Batch, Configured, ConvNet, Epochs, FEATURES, FullRecorder, Mlp, Ours, PIXELS, Plain, Plan,
    Recorded, Rows, Step, adam, f16_from, folder, saved_adam, sgd, steps,
};

fn images(seed: u64) -> Rows {
    Rows::regression(16, PIXELS, seed)
}

/// A model of a checkpoint, as a later program loads it.
fn load<B: Backend, M: Module<B>>(folder: &tempfile::TempDir, epoch: usize, new: M) -> M {
    let path = folder.path().join(format!("checkpoint/model-{epoch}"));
    let record: M::Record =
        Recorder::<B>::load(&FullRecorder::new(), path, &Default::default()).unwrap();
    new.load_record(record)
}

#[test]
fn case_46_evaluation_after_skipped_steps_is_finite_and_the_same_in_f32() {
    let device = Configured::take();
    let folder = folder();
    device.init(&f16_from(1024.0));
    // The forward pass is fine, the backward pass overflows.
    let bad = [5, 25, 45];
    let rows = (0..50).map(|step| match bad.contains(&step) {
        true => images(2).weighted(2f32.powi(40)),
        false => images(2),
    });
    let rows: Vec<Rows> = rows.collect();
    let epochs: Vec<_> = rows.chunks(10).map(<[Rows]>::to_vec).collect();
    let (optim, log) = sgd::<Ours, ConvNet<Ours>>();
    let plan = Plan::new(&folder, 5);
    let valid = Epochs::all(vec![images(3)]);
    let model = ConvNet::<Ours>::new(1);
    let (model, losses) = plan.fit(model, optim, 0.05, Epochs::new(epochs), valid);

    let skipped: Vec<usize> = (0..50)
        .filter(|step| steps(&log)[*step].is_skipped())
        .collect();
    assert_eq!(skipped, bad);
    assert!(
        losses.valid.iter().all(|loss| loss.is_finite()),
        "{losses:?}"
    );

    let half = values(model.forward(Batch::new(&images(3)).x));
    let plain = load::<Flex, _>(&folder, 5, ConvNet::new(9));
    let single = values(plain.forward(Batch::<Flex>::new(&images(3)).x));
    let largest = single.iter().fold(0f64, |max, value| max.max(value.abs()));
    for (half, single) in half.iter().zip(&single) {
        assert!(half.is_finite() && single.is_finite());
        assert!((half - single).abs() <= 5e-3 * largest, "{half} {single}");
    }
}

/// Trains in the device's precision and is evaluated in f32.
#[derive(Module, Debug)]
struct F32Eval<B: Backend> {
    inner: Mlp<B>,
}

impl<B: AutodiffBackend> TrainStep for F32Eval<B> {
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> TrainOutput<RegressionOutput<B>> {
        let output = self.inner.run(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }
}

impl<B: Backend> InferenceStep for F32Eval<B> {
    type Input = Batch<B>;
    type Output = RegressionOutput<B>;

    fn step(&self, batch: Batch<B>) -> RegressionOutput<B> {
        Counters::reset();
        let output = autocast(&AmpConfig::f32(), || self.inner.run(batch)).unwrap();
        assert_eq!(Counters::get().casts, 0);
        output
    }
}

fn regressions(seeds: std::ops::Range<u64>) -> Vec<Rows> {
    seeds
        .map(|seed| Rows::regression(6, FEATURES, seed))
        .collect()
}

#[test]
fn case_47_evaluation_has_a_precision_of_its_own() {
    let device = Configured::take();
    let valid = regressions(50..53);
    let alone = |model: &Mlp<Amp<Flex>>| -> Vec<f64> {
        let losses = valid.iter().map(|rows| model.run(Batch::new(rows)).loss);
        losses.flat_map(values).collect()
    };
    let mut seen = Vec::new();
    for config in [AmpConfig::f32(), f16_from(1024.0), AmpConfig::bf16()] {
        device.init(&config);
        let folder = folder();
        let plan = Plan::new(&folder, 2);
        let train = Epochs::all(regressions(0..4));
        let (optim, _) = adam();
        let model = Mlp::<Ours>::new(7);
        let (_, losses) = plan.fit(model, optim, 0.01, train, Epochs::all(valid.clone()));
        // As a later program does it, on another thread and by the device's precision.
        let model = load::<Amp<Flex>, _>(&folder, 2, Mlp::new(8));
        let later = std::thread::scope(|threads| threads.spawn(|| alone(&model)).join().unwrap());
        assert_eq!(losses.valid[3..], later);
        // And by a scope's.
        device.init(&AmpConfig::f32());
        assert_eq!(Autocast::new(&config).unwrap().run(|| alone(&model)), later);
        seen.push(later);
    }
    assert!(seen[0] != seen[1] && seen[1] != seen[2]);

    // f16 in training, f32 in evaluation: bitwise that of the plain backend.
    device.init(&f16_from(1024.0));
    let folder = folder();
    let (optim, log) = adam();
    let train = Epochs::all(regressions(0..4));
    let plan = Plan::new(&folder, 1);
    let model = F32Eval {
        inner: Mlp::<Ours>::new(7),
    };
    let (_, losses) = plan.fit(model, optim, 0.01, train, Epochs::all(valid.clone()));
    assert_eq!(steps(&log)[0].scale(), 1024.0);
    let plain = load::<Flex, _>(&folder, 1, F32Eval { inner: Mlp::new(8) });
    let expected = valid
        .iter()
        .map(|rows| plain.inner.run(Batch::new(rows)).loss);
    assert_eq!(losses.valid, expected.flat_map(values).collect::<Vec<_>>());
}

#[test]
fn case_49_first_epochs_in_f32_then_in_half_and_back() {
    const EPOCHS: [(usize, DType); 3] = [(2, DType::F32), (4, DType::F16), (5, DType::F32)];

    let device = Configured::take();
    let folder = folder();
    let batches: Vec<Vec<Rows>> = (0..5).map(|i| regressions(5 * i..5 * i + 5)).collect();
    let plain = {
        let folder = crate::support::folder();
        let adam = burn::optim::AdamConfig::new().init();
        let (optim, log) = Recorded::new(adam);
        let model = Mlp::<Plain>::new(6);
        let train = Epochs::new(batches.clone());
        let plan = Plan::new(&folder, 5);
        plan.fit::<Plain, _, _, _>(model, optim, 0.01, train, Epochs::none());
        steps(&log)
    };
    let (optim, log) = adam();
    // A model of the first part, on which all parts go on.
    let model = Mlp::<Ours>::new(6);
    let mut resume = None;
    for (epochs, dtype) in EPOCHS {
        match dtype {
            DType::F16 => device.init(&f16_from(1024.0)),
            _ => device.init(&AmpConfig::f32()),
        }
        let mut plan = Plan::new(&folder, epochs);
        plan.resume = resume;
        let first = resume.map_or(1, |epoch| epoch + 1);
        let train = Epochs::from_epoch(batches.clone(), first);
        let (after, _) = plan.fit(model.clone(), optim.clone(), 0.01, train, Epochs::none());
        Counters::reset();
        let shown = after.forward(Batch::new(&batches[0][0]).x);
        assert_eq!(shown.dtype(), dtype);
        assert_eq!(Counters::get().casts == 0, dtype == DType::F32);
        resume = Some(epochs);
    }
    let steps = steps(&log);
    let params =
        |steps: &[Step]| -> Vec<_> { steps.iter().map(|step| step.params.clone()).collect() };
    assert_eq!(params(&steps[..10]), params(&plain[..10]));
    assert_ne!(steps[10].params, plain[10].params);
    assert!(steps.iter().all(|step| !step.is_skipped()));

    // Nothing of the optimizer was reset.
    let saved = saved_adam::<Mlp<Ours>>(folder.path(), 5);
    assert_eq!(saved["V1"]["counters"]["applied"], 25);
    let record = crate::support::load_adam::<Mlp<Ours>>(folder.path(), 5);
    let weight = record.optim[&model.up.weight.id].clone().into_state::<2>();
    assert_eq!(weight.momentum.time, 25);
}
