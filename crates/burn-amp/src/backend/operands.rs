//! Applies an op's rule to its float operands, and brings its result to the type the rule wants.

use burn::tensor::ops::{Device, FloatTensor};
use burn::tensor::{DType, FloatDType, Shape, TensorMetadata};

use super::AmpBackend;
use crate::counters;
use crate::policy::{self, DeviceQuery, Half, Op, Rule, is_half};

/// What is still to be done with an op's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Store {
    AsComputed,
    /// Rounded to this type; what is beyond the range becomes infinite.
    Rounded(FloatDType),
    /// Rounded to this type; finite values beyond the range become the largest finite one.
    Saturated(FloatDType),
}

impl Store {
    /// A widened result goes back to the type of the first operand, unless it was computed in f64.
    fn of(rule: Rule, first: DType, computed: DType) -> Self {
        if rule == Rule::Widen && first != computed && computed != DType::F64 {
            Store::Rounded(first.into())
        } else {
            Store::AsComputed
        }
    }

    pub(super) fn finish<B: AmpBackend>(self, result: FloatTensor<B>) -> FloatTensor<B> {
        match self {
            Store::AsComputed => result,
            Store::Rounded(dtype) => to::<B>(result, dtype),
            Store::Saturated(dtype) => saturated::<B>(result, dtype),
        }
    }
}

/// Asks the policy about the device of a float tensor.
struct OnDeviceOf<'a, B: AmpBackend>(&'a FloatTensor<B>);

impl<B: AmpBackend> DeviceQuery for OnDeviceOf<'_, B> {
    type Device = Device<B>;

    fn device(&self) -> Self::Device {
        B::float_device(self.0)
    }

    fn supports(device: &Self::Device, dtype: DType) -> bool {
        B::supports_dtype(device, dtype)
    }
}

/// The rule for an op on the device of `tensor`.
#[inline]
pub(super) fn rule<B: AmpBackend>(op: Op, tensor: &FloatTensor<B>) -> Rule {
    policy::rule(op, &OnDeviceOf::<B>(tensor))
}

/// Whether an op can be passed on as it is: nothing is configured, and the operands have one type.
///
/// What follows from the rules alone comes to the same, but moves the operands about.
#[inline(always)]
pub(super) fn pass<B: AmpBackend, const N: usize, const M: usize>(
    operands: [&FloatTensor<B>; N],
    optional: [Option<&FloatTensor<B>>; M],
) -> bool {
    if !policy::is_idle() {
        return false;
    }
    if N + M == 1 {
        return true;
    }
    let dtype = operands[0].dtype();
    operands
        .iter()
        .chain(optional.iter().flatten())
        .all(|operand| operand.dtype() == dtype)
}

/// The type that a product of these operands is lowered to, if the rule lowers it.
#[inline]
pub(super) fn lowered<B: AmpBackend, const N: usize, const M: usize>(
    op: Op,
    operands: [&FloatTensor<B>; N],
    optional: [Option<&FloatTensor<B>>; M],
) -> Option<FloatDType> {
    match rule::<B>(op, operands[0]) {
        Rule::Lower(half) if none_is_f64::<B, N, M>(operands, optional) => Some(half.dtype()),
        _ => None,
    }
}

fn none_is_f64<B: AmpBackend, const N: usize, const M: usize>(
    operands: [&FloatTensor<B>; N],
    optional: [Option<&FloatTensor<B>>; M],
) -> bool {
    operands
        .iter()
        .chain(optional.iter().flatten())
        .all(|operand| operand.dtype() != DType::F64)
}

/// Casts a tensor if it has another type.
pub(crate) fn to<B: AmpBackend>(tensor: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    if tensor.dtype() == DType::from(dtype) {
        return tensor;
    }
    counters::count_cast();
    B::amp_cast(tensor, dtype)
}

/// As [`to`], for an op that keeps its operands for backward.
fn to_operand<B: AmpBackend>(tensor: FloatTensor<B>, dtype: FloatDType) -> FloatTensor<B> {
    if tensor.dtype() == DType::from(dtype) {
        return tensor;
    }
    counters::count_cast();
    B::amp_cast_operand(tensor, dtype)
}

