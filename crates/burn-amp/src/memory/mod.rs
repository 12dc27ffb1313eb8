//! What training keeps in memory, measured.

#[cfg(any(feature = "cuda", feature = "vulkan"))]
mod device;
mod heap;
mod meter;

#[cfg(any(feature = "cuda", feature = "vulkan"))]
pub use device::DeviceMemory;
pub use heap::HeapMeter;
pub use meter::{
    MemoryMeter, MemorySource, PassMemory, StepMemory, gradient_bytes, parameter_bytes,
};
