use std::fmt;

use serde::{Deserialize, Serialize};

/// How mixed precision treats an op: what it computes in, and the type it returns.
///
/// f64, int, bool and quantized tensors are never touched, whatever the class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpClass {
    /// Float inputs are cast to the compute type; the result has the compute type.
    ///
    /// Matrix products, convolutions, attention.
    Lower,
    /// Computed in f32 from whatever comes in; the result is f32.
    ///
    /// Exponentials, logarithms, powers, reductions, softmax, norms.
    Full,
    /// Computed in f32, and stored in the type of the first input.
    ///
    /// GELU, whose derivative overflows in f16, and average pooling, whose windows are sums.
    Widen,
    /// Operands of different float types meet in the wider one; f16 with bf16 gives f32.
    ///
    /// In elementwise arithmetic the type of the full-shape operand decides the type of the result:
    /// a broadcast operand does not widen it.
    Promote,
    /// The type of the input.
    ///
    /// Layout, indexing, order statistics, comparisons and arithmetic with a scalar.
    Keep,
    /// Outside the rules: creation, explicit casts, data movement, int, bool and quantized ops.
    Exempt,
}

impl fmt::Display for OpClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OpClass::Lower => "lower",
            OpClass::Full => "full",
            OpClass::Widen => "widen",
            OpClass::Promote => "promote",
            OpClass::Keep => "keep",
            OpClass::Exempt => "exempt",
        })
    }
}
