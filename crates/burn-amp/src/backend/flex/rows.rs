//! Row by row: one pass over the values, without an f32 copy of a whole tensor.

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::{Bytes, DType, FloatDType, Shape};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::backend::amp_backend::{LayerNorm, LayerNormGrads, Moments};

/// Whether all operands are f32 or half, and have rows that are not empty.
pub(super) fn takes<const N: usize>(operands: [&FlexTensor; N]) -> bool {
    operands.iter().all(|operand| {
        matches!(operand.dtype(), DType::F32 | DType::F16 | DType::BF16)
            && operand
                .layout()
                .shape()
                .last()
                .is_some_and(|width| *width > 0)
    })
}

/// A contiguous tensor whose rows are read as f32.
struct Rows {
    tensor: FlexTensor,
    width: usize,
    count: usize,
}

impl Rows {
    fn new(tensor: &FlexTensor) -> Self {
        let shape = tensor.layout().shape();
        let width = *shape.last().expect("a row");
        Self {
            count: shape.num_elements() / width,
            width,
            tensor: tensor.to_contiguous(),
        }
    }

    fn read(&self, index: usize, row: &mut [f32]) {
        let range = index * self.width..(index + 1) * self.width;
        match self.tensor.dtype() {
            DType::F16 => self.tensor.storage::<f16>()[range].convert_to_f32_slice(row),
            DType::BF16 => self.tensor.storage::<bf16>()[range].convert_to_f32_slice(row),
            _ => row.copy_from_slice(&self.tensor.storage::<f32>()[range]),
        }
    }

    /// The values of a vector that goes with rows of this width.
    fn vector(tensor: &FlexTensor, width: usize) -> Vec<f32> {
        let shape = tensor.layout().shape();
        assert_eq!(
            shape.to_vec(),
            [width],
            "a layer norm over {width} values needs as many scales and biases"
        );
        let rows = Rows::new(tensor);
        let mut values = vec![0.0; rows.width];
        rows.read(0, &mut values);
        values
    }

    fn buffer(&self) -> Vec<f32> {
        vec![0.0; self.width]
    }
}

/// Collects rows of f32 values in a float type.
enum Output {
    F32(Vec<f32>),
    F16(Vec<f16>),
    Bf16(Vec<bf16>),
}

impl Output {
    fn new(dtype: FloatDType, capacity: usize) -> Self {
        match dtype {
            FloatDType::F16 => Output::F16(Vec::with_capacity(capacity)),
            FloatDType::BF16 => Output::Bf16(Vec::with_capacity(capacity)),
            _ => Output::F32(Vec::with_capacity(capacity)),
        }
    }

    fn push(&mut self, row: &[f32]) {
        match self {
            Output::F32(values) => values.extend_from_slice(row),
            Output::F16(values) => {
                let start = values.len();
                values.resize(start + row.len(), f16::ZERO);
                values[start..].convert_from_f32_slice(row);
            }
            Output::Bf16(values) => {
                let start = values.len();
                values.resize(start + row.len(), bf16::ZERO);
                values[start..].convert_from_f32_slice(row);
            }
        }
    }

    fn into_tensor(self, shape: Shape) -> FlexTensor {
        let (bytes, dtype) = match self {
            Output::F32(values) => (Bytes::from_elems(values), DType::F32),
            Output::F16(values) => (Bytes::from_elems(values), DType::F16),
            Output::Bf16(values) => (Bytes::from_elems(values), DType::BF16),
        };
        FlexTensor::new(bytes, Layout::contiguous(shape), dtype)
    }
}

fn f32_tensor(values: Vec<f32>, shape: Shape) -> FlexTensor {
    Output::F32(values).into_tensor(shape)
}

pub(super) fn layer_norm(
    tensor: FlexTensor,
    gamma: FlexTensor,
    beta: Option<FlexTensor>,
    epsilon: f64,
) -> LayerNorm<Flex> {
    let shape = tensor.layout().shape().clone();
    let rows = Rows::new(&tensor);
    let gamma = Rows::vector(&gamma, rows.width);
    let beta = beta.map(|beta| Rows::vector(&beta, rows.width));

    let mut row = rows.buffer();
    let mut out = Output::new(FloatDType::F32, shape.num_elements());
    let mut means = Vec::with_capacity(rows.count);
    let mut inv_deviations = Vec::with_capacity(rows.count);
    for index in 0..rows.count {
        rows.read(index, &mut row);
        let (mean, inv_deviation) = moments(&row, epsilon);
        for (value, gamma) in row.iter_mut().zip(&gamma) {
            *value = ((f64::from(*value) - mean) * inv_deviation) as f32 * gamma;
        }
        if let Some(beta) = &beta {
            for (value, beta) in row.iter_mut().zip(beta) {
                *value += beta;
            }
        }
        out.push(&row);
        means.push(mean as f32);
        inv_deviations.push(inv_deviation as f32);
    }

    let mut statistics = shape.clone();
    let last = statistics.num_dims() - 1;
    statistics[last] = 1;
    LayerNorm {
        output: out.into_tensor(shape),
        moments: Moments {
            mean: f32_tensor(means, statistics.clone()),
            inv_deviation: f32_tensor(inv_deviations, statistics),
        },
    }
}

