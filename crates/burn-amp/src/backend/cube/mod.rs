//! CubeCL backends: CUDA, Vulkan and whatever else CubeCL runs on, by the kernels of
//! `burn-amp-kernels`. What a kernel does not take runs composed: f64, a dimension other than the
//! last, a type that the device lacks.

mod tensor;

use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, FloatTensorOps, IntTensor};
use burn::tensor::{DType, FloatDType, Shape, TensorMetadata};
use burn_amp_kernels::matmul::{Product, Strategy};
use burn_amp_kernels::{DeviceTensor, FloatType, KernelError, matmul, rows, unscale};
use burn_cubecl::element::BoolElement;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{CubeBackend, CubeRuntime, FloatElement, IntElement};

use super::amp_backend::{AmpBackend, LayerNorm, LayerNormGrads, Moments};
use super::composed;
use crate::policy::is_half;
use tensor::{Site, contiguous, float_type, in_f32, take, take_contiguous};

/// Whether a product is run by our kernel. With all operands and the result in the compute type, Burn's
/// own needs no cast, and Burn's fusion adds what follows to it.
pub(super) fn multiplies(dtypes: [DType; 2], compute: FloatDType, out: FloatDType) -> bool {
    let compute = DType::from(compute);
    is_half(compute)
        && dtypes.iter().all(|dtype| float_type(*dtype).is_some())
        && float_type(out.into()).is_some()
        && !(dtypes == [compute; 2] && compute == out.into())
}

impl<R, F, I, BT> AmpBackend for CubeBackend<R, F, I, BT>
where
    R: CubeRuntime,
    F: FloatElement,
    I: IntElement,
    BT: BoolElement,
    Self: Backend<FloatTensorPrimitive = CubeTensor<R>, IntTensorPrimitive = CubeTensor<R>>,
{
    fn amp_cast_saturating(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        let cast = |tensor: &CubeTensor<R>| {
            let (site, operand) = take_contiguous(tensor)?;
            let output =
                burn_amp_kernels::cast(&site.client, &operand, float_type(dtype.into())?, true);
            Some(site.give(launched(output)?))
        };
        cast(&tensor).unwrap_or_else(|| composed::cast_saturating::<Self>(tensor, dtype))
    }

    fn amp_matmul(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        compute: FloatDType,
        out: FloatDType,
    ) -> FloatTensor<Self> {
        multiply([&lhs, &rhs], None, compute, out)
            .unwrap_or_else(|| composed::matmul::<Self>(lhs, rhs, compute, out))
    }

    fn amp_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        compute: FloatDType,
    ) -> FloatTensor<Self> {
        // Burn's own does not broadcast a bias over no rows.
        if x.shape().num_elements() == 0 {
            let shape = linear_shape(&x.shape(), &weight.shape());
            return Self::float_zeros(shape, &Self::float_device(&x), compute);
        }
        multiply([&x, &weight], bias.as_ref(), compute, compute)
            .unwrap_or_else(|| composed::linear::<Self>(x, weight, bias, compute))
    }

    fn amp_layer_norm_forward(
        tensor: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> LayerNorm<Self> {
        let normalize = || {
            let (site, x) = take_contiguous(&tensor)?;
            let gamma = in_f32(&gamma)?;
            let beta = match &beta {
                Some(beta) => Some(in_f32(beta)?),
                None => None,
            };
            let (output, moments) = launched(rows::layer_norm_forward(
                &site.client,
                &x,
                &gamma,
                beta.as_ref(),
                epsilon as f32,
                FloatType::F32,
            ))?;
            Some(LayerNorm {
                output: site.give(output),
                moments: Moments {
                    mean: site.give(moments.mean),
                    inv_deviation: site.give(moments.inv_deviation),
                },
            })
        };
        normalize().unwrap_or_else(|| composed::layer_norm::<Self>(tensor, gamma, beta, epsilon))
    }

    fn amp_layer_norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        moments: Moments<Self>,
        grad: FloatTensor<Self>,
    ) -> LayerNormGrads<Self> {
        let differentiate = || {
            let (site, operand) = take_contiguous(&x)?;
            let moments = rows::Moments {
                mean: in_f32(&moments.mean)?,
                inv_deviation: in_f32(&moments.inv_deviation)?,
            };
            let gamma = in_f32(&gamma)?;
            let grad = take_contiguous(&grad)?.1;
            let grads = launched(rows::layer_norm_backward(
                &site.client,
                &operand,
                &gamma,
                &moments,
                &grad,
            ))?;
            Some(LayerNormGrads {
                x: site.give(grads.x),
                gamma: site.give(grads.gamma),
                beta: site.give(grads.beta),
            })
        };
        differentiate()
            .unwrap_or_else(|| composed::layer_norm_backward::<Self>(x, gamma, moments, grad))
    }

    fn amp_softmax(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        let of_rows = || {
            let (site, x) = take_rows(&tensor, dim)?;
            Some(site.give(launched(rows::softmax_forward(
                &site.client,
                &x,
                FloatType::F32,
            ))?))
        };
        of_rows().unwrap_or_else(|| composed::softmax::<Self>(tensor, dim))
    }

    fn amp_softmax_backward(
        output: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        dim: usize,
        out: FloatDType,
    ) -> FloatTensor<Self> {
        let of_rows = || {
            let (site, y) = take_rows(&output, dim)?;
            let grad = take_contiguous(&grad)?.1;
            let out = float_type(out.into())?;
            Some(site.give(launched(rows::softmax_backward(
                &site.client,
                &y,
                &grad,
                out,
            ))?))
        };
        of_rows().unwrap_or_else(|| composed::softmax_backward::<Self>(output, grad, dim, out))
    }

    fn amp_log_softmax_forward(
        tensor: FloatTensor<Self>,
        dim: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let of_rows = || {
            let (site, x) = take_rows(&tensor, dim)?;
            let (output, log_sum) =
                launched(rows::log_softmax_forward(&site.client, &x, FloatType::F32))?;
            Some((site.give(output), site.give(log_sum)))
        };
        of_rows().unwrap_or_else(|| composed::log_softmax::<Self>(tensor, dim))
    }

    fn amp_log_softmax_backward(
        x: FloatTensor<Self>,
        log_sum: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        dim: usize,
    ) -> FloatTensor<Self> {
        let of_rows = || {
            let (site, operand) = take_rows(&x, dim)?;
            let log_sum = in_f32(&log_sum)?;
            let grad = take_contiguous(&grad)?.1;
            let x_grad = rows::log_softmax_backward(&site.client, &operand, &log_sum, &grad);
            Some(site.give(launched(x_grad)?))
        };
        of_rows().unwrap_or_else(|| composed::log_softmax_backward::<Self>(x, log_sum, grad, dim))
    }

    fn amp_unscale_and_check(
        mut grads: Vec<FloatTensor<Self>>,
        inv_scale: f32,
    ) -> (Vec<FloatTensor<Self>>, IntTensor<Self>) {
        let Some((site, mut operands)) = take_all(&mut grads) else {
            return composed::unscale_and_check::<Self>(grads, inv_scale);
        };
        let scale = site.client.create_from_slice(&inv_scale.to_le_bytes());
        let flags = launched(unscale::unscale_and_check(
            &site.client,
            &mut operands,
            &scale,
        ));
        let grads = operands.into_iter().map(|grad| site.give(grad)).collect();
        match flags {
            Some(flags) => (grads, site.give_flags(flags)),
            None => composed::unscale_and_check::<Self>(grads, inv_scale),
        }
    }

    fn amp_check(grads: Vec<FloatTensor<Self>>) -> IntTensor<Self> {
        let mut operands = grads.clone();
        let mut check = || {
            let (site, operands) = take_all(&mut operands)?;
            let flags = launched(unscale::check(&site.client, &operands))?;
            Some(site.give_flags(flags))
        };
        check().unwrap_or_else(|| composed::check::<Self>(grads))
    }
}

