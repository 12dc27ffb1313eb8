//! Theme 9: threads and scopes; and copies of weights, which there are none of (theme 10).

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::Flex;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::module::Module;
use burn::nn::{Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::activation::{relu, softmax};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor};
use burn_amp::{Amp, AmpConfig, AmpOptimizerConfig, Autocast, autocast, full_precision};

use crate::common::{normal, randomize, tensor, values};
use crate::support::{
    Burns, Ours, Scalar, Scaling, SetTo, Training, Vectors, amp16, amp16_from, ampbf, assert_values,
};

fn product<B: Backend>(seed: u64) -> Tensor<B, 2> {
    let device = B::Device::default();
    normal::<B, 2>([17, 33], seed, &device).matmul(normal([33, 5], seed + 1, &device))
}

#[test]
fn case_50_an_autocast_can_be_entered_on_every_thread() {
    fn check<B: Backend>() {
        let amp = amp16();
        let here = amp.run(|| product::<B>(50));
        assert_eq!(here.dtype(), DType::F16);
        let here = values(here);
        std::thread::scope(|threads| {
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    let amp = amp.clone();
                    threads.spawn(move || values(amp.run(|| product::<B>(50))))
                })
                .collect();
            for worker in workers {
                assert_eq!(worker.join().unwrap(), here);
            }
        });
    }
    on_every_backend!(check());
}

#[test]
fn case_50_a_scope_belongs_to_its_thread() {
    fn check<B: Backend>() {
        amp16().run(|| {
            std::thread::scope(|threads| {
                let dtype = threads.spawn(|| product::<B>(51).dtype()).join().unwrap();
                assert_eq!(dtype, DType::F32);
            });
        });
    }
    on_every_backend!(check());
}

#[test]
fn case_50_toggling_a_scope_does_not_reach_other_threads() {
    fn check<B: Backend>() {
        let amp = amp16();
        let expected = values(amp.run(|| product::<B>(52)));
        std::thread::scope(|threads| {
            let toggling = amp.clone();
            let toggler = threads.spawn(move || {
                let _outer = toggling.enter();
                let one = Tensor::<B, 2>::ones([1, 1], &B::Device::default());
                for _round in 0..1000 {
                    let off = full_precision(|| one.clone().matmul(one.clone()).dtype());
                    assert_eq!(off, DType::F32);
                    assert_eq!(one.clone().matmul(one.clone()).dtype(), DType::F16);
                }
            });
            let _scope = amp.enter();
            while !toggler.is_finished() {
                let product = product::<B>(52);
                assert_eq!(product.dtype(), DType::F16);
                assert_eq!(values(product), expected);
            }
            toggler.join().unwrap();
        });
    }
    on_every_backend!(check());
}

#[derive(Clone, Copy)]
enum Backward {
    Inside,
    After,
}

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    up: Linear<B>,
    norm: LayerNorm<B>,
    middle: Linear<B>,
    down: Linear<B>,
    activation: Gelu,
}

/// The bits of every gradient, of a backward pass inside the scope or after it has ended.
fn gradients<B: AutodiffBackend>(amp: &Autocast, backward: Backward) -> Vec<Vec<u64>> {
    let device = B::Device::default();
    let model = Mlp::<B> {
        up: LinearConfig::new(8, 16).init(&device),
        norm: LayerNormConfig::new(16).init(&device),
        middle: LinearConfig::new(16, 16).init(&device),
        down: LinearConfig::new(16, 4).init(&device),
        activation: Gelu::new(),
    };
    let model = randomize(model, 5);
    let loss = amp.run(|| {
        let x = normal::<B, 2>([32, 8], 6, &device);
        let hidden = model
            .activation
            .forward(model.norm.forward(model.up.forward(x)));
        let hidden = relu(model.middle.forward(hidden)).tanh() * 0.7;
        softmax(model.down.forward(hidden), 1).powi_scalar(2).mean()
    });
    let grads = match backward {
        Backward::Inside => amp.run(|| loss.backward()),
        Backward::After => loss.backward(),
    };
    let grads = GradientsParams::from_grads(grads, &model);
    let bits = |layer: &Linear<B>| {
        let grad = grads.get::<B::InnerBackend, 2>(layer.weight.id).unwrap();
        values(grad).into_iter().map(f64::to_bits).collect()
    };
    [&model.up, &model.middle, &model.down].map(bits).into()
}

#[test]
fn case_52_recomputation_runs_in_the_precision_of_the_forward_pass() {
    type OursChecked = burn_amp::Autodiff<Amp<Flex>, BalancedCheckpointing>;
    type BurnsChecked = burn::backend::Autodiff<Amp<Flex>, BalancedCheckpointing>;

    let off = Autocast::new(&AmpConfig::f32()).unwrap();
    for amp in [amp16_from(256.0), ampbf()] {
        for backward in [Backward::Inside, Backward::After] {
            let kept = gradients::<Ours>(&amp, backward);
            assert!(gradients::<OursChecked>(&amp, backward) == kept);
            // And that is not f32.
            assert!(gradients::<Ours>(&off, backward) != kept);
        }
        // In Burn's order backward consults the rules again, so it belongs inside.
        let kept = gradients::<Burns>(&amp, Backward::Inside);
        assert!(gradients::<BurnsChecked>(&amp, Backward::Inside) == kept);
    }
}

