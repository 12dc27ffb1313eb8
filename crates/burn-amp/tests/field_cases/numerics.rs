//! Theme 2: constants and values that a half type cannot hold.

use burn::backend::Flex;
use burn::module::Module;
use burn::nn::BatchNormConfig;
use burn::optim::{AdamConfig, Optimizer, SgdConfig};
use burn::record::{HalfPrecisionSettings, NamedMpkBytesRecorder, Recorder};
use burn::tensor::activation::softmax;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::linalg::{cosine_similarity, vector_normalize};
use burn::tensor::{DType, ElementConversion, Tensor, module};
use burn_amp::{Amp, AmpOptimizerConfig, full_precision};

use crate::common::{tensor, values};
use crate::support::{
    Ours, Plain, Scalar, Vectors, amp16, amp16_from, ampbf, assert_all_finite, assert_close,
    assert_values, assert_within,
};

/// A half matrix product that gives `scores`.
fn scores<B: Backend>(scores: &[f64], dims: [usize; 2]) -> Tensor<B, 2> {
    let device = B::Device::default();
    let scores = tensor::<B, 2>(scores, dims, DType::F32, &device);
    scores.matmul(Tensor::eye(dims[1], &device))
}

#[test]
fn case_10_an_additive_mask_of_f32_does_not_overflow() {
    fn check<B: Backend>() {
        let device = B::Device::default();
        let half = scores::<B>(&[-20.0, -20.0], [1, 2]);
        assert_eq!(half.dtype(), DType::F16);
        let mask = tensor::<B, 2>(&[-65504.0; 2], [1, 2], DType::F32, &device);
        assert_eq!(values(softmax(half + mask, 1)), [0.5, 0.5]);

        // A mask that is broadcast leaves the scores half, where -65524 is stored as -65504.
        let half = scores::<B>(&[-20.0; 4], [2, 2]);
        for sentinel in [-65504.0, -1e9, f64::from(f32::MIN)] {
            let mask = tensor::<B, 2>(&[sentinel; 2], [1, 2], DType::F32, &device);
            assert_eq!(values(softmax(half.clone() + mask, 1)), [0.5; 4]);
        }
    }
    amp16().run(|| on_every_backend!(check()));
}

#[test]
fn case_10_rows_that_are_masked_by_a_large_constant() {
    fn check<B: AutodiffBackend>(sentinel: f32) {
        let device = B::Device::default();
        let x = tensor::<B, 2>(&[1.0, 2.0], [1, 2], DType::F32, &device).require_grad();
        let half = x.clone().matmul(Tensor::eye(2, &device));
        let factors = tensor::<B, 2>(&[1.0, 3.0], [1, 2], DType::F32, &device);

        let hide = |keys: [bool; 2]| {
            let mask = Tensor::from_data([keys], &device);
            softmax(half.clone().mask_fill(mask, sentinel), 1)
        };
        let second = hide([false, true]);
        assert_eq!(values(second.clone()), [1.0, 0.0]);
        let both = hide([true, true]);
        assert_eq!(values(both.clone()), [0.5, 0.5]);

        let grads = ((second + both) * factors).sum().backward();
        assert_all_finite(&values(x.grad(&grads).unwrap()));
    }
    for sentinel in [-1e9, -1e15, -1e20] {
        amp16().run(|| in_both_orders!(check(sentinel)));
        ampbf().run(|| in_both_orders!(check(sentinel)));
    }
}

#[test]
fn case_11_the_epsilon_of_adam_does_not_vanish() {
    fn check<B: AutodiffBackend>(from_half_record: bool) {
        let mut model = Vectors::<B>::new(&[&[1.0, -2.0, 0.5]]);
        if from_half_record {
            let recorder = NamedMpkBytesRecorder::<HalfPrecisionSettings>::new();
            let bytes = recorder.record(model.clone().into_record(), ()).unwrap();
            let record = recorder.load(bytes, &Default::default()).unwrap();
            model = Vectors::new(&[&[0.0; 3]]).load_record(record);
        }
        let adam = AdamConfig::new().with_epsilon(1e-8).init::<B, Vectors<B>>();
        let mut optim = AmpOptimizerConfig::new().init(adam);
        for _step in 0..3 {
            let grads = model.gradients(&[&[0.0; 3]]);
            model = optim.step(1e-3, model, grads);
            assert!(optim.outcome().unwrap().is_applied());
        }
        assert_eq!(model.values(), [[1.0, -2.0, 0.5]]);

        let records = Optimizer::<Vectors<B>, B>::to_record(&optim).optim;
        let momentum = records
            .into_values()
            .next()
            .unwrap()
            .into_state::<1>()
            .momentum;
        assert_eq!(values(momentum.moment_1), [0.0; 3]);
        assert_eq!(values(momentum.moment_2), [0.0; 3]);
    }
    for from_half_record in [false, true] {
        amp16().run(|| in_both_orders!(check(from_half_record)));
    }
}

