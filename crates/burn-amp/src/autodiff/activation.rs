//! GELU, which keeps its operand in the operand's type, and ReLU, which keeps its result.

use std::any::TypeId;
use std::marker::PhantomData;
use std::sync::Arc;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{CheckpointStrategy, NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::ops::{ActivationOps, FloatTensor};

use super::keep::{Kept, record};
use super::{AutodiffTensor, Autodiffed};
use crate::backend::AmpBackend;

#[derive(Debug)]
struct Gelu;

impl<B: AmpBackend> Backward<B, 1> for Gelu {
    type State = NodeId;

    fn backward(self, ops: Ops<NodeId, 1>, grads: &mut Gradients, checkpointer: &mut Checkpointer) {
        let x = checkpointer.retrieve_node_output::<FloatTensor<B>>(ops.state);
        let grad = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            grads.register::<B>(parent.id, B::amp_gelu_backward(x, grad));
        }
    }
}

#[derive(Debug)]
struct RetroGelu<B> {
    x: NodeId,
    backend: PhantomData<B>,
}

impl<B: AmpBackend> RetroForward for RetroGelu<B> {
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        let x = states.get_state::<FloatTensor<B>>(&self.x);
        states.save(out, B::amp_gelu(x));
    }
}

pub(super) fn gelu<B: AmpBackend, C: CheckpointStrategy>(
    x: AutodiffTensor<B, C>,
) -> AutodiffTensor<B, C> {
    let retro = RetroGelu::<B> {
        x: x.node.id,
        backend: PhantomData,
    };
    let output = B::amp_gelu(x.primitive.clone());
    match Gelu
        .prepare::<C>([x.node.clone()])
        .memory_bound()
        .retro_forward(retro)
        .parents([&x])
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let state = prep.checkpoint(&x);
            prep.finish(state, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
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
        let grad = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            grads.register::<B>(parent.id, B::relu_backward(output, grad));
        }
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
