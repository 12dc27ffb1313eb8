//! Theme 7: several shards and several optimizers.

use std::path::Path;

use burn::backend::flex::FlexDevice;
use burn::module::Module;
use burn::optim::{
    GradientsAccumulator, GradientsParams, MultiGradientsParams, Optimizer, SgdConfig,
};
use burn::record::{Record, Recorder};
use burn::tensor::backend::DeviceId;
use burn::train::{ExecutionStrategy, MultiDeviceOptim, TrainStep, TrainingStrategy};
use burn_amp::loss_scale::{DynamicLossScaleConfig, LossScaler};
use burn_amp::{AmpOptimizer, AmpOptimizerConfig};

use crate::common::SplitMix64;
use crate::support::{
    Batch, Configured, Dictated, Epochs, FullRecorder, Ours, Plan, Rows, SgdOf, f16_from, f16_with,
    folder, sgd, steps,
};

type Sgd = AmpOptimizer<SgdOf<Ours, Dictated<Ours>>>;

fn new_sgd() -> Sgd {
    AmpOptimizerConfig::new().init(SgdConfig::new().init())
}

fn gradients(model: &Dictated<Ours>, x: f32) -> GradientsParams {
    TrainStep::step(model, Batch::new(&Rows::dictated(&[x]))).grads
}

/// Two workers of the `Learner` on one device, each with a half of the batches.
#[test]
fn case_43_a_verdict_over_the_batches_of_all_workers() {
    let device = Configured::take();
    for optimization in [
        MultiDeviceOptim::OptimMainDevice,
        MultiDeviceOptim::OptimSharded,
    ] {
        device.init(&f16_from(1024.0));
        let folder = folder();
        let (optim, log) = sgd::<Ours, Dictated<Ours>>();
        let train = Epochs::dictated(&[
            // The first worker's.
            &[1.0],
            &[f32::INFINITY],
            &[1.0],
            // The second worker's.
            &[2.0],
            &[3.0],
            &[f32::NAN],
        ]);
        let model = Dictated::<Ours>::new(&[0.0]);
        Plan::new(&folder, 2).fit_with(model, optim, 1.0, train, Epochs::none(), |training| {
            let devices = vec![FlexDevice; 2];
            let execution = ExecutionStrategy::multi(devices, optimization);
            training.with_training_strategy(TrainingStrategy::Default(execution))
        });
        let steps = steps(&log);
        let skipped: Vec<bool> = steps.iter().map(|step| step.is_skipped()).collect();
        assert_eq!(skipped, [false, true, true, false, true, true]);
        let scales: Vec<f32> = steps.iter().map(|step| step.scale()).collect();
        assert_eq!(scales, [1024.0, 512.0, 256.0, 256.0, 128.0, 64.0]);
        assert_eq!(steps[0].params, steps[2].params);
        assert_eq!(steps[3].params, steps[5].params);
        assert_ne!(steps[0].params, steps[3].params);
    }
}

#[test]
fn case_43_the_verdict_is_the_or_of_the_shards_over_many_rounds() {
    let device = Configured::take();
    device.init(&f16_from(1024.0));
    let mut rng = SplitMix64::new(43);
    let (mut optim, mut model) = (new_sgd(), Dictated::<Ours>::new(&[0.0]));
    let mut applied = 0;
    let mut scale = 1024f32;
    for _epoch in 0..10 {
        for _round in 0..10 {
            let bits = rng.next_u64();
            let bad = [bits.is_multiple_of(4), (bits >> 8).is_multiple_of(4)];
            let grads = bad.map(|bad| {
                let x = if bad { f32::INFINITY } else { 1.0 };
                (gradients(&model, x), DeviceId::new(0, 0))
            });
            let grads = grads.into();
            model = optim.step_multi(1.0, model, MultiGradientsParams { grads });
            let is_bad = bad[0] || bad[1];
            assert_eq!(optim.outcome().unwrap().is_skipped(), is_bad);
            if is_bad {
                scale = (scale / 2.0).max(1.0 / 16384.0);
            } else {
                applied += 1;
            }
            assert_eq!(optim.scale(), scale);
            let moved = model.values()[0];
            assert_eq!(moved == 0.0, applied == 0);
        }
    }
    assert!(applied > 20 && applied < 80, "{applied}");
}

/// Two models that share a loss, as a generator and an encoder do.
struct Pair {
    models: [Dictated<Ours>; 2],
    optims: [Sgd; 2],
}

impl Pair {
    fn new() -> Self {
        Self {
            models: [0, 1].map(|_| Dictated::new(&[0.0])),
            optims: [0, 1].map(|_| new_sgd()),
        }
    }

    fn path(folder: &Path, part: &str, index: usize, epoch: usize) -> std::path::PathBuf {
        folder.join(format!("{part}-{index}-{epoch}"))
    }

