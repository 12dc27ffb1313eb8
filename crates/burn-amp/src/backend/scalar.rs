//! Scalars beside half-precision tensors: applied in f32, or as the nearest value that keeps their
//! promise.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, Scalar, TensorMetadata};
use half::{bf16, f16};

use super::AmpBackend;
use super::amp_backend::largest_finite;
use super::operands::{self, Store};
use crate::policy::{Op, Rule, is_half};

/// The operand of an op with scalars, in a type that the scalars can be applied in.
///
/// A scalar is an f32 operand that is broadcast: where the tensor's half type holds it exactly the
/// op runs in that type, else in f32, and the result is stored in the tensor's type. It saturates if
/// the scalar itself is beyond the type's range; an ordinary overflow stays visible.
#[inline]
pub(super) fn operand<B: AmpBackend>(
    op: Op,
    tensor: FloatTensor<B>,
    scalars: &[Scalar],
) -> (FloatTensor<B>, Store) {
    let rule = operands::rule::<B>(op, &tensor);
    let ([tensor], [], store) = operands::cast_by::<B, 1, 0>(op, rule, [tensor], []);
    let dtype = tensor.dtype();
    if rule == Rule::Off || !is_half(dtype) || scalars.iter().all(|scalar| is_exact(*scalar, dtype))
    {
        return (tensor, store);
    }
    let store = if scalars.iter().any(|scalar| is_beyond(*scalar, dtype)) {
        Store::Saturated(dtype.into())
    } else {
        Store::Rounded(dtype.into())
    };
    (operands::to::<B>(tensor, FloatDType::F32), store)
}

/// Whether a finite scalar is beyond the range of a half type.
fn is_beyond(scalar: Scalar, dtype: DType) -> bool {
    let value: f64 = scalar.elem();
    value.is_finite() && half_max(dtype).is_some_and(|max| value.abs() > max)
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

/// The operand of a fill, and the value to fill it with: finite stays finite.
pub(super) fn filled<B: AmpBackend>(
    op: Op,
    tensor: FloatTensor<B>,
    value: Scalar,
) -> (FloatTensor<B>, Scalar, Store) {
    let rule = operands::rule::<B>(op, &tensor);
    let ([tensor], [], store) = operands::cast_by::<B, 1, 0>(op, rule, [tensor], []);
    let exact: f64 = value.elem();
    let value = match half_max(tensor.dtype()) {
        Some(max) if rule != Rule::Off && exact.is_finite() => exact.clamp(-max, max).into(),
        _ => value,
    };
    (tensor, value, store)
}

/// The operand of a clamp, and what its bounds have to become.
pub(super) fn clamped<B: AmpBackend>(
    op: Op,
    tensor: FloatTensor<B>,
) -> (FloatTensor<B>, Bounds, Store) {
    let rule = operands::rule::<B>(op, &tensor);
    let ([tensor], [], store) = operands::cast_by::<B, 1, 0>(op, rule, [tensor], []);
    let dtype = tensor.dtype();
    let half = (rule != Rule::Off && is_half(dtype)).then_some(dtype);
    (tensor, Bounds { half }, store)
}

/// The bounds of a clamp in a half type: the nearest representable values inside the given ones, so
/// that these hold for the result. A positive lower bound never becomes zero, no finite bound infinite.
pub(super) struct Bounds {
    half: Option<DType>,
}

impl Bounds {
    pub(super) fn at_least(&self, min: Scalar) -> Scalar {
        self.inside(min, |rounded, min| rounded >= min, next_up)
    }

    pub(super) fn at_most(&self, max: Scalar) -> Scalar {
        self.inside(max, |rounded, max| rounded <= max, next_down)
    }

    /// Both bounds; where no value of the type lies between them, the one nearest to `min` for both,
    /// because the lower bound of a clamp must not exceed the upper one.
    pub(super) fn between(&self, min: Scalar, max: Scalar) -> (Scalar, Scalar) {
        let inside = (self.at_least(min), self.at_most(max));
        let exceeds = |low: Scalar, high: Scalar| low.elem::<f64>() > high.elem::<f64>();
        match self.half {
            Some(dtype) if exceeds(inside.0, inside.1) && !exceeds(min, max) => {
                let nearest = Scalar::from(round(min.elem(), dtype));
                (nearest, nearest)
            }
            _ => inside,
        }
    }

    fn inside(
        &self,
        bound: Scalar,
        holds: fn(f64, f64) -> bool,
        next: fn(f64, DType) -> f64,
    ) -> Scalar {
        let value: f64 = bound.elem();
        let Some(dtype) = self.half.filter(|_| value.is_finite()) else {
            return bound;
        };
        let max = half_max(dtype).unwrap_or(f64::MAX);
        let rounded = round(value.clamp(-max, max), dtype);
        if holds(rounded, value) || rounded.abs() == max {
            rounded.into()
        } else {
            next(rounded, dtype).into()
        }
    }
}

fn half_max(dtype: DType) -> Option<f64> {
    largest_finite(dtype.into()).map(f64::from)
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
