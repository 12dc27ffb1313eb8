//! What mixed precision records in Burn's graph. A product, a norm, an activation is one node, with the
//! casts of its operands inside it.

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::tensor::FloatDType;
use burn::tensor::ops::{AttentionModuleOptions, ConvOptions, ConvTransposeOptions, FloatTensor};

use super::{
    AutodiffTensor, Autodiffed, activation, arithmetic, attention, cast, conv, keep, product, rows,
    unrounded,
};
use crate::backend::{AmpBackend, Arithmetic, Attention};

/// Delegates convolutions to their nodes.
macro_rules! convolutions {
    ($(fn $name:ident = $node:ident($options:ty);)*) => {$(
        fn $name(
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            bias: Option<FloatTensor<Self>>,
            options: $options,
            compute: FloatDType,
        ) -> FloatTensor<Self> {
            unrounded::forget();
            conv::$node::<B, C>(x, weight, bias, options, compute)
        }
    )*};
}

impl<B: AmpBackend, C: CheckpointStrategy> AmpBackend for Autodiffed<B, C> {
    fn amp_cast(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        forget_if_tracked::<B, C>(&tensor);
        cast::cast::<B, C>(tensor, dtype)
    }

    fn amp_cast_saturating(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        cast::saturating::<B, C>(tensor, dtype)
    }

    fn amp_cast_operand(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        forget_if_tracked::<B, C>(&tensor);
        cast::of_operand::<B, C>(tensor, dtype)
    }

    fn amp_note_exact(tensor: &FloatTensor<Self>, dtype: FloatDType) {
        keep::note_exact::<B, C>(tensor, dtype);
    }

    fn amp_matmul(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        compute: FloatDType,
        out: FloatDType,
    ) -> FloatTensor<Self> {
        unrounded::forget();
        product::matmul::<B, C>(lhs, rhs, compute, out)
    }

    fn amp_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        compute: FloatDType,
    ) -> FloatTensor<Self> {
        unrounded::forget();
        product::linear::<B, C>(x, weight, bias, compute)
    }

    convolutions! {
        fn amp_conv1d = conv1d(ConvOptions<1>);
        fn amp_conv2d = conv2d(ConvOptions<2>);
        fn amp_conv3d = conv3d(ConvOptions<3>);
        fn amp_conv_transpose1d = conv_transpose1d(ConvTransposeOptions<1>);
        fn amp_conv_transpose2d = conv_transpose2d(ConvTransposeOptions<2>);
        fn amp_conv_transpose3d = conv_transpose3d(ConvTransposeOptions<3>);
    }

    fn amp_attention(
        operands: Attention<Self>,
        options: AttentionModuleOptions,
        compute: FloatDType,
    ) -> FloatTensor<Self> {
        unrounded::forget();
        attention::attention::<B, C>(operands, options, compute)
    }

    fn amp_arithmetic(
        op: Arithmetic,
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        out: FloatDType,
    ) -> FloatTensor<Self> {
        arithmetic::arithmetic::<B, C>(op, lhs, rhs, out)
    }

    fn amp_gelu(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        unrounded::forget();
        activation::gelu::<B, C>(tensor)
    }

    fn amp_relu(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        unrounded::forget();
        activation::relu::<B, C>(tensor)
    }

    fn amp_layer_norm(
        tensor: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        unrounded::forget();
        rows::layer_norm::<B, C>(tensor, gamma, beta, epsilon)
    }

    fn amp_softmax(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        unrounded::forget();
        rows::softmax::<B, C>(tensor, dim)
    }

    fn amp_log_softmax(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        unrounded::forget();
        rows::log_softmax::<B, C>(tensor, dim)
    }
}

/// A cast in the graph ends a chain; that of a read, which is detached, does not.
fn forget_if_tracked<B: AmpBackend, C: CheckpointStrategy>(tensor: &AutodiffTensor<B, C>) {
    if tensor.is_tracked() {
        unrounded::forget();
    }
}
