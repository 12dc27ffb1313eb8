//! CUDA without a GPU: the kernels of burn-amp through CubeCL's compiler and NVRTC.
//!
//! - [`runtime`]: a runtime of CubeCL that compiles what is launched and runs nothing.
//! - [`cases`]: every kernel, over the types, shapes and strategies that it is used with.
//! - [`nvrtc`]: NVIDIA's compiler, loaded when the program runs.
//! - [`resources`]: registers, spills and instructions, read from what NVRTC returns.
//! - [`report`] and [`verdict`]: what is printed and written, and what counts as a failure.
//!
//! It proves that the sources are valid for an architecture and what they need there. It does not prove
//! results, limits of a launch or speed.

#![recursion_limit = "256"]

pub mod cases;
pub mod nvrtc;
pub mod properties;
pub mod report;
pub mod resources;
pub mod runtime;
pub mod verdict;
