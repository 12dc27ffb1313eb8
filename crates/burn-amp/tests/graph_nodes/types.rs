//! Gradients of f32 operands are summed and leave products in f32.

use burn::backend::Flex;
use burn::nn::LayerNormConfig;
use burn::tensor::{DType, Tensor};
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::{Amp, AmpConfig, Autocast, Autodiff};

use crate::common;

type B = Autodiff<Amp<Flex>>;

fn filled<const D: usize>(value: f32, shape: [usize; D]) -> Tensor<B, D> {
    Tensor::full(shape, value, &Default::default())
}

fn in_half(f: impl Fn()) {
    let unscaled = AmpConfig::f16().with_loss_scale(LossScaleConfig::none());
    for config in [AmpConfig::bf16(), unscaled] {
        Autocast::new(&config).unwrap().run(&f);
    }
}

fn gradient<const D: usize>(loss: Tensor<B, 1>, of: &Tensor<B, D>) -> Vec<f64> {
    let gradient = of.grad(&loss.backward()).expect("a gradient");
    assert_eq!(gradient.dtype(), DType::F32);
    common::values(gradient)
}

/// 2049 is no f16, and no bf16.
#[test]
fn should_sum_the_gradients_of_a_weight_that_is_used_twice_in_f32() {
    in_half(|| {
        let weight = filled(1.0, [1, 1]).require_grad();
        let first = filled(2048.0, [1, 1]).matmul(weight.clone());
        let second = filled(1.0, [1, 1]).matmul(weight.clone());
        assert_eq!(gradient(first.sum() + second.sum(), &weight), [2049.0]);
    });
}

#[test]
fn should_sum_a_weight_gradient_over_rows_in_f32() {
    in_half(|| {
        let mut rows = vec![1.0f32; 2049];
        rows[0] = 2.0;
        let x = Tensor::<B, 1>::from_floats(rows.as_slice(), &Default::default());
        let weight = filled(1.0, [1, 1]).require_grad();
        let bias = filled(0.0, [1]).require_grad();
        let y =
            burn::tensor::module::linear(x.reshape([2049, 1]), weight.clone(), Some(bias.clone()));
        let gradients = y.sum().backward();
        let [weight, bias] = [
            common::values(weight.grad(&gradients).unwrap()),
            common::values(bias.grad(&gradients).unwrap()),
        ];
        assert_eq!(weight, [2050.0]);
        assert_eq!(bias, [2049.0]);
    });
}

#[test]
fn should_hold_a_weight_gradient_beyond_the_range_of_f16() {
    in_half(|| {
        let weight = filled(1.0, [1, 1]).require_grad();
        let y = filled(300.0, [1, 1])
            .matmul(weight.clone())
            .mul_scalar(300.0);
        assert_eq!(gradient(y.sum(), &weight), [90000.0]);
    });
}

/// As a tied output layer uses its embedding.
#[test]
fn should_sum_the_gradient_of_a_weight_that_is_shared_by_a_batch_in_f32() {
    in_half(|| {
        let weight = filled(1.0, [3, 2]).require_grad();
        let shared = weight.clone().transpose().unsqueeze::<3>();
        let mut x = vec![1.0f32; 2049 * 2];
        x[0] = 2.0;
        let x = Tensor::<B, 1>::from_floats(x.as_slice(), &Default::default());
        let y = x.reshape([2049, 1, 2]).matmul(shared);
        let expected = [2050.0, 2049.0].repeat(3);
        assert_eq!(gradient(y.sum(), &weight), expected);
    });
}

#[test]
fn should_sum_what_several_layers_say_about_a_norms_result_in_f32() {
    in_half(|| {
        let x = common::normal::<B, 2>([4, 8], 31, &Default::default());
        let norm = LayerNormConfig::new(8).init::<B>(&Default::default());
        let beta = norm.beta.as_ref().expect("a bias by default").val();
        let normed = norm.forward(x);
        let heads = [2048.0f32, 1.0].map(|scale| {
            let weight = filled(1.0, [8, 1]);
            normed.clone().matmul(weight).mul_scalar(scale).sum()
        });
        let [first, second] = heads;
        assert_eq!(gradient(first + second, &beta), [4.0 * 2049.0; 8]);
    });
}
