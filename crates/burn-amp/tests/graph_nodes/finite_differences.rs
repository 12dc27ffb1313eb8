//! Each node's gradient in f64 against central differences of its forward pass.

use burn::backend::{Autodiff, Flex};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::{
    AttentionModuleOptions, BoolTensor, BoolTensorOps, ConvOptions, ConvTransposeOptions,
    FloatTensor, FloatTensorOps,
};
use burn::tensor::{DType, FloatDType, Shape, TensorData, TensorMetadata};
use burn_amp::AmpBackend;
use burn_amp::extension::{Arithmetic, Attention};

use crate::common::SplitMix64;

type B = Autodiff<Flex>;
type Tensor = FloatTensor<B>;

const F64: FloatDType = FloatDType::F64;

/// Exact in f32, so that an f32 operand moves by just as much.
const STEP: f64 = 1.0 / 4096.0;

/// An operand's values, and its type.
#[derive(Clone)]
struct Operand {
    values: Vec<f64>,
    shape: Vec<usize>,
    dtype: FloatDType,
}

impl Operand {
    fn load(&self) -> Tensor {
        let data = TensorData::new(self.values.clone(), Shape::from(self.shape.clone()));
        let tensor = B::float_from_data(data, &Default::default());
        B::float_cast(tensor, self.dtype)
    }
}

/// Values that are multiples of 1/64, none within `margin` of zero.
fn operands<const N: usize>(shapes: [&[usize]; N], margin: f64) -> Vec<Operand> {
    let mut rng = SplitMix64::new(23);
    let mut draw = || {
        let value = (rng.next_normal() * 64.0).round() / 64.0;
        value + margin.copysign(value)
    };
    let draw_all = |shape: &[usize]| Operand {
        values: (0..shape.iter().product()).map(|_| draw()).collect(),
        shape: shape.to_vec(),
        dtype: F64,
    };
    shapes.map(draw_all).into()
}

fn weighted_sum(output: Tensor) -> Tensor {
    let mut rng = SplitMix64::new(29);
    let shape = output.shape();
    let weights: Vec<f64> = (0..shape.num_elements())
        .map(|_| rng.next_normal())
        .collect();
    let data = TensorData::new(weights, shape);
    let weights = B::float_from_data(data, &Default::default());
    let output = B::float_cast(output, F64);
    B::float_sum(B::float_mul(output, B::float_cast(weights, F64)))
}

fn read<X: Backend>(tensor: FloatTensor<X>) -> Vec<f64> {
    let data = burn::tensor::read_sync(X::float_into_data(tensor)).expect("a readable tensor");
    data.convert::<f64>().to_vec().expect("f64 values")
}

/// Compares gradients with central differences, whose own error is of the size of `STEP` squared.
fn check(operands: Vec<Operand>, op: impl Fn(Vec<Tensor>) -> Tensor) {
    let leaves: Vec<Tensor> = operands
        .iter()
        .map(|operand| B::float_set_require_grad(operand.load(), true))
        .collect();
    let gradients = B::backward(weighted_sum(op(leaves.clone())));
    let value = |operands: &[Operand]| {
        let tensors = operands.iter().map(Operand::load).collect();
        read::<B>(weighted_sum(op(tensors)))[0]
    };

    for (index, leaf) in leaves.iter().enumerate() {
        let gradient = B::grad(leaf, &gradients).expect("every operand has a gradient");
        assert_eq!(gradient.dtype(), DType::from(operands[index].dtype));
        assert_eq!(gradient.shape().to_vec(), operands[index].shape);
        let gradient = read::<Flex>(gradient);
        for (position, gradient) in gradient.into_iter().enumerate() {
            let moved = |step: f64| {
                let mut operands = operands.clone();
                operands[index].values[position] += step;
                value(&operands)
            };
            let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            assert!(
                (gradient - expected).abs() < 2e-5 * expected.abs().max(1.0),
                "operand {index}, value {position}: {gradient}, by differences {expected}"
            );
        }
    }
}

#[test]
fn should_differentiate_linear_layers() {
    check(operands([&[2, 3, 4], &[4, 5], &[5]], 0.0), |operands| {
        let [x, weight, bias] = operands.try_into().unwrap();
        B::amp_linear(x, weight, Some(bias), F64)
    });
    check(operands([&[3, 4], &[4, 1]], 0.0), |operands| {
        let [x, weight] = operands.try_into().unwrap();
        B::amp_linear(x, weight, None, F64)
    });
}

