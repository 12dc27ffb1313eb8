//! Themes 11 and 12: what a step costs, what it says, and what switching off means.

use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::module::{AutodiffModule, Module};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::nn::{
    BatchNorm, BatchNormConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::optim::{AdamConfig, AdamWConfig, GradientsParams, Optimizer, SgdConfig};
use burn::tensor::Tensor;
use burn::tensor::activation::{log_softmax, softmax};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn_amp::{AmpConfig, AmpOptimizerConfig, Autocast, Counters, StepCounters};

use crate::common::{normal, parameter_bits, randomize, values};
use crate::support::{Plain, Scaling, Training, Vectors, amp16_from, ampbf};

#[test]
fn case_58_a_step_reads_once_whatever_the_number_of_parameters() {
    fn reads<B: AutodiffBackend>(scaling: Scaling, amp: &Autocast, params: usize) -> Vec<u64> {
        let _scope = amp.enter();
        let sgd = SgdConfig::new().init::<B, Vectors<B>>();
        let mut training = Training::new(scaling, amp, sgd);
        let mut model = Vectors::<B>::new(&vec![&[1.0f32] as &[f32]; params]);
        // Applied and skipped steps alike.
        [1.0, f32::INFINITY, 1.0]
            .map(|grad| {
                Counters::reset();
                let loss = model.loss(&vec![&[grad] as &[f32]; params]);
                let (stepped, outcome) = training.step(0.1, model.clone(), loss);
                let _ = outcome.to_string();
                if let Training::Automatic(optim) = &training {
                    let _ = (optim.scale(), optim.counters(), optim.loss_scaler());
                }
                let _ = (training.scale(amp), training.state(amp));
                model = stepped;
                Counters::get().reads
            })
            .into()
    }
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        for params in [2, 200] {
            assert_eq!(reads::<B>(scaling, &amp16_from(1024.0), params), [1; 3]);
            if scaling == Scaling::Automatic {
                assert_eq!(reads::<B>(scaling, &ampbf(), params), [0; 3]);
                let off = Autocast::new(&AmpConfig::f32()).unwrap();
                assert_eq!(reads::<B>(scaling, &off, params), [0; 3]);
            }
        }
    }
    in_every_way!(check());
    // In Burn's order bf16 needs no `GradScaler`.
    assert_eq!(
        reads::<crate::support::Burns>(Scaling::Automatic, &ampbf(), 200),
        [0; 3]
    );
}

#[test]
fn case_61_a_step_says_whether_it_happened() {
    const OVERFLOWS: [usize; 3] = [1, 4, 9];

    fn schedule() -> impl LrScheduler {
        LinearLrSchedulerConfig::new(0.01, 0.1, 9).init().unwrap()
    }
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_from(1024.0);
        let _scope = amp.enter();
        let adam = AdamConfig::new().init::<B, Vectors<B>>();
        let mut training = Training::new(scaling, &amp, adam);
        let mut model = Vectors::<B>::new(&[&[1.0, 2.0]]);
        let (mut scheduler, mut position) = (schedule(), 0);
        let mut lr = scheduler.step();
        let mut applied = Vec::new();

        for iteration in 1..=10 {
            let overflows = OVERFLOWS.contains(&iteration);
            let grad = [iteration as f32, 0.5];
            let bad = [grad[0], f32::INFINITY];
            let loss = model.loss(&[if overflows { &bad } else { &grad }]);
            let outcome;
            (model, outcome) = training.step(lr, model, loss);
            assert_eq!(outcome.is_skipped(), overflows, "{iteration}: {outcome}");
            assert_eq!(outcome.is_applied(), !overflows);
            if outcome.is_applied() {
                applied.push((grad, lr));
                lr = scheduler.step();
                position += 1;
            }
        }
        assert_eq!(position, 7);
        let counters = training.state(&amp).counters();
        assert_eq!((counters.applied, counters.skipped), (7, 3));
        let records = match &training {
            Training::Automatic(optim) => {
                let expected = StepCounters {
                    applied: 7,
                    skipped: 3,
                    empty: 0,
                };
                assert_eq!(optim.counters(), expected);
                Optimizer::<Vectors<B>, B>::to_record(optim.inner())
            }
            Training::Manual(optim, _) => optim.to_record(),
        };
        let state = records.into_values().next().unwrap().into_state::<1>();
        assert_eq!(state.momentum.time, 7);

        // As if the bad iterations had never been.
        let mut plain = AdamConfig::new().init::<Plain, Vectors<Plain>>();
        let mut expected = Vectors::<Plain>::new(&[&[1.0, 2.0]]);
        for (grad, lr) in applied {
            let grads = expected.gradients(&[&grad]);
            expected = plain.step(lr, expected, grads);
        }
        assert_eq!(parameter_bits(&model), parameter_bits(&expected));
    }
    in_every_way!(check());
}

