use std::fmt;
use std::str::FromStr;

use burn::tensor::{DType, FloatDType};
use serde::{Deserialize, Serialize};

/// A 16-bit float type to compute in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Half {
    /// IEEE binary16: 11 significant bits, largest finite value 65504. Needs loss scaling.
    F16,
    /// bfloat16: 8 significant bits, the range of f32.
    Bf16,
}

impl Half {
    /// The Burn type.
    pub const fn dtype(self) -> FloatDType {
        match self {
            Half::F16 => FloatDType::F16,
            Half::Bf16 => FloatDType::BF16,
        }
    }

    const fn as_dtype(self) -> DType {
        match self {
            Half::F16 => DType::F16,
            Half::Bf16 => DType::BF16,
        }
    }
}

/// Whether a type has 16 bits.
pub(crate) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// The precision that a configuration asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// Mixed precision is off: ops run in the types they are given.
    #[default]
    F32,
    /// Mixed precision with bfloat16 as the compute type.
    Bf16,
    /// Mixed precision with float16 as the compute type.
    F16,
    /// bf16 where the device has it, else f16, else f32.
    Auto,
}

impl Precision {
    /// The compute type of lower-class ops, or `None` where mixed precision is off.
    ///
    /// [`Auto`](Precision::Auto) has none before it was resolved for a device.
    pub const fn half(self) -> Option<Half> {
        match self {
            Precision::F32 | Precision::Auto => None,
            Precision::Bf16 => Some(Half::Bf16),
            Precision::F16 => Some(Half::F16),
        }
    }

    /// The float type that the device has to support.
    pub(crate) const fn required(self) -> Option<DType> {
        match self.half() {
            Some(half) => Some(half.as_dtype()),
            None => None,
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16",
            Precision::Auto => "auto",
        })
    }
}

/// The text is not a precision.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown precision `{0}`, expected f32, bf16, f16 or auto")]
pub struct UnknownPrecision(pub String);

impl FromStr for Precision {
    type Err = UnknownPrecision;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "f32" => Ok(Precision::F32),
            "bf16" => Ok(Precision::Bf16),
            "f16" => Ok(Precision::F16),
            "auto" => Ok(Precision::Auto),
            _ => Err(UnknownPrecision(text.to_owned())),
        }
    }
}
