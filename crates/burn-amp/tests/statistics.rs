//! Running statistics after steps that were skipped.

mod common;

use burn::backend::Flex;
use burn::module::{AutodiffModule, Module, ModuleMapper, Param, RunningState};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{
    GradientsAccumulator, GradientsParams, MultiGradientsParams, Optimizer, Sgd, SgdConfig,
};
use burn::tensor::activation::gelu;
use burn::tensor::backend::{AutodiffBackend, Backend, DeviceId};
use burn::tensor::{DType, Tensor};
use burn_amp::{
    Amp, AmpConfig, AmpGradientsAccumulator, AmpOptimizer, AmpOptimizerConfig, Autocast, Autodiff,
    BadMicroBatch, Counters, GradientCheck, StepOutcome,
};
use common::{normal, values};

type Ours = Autodiff<Amp<Flex>>;
type Burns = burn::backend::Autodiff<Amp<Flex>>;
type Plain = burn::backend::Autodiff<Flex>;

#[derive(Module, Debug)]
struct Net<B: Backend> {
    conv: Conv2d<B>,
    norm: BatchNorm<B>,
    head: Linear<B>,
    /// Frozen, and not finite.
    mask: Param<Tensor<B, 1>>,
    /// A statistic beside it: that of the pixels.
    level: RunningState<Tensor<B, 1>>,
}

impl<B: Backend> Net<B> {
    /// The same weights every time.
    fn new() -> Self {
        struct Seeded;
        impl<B: Backend> ModuleMapper<B> for Seeded {
            fn map_float<const D: usize>(
                &mut self,
                param: Param<Tensor<B, D>>,
            ) -> Param<Tensor<B, D>> {
                if !param.is_require_grad() {
                    return param;
                }
                param.map(|old| {
                    let noise = normal::<B, D>(old.dims(), 7, &old.device());
                    (noise * 0.2 + 0.1).require_grad()
                })
            }
        }
        let device = B::Device::default();
        let mask = Tensor::<B, 1>::from_floats([0.0, f32::NEG_INFINITY], &device);
        let net = Self {
            conv: Conv2dConfig::new([1, 4], [3, 3]).init(&device),
            norm: BatchNormConfig::new(4).init(&device),
            head: LinearConfig::new(64, 2).init(&device),
            mask: Param::from_tensor(mask).set_require_grad(false),
            level: RunningState::new(Tensor::zeros([1], &device)),
        };
        net.map(&mut Seeded)
    }

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let level = self.level.value_sync() * 0.9 + x.clone().detach().mean() * 0.1;
        self.level.update(level.detach());
        let x = gelu(self.norm.forward(self.conv.forward(x)));
        self.head.forward(x.flatten(1, 3))
    }

    fn loss(&self, x: Tensor<B, 4>) -> Tensor<B, 1> {
        self.forward(x).powi_scalar(2).mean()
    }

    /// The statistics as they come to be used, by bits.
    fn statistics(&self) -> Vec<u32> {
        [&self.norm.running_mean, &self.norm.running_var, &self.level]
            .into_iter()
            .flat_map(|state| {
                let value = state.value_sync();
                assert_eq!(value.dtype(), DType::F32);
                value.into_data().to_vec::<f32>().unwrap()
            })
            .map(f32::to_bits)
            .collect()
    }
}

fn evaluation<B: AutodiffBackend>(net: &Net<B>) -> Vec<f64> {
    values(net.valid().forward(images::<B::InnerBackend>(99)))
}

fn images<B: Backend>(seed: u64) -> Tensor<B, 4> {
    normal([8, 1, 6, 6], seed, &B::Device::default())
}

/// A batch whose forward pass is not finite.
#[derive(Debug, Clone, Copy)]
enum Poison {
    NaN,
    Infinity,
    /// Finite in f32, and beyond f16 after the convolution.
    Overflow,
}

fn poisoned<B: Backend>(poison: Poison) -> Tensor<B, 4> {
    let x = images::<B>(50);
    match poison {
        Poison::Overflow => x.abs() * 6e4,
        Poison::NaN => x.slice_fill([0..1, 0..1, 0..1, 0..1], f32::NAN),
        Poison::Infinity => x.slice_fill([0..1, 0..1, 0..1, 0..1], f32::INFINITY),
    }
}

type SgdOf<B> = OptimizerAdaptor<Sgd<<B as AutodiffBackend>::InnerBackend>, Net<B>, B>;

