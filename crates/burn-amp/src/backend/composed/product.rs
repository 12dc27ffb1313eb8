//! Products of operands that were cast before.

use burn::tensor::FloatDType;
use burn::tensor::ops::FloatTensor;

use crate::backend::AmpBackend;
use crate::backend::operands::{product_operand, to, wider};

pub(in crate::backend) fn matmul<B: AmpBackend>(
    lhs: FloatTensor<B>,
    rhs: FloatTensor<B>,
    compute: FloatDType,
    out: FloatDType,
) -> FloatTensor<B> {
    let run = wider(B::amp_product_type(compute).into(), out.into()).into();
    let [lhs, rhs] = [lhs, rhs].map(|operand| product_operand::<B>(operand, compute, run));
    to::<B>(B::float_matmul(lhs, rhs), out)
}

pub(in crate::backend) fn linear<B: AmpBackend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    compute: FloatDType,
) -> FloatTensor<B> {
    let (x, weight, bias) = layer_operands::<B>(x, weight, bias, compute);
    to::<B>(B::linear(x, weight, bias), compute)
}

/// The operands of a layer in the compute type, in the type that its product is run in.
pub(in crate::backend) fn layer_operands<B: AmpBackend>(
    x: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    compute: FloatDType,
) -> (FloatTensor<B>, FloatTensor<B>, Option<FloatTensor<B>>) {
    let run = B::amp_product_type(compute);
    let operand = |operand| product_operand::<B>(operand, compute, run);
    (operand(x), operand(weight), bias.map(operand))
}
