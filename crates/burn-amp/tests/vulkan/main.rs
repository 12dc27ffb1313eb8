//! The GPU backends, on Vulkan, with and without Burn's fusion, against Flex.
//!
//! Mesa's lavapipe is enough: Debian's `mesa-vulkan-drivers`. Where there is no Vulkan device, the
//! tests say so and pass, unless `BURN_AMP_REQUIRE_VULKAN` is set.

#![recursion_limit = "256"]

mod device;
mod fusion;
mod gradients;
mod ops;
