//! Theme 4: unscaling, clipping, and gradients that are missing or half.

use burn::grad_clipping::GradientClippingConfig;
use burn::module::{Module, Param, ParamId};
use burn::nn::EmbeddingConfig;
use burn::optim::{AdamConfig, GradientsAccumulator, GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Int, Tensor};
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::{AmpOptimizerConfig, GradScaler, NonFinite, StepOutcome};

use crate::common::{parameter_bits, tensor, values};
use crate::support::{
    Ours, Plain, Scalar, Scaling, Training, Vectors, amp16, amp16_from, assert_within,
};

#[test]
fn case_25_gradients_are_never_divided_twice() {
    fn check<B: AutodiffBackend>() {
        let model = Vectors::<B>::new(&[&[1.0, 2.0]]);
        let mut scaler = GradScaler::new(LossScaleConfig::fixed(1024.0)).unwrap();
        let mut scaled = scaler.scale(model.loss(&[&[3.0, 4.0]])).backward();
        let first = scaler.unscale(&mut scaled, &model);
        let second = scaler.unscale(&mut scaled, &model);
        assert_eq!(model.read(first.params()), [[3.0, 4.0]]);
        assert!(second.params().is_empty());

        let mut optim = SgdConfig::new().init();
        let (model, outcome) = scaler.step(&mut optim, 1.0, model, second);
        assert_eq!(outcome, StepOutcome::NothingToDo);
        let (model, outcome) = scaler.step(&mut optim, 1.0, model, first);
        assert_eq!(outcome, StepOutcome::Applied);
        assert_eq!(model.values(), [[-2.0, -2.0]]);
    }
    amp16().run(|| in_both_orders!(check()));
}

#[test]
fn case_25_automatic_gradients_are_true_however_often_they_are_read() {
    amp16_from(1024.0).run(|| {
        let model = Vectors::<Ours>::new(&[&[1.0]]);
        let mut grads = model.loss(&[&[3.0]]).backward();
        assert_eq!(grads.scale(), 1024.0);
        let w = model.w[0].val();
        for _read in 0..2 {
            assert_eq!(values(w.grad(&grads).unwrap()), [3.0]);
        }
        // What is put back is true as well.
        w.grad_replace(
            &mut grads,
            tensor(&[5.0], [1], DType::F32, &Default::default()),
        );
        assert_eq!(values(w.grad_remove(&mut grads).unwrap()), [5.0]);
        assert!(w.grad(&grads).is_none());
    });
}

#[test]
fn case_25_a_step_can_be_discarded() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_from(1024.0);
        let _scope = amp.enter();
        let mut training = Training::new(scaling, &amp, SgdConfig::new().init());
        let model = Vectors::<B>::new(&[&[1.0]]);
        let loss = model.loss(&[&[1.0]]);
        let (model, _) = training.step(1.0, model, loss);
        let before = training.state(&amp);

        // Even a bad one: it was never stepped on.
        for grad in [7.0, f32::NAN] {
            let dropped = training.differentiate(model.loss(&[&[grad]]), &model);
            assert_eq!(dropped.len(), 1);
        }
        assert_eq!(training.state(&amp), before);

        let loss = model.loss(&[&[2.0]]);
        let (model, outcome) = training.step(1.0, model, loss);
        assert!(outcome.is_applied());
        assert_eq!(model.values(), [[-2.0]]);
        assert_eq!(
            training.state(&amp).growth_tracker(),
            before.growth_tracker() + 1
        );
    }
    in_every_way!(check());
}

#[test]
fn case_25_a_window_may_cross_the_end_of_an_epoch() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_from(1024.0);
        let _scope = amp.enter();
        let mut training = Training::new(scaling, &amp, SgdConfig::new().init());
        let mut model = Vectors::<B>::new(&[&[0.0]]);
        let mut accumulator = GradientsAccumulator::new();
        let mut steps = 0;
        for _epoch in 0..2 {
            for batch in 1..=5u8 {
                let loss = model.loss(&[&[batch.into()]]);
                accumulator.accumulate(&model, training.differentiate(loss, &model));
                // The micro-batch that is left over is applied by itself.
                if batch.is_multiple_of(2) || batch == 5 {
                    let outcome;
                    (model, outcome) = training.apply(1.0, model, accumulator.grads());
                    assert!(outcome.is_applied());
                    steps += 1;
                }
            }
        }
        assert_eq!((steps, model.values()), (6, vec![vec![-30.0]]));
        assert_eq!(training.state(&amp).growth_tracker(), 6);
    }
    in_every_way!(check());
}