/// The formula is that of the composed gradient.
pub(super) fn layer_norm_backward(
    x: FlexTensor,
    gamma: FlexTensor,
    moments: Moments<Flex>,
    grad: FlexTensor,
) -> LayerNormGrads<Flex> {
    let shape = x.layout().shape().clone();
    let (xs, grads) = (Rows::new(&x), Rows::new(&grad));
    let gamma = Rows::vector(&gamma, xs.width);
    let [means, inv_deviations] =
        [moments.mean, moments.inv_deviation].map(|statistic| statistic.to_contiguous());
    let (means, inv_deviations) = (means.storage::<f32>(), inv_deviations.storage::<f32>());

    let width = xs.width;
    let (mut x_row, mut grad_row) = (xs.buffer(), xs.buffer());
    let mut out = Output::new(x.dtype().into(), shape.num_elements());
    // f64 over the rows: there may be many thousands of them.
    let (mut gamma_grad, mut beta_grad) = (vec![0f64; width], vec![0f64; width]);
    for index in 0..xs.count {
        xs.read(index, &mut x_row);
        grads.read(index, &mut grad_row);
        let (mean, inv_deviation) = (means[index], inv_deviations[index]);
        let (mut sum, mut slope) = (0f64, 0f64);
        for column in 0..width {
            let normalized = (x_row[column] - mean) * inv_deviation;
            let grad = grad_row[column];
            gamma_grad[column] += f64::from(grad * normalized);
            beta_grad[column] += f64::from(grad);
            let grad = grad * gamma[column];
            sum += f64::from(grad);
            slope += f64::from(grad * normalized);
            x_row[column] = normalized;
            grad_row[column] = grad;
        }
        let (mean, slope) = ((sum / width as f64) as f32, (slope / width as f64) as f32);
        for (grad, normalized) in grad_row.iter_mut().zip(&x_row) {
            *grad = (*grad - mean - normalized * slope) * inv_deviation;
        }
        out.push(&grad_row);
    }

    let vector = |sums: Vec<f64>| {
        let values = sums.into_iter().map(|sum| sum as f32).collect();
        f32_tensor(values, Shape::new([width]))
    };
    LayerNormGrads {
        x: out.into_tensor(shape),
        gamma: vector(gamma_grad),
        beta: vector(beta_grad),
    }
}

pub(super) fn softmax_backward(
    output: FlexTensor,
    grad: FlexTensor,
    out: FloatDType,
) -> FlexTensor {
    let shape = output.layout().shape().clone();
    let (outputs, grads) = (Rows::new(&output), Rows::new(&grad));
    let (mut output_row, mut grad_row) = (outputs.buffer(), grads.buffer());
    let mut result = Output::new(out, shape.num_elements());
    for index in 0..outputs.count {
        outputs.read(index, &mut output_row);
        grads.read(index, &mut grad_row);
        let (mut weighted, mut total) = (0f64, 0f64);
        for (output, grad) in output_row.iter().zip(&grad_row) {
            weighted += f64::from(output * grad);
            total += f64::from(*output);
        }
        let mean = (weighted / total.max(f64::from(f32::MIN_POSITIVE))) as f32;
        for (grad, output) in grad_row.iter_mut().zip(&output_row) {
            *grad = output * (*grad - mean);
        }
        result.push(&grad_row);
    }
    result.into_tensor(shape)
}

/// The mean of a row, and one over the square root of its variance plus `epsilon`.
///
/// Not as E[x²] - E[x]², which cancels.
fn moments(row: &[f32], epsilon: f64) -> (f64, f64) {
    let count = row.len() as f64;
    let mean = row.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
    let squares = row.iter().map(|value| (f64::from(*value) - mean).powi(2));
    let variance = squares.sum::<f64>() / count;
    (mean, (variance + epsilon).sqrt().recip())
}
