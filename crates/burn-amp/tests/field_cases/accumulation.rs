//! Theme 5: gradients of several micro-batches.

use burn::optim::{GradientsAccumulator, SgdConfig};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, Tensor};
use burn_amp::{Autocast, StepOutcome};

use crate::common::{parameter_bits, values};
use crate::support::{
    Ours, Plain, Scalar, Scaling, Training, Vectors, amp16_from, ampbf, assert_values,
};

/// One window over micro-batches with these gradients, each weighted by `weight`.
fn window<B: AutodiffBackend>(
    training: &mut Training<Sgd<B>>,
    model: Vectors<B>,
    grads: &[f32],
    weight: f64,
) -> (Vectors<B>, StepOutcome) {
    let mut accumulator = GradientsAccumulator::new();
    for grad in grads {
        let loss = model.loss(&[&[*grad]]).mul_scalar(weight);
        accumulator.accumulate(&model, training.differentiate(loss, &model));
    }
    let stepped = training.apply(1.0, model, accumulator.grads());
    assert!(accumulator.grads().is_empty());
    stepped
}

type Sgd<B> = burn::optim::adaptor::OptimizerAdaptor<
    burn::optim::Sgd<<B as AutodiffBackend>::InnerBackend>,
    Vectors<B>,
    B,
>;

fn start<B: AutodiffBackend>(scaling: Scaling, amp: &Autocast) -> Training<Sgd<B>> {
    Training::new(scaling, amp, SgdConfig::new().init())
}

#[test]
fn case_32_a_window_sums_true_gradients() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let odd = [0.1, 0.7, 1.0 / 3.0, -4.4];
        for (grads, weight, expected) in [
            ([1.0, 2.0, 3.0, 4.0], 1.0, Some(-10.0)),
            ([1.0, 2.0, 3.0, 4.0], 0.25, Some(-2.5)),
            (odd, 1.0, None),
            (odd, 0.25, None),
        ] {
            let amp = amp16_from(1024.0);
            let (ours, outcome) = amp.run(|| {
                window(
                    &mut start::<B>(scaling, &amp),
                    Vectors::new(&[&[0.0]]),
                    &grads,
                    weight,
                )
            });
            assert!(outcome.is_applied());
            // Outside the scope and on the plain backend nothing is scaled.
            let (plain, _) = window(
                &mut start::<Plain>(Scaling::Automatic, &amp),
                Vectors::new(&[&[0.0]]),
                &grads,
                weight,
            );
            assert_eq!(parameter_bits(&ours), parameter_bits(&plain));
            if let Some(expected) = expected {
                assert_eq!(ours.values(), [[expected]]);
            }
        }
    }
    in_every_way!(check());
}

#[test]
fn case_32_the_scale_may_change_inside_a_window() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_from(512.0);
        let _scope = amp.enter();
        let mut training = start::<B>(scaling, &amp);
        let model = Vectors::new(&[&[0.0]]);
        let mut accumulator = GradientsAccumulator::new();
        accumulator.accumulate(
            &model,
            training.differentiate(model.loss(&[&[1.0]]), &model),
        );
        training.set_scale(&amp, 1024.0);
        accumulator.accumulate(
            &model,
            training.differentiate(model.loss(&[&[2.0]]), &model),
        );
        let (model, _) = training.apply(1.0, model, accumulator.grads());
        assert_eq!(model.values(), [[-3.0]]);
    }
    in_every_way!(check());
}

#[test]
fn case_32_gradients_remember_the_scale_of_their_own_pass() {
    let amp = amp16_from(512.0);
    let _scope = amp.enter();
    let model = Vectors::<Ours>::new(&[&[0.0]]);
    // The second pass begins, and the scale moves, before the first gradients are taken out.
    let first = model.loss(&[&[1.0]]).backward();
    amp.loss_scaler().set_scale(1024.0).unwrap();
    let second = model.loss(&[&[2.0]]).backward();
    amp.loss_scaler().set_scale(2.0).unwrap();
    assert_eq!((first.scale(), second.scale()), (512.0, 1024.0));
    let w = model.w[0].val();
    assert_eq!(values(w.grad(&first).unwrap()), [1.0]);
    assert_eq!(values(w.grad(&second).unwrap()), [2.0]);
}

#[test]
fn case_34_a_skipped_window_leaves_nothing_behind() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        for bad in [f32::INFINITY, f32::NAN] {
            for (weight, expected) in [(1.0, -2.0), (0.5, -1.0)] {
                let amp = amp16_from(1024.0);
                let _scope = amp.enter();
                let mut training = start::<B>(scaling, &amp);
                let model = Vectors::new(&[&[0.0]]);
                let (model, outcome) = window(&mut training, model, &[1.0, bad], weight);
                assert!(outcome.is_skipped());
                assert_eq!(model.values(), [[0.0]]);
                assert_eq!(training.scale(&amp), 512.0);
                let (model, outcome) = window(&mut training, model, &[1.0, 1.0], weight);
                assert!(outcome.is_applied());
                assert_eq!(model.values(), [[expected]]);
            }
        }
    }
    in_every_way!(check());
}

#[test]
fn case_34_the_verdict_is_about_the_sum_of_the_window() {
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        let amp = amp16_from(1024.0);
        let _scope = amp.enter();
        let mut training = start::<B>(scaling, &amp);
        let model = Vectors::new(&[&[0.0]]);
        let opposite = [f32::INFINITY, f32::NEG_INFINITY];
        let (model, outcome) = window(&mut training, model, &opposite, 1.0);
        assert!(outcome.is_skipped());
        assert_eq!(model.values(), [[0.0]]);
        // Finite each, but not their sum.
        training.set_scale(&amp, 1.0);
        let (model, outcome) = window(&mut training, model, &[3e38, 3e38], 1.0);
        assert!(outcome.is_skipped());
        assert_eq!(model.values(), [[0.0]]);
    }
    in_every_way!(check());
}

#[test]
fn case_35_many_small_gradients_and_losses_add_up() {
    fn check_half<B: AutodiffBackend>(scaling: Scaling, amp: &Autocast, half: DType) {
        let _scope = amp.enter();
        let sgd = SgdConfig::new().init::<B, Scalar<B>>();
        let training = Training::new(scaling, amp, sgd);
        let model = Scalar::<B>::new(1.0);
        let mut accumulator = GradientsAccumulator::new();
        let mut losses = Tensor::<B::InnerBackend, 1>::zeros([1], &B::Device::default());
        let mut outputs = losses.clone();
        for _batch in 0..5000 {
            let output = model.forward();
            assert_eq!(output.dtype(), half);
            outputs = outputs + output.clone().inner().reshape([1]);
            let loss = output.mean();
            losses = losses + loss.clone().inner();
            accumulator.accumulate(&model, training.differentiate(loss, &model));
        }
        let grads = accumulator.grads();
        let grad = grads.get::<B::InnerBackend, 2>(model.w.id).unwrap();
        assert_values(grad, DType::F32, &[5000.0]);
        assert_values(losses, DType::F32, &[5000.0]);
        assert_values(outputs, DType::F32, &[5000.0]);
    }
    // In Burn's order gradients are half until a `GradScaler` has unscaled them, in bf16 too.
    fn check<B: AutodiffBackend>(scaling: Scaling) {
        check_half::<B>(scaling, &amp16_from(1024.0), DType::F16);
        check_half::<B>(scaling, &ampbf(), DType::BF16);
    }
    in_every_way!(check());
}