#[test]
fn should_differentiate_matrix_products_that_broadcast() {
    let shapes: [[&[usize]; 2]; 6] = [
        [&[3, 4], &[4, 2]],
        [&[2, 3, 4], &[2, 4, 2]],
        [&[2, 3, 4], &[1, 4, 2]],
        [&[1, 3, 4], &[2, 4, 2]],
        [&[2, 1, 3, 4], &[1, 3, 4, 2]],
        [&[1, 2, 3, 1], &[1, 2, 1, 5]],
    ];
    for shapes in shapes {
        check(operands(shapes, 0.0), |operands| {
            let [lhs, rhs] = operands.try_into().unwrap();
            B::amp_matmul(lhs, rhs, F64, F64)
        });
    }
}

#[test]
fn should_differentiate_convolutions() {
    // With groups and a stride that leaves a value over, plain Burn's gradient of the weight is wrong.
    check(operands([&[2, 4, 6], &[6, 2, 3], &[6]], 0.0), |operands| {
        let [x, weight, bias] = operands.try_into().unwrap();
        let options = ConvOptions::new([2], [1], [1], 2);
        B::amp_conv1d(x, weight, Some(bias), options, F64)
    });
    check(
        operands([&[1, 2, 5, 4], &[3, 2, 3, 2], &[3]], 0.0),
        |operands| {
            let [x, weight, bias] = operands.try_into().unwrap();
            let options = ConvOptions::new([1, 2], [1, 0], [1, 2], 1);
            B::amp_conv2d(x, weight, Some(bias), options, F64)
        },
    );
    check(
        operands([&[1, 1, 3, 3, 3], &[2, 1, 2, 2, 2]], 0.0),
        |operands| {
            let [x, weight] = operands.try_into().unwrap();
            let options = ConvOptions::new([1, 1, 1], [0, 1, 0], [1, 1, 1], 1);
            B::amp_conv3d(x, weight, None, options, F64)
        },
    );
}

#[test]
fn should_differentiate_transposed_convolutions() {
    check(operands([&[2, 4, 3], &[4, 1, 3], &[2]], 0.0), |operands| {
        let [x, weight, bias] = operands.try_into().unwrap();
        let options = ConvTransposeOptions::new([2], [1], [1], [1], 2);
        B::amp_conv_transpose1d(x, weight, Some(bias), options, F64)
    });
    check(
        operands([&[1, 2, 3, 2], &[2, 3, 2, 3], &[3]], 0.0),
        |operands| {
            let [x, weight, bias] = operands.try_into().unwrap();
            let options = ConvTransposeOptions::new([2, 1], [0, 1], [0, 0], [1, 1], 1);
            B::amp_conv_transpose2d(x, weight, Some(bias), options, F64)
        },
    );
    check(
        operands([&[1, 2, 2, 2, 2], &[2, 1, 2, 2, 1]], 0.0),
        |operands| {
            let [x, weight] = operands.try_into().unwrap();
            let options = ConvTransposeOptions::new([1, 2, 1], [0, 0, 0], [0, 0, 0], [1, 1, 1], 1);
            B::amp_conv_transpose3d(x, weight, None, options, F64)
        },
    );
}

#[test]
fn should_differentiate_layer_norms() {
    check(operands([&[2, 3, 5], &[5], &[5]], 0.0), |operands| {
        let [x, gamma, beta] = operands.try_into().unwrap();
        B::amp_layer_norm(x, gamma, Some(beta), 0.1)
    });
    check(operands([&[4, 3], &[3]], 0.0), |operands| {
        let [x, gamma] = operands.try_into().unwrap();
        B::amp_layer_norm(x, gamma, None, 0.1)
    });
}

#[test]
fn should_differentiate_softmax_over_every_dimension() {
    for dim in 0..3 {
        check(operands([&[2, 3, 4]], 0.0), |mut operands| {
            B::amp_softmax(operands.remove(0), dim)
        });
        check(operands([&[2, 3, 4]], 0.0), |mut operands| {
            B::amp_log_softmax(operands.remove(0), dim)
        });
    }
}

