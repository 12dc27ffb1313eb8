//! Casts as graph nodes: the gradient goes back in the type of the tensor that was cast.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, TensorMetadata};

use super::AutodiffTensor;
use super::keep::{is_weight, record};
use crate::backend::AmpBackend;
use crate::policy::is_half;

/// The backward step of a cast, saturating or not; its state is the parent's type.
#[derive(Debug)]
struct Cast;

impl<B: AmpBackend> Backward<B, 1> for Cast {
    type State = FloatDType;

    fn backward(self, ops: Ops<FloatDType, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = grads.consume::<B>(&ops.node);
        let [parent] = ops.parents;
        if let Some(parent) = parent {
            grads.register::<B>(parent.id, B::amp_cast(grad, ops.state));
        }
    }
}

/// A cast whose result is kept, if an op needs it for backward.
pub(super) fn cast<B: AmpBackend, C: CheckpointStrategy>(
    tensor: AutodiffTensor<B, C>,
    dtype: FloatDType,
    cast: impl FnOnce(FloatTensor<B>, FloatDType) -> FloatTensor<B>,
) -> AutodiffTensor<B, C> {
    let from = tensor.dtype();
    if from == DType::from(dtype) {
        return tensor;
    }
    let output = cast(tensor.primitive.clone(), dtype);
    record::<B, C, _, 1>(Cast, [&tensor], output, |_, _| from.into())
}

/// A cast whose result is computed again when an op needs it for backward: from a half tensor, which is
/// the smaller of the two, or from a weight, which the module holds anyway.
pub(super) fn recomputed<B: AmpBackend, C: CheckpointStrategy>(
    tensor: AutodiffTensor<B, C>,
    dtype: FloatDType,
) -> AutodiffTensor<B, C> {
    let from = tensor.dtype();
    if from == DType::from(dtype) || !(is_half(from) || is_weight::<B, C>(&tensor)) {
        return cast::<B, C>(tensor, dtype, B::amp_cast);
    }
    let output = B::amp_cast(tensor.primitive.clone(), dtype);
    let retro = RetroCast::<B> {
        parent: tensor.node.id,
        dtype,
        backend: std::marker::PhantomData,
    };
    // This strategy whatever the backend's own is: it makes the node one that is computed again.
    match Cast
        .prepare::<BalancedCheckpointing>([tensor.node.clone()])
        .memory_bound()
        .retro_forward(retro)
        .parents([&tensor])
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(from.into(), output),
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

#[derive(Debug)]
struct RetroCast<B> {
    parent: NodeId,
    dtype: FloatDType,
    backend: std::marker::PhantomData<B>,
}

impl<B: AmpBackend> RetroForward for RetroCast<B> {
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        let parent = states.get_state::<FloatTensor<B>>(&self.parent);
        states.save(out, B::amp_cast(parent, self.dtype));
    }
}
