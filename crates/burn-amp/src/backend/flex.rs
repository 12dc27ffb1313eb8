//! Flex, Burn's CPU backend: casts in one pass over the values, and layer norm.
//!
//! Flex's own cast goes through a vector of f64, four times the bytes of an f16 result's source. Its
//! layer norm takes the variance as E[x²] - E[x]² in f32: NaN for a mean of 1000 and a deviation of
//! 0.1.

use burn::backend::Flex;
use burn::backend::flex::{FlexTensor, Layout};
use burn::tensor::ops::{FloatTensor, FloatTensorOps, ModuleOps};
use burn::tensor::{Bytes, DType, FloatDType, Shape};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::amp_backend::{AmpBackend, largest_finite};

impl AmpBackend for Flex {
    fn amp_cast(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        let target = DType::from(dtype);
        if tensor.dtype() == target {
            return tensor;
        }
        match (tensor.dtype(), target) {
            (DType::F32, DType::F16 | DType::BF16) => narrow(&tensor, target, |value| value),
            (DType::F16 | DType::BF16, DType::F32) => widen(&tensor),
            _ => Self::float_cast(tensor, dtype),
        }
    }

    fn amp_cast_saturating(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        match (tensor.dtype(), largest_finite(dtype)) {
            (DType::F32, Some(max)) => narrow(&tensor, dtype.into(), |value| {
                if value.is_finite() {
                    value.clamp(-max, max)
                } else {
                    value
                }
            }),
            _ => Self::amp_cast(tensor, dtype),
        }
    }

    fn amp_layer_norm(
        tensor: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let width = *gamma.layout().shape().last().unwrap_or(&0);
        if tensor.dtype() != DType::F32 || width == 0 {
            return Self::layer_norm(tensor, gamma, beta, epsilon);
        }
        let [tensor, gamma] = [tensor, gamma].map(|operand| operand.to_contiguous());
        let beta = beta.map(|beta| beta.to_contiguous());
        let shape = tensor.layout().shape().clone();

        let gamma = &gamma.storage::<f32>()[..width];
        let beta = beta.as_ref().map(|beta| &beta.storage::<f32>()[..width]);
        let rows = tensor.storage::<f32>()[..shape.num_elements()].chunks_exact(width);
        let mut out = Vec::with_capacity(shape.num_elements());
        for row in rows {
            let (mean, inv_deviation) = moments(row, epsilon);
            let normalized = row
                .iter()
                .map(|value| ((f64::from(*value) - mean) * inv_deviation) as f32)
                .zip(gamma)
                .map(|(value, gamma)| value * gamma);
            match beta {
                Some(beta) => out.extend(normalized.zip(beta).map(|(value, beta)| value + beta)),
                None => out.extend(normalized),
            }
        }
        FlexTensor::new(
            Bytes::from_elems(out),
            Layout::contiguous(shape),
            DType::F32,
        )
    }
}

/// Values per pass: small enough for the cache, and a whole number of vector registers.
const CHUNK: usize = 1024;

fn narrow(tensor: &FlexTensor, target: DType, prepare: impl Fn(f32) -> f32) -> FlexTensor {
    let tensor = tensor.to_contiguous();
    let shape = tensor.layout().shape().clone();
    let values = &tensor.storage::<f32>()[..shape.num_elements()];
    let mut chunk = [0f32; CHUNK];

    let mut fill = |convert: &mut dyn FnMut(usize, &[f32])| {
        for (index, source) in values.chunks(CHUNK).enumerate() {
            let chunk = &mut chunk[..source.len()];
            for (prepared, value) in chunk.iter_mut().zip(source) {
                *prepared = prepare(*value);
            }
            convert(index * CHUNK, chunk);
        }
    };
    let bytes = if target == DType::F16 {
        let mut out = vec![f16::ZERO; values.len()];
        fill(&mut |at, chunk| out[at..at + chunk.len()].convert_from_f32_slice(chunk));
        Bytes::from_elems(out)
    } else {
        let mut out = vec![bf16::ZERO; values.len()];
        fill(&mut |at, chunk| out[at..at + chunk.len()].convert_from_f32_slice(chunk));
        Bytes::from_elems(out)
    };
    FlexTensor::new(bytes, Layout::contiguous(shape), target)
}

fn widen(tensor: &FlexTensor) -> FlexTensor {
    let tensor = tensor.to_contiguous();
    let shape: Shape = tensor.layout().shape().clone();
    let len = shape.num_elements();
    let mut out = vec![0f32; len];

    if tensor.dtype() == DType::F16 {
        tensor.storage::<f16>()[..len].convert_to_f32_slice(&mut out);
    } else {
        tensor.storage::<bf16>()[..len].convert_to_f32_slice(&mut out);
    }
    FlexTensor::new(
        Bytes::from_elems(out),
        Layout::contiguous(shape),
        DType::F32,
    )
}

/// The mean of a row, and one over the square root of its variance plus `epsilon`.
fn moments(row: &[f32], epsilon: f64) -> (f64, f64) {
    let count = row.len() as f64;
    let mean = row.iter().map(|value| f64::from(*value)).sum::<f64>() / count;
    let squares = row.iter().map(|value| (f64::from(*value) - mean).powi(2));
    let variance = squares.sum::<f64>() / count;
    (mean, (variance + epsilon).sqrt().recip())
}
