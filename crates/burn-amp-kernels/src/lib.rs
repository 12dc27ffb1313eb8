//! CubeCL kernels for mixed-precision training.
//!
//! - [`matmul`]: a product of operands in any of f32, f16 and bf16, multiplied in a half type and
//!   summed in f32, with casts on load and a bias added to the accumulator.
//! - [`unscale`]: divides many gradients by the loss scale and flags those that are not finite.
//! - [`rows`]: layer norm, softmax and log-softmax, forward and backward, in f32 arithmetic.
//! - [`cast()`]: casts, saturating or not.
//!
//! The kernels know tensors on a device and their types, and nothing of precision policies, modules
//! or autodiff. They run on every runtime of CubeCL. What a device cannot do is a [`KernelError`]
//! before anything is launched, so that a caller can take another way.

#![recursion_limit = "256"]

mod cast;
pub mod counters;
mod device;
mod error;
pub mod matmul;
pub mod rows;
mod tensor;
pub mod unscale;

pub use cast::cast;
pub use device::supports;
pub use error::KernelError;
pub use tensor::{DeviceTensor, FloatType};
