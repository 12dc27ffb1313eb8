//! Every op that has a kernel, called through `AmpBackend`: on Vulkan with and without fusion it gives
//! what it gives on Flex, in value, shape and type.

use burn::backend::Flex;
use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, TensorMetadata};
use burn_amp::AmpBackend;
use burn_amp::extension::Moments;

use crate::device::{Fused, Plain, device, random, tensor, values};

const F32: FloatDType = FloatDType::F32;
const F16: FloatDType = FloatDType::F16;

/// What one call gave.
struct Outcome {
    call: String,
    shape: Vec<usize>,
    dtype: DType,
    values: Vec<f32>,
}

struct Outcomes<B: AmpBackend> {
    device: B::Device,
    all: Vec<Outcome>,
}

impl<B: AmpBackend> Outcomes<B> {
    fn operand(&self, seed: u64, shape: &[usize], dtype: FloatDType) -> FloatTensor<B> {
        let len = shape.iter().product();
        tensor::<B>(&random(seed, len), shape, dtype, &self.device)
    }

    fn note(&mut self, call: String, tensor: FloatTensor<B>) {
        self.all.push(Outcome {
            call,
            shape: tensor.shape().to_vec(),
            dtype: tensor.dtype(),
            values: values::<B>(tensor),
        });
    }
}

fn outcomes<B: AmpBackend>(device: B::Device) -> Vec<Outcome> {
    let mut outcomes = Outcomes::<B> {
        device,
        all: Vec::new(),
    };
    products(&mut outcomes);
    norms(&mut outcomes);
    softmaxes(&mut outcomes);
    casts(&mut outcomes);
    outcomes.all
}

fn products<B: AmpBackend>(outcomes: &mut Outcomes<B>) {
    let types = [F32, F16];
    for left in types {
        for right in types {
            for out in types {
                for (lhs, rhs) in [
                    (&[5, 7][..], &[7, 3][..]),
                    (&[2, 3, 4, 6], &[1, 3, 6, 2]),
                    (&[3, 0], &[0, 2]),
                    (&[1, 9], &[9, 1]),
                ] {
                    let call = format!("matmul {lhs:?} {left:?} {rhs:?} {right:?} {out:?}");
                    let [lhs, rhs] = [(1, lhs, left), (2, rhs, right)]
                        .map(|(seed, shape, dtype)| outcomes.operand(seed, shape, dtype));
                    let swapped = B::amp_matmul(
                        B::float_transpose(rhs.clone()),
                        B::float_transpose(lhs.clone()),
                        F16,
                        out,
                    );
                    outcomes.note(format!("{call} transposed"), swapped);
                    outcomes.note(call, B::amp_matmul(lhs, rhs, F16, out));
                }
            }
            for bias in [None, Some(F32), Some(F16)] {
                for shape in [&[4, 6][..], &[2, 3, 6], &[0, 6]] {
                    let call = format!("linear {shape:?} {left:?} {right:?} {bias:?}");
                    let x = outcomes.operand(3, shape, left);
                    let weight = outcomes.operand(4, &[6, 5], right);
                    let bias = bias.map(|dtype| outcomes.operand(5, &[5], dtype));
                    outcomes.note(call, B::amp_linear(x, weight, bias, F16));
                }
            }
        }
    }
}

fn norms<B: AmpBackend>(outcomes: &mut Outcomes<B>) {
    for dtype in [F32, F16] {
        for shape in [&[3, 33][..], &[2, 3, 8], &[0, 4]] {
            let call = format!("layer norm {shape:?} {dtype:?}");
            let width = shape[shape.len() - 1];
            let x = outcomes.operand(1, shape, dtype);
            let gamma = outcomes.operand(2, &[width], F32);
            let beta = outcomes.operand(3, &[width], F16);
            let grad = outcomes.operand(4, shape, F32);
            let forward = B::amp_layer_norm_forward(x.clone(), gamma.clone(), Some(beta), 1e-5);
            let Moments {
                mean,
                inv_deviation,
            } = forward.moments.clone();
            outcomes.note(format!("{call} output"), forward.output);
            outcomes.note(format!("{call} mean"), mean);
            outcomes.note(format!("{call} deviation"), inv_deviation);
            let grads = B::amp_layer_norm_backward(x, gamma, forward.moments, grad);
            outcomes.note(format!("{call} grad x"), grads.x);
            outcomes.note(format!("{call} grad gamma"), grads.gamma);
            outcomes.note(format!("{call} grad beta"), grads.beta);
        }
    }
}

