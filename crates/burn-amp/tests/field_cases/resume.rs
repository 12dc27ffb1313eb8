//! Theme 6: checkpoints.

use burn::module::{AutodiffModule, Module};
use burn::nn::{Linear, LinearConfig};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{Adam, AdamConfig, GradientsParams, Optimizer, Sgd, SgdConfig};
use burn::record::{
    BinBytesRecorder, FullPrecisionSettings, HalfPrecisionSettings, NamedMpkBytesRecorder, Record,
    Recorder,
};
use burn::tensor::Tensor;
use burn::tensor::activation::tanh;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_amp::loss_scale::{DynamicLossScaleConfig, LossScaleConfig, LossScaler, LossScalerRecord};
use burn_amp::{AmpConfig, AmpOptimizer, AmpOptimizerConfig, AmpOptimizerRecord, Autocast};

use crate::common::{normal, parameter_bits, randomize};
use crate::support::{
    Ours, Plain, Scalar, Scaling, SetTo, Training, Vectors, amp16, amp16_from, amp16_with,
};

type AdamOf<B, M> = OptimizerAdaptor<Adam, M, B>;
type SgdOf<B, M> = OptimizerAdaptor<Sgd<<B as AutodiffBackend>::InnerBackend>, M, B>;

fn save<B: Backend, R: Record<B>>(record: R) -> Vec<u8> {
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
    Recorder::<B>::record(&recorder, record, ()).unwrap()
}

fn load<B: Backend, R: Record<B>>(bytes: &[u8]) -> R {
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
    let device = B::Device::default();
    Recorder::<B>::load(&recorder, bytes.to_vec(), &device).unwrap()
}

/// A regression, and one weight whose gradient overflows f16 at every scale above 256.
#[derive(Module, Debug)]
struct Model<B: Backend> {
    up: Linear<B>,
    down: Linear<B>,
    steep: Scalar<B>,
}

impl<B: Backend> Model<B> {
    fn new(seed: u64) -> Self {
        let device = B::Device::default();
        let model = Self {
            up: LinearConfig::new(4, 8).init(&device),
            down: LinearConfig::new(8, 1).init(&device),
            steep: Scalar::new(0.0),
        };
        randomize(model, seed)
    }
}

impl<B: AutodiffBackend> Model<B> {
    fn loss(&self) -> Tensor<B, 1> {
        let x = normal::<B, 2>([16, 4], 3, &B::Device::default());
        let y = x.clone().sum_dim(1);
        let error = self.down.forward(tanh(self.up.forward(x))) - y;
        error.powi_scalar(2).mean() + self.steep.loss(200.0).mul_scalar(1.0)
    }
}

/// Everything that a program stores to go on later.
struct Checkpoint {
    module: Vec<u8>,
    optim: Vec<u8>,
    scaler: Option<Vec<u8>>,
}

impl Checkpoint {
    fn save<B, M, O>(training: &Training<O>, module: &M) -> Self
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
        O: Optimizer<M, B>,
    {
        let (optim, scaler) = match training {
            Training::Automatic(optim) => (save::<B, _>(optim.to_record()), None),
            Training::Manual(optim, scaler) => (
                save::<B, _>(optim.to_record()),
                Some(save::<B, _>(scaler.loss_scaler().to_record())),
            ),
        };
        let module = save::<B, _>(module.clone().into_record());
        Self {
            module,
            optim,
            scaler,
        }
    }

    fn load<B, M, O>(&self, training: Training<O>, module: M) -> (Training<O>, M)
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
        O: Optimizer<M, B>,
    {
        let training = match training {
            Training::Automatic(optim) => {
                Training::Automatic(optim.load_record(load::<B, _>(&self.optim)))
            }
            Training::Manual(optim, _) => {
                let record = load::<B, LossScalerRecord>(self.scaler.as_ref().unwrap());
                let scaler = LossScaler::from_record(record).unwrap().into();
                Training::Manual(optim.load_record(load::<B, _>(&self.optim)), scaler)
            }
        };
        (training, module.load_record(load::<B, _>(&self.module)))
    }
}

