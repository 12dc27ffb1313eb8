use std::marker::PhantomData;

use burn::tensor::backend::Backend;
use burn_cubecl::CubeRuntime;
use burn_cubecl::cubecl::MemoryUsage;
use burn_cubecl::cubecl::client::ComputeClient;

use super::MemorySource;

/// The memory of a CubeCL device, as its allocator reports it. `R` is the runtime of backend `B`, as
/// `CudaRuntime` is that of `Cuda`.
///
/// CubeCL does not record a peak; what is reported as such is what its pools hold, an upper bound that
/// shrinks on a clean-up only.
pub struct DeviceMemory<B: Backend, R: CubeRuntime> {
    device: B::Device,
    client: ComputeClient<R>,
    backend: PhantomData<B>,
}

impl<B, R> DeviceMemory<B, R>
where
    B: Backend<Device = R::Device>,
    R: CubeRuntime,
{
    /// The memory of `device`.
    pub fn new(device: &B::Device) -> Self {
        Self {
            device: device.clone(),
            client: R::client(device),
            backend: PhantomData,
        }
    }
}

impl<B: Backend, R: CubeRuntime> DeviceMemory<B, R> {
    /// Waits for what was launched or is being fused, so that its buffers are counted.
    fn wait(&self) {
        if let Err(error) = B::sync(&self.device) {
            panic!(
                "{:?} failed before its memory could be read: {error:?}",
                self.device
            );
        }
    }

    fn usage(&self) -> MemoryUsage {
        self.wait();
        match self.client.memory_usage() {
            Ok(usage) => usage,
            Err(error) => panic!("{:?} does not report its memory: {error:?}", self.device),
        }
    }
}

impl<B: Backend, R: CubeRuntime> MemorySource for DeviceMemory<B, R> {
    fn in_use(&self) -> u64 {
        self.usage().bytes_in_use
    }

    fn peak(&self) -> u64 {
        self.usage().bytes_reserved
    }

    fn reset_peak(&self) {
        self.wait();
        self.client.memory_cleanup();
        self.wait();
    }
}

impl<B: Backend, R: CubeRuntime> std::fmt::Debug for DeviceMemory<B, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}