/// What was launched; why not, if it was not, for those who look.
fn launched<T>(result: Result<T, KernelError>) -> Option<T> {
    result
        .inspect_err(|error| log::debug!("composed instead of a kernel: {error}"))
        .ok()
}

/// `[lhs · rhs + bias]` by our kernel, if it takes the product.
fn multiply<R: CubeRuntime>(
    operands: [&CubeTensor<R>; 2],
    bias: Option<&CubeTensor<R>>,
    compute: FloatDType,
    out: FloatDType,
) -> Option<CubeTensor<R>> {
    if !multiplies(operands.map(TensorMetadata::dtype), compute, out) {
        return None;
    }
    let (site, lhs) = take(operands[0])?;
    let (_, rhs) = take(operands[1])?;
    let bias = match bias {
        Some(bias) => Some(in_f32(bias)?),
        None => None,
    };
    // A weight is one matrix for all leading dimensions: one product of all rows is faster than many.
    let is_matrix = rhs.shape.len() == 2 && lhs.shape.len() > 2;
    let shape = is_matrix.then(|| linear_shape(&lhs.shape, &rhs.shape));
    let product = Product {
        lhs: if is_matrix {
            as_rows(contiguous(&site, lhs))
        } else {
            lhs
        },
        rhs,
        bias,
        compute: float_type(compute.into())?,
        out: float_type(out.into())?,
    };
    let mut output = launched(matmul::matmul(&site.client, &product, Strategy::Auto))?;
    if let Some(shape) = shape {
        output = DeviceTensor::contiguous(output.handle, shape, output.dtype);
    }
    Some(site.give(output))
}

/// All dimensions but the last as one.
fn as_rows(tensor: DeviceTensor) -> DeviceTensor {
    let width = tensor.shape[tensor.shape.len() - 1];
    let rows: usize = tensor.shape[..tensor.shape.len() - 1].iter().product();
    DeviceTensor::contiguous(tensor.handle, [rows, width], tensor.dtype)
}

/// `[.., d_input]` and `[d_input, d_output]` give `[.., d_output]`.
pub(super) fn linear_shape(x: &Shape, weight: &Shape) -> Shape {
    let mut shape = x.clone();
    let last = shape.num_dims() - 1;
    shape[last] = weight[1];
    shape
}

/// An operand of a kernel over rows, if its rows are the last dimension.
fn take_rows<R: CubeRuntime>(
    tensor: &CubeTensor<R>,
    dim: usize,
) -> Option<(Site<R>, DeviceTensor)> {
    if dim + 1 != tensor.rank() {
        return None;
    }
    take_contiguous(tensor)
}

/// All of a list, or none: the buffers' owners are given up, so that a kernel may write in place.
fn take_all<R: CubeRuntime>(
    tensors: &mut Vec<CubeTensor<R>>,
) -> Option<(Site<R>, Vec<DeviceTensor>)> {
    let site = take(tensors.first()?)?.0;
    if tensors
        .iter()
        .any(|tensor| float_type(tensor.dtype).is_none())
    {
        return None;
    }
    let operands = tensors
        .drain(..)
        .filter_map(|tensor| take_contiguous(&tensor))
        .map(|(_, operand)| operand);
    Some((site, operands.collect()))
}
