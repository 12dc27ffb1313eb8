use burn::tensor::Scalar;
use burn::tensor::ops::{ActivationOps, FloatTensor};

use super::delegate::{cast, with_scalar};
use super::{Amp, AmpBackend, operands, scalar};
use crate::policy::Op;

impl<B: AmpBackend> ActivationOps<Self> for Amp<B> {
    cast! {
        fn relu[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn relu_backward[output, grad](
            output: FloatTensor<Self>,
            grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn gelu[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
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
        fn softmax[tensor](tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self>;
        fn log_softmax[tensor](tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self>;
        fn softmin[tensor](tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self>;
    }

    with_scalar! {
        fn leaky_relu(tensor, negative_slope);
        fn hard_sigmoid(tensor, alpha, beta);
    }
}