    fn save(&self, folder: &Path, epoch: usize) {
        fn record<R: Record<Ours>>(record: R, path: std::path::PathBuf) {
            Recorder::<Ours>::record(&FullRecorder::new(), record, path).unwrap();
        }
        for (index, (model, optim)) in self.models.iter().zip(&self.optims).enumerate() {
            let optim = Optimizer::<Dictated<Ours>, Ours>::to_record(optim);
            let path = |part| Self::path(folder, part, index, epoch);
            record(model.clone().into_record(), path("model"));
            record(optim, path("optim"));
        }
    }

    fn load(folder: &Path, epoch: usize) -> Self {
        fn load<R: Record<Ours>>(path: std::path::PathBuf) -> R {
            Recorder::<Ours>::load(&FullRecorder::new(), path, &FlexDevice).unwrap()
        }
        let path = |part, index| Self::path(folder, part, index, epoch);
        Self {
            models: [0, 1]
                .map(|index| Dictated::new(&[9.0]).load_record(load(path("model", index)))),
            optims: [0, 1].map(|index| {
                let record = load(path("optim", index));
                Optimizer::<Dictated<Ours>, Ours>::load_record(new_sgd(), record)
            }),
        }
    }

    /// A window of micro-batches with these gradients of the two.
    fn window(&mut self, micro_batches: &[[f32; 2]]) {
        let mut sums = [0, 1].map(|_| GradientsAccumulator::new());
        for x in micro_batches {
            // One loss, one backward pass.
            let losses = [0, 1].map(|index| {
                let batch = Batch::new(&Rows::dictated(&[x[index]]));
                self.models[index].run(batch).loss
            });
            let [first, second] = losses;
            let mut grads = (first + second).backward();
            for (sum, model) in sums.iter_mut().zip(&self.models) {
                sum.accumulate(model, GradientsParams::from_module(&mut grads, model));
            }
        }
        for (index, sum) in sums.iter_mut().enumerate() {
            let model = self.models[index].clone();
            self.models[index] = self.optims[index].step(1.0, model, sum.grads());
        }
    }

    fn values(&self) -> [f32; 2] {
        self.models.each_ref().map(|model| model.values()[0])
    }

    fn scaler(&self) -> LossScaler {
        let [first, second] = self
            .optims
            .each_ref()
            .map(|optim| optim.loss_scaler().unwrap());
        assert_eq!(first, second);
        first
    }
}

#[test]
fn case_44_two_optimizers_on_one_loss_over_epochs_and_a_checkpoint() {
    const GOOD: [f32; 2] = [1.0, 1.0];
    /// The second model's gradient overflows.
    const BAD: [f32; 2] = [1.0, f32::INFINITY];
    const EPOCHS: [[[f32; 2]; 4]; 4] = [
        [GOOD, GOOD, GOOD, BAD],
        [GOOD, GOOD, GOOD, GOOD],
        [BAD, BAD, GOOD, GOOD],
        [GOOD, GOOD, GOOD, GOOD],
    ];
    type State = ([f32; 2], LossScaler);

    let device = Configured::take();
    let folder = folder();
    let config = f16_with(
        DynamicLossScaleConfig::new()
            .with_init_scale(1024.0)
            .with_growth_interval(4),
    );
    let run = |resume: usize| -> Vec<State> {
        device.init(&config);
        let mut pair = match resume {
            0 => Pair::new(),
            epoch => Pair::load(folder.path(), epoch),
        };
        let mut states = Vec::new();
        for (epoch, batches) in (1..).zip(EPOCHS).skip(resume) {
            for micro_batches in batches.chunks(2) {
                pair.window(micro_batches);
                states.push((pair.values(), pair.scaler()));
            }
            // Evaluation between the epochs is nothing to the scale.
            let valid = pair
                .models
                .each_ref()
                .map(burn::module::AutodiffModule::valid);
            let losses = valid.map(|model| model.run(Batch::new(&Rows::dictated(&[1.0]))).loss);
            assert_eq!(losses.map(|loss| loss.into_scalar()), pair.values());
            if resume == 0 {
                pair.save(folder.path(), epoch);
            }
        }
        states
    };

    let expected = run(0);
    let seen: Vec<_> = expected
        .iter()
        .map(|(values, scaler)| (*values, scaler.scale(), scaler.growth_tracker()))
        .collect();
    assert_eq!(
        seen,
        [
            ([-2.0, -2.0], 1024.0, 1),
            // Halved once, and the first model steps.
            ([-4.0, -2.0], 512.0, 0),
            ([-6.0, -4.0], 512.0, 1),
            ([-8.0, -6.0], 512.0, 2),
            ([-10.0, -6.0], 256.0, 0),
            ([-12.0, -8.0], 256.0, 1),
            ([-14.0, -10.0], 256.0, 2),
            ([-16.0, -12.0], 256.0, 3),
        ]
    );
    for epoch in [1, 2, 3] {
        assert_eq!(run(epoch), expected[2 * epoch..]);
    }
}