/// An operand's nearest values in the compute type, in type `run`.
pub(crate) fn product_operand<B: AmpBackend>(
    operand: FloatTensor<B>,
    compute: FloatDType,
    run: FloatDType,
) -> FloatTensor<B> {
    let dtype = operand.dtype();
    if dtype == DType::from(run) && run != compute {
        counters::count_cast();
        return B::amp_round(operand, compute);
    }
    to::<B>(to::<B>(operand, compute), run)
}

/// As [`to`]; a finite value beyond the range becomes the largest finite one.
pub(crate) fn saturated<B: AmpBackend>(
    tensor: FloatTensor<B>,
    dtype: FloatDType,
) -> FloatTensor<B> {
    if tensor.dtype() == DType::from(dtype) {
        return tensor;
    }
    counters::count_cast();
    B::amp_cast_saturating(tensor, dtype)
}

/// Casts the operand with the narrower type to the type of the other.
pub(super) fn in_wider<B: AmpBackend>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
) -> [FloatTensor<B>; 2] {
    let dtype = wider(lhs.dtype(), rhs.dtype()).into();
    [to::<B>(lhs, dtype), to::<B>(rhs, dtype)]
}

/// Casts an f32 or half tensor to a half type.
pub(super) fn lower<B: AmpBackend>(tensor: FloatTensor<B>, half: Half) -> FloatTensor<B> {
    match tensor.dtype() {
        DType::F64 => tensor,
        _ => to::<B>(tensor, half.dtype()),
    }
}

/// Casts a half tensor to f32.
pub(crate) fn widen<B: AmpBackend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    if is_half(tensor.dtype()) {
        return to::<B>(tensor, FloatDType::F32);
    }
    tensor
}

/// The type in which values of both types are exact.
pub(crate) fn wider(a: DType, b: DType) -> DType {
    match (a, b) {
        (a, b) if a == b => a,
        (DType::F64, _) | (_, DType::F64) => DType::F64,
        _ => DType::F32,
    }
}

/// The type that operands are brought to; `None` when none of them changes.
fn target(rule: Rule, dtypes: impl Iterator<Item = DType> + Clone) -> Option<DType> {
    let mut all = dtypes.clone();
    let first = all.next()?;
    let widest = all.fold(first, wider);

    let target = match rule {
        _ if widest == DType::F64 => DType::F64,
        Rule::Off | Rule::Native => widest,
        Rule::Lower(half) => half.dtype().into(),
        Rule::Full | Rule::Widen => wider(widest, DType::F32),
    };
    dtypes
        .into_iter()
        .any(|dtype| dtype != target)
        .then_some(target)
}

/// Operands, optional operands, and what is to be done with the result.
type Operands<B, const N: usize, const M: usize> =
    ([FloatTensor<B>; N], [Option<FloatTensor<B>>; M], Store);

/// Casts the operands of `op` as its rule says. All come out in one type.
#[inline]
pub(super) fn cast<B: AmpBackend, const N: usize, const M: usize>(
    op: Op,
    operands: [FloatTensor<B>; N],
    optional: [Option<FloatTensor<B>>; M],
) -> Operands<B, N, M> {
    let rule = rule::<B>(op, &operands[0]);
    if N + M == 1 && matches!(rule, Rule::Off | Rule::Native) {
        return (operands, optional, Store::AsComputed);
    }
    cast_by::<B, N, M>(op, rule, operands, optional)
}

/// As [`cast`], for a rule that is known.
pub(super) fn cast_by<B: AmpBackend, const N: usize, const M: usize>(
    op: Op,
    rule: Rule,
    operands: [FloatTensor<B>; N],
    optional: [Option<FloatTensor<B>>; M],
) -> Operands<B, N, M> {
    let dtypes = operands
        .iter()
        .chain(optional.iter().flatten())
        .map(TensorMetadata::dtype);
    let Some(target) = target(rule, dtypes) else {
        return (operands, optional, Store::AsComputed);
    };
    let store = Store::of(rule, operands[0].dtype(), target);
    let to = if keeps_no_operand(op) {
        to::<B>
    } else {
        to_operand::<B>
    };
    (
        operands.map(|operand| to(operand, target.into())),
        optional.map(|operand| operand.map(|operand| to(operand, target.into()))),
        store,
    )
}

