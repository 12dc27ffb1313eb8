//! Arithmetic on operands of two types: what is kept is kept in its own type, and differentiated in the
//! wider.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::tensor::ops::{FloatTensor, FloatTensorOps};
use burn::tensor::{FloatDType, Shape, TensorMetadata};

use super::keep::{Kept, exact_type, keep, record_recomputable};
use super::unrounded;
use super::{AutodiffTensor, Autodiffed};
use crate::backend::{AmpBackend, Arithmetic, saturated, sum_to_shape, to, wider};

#[derive(Debug)]
struct ArithmeticNode;

#[derive(Debug, Clone)]
struct State<B: AmpBackend> {
    op: Arithmetic,
    lhs: Option<Kept<B>>,
    rhs: Option<Kept<B>>,
    shapes: [Shape; 2],
    dtypes: [FloatDType; 2],
}

impl<B: AmpBackend> Backward<B, 2> for ArithmeticNode {
    type State = State<B>;

    /// d(l ± r) = dl ± dr, d(l r) = r dl + l dr, and d(l / r) = dl / r - l dr / r².
    fn backward(
        self,
        ops: Ops<State<B>, 2>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let State {
            op,
            lhs,
            rhs,
            shapes,
            dtypes: [lhs_dtype, rhs_dtype],
        } = ops.state;
        let [lhs_shape, rhs_shape] = shapes;
        let wide: FloatDType = wider(lhs_dtype.into(), rhs_dtype.into()).into();
        let grad = to::<B>(grads.consume::<B>(&ops.node), wide);
        let [lhs_node, rhs_node] = ops.parents;
        let lhs = lhs.map(|lhs| to::<B>(lhs.retrieve(checkpointer), wide));
        let rhs = rhs.map(|rhs| to::<B>(rhs.retrieve(checkpointer), wide));

        if let Some(node) = lhs_node {
            let grad = match (op, &rhs) {
                (Arithmetic::Mul, Some(rhs)) => B::float_mul(grad.clone(), rhs.clone()),
                (Arithmetic::Div, Some(rhs)) => B::float_div(grad.clone(), rhs.clone()),
                _ => grad.clone(),
            };
            let grad = sum_to_shape::<B>(grad, &lhs_shape);
            grads.register::<B>(node.id, to::<B>(grad, lhs_dtype));
        }
        if let Some(node) = rhs_node {
            let grad = match (op, lhs, rhs) {
                (Arithmetic::Sub, ..) => B::float_neg(grad),
                (Arithmetic::Mul, Some(lhs), _) => B::float_mul(grad, lhs),
                (Arithmetic::Div, Some(lhs), Some(rhs)) => {
                    // Divided twice: r² may be out of range where r is not.
                    let grad = B::float_div(B::float_mul(grad, lhs), rhs.clone());
                    B::float_neg(B::float_div(grad, rhs))
                }
                _ => grad,
            };
            let grad = sum_to_shape::<B>(grad, &rhs_shape);
            grads.register::<B>(node.id, to::<B>(grad, rhs_dtype));
        }
    }
}

pub(super) fn arithmetic<B: AmpBackend, C: CheckpointStrategy>(
    op: Arithmetic,
    lhs: AutodiffTensor<B, C>,
    rhs: AutodiffTensor<B, C>,
    out: FloatDType,
) -> AutodiffTensor<B, C> {
    let is_one_type = lhs.dtype() == rhs.dtype();
    let is_exact = |tensor| exact_type::<B, C>(tensor).is_some();
    if is_one_type && !is_exact(&lhs) && !is_exact(&rhs) {
        return match op {
            Arithmetic::Add => Autodiffed::<B, C>::float_add(lhs, rhs),
            Arithmetic::Sub => Autodiffed::<B, C>::float_sub(lhs, rhs),
            Arithmetic::Mul => Autodiffed::<B, C>::float_mul(lhs, rhs),
            Arithmetic::Div => Autodiffed::<B, C>::float_div(lhs, rhs),
        };
    }

    let wide = wider(lhs.dtype(), rhs.dtype()).into();
    let [left, right] = [&lhs, &rhs].map(unrounded::operand::<B, C>);
    let unrounded = B::amp_arithmetic(op, left, right, wide);
    let output = saturated::<B>(unrounded.clone(), out);
    let is_stored = output.dtype() != unrounded.dtype();
    let result = record::<B, C>(op, [&lhs, &rhs], output);
    if is_stored {
        unrounded::remember::<B, C>(&result, unrounded);
    } else {
        unrounded::forget();
    }
    result
}

fn record<B: AmpBackend, C: CheckpointStrategy>(
    op: Arithmetic,
    [lhs, rhs]: [&AutodiffTensor<B, C>; 2],
    output: FloatTensor<B>,
) -> AutodiffTensor<B, C> {
    let out = output.dtype().into();
    let again = move |[lhs, rhs]: [FloatTensor<B>; 2]| B::amp_arithmetic(op, lhs, rhs, out);
    record_recomputable::<B, C, C, _, 2>(ArithmeticNode, [lhs, rhs], output, again, |prep| {
        let is_scaling = matches!(op, Arithmetic::Mul | Arithmetic::Div);
        let needs_lhs = is_scaling && rhs.is_tracked();
        let needs_rhs = (is_scaling && lhs.is_tracked()) || (op == Arithmetic::Div && needs_lhs);
        State {
            op,
            lhs: needs_lhs.then(|| keep::<B, C, _, _, 2>(prep, lhs)),
            rhs: needs_rhs.then(|| keep::<B, C, _, _, 2>(prep, rhs)),
            shapes: [lhs.shape(), rhs.shape()],
            dtypes: [lhs.dtype().into(), rhs.dtype().into()],
        }
    })
}
