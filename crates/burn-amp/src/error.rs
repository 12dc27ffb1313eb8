use std::path::PathBuf;

use burn::tensor::DType;

use crate::loss_scale::LossScaleConfigError;
use crate::policy::{Op, Precision, Reduction, UnknownOp};

/// A configuration that cannot be used, read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AmpError {
    /// The device lacks the compute type.
    #[error(
        "device {device} does not support {dtype:?}, which precision {precision} computes in; \
         AmpConfig::auto() takes what the device has, with_fallback(true) runs in f32"
    )]
    UnsupportedDType {
        /// The device, as it prints itself.
        device: String,
        /// The type that is missing.
        dtype: DType,
        /// The precision that asked for it.
        precision: Precision,
    },
    /// The device cannot hold the type that gradients are to be reduced in.
    #[error("device {device} does not support {reduction:?}, which gradients are to be reduced in")]
    UnsupportedReduction {
        /// The device, as it prints itself.
        device: String,
        /// The type that was asked for.
        reduction: Reduction,
    },
    /// A list of devices is empty.
    #[error("no device is named; at least one was expected")]
    NoDevice,
    /// An override names an op that Burn does not have.
    #[error(transparent)]
    UnknownOp(#[from] UnknownOp),
    /// An override names an op that the rules never touch, or gives an op the class of those.
    #[error("op `{op}` cannot be overridden with class {class}: {reason}")]
    InvalidOverride {
        /// The op.
        op: Op,
        /// The class that was asked for.
        class: crate::policy::OpClass,
        /// Why it is refused.
        reason: &'static str,
    },
    /// A loss-scale setting is out of range.
    #[error("loss scale: {0}")]
    LossScale(#[from] LossScaleConfigError),
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not a configuration.
    #[error("{}: not an AmpConfig: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why, in serde's words.
        source: serde_json::Error,
    },
}
