//! Theme 6: checkpoints that the `Learner` writes and goes on from.

use burn::backend::flex::FlexDevice;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::module::Module;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{Adam, AdamConfig, Optimizer};
use burn::record::{FullPrecisionSettings, Record, Recorder};
use burn::tensor::backend::Backend;
use burn::train::RegressionOutput;
use burn_amp::loss_scale::DynamicLossScaleConfig;
use burn_amp::{AmpConfig, AmpOptimizer, AmpOptimizerRecord};

use crate::common::parameter_bits;
use crate::support::{
    Batch, Configured, Dictated, Epochs, FEATURES, FullRecorder, Losses, Mlp, Ours, Plain, Plan,
    Product, Recorded, Rows, SgdOf, Step, adam, f16_from, f16_with, folder, learns, load_adam,
    output, saved_adam, sgd, steps,
};

/// A regression, and one weight whose gradient overflows f16 at every scale above 256.
#[derive(Module, Debug)]
struct Steep<B: Backend> {
    mlp: Mlp<B>,
    steep: Product<B>,
}

impl<B: Backend> Steep<B> {
    fn new(seed: u64) -> Self {
        Self {
            mlp: Mlp::new(seed),
            steep: Product::new(0.0),
        }
    }

    fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let one = Batch::new(&Rows::dictated(&[1.0]).weighted(200.0));
        let regression = self.mlp.run(batch.clone());
        output(
            regression.loss + self.steep.run(one).loss,
            regression.output,
            batch,
        )
    }
}
learns!(Steep);

const EPOCHS: usize = 4;
const STEPS: usize = 5;

fn batches() -> Vec<Vec<Rows>> {
    (0..(EPOCHS * STEPS) as u64)
        .map(|seed| Rows::regression(6, FEATURES, seed))
        .collect::<Vec<_>>()
        .chunks(STEPS)
        .map(<[Rows]>::to_vec)
        .collect()
}

#[test]
fn case_37_a_resumed_run_equals_the_uninterrupted_one() {
    let device = Configured::take();
    let folder = folder();
    let config = f16_with(DynamicLossScaleConfig::new().with_growth_interval(4));
    let run = |plan: Plan, model: Steep<Ours>| -> (Vec<Step>, Losses) {
        device.init(&config);
        let (optim, log) = adam();
        let schedule = CosineAnnealingLrSchedulerConfig::new(0.01, EPOCHS * STEPS);
        let schedule = schedule.init().unwrap();
        let first = plan.resume.map_or(1, |epoch| epoch + 1);
        let train = Epochs::from_epoch(batches(), first);
        let valid = Epochs::all(vec![Rows::regression(8, FEATURES, 99)]);
        let (_, losses) = plan.fit(model, optim, schedule, train, valid);
        (steps(&log), losses)
    };
    let (expected, losses) = run(Plan::new(&folder, EPOCHS), Steep::new(1));
    let scales: Vec<f32> = expected.iter().map(Step::scale).collect();
    assert_eq!(
        scales[..9],
        [
            32768.0, 16384.0, 8192.0, 4096.0, 2048.0, 1024.0, 512.0, 256.0, 256.0
        ]
    );
    // Growth comes due, is refuted and comes due again after the checkpoint.
    assert_eq!(
        scales[11..18],
        [512.0, 256.0, 256.0, 256.0, 256.0, 512.0, 256.0]
    );
    let whole = saved_adam::<Steep<Ours>>(folder.path(), EPOCHS);

    for epoch in [2, 3] {
        let (actual, resumed) = run(Plan::new(&folder, EPOCHS).from(epoch), Steep::new(2));
        assert!(actual == expected[epoch * STEPS..], "{actual:?}");
        assert_eq!(resumed.train, losses.train[epoch * STEPS..]);
        assert_eq!(resumed.valid, losses.valid[epoch..]);
        assert_eq!(saved_adam::<Steep<Ours>>(folder.path(), EPOCHS), whole);
    }
}

type Sgd = AmpOptimizer<SgdOf<Ours, Dictated<Ours>>>;

/// An epoch that leaves a scale of 512 and a growth tracker of 1.
fn first_epoch(device: &Configured, plan: &Plan) {
    device.init(&f16_from(1024.0));
    let (optim, _) = sgd::<Ours, Dictated<Ours>>();
    let train = Epochs::dictated(&[&[1.0], &[f32::NAN], &[1.0]]);
    let model = Dictated::<Ours>::new(&[0.0]);
    plan.fit(model, optim, 1.0, train, Epochs::none());
}

