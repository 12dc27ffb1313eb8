//! Burn's optimizers inside the wrapper: what they learn, what a refused step leaves, what their
//! arithmetic is.

mod common;

use burn::backend::Flex;
use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{Gelu, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamConfig, AdamWConfig, AdanConfig, GradientsParams, LBFGSConfig, MultiGradientsParams,
    MuonConfig, Optimizer, RmsPropConfig, SgdConfig,
};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Record, Recorder};
use burn::tensor::backend::{AutodiffBackend, Backend, DeviceOps};
use burn::tensor::{DType, Tensor};
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::{Amp, AmpConfig, AmpOptimizer, AmpOptimizerConfig, Autocast, Autodiff, StepOutcome};

type B = Autodiff<Amp<Flex>>;
type Inner = Amp<Flex>;

/// Matrices only: Muon takes no vectors.
#[derive(Module, Debug)]
struct Net<B: Backend> {
    up: Linear<B>,
    down: Linear<B>,
    activation: Gelu,
}

impl<B: Backend> Net<B> {
    fn new() -> Self {
        let device = Default::default();
        let net = Self {
            up: LinearConfig::new(8, 32).with_bias(false).init(&device),
            down: LinearConfig::new(32, 1).with_bias(false).init(&device),
            activation: Gelu::new(),
        };
        common::randomize(net, 3)
    }

    /// The error on a noisy target: no model gets below the noise.
    fn loss(&self, batch: u64) -> Tensor<B, 1> {
        let device = self.up.weight.val().device();
        let x = common::normal::<B, 2>([64, 8], 10 + batch, &device);
        let noise = common::normal::<B, 2>([64, 1], 20 + batch, &device);
        let y = x.clone().slice([0..64, 0..3]).sum_dim(1).tanh() + noise * 0.5;
        let hidden = self.activation.forward(self.up.forward(x));
        (self.down.forward(hidden) - y).powi_scalar(2).mean()
    }
}

fn grads<B: AutodiffBackend>(net: &Net<B>, batch: u64) -> GradientsParams {
    GradientsParams::from_grads(net.loss(batch).backward(), net)
}

fn bits(net: &Net<B>) -> Vec<Vec<u32>> {
    common::parameter_bits::<B, _>(net)
}

fn wrap<O>(optim: O) -> AmpOptimizer<O> {
    AmpOptimizerConfig::new().init(optim)
}

/// Calls a check with a name, a function that makes the optimizer, and a learning rate.
macro_rules! for_every_optimizer {
    ($check:ident) => {
        $check("Adam", || AdamConfig::new().init::<B, Net<B>>(), 1e-2);
        $check("AdamW", || AdamWConfig::new().init::<B, Net<B>>(), 1e-2);
        $check(
            "SGD",
            || {
                let momentum = MomentumConfig::new().with_momentum(0.9);
                SgdConfig::new()
                    .with_momentum(Some(momentum))
                    .init::<B, Net<B>>()
            },
            2e-2,
        );
        $check("RMSprop", || RmsPropConfig::new().init::<B, Net<B>>(), 3e-3);
        $check("Adan", || AdanConfig::new().init::<B, Net<B>>(), 1e-2);
        $check("Muon", || MuonConfig::new().init::<B, Net<B>>(), 2e-2);
    };
}

fn scope(config: AmpConfig) -> Autocast {
    Autocast::new(&config).unwrap()
}

/// The mean loss over three batches after training on them.
fn trained<O: Optimizer<Net<B>, B>>(optim: O, lr: f64) -> f64 {
    let mut net = Net::new();
    let mut optim = wrap(optim);
    for step in 0..60 {
        let grads = grads(&net, step % 3);
        net = optim.step(lr, net, grads);
    }
    assert!(optim.counters().applied > 50, "{:?}", optim.counters());
    let losses = (0..3).map(|batch| common::values(net.loss(batch))[0]);
    losses.sum::<f64>() / 3.0
}

fn check_training<O: Optimizer<Net<B>, B>>(name: &str, optim: fn() -> O, lr: f64) {
    let untrained = common::values(Net::<B>::new().loss(0))[0];
    let f32 = trained(optim(), lr);
    assert!(
        f32 < 0.6 * untrained,
        "{name} learns nothing: {untrained} to {f32}"
    );
    for config in [AmpConfig::bf16(), AmpConfig::f16()] {
        let half = scope(config.clone()).run(|| trained(optim(), lr));
        assert!(
            (half - f32).abs() < 0.05 * f32,
            "{name} in {}: {half}, in f32 {f32}",
            config.precision()
        );
    }
}

