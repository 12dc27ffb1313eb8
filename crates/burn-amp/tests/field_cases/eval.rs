//! Theme 8: evaluation, and switching precision during a run.

use burn::backend::Flex;
use burn::module::{AutodiffModule, Module};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Gelu, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, Optimizer, SgdConfig};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor};
use burn_amp::{Amp, AmpConfig, AmpOptimizerConfig, Autocast, Counters};

use crate::common::{normal, parameter_bits, randomize, values};
use crate::support::{Ours, Plain, Scaling, Training, amp16, amp16_from, assert_all_finite};

#[derive(Module, Debug)]
struct ConvNet<B: Backend> {
    conv: Conv2d<B>,
    norm: BatchNorm<B>,
    head: Linear<B>,
    activation: Gelu,
}

impl<B: Backend> ConvNet<B> {
    fn new() -> Self {
        let device = B::Device::default();
        Self {
            conv: Conv2dConfig::new([1, 4], [3, 3]).init(&device),
            norm: BatchNormConfig::new(4).init(&device),
            head: LinearConfig::new(64, 2).init(&device),
            activation: Gelu::new(),
        }
    }

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let x = relu(self.norm.forward(self.conv.forward(x)));
        self.head.forward(self.activation.forward(x.flatten(1, 3)))
    }

    /// The model with the weights of another backend's.
    fn with_weights_of<A: Backend>(other: ConvNet<A>) -> Self {
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
        let bytes = Recorder::<A>::record(&recorder, other.into_record(), ()).unwrap();
        let record = Recorder::<B>::load(&recorder, bytes, &B::Device::default()).unwrap();
        Self::new().load_record(record)
    }
}

fn images<B: Backend>(seed: u64) -> Tensor<B, 4> {
    normal([16, 1, 6, 6], seed, &B::Device::default())
}

impl<B: AutodiffBackend> ConvNet<B> {
    fn loss(&self) -> Tensor<B, 1> {
        let x = images::<B>(2);
        let y = x.clone().mean_dim(3).mean_dim(2).reshape([16, 1]);
        (self.forward(x) - y).powi_scalar(2).mean()
    }
}

#[test]
fn case_46_evaluation_after_skipped_steps_is_finite_and_the_same_in_f32() {
    fn check<B: AutodiffBackend>(scaling: Scaling)
    where
        B::InnerBackend: Backend,
    {
        let amp = amp16_from(1024.0);
        let sgd = SgdConfig::new().init::<B, ConvNet<B>>();
        let mut training = Training::new(scaling, &amp, sgd);
        let mut model = randomize(ConvNet::<B>::new(), 1);
        let mut skips = 0;
        for step in 0..50 {
            // The forward pass is fine, the backward pass overflows.
            if step % 20 == 5 {
                training.set_scale(&amp, 2f32.powi(40));
            }
            let _scope = amp.enter();
            let loss = model.loss();
            let outcome;
            (model, outcome) = training.step(0.05, model, loss);
            if outcome.is_skipped() {
                skips += 1;
                training.set_scale(&amp, 1024.0);
            }
        }
        assert_eq!(skips, 3);

        let half = amp.run(|| values(model.valid().forward(images(3))));
        let plain = ConvNet::<Flex>::with_weights_of(model.valid());
        let single = values(plain.forward(images(3)));
        assert_all_finite(&half);
        assert_all_finite(&single);
        let largest = single.iter().fold(0f64, |max, value| max.max(value.abs()));
        for (half, single) in half.iter().zip(&single) {
            assert!((half - single).abs() <= 5e-3 * largest, "{half} {single}");
        }
    }
    in_every_way!(check());
}

