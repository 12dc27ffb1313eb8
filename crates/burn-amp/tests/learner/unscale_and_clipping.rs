//! Theme 4: unscaling, clipping, and gradients that are missing or half.

use burn::backend::flex::FlexDevice;
use burn::module::{AutodiffModule, Module, Param, ParamId};
use burn::nn::{Embedding, EmbeddingConfig};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{Adam, AdamConfig, GradientsParams, Optimizer, SgdConfig};
use burn::record::Recorder;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, ElementConversion, Tensor, TensorData};
use burn::train::{RegressionOutput, TrainOutput, TrainStep};
use burn_amp::{
    AmpOptimizer, AmpOptimizerConfig, GradClipping, NonFinite, StepOutcome, TrainingMonitor,
    grad_norm,
};

use crate::common::{tensor, values};
use crate::support::{
    Batch, Configured, Dictated, Epochs, FullRecorder, Ours, Plan, Product, Recorded, Rows,
    f16_from, folder, learns, output, sgd, steps,
};

/// The left-over micro-batch of an epoch is dropped: Burn's loop begins each with an empty window.
#[test]
fn case_25_a_window_does_not_cross_the_end_of_an_epoch() {
    let device = Configured::take();
    device.init(&f16_from(1024.0));
    let folder = folder();
    let (optim, log) = sgd::<Ours, Dictated<Ours>>();
    let train = Epochs::dictated(&[&[1.0], &[2.0], &[3.0], &[4.0], &[5.0]]);
    let plan = Plan::new(&folder, 2).accumulating(2);
    plan.fit(
        Dictated::<Ours>::new(&[0.0]),
        optim,
        1.0,
        train,
        Epochs::none(),
    );

    let steps = steps(&log);
    let values: Vec<f32> = steps.iter().flat_map(|step| step.values()).collect();
    assert_eq!(values, [-3.0, -10.0, -13.0, -20.0]);
    assert_eq!(steps[3].scaler.as_ref().unwrap().growth_tracker(), 4);
}

/// Looks at the norm before each step, and leaves out those of a large one.
#[derive(Module, Debug)]
struct Choosy<B: Backend> {
    inner: Dictated<B>,
}

impl<B: Backend> Choosy<B> {
    fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        self.inner.run(batch)
    }
}

impl<A: AutodiffBackend> TrainStep for Choosy<A> {
    type Input = Batch<A>;
    type Output = RegressionOutput<A>;

    fn step(&self, batch: Batch<A>) -> TrainOutput<RegressionOutput<A>> {
        let output = self.run(batch);
        TrainOutput::new(self, output.loss.backward(), output)
    }

    fn optimize<B, O>(self, optim: &mut O, lr: f64, grads: GradientsParams) -> Self
    where
        B: AutodiffBackend,
        O: Optimizer<Self, B>,
        Self: AutodiffModule<B>,
    {
        let norm = || {
            grad_norm::<B, Self>(&grads, &self)
                .into_scalar()
                .elem::<f32>()
        };
        // Reading them once more divides nothing.
        assert_eq!(norm().to_bits(), norm().to_bits());
        if norm() <= 5.0 {
            optim.step(lr, self, grads)
        } else {
            self
        }
    }
}
learns!(Choosy evaluates);

#[test]
fn case_25_a_step_that_is_discarded_leaves_the_scale_alone() {
    let device = Configured::take();
    device.init(&f16_from(1024.0));
    let folder = folder();
    let (optim, log) = sgd::<Ours, Choosy<Ours>>();
    let train = Epochs::dictated(&[&[1.0], &[7.0], &[f32::NAN], &[2.0]]);
    let model = Choosy {
        inner: Dictated::new(&[0.0]),
    };
    let (model, _) = Plan::new(&folder, 2).fit(model, optim, 1.0, train, Epochs::none());
    assert_eq!(model.inner.values(), [-6.0]);

    let steps = steps(&log);
    assert_eq!(steps.len(), 4);
    for (done, step) in (1..).zip(&steps) {
        let scaler = step.scaler.as_ref().unwrap();
        assert_eq!((scaler.scale(), scaler.growth_tracker()), (1024.0, done));
    }
}

/// Three weights, of which a batch uses those whose input is not zero.
#[derive(Module, Debug)]
struct Branches<B: Backend> {
    inner: Vec<Dictated<B>>,
}

impl<B: Backend> Branches<B> {
    fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let inputs: Vec<f32> = batch.x.to_data().iter().collect();
        let used = self
            .inner
            .iter()
            .zip(inputs)
            .filter(|(_, input)| *input != 0.0);
        let loss = used
            .map(|(branch, input)| branch.w.val().sum().mul_scalar(input))
            .reduce(|sum, term| sum + term)
            // No parameter takes part.
            .unwrap_or_else(|| Tensor::ones([1], &B::Device::default()).require_grad());
        let shown = loss.clone().reshape([1, 1]);
        output(loss, shown, batch)
    }
}
learns!(Branches);

