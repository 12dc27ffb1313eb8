//! Flex, Burn's CPU backend: casts, norms and gradients in one pass over the values.
//!
//! Flex's own cast goes through a vector of f64, four times the bytes of an f16 result's source. Its
//! layer norm takes the variance as E[x²] - E[x]² in f32: NaN for a mean of 1000 and a deviation of
//! 0.1.

mod cast;
mod rows;

use burn::backend::Flex;
use burn::tensor::ops::{ActivationOps, FloatTensor, FloatTensorOps};
use burn::tensor::{DType, FloatDType, TensorMetadata};

use super::amp_backend::{AmpBackend, LayerNorm, LayerNormGrads, Moments, largest_finite};
use super::composed;
use super::operands;
use crate::policy::is_half;

impl AmpBackend for Flex {
    fn amp_cast(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        let target = DType::from(dtype);
        if tensor.dtype() == target {
            return tensor;
        }
        match (tensor.dtype(), target) {
            (DType::F32, DType::F16 | DType::BF16) => cast::narrow(&tensor, target, |value| value),
            (DType::F16 | DType::BF16, DType::F32) => cast::widen(&tensor),
            _ => Self::float_cast(tensor, dtype),
        }
    }

    fn amp_cast_saturating(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        let tensor = operands::widen::<Self>(tensor);
        match (tensor.dtype(), largest_finite(dtype)) {
            (DType::F32, Some(max)) => cast::narrow(&tensor, dtype.into(), |value| {
                if value.is_finite() {
                    value.clamp(-max, max)
                } else {
                    value
                }
            }),
            _ => composed::cast_saturating::<Self>(tensor, dtype),
        }
    }

    /// Flex's products in half types take longer than in f32, and round sums of more than about a
    /// thousand terms on the way.
    fn amp_product_type(compute: FloatDType) -> FloatDType {
        if is_half(compute.into()) {
            FloatDType::F32
        } else {
            compute
        }
    }

    fn amp_round(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        match (tensor.dtype(), DType::from(dtype)) {
            (DType::F32, half @ (DType::F16 | DType::BF16)) => cast::rounded(&tensor, half),
            (own, _) => Self::amp_cast(Self::amp_cast(tensor, dtype), own.into()),
        }
    }

    fn amp_layer_norm_forward(
        tensor: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> LayerNorm<Self> {
        if !rows::takes([&tensor, &gamma]) || beta.as_ref().is_some_and(|beta| !rows::takes([beta]))
        {
            return composed::layer_norm::<Self>(tensor, gamma, beta, epsilon);
        }
        rows::layer_norm(tensor, gamma, beta, epsilon)
    }

    fn amp_layer_norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        moments: Moments<Self>,
        grad: FloatTensor<Self>,
    ) -> LayerNormGrads<Self> {
        if !rows::takes([&x, &gamma, &grad]) {
            return composed::layer_norm_backward::<Self>(x, gamma, moments, grad);
        }
        rows::layer_norm_backward(x, gamma, moments, grad)
    }

    fn amp_softmax_backward(
        output: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        dim: usize,
        out: FloatDType,
    ) -> FloatTensor<Self> {
        if dim + 1 != output.rank() || !rows::takes([&output, &grad]) {
            return composed::softmax_backward::<Self>(output, grad, dim, out);
        }
        rows::softmax_backward(output, grad, out)
    }

    /// Flex's derivative is the exact one, and finite in f32.
    fn amp_gelu_backward(x: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        let dtype = x.dtype().into();
        let grad = Self::gelu_backward(operands::widen::<Self>(x), operands::widen::<Self>(grad));
        operands::to::<Self>(grad, dtype)
    }
}