fn softmaxes<B: AmpBackend>(outcomes: &mut Outcomes<B>) {
    for dtype in [F32, F16] {
        for (shape, dim) in [(&[3, 33][..], 1), (&[2, 5, 4], 1), (&[2, 3, 8], 2)] {
            let call = format!("softmax {shape:?} {dim} {dtype:?}");
            let x = outcomes.operand(1, shape, dtype);
            let grad = outcomes.operand(2, shape, F32);
            let output = B::amp_softmax(x.clone(), dim);
            outcomes.note(call.clone(), output.clone());
            let backward = B::amp_softmax_backward(output, grad.clone(), dim, dtype);
            outcomes.note(format!("{call} backward"), backward);
            let (output, log_sum) = B::amp_log_softmax_forward(x.clone(), dim);
            outcomes.note(format!("log {call}"), output);
            outcomes.note(format!("log {call} sum"), log_sum.clone());
            let backward = B::amp_log_softmax_backward(x, log_sum, grad, dim);
            outcomes.note(format!("log {call} backward"), backward);
        }
    }
}

fn casts<B: AmpBackend>(outcomes: &mut Outcomes<B>) {
    let beyond = [1e9, -1e9, 65504.0, 65519.0, 1.0, -2.5];
    let wide = tensor::<B>(&beyond, &[2, 3], F32, &outcomes.device);
    let view = B::float_transpose(wide.clone());
    outcomes.note("saturating cast".into(), B::amp_cast_saturating(wide, F16));
    outcomes.note(
        "saturating cast of a view".into(),
        B::amp_cast_saturating(view, F16),
    );
}

fn compare(expected: Vec<Outcome>, actual: Vec<Outcome>) {
    assert_eq!(expected.len(), actual.len());
    for (expected, actual) in expected.iter().zip(&actual) {
        let call = &expected.call;
        assert_eq!(*call, actual.call);
        assert_eq!(expected.shape, actual.shape, "{call}");
        assert_eq!(expected.dtype, actual.dtype, "{call}");
        let tolerance = match expected.dtype {
            DType::F32 => 4e-6,
            _ => 1.5e-3,
        };
        for (expected, actual) in expected.values.iter().zip(&actual.values) {
            let error = (expected - actual).abs();
            let magnitude = expected.abs().max(1.0);
            assert!(
                error <= tolerance * magnitude,
                "{call}: {actual}, not {expected}"
            );
        }
    }
}

#[test]
fn without_fusion() {
    let Some(device) = device() else { return };
    compare(
        outcomes::<Flex>(Default::default()),
        outcomes::<Plain>(device),
    );
}

#[test]
fn with_fusion() {
    let Some(device) = device() else { return };
    compare(
        outcomes::<Flex>(Default::default()),
        outcomes::<Fused>(device),
    );
}

/// A type that no kernel takes stays what it is. Its values are Burn's and the driver's affair: on
/// lavapipe a cast to f64 gives zeros.
#[test]
fn f64_runs_composed() {
    let Some(device) = device() else { return };
    fn run<B: AmpBackend>(device: &B::Device) {
        if !B::supports_dtype(device, DType::F64) {
            return;
        }
        let operand = |seed, shape: &[usize]| {
            let len = shape.iter().product();
            tensor::<B>(&random(seed, len), shape, FloatDType::F64, device)
        };
        let normalized =
            B::amp_layer_norm_forward(operand(1, &[3, 4]), operand(2, &[4]), None, 1e-5);
        let (logs, log_sum) = B::amp_log_softmax_forward(operand(3, &[3, 4]), 1);
        let results = [
            normalized.output,
            normalized.moments.mean,
            B::amp_softmax(operand(3, &[3, 4]), 1),
            logs,
            log_sum,
        ];
        for result in results {
            assert_eq!(result.dtype(), DType::F64);
            assert_eq!(
                values::<B>(result.clone()).len(),
                result.shape().num_elements()
            );
        }
    }
    run::<Plain>(&device);
    run::<Fused>(&device);
}
