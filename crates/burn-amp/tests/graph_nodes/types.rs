//! Gradients of f32 operands are summed and leave products in f32.

use burn::backend::Flex;
use burn::nn::{LayerNormConfig, LinearConfig};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::ops::{ConvOptions, ConvTransposeOptions, FloatTensor, FloatTensorOps};
use burn::tensor::{DType, FloatDType, Shape, Tensor, TensorData, TensorMetadata};
use burn_amp::extension::{Arithmetic, Attention};
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::{Amp, AmpBackend, AmpConfig, Autocast, Autodiff};

use crate::common;

type B = Autodiff<Amp<Flex>>;
type Graph = burn::backend::Autodiff<Flex>;

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

/// Every op with a node, on operands of every type, of which one is frozen.
#[test]
fn should_hand_every_operand_a_gradient_of_its_own_type_and_shape() {
    type Operands = Vec<FloatTensor<Graph>>;
    type Run = fn(Operands, FloatDType) -> FloatTensor<Graph>;

    fn three(operands: Operands) -> [FloatTensor<Graph>; 3] {
        operands.try_into().expect("three operands")
    }

    let ops: [(&str, [&[usize]; 3], Run); 7] = [
        (
            "linear",
            [&[2, 3, 4], &[4, 5], &[5]],
            |operands, compute| {
                let [x, weight, bias] = three(operands);
                Graph::amp_linear(x, weight, Some(bias), compute)
            },
        ),
        (
            "product",
            [&[2, 3, 4], &[1, 4, 5], &[1]],
            |operands, compute| {
                let [lhs, rhs, factor] = three(operands);
                let factor = Graph::float_reshape(factor, Shape::new([1, 1, 1]));
                let product = Graph::amp_matmul(lhs, rhs, compute, compute);
                Graph::amp_arithmetic(Arithmetic::Mul, product, factor, compute)
            },
        ),
        (
            "quotient",
            [&[2, 3, 4], &[1, 3, 1], &[1, 1, 4]],
            |operands, compute| {
                let [lhs, rhs, more] = three(operands);
                let quotient = Graph::amp_arithmetic(Arithmetic::Div, lhs, rhs, compute);
                Graph::amp_arithmetic(Arithmetic::Sub, quotient, more, compute)
            },
        ),
        (
            "convolution",
            [&[2, 3, 5], &[4, 3, 3], &[4]],
            |operands, compute| {
                let [x, weight, bias] = three(operands);
                let options = ConvOptions::new([1], [1], [1], 1);
                Graph::amp_conv1d(x, weight, Some(bias), options, compute)
            },
        ),
        (
            "transposed convolution",
            [&[2, 3, 5], &[3, 4, 3], &[4]],
            |operands, compute| {
                let [x, weight, bias] = three(operands);
                let options = ConvTransposeOptions::new([2], [1], [0], [1], 1);
                Graph::amp_conv_transpose1d(x, weight, Some(bias), options, compute)
            },
        ),
        ("norm", [&[2, 3, 4], &[4], &[4]], |operands, _| {
            let [x, gamma, beta] = three(operands);
            Graph::amp_layer_norm(x, gamma, Some(beta), 1e-3)
        }),
        (
            "attention",
            [&[1, 2, 3, 4], &[1, 2, 5, 4], &[1, 2, 5, 4]],
            |operands, compute| {
                let [query, key, value] = three(operands);
                let operands = Attention {
                    query,
                    key,
                    value,
                    mask: None,
                    bias: None,
                };
                let attended = Graph::amp_attention(operands, Default::default(), compute);
                Graph::amp_relu(Graph::amp_gelu(attended))
            },
        ),
    ];
    let types = [FloatDType::F32, FloatDType::F16, FloatDType::BF16];
    for (name, shapes, run) in ops {
        for compute in [FloatDType::F16, FloatDType::BF16] {
            for combination in 0..27 {
                let dtypes = [0, 1, 2].map(|operand| types[combination / 3usize.pow(operand) % 3]);
                for frozen in 0..4 {
                    let leaves: Operands = (0..3)
                        .map(|operand| {
                            let shape = shapes[operand].to_vec();
                            let count = shape.iter().product::<usize>();
                            let values: Vec<f32> =
                                (1..=count).map(|value| value as f32 / 16.0).collect();
                            let data = TensorData::new(values, shape);
                            let leaf = Graph::float_from_data(data, &Default::default());
                            let leaf = Graph::float_cast(leaf, dtypes[operand]);
                            Graph::float_set_require_grad(leaf, operand != frozen)
                        })
                        .collect();
                    let output = run(leaves.clone(), compute);
                    let gradients = Graph::backward(Graph::float_sum(output));
                    for (operand, leaf) in leaves.iter().enumerate() {
                        let case = format!("{name} of {dtypes:?} in {compute:?}, {frozen} frozen");
                        let gradient = Graph::grad(leaf, &gradients);
                        assert_eq!(gradient.is_some(), operand != frozen, "{case}");
                        if let Some(gradient) = gradient {
                            assert_eq!(gradient.dtype(), DType::from(dtypes[operand]), "{case}");
                            assert_eq!(gradient.shape(), leaf.shape(), "{case}");
                        }
                    }
                }
            }
        }
    }
}

/// An f32 input's gradient of 102400 is beyond f16.
#[test]
fn should_hold_the_gradient_of_a_convolutions_input_beyond_the_range_of_f16() {
    in_half(|| {
        let x = filled(1.0, [1, 1, 1]).require_grad();
        let weight = filled(1.0, [1024, 1, 1]).require_grad();
        let options = ConvOptions::new([1], [0], [1], 1);
        let y = burn::tensor::module::conv1d(x.clone(), weight, None, options);
        assert_eq!(gradient(y.mul_scalar(100.0).sum(), &x), [102_400.0]);
    });
}

#[test]
fn should_give_zeros_for_an_attention_without_keys() {
    in_half(|| {
        let query = filled(1.0, [1, 2, 3, 4]).require_grad();
        let nothing = || Tensor::<B, 4>::zeros([1, 2, 0, 4], &Default::default()).require_grad();
        let output = burn::tensor::module::attention(
            query.clone(),
            nothing(),
            nothing(),
            None,
            None,
            Default::default(),
        );
        assert_eq!(common::values(output.clone()), [0.0; 24]);
        assert_eq!(gradient(output.sum(), &query), [0.0; 24]);
    });
}

#[test]
fn should_differentiate_a_batch_without_rows() {
    in_half(|| {
        let device = Default::default();
        let norm = LayerNormConfig::new(8).init::<B>(&device);
        let layer = LinearConfig::new(8, 4).init::<B>(&device);
        let x = Tensor::<B, 2>::zeros([0, 8], &device);
        let y = burn::tensor::activation::gelu(layer.forward(norm.forward(x)));
        let loss = burn::tensor::activation::log_softmax(y, 1).sum();
        assert_eq!(gradient(loss, &layer.weight.val()), [0.0; 32]);
    });
}