#[test]
fn should_train_in_half_precision_as_in_f32() {
    for_every_optimizer!(check_training);
}

/// A record as a tree, in which the order of a map's entries does not matter.
fn tree<R: Record<B>>(record: R) -> serde_json::Value {
    serde_json::to_value(record.into_item::<FullPrecisionSettings>()).unwrap()
}

/// Replaces one value of the gradient of `net.down`.
fn poison(net: &Net<B>, grads: &mut GradientsParams, value: f32) {
    let id = net.down.weight.id;
    let grad: Tensor<Inner, 2> = grads.remove(id).unwrap();
    let device = grad.device();
    let bad = Tensor::full([1, 1], value, &device);
    grads.register(id, grad.slice_assign([3..4, 0..1], bad));
}

fn check_refusal<O: Optimizer<Net<B>, B>>(name: &str, optim: fn() -> O, lr: f64) {
    for value in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
        scope(AmpConfig::f16()).run(|| {
            let mut net = Net::new();
            let mut optim = wrap(optim());
            for step in 0..3 {
                let grads = grads(&net, step);
                net = optim.step(lr, net, grads);
            }
            let before = (bits(&net), tree(optim.inner().to_record()));
            assert!(
                before.1.as_object().is_some_and(|map| map.len() == 2),
                "{name}: {}",
                before.1
            );

            let mut bad = grads(&net, 0);
            poison(&net, &mut bad, value);
            let net = optim.step(lr, net, bad);

            let Some(StepOutcome::Skipped { gradients, .. }) = optim.outcome() else {
                panic!("{name} on {value}: {:?}", optim.outcome());
            };
            assert_eq!(gradients.len(), 1);
            assert_eq!(gradients[0].path, "down.weight");
            let after = (bits(&net), tree(optim.inner().to_record()));
            assert!(after == before, "{name} on {value}");

            // The next step goes on from there.
            let grads = grads(&net, 1);
            let moved = optim.step(lr, net, grads);
            assert!(bits(&moved) != before.0, "{name} on {value}");
        });
    }
}

#[test]
fn should_leave_module_and_state_bitwise_on_gradients_that_are_not_finite() {
    for_every_optimizer!(check_refusal);
}

/// Gradients that no forward pass had a part in.
fn given_grads(net: &Net<B>, seed: u64) -> GradientsParams {
    struct Given(GradientsParams, u64);

    impl ModuleVisitor<B> for Given {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let tensor = param.val();
            let grad = common::normal::<Inner, D>(tensor.dims(), self.1, &tensor.device());
            self.0.register(param.id, grad * 0.01);
            self.1 += 1;
        }
    }

    let mut given = Given(GradientsParams::new(), seed);
    net.visit(&mut given);
    given.0
}

/// Four steps on given gradients.
fn stepped<O: Optimizer<Net<B>, B>>(mut optim: O, lr: f64) -> Vec<Vec<u32>> {
    let mut net = Net::new();
    for step in 0..4 {
        let grads = given_grads(&net, 100 * step);
        net = optim.step(lr, net, grads);
    }
    bits(&net)
}

fn check_arithmetic<O: Optimizer<Net<B>, B>>(name: &str, optim: fn() -> O, lr: f64) {
    let plain = stepped(optim(), lr);
    for config in [AmpConfig::bf16(), AmpConfig::f16()] {
        let amp = scope(config);
        let wrapped = amp.run(|| stepped(wrap(optim()), lr));
        assert!(wrapped == plain, "{name} is not computed in f32");
        // Newton and Schulz's iteration is made of products: what the wrapper is for.
        if name == "Muon" {
            assert!(amp.run(|| stepped(optim(), lr)) != plain);
        }
    }
}

#[test]
fn should_compute_in_f32_inside_whatever_the_scope() {
    for_every_optimizer!(check_arithmetic);
}

fn multi(parts: Vec<GradientsParams>) -> MultiGradientsParams {
    let device = <B as burn::tensor::backend::BackendTypes>::Device::default();
    MultiGradientsParams {
        grads: parts
            .into_iter()
            .map(|grads| (grads, device.id()))
            .collect(),
    }
}