#[test]
fn case_26_batches_without_gradients_are_no_overflow() {
    type Adapted = OptimizerAdaptor<Adam, Branches<Ours>, Ours>;

    let device = Configured::take();
    device.init(&f16_from(1024.0));
    let folder = folder();
    let adam: Adapted = AdamConfig::new().init();
    let (optim, log) = Recorded::new(AmpOptimizerConfig::new().init(adam));
    let none: &[f32] = &[0.0, 0.0, 0.0];
    let train = Epochs::dictated(&[none, &[1.0, 2.0, 0.0], none, &[0.5, 0.0, 0.0]]);
    let start = [1.0, 2.0, 3.0];
    let model = Branches::<Ours> {
        inner: start.map(|value| Dictated::new(&[value])).into(),
    };
    let unused = model.inner[2].w.id;
    Plan::new(&folder, 1).fit(model, optim, 0.5, train, Epochs::none());

    let steps = steps(&log);
    let [first, second, third, fourth] = steps.as_slice() else {
        panic!("{steps:?}")
    };
    for (step, values, tracker) in [(first, &start[..], 0), (third, &second.values()[..], 1)] {
        assert_eq!(step.outcome, Some(StepOutcome::NothingToDo));
        assert_eq!(step.values(), values);
        let scaler = step.scaler.as_ref().unwrap();
        assert_eq!((scaler.scale(), scaler.growth_tracker()), (1024.0, tracker));
    }
    assert_eq!(second.outcome, Some(StepOutcome::Applied));
    let moved = |step: &crate::support::Step, before: &[f32]| -> Vec<bool> {
        let values = step.values();
        values.iter().zip(before).map(|(a, b)| a != b).collect()
    };
    assert_eq!(moved(second, &start), [true, true, false]);
    assert_eq!(moved(fourth, &third.values()), [true, false, false]);

    let path = folder.path().join("checkpoint/optim-1");
    type Saved = <AmpOptimizer<Adapted> as Optimizer<Branches<Ours>, Ours>>::Record;
    let record: Saved = Recorder::<Ours>::load(&FullRecorder::new(), path, &FlexDevice).unwrap();
    assert_eq!(record.optim.len(), 2);
    assert!(!record.optim.contains_key(&unused));
    assert_eq!((record.counters.applied, record.counters.empty), (2, 2));
}

/// A weight stored in half, as a base model that was loaded so.
fn half_product<B: AutodiffBackend>(value: f64) -> Product<B> {
    let w = tensor::<B, 2>(&[value], [1, 1], DType::F16, &B::Device::default());
    Product {
        w: Param::initialized(ParamId::new(), w.require_grad()),
    }
}

/// A loss whose gradient is 1e-6: unscaled in f16 it would be 1.0133e-6.
fn small() -> Epochs {
    Epochs::all(vec![Rows::dictated(&[1.0]).weighted(1e-6); 2])
}

fn assert_close(value: f32, expected: f32, relative: f32) {
    let error = (value - expected).abs();
    assert!(
        error <= relative * expected.abs(),
        "{value}, not {expected}"
    );
}

#[test]
fn case_28_half_parameters_get_f32_masters_also_over_a_checkpoint() {
    let device = Configured::take();
    let folder = folder();
    let model = half_product::<Ours>(0.0);
    let run = |plan: Plan| {
        device.init(&f16_from(1024.0));
        let (optim, log) = sgd::<Ours, Product<Ours>>();
        let (model, _) = plan.fit(model.clone(), optim, 1.0, small(), Epochs::none());
        assert_eq!(model.w.val().dtype(), DType::F32);
        (model.value(), steps(&log))
    };
    let (whole, expected) = run(Plan::new(&folder, 3));
    assert_close(whole, -6e-6, 1e-3);
    assert!(expected.iter().all(|step| !step.is_skipped()));
    let (resumed, actual) = run(Plan::new(&folder, 3).from(1));
    assert_eq!(resumed, whole);
    assert_eq!(actual, expected[2..]);
}

/// A frozen base, and what is learned beside it.
#[derive(Module, Debug)]
struct Adapted<B: Backend> {
    base: Product<B>,
    adapter: Product<B>,
}

impl<B: Backend> Adapted<B> {
    fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let sum = self.base.w.val() + self.adapter.w.val();
        let y = batch.x.clone().matmul(sum);
        output(y.clone().sum(), y, batch)
    }
}
learns!(Adapted);