#[test]
fn case_52_backward_does_not_depend_on_the_scope_it_is_called_in() {
    // Powers of two, so that the scale itself changes nothing.
    for amp in [amp16_from(256.0), ampbf()] {
        let inside = gradients::<Ours>(&amp, Backward::Inside);
        let after = gradients::<Ours>(&amp, Backward::After);
        let close = inside.iter().flatten().zip(after.iter().flatten());
        for (inside, after) in close {
            let (inside, after) = (f64::from_bits(*inside), f64::from_bits(*after));
            // Unscaled, f16 loses the last digits of what is small.
            assert!(
                (inside - after).abs() <= 1e-3 * after.abs() + 1e-6,
                "{inside} {after}"
            );
        }
    }
}

/// 1 + 2⁻¹², which f16 and bf16 round to one.
fn fine<B: Backend>() -> Tensor<B, 2> {
    let device = B::Device::default();
    let fine = tensor::<B, 2>(&[1.0 + (-12f64).exp2()], [1, 1], DType::F32, &device);
    fine.matmul(Tensor::ones([1, 1], &device))
}

const FINE: f64 = 1.000244140625;

#[test]
fn case_53_the_outer_state_returns_however_the_inner_scope_is_left() {
    fn early<B: Backend>(leave: bool) -> Option<Tensor<B, 2>> {
        let _scope = burn_amp::enter_full_precision();
        if leave {
            return None;
        }
        Some(fine::<B>())
    }
    fn check<B: Backend>() {
        let amp = amp16();
        let _scope = amp.enter();
        let outer = || assert_values(fine::<B>(), DType::F16, &[1.0]);

        outer();
        assert_values(full_precision(fine::<B>), DType::F32, &[FINE]);
        outer();
        assert_values(early::<B>(false).unwrap(), DType::F32, &[FINE]);
        outer();
        assert!(early::<B>(true).is_none());
        outer();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            full_precision(|| {
                assert_values(fine::<B>(), DType::F32, &[FINE]);
                std::panic::resume_unwind(Box::new("leaves the scope"))
            })
        }));
        assert!(panicked.is_err());
        outer();
        let inner = autocast(&AmpConfig::bf16(), || {
            let inner = fine::<B>();
            assert_values(full_precision(fine::<B>), DType::F32, &[FINE]);
            assert_eq!(fine::<B>().dtype(), DType::BF16);
            inner
        });
        assert_values(inner.unwrap(), DType::BF16, &[1.0]);
        outer();
        let inner = ampbf().run(|| amp.run(fine::<B>));
        assert_values(inner, DType::F16, &[1.0]);
        outer();
    }
    on_every_backend!(check());
    // Nothing is left over.
    assert_values(fine::<Amp<Flex>>(), DType::F32, &[FINE]);
}

#[test]
fn case_53_inner_scopes_leave_loss_scaling_alone() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_from(1024.0);
        let _scope = amp.enter();
        let sgd = SgdConfig::new().init::<B, Scalar<B>>();
        let mut training = Training::new(scaling, &amp, sgd);
        let model = Scalar::<B>::new(1.0);
        // Part of the loss is f32; and backward may be called inside.
        let loss = model.loss(2.0) + full_precision(|| model.loss(0.5));
        let (model, outcome) = full_precision(|| training.step(1.0, model, loss));
        assert!(outcome.is_applied());
        assert_eq!(model.value(), -1.5);
        assert_eq!(training.state(&amp).counters().applied, 1);

        let loss = model.loss(f32::INFINITY);
        let (_, outcome) = full_precision(|| training.step(1.0, model, loss));
        assert!(outcome.is_skipped());
        assert_eq!(training.scale(&amp), 512.0);
    }
    in_every_way!(check());
}

#[test]
fn case_53_a_scope_without_scaling_inside_one_with_it() {
    let amp = amp16_from(1024.0);
    let _scope = amp.enter();
    let model = Vectors::<Ours>::new(&[&[1.0]]);
    // The scale is that of the scope that backward is called in.
    assert_eq!(model.loss(&[&[1.0]]).backward().scale(), 1024.0);
    assert_eq!(
        ampbf().run(|| model.loss(&[&[1.0]]).backward().scale()),
        1.0
    );
    assert_eq!(
        full_precision(|| model.loss(&[&[1.0]]).backward().scale()),
        1024.0
    );
}

#[test]
fn case_56_a_forward_pass_sees_weights_that_changed() {
    fn check<B: AutodiffBackend>() {
        let _scope = amp16_from(1024.0).enter();
        let output = |model: &Scalar<B>| values(model.forward())[0];
        let mut model = Scalar::<B>::new(1.0);
        assert_eq!(output(&model), 1.0);

        let mut optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
        let mut grads = GradientsParams::new();
        let down = Tensor::full([1, 1], -1.0, &B::Device::default());
        grads.register::<B::InnerBackend, 2>(model.w.id, down);
        model = optim.step(1.0, model, grads);
        assert_eq!(output(&model), 2.0);

        model = model.map(&mut SetTo(4.0));
        assert_eq!(output(&model), 4.0);

        model = model.load_record(Scalar::<B>::new(8.0).into_record());
        assert_eq!(output(&model), 8.0);

        // An average of weights that takes their place, and gives it back.
        let average = Scalar::<B>::new(16.0);
        let trained = std::mem::replace(&mut model, average);
        assert_eq!(output(&model), 16.0);
        assert_eq!(output(&trained), 8.0);
    }
    in_both_orders!(check());
}
