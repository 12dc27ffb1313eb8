//! Layer norm, softmax and log-softmax, and their gradients.

use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, Shape, TensorMetadata};

use crate::backend::AmpBackend;
use crate::backend::amp_backend::{LayerNorm, LayerNormGrads, Moments};
use crate::backend::operands::{to, widen};

pub(in crate::backend) fn layer_norm<B: AmpBackend>(
    tensor: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: Option<FloatTensor<B>>,
    epsilon: f64,
) -> LayerNorm<B> {
    let x = widen::<B>(tensor);
    let dtype: FloatDType = x.dtype().into();
    let last = x.rank() - 1;
    let [gamma, beta] =
        [Some(gamma), beta].map(|row| row.map(|row| as_row::<B>(to::<B>(row, dtype), last + 1)));

    let mean = B::float_mean_dim(x.clone(), last);
    let centered = B::float_sub(x, mean.clone());
    let variance = B::float_mean_dim(B::float_mul(centered.clone(), centered.clone()), last);
    let deviation = B::float_sqrt(B::float_add_scalar(variance, epsilon.into()));
    let inv_deviation = B::float_recip(deviation);

    let mut output = B::float_mul(centered, inv_deviation.clone());
    if let Some(gamma) = gamma {
        output = B::float_mul(output, gamma);
    }
    if let Some(beta) = beta {
        output = B::float_add(output, beta);
    }
    LayerNorm {
        output,
        moments: Moments {
            mean,
            inv_deviation,
        },
    }
}

/// With x̂ = (x - mean) / deviation and h = g γ, both over a row of d values:
/// dx = (h - Σ h / d - x̂ Σ h x̂ / d) / deviation, dγ = Σ g x̂ and dβ = Σ g over the rows.
pub(in crate::backend) fn layer_norm_backward<B: AmpBackend>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    moments: Moments<B>,
    grad: FloatTensor<B>,
) -> LayerNormGrads<B> {
    let stored = x.dtype().into();
    let [x, grad] = [x, grad].map(widen::<B>);
    let last = x.rank() - 1;
    let gamma = as_row::<B>(to::<B>(gamma, x.dtype().into()), last + 1);
    let inv_deviation = moments.inv_deviation;

    let normalized = B::float_mul(B::float_sub(x, moments.mean), inv_deviation.clone());
    let beta_grad = sum_of_rows::<B>(grad.clone());
    let gamma_grad = sum_of_rows::<B>(B::float_mul(grad.clone(), normalized.clone()));

    let grad = B::float_mul(grad, gamma);
    let mean = B::float_mean_dim(grad.clone(), last);
    let slope = B::float_mean_dim(B::float_mul(grad.clone(), normalized.clone()), last);
    let grad = B::float_sub(B::float_sub(grad, mean), B::float_mul(normalized, slope));
    LayerNormGrads {
        x: to::<B>(B::float_mul(grad, inv_deviation), stored),
        gamma: gamma_grad,
        beta: beta_grad,
    }
}

pub(in crate::backend) fn softmax<B: AmpBackend>(
    tensor: FloatTensor<B>,
    dim: usize,
) -> FloatTensor<B> {
    B::softmax(widen::<B>(tensor), dim)
}

pub(in crate::backend) fn softmax_backward<B: AmpBackend>(
    output: FloatTensor<B>,
    grad: FloatTensor<B>,
    dim: usize,
    out: FloatDType,
) -> FloatTensor<B> {
    let [output, grad] = [output, grad].map(widen::<B>);
    let weighted = B::float_mul(output.clone(), grad);
    let total = B::float_sum_dim(output.clone(), dim);
    let total = B::float_clamp_min(total, f32::MIN_POSITIVE.into());
    let mean = B::float_div(B::float_sum_dim(weighted.clone(), dim), total);
    to::<B>(B::float_sub(weighted, B::float_mul(output, mean)), out)
}

pub(in crate::backend) fn log_softmax<B: AmpBackend>(
    tensor: FloatTensor<B>,
    dim: usize,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let shifted = below_max::<B>(widen::<B>(tensor), dim);
    let log_sum = B::float_log(B::float_sum_dim(B::float_exp(shifted.clone()), dim));
    (B::float_sub(shifted, log_sum.clone()), log_sum)
}

pub(in crate::backend) fn log_softmax_backward<B: AmpBackend>(
    x: FloatTensor<B>,
    log_sum: FloatTensor<B>,
    grad: FloatTensor<B>,
    dim: usize,
) -> FloatTensor<B> {
    let stored = x.dtype().into();
    let [x, grad] = [x, grad].map(widen::<B>);
    let probabilities = B::float_exp(B::float_sub(below_max::<B>(x, dim), log_sum));
    let total = B::float_sum_dim(grad.clone(), dim);
    to::<B>(
        B::float_sub(grad, B::float_mul(probabilities, total)),
        stored,
    )
}

fn below_max<B: AmpBackend>(x: FloatTensor<B>, dim: usize) -> FloatTensor<B> {
    let max = B::float_max_dim(x.clone(), dim);
    B::float_sub(x, max)
}

/// A vector as `[1, .., 1, d]`.
fn as_row<B: AmpBackend>(vector: FloatTensor<B>, rank: usize) -> FloatTensor<B> {
    let mut dims = vec![1; rank];
    dims[rank - 1] = vector.shape().num_elements();
    B::float_reshape(vector, Shape::from(dims))
}

/// The gradient of an operand that was broadcast: the sum over the dimensions in which it was.
pub(crate) fn sum_to_shape<B: AmpBackend>(
    mut tensor: FloatTensor<B>,
    shape: &Shape,
) -> FloatTensor<B> {
    for dim in 0..shape.num_dims() {
        if tensor.shape()[dim] != shape[dim] {
            tensor = B::float_sum_dim(tensor, dim);
        }
    }
    tensor
}

/// The sum over all dimensions but the last, as a vector.
pub(crate) fn sum_of_rows<B: AmpBackend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let width = tensor.shape()[tensor.rank() - 1];
    let sum = B::float_sum_dim(as_matrix::<B>(tensor), 0);
    B::float_reshape(sum, Shape::new([width]))
}

/// All dimensions but the last as one.
pub(crate) fn as_matrix<B: AmpBackend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let shape = tensor.shape();
    let width = shape[shape.num_dims() - 1];
    let rows = shape.iter().take(shape.num_dims() - 1).product();
    B::float_reshape(tensor, Shape::new([rows, width]))
}
