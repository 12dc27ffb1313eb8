//! Convolutions: the input is kept in the compute type, the weight as it is; the gradients of f32
//! weights and biases are computed in f32.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops};
use burn::tensor::ops::{ConvOptions, ConvTransposeOptions, FloatTensor};
use burn::tensor::{FloatDType, Shape, TensorMetadata};

use super::AutodiffTensor;
use super::keep::{Kept, Operand, record, with_optional};
use crate::backend::{AmpBackend, product_operand, to, widen, wider};

#[derive(Debug, Clone)]
struct State<B: AmpBackend, O> {
    /// Needed for the gradient of the weight only, and the weight for that of x.
    x: Option<Kept<B>>,
    weight: Option<Kept<B>>,
    shapes: [Shape; 2],
    dtypes: [FloatDType; 2],
    bias_dtype: Option<FloatDType>,
    compute: FloatDType,
    options: O,
}

/// Defines the node of a convolution: our op, and Burn's gradients of its input and its weight. These are
/// given both, of which they take the other one's values and this one's shape.
macro_rules! convolution {
    ($node:ident, $lowered:ident, $op:ident, $options:ty, |$x:ident, $weight:ident, $grad:ident, $opt:ident|
        $x_grad:expr, $weight_grad:expr) => {
        #[derive(Debug)]
        struct $node;

        impl<B: AmpBackend, const N: usize> Backward<B, N> for $node {
            type State = State<B, $options>;

            fn backward(
                self,
                ops: Ops<Self::State, N>,
                grads: &mut Gradients,
                checkpointer: &mut Checkpointer,
            ) {
                let state = ops.state;
                let grad = grads.consume::<B>(&ops.node);
                let [x_node, weight_node, bias_node] = with_optional(ops.parents);
                let x = state.x.map(|x| x.retrieve(checkpointer));
                let weight = state.weight.map(|weight| weight.retrieve(checkpointer));
                let [x_shape, weight_shape] = state.shapes;
                let [x_dtype, weight_dtype] = state.dtypes;

                if let (Some(node), Some(weight)) = (x_node, weight) {
                    let run = run_type::<B>(state.compute, x_dtype);
                    let [$weight, $grad] = [weight, grad.clone()]
                        .map(|operand| product_operand::<B>(operand, state.compute, run));
                    let $x = shape_only::<B>(x_shape, &$grad);
                    let $opt = state.options.clone();
                    let _ = &$x; // Transposed convolutions do not ask for it.
                    grads.register::<B>(node.id, to::<B>($x_grad, x_dtype));
                }
                if let (Some(node), Some(x)) = (weight_node, x) {
                    let run = run_type::<B>(state.compute, weight_dtype);
                    let [$x, $grad] = [x, grad.clone()]
                        .map(|operand| product_operand::<B>(operand, state.compute, run));
                    let $weight = shape_only::<B>(weight_shape, &$grad);
                    let $opt = state.options;
                    grads.register::<B>(node.id, to::<B>($weight_grad, weight_dtype));
                }
                if let (Some(node), Some(dtype)) = (bias_node, state.bias_dtype) {
                    let grad = sum_of_channels::<B>(widen::<B>(grad));
                    grads.register::<B>(node.id, to::<B>(grad, dtype));
                }
            }
        }

        pub(super) fn $op<B: AmpBackend, C: CheckpointStrategy>(
            x: AutodiffTensor<B, C>,
            weight: AutodiffTensor<B, C>,
            bias: Option<AutodiffTensor<B, C>>,
            options: $options,
            compute: FloatDType,
        ) -> AutodiffTensor<B, C> {
            fn record_convolution<B: AmpBackend, C: CheckpointStrategy, const N: usize>(
                operands: [&AutodiffTensor<B, C>; N],
                options: $options,
                compute: FloatDType,
            ) -> AutodiffTensor<B, C> {
                let [x, weight] = [operands[0], operands[1]];
                let bias = operands.get(2);
                let input = Operand::lowered(x, compute, weight.is_tracked());
                let output = B::$lowered(
                    input.value(),
                    weight.primitive.clone(),
                    bias.map(|bias| bias.primitive.clone()),
                    options.clone(),
                    compute,
                );
                record::<B, C, $node, N>($node, operands, output, |prep, _| State {
                    x: weight.is_tracked().then(|| input.keep(prep)),
                    weight: x.is_tracked().then(|| Operand::as_it_is(weight).keep(prep)),
                    shapes: [x.shape(), weight.shape()],
                    dtypes: [x.dtype().into(), weight.dtype().into()],
                    bias_dtype: bias.map(|bias| bias.dtype().into()),
                    compute,
                    options,
                })
            }

            match bias {
                Some(bias) => record_convolution::<B, C, 3>([&x, &weight, &bias], options, compute),
                None => record_convolution::<B, C, 2>([&x, &weight], options, compute),
            }
        }
    };
}