#[test]
fn should_differentiate_activations() {
    check(operands([&[4, 7]], 0.0), |mut operands| {
        B::amp_gelu(operands.remove(0))
    });
    check(operands([&[4, 7]], 0.25), |mut operands| {
        B::amp_relu(operands.remove(0))
    });
}

#[test]
fn should_differentiate_arithmetic_on_two_types() {
    let shapes: [[&[usize]; 2]; 4] = [
        [&[2, 3, 4], &[2, 3, 4]],
        [&[2, 3, 4], &[1, 3, 1]],
        [&[1, 1, 4], &[2, 3, 4]],
        [&[2, 1, 4], &[1, 3, 1]],
    ];
    for shapes in shapes {
        for f32_operand in [0, 1] {
            let mut operands = operands(shapes, 0.5);
            operands[f32_operand].dtype = FloatDType::F32;
            let ops = [
                Arithmetic::Add,
                Arithmetic::Sub,
                Arithmetic::Mul,
                Arithmetic::Div,
            ];
            for op in ops {
                check(operands.clone(), |operands| {
                    let [lhs, rhs] = operands.try_into().unwrap();
                    B::amp_arithmetic(op, lhs, rhs, F64)
                });
            }
        }
    }
}

#[test]
fn should_differentiate_casts_that_are_computed_again() {
    let mut operands = operands([&[3, 4]], 0.5);
    operands[0].dtype = FloatDType::F32;
    check(operands, |mut operands| {
        B::float_log(B::float_abs(B::amp_cast_operand(operands.remove(0), F64)))
    });
}

fn attention(
    operands: Vec<Tensor>,
    mask: Option<BoolTensor<B>>,
    options: AttentionModuleOptions,
) -> Tensor {
    let mut operands = operands.into_iter();
    let mut next = || operands.next();
    let operands = Attention {
        query: next().unwrap(),
        key: next().unwrap(),
        value: next().unwrap(),
        mask,
        bias: next(),
    };
    B::amp_attention(operands, options, F64)
}

fn mask(shape: [usize; 4]) -> BoolTensor<B> {
    let hidden: Vec<bool> = (0..shape.iter().product())
        .map(|index| index % 3 == 1)
        .collect();
    B::bool_from_data(
        TensorData::new(hidden, Shape::new(shape)),
        &Default::default(),
    )
}

#[test]
fn should_differentiate_attention() {
    let qkv: [&[usize]; 3] = [&[2, 2, 3, 4], &[2, 2, 5, 4], &[2, 2, 5, 3]];
    let options = |scale, softcap, is_causal| AttentionModuleOptions {
        scale,
        softcap,
        is_causal,
    };
    check(operands(qkv, 0.0), |operands| {
        attention(operands, None, options(None, None, false))
    });
    check(operands(qkv, 0.0), |operands| {
        attention(operands, None, options(Some(0.3), None, true))
    });
    check(operands(qkv, 0.0), |operands| {
        attention(
            operands,
            Some(mask([2, 2, 3, 5])),
            options(None, Some(1.5), false),
        )
    });
}

/// As multi-query attention has one key and one value for all heads.
#[test]
fn should_differentiate_attention_whose_operands_broadcast() {
    let shapes: [[&[usize]; 3]; 4] = [
        [&[1, 2, 3, 4], &[1, 2, 5, 4], &[2, 2, 5, 3]],
        [&[2, 2, 3, 4], &[2, 1, 5, 4], &[2, 1, 5, 3]],
        [&[1, 2, 3, 4], &[2, 2, 5, 4], &[2, 2, 5, 3]],
        [&[2, 1, 3, 4], &[1, 2, 5, 4], &[2, 2, 5, 3]],
    ];
    let options = AttentionModuleOptions {
        is_causal: true,
        ..Default::default()
    };
    for shapes in shapes {
        check(operands(shapes, 0.0), |operands| {
            attention(operands, Some(mask([1, 2, 1, 5])), options)
        });
    }
}

#[test]
fn should_differentiate_the_bias_of_an_attention() {
    let options = AttentionModuleOptions::default();
    for bias in [[2, 2, 3, 5], [1, 2, 3, 5], [2, 1, 1, 5], [1, 1, 1, 1]] {
        let shapes: [&[usize]; 4] = [&[2, 2, 3, 4], &[2, 2, 5, 4], &[2, 2, 5, 3], &bias];
        check(operands(shapes, 0.0), |operands| {
            attention(operands, None, options)
        });
    }
}