/// A model that can be trained for some steps on any backend.
trait Trained<B: AutodiffBackend>: AutodiffModule<B> {
    fn new() -> Self;
    fn loss(&self, step: u64) -> Tensor<B, 1>;
}

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    up: Linear<B>,
    norm: LayerNorm<B>,
    down: Linear<B>,
    activation: Gelu,
}

impl<B: AutodiffBackend> Trained<B> for Mlp<B> {
    fn new() -> Self {
        let device = B::Device::default();
        Self {
            up: LinearConfig::new(6, 24).init(&device),
            norm: LayerNormConfig::new(24).init(&device),
            down: LinearConfig::new(24, 3).init(&device),
            activation: Gelu::new(),
        }
    }

    fn loss(&self, step: u64) -> Tensor<B, 1> {
        let x = normal::<B, 2>([16, 6], step, &B::Device::default());
        let y = softmax(x.clone().slice([0..16, 0..3]) * 3.0, 1);
        let hidden = self
            .norm
            .forward(self.activation.forward(self.up.forward(x)));
        (y * log_softmax(self.down.forward(hidden), 1))
            .sum_dim(1)
            .mean()
            .neg()
    }
}

#[derive(Module, Debug)]
struct Conv<B: Backend> {
    conv: Conv2d<B>,
    norm: BatchNorm<B>,
    pool: MaxPool2d,
    head: Linear<B>,
}

impl<B: AutodiffBackend> Trained<B> for Conv<B> {
    fn new() -> Self {
        let device = B::Device::default();
        Self {
            conv: Conv2dConfig::new([2, 4], [3, 3]).init(&device),
            norm: BatchNormConfig::new(4).init(&device),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            head: LinearConfig::new(36, 1).init(&device),
        }
    }

    fn loss(&self, step: u64) -> Tensor<B, 1> {
        let x = normal::<B, 4>([4, 2, 8, 8], step, &B::Device::default());
        let y = x.clone().mean_dim(3).mean_dim(2).sum_dim(1).reshape([4, 1]);
        let x = self.pool.forward(self.norm.forward(self.conv.forward(x)));
        (self.head.forward(x.flatten(1, 3)).tanh() - y)
            .powi_scalar(2)
            .mean()
    }
}

/// The losses and the final parameters of 20 steps, and what they cost beside.
fn train<B: AutodiffBackend, M: Trained<B>, O: Optimizer<M, B>>(
    mut optim: O,
) -> (O, Vec<f64>, Vec<Vec<u32>>) {
    let mut model = randomize(M::new(), 12);
    let mut losses = Vec::new();
    for step in 0..20 {
        let loss = model.loss(step);
        losses.push(loss.clone().inner());
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(1e-2, model, grads);
    }
    let counters = Counters::get();
    assert_eq!(counters, Counters::default());
    let losses = losses.into_iter().flat_map(values).collect();
    (optim, losses, parameter_bits(&model))
}

#[test]
fn case_62_disabled_means_that_nothing_happens() {
    fn check<B: AutodiffBackend, M: Trained<B>, P: Trained<Plain>>() {
        Counters::reset();
        let plain = AdamWConfig::new().init::<Plain, P>();
        let (_, losses, params) = train::<Plain, P, _>(plain);

        let off = Autocast::new(&AmpConfig::f32()).unwrap();
        for scope in [None, Some(off.enter())] {
            Counters::reset();
            let optim = AdamWConfig::new().init::<B, M>();
            let optim = AmpOptimizerConfig::new().init(optim);
            let (optim, same_losses, same_params) = train::<B, M, _>(optim);
            assert_eq!(same_losses, losses);
            assert_eq!(same_params, params);
            assert_eq!((optim.scale(), optim.counters().applied), (1.0, 20));
            assert!(optim.loss_scaler().is_none() && optim.scale_update().is_none());
            drop(scope);
        }
        assert_eq!(off.loss_scaler().scale(), 1.0);
    }
    use crate::support::{Burns, Ours};
    check::<Ours, Mlp<Ours>, Mlp<Plain>>();
    check::<Burns, Mlp<Burns>, Mlp<Plain>>();
    check::<Ours, Conv<Ours>, Conv<Plain>>();
    check::<Burns, Conv<Burns>, Conv<Plain>>();
}
