use burn::tensor::Scalar;
use burn::tensor::ops::{ActivationOps, FloatTensor};

use super::delegate::{cast, with_scalar};
use super::{Amp, AmpBackend, operands, scalar};
use crate::policy::{Op, Rule};

impl<B: AmpBackend> ActivationOps<Self> for Amp<B> {
    fn relu(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        match operands::rule::<B>(Op::relu, &tensor) {
            Rule::Native => B::amp_relu(tensor),
            rule => by_rule::<B>(Op::relu, rule, tensor, B::relu),
        }
    }

    fn gelu(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        match operands::rule::<B>(Op::gelu, &tensor) {
            Rule::Widen => B::amp_gelu(tensor),
            rule => by_rule::<B>(Op::gelu, rule, tensor, B::gelu),
        }
    }

    fn softmax(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        match operands::rule::<B>(Op::softmax, &tensor) {
            Rule::Full => B::amp_softmax(tensor, dim),
            rule => by_rule::<B>(Op::softmax, rule, tensor, |tensor| B::softmax(tensor, dim)),
        }
    }

    fn log_softmax(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        match operands::rule::<B>(Op::log_softmax, &tensor) {
            Rule::Full => B::amp_log_softmax(tensor, dim),
            rule => by_rule::<B>(Op::log_softmax, rule, tensor, |tensor| {
                B::log_softmax(tensor, dim)
            }),
        }
    }

    fn softmin(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        match operands::rule::<B>(Op::softmin, &tensor) {
            Rule::Full => B::amp_softmax(B::float_neg(tensor), dim),
            rule => by_rule::<B>(Op::softmin, rule, tensor, |tensor| B::softmin(tensor, dim)),
        }
    }

    cast! {
        fn relu_backward[output, grad](
            output: FloatTensor<Self>,
            grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn gelu_backward[x, grad](
            x: FloatTensor<Self>,
            grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn prelu[tensor, alpha](
            tensor: FloatTensor<Self>,
            alpha: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn sigmoid[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn sigmoid_backward[output, grad](
            output: FloatTensor<Self>,
            grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn log_sigmoid[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn log_sigmoid_backward[x, grad](
            x: FloatTensor<Self>,
            grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
    }

    with_scalar! {
        fn leaky_relu(tensor, negative_slope);
        fn hard_sigmoid(tensor, alpha, beta);
    }
}

/// Runs an op on its one operand, cast as a known rule says.
fn by_rule<B: AmpBackend>(
    op: Op,
    rule: Rule,
    tensor: FloatTensor<B>,
    run: impl FnOnce(FloatTensor<B>) -> FloatTensor<B>,
) -> FloatTensor<B> {
    if matches!(rule, Rule::Off | Rule::Native) {
        return run(tensor);
    }
    let ([tensor], [], store) = operands::cast_by::<B, 1, 0>(op, rule, [tensor], []);
    store.finish::<B>(run(tensor))
}