#[test]
fn case_37_a_resumed_run_equals_the_uninterrupted_one() {
    /// What a step leaves behind, bitwise.
    #[derive(Debug, PartialEq)]
    struct Step {
        scale: f32,
        skipped: bool,
        loss: u32,
        params: Vec<Vec<u32>>,
    }
    /// Short, so that growth is due between checkpoint and end.
    fn amp() -> Autocast {
        amp16_with(DynamicLossScaleConfig::new().with_growth_interval(4))
    }
    fn start<B: AutodiffBackend>(
        scaling: Scaling,
        amp: &Autocast,
    ) -> Training<AdamOf<B, Model<B>>> {
        Training::new(scaling, amp, AdamConfig::new().init())
    }
    fn run<B: AutodiffBackend>(
        amp: &Autocast,
        training: &mut Training<AdamOf<B, Model<B>>>,
        mut model: Model<B>,
        steps: usize,
    ) -> (Model<B>, Vec<Step>) {
        let mut done = Vec::new();
        for _step in 0..steps {
            let loss = model.loss();
            let value = loss.clone().into_data().to_vec::<f32>().unwrap()[0];
            let outcome;
            (model, outcome) = training.step(1e-2, model, loss);
            done.push(Step {
                scale: training.scale(amp),
                skipped: outcome.is_skipped(),
                loss: value.to_bits(),
                params: parameter_bits(&model),
            });
        }
        (model, done)
    }
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let first = amp();
        let (checkpoint, expected) = first.run(|| {
            let mut training = start::<B>(scaling, &first);
            let (model, steps) = run(&first, &mut training, Model::new(1), 11);
            assert_eq!(steps[10].scale, 256.0);
            assert_eq!(steps.iter().filter(|step| step.skipped).count(), 8);
            let checkpoint = Checkpoint::save::<B, _, _>(&training, &model);
            (checkpoint, run(&first, &mut training, model, 9).1)
        });
        // Growth comes due, is refuted and comes due again.
        let scales: Vec<f32> = expected.iter().map(|step| step.scale).collect();
        assert_eq!(
            scales,
            [
                512.0, 256.0, 256.0, 256.0, 256.0, 512.0, 256.0, 256.0, 256.0
            ]
        );

        let second = amp();
        let resumed = second.run(|| {
            let (mut training, model) =
                checkpoint.load::<B, _, _>(start::<B>(scaling, &second), Model::new(2));
            assert_eq!(training.scale(&second), 256.0);
            run(&second, &mut training, model, 9).1
        });
        assert_eq!(resumed, expected);
    }
    in_every_way!(check());
}

#[test]
fn case_37_a_half_precision_record_does_not_round_the_scaler() {
    fn through<S: burn::record::PrecisionSettings>(
        record: AmpOptimizerRecordOf,
    ) -> LossScalerRecord {
        let recorder = NamedMpkBytesRecorder::<S>::new();
        let bytes = Recorder::<Ours>::record(&recorder, record, ()).unwrap();
        let loaded: AmpOptimizerRecordOf =
            Recorder::<Ours>::load(&recorder, bytes, &Default::default()).unwrap();
        loaded.scaler.unwrap()
    }
    type AmpOptimizerRecordOf =
        <AmpOptimizer<AdamOf<Ours, Vectors<Ours>>> as Optimizer<Vectors<Ours>, Ours>>::Record;

    // Neither number is an f16 or a bf16.
    let scale = 2f32.powi(40) * 1.000_000_1;
    let amp = amp16_with(
        DynamicLossScaleConfig::new()
            .with_init_scale(scale)
            .with_growth_interval(70_001),
    );
    let record = amp.run(|| {
        let adam = AdamConfig::new().init::<Ours, Vectors<Ours>>();
        let mut optim = AmpOptimizerConfig::new().init(adam);
        let model = Vectors::<Ours>::new(&[&[1.0]]);
        let grads = model.gradients(&[&[1.0]]);
        optim.step(0.1, model, grads);
        optim.to_record()
    });
    let expected = amp.loss_scaler().state().to_record();
    assert_eq!(through::<HalfPrecisionSettings>(record.clone()), expected);
    assert_eq!(through::<FullPrecisionSettings>(record), expected);
}

#[test]
fn case_38_a_record_can_be_loaded_before_anything_ran() {
    fn check<B: AutodiffBackend>() {
        let new = || AmpOptimizerConfig::new().init(SgdConfig::new().init::<B, Vectors<B>>());
        let model = Vectors::<B>::new(&[&[1.0]]);
        let bytes = amp16_from(1024.0).run(|| {
            let mut optim = new();
            for grad in [1.0, 1.0, f32::NAN, 1.0] {
                let grads = model.gradients(&[&[grad]]);
                optim.step(0.0, model.clone(), grads);
            }
            save::<B, _>(Optimizer::<Vectors<B>, B>::to_record(&optim))
        });

        let amp = amp16();
        let _scope = amp.enter();
        let mut optim: AmpOptimizer<SgdOf<B, Vectors<B>>> = new().load_record(load::<B, _>(&bytes));
        assert_eq!((optim.scale(), amp.loss_scaler().scale()), (512.0, 512.0));
        assert_eq!(optim.counters().skipped, 1);

        let grads = model.gradients(&[&[1.0]]);
        let model = optim.step(1.0, model.clone(), grads);
        assert!(optim.outcome().unwrap().is_applied());
        assert_eq!(model.values(), [[0.0]]);
        assert_eq!(optim.loss_scaler().unwrap().growth_tracker(), 2);

        // Another interval is another interval, and nothing else.
        let interval = DynamicLossScaleConfig::new().with_growth_interval(3);
        let interval = LossScaleConfig::Dynamic(interval);
        amp.loss_scaler().reconfigure(interval).unwrap();
        let state = optim.loss_scaler().unwrap();
        assert_eq!((state.scale(), state.growth_tracker()), (512.0, 2));
        assert_eq!((state.counters().applied, state.counters().skipped), (4, 1));
        let grads = model.gradients(&[&[1.0]]);
        optim.step(1.0, model, grads);
        assert_eq!(optim.scale(), 1024.0);
    }
    in_both_orders!(check());
}

