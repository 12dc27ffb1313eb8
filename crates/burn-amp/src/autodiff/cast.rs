//! Casts as graph nodes: the gradient goes back in the type of the tensor that was cast.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::{BalancedCheckpointing, CheckpointStrategy};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, unary};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, TensorMetadata};

use super::AutodiffTensor;
use super::keep::{is_parameter, record, record_recomputable};
use crate::backend::AmpBackend;
use crate::policy::is_half;

/// The backward step of a cast, saturating or not; its state is the parent's type.
#[derive(Debug)]
struct Cast;

impl<B: AmpBackend> Backward<B, 1> for Cast {
    type State = FloatDType;

    fn backward(self, ops: Ops<FloatDType, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        unary::<B, _>(ops.parents, ops.node, grads, |grad| {
            B::amp_cast(grad, ops.state)
        });
    }
}

/// A cast whose result is kept, if an op needs it for backward and the strategy does not compute it again.
pub(super) fn cast<B: AmpBackend, C: CheckpointStrategy>(
    tensor: AutodiffTensor<B, C>,
    dtype: FloatDType,
) -> AutodiffTensor<B, C> {
    if is_smaller::<B, C>(&tensor) {
        return recomputable::<B, C, C>(tensor, dtype);
    }
    kept::<B, C>(tensor, dtype, B::amp_cast)
}

/// As [`cast`]; a finite value beyond the range becomes the largest finite one.
pub(super) fn saturating<B: AmpBackend, C: CheckpointStrategy>(
    tensor: AutodiffTensor<B, C>,
    dtype: FloatDType,
) -> AutodiffTensor<B, C> {
    kept::<B, C>(tensor, dtype, B::amp_cast_saturating)
}

/// A cast whose result is computed again when an op needs it for backward, if that keeps fewer bytes.
pub(super) fn of_operand<B: AmpBackend, C: CheckpointStrategy>(
    tensor: AutodiffTensor<B, C>,
    dtype: FloatDType,
) -> AutodiffTensor<B, C> {
    if is_smaller::<B, C>(&tensor) {
        // This strategy whatever the backend's own is: it makes the node one that is computed again.
        return recomputable::<B, C, BalancedCheckpointing>(tensor, dtype);
    }
    kept::<B, C>(tensor, dtype, B::amp_cast)
}

/// Whether keeping the tensor takes fewer bytes than keeping another type of it: a half tensor is the
/// smaller of the two, and a parameter is there anyway.
fn is_smaller<B: AmpBackend, C: CheckpointStrategy>(tensor: &AutodiffTensor<B, C>) -> bool {
    is_half(tensor.dtype()) || is_parameter::<B, C>(tensor)
}

fn kept<B: AmpBackend, C: CheckpointStrategy>(
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

fn recomputable<B: AmpBackend, C: CheckpointStrategy, Strategy: CheckpointStrategy>(
    tensor: AutodiffTensor<B, C>,
    dtype: FloatDType,
) -> AutodiffTensor<B, C> {
    let from = tensor.dtype();
    if from == DType::from(dtype) {
        return tensor;
    }
    let output = B::amp_cast(tensor.primitive.clone(), dtype);
    let again = move |[parent]: [FloatTensor<B>; 1]| B::amp_cast(parent, dtype);
    record_recomputable::<B, C, Strategy, _, 1>(Cast, [&tensor], output, again, |_| from.into())
}
