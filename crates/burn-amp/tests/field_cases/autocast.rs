//! Theme 1: the rules that ops follow.

use burn::nn::loss::BinaryCrossEntropyLossConfig;
use burn::tensor::activation::sigmoid;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, IndexingUpdateOp, Int, Tensor, module};
use burn_amp::{AmpConfig, Autocast, Counters, OpClass, full_precision};

use crate::common::{tensor, values};
use crate::support::{amp16, amp16_from, ampbf, assert_all_finite, assert_values, assert_within};

#[test]
fn case_01_sums_are_f32_whatever_comes_in() {
    fn check<B: Backend>() {
        let device = B::Device::default();
        for dtype in [DType::F16, DType::BF16, DType::F32] {
            let ones = Tensor::<B, 1>::ones([70_000], (&device, dtype));
            let (sum, mean) = (ones.clone().sum(), ones.clone().mean());
            assert_values(sum.clone(), DType::F32, &[70_000.0]);
            assert_values(mean.clone(), DType::F32, &[1.0]);
            assert_values(ones.sum_dim(0), DType::F32, &[70_000.0]);

            let two = Tensor::<B, 2>::ones([1, 2], &device).matmul(Tensor::ones([2, 1], &device));
            assert_eq!(two.dtype(), DType::F16);
            let all = Tensor::cat(vec![two.clone().reshape([1]), sum.clone(), mean.clone()], 0);
            assert_values(all, DType::F32, &[2.0, 70_000.0, 1.0]);
            assert_eq!(values(two.reshape([1]) + sum * mean), [70_002.0]);
        }
    }
    amp16().run(|| on_every_backend!(check()));
}

#[test]
fn case_02_scatter_takes_two_float_types() {
    fn check<B: Backend>() {
        let device = B::Device::default();
        for (base, value) in [(DType::F32, DType::F16), (DType::F16, DType::F32)] {
            let zeros = Tensor::<B, 1>::zeros([3], (&device, base));
            let indices = Tensor::<B, 1, Int>::from_ints([0, 0, 2], &device);
            let added = tensor::<B, 1>(&[1.5, 2.25, 0.125], [3], value, &device);

            let op = IndexingUpdateOp::Add;
            let scattered = zeros.clone().scatter(0, indices.clone(), added.clone(), op);
            assert_values(scattered, DType::F32, &[3.75, 0.0, 0.125]);
            let op = IndexingUpdateOp::Add;
            let selected = zeros.clone().select_assign(0, indices, added.clone(), op);
            assert_values(selected, DType::F32, &[3.75, 0.0, 0.125]);
            let assigned = zeros.slice_assign([0..3], added);
            assert_values(assigned, DType::F32, &[1.5, 2.25, 0.125]);
        }
    }
    amp16().run(|| on_every_backend!(check()));
    // Nothing is configured here, but two types still have to meet.
    on_every_backend!(check());
}

#[test]
fn case_02_scatter_of_two_float_types_differentiates() {
    fn check<B: AutodiffBackend>() {
        let device = B::Device::default();
        for (base, value) in [(DType::F32, DType::F16), (DType::F16, DType::F32)] {
            let zeros = Tensor::<B, 1>::zeros([3], (&device, base)).require_grad();
            let indices = Tensor::<B, 1, Int>::from_ints([0, 0, 2], &device);
            let added = tensor::<B, 1>(&[1.5, 2.25, 0.125], [3], value, &device).require_grad();
            let factors = tensor::<B, 1>(&[1.0, 2.0, 3.0], [3], DType::F32, &device);

            let op = IndexingUpdateOp::Add;
            let sum = (zeros.clone().scatter(0, indices, added.clone(), op) * factors).sum();
            let grads = sum.backward();
            assert_eq!(values(zeros.grad(&grads).unwrap()), [1.0, 2.0, 3.0]);
            assert_eq!(values(added.grad(&grads).unwrap()), [1.0, 1.0, 3.0]);
        }
    }
    amp16_from(1024.0).run(|| in_both_orders!(check()));
}

#[test]
fn case_04_the_two_half_types_meet_in_f32() {
    const F16: f64 = 1.0009765625;

    fn check<B: Backend>() {
        let device = B::Device::default();
        let low = tensor::<B, 1>(&[F16], [1], DType::F16, &device);
        let brain = tensor::<B, 1>(&[256.0], [1], DType::BF16, &device);

        for sum in [low.clone() + brain.clone(), brain.clone() + low.clone()] {
            assert_values(sum, DType::F32, &[257.0009765625]);
        }
        assert_values(low.clone() * brain.clone(), DType::F32, &[F16 * 256.0]);
        let both = Tensor::cat(vec![low.clone(), brain.clone()], 0);
        assert_values(both, DType::F32, &[F16, 256.0]);
        let mask = brain.clone().greater(low.clone());
        assert_values(
            low.clone().mask_where(mask, brain.clone()),
            DType::F32,
            &[256.0],
        );

        // Too large for f16: a direct conversion would make it infinite.
        let large = tensor::<B, 1>(&[65536.0], [1], DType::BF16, &device);
        assert_values(low + large, DType::F32, &[65537.0]);
    }
    amp16().run(|| on_every_backend!(check()));
    ampbf().run(|| on_every_backend!(check()));
    on_every_backend!(check());
}