#[test]
fn case_40_weights_that_are_replaced_stay_replaced() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_from(1024.0);
        let _scope = amp.enter();
        let sgd = SgdConfig::new().init::<B, Scalar<B>>();
        let mut training = Training::new(scaling, &amp, sgd);
        let model = Scalar::<B>::new(0.0);
        let loss = model.loss(1.0);
        let (model, _) = training.step(0.1, model, loss);
        assert_eq!(model.value(), -0.1);

        let five = save::<B, _>(Scalar::<B>::new(5.0).into_record());
        let model = model.load_record(load::<B, _>(&five));
        let loss = model.loss(0.0);
        let (model, outcome) = training.step(0.1, model, loss);
        assert!(outcome.is_applied());
        assert_eq!(model.value(), 5.0);

        let model = model.map(&mut SetTo(7.0));
        let loss = model.loss(0.0);
        let (model, outcome) = training.step(0.1, model, loss);
        assert!(outcome.is_applied());
        assert_eq!(model.value(), 7.0);
    }
    in_every_way!(check());
}

/// Adam's gradients of step `step`.
fn gradient(step: i32) -> Vec<f32> {
    vec![0.3 * step as f32 - 1.0, 1.0 / (step as f32 + 1.0)]
}

fn steps<B, O>(mut optim: O, mut model: Vectors<B>, range: std::ops::Range<i32>) -> (O, Vectors<B>)
where
    B: AutodiffBackend,
    O: Optimizer<Vectors<B>, B>,
{
    for step in range {
        let grads: GradientsParams = model.gradients(&[&gradient(step)]);
        model = optim.step(0.1, model, grads);
    }
    (optim, model)
}

#[test]
fn case_41_the_record_of_a_plain_optimizer_can_be_loaded() {
    fn check<B: AutodiffBackend>(config: &AmpConfig, scale: f32) {
        let plain = AdamConfig::new().init::<Plain, Vectors<Plain>>();
        let (plain, model) = steps(plain, Vectors::<Plain>::new(&[&[1.0, 2.0]]), 0..10);
        let optim = save::<Plain, _>(Optimizer::<Vectors<Plain>, Plain>::to_record(&plain));
        let module = save::<Plain, _>(model.clone().into_record());
        let (_, expected) = steps(plain, model, 10..15);

        let amp = Autocast::new(config).unwrap();
        let _scope = amp.enter();
        let model = Vectors::<B>::new(&[&[0.0; 2]]).load_record(load::<B, _>(&module));
        let record: <AdamOf<B, Vectors<B>> as Optimizer<Vectors<B>, B>>::Record =
            load::<B, _>(&optim);
        let adam: AdamOf<B, Vectors<B>> = AdamConfig::new().init();
        let optim = AmpOptimizerConfig::new().init(adam);
        let optim = optim.load_record(AmpOptimizerRecord::from(record));
        assert_eq!(amp.loss_scaler().scale(), scale);
        let (optim, resumed) = steps(optim, model, 10..15);
        assert_eq!(parameter_bits(&resumed), parameter_bits(&expected));
        assert_eq!(optim.counters().applied, 5);
    }
    in_both_orders!(check(&AmpConfig::f16(), 65536.0));
    in_both_orders!(check(&AmpConfig::bf16(), 1.0));
    in_both_orders!(check(&AmpConfig::f32(), 1.0));
}

#[test]
fn case_41_a_plain_optimizer_goes_on_from_a_record_of_ours() {
    fn check<B: AutodiffBackend>() {
        let amp = amp16();
        let _scope = amp.enter();
        let adam: AdamOf<B, Vectors<B>> = AdamConfig::new().init();
        let optim = AmpOptimizerConfig::new().init(adam);
        let (optim, model) = steps(optim, Vectors::<B>::new(&[&[1.0, 2.0]]), 0..10);
        let bytes = save::<B, _>(Optimizer::<Vectors<B>, B>::to_record(&optim));
        let (_, expected) = steps(optim, model.clone(), 10..15);

        type AdamRecord<B> = <AdamOf<B, Vectors<B>> as Optimizer<Vectors<B>, B>>::Record;
        let record: AmpOptimizerRecord<AdamRecord<B>> = load::<B, _>(&bytes);
        let plain: AdamOf<B, Vectors<B>> = AdamConfig::new().init();
        let (_, resumed) = steps(plain.load_record(record.optim), model, 10..15);
        assert_eq!(parameter_bits(&resumed), parameter_bits(&expected));
    }
    in_both_orders!(check());
}