/// Checked in every order, whether losses are scaled or not.
fn optimizer<B: AutodiffBackend>(statistics_guard: bool) -> AmpOptimizer<SgdOf<B>> {
    AmpOptimizerConfig::new()
        .with_gradient_check(GradientCheck::Always)
        .with_statistics_guard(statistics_guard)
        .init(SgdConfig::new().init())
}

fn f16() -> Autocast {
    Autocast::new(&AmpConfig::f16()).unwrap()
}

fn gradients<B: AutodiffBackend>(net: &Net<B>, x: Tensor<B, 4>) -> GradientsParams {
    GradientsParams::from_grads(net.loss(x).backward(), net)
}

/// Gradients that are not finite, whatever the forward pass was.
fn wild_gradients<B: AutodiffBackend>(net: &Net<B>) -> GradientsParams {
    let bias = net.head.bias.as_ref().unwrap();
    let mut grads = GradientsParams::new();
    let wild = Tensor::<B::InnerBackend, 1>::full([2], f32::INFINITY, &bias.device());
    grads.register::<B::InnerBackend, 1>(bias.id, wild);
    grads
}

fn step<B: AutodiffBackend>(
    optim: &mut AmpOptimizer<SgdOf<B>>,
    net: Net<B>,
    x: Tensor<B, 4>,
) -> Net<B> {
    let grads = gradients(&net, x);
    optim.step(0.05, net, grads)
}

/// A few steps on good batches, the scale low enough for all of them.
fn trained<B: AutodiffBackend>(amp: &Autocast, optim: &mut AmpOptimizer<SgdOf<B>>) -> Net<B> {
    amp.loss_scaler().set_scale(1024.0).unwrap();
    let mut net = Net::<B>::new();
    for seed in 0..3 {
        net = step(optim, net, images(seed));
        assert_eq!(optim.outcome(), Some(&StepOutcome::Applied));
    }
    net
}

#[test]
fn evaluation_after_a_poisoned_batch_is_what_it_was_before() {
    fn check<B: AutodiffBackend>(poison: Poison) {
        let amp = f16();
        amp.run(|| {
            for guard in [true, false] {
                let mut optim = optimizer::<B>(guard);
                let mut net = trained::<B>(&amp, &mut optim);
                let before = evaluation(&net);
                net = step(&mut optim, net, poisoned(poison));
                assert!(optim.outcome().unwrap().is_skipped(), "{poison:?}");
                let after = evaluation(&net);
                if guard {
                    assert_eq!(after, before, "{poison:?}");
                    amp.loss_scaler().set_scale(1024.0).unwrap();
                    net = step(&mut optim, net, images(4));
                    assert!(optim.outcome().unwrap().is_applied());
                    assert!(evaluation(&net).iter().all(|value| value.is_finite()));
                } else {
                    assert!(after.iter().any(|value| value.is_nan()), "{poison:?}");
                }
            }
        });
    }
    for poison in [Poison::NaN, Poison::Infinity, Poison::Overflow] {
        check::<Ours>(poison);
    }
    // Nothing overflows in f32.
    for poison in [Poison::NaN, Poison::Infinity] {
        check::<Burns>(poison);
        check::<Plain>(poison);
    }
}

