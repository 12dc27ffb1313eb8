//! Attention as one node: queries, keys and values are kept, and never the probabilities, which backward
//! computes again, a slice of the queries at a time. A slice has whole rows, so no statistic of them has
//! to be kept either.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::tensor::ops::{AttentionModuleOptions, BoolTensor};
use burn::tensor::{FloatDType, TensorMetadata};

use super::keep::{Kept, Operand, record, with_optional};
use super::{AutodiffTensor, Autodiffed};
use crate::backend::{AmpBackend, Attention};

#[derive(Debug)]
struct AttentionNode;

#[derive(Debug, Clone)]
struct State<B: AmpBackend> {
    query: Kept<B>,
    key: Kept<B>,
    value: Kept<B>,
    bias: Option<Kept<B>>,
    mask: Option<BoolTensor<B>>,
    dtypes: [FloatDType; 3],
    options: AttentionModuleOptions,
    compute: FloatDType,
}

impl<B: AmpBackend, const N: usize> Backward<B, N> for AttentionNode {
    type State = State<B>;

    fn backward(
        self,
        ops: Ops<State<B>, N>,
        grads: &mut Gradients,
        checkpointer: &mut Checkpointer,
    ) {
        let state = ops.state;
        let grad = grads.consume::<B>(&ops.node);
        let [query_node, key_node, value_node, bias_node] = with_optional(ops.parents);
        let operands = Attention {
            query: state.query.retrieve(checkpointer),
            key: state.key.retrieve(checkpointer),
            value: state.value.retrieve(checkpointer),
            mask: state.mask,
            bias: state.bias.map(|bias| bias.retrieve(checkpointer)),
        };

        let gradients = B::amp_attention_backward(
            operands,
            state.options,
            state.compute,
            grad,
            state.dtypes,
            bias_node.is_some(),
        );
        let of_products = [gradients.query, gradients.key, gradients.value];
        let nodes = [query_node, key_node, value_node];
        for (node, grad) in nodes.into_iter().zip(of_products) {
            if let Some(node) = node {
                grads.register::<B>(node.id, grad);
            }
        }
        if let (Some(node), Some(grad)) = (bias_node, gradients.bias) {
            grads.register::<B>(node.id, grad);
        }
    }
}

pub(super) fn attention<B: AmpBackend, C: CheckpointStrategy>(
    operands: Attention<Autodiffed<B, C>>,
    options: AttentionModuleOptions,
    compute: FloatDType,
) -> AutodiffTensor<B, C> {
    let Attention {
        query,
        key,
        value,
        mask,
        bias,
    } = operands;
    match bias {
        Some(bias) => {
            record_attention::<B, C, 4>([&query, &key, &value, &bias], mask, options, compute)
        }
        None => record_attention::<B, C, 3>([&query, &key, &value], mask, options, compute),
    }
}

fn record_attention<B: AmpBackend, C: CheckpointStrategy, const N: usize>(
    tensors: [&AutodiffTensor<B, C>; N],
    mask: Option<BoolTensor<B>>,
    options: AttentionModuleOptions,
    compute: FloatDType,
) -> AutodiffTensor<B, C> {
    let is_tracked = tensors.iter().any(|tensor| tensor.is_tracked());
    let [query, key, value] =
        [0, 1, 2].map(|index| Operand::lowered(tensors[index], compute, is_tracked));
    let bias = tensors.get(3);
    let operands = Attention::<B> {
        query: query.value(),
        key: key.value(),
        value: value.value(),
        mask: mask.clone(),
        bias: bias.map(|bias| bias.primitive.clone()),
    };
    let output = B::amp_attention(operands, options, compute);
    record::<B, C, AttentionNode, N>(AttentionNode, tensors, output, |prep, _| State {
        query: query.keep(prep),
        key: key.keep(prep),
        value: value.keep(prep),
        bias: bias.map(|bias| Operand::as_it_is(bias).keep(prep)),
        mask,
        dtypes: [0, 1, 2].map(|index| tensors[index].dtype().into()),
        options,
        compute,
    })
}
