//! The rules once more, written from their description and not from the code under test.

use burn::tensor::DType;
use burn_amp::{Op, OpClass};

use crate::mode::Mode;

/// What an op does with inputs of given types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The type that every input is cast to.
    pub compute: DType,
    /// The type of float results.
    pub result: DType,
}

/// Elementwise arithmetic with a scalar or a comparison with one: half tensors are computed in f32
/// where the type cannot hold the scalar.
pub fn has_inexact_scalar(op: Op) -> bool {
    matches!(
        op,
        Op::float_add_scalar
            | Op::float_sub_scalar
            | Op::float_mul_scalar
            | Op::float_div_scalar
            | Op::float_remainder_scalar
            | Op::leaky_relu
            | Op::float_equal_elem
            | Op::float_not_equal_elem
            | Op::float_greater_elem
            | Op::float_greater_equal_elem
            | Op::float_lower_elem
            | Op::float_lower_equal_elem
    )
}

/// The type in which values of all these types are exact.
pub fn promoted(dtypes: &[DType]) -> DType {
    dtypes
        .iter()
        .copied()
        .reduce(|a, b| match (a, b) {
            (a, b) if a == b => a,
            (DType::F64, _) | (_, DType::F64) => DType::F64,
            // f16 and bf16 hold nothing of each other, f32 holds both.
            _ => DType::F32,
        })
        .expect("an op with float inputs")
}

/// The expectation for operands that all have the shape of the result.
pub fn expected(op: Op, mode: Mode, dtypes: &[DType]) -> Expected {
    let promoted = promoted(dtypes);
    if promoted == DType::F64 {
        return Expected {
            compute: DType::F64,
            result: DType::F64,
        };
    }
    let same = |dtype| Expected {
        compute: dtype,
        result: dtype,
    };
    let expected = match (op.class(), mode) {
        (OpClass::Exempt, _) => unreachable!("{op} has no rule"),
        (_, Mode::Off) => same(promoted),
        (OpClass::Keep, _) => same(promoted),
        (_, Mode::FullPrecision) => same(DType::F32),
        (OpClass::Promote, _) => same(promoted),
        (OpClass::Lower, mode) => same(mode.half().expect("mixed precision")),
        (OpClass::Full, _) => same(DType::F32),
        (OpClass::Widen, _) => Expected {
            compute: DType::F32,
            result: dtypes[0],
        },
    };
    match op {
        // The gradients of a widened op are those of several inputs: they stay as computed.
        Op::deform_conv2d_backward => Expected {
            result: expected.compute,
            ..expected
        },
        // Looked up in the table's type.
        Op::embedding => Expected {
            compute: promoted,
            ..expected
        },
        op if has_inexact_scalar(op) && mode != Mode::Off => Expected {
            compute: DType::F32,
            ..expected
        },
        _ => expected,
    }
}
