//! The module ops that are not convolutions.

use burn::tensor::ops::{AttentionModuleOptions, InterpolateMode, InterpolateOptions};

use super::*;

fn bilinear() -> InterpolateOptions {
    InterpolateOptions::new(InterpolateMode::Bilinear)
}

fn rows<B: Backend>() -> IntTensor<B> {
    indices::<B, 2>(&[0, 3, 3, 1], [2, 2])
}

/// Targets and lengths of two sequences.
fn sequences<B: Backend>() -> [IntTensor<B>; 3] {
    [
        indices::<B, 2>(&[1, 2, 2, 1], [2, 2]),
        indices::<B, 1>(&[5, 5], [2]),
        indices::<B, 1>(&[2, 2], [2]),
    ]
}

cases! {
    float {
        embedding(table: normal([4, 3])) => B::embedding(table, rows::<B>());
        embedding_backward(table: normal([4, 3]), grad: normal([2, 2, 3])) => {
            B::embedding_backward(table, grad, rows::<B>())
        };
        linear(x: normal([2, 3, 4]), weight: normal([4, 5]), bias: normal([5])) => {
            B::linear(x, weight, Some(bias))
        };
        linear_x_backward(weight: normal([4, 5]), grad: normal([2, 3, 5])) => {
            B::linear_x_backward(weight, grad)
        };
        linear_weight_backward(x: normal([2, 3, 4]), grad: normal([2, 3, 5])) => {
            B::linear_weight_backward(x, grad)
        };
        linear_bias_backward(grad: normal([2, 3, 5])) => B::linear_bias_backward(grad);

        avg_pool1d(x: normal([1, 2, 6])) => B::avg_pool1d(x, 2, 2, 0, true, false);
        avg_pool1d_backward(x: normal([1, 2, 6]), grad: normal([1, 2, 3])) => {
            B::avg_pool1d_backward(x, grad, 2, 2, 0, true, false)
        };
        avg_pool2d(x: normal([1, 2, 4, 4])) => {
            B::avg_pool2d(x, [2, 2], [2, 2], [0, 0], true, false)
        };
        avg_pool2d_backward(x: normal([1, 2, 4, 4]), grad: normal([1, 2, 2, 2])) => {
            B::avg_pool2d_backward(x, grad, [2, 2], [2, 2], [0, 0], true, false)
        };
        adaptive_avg_pool1d(x: normal([1, 2, 6])) => B::adaptive_avg_pool1d(x, 3);
        adaptive_avg_pool1d_backward(x: normal([1, 2, 6]), grad: normal([1, 2, 3])) => {
            B::adaptive_avg_pool1d_backward(x, grad)
        };
        adaptive_avg_pool2d(x: normal([1, 2, 4, 4])) => B::adaptive_avg_pool2d(x, [2, 2]);
        adaptive_avg_pool2d_backward(x: normal([1, 2, 4, 4]), grad: normal([1, 2, 2, 2])) => {
            B::adaptive_avg_pool2d_backward(x, grad)
        };
        max_pool1d(x: normal([1, 2, 6])) => B::max_pool1d(x, 2, 2, 0, 1, false);
        max_pool1d_with_indices_backward(x: normal([1, 2, 6]), grad: normal([1, 2, 3])) => {
            let pooled = B::max_pool1d_with_indices(x.clone(), 2, 2, 0, 1, false);
            let indices = pooled.indices;
            B::max_pool1d_with_indices_backward(x, 2, 2, 0, 1, false, grad, indices).x_grad
        };
        max_pool2d(x: normal([1, 2, 4, 4])) => {
            B::max_pool2d(x, [2, 2], [2, 2], [0, 0], [1, 1], false)
        };
        max_pool2d_with_indices_backward(x: normal([1, 2, 4, 4]), grad: normal([1, 2, 2, 2])) => {
            let window = [2, 2];
            let pooled =
                B::max_pool2d_with_indices(x.clone(), window, window, [0, 0], [1, 1], false);
            B::max_pool2d_with_indices_backward(
                x, window, window, [0, 0], [1, 1], false, grad, pooled.indices,
            )
            .x_grad
        };
        interpolate(x: normal([1, 2, 3, 3])) => B::interpolate(x, [5, 5], bilinear());
        interpolate_backward(x: normal([1, 2, 3, 3]), grad: normal([1, 2, 5, 5])) => {
            B::interpolate_backward(x, grad, [5, 5], bilinear())
        };

        attention(
            query: normal([1, 2, 3, 4]), key: normal([1, 2, 3, 4]), value: normal([1, 2, 3, 4]),
            bias: normal([1, 2, 3, 3])
        ) => {
            let options = AttentionModuleOptions::default();
            B::attention(query, key, value, None, Some(bias), options)
        };
        layer_norm(x: normal([3, 4]), gamma: positive([4]), beta: normal([4])) => {
            B::layer_norm(x, gamma, Some(beta), 1e-5)
        };
        ctc_loss(x: log_probability([5, 2, 3])) => {
            let [targets, input_lengths, target_lengths] = sequences::<B>();
            B::ctc_loss(x, targets, input_lengths, target_lengths, 0)
        };
        irfft(re: normal([2, 5]), im: normal([2, 5])) => B::irfft(re, im, 1, None);
    }
    indexed {
        max_pool1d_with_indices(x: normal([1, 2, 6])) => {
            let pooled = B::max_pool1d_with_indices(x, 2, 2, 0, 1, false);
            (pooled.output, pooled.indices)
        };
        max_pool2d_with_indices(x: normal([1, 2, 4, 4])) => {
            let pooled = B::max_pool2d_with_indices(x, [2, 2], [2, 2], [0, 0], [1, 1], false);
            (pooled.output, pooled.indices)
        };
    }
    floats {
        rfft(x: normal([2, 8])) => {
            let (re, im) = B::rfft(x, 1, None);
            vec![re, im]
        };
    }
}
