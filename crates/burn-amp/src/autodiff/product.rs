//! Matrix products and linear layers: activations are kept in the compute type, weights as they are;
//! the gradient of an f32 operand leaves the product in f32.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{FloatDType, Shape, TensorMetadata};

use super::AutodiffTensor;
use super::keep::{Kept, Operand, record, with_optional};
use crate::backend::{AmpBackend, as_matrix, sum_of_rows, sum_to_shape, to, widen, wider};

#[derive(Debug)]
struct Linear;

#[derive(Debug, Clone)]
struct LinearState<B: AmpBackend> {
    x: Option<Kept<B>>,
    weight: Option<Kept<B>>,
    x_dtype: FloatDType,
    weight_dtype: FloatDType,
    bias_dtype: Option<FloatDType>,
    compute: FloatDType,
}

impl<B: AmpBackend, const N: usize> Backward<B, N> for Linear {
    type State = LinearState<B>;

    fn backward(
        self,
        ops: Ops<LinearState<B>, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let state = ops.state;
        let compute = state.compute;
        let grad = grads.consume::<B>(&ops.node);
        let [x_node, weight_node, bias_node] = with_optional(ops.parents);
        let x = state.x.map(|x| x.retrieve(checkpointer));
        let weight = state.weight.map(|weight| weight.retrieve(checkpointer));

        if let (Some(node), Some(weight)) = (x_node, weight) {
            let mut shape = grad.shape();
            let last = shape.num_dims() - 1;
            shape[last] = weight.shape()[0];
            let weight = B::float_transpose(weight);
            let grad = as_matrix::<B>(grad.clone());
            let grad = B::amp_matmul(grad, weight, compute, state.x_dtype);
            grads.register::<B>(node.id, B::float_reshape(grad, shape));
        }
        if let (Some(node), Some(x)) = (weight_node, x) {
            let x = B::float_transpose(as_matrix::<B>(x));
            let grad = as_matrix::<B>(grad.clone());
            let grad = B::amp_matmul(x, grad, compute, state.weight_dtype);
            grads.register::<B>(node.id, grad);
        }
        if let (Some(node), Some(dtype)) = (bias_node, state.bias_dtype) {
            let grad = sum_of_rows::<B>(widen::<B>(grad));
            grads.register::<B>(node.id, to::<B>(grad, dtype));
        }
    }
}

pub(super) fn linear<B: AmpBackend, C: CheckpointStrategy>(
    x: AutodiffTensor<B, C>,
    weight: AutodiffTensor<B, C>,
    bias: Option<AutodiffTensor<B, C>>,
    compute: FloatDType,
) -> AutodiffTensor<B, C> {
    match bias {
        Some(bias) => record_linear::<B, C, 3>([&x, &weight, &bias], compute),
        None => record_linear::<B, C, 2>([&x, &weight], compute),
    }
}

fn record_linear<B: AmpBackend, C: CheckpointStrategy, const N: usize>(
    operands: [&AutodiffTensor<B, C>; N],
    compute: FloatDType,
) -> AutodiffTensor<B, C> {
    let [x, weight] = [operands[0], operands[1]];
    let bias = operands.get(2);
    let input = Operand::lowered(x, compute, weight.is_tracked());
    let output = B::amp_linear(
        input.value(),
        weight.primitive.clone(),
        bias.map(|bias| bias.primitive.clone()),
        compute,
    );
    record::<B, C, Linear, N>(Linear, operands, output, |prep, _| LinearState {
        // The weight is needed for the gradient of x only, and x for that of the weight.
        x: weight.is_tracked().then(|| input.keep(prep)),
        weight: x.is_tracked().then(|| Operand::as_it_is(weight).keep(prep)),
        x_dtype: x.dtype().into(),
        weight_dtype: weight.dtype().into(),
        bias_dtype: bias.map(|bias| bias.dtype().into()),
        compute,
    })
}

#[derive(Debug)]
struct MatMul;

#[derive(Debug, Clone)]
struct MatMulState<B: AmpBackend> {
    lhs: Option<Kept<B>>,
    rhs: Option<Kept<B>>,
    shapes: [Shape; 2],
    dtypes: [FloatDType; 2],
    compute: FloatDType,
}