#[test]
fn case_38_a_record_can_be_loaded_before_the_configuration() {
    let device = Configured::take();
    let folder = folder();
    first_epoch(&device, &Plan::new(&folder, 1));
    device.init(&AmpConfig::f32());

    let path = folder.path().join("checkpoint/optim-1");
    type Saved = <Sgd as Optimizer<Dictated<Ours>, Ours>>::Record;
    let record: Saved = Recorder::<Ours>::load(&FullRecorder::new(), path, &FlexDevice).unwrap();
    let (optim, log) = sgd::<Ours, Dictated<Ours>>();
    let optim = Optimizer::<Dictated<Ours>, Ours>::load_record(optim, record);
    device.init(&f16_from(65536.0));

    let second = crate::support::folder();
    let train = Epochs::dictated(&[&[1.0]]);
    let model = Dictated::<Ours>::new(&[-2.0]);
    Plan::new(&second, 1).fit(model, optim, 1.0, train, Epochs::none());
    let step = &steps(&log)[0];
    let scaler = step.scaler.as_ref().unwrap();
    assert_eq!((scaler.scale(), scaler.growth_tracker()), (512.0, 2));
    assert_eq!(
        (scaler.counters().applied, scaler.counters().skipped),
        (3, 1)
    );
    assert_eq!(step.values(), [-3.0]);
}

#[test]
fn case_38_a_setting_that_changes_on_resume_resets_no_other() {
    let device = Configured::take();
    let folder = folder();
    first_epoch(&device, &Plan::new(&folder, 1));

    device.init(&f16_with(
        DynamicLossScaleConfig::new().with_growth_interval(3),
    ));
    let (optim, log) = sgd::<Ours, Dictated<Ours>>();
    let train = Epochs::dictated(&[&[1.0], &[1.0]]);
    let model = Dictated::<Ours>::new(&[0.0]);
    let plan = Plan::new(&folder, 2).from(1);
    plan.fit(model, optim, 1.0, train, Epochs::none());
    let steps = steps(&log);
    let scales: Vec<f32> = steps.iter().map(Step::scale).collect();
    assert_eq!(scales, [512.0, 1024.0]);
    assert_eq!(steps[1].values(), [-4.0]);
    assert_eq!(steps[1].scaler.as_ref().unwrap().counters().skipped, 1);
}

#[test]
fn case_40_weights_that_are_replaced_stay_replaced() {
    let device = Configured::take();
    let folder = folder();
    device.init(&f16_from(1024.0));
    let rows = |weight| Epochs::all(vec![Rows::dictated(&[1.0]).weighted(weight); 2]);
    let (optim, _) = sgd::<Ours, Product<Ours>>();
    let model = Product::<Ours>::new(0.0);
    let plan = Plan::new(&folder, 1);
    let (trained, _) = plan.fit(model, optim, 0.1, rows(1.0), Epochs::none());
    assert_eq!(trained.value(), -0.2);

    // Another program puts weights of its own into the checkpoint.
    let five = Product::<Ours>::new(5.0).into_record();
    let path = folder.path().join("checkpoint/model-1");
    Recorder::<Ours>::record(&FullRecorder::new(), five, path).unwrap();
    let (optim, log) = sgd::<Ours, Product<Ours>>();
    let model = Product::<Ours>::new(0.0);
    let plan = Plan::new(&folder, 2).from(1);
    let (trained, _) = plan.fit(model, optim, 0.1, rows(0.0), Epochs::none());
    assert_eq!(trained.value(), 5.0);
    assert!(steps(&log).iter().all(|step| !step.is_skipped()));
}

type PlainAdam = OptimizerAdaptor<Adam, Mlp<Plain>, Plain>;
type PlainRecord = <PlainAdam as Optimizer<Mlp<Plain>, Plain>>::Record;

/// Two epochs of the plain backend and optimizer, and what a third would leave.
fn plain_run(plan: &Plan) -> Vec<Vec<u32>> {
    let (optim, _) = Recorded::new(AdamConfig::new().init());
    let train = Epochs::new(batches());
    let model = Mlp::<Plain>::new(3);
    let (model, _) = plan.fit::<Plain, _, _, _>(model, optim, 0.01, train, Epochs::none());
    parameter_bits(&model)
}

