//! Layer norm, softmax and log-softmax, each one node: what is kept is the operand or the result, and
//! a statistic or two of each row.

use std::sync::Arc;

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, unary};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, TensorMetadata};

use super::AutodiffTensor;
use super::keep::{Kept, Operand, record, remember, with_optional};
use crate::backend::{AmpBackend, Moments, to};
use crate::policy::is_half;

#[derive(Debug)]
struct LayerNorm;

#[derive(Debug, Clone)]
struct LayerNormState<B: AmpBackend> {
    x: Kept<B>,
    gamma: Kept<B>,
    moments: Moments<B>,
    gamma_dtype: FloatDType,
    beta_dtype: Option<FloatDType>,
}

impl<B: AmpBackend, const N: usize> Backward<B, N> for LayerNorm {
    type State = LayerNormState<B>;

    fn backward(
        self,
        ops: Ops<LayerNormState<B>, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let state = ops.state;
        let grad = grads.consume::<B>(&ops.node);
        let [x_node, gamma_node, beta_node] = with_optional(ops.parents);
        let x = state.x.retrieve(checkpointer);
        let gamma = state.gamma.retrieve(checkpointer);

        let gradients = B::amp_layer_norm_backward(x, gamma, state.moments, grad);
        if let Some(node) = x_node {
            grads.register::<B>(node.id, gradients.x);
        }
        if let Some(node) = gamma_node {
            grads.register::<B>(node.id, to::<B>(gradients.gamma, state.gamma_dtype));
        }
        if let (Some(node), Some(dtype)) = (beta_node, state.beta_dtype) {
            grads.register::<B>(node.id, to::<B>(gradients.beta, dtype));
        }
    }
}

pub(super) fn layer_norm<B: AmpBackend, C: CheckpointStrategy>(
    x: AutodiffTensor<B, C>,
    gamma: AutodiffTensor<B, C>,
    beta: Option<AutodiffTensor<B, C>>,
    epsilon: f64,
) -> AutodiffTensor<B, C> {
    match beta {
        Some(beta) => record_layer_norm::<B, C, 3>([&x, &gamma, &beta], epsilon),
        None => record_layer_norm::<B, C, 2>([&x, &gamma], epsilon),
    }
}

fn record_layer_norm<B: AmpBackend, C: CheckpointStrategy, const N: usize>(
    operands: [&AutodiffTensor<B, C>; N],
    epsilon: f64,
) -> AutodiffTensor<B, C> {
    let [x, gamma] = [operands[0], operands[1]];
    let beta = operands.get(2);
    let normalized = B::amp_layer_norm_forward(
        x.primitive.clone(),
        gamma.primitive.clone(),
        beta.map(|beta| beta.primitive.clone()),
        epsilon,
    );
    let (output, moments) = (normalized.output, normalized.moments);
    record::<B, C, LayerNorm, N>(LayerNorm, operands, output, |prep, _| LayerNormState {
        x: Operand::as_it_is(x).keep(prep),
        gamma: Operand::as_it_is(gamma).keep(prep),
        moments,
        gamma_dtype: gamma.dtype().into(),
        beta_dtype: beta.map(|beta| beta.dtype().into()),
    })
}

#[derive(Debug)]
struct Softmax;

#[derive(Debug, Clone)]
struct SoftmaxState<B: AmpBackend> {
    output: Kept<B>,
    dim: usize,
    dtype: FloatDType,
}

impl<B: AmpBackend> Backward<B, 1> for Softmax {
    type State = SoftmaxState<B>;

    fn backward(
        self,
        ops: Ops<SoftmaxState<B>, 1>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let state = ops.state;
        let output = state.output.retrieve(checkpointer);
        unary::<B, _>(ops.parents, ops.node, grads, |grad| {
            B::amp_softmax_backward(output, grad, state.dim, state.dtype)
        });
    }
}

/// The result of a softmax over half scores is kept in their type. A product with it, as in attention,
/// finds that copy and keeps no other.
pub(super) fn softmax<B: AmpBackend, C: CheckpointStrategy>(
    x: AutodiffTensor<B, C>,
    dim: usize,
) -> AutodiffTensor<B, C> {
    let dtype = FloatDType::from(x.dtype());
    let output = B::amp_softmax(x.primitive.clone(), dim);
    let mut kept = None;
    let result = record::<B, C, Softmax, 1>(Softmax, [&x], output, |_, output| {
        let copy = Arc::new(to::<B>(output.clone(), dtype));
        kept = Some(copy.clone());
        SoftmaxState {
            output: Kept::Copy(copy),
            dim,
            dtype,
        }
    });
    if let Some(copy) = kept.filter(|_| is_half(dtype.into())) {
        remember::<B, C>(&result, dtype, &copy);
    }
    result
}

#[derive(Debug)]
struct LogSoftmax;

#[derive(Debug, Clone)]
struct LogSoftmaxState<B: AmpBackend> {
    x: Kept<B>,
    log_sum: FloatTensor<B>,
    dim: usize,
}

impl<B: AmpBackend> Backward<B, 1> for LogSoftmax {
    type State = LogSoftmaxState<B>;

    fn backward(
        self,
        ops: Ops<LogSoftmaxState<B>, 1>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let state = ops.state;
        let x = state.x.retrieve(checkpointer);
        unary::<B, _>(ops.parents, ops.node, grads, |grad| {
            B::amp_log_softmax_backward(x, state.log_sum, grad, state.dim)
        });
    }
}

pub(super) fn log_softmax<B: AmpBackend, C: CheckpointStrategy>(
    x: AutodiffTensor<B, C>,
    dim: usize,
) -> AutodiffTensor<B, C> {
    let (output, log_sum) = B::amp_log_softmax_forward(x.primitive.clone(), dim);
    record::<B, C, LogSoftmax, 1>(LogSoftmax, [&x], output, |prep, _| LogSoftmaxState {
        x: Operand::as_it_is(&x).keep(prep),
        log_sum,
        dim,
    })
}
