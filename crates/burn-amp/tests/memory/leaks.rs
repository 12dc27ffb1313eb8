//! Bytes in use stay where they are, step after step.

use burn::backend::Flex;
use burn::module::{Module, Param};
use burn::nn::{
    BatchNorm, BatchNormConfig, Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig,
};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::tensor::activation::softmax;
use burn::tensor::backend::Backend;
use burn::tensor::{DType, Tensor};
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::memory::MemorySource;
use burn_amp::{Amp, AmpConfig, AmpOptimizerConfig, Autocast, Autodiff, EmaConfig, StepOutcome};

use crate::common::normal;
use crate::{HEAP, alone};

type B = Autodiff<Amp<Flex>>;

#[derive(Module, Debug)]
struct Model<B: Backend> {
    norm: LayerNorm<B>,
    layer: Linear<B>,
    gelu: Gelu,
}

impl Model<B> {
    fn new() -> Self {
        let device = Default::default();
        Self {
            norm: LayerNormConfig::new(16).init(&device),
            layer: LinearConfig::new(16, 16).init(&device),
            gelu: Gelu::new(),
        }
    }

    fn loss(&self, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let scores = self.layer.forward(self.norm.forward(x.clone()));
        self.gelu
            .forward(softmax(scores, 1).matmul(x.transpose()))
            .sum()
    }
}

/// Bytes in use after each step. The test harness allocates too, on another thread, now and then: a leak
/// shows in every round.
fn assert_steady(what: &str, mut step: impl FnMut(usize)) {
    let mut grown = Vec::new();
    for _ in 0..3 {
        for index in 0..20 {
            step(index);
        }
        let after_20 = HEAP.in_use();
        for index in 20..200 {
            step(index);
        }
        let after_200 = HEAP.in_use();
        if after_200 == after_20 {
            return;
        }
        grown.push((after_20, after_200));
    }
    panic!("{what}: bytes in use after 20 and 200 steps: {grown:?}");
}

#[test]
fn should_leave_nothing_behind_in_training() {
    let _alone = alone();
    for config in [AmpConfig::bf16(), AmpConfig::f16()] {
        Autocast::new(&config).unwrap().run(|| {
            let mut model = Model::new();
            let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
            let x = normal::<B, 2>([8, 16], 75, &Default::default());
            assert_steady("steps that are applied", |_| {
                let gradients = model.loss(x.clone()).backward();
                let gradients = GradientsParams::from_grads(gradients, &model);
                model = optim.step(1e-4, model.clone(), gradients);
            });
        });
    }
}

#[test]
fn should_leave_nothing_behind_when_steps_are_skipped() {
    let _alone = alone();
    let config = AmpConfig::f16().with_loss_scale(LossScaleConfig::fixed(1024.0));
    Autocast::new(&config).unwrap().run(|| {
        let mut model = Model::new();
        let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
        let x = normal::<B, 2>([8, 16], 76, &Default::default());
        let mut skipped = 0;
        assert_steady("steps of which every other one is skipped", |index| {
            let size = if index % 2 == 0 { 1.0 } else { f32::INFINITY };
            let gradients = model.loss(x.clone()).mul_scalar(size).backward();
            let gradients = GradientsParams::from_grads(gradients, &model);
            model = optim.step(1e-4, model.clone(), gradients);
            skipped += usize::from(matches!(optim.outcome(), Some(StepOutcome::Skipped { .. })));
        });
        assert_eq!(skipped % 100, 0);
        assert!(skipped >= 100);
    });
}

#[test]
fn should_leave_nothing_behind_when_statistics_are_put_back() {
    let _alone = alone();
    let config = AmpConfig::f16().with_loss_scale(LossScaleConfig::fixed(1024.0));
    Autocast::new(&config).unwrap().run(|| {
        let mut model: BatchNorm<B> = BatchNormConfig::new(16).init(&Default::default());
        let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
        let x = normal::<B, 2>([8, 16], 80, &Default::default());
        assert_steady("steps of which every other one is poisoned", |index| {
            let size = if index % 2 == 0 { 1.0 } else { f32::NAN };
            let loss = model.forward(x.clone().mul_scalar(size)).sum();
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(1e-4, model.clone(), gradients);
            assert_eq!(optim.outcome().unwrap().is_skipped(), index % 2 == 1);
        });
    });
}

#[test]
fn should_leave_nothing_behind_in_an_average() {
    let _alone = alone();
    Autocast::new(&AmpConfig::bf16()).unwrap().run(|| {
        let mut model = Model::new();
        let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
        let mut ema = EmaConfig::new(0.9).init(&model).unwrap();
        let x = normal::<B, 2>([8, 16], 81, &Default::default());
        assert_steady("steps that are averaged", |_| {
            let loss = model.loss(x.clone());
            // Also while the graph is there.
            ema.update(&model);
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(1e-4, model.clone(), gradients);
            ema.update_after(&model, optim.outcome());
            drop(ema.valid(&model));
        });
    });
}

/// Four bytes for a bf16 parameter of two, and nothing of the graphs that it is in.
#[test]
fn should_keep_four_bytes_of_a_parameter_in_an_average() {
    const COUNT: u64 = 1 << 18;
    let _alone = alone();
    let device = Default::default();
    let ones = Tensor::<B, 2>::ones([512, 512], (&device, DType::BF16));
    let param = Param::from_tensor(ones);
    // What was there once stays in Burn's graph until then.
    param.val().sum().backward();
    let before = HEAP.in_use();
    let loss = (param.val() * param.val()).sum();
    let mut ema = EmaConfig::new(0.9).init(&param).unwrap();
    for _update in 0..3 {
        ema.update(&param);
    }
    drop(loss.backward());
    let kept = HEAP.in_use() - before;
    assert!((4 * COUNT..4 * COUNT + 8192).contains(&kept), "{kept}");
}

/// The value of a chain before it is stored is f32: 4 MiB here, on a thread that holds nothing else.
#[test]
fn should_let_go_of_a_chains_value_at_its_end() {
    let _alone = alone();
    let hold = || {
        let device = Default::default();
        let x = normal::<B, 2>([1024, 1024], 78, &device);
        let row = normal::<B, 2>([1, 1024], 79, &device).require_grad();
        let x = x.cast(DType::BF16);
        let before = HEAP.in_use();
        let sum = (x.clone() + row.clone()).sum();
        let after_a_sum = HEAP.in_use() - before;
        drop(sum);
        drop(softmax(x.clone() + row.clone(), 1));
        let after_a_softmax = HEAP.in_use() - before;
        let gradients = (x + row).mul_scalar(2.0).sum().backward();
        drop(gradients);
        [after_a_sum, after_a_softmax]
    };
    let held = std::thread::scope(|scope| {
        let run = || Autocast::new(&AmpConfig::bf16()).unwrap().run(hold);
        scope.spawn(run).join().unwrap()
    });
    // An abandoned softmax stays in Burn's graph until the next backward pass: 2 MiB.
    assert!(held.iter().all(|bytes| *bytes < 3 << 20), "{held:?}");
}

#[test]
fn should_leave_nothing_behind_when_a_forward_pass_is_abandoned() {
    let _alone = alone();
    Autocast::new(&AmpConfig::bf16()).unwrap().run(|| {
        let model = Model::new();
        let x = normal::<B, 2>([8, 16], 77, &Default::default());
        assert_steady(
            "forward passes, every other one without a backward pass",
            |index| {
                let loss = model.loss(x.clone());
                if index % 2 == 0 {
                    drop(loss.backward());
                }
            },
        );
    });
}