#[test]
fn case_26_a_step_without_gradients_is_no_overflow() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_from(1024.0);
        let _scope = amp.enter();
        let mut training = Training::new(scaling, &amp, SgdConfig::new().init());
        let model = Vectors::<B>::new(&[&[1.0], &[2.0]]);
        let before = training.state(&amp);

        let (model, outcome) = training.apply(1.0, model, GradientsParams::new());
        assert_eq!(outcome, StepOutcome::NothingToDo);
        // A loss that no parameter takes part in.
        let detached = model.loss(&[&[1.0], &[1.0]]).detach().require_grad();
        let (model, outcome) = training.step(1.0, model, detached);
        assert_eq!(outcome, StepOutcome::NothingToDo);
        assert_eq!(model.values(), [[1.0], [2.0]]);
        assert_eq!(training.state(&amp), before);
    }
    in_every_way!(check());
}

#[test]
fn case_26_a_parameter_without_a_gradient_gets_no_state() {
    fn check<B: AutodiffBackend>() {
        let adam = AdamConfig::new().init::<B, Vectors<B>>();
        let mut optim = AmpOptimizerConfig::new().init(adam);
        let model = Vectors::<B>::new(&[&[1.0], &[2.0], &[0.1]]);
        let before = parameter_bits(&model);

        let grads = model.gradients(&[&[1.0], &[1.0]]);
        let model = optim.step(0.5, model, grads);
        assert!(optim.outcome().unwrap().is_applied());
        let after = parameter_bits(&model);
        assert_ne!(after[0], before[0]);
        assert_ne!(after[1], before[1]);
        assert_eq!(after[2], before[2]);
        let records = Optimizer::<Vectors<B>, B>::to_record(&optim).optim;
        assert_eq!(records.len(), 2);
        assert!(!records.contains_key(&model.w[2].id));
    }
    amp16().run(|| in_both_orders!(check()));
}

/// A weight stored in half, as a base model that was loaded so.
fn half_scalar<B: AutodiffBackend>(value: f64) -> Scalar<B> {
    let w = tensor::<B, 2>(&[value], [1, 1], DType::F16, &B::Device::default());
    Scalar {
        w: Param::initialized(ParamId::new(), w.require_grad()),
    }
}

#[test]
fn case_28_half_parameters_get_f32_masters() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_from(1024.0);
        let _scope = amp.enter();
        let mut training = Training::new(scaling, &amp, SgdConfig::new().init());
        let model = half_scalar::<B>(0.0);
        assert_eq!(model.w.val().dtype(), DType::F16);

        let loss = model.loss(1e-6);
        let (model, outcome) = training.step(1.0, model, loss);
        assert!(outcome.is_applied());
        assert_eq!(model.w.val().dtype(), DType::F32);
        assert!(model.w.is_require_grad());
        // Unscaled in f16 it would be 1.0133e-6.
        assert_within((-model.value()).into(), 1e-6, 1e-3);

        let loss = model.loss(1e-6);
        let (model, _) = training.step(1.0, model, loss);
        assert_within((-model.value()).into(), 2e-6, 1e-3);
    }
    in_every_way!(check());
}

#[test]
fn case_28_f32_adapters_on_a_frozen_half_base() {
    #[derive(Module, Debug)]
    struct Adapted<B: Backend> {
        base: Scalar<B>,
        adapter: Scalar<B>,
    }

    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_from(1024.0);
        let _scope = amp.enter();
        let mut training = Training::new(scaling, &amp, SgdConfig::new().init());
        let model = Adapted {
            base: half_scalar::<B>(0.5).no_grad(),
            adapter: Scalar::new(0.0),
        };
        let y = model.base.forward() + model.adapter.forward();
        let loss = y.sum().mul_scalar(1e-6);
        let (model, outcome) = training.step(1.0, model, loss);
        assert!(outcome.is_applied());
        assert_eq!(model.base.w.val().dtype(), DType::F16);
        assert_eq!(model.base.value(), 0.5);
        assert_within((-model.adapter.value()).into(), 1e-6, 1e-3);
    }
    in_every_way!(check());
}