impl<B: AmpBackend> Backward<B, 2> for MatMul {
    type State = MatMulState<B>;

    fn backward(
        self,
        ops: Ops<MatMulState<B>, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let state = ops.state;
        let grad = grads.consume::<B>(&ops.node);
        let [lhs_node, rhs_node] = ops.parents;
        let [lhs_shape, rhs_shape] = state.shapes;
        let lhs = state.lhs.map(|lhs| lhs.retrieve(checkpointer));
        let rhs = state.rhs.map(|rhs| rhs.retrieve(checkpointer));

        if let (Some(node), Some(rhs)) = (lhs_node, rhs) {
            let rhs = B::float_transpose(rhs);
            let gradient = Gradient {
                shape: lhs_shape,
                dtype: state.dtypes[0],
                compute: state.compute,
            };
            grads.register::<B>(node.id, gradient.of::<B>(grad.clone(), rhs));
        }
        if let (Some(node), Some(lhs)) = (rhs_node, lhs) {
            let gradient = Gradient {
                shape: rhs_shape,
                dtype: state.dtypes[1],
                compute: state.compute,
            };
            // One product over all rows, where the right operand is the same for the whole batch.
            let leading = gradient.shape.num_dims() - 2;
            let is_shared = gradient.shape.iter().take(leading).all(|dim| *dim == 1);
            let grad = if is_shared {
                let lhs = B::float_transpose(as_matrix::<B>(lhs));
                let product =
                    B::amp_matmul(lhs, as_matrix::<B>(grad), gradient.compute, gradient.dtype);
                B::float_reshape(product, gradient.shape)
            } else {
                gradient.of::<B>(B::float_transpose(lhs), grad)
            };
            grads.register::<B>(node.id, grad);
        }
    }
}

/// The gradient of an operand that may have been broadcast.
struct Gradient {
    shape: Shape,
    dtype: FloatDType,
    compute: FloatDType,
}

impl Gradient {
    fn of<B: AmpBackend>(self, lhs: FloatTensor<B>, rhs: FloatTensor<B>) -> FloatTensor<B> {
        let [left, right] = [lhs.shape(), rhs.shape()];
        let is_broadcast =
            (0..self.shape.num_dims() - 2).any(|dim| self.shape[dim] != left[dim].max(right[dim]));
        if !is_broadcast {
            return B::amp_matmul(lhs, rhs, self.compute, self.dtype);
        }
        let wide = wider(self.dtype.into(), FloatDType::F32.into()).into();
        let product = B::amp_matmul(lhs, rhs, self.compute, wide);
        to::<B>(sum_to_shape::<B>(product, &self.shape), self.dtype)
    }
}

pub(super) fn matmul<B: AmpBackend, C: CheckpointStrategy>(
    lhs: AutodiffTensor<B, C>,
    rhs: AutodiffTensor<B, C>,
    compute: FloatDType,
    out: FloatDType,
) -> AutodiffTensor<B, C> {
    let shapes = [lhs.shape(), rhs.shape()];
    let is_broadcast = |this: &Shape, other: &Shape| {
        let leading = this.num_dims().saturating_sub(2);
        (0..leading).any(|dim| this[dim] == 1 && other[dim] > 1)
    };
    // A weight stands on the right, as it is or transposed, or is the same for the whole batch.
    let left = if is_broadcast(&shapes[0], &shapes[1]) {
        Operand::as_it_is(&lhs)
    } else {
        Operand::lowered(&lhs, compute, rhs.is_tracked())
    };
    let right = if rhs.node.order <= 1 || is_broadcast(&shapes[1], &shapes[0]) {
        Operand::as_it_is(&rhs)
    } else {
        Operand::lowered(&rhs, compute, lhs.is_tracked())
    };
    let output = B::amp_matmul(left.value(), right.value(), compute, out);
    record::<B, C, MatMul, 2>(MatMul, [&lhs, &rhs], output, |prep, _| MatMulState {
        lhs: rhs.is_tracked().then(|| left.keep(prep)),
        rhs: lhs.is_tracked().then(|| right.keep(prep)),
        dtypes: [lhs.dtype().into(), rhs.dtype().into()],
        shapes: shapes.clone(),
        compute,
    })
}
