//! The kernels on Vulkan against references in f64.
//!
//! Mesa's lavapipe is enough: Debian's `mesa-vulkan-drivers`. Where there is no Vulkan device, the
//! tests say so and pass, unless `BURN_AMP_REQUIRE_VULKAN` is set.

#![recursion_limit = "256"]

mod cast;
mod common;
mod layer_norm;
mod matmul;
mod softmax;
mod unscale;
