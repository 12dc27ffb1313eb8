//! Casts as graph nodes: the gradient goes back in the type of the tensor that was cast.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, TensorMetadata};

use crate::backend::AmpBackend;

impl<B: AmpBackend, C: CheckpointStrategy> AmpBackend for Autodiff<B, C> {
    fn amp_cast(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        record::<B, C>(tensor, dtype, B::amp_cast)
    }

    fn amp_cast_saturating(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        record::<B, C>(tensor, dtype, B::amp_cast_saturating)
    }
}

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

fn record<B: AmpBackend, C: CheckpointStrategy>(
    tensor: FloatTensor<Autodiff<B, C>>,
    dtype: FloatDType,
    cast: impl FnOnce(FloatTensor<B>, FloatDType) -> FloatTensor<B>,
) -> FloatTensor<Autodiff<B, C>> {
    let from = tensor.dtype();
    if from == DType::from(dtype) {
        return tensor;
    }
    match Cast
        .prepare::<C>([tensor.node.clone()])
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(prep) => prep.finish(from.into(), cast(tensor.primitive, dtype)),
        OpsKind::UnTracked(prep) => prep.finish(cast(tensor.primitive, dtype)),
    }
}
