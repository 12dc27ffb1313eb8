//! What a graph node keeps of its operands: the tensor as it is, or a copy in 16 bits that is shared
//! by every node that needs it.

use std::any::Any;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::{Arc, Weak};

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::retro_forward::RetroForward;
use burn::backend::autodiff::checkpoint::state::BackwardStates;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::ops::{Backward, OpsKind, OpsPrep, Tracked};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{DType, FloatDType, TensorMetadata};

use super::AutodiffTensor;
use crate::backend::{AmpBackend, to};

/// How many tensors a thread remembers: those that were asked for last, as by the query, key and value
/// layers of one norm's result.
const REMEMBERED: usize = 16;

thread_local! {
    static COPIES: RefCell<VecDeque<LoweredCopy>> = const { RefCell::new(VecDeque::new()) };
    static EXACT: RefCell<VecDeque<(NodeId, FloatDType)>> = const { RefCell::new(VecDeque::new()) };
}

/// A lowered copy of a node's tensor, while a graph holds it. Node ids are never used again, and a
/// node's tensor never changes.
struct LoweredCopy {
    node: NodeId,
    dtype: FloatDType,
    copy: Weak<dyn Any + Send + Sync>,
}

/// What a node keeps of one operand.
#[derive(Debug)]
pub(super) enum Kept<B: AmpBackend> {
    /// The operand as it is, or what it can be computed from again.
    Operand(NodeId),
    /// A copy in another type.
    Copy(Arc<FloatTensor<B>>),
}

impl<B: AmpBackend> Clone for Kept<B> {
    fn clone(&self) -> Self {
        match self {
            Kept::Operand(node) => Kept::Operand(*node),
            Kept::Copy(copy) => Kept::Copy(copy.clone()),
        }
    }
}

impl<B: AmpBackend> Kept<B> {
    pub(super) fn retrieve(self, checkpointer: &mut Checkpointer) -> FloatTensor<B> {
        match self {
            Kept::Operand(node) => checkpointer.retrieve_node_output(node),
            Kept::Copy(copy) => Arc::unwrap_or_clone(copy),
        }
    }
}

/// A node that gets its backward step.
pub(super) type Prep<Op, B, S, C, const N: usize> = OpsPrep<Op, B, S, C, N, Tracked>;

/// Records an op: `state` says what is kept, if a gradient is needed at all.
pub(super) fn record<B, C, Op, const N: usize>(
    op: Op,
    parents: [&AutodiffTensor<B, C>; N],
    output: FloatTensor<B>,
    state: impl FnOnce(&mut Prep<Op, B, Op::State, C, N>, &FloatTensor<B>) -> Op::State,
) -> AutodiffTensor<B, C>
where
    B: AmpBackend,
    C: CheckpointStrategy,
    Op: Backward<B, N>,
{
    match op
        .prepare::<C>(parents.map(|parent| parent.node.clone()))
        .compute_bound()
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let state = state(&mut prep, &output);
            prep.finish(state, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

/// As [`record`], for an op whose result `Strategy` may compute `again` from its operands.
pub(super) fn record_recomputable<B, C, Strategy, Op, const N: usize>(
    op: Op,
    parents: [&AutodiffTensor<B, C>; N],
    output: FloatTensor<B>,
    again: impl Fn([FloatTensor<B>; N]) -> FloatTensor<B> + Send + 'static,
    state: impl FnOnce(&mut Prep<Op, B, Op::State, Strategy, N>) -> Op::State,
) -> AutodiffTensor<B, C>
where
    B: AmpBackend,
    C: CheckpointStrategy,
    Strategy: CheckpointStrategy,
    Op: Backward<B, N>,
{
    let retro = Retro {
        operands: parents.map(|parent| parent.node.id),
        again,
        backend: PhantomData::<B>,
    };
    match op
        .prepare::<Strategy>(parents.map(|parent| parent.node.clone()))
        .memory_bound()
        .retro_forward(retro)
        .parents(parents)
        .stateful()
    {
        OpsKind::Tracked(mut prep) => {
            let state = state(&mut prep);
            prep.finish(state, output)
        }
        OpsKind::UnTracked(prep) => prep.finish(output),
    }
}

/// Computes a result again from what the operands were.
struct Retro<B, F, const N: usize> {
    operands: [NodeId; N],
    again: F,
    backend: PhantomData<B>,
}

impl<B, F, const N: usize> RetroForward for Retro<B, F, N>
where
    B: AmpBackend,
    F: Fn([FloatTensor<B>; N]) -> FloatTensor<B> + Send + 'static,
{
    fn forward(&self, states: &mut BackwardStates, out: NodeId) {
        let operands = self.operands.map(|operand| states.get_state(&operand));
        states.save(out, (self.again)(operands));
    }
}

impl<B, F, const N: usize> std::fmt::Debug for Retro<B, F, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Retro")
            .field("operands", &self.operands)
            .finish_non_exhaustive()
    }
}

/// The nodes of an op's operands, also of those that it may have and has not.
pub(super) fn with_optional<T, const N: usize, const M: usize>(
    parents: [Option<T>; N],
) -> [Option<T>; M] {
    let mut parents = parents.into_iter();
    std::array::from_fn(|_| parents.next().flatten())
}

