//! Scalars beside half-precision tensors: applied in f32, or as the nearest value that keeps their
//! promise.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, Scalar, TensorMetadata};
use half::{bf16, f16};

use super::AmpBackend;
use super::amp_backend::largest_finite;
use super::operands::{self, Store};
use crate::policy::{Op, Rule};

/// The operand of an op with scalars, in a type that the scalars can be applied in.
///
/// A scalar is an f32 operand that is broadcast: where the tensor's half type holds it exactly the
/// op runs in that type, else in f32, and the result is stored in the tensor's type, saturating.
#[inline]
pub(super) fn operand<B: AmpBackend>(
    op: Op,
    tensor: FloatTensor<B>,
    scalars: &[Scalar],
) -> (FloatTensor<B>, Store) {
    let ([tensor], [], store) = operands::cast::<B, 1, 0>(op, [tensor], []);
    let dtype = tensor.dtype();
    if !operands::is_half(dtype) || scalars.iter().all(|scalar| is_exact(*scalar, dtype)) {
        return (tensor, store);
    }
    (
        operands::to::<B>(tensor, FloatDType::F32),
        Store::Saturated(dtype.into()),
    )
}

fn is_exact(scalar: Scalar, dtype: DType) -> bool {
    let value: f64 = scalar.elem();
    let rounded = round(value, dtype);
    rounded == value || value.is_nan()
}

fn round(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F16 => f16::from_f64(value).to_f64(),
        _ => bf16::from_f64(value).to_f64(),
    }
}

/// The value to fill a tensor of this type with: finite stays finite.
pub(super) fn fill(value: Scalar, dtype: DType) -> Scalar {
    let exact: f64 = value.elem();
    match half_max(dtype) {
        Some(max) if exact.is_finite() => exact.clamp(-max, max).into(),
        _ => value,
    }
}

/// The bounds that keep the promise of `min` and `max` in a half type: the nearest representable
/// values inside them. A positive lower bound never becomes zero, and no finite bound infinite.
pub(super) fn at_least(min: Scalar, dtype: DType) -> Scalar {
    bound(min, dtype, |rounded, value| rounded < value, next_up)
}

/// See [`at_least`].
pub(super) fn at_most(max: Scalar, dtype: DType) -> Scalar {
    bound(max, dtype, |rounded, value| rounded > value, next_down)
}

fn bound(
    bound: Scalar,
    dtype: DType,
    breaks: fn(f64, f64) -> bool,
    inward: fn(f64, DType) -> f64,
) -> Scalar {
    let value: f64 = bound.elem();
    let Some(max) = half_max(dtype).filter(|_| value.is_finite()) else {
        return bound;
    };
    let rounded = round(value.clamp(-max, max), dtype);
    if breaks(rounded, value) && rounded.abs() < max {
        inward(rounded, dtype).into()
    } else {
        rounded.into()
    }
}

fn half_max(dtype: DType) -> Option<f64> {
    match dtype {
        DType::F16 | DType::BF16 => largest_finite(dtype.into()).map(f64::from),
        _ => None,
    }
}

/// The next value of the type above `value`.
fn next_up(value: f64, dtype: DType) -> f64 {
    let up = |bits: u16| match bits {
        0x8000 => 1,
        bits if bits & 0x8000 == 0 => bits + 1,
        bits => bits - 1,
    };
    match dtype {
        DType::F16 => f16::from_bits(up(f16::from_f64(value).to_bits())).to_f64(),
        _ => bf16::from_bits(up(bf16::from_f64(value).to_bits())).to_f64(),
    }
}

fn next_down(value: f64, dtype: DType) -> f64 {
    -next_up(-value, dtype)
}

/// Applies a comparison's scalar: in f32 where the tensor's half type cannot hold it.
#[inline]
pub(super) fn compared<B: AmpBackend>(
    op: Op,
    tensor: FloatTensor<B>,
    scalar: Scalar,
) -> FloatTensor<B> {
    operand::<B>(op, tensor, &[scalar]).0
}

/// Whether the rule for a clamp leaves the tensor in its type.
pub(super) fn clamped<B: AmpBackend>(op: Op, tensor: FloatTensor<B>) -> (FloatTensor<B>, Store) {
    let rule = operands::rule::<B>(op, &tensor);
    if rule == Rule::Native {
        return (tensor, Store::AsComputed);
    }
    let ([tensor], [], store) = operands::cast::<B, 1, 0>(op, [tensor], []);
    (tensor, store)
}