/// Ops whose nodes in Burn's graph keep no float operand for backward: a cast before them has nothing
/// to be computed again for.
fn keeps_no_operand(op: Op) -> bool {
    matches!(
        op,
        Op::float_add
            | Op::float_sub
            | Op::float_add_scalar
            | Op::float_sub_scalar
            | Op::float_mul_scalar
            | Op::float_div_scalar
            | Op::float_sum
            | Op::float_sum_dim
            | Op::float_mean
            | Op::float_mean_dim
            | Op::float_cumsum
            | Op::float_mask_where
            | Op::float_select_add
            | Op::float_scatter_add
            | Op::float_slice_assign
    )
}

/// Casts a list of operands as the rule of `op` says.
pub(super) fn cast_all<B: AmpBackend>(
    op: Op,
    operands: Vec<FloatTensor<B>>,
) -> (Vec<FloatTensor<B>>, Store) {
    let Some(first) = operands.first() else {
        return (operands, Store::AsComputed);
    };
    let rule = rule::<B>(op, first);
    let Some(target) = target(rule, operands.iter().map(TensorMetadata::dtype)) else {
        return (operands, Store::AsComputed);
    };
    let store = Store::of(rule, first.dtype(), target);
    let cast = operands
        .into_iter()
        .map(|operand| to::<B>(operand, target.into()))
        .collect();
    (cast, store)
}

/// Casts the operands of an elementwise op. Where the rule leaves them alone but their types differ,
/// they meet in the wider one, and the type of the full-shape operands decides the result's.
///
/// `mask` is the shape of a third operand that broadcasts with the two.
#[inline]
pub(super) fn elementwise<B: AmpBackend>(
    op: Op,
    operands: [FloatTensor<B>; 2],
    mask: Option<Shape>,
) -> ([FloatTensor<B>; 2], Store) {
    let rule = rule::<B>(op, &operands[0]);
    let [lhs, rhs] = [operands[0].dtype(), operands[1].dtype()];
    if matches!(rule, Rule::Off | Rule::Native) && lhs == rhs {
        return (operands, Store::AsComputed);
    }
    let store = match rule {
        Rule::Off | Rule::Native => {
            let shapes = [operands[0].shape(), operands[1].shape()];
            match full_shape_dtype([lhs, rhs], &shapes, mask.as_ref()) {
                Some(dtype) if is_half(dtype) => Some(Store::Saturated(dtype.into())),
                _ => None,
            }
        }
        _ => None,
    };
    let (operands, [], computed) = cast_by::<B, 2, 0>(op, rule, operands, []);
    (operands, store.unwrap_or(computed))
}

/// The type that arithmetic on operands that are not both half has under mixed precision.
#[inline]
pub(super) fn result_of_two<B: AmpBackend>(
    op: Op,
    lhs: &FloatTensor<B>,
    rhs: &FloatTensor<B>,
) -> Option<FloatDType> {
    let dtypes = [lhs.dtype(), rhs.dtype()];
    if (dtypes[0] == dtypes[1] && is_half(dtypes[0])) || rule::<B>(op, lhs) != Rule::Native {
        return None;
    }
    let shapes = [lhs.shape(), rhs.shape()];
    let out = (dtypes[0] != dtypes[1])
        .then(|| full_shape_dtype(dtypes, &shapes, None))
        .flatten()
        .filter(|dtype| is_half(*dtype));
    Some(out.unwrap_or_else(|| wider(dtypes[0], dtypes[1])).into())
}

/// The type of the one operand that has the shape of the result, if the other is broadcast to it.
///
/// f16 with bf16 has no such type, nor has anything with f64: they meet in f32 and f64.
fn full_shape_dtype(
    dtypes: [DType; 2],
    shapes: &[Shape; 2],
    mask: Option<&Shape>,
) -> Option<DType> {
    let [lhs, rhs] = dtypes;
    if (is_half(lhs) && is_half(rhs)) || lhs == DType::F64 || rhs == DType::F64 {
        return None;
    }
    let is_full = |shape: &Shape| {
        shapes.iter().chain(mask).all(|other| {
            shape.num_dims() == other.num_dims()
                && (0..shape.num_dims()).all(|dim| shape[dim] == other[dim] || other[dim] == 1)
        })
    };
    match [is_full(&shapes[0]), is_full(&shapes[1])] {
        [true, false] => Some(lhs),
        [false, true] => Some(rhs),
        _ => None,
    }
}