/// Keeps an operand in its own type; in a half type if that is known to hold its values.
pub(super) fn keep<B, C, Op, S, const N: usize>(
    prep: &mut Prep<Op, B, S, C, N>,
    tensor: &AutodiffTensor<B, C>,
) -> Kept<B>
where
    B: AmpBackend,
    C: CheckpointStrategy,
    Op: Backward<B, N, State = S>,
    S: Clone + Send + std::fmt::Debug + 'static,
{
    if let Some(half) = exact_type::<B, C>(tensor) {
        return Kept::Copy(lowered::<B, C>(tensor, half));
    }
    Kept::Operand(prep.checkpoint(tensor))
}

/// An operand of an op that computes in a lower type, or one that is kept as it is.
pub(super) struct Operand<'a, B: AmpBackend, C: CheckpointStrategy> {
    tensor: &'a AutodiffTensor<B, C>,
    copy: Option<Arc<FloatTensor<B>>>,
}

impl<'a, B: AmpBackend, C: CheckpointStrategy> Operand<'a, B, C> {
    /// An activation is lowered once, for the op and for backward, if that needs it. A parameter is kept
    /// as it is: the module holds it anyway.
    pub(super) fn lowered(
        tensor: &'a AutodiffTensor<B, C>,
        compute: FloatDType,
        is_needed: bool,
    ) -> Self {
        let is_lowered =
            is_needed && tensor.dtype() != DType::from(compute) && !is_parameter::<B, C>(tensor);
        Self {
            tensor,
            copy: is_lowered.then(|| lowered::<B, C>(tensor, compute)),
        }
    }

    pub(super) fn as_it_is(tensor: &'a AutodiffTensor<B, C>) -> Self {
        Self { tensor, copy: None }
    }

    pub(super) fn value(&self) -> FloatTensor<B> {
        match &self.copy {
            Some(copy) => FloatTensor::<B>::clone(copy),
            None => self.tensor.primitive.clone(),
        }
    }

    pub(super) fn keep<Op, S, const N: usize>(self, prep: &mut Prep<Op, B, S, C, N>) -> Kept<B>
    where
        Op: Backward<B, N, State = S>,
        S: Clone + Send + std::fmt::Debug + 'static,
    {
        match self.copy {
            Some(copy) => Kept::Copy(copy),
            None => Kept::Operand(prep.checkpoint(self.tensor)),
        }
    }
}

/// A leaf that gets a gradient.
pub(super) fn is_parameter<B: AmpBackend, C: CheckpointStrategy>(
    tensor: &AutodiffTensor<B, C>,
) -> bool {
    tensor.is_tracked() && tensor.node.order == 0
}

/// The tensor in another type; the copy that an earlier op made, if a graph still holds it.
pub(super) fn lowered<B: AmpBackend, C: CheckpointStrategy>(
    tensor: &AutodiffTensor<B, C>,
    dtype: FloatDType,
) -> Arc<FloatTensor<B>> {
    let known = COPIES.with_borrow(|copies| {
        copies
            .iter()
            .find(|copy| copy.node == tensor.node.id && copy.dtype == dtype)
            .and_then(|copy| copy.copy.upgrade())
    });
    let copy = known
        .and_then(|copy| copy.downcast().ok())
        .unwrap_or_else(|| Arc::new(to::<B>(tensor.primitive.clone(), dtype)));
    remember::<B, C>(tensor, dtype, &copy);
    copy
}

/// Lets later ops find a lowered copy of the tensor.
pub(super) fn remember<B: AmpBackend, C: CheckpointStrategy>(
    tensor: &AutodiffTensor<B, C>,
    dtype: FloatDType,
    copy: &Arc<FloatTensor<B>>,
) {
    let node = tensor.node.id;
    let copy: Arc<dyn Any + Send + Sync> = copy.clone();
    COPIES.with_borrow_mut(|copies| {
        copies.retain(|known| {
            known.copy.strong_count() > 0 && (known.node, known.dtype) != (node, dtype)
        });
        copies.truncate(REMEMBERED - 1);
        copies.push_front(LoweredCopy {
            node,
            dtype,
            copy: Arc::downgrade(&copy),
        });
    });
}

/// Takes note that a half type holds every value of the tensor.
pub(super) fn note_exact<B: AmpBackend, C: CheckpointStrategy>(
    tensor: &AutodiffTensor<B, C>,
    half: FloatDType,
) {
    EXACT.with_borrow_mut(|exact| {
        exact.truncate(REMEMBERED - 1);
        exact.push_front((tensor.node.id, half));
    });
}

/// The half type that is known to hold every value of a wider tensor.
pub(super) fn exact_type<B: AmpBackend, C: CheckpointStrategy>(
    tensor: &AutodiffTensor<B, C>,
) -> Option<FloatDType> {
    if tensor.dtype() != DType::F32 {
        return None;
    }
    EXACT.with_borrow(|exact| {
        let known = exact.iter().find(|(node, _)| *node == tensor.node.id);
        known.map(|(_, half)| *half)
    })
}