fn check_multi<O: Optimizer<Net<B>, B>>(name: &str, optim: fn() -> O, lr: f64) {
    let net = Net::new();
    let parts = || vec![given_grads(&net, 1), given_grads(&net, 2)];
    let plain = bits(&optim().step_multi(lr, net.clone(), multi(parts())));

    scope(AmpConfig::f16()).run(|| {
        let mut optim = wrap(optim());
        let stepped = optim.step_multi(lr, net.clone(), multi(parts()));
        assert!(bits(&stepped) == plain, "{name}");
        assert_eq!(optim.outcome(), Some(&StepOutcome::Applied));

        let mut bad = parts();
        poison(&net, &mut bad[1], f32::INFINITY);
        let refused = optim.step_multi(lr, stepped, multi(bad));
        assert!(bits(&refused) == plain, "{name}");
        assert!(
            optim.outcome().is_some_and(StepOutcome::is_skipped),
            "{name}"
        );
    });
}

#[test]
fn should_make_one_decision_over_the_gradients_of_several_devices() {
    for_every_optimizer!(check_multi);
}

fn train_on<O: Optimizer<Net<B>, B>>(
    optim: &mut O,
    mut net: Net<B>,
    steps: std::ops::Range<u64>,
    lr: f64,
) -> Net<B> {
    for step in steps {
        let grads = grads(&net, step);
        net = optim.step(lr, net, grads);
    }
    net
}

fn check_resuming<O: Optimizer<Net<B>, B>>(name: &str, optim: fn() -> O, lr: f64) {
    // The scale grows twice before the checkpoint and twice after.
    let scope = || scope(AmpConfig::f16().with_growth_interval(2));

    let (uninterrupted, scale) = scope().run(|| {
        let mut optim = wrap(optim());
        let net = train_on(&mut optim, Net::new(), 0..9, lr);
        (bits(&net), optim.scale())
    });

    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    let (net, bytes) = scope().run(|| {
        let mut optim = wrap(optim());
        let net = train_on(&mut optim, Net::new(), 0..5, lr);
        let bytes = Recorder::<B>::record(&recorder, optim.to_record(), ()).unwrap();
        (net, bytes)
    });
    scope().run(|| {
        let record = Recorder::<B>::load(&recorder, bytes, &Default::default()).unwrap();
        let mut optim = wrap(optim()).load_record(record);
        let counters = optim.counters();
        assert_eq!(counters.applied + counters.skipped, 5, "{name}");
        let net = train_on(&mut optim, net, 5..9, lr);
        assert!(bits(&net) == uninterrupted, "{name}");
        assert_eq!(optim.scale(), scale, "{name}");
    });
}

#[test]
fn should_resume_bitwise_from_a_record() {
    for_every_optimizer!(check_resuming);
}

#[test]
fn should_clip_true_gradients_whatever_the_scale() {
    let train = |clipping: Option<GradientClippingConfig>, config: AmpConfig, scale: f32| {
        let config = config.with_loss_scale(LossScaleConfig::fixed(scale));
        scope(config).run(|| {
            let mut optim = wrap(
                SgdConfig::new()
                    .with_gradient_clipping(clipping)
                    .init::<B, Net<B>>(),
            );
            let net = train_on(&mut optim, Net::new(), 0..5, 0.1);
            assert_eq!(optim.counters().applied, 5);
            bits(&net)
        })
    };
    // Both have the range to hold a gradient times 65536 exactly.
    for config in [AmpConfig::f32(), AmpConfig::bf16()] {
        let free = train(None, config.clone(), 1.0);
        for clipping in [
            GradientClippingConfig::Norm(0.01),
            GradientClippingConfig::Value(0.001),
        ] {
            let unscaled = train(Some(clipping.clone()), config.clone(), 1.0);
            let scaled = train(Some(clipping.clone()), config.clone(), 65536.0);
            assert!(scaled == unscaled, "{clipping:?} in {}", config.precision());
            assert!(
                unscaled != free,
                "{clipping:?} in {} clips",
                config.precision()
            );
        }
    }
}

#[test]
fn should_reduce_the_loss_with_lbfgs_and_a_closure_in_bf16() {
    scope(AmpConfig::bf16()).run(|| {
        let mut optim = LBFGSConfig::new().with_max_iter(5).init::<B>();
        let mut net = Net::<B>::new();
        let before = common::values(net.loss(0))[0];
        for _ in 0..4 {
            (net, _) = optim.step(0.5, net, |net: Net<B>| {
                let loss = net.loss(0);
                assert_eq!(loss.dtype(), DType::F32);
                let grads = GradientsParams::from_grads(loss.backward(), &net);
                (common::values(loss)[0], grads)
            });
        }
        let after = common::values(net.loss(0))[0];
        assert!(after < 0.6 * before, "{before} to {after}");
    });
}
