//! Custom ops among ops that Burn fuses.

use burn::backend::Flex;
use burn::tensor::{FloatDType, Tensor, TensorPrimitive};
use burn_amp::AmpBackend;

use crate::device::{Fused, Plain, device, random, tensor, values};

type Matrix<B> = Tensor<B, 2>;

fn matrix<B: AmpBackend>(seed: u64, shape: [usize; 2], device: &B::Device) -> Matrix<B> {
    let operand = tensor::<B>(
        &random(seed, shape[0] * shape[1]),
        &shape,
        FloatDType::F32,
        device,
    );
    Matrix::from_primitive(TensorPrimitive::Float(operand))
}

fn float<B: AmpBackend>(tensor: Matrix<B>) -> burn::tensor::ops::FloatTensor<B> {
    tensor.into_primitive().tensor()
}

fn wrap<B: AmpBackend>(tensor: burn::tensor::ops::FloatTensor<B>) -> Matrix<B> {
    Matrix::from_primitive(TensorPrimitive::Float(tensor))
}

/// A chain before, a product, a chain after that uses an operand again, a norm, and a chain.
fn chained<B: AmpBackend>(device: &B::Device) -> Vec<f32> {
    let x = matrix::<B>(1, [6, 8], device);
    let weight = matrix::<B>(2, [8, 5], device);
    let before = ((x * 2.0 + 1.0).tanh() * 0.5).cast(FloatDType::F16);
    let product = B::amp_matmul(
        float::<B>(before.clone()),
        float::<B>(weight),
        FloatDType::F16,
        FloatDType::F32,
    );
    let after =
        (wrap::<B>(product) * 3.0 - 1.0).exp() + before.cast(FloatDType::F32).slice([0..6, 0..5]);
    let gamma = tensor::<B>(&[1.0; 5], &[5], FloatDType::F32, device);
    let normalized = B::amp_layer_norm(float::<B>(after.clone()), gamma, None, 1e-5);
    values::<B>(float::<B>(wrap::<B>(normalized).abs() * after + 0.25))
}

fn assert_agree(expected: &[f32], actual: &[f32]) {
    for (expected, actual) in expected.iter().zip(actual) {
        let error = (expected - actual).abs();
        assert!(
            error <= 2e-3 * expected.abs().max(1.0),
            "{actual}, not {expected}"
        );
    }
}

#[test]
fn before_and_after_a_custom_op() {
    let Some(device) = device() else { return };
    let expected = chained::<Flex>(&Default::default());
    assert_agree(&expected, &chained::<Plain>(&device));
    assert_agree(&expected, &chained::<Fused>(&device));
}

/// What a plan remembers is the graph; what an op holds beside it is its own.
#[test]
fn the_same_graph_with_another_epsilon() {
    let Some(device) = device() else { return };
    let spread = |epsilon: f64| {
        let x = matrix::<Fused>(3, [2, 16], &device);
        let gamma = tensor::<Fused>(&[1.0; 16], &[16], FloatDType::F32, &device);
        let normalized = Fused::amp_layer_norm(float::<Fused>(x), gamma, None, epsilon);
        let values = values::<Fused>(normalized);
        values.iter().map(|value| value * value).sum::<f32>()
    };
    let [narrow, wide, again] = [1e-5, 1e2, 1e-5].map(spread);
    assert!((narrow - 32.0).abs() < 0.01, "{narrow}");
    assert!(wide < 1.0, "{wide}");
    assert_eq!(narrow, again);
}

/// Tensors made on one thread and used on another.
#[test]
fn from_another_thread() {
    let Some(device) = device() else { return };
    let x = matrix::<Fused>(4, [4, 8], &device) + 1.0;
    let weight = matrix::<Fused>(5, [8, 3], &device);
    let multiply = |x: Matrix<Fused>, weight: Matrix<Fused>| {
        let [x, weight] = [x, weight].map(float::<Fused>);
        let product = Fused::amp_matmul(x, weight, FloatDType::F16, FloatDType::F16);
        values::<Fused>(product)
    };
    let here = multiply(x.clone(), weight.clone());
    let there = std::thread::spawn(move || multiply(x, weight))
        .join()
        .unwrap();
    assert_eq!(here, there);
}
