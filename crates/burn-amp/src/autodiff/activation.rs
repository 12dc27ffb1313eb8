//! GELU, which keeps its operand in the operand's type, and ReLU, which keeps its result.

use std::any::TypeId;
use std::sync::Arc;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::{CheckpointStrategy, NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, unary};
use burn::tensor::ops::{ActivationOps, FloatTensor};

use super::keep::{Kept, record, record_recomputable};
use super::{AutodiffTensor, Autodiffed};
use crate::backend::AmpBackend;

#[derive(Debug)]
struct Gelu;

impl<B: AmpBackend> Backward<B, 1> for Gelu {
    type State = NodeId;

    fn backward(self, ops: Ops<NodeId, 1>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(ops.state);
        unary::<B, _>(ops.parents, ops.node, grads, |grad| {
            B::amp_gelu_backward(x, grad)
        });
    }
}

pub(super) fn gelu<B: AmpBackend, C: CheckpointStrategy>(
    x: AutodiffTensor<B, C>,
) -> AutodiffTensor<B, C> {
    let output = B::amp_gelu(x.primitive.clone());
    let again = |[x]: [FloatTensor<B>; 1]| B::amp_gelu(x);
    record_recomputable::<B, C, C, _, 1>(Gelu, [&x], output, again, |prep| prep.checkpoint(&x))
}

#[derive(Debug)]
struct Relu;

impl<B: AmpBackend> Backward<B, 1> for Relu {
    type State = Kept<B>;

    fn backward(
        self,
        ops: Ops<Kept<B>, 1>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let output = ops.state.retrieve(checkpointer);
        unary::<B, _>(ops.parents, ops.node, grads, |grad| {
            B::relu_backward(output, grad)
        });
    }
}

pub(super) fn relu<B: AmpBackend, C: CheckpointStrategy>(
    x: AutodiffTensor<B, C>,
) -> AutodiffTensor<B, C> {
    // A strategy that computes results again would rather have the operand, which Burn's node keeps.
    if TypeId::of::<C>() != TypeId::of::<NoCheckpointing>() {
        return Autodiffed::<B, C>::relu(x);
    }
    let output = B::amp_relu(x.primitive.clone());
    record::<B, C, Relu, 1>(Relu, [&x], output, |_, output| {
        Kept::Copy(Arc::new(output.clone()))
    })
}
