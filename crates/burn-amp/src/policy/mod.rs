//! What precision an op runs in: the op table, the classes, and the scopes and device settings that
//! are in force. No tensors here.

mod class;
mod op;
mod precision;
mod rules;
mod scope;

pub use class::OpClass;
pub use op::{Op, UnknownOp};
pub(crate) use precision::is_half;
pub use precision::{Half, Precision, UnknownPrecision};
pub use rules::{Readback, Reduction};
pub use scope::{ScopeGuard, enter_full_precision, full_precision};

pub(crate) use rules::{Policy, Rule};
pub(crate) use scope::{
    DeviceKey, DeviceQuery, Frame, Install, ManualScalingGuard, ScopeScaler, begin_backward,
    group_of, install, is_idle, is_off, only_configured, reads_as_f32, reduction, resolve,
    restore_scaler, rule, scaler,
};
#[cfg(feature = "ddp")]
pub(crate) use scope::{Unlike, align, device_reduction};
