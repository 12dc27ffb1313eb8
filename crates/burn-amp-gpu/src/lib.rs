//! The proof on a GPU: are the kernels right there, how fast are they, what does training gain.
//!
//! - `check` compares every kernel with a reference in f64, in each half type that the device has.
//! - `matmul` and `bandwidth` time the kernels, next to Burn's own and to a copy.
//! - `train` times a step of a GPT of GPT-2's sizes, in f32 and in mixed precision.
//!
//! What is pure is here in any case: references, statistics, the time budget, tables, the chart. What
//! needs a device needs the feature `cuda` or `vulkan`.

#![recursion_limit = "256"]

#[cfg(any(feature = "cuda", feature = "vulkan"))]
pub mod all;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
pub mod bandwidth;
pub mod budget;
pub mod chart;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
pub mod check;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
pub mod device;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
pub mod matmul;
pub mod records;
pub mod reference;
pub mod report;
pub mod shapes;
pub mod stats;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
pub mod timing;
#[cfg(any(feature = "cuda", feature = "vulkan"))]
pub mod train;
