//! Gradients one at a time, on any backend of Burn.

use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{FloatDType, Shape, TensorMetadata, get_device_settings};

use crate::policy::is_half;

pub(in crate::backend) fn unscale_and_check<B: Backend>(
    grads: Vec<FloatTensor<B>>,
    inv_scale: f32,
) -> (Vec<FloatTensor<B>>, IntTensor<B>) {
    let unscale = |grad| unscale::<B>(grad, inv_scale, B::float_cast);
    let unscaled: Vec<_> = grads.into_iter().map(unscale).collect();
    let flags = check::<B>(unscaled.clone());
    (unscaled, flags)
}

/// A scale of one leaves the values alone, NaN payloads included.
pub(in crate::backend) fn unscale<B: Backend>(
    grad: FloatTensor<B>,
    inv_scale: f32,
    cast: fn(FloatTensor<B>, FloatDType) -> FloatTensor<B>,
) -> FloatTensor<B> {
    let grad = if is_half(grad.dtype()) {
        cast(grad, FloatDType::F32)
    } else {
        grad
    };
    if inv_scale == 1.0 {
        return grad;
    }
    B::float_mul_scalar(grad, inv_scale.into())
}

pub(in crate::backend) fn check<B: Backend>(grads: Vec<FloatTensor<B>>) -> IntTensor<B> {
    let flags: Vec<_> = grads.into_iter().flat_map(flags::<B>).collect();
    let count = flags.len() / 2;
    B::int_reshape(B::int_cat(flags, 0), Shape::new([count, 2]))
}

/// Whether there are infinities, and whether there are NaN: `[1]` each.
fn flags<B: Backend>(grad: FloatTensor<B>) -> [IntTensor<B>; 2] {
    let device = B::float_device(&grad);
    let settings = get_device_settings::<B>(&device);
    if grad.shape().num_elements() == 0 {
        let zero = || B::int_zeros(Shape::new([1]), &device, settings.int_dtype);
        return [zero(), zero()];
    }
    let infinite = B::float_is_inf(grad.clone(), settings.bool_dtype);
    let nan = B::float_is_nan(grad, settings.bool_dtype);
    [infinite, nan].map(|found| {
        let any = B::bool_any(found);
        B::bool_into_int(any, settings.int_dtype)
    })
}