#[test]
fn case_13_normalising_a_zero_and_a_large_vector() {
    fn check<B: Backend>(half: DType) {
        let device = B::Device::default();
        let x = [0.0, 0.0, 0.0, 0.0, 300.0, 300.0, 300.0, 300.0];
        let x = tensor::<B, 2>(&x, [2, 4], half, &device);
        let unit = vector_normalize(x, 2.0, 1, 1e-12);
        assert_eq!(values(unit), [0.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.5, 0.5]);
    }
    // Under Burn's own autodiff the rules see x * x in place of a square, which f16 cannot hold.
    amp16().run(|| check::<Amp<Flex>>(DType::F16));
    amp16().run(|| check::<Ours>(DType::F16));
    ampbf().run(|| on_every_backend!(check(DType::BF16)));
}

#[test]
fn case_13_the_gradient_of_a_large_vector_is_finite() {
    // The gradient at zero is NaN on the plain backend too: it divides by the norm before the guard.
    fn gradient<B: AutodiffBackend>(dtype: DType) -> Vec<f64> {
        let device = B::Device::default();
        let x = [300.0, 300.0, 300.0, 300.0];
        let x = tensor::<B, 2>(&x, [1, 4], dtype, &device).require_grad();
        let first = vector_normalize(x.clone(), 2.0, 1, 1e-12).slice([0..1, 0..1]);
        let grads = first.sum().backward();
        values(x.grad(&grads).unwrap())
    }
    fn check<B: AutodiffBackend>(half: DType) {
        // In units that are not near zero.
        let scaled = |grads: Vec<f64>| grads.iter().map(|grad| grad * 1e3).collect::<Vec<_>>();
        let plain = scaled(gradient::<Plain>(DType::F32));
        assert_close(&scaled(gradient::<B>(half)), &plain, 5e-3);
    }
    amp16_from(1024.0).run(|| check::<Ours>(DType::F16));
    ampbf().run(|| in_both_orders!(check(DType::BF16)));
}

#[test]
fn case_13_cosine_similarity_of_zero_large_and_small_vectors() {
    fn check<B: Backend>() {
        let device = B::Device::default();
        let x = tensor::<B, 2>(
            &[0.0, 0.0, 300.0, 400.0, 1e-4, 0.0],
            [3, 2],
            DType::F16,
            &device,
        );
        // Burn multiplies the two vectors before it sums, which a half type cannot hold; and its own
        // guard underflows even in f32, hence the explicit epsilon.
        let similarity =
            full_precision(|| cosine_similarity(x.clone(), x.clone(), 1, Some(1e-8.elem())));
        assert_eq!(similarity.dtype(), DType::F32);
        assert_close(&values(similarity), &[0.0, 1.0, 1.0], 1e-3);
    }
    amp16().run(|| on_every_backend!(check()));
}

#[test]
fn case_14_weights_move_by_less_than_a_bf16_step() {
    const UPDATE: f32 = 6e-4;

    fn check<B: AutodiffBackend>() {
        let mut model = Scalar::<B>::new(1.0);
        let mut optim = AmpOptimizerConfig::new().init(SgdConfig::new().init::<B, Scalar<B>>());
        for _step in 0..100 {
            let loss = model.loss(1.0);
            let grads = burn::optim::GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(f64::from(UPDATE), model, grads);
        }
        assert!((model.value() - 0.94).abs() <= 1e-5, "{}", model.value());
        assert_values(model.forward(), DType::BF16, &[0.94140625]);
    }
    ampbf().run(|| in_both_orders!(check()));

    // The control: a weight that is bf16 itself.
    let mut weight = Tensor::<Flex, 1>::ones([1], (&Default::default(), DType::BF16));
    for _step in 0..100 {
        weight = weight - UPDATE;
    }
    assert_eq!(values(weight), [1.0]);
}

#[test]
fn case_16_the_statistics_of_a_wide_batch_are_f32() {
    fn check<B: AutodiffBackend>() {
        let device = B::Device::default();
        let norm = BatchNormConfig::new(1)
            .with_momentum(0.1)
            .init::<B>(&device);
        let x = tensor::<B, 2>(&[60000.0, -60000.0], [2, 1], DType::F16, &device);
        assert_close(&values(norm.forward(x)), &[1.0, -1.0], 1e-3);

        let (mean, var) = (
            norm.running_mean.value_sync(),
            norm.running_var.value_sync(),
        );
        assert_values(mean, DType::F32, &[0.0]);
        assert_eq!(var.dtype(), DType::F32);
        assert_within(values(var)[0], 0.9 + 0.1 * 3.6e9, 1e-4);
    }
    // Not in Burn's order, where a square is a product of two half tensors.
    amp16().run(check::<Ours>);
}

