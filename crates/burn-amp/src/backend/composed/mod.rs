//! What mixed precision needs, composed of Burn's ops: the reference that a backend's own kernels are
//! compared with, and what runs where it has none. Everything is computed in f32, or in f64 from f64.

mod attention;
mod gradients;
mod product;
mod rows;

use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, TensorMetadata, get_device_settings};

pub(super) use attention::{attention, attention_backward};
pub(super) use gradients::{check, unscale, unscale_and_check};
pub(super) use product::{layer_operands, linear, matmul};
pub(crate) use rows::{as_matrix, sum_of_rows, sum_to_shape};
pub(super) use rows::{
    layer_norm, layer_norm_backward, log_softmax, log_softmax_backward, softmax, softmax_backward,
};

use super::AmpBackend;
use super::amp_backend::largest_finite;
use super::operands::{to, widen};

pub(super) fn cast_saturating<B: AmpBackend>(
    tensor: FloatTensor<B>,
    dtype: FloatDType,
) -> FloatTensor<B> {
    let Some(max) = largest_finite(dtype) else {
        return B::amp_cast(tensor, dtype);
    };
    // The bound of one half type is no value of the other.
    let tensor = widen::<B>(tensor);
    let bools = get_device_settings::<B>(&B::float_device(&tensor)).bool_dtype;
    let above = B::float_greater_elem(tensor.clone(), max.into(), bools);
    let below = B::float_lower_elem(tensor.clone(), (-max).into(), bools);
    let finite = B::bool_not(B::float_is_inf(tensor.clone(), bools));

    let tensor = B::float_mask_fill(tensor, B::bool_and(above, finite.clone()), max.into());
    let tensor = B::float_mask_fill(tensor, B::bool_and(below, finite), (-max).into());
    B::amp_cast(tensor, dtype)
}

pub(super) fn gelu_backward<B: AmpBackend>(
    x: FloatTensor<B>,
    grad: FloatTensor<B>,
) -> FloatTensor<B> {
    const INV_SQRT_2PI: f64 =
        std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2 / 2.0;

    let dtype = x.dtype().into();
    let [x, grad] = [x, grad].map(widen::<B>);
    let erf = B::float_erf(B::float_mul_scalar(
        x.clone(),
        std::f64::consts::FRAC_1_SQRT_2.into(),
    ));
    let distribution = B::float_mul_scalar(B::float_add_scalar(erf, 1.0.into()), 0.5.into());
    let square = B::float_mul(x.clone(), x.clone());
    let density = B::float_mul_scalar(
        B::float_exp(B::float_mul_scalar(square, (-0.5).into())),
        INV_SQRT_2PI.into(),
    );
    let derivative = B::float_add(distribution, B::float_mul(x, density));
    to::<B>(B::float_mul(grad, derivative), dtype)
}