#[test]
fn case_47_evaluation_has_a_precision_of_its_own() {
    fn check<B: AutodiffBackend>(training: &AmpConfig) {
        let training = Autocast::new(training).unwrap();
        let _training = training.enter();
        let mut optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
        let mut model = randomize(ConvNet::<B>::new(), 4);
        for _step in 0..3 {
            let grads = GradientsParams::from_grads(model.loss().backward(), &model);
            model = optim.step(0.01, model, grads);
        }

        for (config, dtype) in [
            (AmpConfig::f32(), DType::F32),
            (AmpConfig::f16(), DType::F16),
            (AmpConfig::bf16(), DType::BF16),
        ] {
            // Inside the training run, where another precision is in force.
            Counters::reset();
            let inside = Autocast::new(&config).unwrap();
            let inside = inside.run(|| model.valid().forward(images(5)));
            assert_eq!(inside.dtype(), dtype);
            let casts = Counters::get().casts;
            assert_eq!(casts == 0, dtype == DType::F32);

            // As a later script does it: another thread, where nothing is in force.
            let weights = model.valid();
            let alone = std::thread::spawn(move || {
                let later = ConvNet::<Amp<Flex>>::with_weights_of(weights);
                let amp = Autocast::new(&config).unwrap();
                values(amp.run(|| later.forward(images(5))))
            });
            let inside = values(inside);
            assert_eq!(inside, alone.join().unwrap());
            if dtype == DType::F32 {
                let plain = ConvNet::<Flex>::with_weights_of(model.valid());
                assert_eq!(inside, values(plain.forward(images(5))));
            }
        }
    }
    for training in [AmpConfig::f16(), AmpConfig::bf16(), AmpConfig::f32()] {
        in_both_orders!(check(&training));
    }
}

/// Trains a step at a time, as many as the precisions that are given.
fn train<B: AutodiffBackend>(precisions: &[&Autocast]) -> Vec<Vec<Vec<u32>>> {
    let mut model = randomize(ConvNet::<B>::new(), 6);
    let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
    precisions
        .iter()
        .enumerate()
        .map(|(index, amp)| {
            let _scope = amp.enter();
            let grads = GradientsParams::from_grads(model.loss().backward(), &model);
            model = optim.step(1e-3, model.clone(), grads);
            let records = Optimizer::<ConvNet<B>, B>::to_record(&optim).optim;
            let weight = records[&model.head.weight.id].clone().into_state::<2>();
            let applied = optim.counters().applied as usize;
            assert_eq!(weight.momentum.time, applied);
            assert_eq!(applied, index + 1, "{:?}", optim.outcome());
            parameter_bits(&model)
        })
        .collect()
}

#[test]
fn case_49_first_steps_in_f32_then_in_half_and_back() {
    fn check<B: AutodiffBackend>() {
        let off = Autocast::new(&AmpConfig::f32()).unwrap();
        let half = amp16_from(1024.0);
        let plain = train::<Plain>(&[&off; 25]);

        let switched = [vec![&off; 10], vec![&half; 10]].concat();
        let before = train::<B>(&switched);
        assert_eq!(before[..10], plain[..10]);
        assert_ne!(before[19], plain[19]);

        let switched = [switched, vec![&off; 5]].concat();
        let again = train::<B>(&switched);
        assert_eq!(again[..20], before[..]);
        // The scale of the half steps waited where it was.
        assert_eq!(half.loss_scaler().scale(), 1024.0);
    }
    in_both_orders!(check());
}

#[test]
fn case_49_steps_after_the_switch_back_do_not_cast() {
    let half = amp16_from(1024.0);
    let mut model = randomize(ConvNet::<Ours>::new(), 7);
    let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
    let mut step = |model: ConvNet<Ours>| {
        let grads = GradientsParams::from_grads(model.loss().backward(), &model);
        optim.step(1e-3, model, grads)
    };
    Counters::reset();
    model = half.run(|| step(model));
    assert!(Counters::get().casts > 0);
    Counters::reset();
    model = step(model);
    let off = Autocast::new(&AmpConfig::f32()).unwrap();
    off.run(|| step(model));
    assert_eq!(Counters::get(), Counters::default());
}

#[test]
fn case_49_moments_survive_the_switches() {
    // Given the same gradients, the optimizer does the same in every precision.
    use crate::support::Vectors;
    fn run<B: AutodiffBackend>(half: Option<&Autocast>) -> Vec<Vec<u32>> {
        let mut model = Vectors::<B>::new(&[&[1.0, -1.0]]);
        let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
        for step in 0..25 {
            let _scope = half
                .filter(|_| (10..20).contains(&step))
                .map(Autocast::enter);
            // Large at first, so that a reset of the moments would show.
            let grad = if step < 10 { 100.0 } else { 0.1 };
            let grads = model.gradients(&[&[grad, 0.3 * grad]]);
            model = optim.step(0.01, model, grads);
        }
        parameter_bits(&model)
    }
    let plain = run::<Plain>(None);
    assert_eq!(run::<Ours>(Some(&amp16())), plain);
    assert_eq!(run::<crate::support::Burns>(Some(&amp16())), plain);
}