#[test]
fn values_that_are_not_finite_pass_through_every_cast() {
    type B = Amp<Flex>;
    let device = Default::default();
    let wild = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1e30];
    let x = tensor::<B, 2>(&wild, [4, 1], DType::F32, &device);
    let product = amp16().run(|| x.clone().matmul(Tensor::ones([1, 1], &device)));
    let product = values(product);
    // A matrix product overflows visibly: an infinity is what the loss scale reacts to.
    assert_eq!(product[0], f64::INFINITY);
    assert_eq!(product[1], f64::NEG_INFINITY);
    assert!(product[2].is_nan());
    assert_eq!(product[3], f64::INFINITY);

    // A broadcast operand saturates what is finite, and only that.
    let half = Tensor::<B, 2>::ones([4, 2], (&device, DType::F16));
    let sum = amp16().run(|| values(half + x));
    assert_eq!(sum[0], f64::INFINITY);
    assert_eq!(sum[2], f64::NEG_INFINITY);
    assert!(sum[4].is_nan());
    assert_eq!(sum[6], 65504.0);
}

#[test]
fn views_of_a_larger_tensor_are_cast_by_their_own_elements() {
    fn check<B: Backend>() {
        let device = B::Device::default();
        let x = tensor::<B, 2>(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2], DType::F32, &device);
        let eye = Tensor::<B, 2>::eye(2, &device);
        let times_one = |x: Tensor<B, 2>| values(x.matmul(eye.clone()));

        assert_eq!(times_one(x.clone().slice([1..3])), [3.0, 4.0, 5.0, 6.0]);
        assert_eq!(times_one(x.clone().slice([0..1])), [1.0, 2.0]);
        assert_eq!(
            times_one(x.clone().slice([0..2]).transpose()),
            [1.0, 3.0, 2.0, 4.0]
        );
        assert_eq!(
            times_one(x.clone().flip([0])),
            [5.0, 6.0, 3.0, 4.0, 1.0, 2.0]
        );
        assert_eq!(
            times_one(x.clone().slice([1..2]).expand([2, 2])),
            [3.0, 4.0, 3.0, 4.0]
        );
        let half = x.cast(DType::F16);
        assert_eq!(values(half.clone().slice([1..3]).exp().log()).len(), 4);
        assert_eq!(values(half.slice([2..3]).sum()), [11.0]);
    }
    amp16().run(|| on_every_backend!(check()));
}

#[test]
fn empty_and_single_element_tensors_are_cast() {
    let device = Default::default();
    amp16().run(|| {
        let empty = Tensor::<Ours, 2>::zeros([0, 3], (&device, DType::F16));
        assert_eq!(values(empty.clone().sum()), [0.0]);
        assert_eq!(
            (empty.clone() + Tensor::ones([1, 3], &device)).dims(),
            [0, 3]
        );
        assert_eq!(empty.exp().dims(), [0, 3]);
        let one = Tensor::<Ours, 2>::ones([1, 1], &device);
        assert_values(one.clone().matmul(one.clone()), DType::F16, &[1.0]);
        // Both operands have the full shape: the wider type wins.
        assert_values(one.clone().matmul(one.clone()) + one, DType::F32, &[2.0]);
    });
}

#[test]
fn a_clamp_between_bounds_that_a_half_type_has_nothing_between() {
    fn check<B: Backend>() {
        let device = B::Device::default();
        let x = tensor::<B, 1>(&[-1.0, 0.25, 1.0], [3], DType::F16, &device);
        for (min, max) in [(0.1, 0.1), (0.1, 0.10001), (-0.1, -0.1)] {
            let clamped = x.clone().clamp(min, max);
            assert_eq!(clamped.dtype(), DType::F16);
            for value in values(clamped) {
                assert!((value - min).abs() <= 1e-4, "{value}");
            }
        }
        let inside = values(x.clamp(0.1, 0.2));
        assert!(
            inside.iter().all(|value| (0.1..=0.2).contains(value)),
            "{inside:?}"
        );
    }
    amp16().run(check::<Amp<Flex>>);
    amp16().run(check::<Ours>);
}

#[test]
fn average_pooling_does_not_sum_in_a_half_type() {
    fn check<B: Backend>(half: DType) {
        let device = B::Device::default();
        let map = |value: f64| Tensor::<B, 4>::full([1, 1, 112, 112], value, (&device, half));
        assert_values(
            module::adaptive_avg_pool2d(map(10.0), [1, 1]),
            half,
            &[10.0],
        );
        let pooled = module::avg_pool2d(map(0.5), [112, 112], [1, 1], [0, 0], true, false);
        assert_values(pooled, half, &[0.5]);
        let line = Tensor::<B, 3>::full([1, 1, 4], 60000.0, (&device, DType::F16));
        assert_values(
            module::adaptive_avg_pool1d(line.clone(), 1),
            DType::F16,
            &[60000.0],
        );
        assert_values(
            module::avg_pool1d(line, 4, 1, 0, true, false),
            DType::F16,
            &[60000.0],
        );
    }
    amp16().run(|| on_every_backend!(check(DType::F16)));
    ampbf().run(|| on_every_backend!(check(DType::BF16)));
}
