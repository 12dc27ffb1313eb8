//! Chains of arithmetic between a half tensor and broadcast f32 operands, as a composed norm is one, are
//! rounded once, at their end: each op starts from what the one before it had before it was stored.
//!
//! A batch norm is four such ops. Rounded after each of them, a small residual network's gradients in
//! bf16 are 20 % further off than those of a norm that rounds once (`tests/gradients`).

use std::any::Any;
use std::cell::RefCell;

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::ops::FloatTensor;

use super::AutodiffTensor;
use crate::backend::AmpBackend;

thread_local! {
    /// The last result and its value before it was stored: one, because a chain's next op comes next.
    static LAST: RefCell<Option<(NodeId, Box<dyn Any>)>> = const { RefCell::new(None) };
}

/// The value of an operand before it was stored, if it is the last result of such an op.
pub(super) fn operand<B: AmpBackend, C: CheckpointStrategy>(
    tensor: &AutodiffTensor<B, C>,
) -> FloatTensor<B> {
    LAST.with_borrow(|last| {
        last.as_ref()
            .filter(|(node, _)| *node == tensor.node.id)
            .and_then(|(_, value)| value.downcast_ref::<FloatTensor<B>>())
            .unwrap_or(&tensor.primitive)
            .clone()
    })
}

/// Remembers the value of a result before it was stored.
pub(super) fn remember<B: AmpBackend, C: CheckpointStrategy>(
    result: &AutodiffTensor<B, C>,
    value: FloatTensor<B>,
) {
    LAST.set(Some((result.node.id, Box::new(value))));
}

/// Ends the chain, and lets go of its value.
pub(super) fn forget() {
    LAST.set(None);
}
