//! Burn's tensors as the kernels take them, and back.

use burn::tensor::{DType, Shape};
use burn_amp_kernels::unscale::Flags;
use burn_amp_kernels::{DeviceTensor, FloatType, cast};
use burn_cubecl::CubeRuntime;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use cubecl::client::ComputeClient;

/// Where tensors are.
pub(super) struct Site<R: CubeRuntime> {
    pub(super) client: ComputeClient<R>,
    device: R::Device,
}

impl<R: CubeRuntime> Site<R> {
    /// A kernel's result as Burn's tensor.
    pub(super) fn give(&self, tensor: DeviceTensor) -> CubeTensor<R> {
        CubeTensor::new(
            self.client.clone(),
            tensor.handle,
            cubecl::zspace::metadata::Metadata::new(tensor.shape, tensor.strides),
            self.device.clone(),
            dtype_of(tensor.dtype),
        )
    }

    /// Flags as a tensor `[gradients, 2]`.
    pub(super) fn give_flags(&self, flags: Flags) -> CubeTensor<R> {
        CubeTensor::new_contiguous(
            self.client.clone(),
            self.device.clone(),
            Shape::new([flags.len, 2]),
            flags.handle,
            DType::I32,
        )
    }
}

/// The type as the kernels name it, if they take it.
pub(super) fn float_type(dtype: DType) -> Option<FloatType> {
    match dtype {
        DType::F32 => Some(FloatType::F32),
        DType::F16 => Some(FloatType::F16),
        DType::BF16 => Some(FloatType::BF16),
        _ => None,
    }
}

fn dtype_of(dtype: FloatType) -> DType {
    match dtype {
        FloatType::F32 => DType::F32,
        FloatType::F16 => DType::F16,
        FloatType::BF16 => DType::BF16,
    }
}

/// A tensor as the kernels take it, with the strides that it has.
pub(super) fn take<R: CubeRuntime>(tensor: &CubeTensor<R>) -> Option<(Site<R>, DeviceTensor)> {
    let dtype = float_type(tensor.dtype)?;
    let site = Site {
        client: tensor.client.clone(),
        device: tensor.device.clone(),
    };
    let tensor = DeviceTensor {
        handle: tensor.handle.clone(),
        shape: tensor.meta.shape().clone(),
        strides: tensor.meta.strides().clone(),
        dtype,
    };
    Some((site, tensor))
}

/// The same values in a row; a copy only where they are not.
pub(super) fn contiguous<R: CubeRuntime>(site: &Site<R>, tensor: DeviceTensor) -> DeviceTensor {
    if tensor.is_contiguous() {
        return tensor;
    }
    let dtype = tensor.dtype;
    let copy = into_contiguous(site.give(tensor));
    DeviceTensor::contiguous(copy.handle.clone(), copy.meta.shape().clone(), dtype)
}

/// As [`take`], with the elements in a row.
pub(super) fn take_contiguous<R: CubeRuntime>(
    tensor: &CubeTensor<R>,
) -> Option<(Site<R>, DeviceTensor)> {
    let (site, tensor) = take(tensor)?;
    let tensor = contiguous(&site, tensor);
    Some((site, tensor))
}

/// A parameter or statistic in f32, in a row.
pub(super) fn in_f32<R: CubeRuntime>(tensor: &CubeTensor<R>) -> Option<DeviceTensor> {
    let (site, tensor) = take_contiguous(tensor)?;
    if tensor.dtype == FloatType::F32 {
        return Some(tensor);
    }
    cast(&site.client, &tensor, FloatType::F32, false).ok()
}