#[test]
fn case_29_an_infinite_gradient_is_skipped_before_it_is_clipped() {
    fn check<B: AutodiffBackend>(bad: f32, kind: NonFinite) {
        let amp = amp16();
        let _scope = amp.enter();
        let sgd = SgdConfig::new()
            .with_gradient_clipping(Some(GradientClippingConfig::Norm(1.0)))
            .init::<B, Vectors<B>>();
        let mut optim = AmpOptimizerConfig::new().init(sgd);
        let model = Vectors::<B>::new(&[&[1.0, 2.0], &[3.0, 4.0]]);
        let grads = model.gradients(&[&[0.1, 0.2], &[0.3, bad]]);
        let model = optim.step(1.0, model, grads);

        let Some(StepOutcome::Skipped { gradients, .. }) = optim.outcome() else {
            panic!("{:?}", optim.outcome())
        };
        let [found] = gradients.as_slice() else {
            panic!("{gradients:?}")
        };
        assert_eq!((found.path.as_str(), found.kind), ("w.1", kind));
        assert_eq!(model.values(), [[1.0, 2.0], [3.0, 4.0]]);
        assert!(
            Optimizer::<Vectors<B>, B>::to_record(&optim)
                .optim
                .is_empty()
        );
    }
    for (bad, kind) in [
        (f32::INFINITY, NonFinite::Infinity),
        (f32::NEG_INFINITY, NonFinite::Infinity),
        (f32::NAN, NonFinite::NaN),
    ] {
        in_both_orders!(check(bad, kind));
    }
}

#[test]
fn case_29_clipping_sees_unscaled_gradients() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_from(65536.0);
        let _scope = amp.enter();
        let sgd = SgdConfig::new()
            .with_gradient_clipping(Some(GradientClippingConfig::Norm(1.0)))
            .init();
        let mut training = Training::new(scaling, &amp, sgd);
        let model = Vectors::<B>::new(&[&[0.0, 0.0]]);
        // Below the norm: as it is. Above: shortened to it.
        let loss = model.loss(&[&[0.25, 0.5]]);
        let (model, _) = training.step(1.0, model, loss);
        assert_eq!(model.values(), [[-0.25, -0.5]]);
        let loss = model.loss(&[&[3.0, 4.0]]);
        let (model, _) = training.step(1.0, model, loss);
        assert_within((-0.25 - model.values()[0][0]).into(), 0.6, 1e-5);
        assert_within((-0.5 - model.values()[0][1]).into(), 0.8, 1e-5);
    }
    in_every_way!(check());
}

/// Burn squares in f32, so it clips a norm beyond 1.8e19 to zero. Clipping is the inner optimizer's:
/// through the wrapper it does what it does without.
#[test]
fn case_29_a_norm_that_overflows_is_clipped_as_plain_burn_clips_it() {
    fn clipped<B: AutodiffBackend>() -> Vec<Vec<f32>> {
        let sgd = SgdConfig::new()
            .with_gradient_clipping(Some(GradientClippingConfig::Norm(1.0)))
            .init();
        let mut optim = AmpOptimizerConfig::new().init(sgd);
        let model = Vectors::<B>::new(&[&[1.0; 100]]);
        let grads = model.gradients(&[&[1e20; 100]]);
        optim.step(1.0, model, grads).values()
    }
    let plain = clipped::<Plain>();
    assert_eq!(
        plain,
        [[1.0; 100]],
        "Burn has changed: the case may hold now"
    );
    assert_eq!(amp16_from(1024.0).run(clipped::<Ours>), plain);
}

#[test]
fn case_29_a_branch_that_overflows_unseen_is_counted() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16();
        let _scope = amp.enter();
        let mut training = Training::new(scaling, &amp, SgdConfig::new().init());
        let mut model = Scalar::<B>::new(300.0);
        for skips in 1..=100 {
            let y = model.forward();
            let square = y.clone() * y.clone();
            // Infinite in half, and the derivative multiplies it by zero.
            let unseen = (square.clone() * square).mul_scalar(0.0);
            let loss = y.sum() + unseen.sum();
            let outcome;
            (model, outcome) = training.step(1.0, model, loss);
            assert!(outcome.is_skipped());
            assert_eq!(training.state(&amp).counters().skipped, skips);
        }
        assert_eq!(model.value(), 300.0);
    }
    in_every_way!(check());
}

#[test]
fn case_31_gradients_of_one_embedding_row_meet_in_f32() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let device = B::Device::default();
        let amp = amp16_from(1024.0);
        let _scope = amp.enter();
        let mut training = Training::new(scaling, &amp, SgdConfig::new().init());
        let mut model = EmbeddingConfig::new(3, 2).init::<B>(&device);
        model.weight = Param::from_tensor(Tensor::zeros([3, 2], &device));

        let rows = model.forward(Tensor::<B, 2, Int>::from_ints([[1, 1, 1, 1]], &device));
        assert_eq!(rows.dtype(), DType::F16);
        // 20000 each, scaled; four of them exceed 65504.
        let loss = rows.sum().mul_scalar(20000.0 / 1024.0);
        let (model, outcome) = training.step(1.0, model, loss);
        assert!(outcome.is_applied());
        let moved = values(model.weight.val());
        assert_eq!(moved, [0.0, 0.0, -78.125, -78.125, 0.0, 0.0]);
    }
    in_every_way!(check());
}
