//! Activations and their derivatives.

use super::*;

cases! {
    float {
        relu(x: normal([3, 4])) => B::relu(x);
        relu_backward(x: normal([3, 4]), grad: normal([3, 4])) => B::relu_backward(x, grad);
        leaky_relu(x: normal([3, 4])) => B::leaky_relu(x, 0.01.into());
        prelu(x: normal([3, 4]), alpha: positive([1, 4])) => B::prelu(x, alpha);
        gelu(x: normal([3, 4])) => B::gelu(x);
        gelu_backward(x: normal([3, 4]), grad: normal([3, 4])) => B::gelu_backward(x, grad);
        sigmoid(x: normal([3, 4])) => B::sigmoid(x);
        sigmoid_backward(output: unit([3, 4]), grad: normal([3, 4])) => {
            B::sigmoid_backward(output, grad)
        };
        hard_sigmoid(x: normal([3, 4])) => B::hard_sigmoid(x, 0.2.into(), 0.4.into());
        log_sigmoid(x: normal([3, 4])) => B::log_sigmoid(x);
        log_sigmoid_backward(x: normal([3, 4]), grad: normal([3, 4])) => {
            B::log_sigmoid_backward(x, grad)
        };
        softmax(x: normal([3, 4])) => B::softmax(x, 1);
        log_softmax(x: normal([3, 4])) => B::log_softmax(x, 1);
        softmin(x: normal([3, 4])) => B::softmin(x, 1);
    }
}