#[test]
fn case_41_a_checkpoint_of_a_plain_optimizer_goes_on_in_mixed_precision() {
    let device = Configured::take();
    let folder = folder();
    let expected = plain_run(&Plan::new(&folder, 3));
    let path = folder.path().join("checkpoint/optim-2");

    // The scaler's part is missing: it is added, once.
    type Inner = <AdamOf as Optimizer<Mlp<Ours>, Ours>>::Record;
    type AdamOf = OptimizerAdaptor<Adam, Mlp<Ours>, Ours>;
    let recorder = FullRecorder::new();
    let record: Inner = Recorder::<Ours>::load(&recorder, path.clone(), &FlexDevice).unwrap();
    let plain = serde_json::to_value(Record::<Ours>::into_item::<FullPrecisionSettings>(
        record.clone(),
    ));
    let record = AmpOptimizerRecord::from(record);
    Recorder::<Ours>::record(&recorder, record, path).unwrap();
    assert_eq!(
        saved_adam::<Mlp<Ours>>(folder.path(), 2)["V1"]["optim"],
        plain.unwrap()
    );

    for (config, scale) in [
        (AmpConfig::f32(), 1.0),
        (f16_from(1024.0), 1024.0),
        (AmpConfig::bf16(), 1.0),
    ] {
        let is_off = config == AmpConfig::f32();
        device.init(&config);
        let (optim, log) = adam();
        let train = Epochs::from_epoch(batches(), 3);
        let plan = Plan::new(&folder, 3).from(2);
        let (model, _) = plan.fit(Mlp::<Ours>::new(4), optim, 0.01, train, Epochs::none());
        let steps = steps(&log);
        assert_eq!((steps.len(), steps[0].scale()), (STEPS, scale));
        assert!(steps.iter().all(|step| !step.is_skipped()));
        let actual = parameter_bits(&model);
        assert_eq!(actual == expected, is_off);
        let values = |bits: &[Vec<u32>]| -> Vec<f32> {
            bits.iter()
                .flatten()
                .map(|bits| f32::from_bits(*bits))
                .collect()
        };
        for (actual, expected) in values(&actual).iter().zip(values(&expected)) {
            assert!((actual - expected).abs() < 0.02, "{actual}, not {expected}");
        }
        let counters = load_adam::<Mlp<Ours>>(folder.path(), 3).counters;
        assert_eq!(counters.applied, STEPS as u64);
    }
}

#[test]
fn case_41_a_plain_run_goes_on_from_a_checkpoint_of_ours() {
    let device = Configured::take();
    let folder = folder();
    device.init(&f16_from(1024.0));
    let (optim, _) = adam();
    let train = Epochs::new(batches());
    let plan = Plan::new(&folder, 2);
    let (trained, _) = plan.fit(Mlp::<Ours>::new(3), optim, 0.01, train, Epochs::none());

    device.init(&AmpConfig::f32());
    let path = folder.path().join("checkpoint/optim-2");
    let recorder = FullRecorder::new();
    let ours: AmpOptimizerRecord<PlainRecord> =
        Recorder::<Plain>::load(&recorder, path.clone(), &FlexDevice).unwrap();
    Recorder::<Plain>::record(&recorder, ours.optim, path).unwrap();
    let (optim, log) = Recorded::new(AdamConfig::new().init());
    let train = Epochs::from_epoch(batches(), 3);
    let plan = Plan::new(&folder, 3).from(2);
    let model = Mlp::<Plain>::new(4);
    plan.fit::<Plain, _, _, _>(model, optim, 0.0, train, Epochs::none());
    let steps = steps(&log);
    assert_eq!(steps.len(), STEPS);
    // At a rate of zero it is where ours was.
    assert!(steps[4].params == parameter_bits(&trained));

    // The moments are ours: their time goes on.
    let path = folder.path().join("checkpoint/optim-3");
    let record: PlainRecord = Recorder::<Plain>::load(&recorder, path, &FlexDevice).unwrap();
    let weight = record[&trained.up.weight.id].clone().into_state::<2>();
    assert_eq!(weight.momentum.time, 3 * STEPS);
}