#[test]
fn case_04_an_optional_operand_takes_part() {
    fn check<B: Backend>(expected: DType) {
        let device = B::Device::default();
        for half in [DType::F16, DType::BF16] {
            let x = Tensor::<B, 2>::ones([1, 2], (&device, half));
            let weight = Tensor::<B, 2>::ones([2, 1], (&device, half));
            let bias = tensor::<B, 1>(&[0.5], [1], DType::F32, &device);
            assert_values(module::linear(x, weight, Some(bias)), expected, &[2.5]);
        }
    }
    amp16().run(|| on_every_backend!(check(DType::F16)));
    ampbf().run(|| on_every_backend!(check(DType::BF16)));
    on_every_backend!(check(DType::F32));
}

#[test]
fn case_05_a_matmul_is_protected_by_a_scope_or_an_override_only() {
    const POSITIONS: [f64; 5] = [65536.0, 65537.0, 65538.0, 65539.0, 65540.0];

    fn product<B: Backend>() -> Tensor<B, 2> {
        let device = B::Device::default();
        let one = Tensor::ones([1, 1], (&device, DType::F32));
        one.matmul(tensor(&POSITIONS, [1, 5], DType::F32, &device))
    }
    fn check<B: Backend>() {
        let exact = Autocast::new(&AmpConfig::bf16().with_op("matmul", OpClass::Full)).unwrap();

        assert_values(
            ampbf().run(|| full_precision(product::<B>)),
            DType::F32,
            &POSITIONS,
        );
        assert_values(exact.run(product::<B>), DType::F32, &POSITIONS);
        // The operands' own type does not protect them: bf16 has a step of 512 here.
        assert_values(ampbf().run(product::<B>), DType::BF16, &[65536.0; 5]);
    }
    on_every_backend!(check());
}

#[test]
fn case_07_f64_and_disabled_regions_are_left_alone() {
    fn product<B: Backend>(value: f64, dtype: DType) -> Tensor<B, 2> {
        let device = B::Device::default();
        let one = Tensor::ones([1, 1], (&device, dtype));
        tensor::<B, 2>(&[value], [1, 1], dtype, &device).matmul(one)
    }
    fn check<B: Backend>() {
        let fine = 1.0 + (-40f64).exp2();
        let coarse = 1.0 + (-20f64).exp2();

        Counters::reset();
        for amp in [amp16(), ampbf()] {
            assert_values(
                amp.run(|| product::<B>(fine, DType::F64)),
                DType::F64,
                &[fine],
            );
            let disabled = amp.run(|| full_precision(|| product::<B>(coarse, DType::F32)));
            assert_values(disabled, DType::F32, &[coarse]);
            let off = Autocast::new(&AmpConfig::f32()).unwrap();
            let disabled = amp.run(|| off.run(|| product::<B>(coarse, DType::F32)));
            assert_values(disabled, DType::F32, &[coarse]);
        }
        assert_values(product::<B>(coarse, DType::F32), DType::F32, &[coarse]);
        assert_eq!(Counters::get().casts, 0);
    }
    on_every_backend!(check());
}

#[test]
fn case_07_f64_stays_f64_in_every_class_of_op() {
    fn check<B: Backend>() {
        let device = B::Device::default();
        let x = tensor::<B, 2>(&[0.5, 1.0, 1.5, 2.0], [2, 2], DType::F64, &device);
        let half = tensor::<B, 2>(&[1.0; 4], [2, 2], DType::F16, &device);

        for result in [
            x.clone().exp(),
            x.clone().sum_dim(1),
            x.clone() + half.clone(),
            x.clone() + half.clone().slice([0..1]),
            half.clone().matmul(x.clone()),
            sigmoid(x.clone()),
            burn::tensor::activation::softmax(x.clone(), 1),
            burn::tensor::activation::gelu(x.clone()),
            Tensor::cat(vec![half, x], 0),
        ] {
            assert_eq!(result.dtype(), DType::F64);
        }
    }
    amp16().run(|| on_every_backend!(check()));
}

#[test]
fn case_08_cross_entropy_on_probabilities_and_on_logits() {
    /// The loss, and its gradient with respect to the logit.
    fn loss<B: AutodiffBackend>(from_logits: bool, target: i32) -> (f64, f64) {
        let device = B::Device::default();
        let x = tensor::<B, 2>(&[2.0, 1.0], [1, 2], DType::F32, &device).require_grad();
        let weight = tensor::<B, 2>(&[4.0, 4.0], [2, 1], DType::F32, &device);
        let logit = x.clone().matmul(weight);
        assert_values(logit.clone(), DType::F16, &[12.0]);

        let input = if from_logits { logit } else { sigmoid(logit) };
        let loss = BinaryCrossEntropyLossConfig::new()
            .with_logits(from_logits)
            .init(&device)
            .forward(input.reshape([1]), Tensor::from_ints([target], &device));
        assert_eq!(loss.dtype(), DType::F32);
        let grads = loss.backward();
        let grad = values(x.grad(&grads).unwrap());
        assert_all_finite(&grad);
        (values(loss)[0], grad[0] / 4.0)
    }
    fn check<B: AutodiffBackend>() {
        let (from_probability, grad) = loss::<B>(false, 0);
        assert!(
            (from_probability - 12.0).abs() <= 0.02,
            "{from_probability}"
        );
        assert_within(grad, 1.0, 0.02);

        let (from_logit, grad) = loss::<B>(true, 0);
        assert!((from_logit - 12.000006).abs() <= 1e-3, "{from_logit}");
        assert_within(grad, 1.0, 1e-3);

        for from_logits in [false, true] {
            let (control, _) = loss::<B>(from_logits, 1);
            assert_within(control, 6.14e-6, 0.02);
        }
    }
    amp16_from(1024.0).run(|| in_both_orders!(check()));
}
