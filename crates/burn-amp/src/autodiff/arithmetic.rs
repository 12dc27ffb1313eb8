//! Products and quotients of operands of two types: each is kept in its own, and differentiated in the
//! wider.

use std::marker::PhantomData;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, broadcast_shape};
use burn::tensor::ops::{FloatTensor, FloatTensorOps};
use burn::tensor::{FloatDType, Shape, TensorMetadata};

use super::keep::{Kept, is_exact, keep};
use super::{AutodiffTensor, Autodiffed};
use crate::backend::{AmpBackend, to, wider};

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scaling {
    Mul,
    Div,
}

impl Scaling {
    fn run<B: AmpBackend>(
        self,
        lhs: FloatTensor<B>,
        rhs: FloatTensor<B>,
        out: FloatDType,
    ) -> FloatTensor<B> {
        match self {
            Scaling::Mul => B::amp_mul(lhs, rhs, out),
            Scaling::Div => B::amp_div(lhs, rhs, out),
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct State<B: AmpBackend> {
    op: Scaling,
    lhs: Option<Kept<B>>,
    rhs: Option<Kept<B>>,
    shapes: [Shape; 2],
    dtypes: [FloatDType; 2],
}

impl<B: AmpBackend> Backward<B, 2> for Scaling {
    type State = State<B>;

    /// d(l r) = r dl + l dr, and d(l / r) = dl / r - l dr / r².
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

        if let (Some(node), Some(rhs)) = (lhs_node, &rhs) {
            let grad = match op {
                Scaling::Mul => B::float_mul(grad.clone(), rhs.clone()),
                Scaling::Div => B::float_div(grad.clone(), rhs.clone()),
            };
            let grad = broadcast_shape::<B>(grad, &lhs_shape);
            grads.register::<B>(node.id, to::<B>(grad, lhs_dtype));
        }
        if let (Some(node), Some(lhs)) = (rhs_node, lhs) {
            let grad = B::float_mul(grad, lhs);
            let grad = match (op, rhs) {
                (Scaling::Div, Some(rhs)) => {
                    // Divided twice: r² may be out of range where r is not.
                    let grad = B::float_div(B::float_div(grad, rhs.clone()), rhs);
                    B::float_neg(grad)
                }
                _ => grad,
            };
            let grad = broadcast_shape::<B>(grad, &rhs_shape);
            grads.register::<B>(node.id, to::<B>(grad, rhs_dtype));
        }
    }
}

#[derive(Debug)]
struct Retro<B> {
    op: Scaling,
    operands: [NodeId; 2],
    out: FloatDType,
    backend: PhantomData<B>,
}

impl<B: AmpBackend> RetroForward for Retro<B> {
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        let [lhs, rhs] = self
            .operands
            .map(|operand| states.get_state::<FloatTensor<B>>(&operand));
        states.save(out, self.op.run::<B>(lhs, rhs, self.out));
    }
}

pub(super) fn scaling<B: AmpBackend, C: CheckpointStrategy>(
    op: Scaling,
    lhs: AutodiffTensor<B, C>,
    rhs: AutodiffTensor<B, C>,
    out: FloatDType,
) -> AutodiffTensor<B, C> {
    let is_one_type = lhs.dtype() == rhs.dtype();
    if is_one_type && !is_exact::<B, C>(&lhs) && !is_exact::<B, C>(&rhs) {
        return match op {
            Scaling::Mul => Autodiffed::<B, C>::float_mul(lhs, rhs),
            Scaling::Div => Autodiffed::<B, C>::float_div(lhs, rhs),
        };
    }

    let retro = Retro::<B> {
        op,
        operands: [lhs.node.id, rhs.node.id],
        out,
        backend: PhantomData,
    };
    let output = op.run::<B>(lhs.primitive.clone(), rhs.primitive.clone(), out);
    match op
        .prepare::<C>([lhs.node.clone(), rhs.node.clone()])
        .memory_bound()
        .retro_forward(retro)
        .parents([&lhs, &rhs])
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let needs_rhs = lhs.is_tracked() || op == Scaling::Div;
            let state = State {
                op,
                lhs: rhs
                    .is_tracked()
                    .then(|| keep::<B, C, _, _, 2>(&mut prep, &lhs)),
                rhs: needs_rhs.then(|| keep::<B, C, _, _, 2>(&mut prep, &rhs)),
                shapes: [lhs.shape(), rhs.shape()],
                dtypes: [lhs.dtype().into(), rhs.dtype().into()],
            };
            prep.finish(state, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}