convolution!(
    Conv1d,
    amp_conv1d,
    conv1d,
    ConvOptions<1>,
    |x, weight, grad, options| B::conv1d_x_backward(x, weight, grad, options),
    conv1d_weight_backward::<B>(x, weight, grad, options)
);
convolution!(
    Conv2d,
    amp_conv2d,
    conv2d,
    ConvOptions<2>,
    |x, weight, grad, options| B::conv2d_x_backward(x, weight, grad, options),
    B::conv2d_weight_backward(x, weight, grad, options)
);
convolution!(
    Conv3d,
    amp_conv3d,
    conv3d,
    ConvOptions<3>,
    |x, weight, grad, options| B::conv3d_x_backward(x, weight, grad, options),
    B::conv3d_weight_backward(x, weight, grad, options)
);
convolution!(
    ConvTranspose1d,
    amp_conv_transpose1d,
    conv_transpose1d,
    ConvTransposeOptions<1>,
    |x, weight, grad, options| B::conv_transpose1d_x_backward(weight, grad, options),
    B::conv_transpose1d_weight_backward(x, weight, grad, options)
);
convolution!(
    ConvTranspose2d,
    amp_conv_transpose2d,
    conv_transpose2d,
    ConvTransposeOptions<2>,
    |x, weight, grad, options| B::conv_transpose2d_x_backward(weight, grad, options),
    B::conv_transpose2d_weight_backward(x, weight, grad, options)
);
convolution!(
    ConvTranspose3d,
    amp_conv_transpose3d,
    conv_transpose3d,
    ConvTransposeOptions<3>,
    |x, weight, grad, options| B::conv_transpose3d_x_backward(weight, grad, options),
    B::conv_transpose3d_weight_backward(x, weight, grad, options)
);

/// The type that a gradient is computed in: no narrower than its own.
fn run_type<B: AmpBackend>(compute: FloatDType, gradient: FloatDType) -> FloatDType {
    wider(B::amp_product_type(compute).into(), gradient.into()).into()
}

/// A tensor for its shape's sake, of one value.
fn shape_only<B: AmpBackend>(shape: Shape, like: &FloatTensor<B>) -> FloatTensor<B> {
    let one = Shape::from(vec![1; shape.num_dims()]);
    let zero = B::float_zeros(one, &B::float_device(like), like.dtype().into());
    B::float_expand(zero, shape)
}

/// Burn 0.21 gives wrong values for groups with a stride that leaves values over (its grouped gradient
/// does not cut them off in one dimension, as it does in two).
fn conv1d_weight_backward<B: AmpBackend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    grad: FloatTensor<B>,
    options: ConvOptions<1>,
) -> FloatTensor<B> {
    if options.groups == 1 {
        return B::conv1d_weight_backward(x, weight, grad, options);
    }
    let shape = weight.shape();
    let [x, weight, grad] = [x, weight, grad].map(|tensor| {
        let [batch, channels, length] = tensor.shape().dims();
        B::float_reshape(tensor, Shape::new([batch, channels, 1, length]))
    });
    let options = ConvOptions::new(
        [1, options.stride[0]],
        [0, options.padding[0]],
        [1, options.dilation[0]],
        options.groups,
    );
    let grad = B::conv2d_weight_backward(x, weight, grad, options);
    B::float_reshape(grad, shape)
}

/// The sum over all dimensions but the second, as a vector.
fn sum_of_channels<B: AmpBackend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let channels = tensor.shape()[1];
    let rest = tensor.shape().num_elements() / channels.max(1);
    let rows = B::float_reshape(
        B::float_swap_dims(tensor, 0, 1),
        Shape::new([channels, rest]),
    );
    B::float_reshape(B::float_sum_dim(rows, 1), Shape::new([channels]))
}
