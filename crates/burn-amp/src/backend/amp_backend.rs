use burn::tensor::backend::Backend;
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, TensorMetadata, get_device_settings};

use crate::policy::is_half;

/// A backend that [`Amp`](crate::Amp) can decorate, and the few operations that mixed precision
/// needs beyond Burn's own.
///
/// Every method has a default composed of plain backend ops, so a third party's backend opts in
/// with an empty `impl`. Backends override what they can do in one pass.
pub trait AmpBackend: Backend {
    /// Casts a float tensor, rounding to nearest even; a value beyond the range becomes infinite.
    ///
    /// # Shapes
    ///
    /// - tensor: any
    /// - returns: the same
    fn amp_cast(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        if tensor.dtype() == DType::from(dtype) {
            return tensor;
        }
        Self::float_cast(tensor, dtype)
    }

    /// Casts a float tensor like [`amp_cast`](AmpBackend::amp_cast), but a finite value beyond the
    /// range becomes the largest finite one. Infinities and NaN stay what they are.
    ///
    /// # Shapes
    ///
    /// - tensor: any
    /// - returns: the same
    fn amp_cast_saturating(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        let Some(max) = largest_finite(dtype) else {
            return Self::amp_cast(tensor, dtype);
        };
        let bools = get_device_settings::<Self>(&Self::float_device(&tensor)).bool_dtype;
        let above = Self::float_greater_elem(tensor.clone(), max.into(), bools);
        let below = Self::float_lower_elem(tensor.clone(), (-max).into(), bools);
        let infinite = Self::float_is_inf(tensor.clone(), bools);
        let finite = Self::bool_not(infinite);

        let tensor =
            Self::float_mask_fill(tensor, Self::bool_and(above, finite.clone()), max.into());
        let tensor = Self::float_mask_fill(tensor, Self::bool_and(below, finite), (-max).into());
        Self::amp_cast(tensor, dtype)
    }

    /// Divides a gradient by the loss scale: f32(gradient) × `inv_scale`, in f32 (f64 stays f64).
    ///
    /// The arithmetic is that of PyTorch's `_amp_foreach_non_finite_check_and_unscale_`; a scale of
    /// one leaves the values alone.
    ///
    /// # Shapes
    ///
    /// - grad: any
    /// - returns: the same
    fn amp_unscale(grad: FloatTensor<Self>, inv_scale: f32) -> FloatTensor<Self> {
        let grad = if is_half(grad.dtype()) {
            Self::amp_cast(grad, FloatDType::F32)
        } else {
            grad
        };
        if inv_scale == 1.0 {
            return grad;
        }
        Self::float_mul_scalar(grad, inv_scale.into())
    }

    /// Normalizes over the last dimension: `(x - mean) / sqrt(variance + epsilon) * gamma + beta`.
    ///
    /// All operands have one type. A backend overrides it if its own `layer_norm` loses the variance
    /// of rows whose mean is large beside it.
    ///
    /// # Shapes
    ///
    /// - tensor: `[.., d_model]`
    /// - gamma, beta: `[d_model]`
    /// - returns: `[.., d_model]`
    fn amp_layer_norm(
        tensor: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        Self::layer_norm(tensor, gamma, beta, epsilon)
    }
}

/// The largest finite value of a type that f32 values can exceed.
pub(crate) fn largest_finite(dtype: FloatDType) -> Option<f32> {
    match dtype {
        FloatDType::F16 => Some(f32::from(half::f16::MAX)),
        FloatDType::BF16 => Some(f32::from(half::bf16::MAX)),
        _ => None,
    }
}

/// NdArray's own bounds name a private type, so its element types are spelled out.
#[cfg(feature = "ndarray")]
macro_rules! ndarray {
    ($($float:ty: [$($int:ty),*]),*) => {$($(
        impl<Q: burn::backend::ndarray::QuantElement> AmpBackend
            for burn::backend::NdArray<$float, $int, Q>
        {
        }
    )*)*};
}

#[cfg(feature = "ndarray")]
ndarray!(f32: [i64, i32, i16, i8], f64: [i64, i32, i16, i8]);

#[cfg(any(feature = "cuda", feature = "vulkan"))]
impl<R, F, I, BT> AmpBackend for burn_cubecl::CubeBackend<R, F, I, BT>
where
    R: burn_cubecl::CubeRuntime,
    F: burn_cubecl::FloatElement,
    I: burn_cubecl::IntElement,
    BT: burn_cubecl::element::BoolElement,
    Self: Backend,
{
}

#[cfg(feature = "fusion")]
impl<B: burn_fusion::FusionBackend> AmpBackend for burn_fusion::Fusion<B> {}
