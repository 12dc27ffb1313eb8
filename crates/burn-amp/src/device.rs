use burn::tensor::DType;
use burn::tensor::backend::DeviceOps;

/// A device that mixed precision can be configured for.
///
/// Implemented for the devices of Burn's CPU, CUDA and Vulkan backends; a backend of your own opts its
/// device in, usually by what its `Backend::supports_dtype` says.
pub trait AmpDevice: DeviceOps {
    /// Whether tensors of this type can be stored and computed with on the device.
    fn supports_dtype(&self, dtype: DType) -> bool;
}

/// Asks the backend that the device belongs to.
#[cfg(any(
    feature = "flex",
    feature = "ndarray",
    feature = "cuda",
    feature = "vulkan"
))]
macro_rules! device_of {
    ($device:ty, $backend:ty) => {
        impl AmpDevice for $device {
            fn supports_dtype(&self, dtype: DType) -> bool {
                <$backend as burn::tensor::backend::Backend>::supports_dtype(self, dtype)
            }
        }
    };
}

#[cfg(feature = "flex")]
device_of!(burn::backend::flex::FlexDevice, burn::backend::Flex);
#[cfg(feature = "ndarray")]
device_of!(
    burn::backend::ndarray::NdArrayDevice,
    burn::backend::NdArray
);
#[cfg(feature = "cuda")]
device_of!(burn::backend::cuda::CudaDevice, burn::backend::Cuda);
#[cfg(feature = "vulkan")]
device_of!(burn::backend::wgpu::WgpuDevice, burn::backend::Vulkan);