#[test]
fn case_28_f32_adapters_on_a_frozen_half_base() {
    let device = Configured::take();
    device.init(&f16_from(1024.0));
    let folder = folder();
    let model = Adapted {
        base: half_product::<Ours>(0.5).no_grad(),
        adapter: Product::new(0.0),
    };
    let optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
    let plan = Plan::new(&folder, 3);
    let (model, _) = plan.fit::<Ours, _, _, _>(model, optim, 1.0, small(), Epochs::none());
    assert_eq!(model.base.w.val().dtype(), DType::F16);
    assert_eq!(model.base.value(), 0.5);
    assert_close(model.adapter.value(), -6e-6, 1e-3);
}

#[test]
fn case_29_a_huge_norm_is_clipped_and_an_infinite_one_skipped() {
    let device = Configured::take();
    device.init(&f16_from(1024.0));
    let folder = folder();
    let sgd = SgdConfig::new().init::<Ours, Dictated<Ours>>();
    let clipping = Some(GradClipping::GlobalNorm(1.0));
    let config = AmpOptimizerConfig::new().with_grad_clipping(clipping);
    let (optim, log) = Recorded::new(config.init(sgd));
    let mut bad = [0.01; 100];
    bad[7] = f32::INFINITY;
    let train = Epochs::dictated(&[&[1e20; 100], &bad, &[0.01; 100]]);
    let model = Dictated::<Ours>::new(&[0.0; 100]);
    Plan::new(&folder, 1).fit(model, optim, 1.0, train, Epochs::none());

    let steps = steps(&log);
    for (step, expected) in steps.iter().zip([-0.1, -0.1, -0.11]) {
        for value in step.values() {
            assert_close(value, expected, 1e-4);
        }
    }
    assert_eq!(steps[0].params, steps[1].params);
    let Some(StepOutcome::Skipped { gradients, scale }) = &steps[1].outcome else {
        panic!("{:?}", steps[1].outcome)
    };
    assert_eq!(gradients[0].kind, NonFinite::Infinity);
    assert_eq!(scale.unwrap().current, 512.0);
}

/// A branch that overflows in half, multiplied by zero.
#[derive(Module, Debug)]
struct Unseen<B: Backend> {
    inner: Product<B>,
}

impl<B: Backend> Unseen<B> {
    fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let y = batch.x.clone().matmul(self.inner.w.val());
        let square = y.clone() * y.clone();
        let unseen = (square.clone() * square).mul_scalar(0.0);
        output(y.clone().sum() + unseen.sum(), y, batch)
    }
}
learns!(Unseen);

#[test]
fn case_29_a_branch_that_overflows_unseen_is_counted() {
    let device = Configured::take();
    device.init(&f16_from(65536.0));
    let folder = folder();
    let (optim, log) = sgd::<Ours, Unseen<Ours>>();
    let train = Epochs::all(vec![Rows::dictated(&[1.0]); 50]);
    let model = Unseen {
        inner: Product::new(300.0),
    };
    let (model, _) = Plan::new(&folder, 2).fit(model, optim, 1.0, train, Epochs::none());
    assert_eq!(model.inner.value(), 300.0);
    assert!(steps(&log).iter().all(|step| step.is_skipped()));
    // Who does not hold the optimizer sees it too.
    let monitor = TrainingMonitor::of(&FlexDevice).unwrap();
    assert_eq!(
        (monitor.counters().applied, monitor.counters().skipped),
        (0, 100)
    );
    assert_eq!(monitor.scale(), 1.0 / 16384.0);
}

#[derive(Module, Debug)]
struct Lookup<B: Backend> {
    inner: Embedding<B>,
}

impl<B: Backend> Lookup<B> {
    fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let rows = self.inner.forward(batch.x.clone().int());
        assert_eq!(rows.dtype(), DType::F16);
        let sum = rows.sum();
        let shown = sum.clone().reshape([1, 1]);
        output(sum, shown, batch)
    }
}
learns!(Lookup);

#[test]
fn case_31_gradients_of_one_embedding_row_meet_in_f32() {
    let device = Configured::take();
    device.init(&f16_from(1024.0));
    let folder = folder();
    let mut embedding = EmbeddingConfig::new(3, 2).init::<Ours>(&FlexDevice);
    embedding.weight = Param::from_data(TensorData::zeros::<f32, _>([3, 2]), &FlexDevice);
    let (optim, log) = sgd::<Ours, Lookup<Ours>>();
    // 20000 each, scaled; four of them exceed 65504.
    let rows = Rows::dictated(&[1.0; 4]).weighted(20000.0 / 1024.0);
    let train = Epochs::all(vec![rows; 2]);
    let plan = Plan::new(&folder, 1);
    let (model, _) = plan.fit(
        Lookup { inner: embedding },
        optim,
        1.0,
        train,
        Epochs::none(),
    );
    assert!(steps(&log).iter().all(|step| !step.is_skipped()));
    let expected = [0.0, 0.0, -156.25, -156.25, 0.0, 0.0];
    assert_eq!(values(model.inner.weight.val()), expected);
}