#[test]
fn finite_statistics_of_a_skipped_step_stay() {
    let amp = f16();
    let run = |guard| {
        amp.run(|| {
            let mut optim = optimizer::<Ours>(guard);
            let net = trained(&amp, &mut optim);
            let before = net.statistics();
            amp.loss_scaler().set_scale(2f32.powi(40)).unwrap();
            let net = step(&mut optim, net, images(3));
            assert!(optim.outcome().unwrap().is_skipped());
            assert_ne!(net.statistics(), before);
            // They are what a later poisoned step goes back to.
            let kept = net.statistics();
            if guard {
                let net = step(&mut optim, net, poisoned(Poison::NaN));
                assert_eq!(net.statistics(), kept);
            }
            kept
        })
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn only_skipped_steps_are_read() {
    let amp = f16();
    let reads_of = |optim: &mut AmpOptimizer<_>, net: Net<Ours>, x| {
        let grads = gradients(&net, x);
        Counters::reset();
        let net = optim.step(0.05, net, grads);
        (net, Counters::get())
    };
    amp.run(|| {
        for (guard, expected) in [(true, [1, 2, 3]), (false, [1, 1, 1])] {
            let mut optim = optimizer::<Ours>(guard);
            let net = trained(&amp, &mut optim);
            let (net, usual) = reads_of(&mut optim, net, images(3));
            assert!(optim.outcome().unwrap().is_applied());
            amp.loss_scaler().set_scale(2f32.powi(40)).unwrap();
            // The infinite mask would be looked at twice in every skipped step.
            let net = Net {
                mask: Param::from_tensor(Tensor::ones([2], &Default::default()))
                    .set_require_grad(false),
                ..net
            };
            let (net, finite) = reads_of(&mut optim, net, images(3));
            let (_, poisoned) = reads_of(&mut optim, net, poisoned(Poison::NaN));
            assert_eq!(optim.counters().skipped, 2);
            assert_eq!(
                [usual, finite, poisoned].map(|counters| counters.reads),
                expected
            );
            assert_eq!(usual.casts, 0);
        }
    });
}

#[test]
fn nothing_changes_where_nothing_is_skipped() {
    let amp = f16();
    let run = |guard| {
        amp.run(|| {
            let mut optim = optimizer::<Ours>(guard);
            let mut net = trained(&amp, &mut optim);
            let mut losses = Vec::new();
            for seed in 10..16 {
                // Two micro-batches, as accumulation has them.
                let mut accumulator = GradientsAccumulator::new();
                for part in [0, 100] {
                    let loss = net.loss(images(seed + part));
                    losses.extend(values(loss.clone()));
                    let grads = GradientsParams::from_grads(loss.backward(), &net);
                    accumulator.accumulate(&net, grads);
                }
                net = optim.step(0.05, net, accumulator.grads());
                losses.extend(evaluation(&net));
            }
            assert_eq!(optim.counters().skipped, 0);
            // Brings in the last update, which a visit alone does not see.
            let statistics = net.statistics();
            (losses, statistics, common::parameter_bits::<Ours, _>(&net))
        })
    };
    assert_eq!(run(true), run(false));
}

#[test]
fn a_first_step_goes_back_to_where_it_began() {
    f16().run(|| {
        let mut optim = optimizer::<Ours>(true);
        let net = Net::<Ours>::new();
        let before = net.statistics();
        let net = step(&mut optim, net, poisoned(Poison::NaN));
        assert_eq!(net.statistics(), before);
    });
}

#[test]
fn a_poisoned_micro_batch_is_undone_with_its_window() {
    let amp = f16();
    amp.run(|| {
        let mut optim = optimizer::<Ours>(true);
        let net = trained(&amp, &mut optim);
        let before = net.statistics();
        for micro_batch in [poisoned(Poison::NaN), images(20), images(21)] {
            net.forward(micro_batch);
        }
        let grads = wild_gradients(&net);
        let net = optim.step(0.05, net, grads);
        assert_eq!(net.statistics(), before);
    });
}

#[test]
fn several_devices_step_as_one_does() {
    let amp = f16();
    amp.run(|| {
        let mut optim = optimizer::<Ours>(true);
        let net = trained(&amp, &mut optim);
        let before = net.statistics();
        net.forward(poisoned(Poison::NaN));
        let mut grads = MultiGradientsParams::default();
        grads
            .grads
            .push((wild_gradients(&net), DeviceId::new(0, 0)));
        let net = optim.step_multi(0.05, net, grads);
        assert!(optim.outcome().unwrap().is_skipped());
        assert_eq!(net.statistics(), before);
    });
}

/// As Burn's `Learner` has it: it keeps the module while a clone of it steps, and other threads may have
/// run the forward passes.
#[test]
fn clones_and_threads_see_what_was_put_back() {
    let amp = f16();
    amp.run(|| {
        let mut optim = optimizer::<Ours>(true);
        let net = trained(&amp, &mut optim);
        let before = (net.statistics(), evaluation(&net));
        let threads = [poisoned(Poison::NaN), images(30)].map(|x| {
            let worker = net.clone();
            std::thread::spawn(move || {
                let amp = f16();
                amp.run(|| worker.forward(x));
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
        let grads = wild_gradients(&net);
        let stepped = optim.step(0.05, net.clone(), grads);
        let elsewhere = {
            let stepped = stepped.clone();
            std::thread::spawn(move || stepped.statistics())
        };
        assert_eq!(elsewhere.join().unwrap(), before.0);
        for net in [net, stepped] {
            assert_eq!((net.statistics(), evaluation(&net)), before);
        }
    });
}

#[test]
fn statistics_go_back_together() {
    let mut optim = optimizer::<Ours>(true);
    let net = trained(&f16(), &mut optim);
    let before = net.statistics();
    // Without a convolution and in f32: the mean is finite, its square is not. The level is another layer's.
    net.level.update(Tensor::ones([1], &Default::default()));
    net.norm.forward(
        Tensor::<Ours, 2>::ones([2, 4], &Default::default())
            * 1e30
            * normal([2, 4], 3, &Default::default()),
    );
    let mean = values(net.norm.running_mean.value_sync());
    assert!(
        mean.iter()
            .all(|value| value.is_finite() && value.abs() > 1e20)
    );
    let grads = wild_gradients(&net);
    let net = optim.step(0.05, net, grads);
    assert_eq!(net.statistics(), before);
}

#[test]
fn frozen_parameters_are_not_touched() {
    let amp = f16();
    amp.run(|| {
        let mut optim = optimizer::<Ours>(true);
        let mut net = trained(&amp, &mut optim);
        // The program moves a frozen scale between two steps, as that of a teacher, and spoils a bias.
        net.norm.gamma = net.norm.gamma.set_require_grad(false);
        net.norm.beta = net.norm.beta.set_require_grad(false);
        net = step(&mut optim, net, images(40));
        net.norm.gamma = net.norm.gamma.map(|gamma| gamma * 0.5);
        net.norm.beta = net.norm.beta.map(|beta| beta * f32::NAN);
        let bits = |net: &Net<Ours>| {
            [&net.norm.gamma, &net.norm.beta, &net.mask].map(|param| {
                let data = param.val().into_data().to_vec::<f32>().unwrap();
                data.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            })
        };
        let (frozen, statistics) = (bits(&net), net.statistics());
        net = step(&mut optim, net, poisoned(Poison::NaN));
        assert!(optim.outcome().unwrap().is_skipped());
        assert_eq!(bits(&net), frozen);
        assert_eq!(net.statistics(), statistics);
        assert!(!net.norm.gamma.is_require_grad());
        assert!(net.conv.weight.is_require_grad());
    });
}

#[test]
fn a_loaded_checkpoint_is_what_a_step_goes_back_to() {
    let amp = f16();
    amp.run(|| {
        let mut optim = optimizer::<Ours>(true);
        let mut net = trained(&amp, &mut optim);
        let loaded = Net::<Ours>::new().load_record(net.clone().into_record());
        let statistics = loaded.statistics();
        let record = Optimizer::<Net<Ours>, Ours>::to_record(&optim);
        net = step(&mut optim, net, images(60));
        assert_ne!(net.statistics(), statistics);

        let mut optim = Optimizer::<Net<Ours>, Ours>::load_record(optim, record);
        let net = step(&mut optim, loaded, poisoned(Poison::NaN));
        assert_eq!(net.statistics(), statistics);
    });
}

#[test]
fn guard_is_on_unless_the_configuration_says_otherwise() {
    let on: AmpOptimizerConfig = serde_json::from_str("{}").unwrap();
    assert_eq!(on, AmpOptimizerConfig::new());
    assert_eq!(on, AmpOptimizerConfig::new().with_statistics_guard(true));
    let off: AmpOptimizerConfig = serde_json::from_str(r#"{"statistics_guard": false}"#).unwrap();
    assert_eq!(off, AmpOptimizerConfig::new().with_statistics_guard(false));
    assert_ne!(on, off);
}

#[test]
fn a_micro_batch_that_is_dropped_leaves_no_trace_in_statistics() {
    f16().run(|| {
        let mut optim = optimizer::<Ours>(true);
        let mut net = Net::<Ours>::new();
        let mut accumulator = AmpGradientsAccumulator::new(BadMicroBatch::Drop);
        for window in 0..2 {
            for micro_batch in 0..3 {
                let seed = 10 * window + micro_batch;
                let good = net.statistics();
                let is_bad = micro_batch == 1;
                let x = if is_bad {
                    poisoned(Poison::NaN)
                } else {
                    images(seed)
                };
                let grads = gradients(&net, x);
                let dropped = accumulator.accumulate(&net, grads);
                assert_eq!(!dropped.is_empty(), is_bad);
                assert_eq!(net.statistics() == good, is_bad);
            }
            let grads = accumulator.grads(&net);
            net = optim.step(0.1, net, grads);
            assert!(optim.outcome().unwrap().is_applied());
        }
        // The optimizer's own guard knows good ones too.
        let good = net.statistics();
        net = step(&mut optim, net, poisoned(Poison::NaN));
        assert!(optim.outcome().unwrap().is_skipped());
        assert_eq!(net.statistics(), good);
        assert!(evaluation(&net).iter().all(|value| value.is_finite()));
    });
}
