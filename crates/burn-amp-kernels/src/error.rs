use crate::FloatType;

/// Why a kernel was not launched.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The shapes do not fit together.
    #[error("{what}: expected {expected}, got {actual}")]
    Shape {
        /// The operand.
        what: &'static str,
        /// What would have fitted.
        expected: String,
        /// Its shape.
        actual: String,
    },
    /// The device cannot compute in or store a type.
    #[error("the device has no {0:?}")]
    UnsupportedType(FloatType),
    /// The operand has another type than the kernel reads.
    #[error("{what}: expected {expected}, got {actual:?}")]
    Type {
        /// The operand.
        what: &'static str,
        /// The types that are read.
        expected: &'static str,
        /// Its type.
        actual: FloatType,
    },
    /// The kernel reads elements in a row, and the tensor's are not.
    #[error("{what} has to be contiguous, got shape {shape} with strides {strides}")]
    NotContiguous {
        /// The operand.
        what: &'static str,
        /// Its shape.
        shape: String,
        /// Its strides.
        strides: String,
    },
    /// The device binds too few buffers to one kernel.
    #[error("the kernel binds {needed} buffers, the device allows {limit}")]
    TooManyBindings {
        /// How many the smallest launch needs.
        needed: usize,
        /// How many there can be.
        limit: usize,
    },
    /// There is no such product on this device, or not for these operands.
    #[error("{strategy} cannot run this product: {reason}")]
    Matmul {
        /// The strategy that was asked for.
        strategy: String,
        /// What it said.
        reason: String,
    },
}
