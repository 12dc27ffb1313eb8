//! The device, and tensors to and from it.

use anyhow::{Context, Result, anyhow};
use burn_amp_kernels::{DeviceTensor, FloatType, supports};
use burn_cubecl::CubeBackend;
use cubecl::ir::StorageType;
use cubecl::prelude::{Runtime as _, *};
use cubecl::server::Handle;

use crate::reference::{from_bytes, to_bytes};

#[cfg(feature = "cuda")]
mod chosen {
    /// Burn's runtime for the device.
    pub type Runtime = cubecl::cuda::CudaRuntime;
    /// The device.
    pub type Device = cubecl::cuda::CudaDevice;
    /// The backend with fusion.
    pub type Backend = burn::backend::Cuda;
    /// The API, for messages.
    pub const API: &str = "CUDA";
}

#[cfg(not(feature = "cuda"))]
mod chosen {
    /// Burn's runtime for the device.
    pub type Runtime = cubecl::wgpu::WgpuRuntime;
    /// The device.
    pub type Device = cubecl::wgpu::WgpuDevice;
    /// The backend with fusion.
    pub type Backend = burn::backend::Vulkan;
    /// The API, for messages.
    pub const API: &str = "Vulkan";
}

pub use chosen::{API, Backend, Device, Runtime};

/// The backend without fusion.
pub type Unfused = CubeBackend<Runtime, f32, i32, u8>;

/// What kernels are launched on.
pub type Client = ComputeClient<Runtime>;

/// A device that has answered.
#[derive(Clone)]
pub struct Gpu {
    /// The device.
    pub device: Device,
    /// Its client.
    pub client: Client,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu")
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

impl Gpu {
    /// The first device of the API.
    ///
    /// # Errors
    ///
    /// When there is none, or a driver or compiler is missing.
    pub fn open() -> Result<Self> {
        let device = Device::default();
        let client =
            std::panic::catch_unwind(|| Runtime::client(&Device::default())).map_err(|_| {
                anyhow!("there is no {API} device; the message above says what is missing")
            })?;
        let gpu = Self { device, client };
        gpu.sync().context("the device does not answer")?;
        Ok(gpu)
    }

    /// Waits for everything that was launched.
    ///
    /// # Errors
    ///
    /// When something that was launched failed.
    pub fn sync(&self) -> Result<()> {
        cubecl::future::block_on(self.client.sync()).map_err(|error| anyhow!("{error:?}"))
    }

    /// The half types that the device has.
    pub fn halves(&self) -> Vec<FloatType> {
        let mut halves = vec![FloatType::BF16, FloatType::F16];
        halves.retain(|dtype| supports(&self.client, *dtype));
        halves
    }

    /// Copies values to the device.
    pub fn upload(&self, values: &[f32], shape: &[usize], dtype: FloatType) -> DeviceTensor {
        let mut bytes = to_bytes(values, dtype);
        // A buffer cannot be empty, nor end amid a word.
        bytes.resize(bytes.len().max(4).next_multiple_of(4), 0);
        let handle = self.client.create_from_slice(&bytes);
        DeviceTensor::contiguous(handle, shape.to_vec(), dtype)
    }

    /// One value on the device.
    pub fn scalar(&self, value: f32) -> Handle {
        self.client.create_from_slice(&value.to_le_bytes())
    }

    /// A tensor of values that are made on the device, so that large ones take no time.
    pub fn filled(&self, shape: &[usize], dtype: FloatType) -> DeviceTensor {
        let tensor = DeviceTensor::empty(&self.client, shape.to_vec(), dtype);
        let len = tensor.len();
        fill::launch::<Runtime>(
            &self.client,
            CubeCount::Static(1024, 1, 1),
            CubeDim::new_1d(256),
            // SAFETY: the buffer has `len` values.
            #[allow(unsafe_code)]
            unsafe {
                ArrayArg::from_raw_parts(tensor.handle.clone(), len)
            },
            dtype.into(),
        );
        tensor
    }

    /// Reads values back.
    ///
    /// # Errors
    ///
    /// When something that was launched failed.
    pub fn download(&self, tensor: &DeviceTensor) -> Result<Vec<f32>> {
        anyhow::ensure!(tensor.is_contiguous(), "only contiguous tensors are read");
        if tensor.is_empty() {
            return Ok(Vec::new());
        }
        // What failed before is told here, and over with.
        self.sync()?;
        let bytes = self
            .client
            .read_one(tensor.handle.clone())
            .map_err(|error| anyhow!("{error:?}"))?;
        let len = tensor.len() * tensor.dtype.size();
        anyhow::ensure!(bytes.len() >= len, "read {} bytes of {len}", bytes.len());
        Ok(from_bytes(&bytes[..len], tensor.dtype))
    }
}

/// Values between -1 and 1 that follow no short pattern.
#[cube(launch)]
fn fill<T: Float>(output: &mut Array<T>, #[define(T)] _dtype: StorageType) {
    let stride = CUBE_COUNT * CUBE_DIM as usize;
    let mut index = ABSOLUTE_POS;
    while index < output.len() {
        let mixed = (index as u32 * 2654435761u32) >> 8u32;
        output[index] = T::cast_from(f32::cast_from(mixed) / 8388608.0f32 - 1.0f32);
        index += stride;
    }
}
