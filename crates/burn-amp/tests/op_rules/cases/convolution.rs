//! Convolutions and their derivatives.

use burn::tensor::ops::{ConvOptions, ConvTransposeOptions, DeformConvOptions, UnfoldOptions};

use super::*;

fn conv<const N: usize>() -> ConvOptions<N> {
    ConvOptions::new([1; N], [1; N], [1; N], 1)
}

fn transposed<const N: usize>() -> ConvTransposeOptions<N> {
    ConvTransposeOptions::new([2; N], [1; N], [0; N], [1; N], 1)
}

fn deformed() -> DeformConvOptions<2> {
    DeformConvOptions::new([1, 1], [1, 1], [1, 1], 1, 1)
}

cases! {
    float {
        conv1d(x: normal([2, 3, 5]), weight: normal([4, 3, 3]), bias: normal([4])) => {
            B::conv1d(x, weight, Some(bias), conv())
        };
        conv1d_x_backward(
            x: normal([2, 3, 5]), weight: normal([4, 3, 3]), grad: normal([2, 4, 5])
        ) => B::conv1d_x_backward(x, weight, grad, conv());
        conv1d_weight_backward(
            x: normal([2, 3, 5]), weight: normal([4, 3, 3]), grad: normal([2, 4, 5])
        ) => B::conv1d_weight_backward(x, weight, grad, conv());
        conv1d_bias_backward(
            x: normal([2, 3, 5]), bias: normal([4]), grad: normal([2, 4, 5])
        ) => B::conv1d_bias_backward(x, bias, grad);

        conv2d(x: normal([2, 3, 4, 5]), weight: normal([4, 3, 3, 3]), bias: normal([4])) => {
            B::conv2d(x, weight, Some(bias), conv())
        };
        conv2d_x_backward(
            x: normal([2, 3, 4, 5]), weight: normal([4, 3, 3, 3]), grad: normal([2, 4, 4, 5])
        ) => B::conv2d_x_backward(x, weight, grad, conv());
        conv2d_weight_backward(
            x: normal([2, 3, 4, 5]), weight: normal([4, 3, 3, 3]), grad: normal([2, 4, 4, 5])
        ) => B::conv2d_weight_backward(x, weight, grad, conv());
        conv2d_bias_backward(
            x: normal([2, 3, 4, 5]), bias: normal([4]), grad: normal([2, 4, 4, 5])
        ) => B::conv2d_bias_backward(x, bias, grad);

        conv3d(x: normal([1, 2, 3, 4, 3]), weight: normal([2, 2, 3, 3, 3]), bias: normal([2])) => {
            B::conv3d(x, weight, Some(bias), conv())
        };
        conv3d_x_backward(
            x: normal([1, 2, 3, 4, 3]), weight: normal([2, 2, 3, 3, 3]),
            grad: normal([1, 2, 3, 4, 3])
        ) => B::conv3d_x_backward(x, weight, grad, conv());
        conv3d_weight_backward(
            x: normal([1, 2, 3, 4, 3]), weight: normal([2, 2, 3, 3, 3]),
            grad: normal([1, 2, 3, 4, 3])
        ) => B::conv3d_weight_backward(x, weight, grad, conv());
        conv3d_bias_backward(
            x: normal([1, 2, 3, 4, 3]), bias: normal([2]), grad: normal([1, 2, 3, 4, 3])
        ) => B::conv3d_bias_backward(x, bias, grad);

        conv_transpose1d(x: normal([2, 3, 3]), weight: normal([3, 4, 3]), bias: normal([4])) => {
            B::conv_transpose1d(x, weight, Some(bias), transposed())
        };
        conv_transpose1d_x_backward(weight: normal([3, 4, 3]), grad: normal([2, 4, 5])) => {
            B::conv_transpose1d_x_backward(weight, grad, transposed())
        };
        conv_transpose1d_weight_backward(
            x: normal([2, 3, 3]), weight: normal([3, 4, 3]), grad: normal([2, 4, 5])
        ) => B::conv_transpose1d_weight_backward(x, weight, grad, transposed());
        conv_transpose1d_bias_backward(
            x: normal([2, 3, 3]), bias: normal([4]), grad: normal([2, 4, 5])
        ) => B::conv_transpose1d_bias_backward(x, bias, grad);

        conv_transpose2d(
            x: normal([2, 3, 3, 2]), weight: normal([3, 4, 3, 3]), bias: normal([4])
        ) => B::conv_transpose2d(x, weight, Some(bias), transposed());
        conv_transpose2d_x_backward(
            weight: normal([3, 4, 3, 3]), grad: normal([2, 4, 5, 3])
        ) => B::conv_transpose2d_x_backward(weight, grad, transposed());
        conv_transpose2d_weight_backward(
            x: normal([2, 3, 3, 2]), weight: normal([3, 4, 3, 3]), grad: normal([2, 4, 5, 3])
        ) => B::conv_transpose2d_weight_backward(x, weight, grad, transposed());
        conv_transpose2d_bias_backward(
            x: normal([2, 3, 3, 2]), bias: normal([4]), grad: normal([2, 4, 5, 3])
        ) => B::conv_transpose2d_bias_backward(x, bias, grad);

        conv_transpose3d(
            x: normal([1, 2, 2, 2, 2]), weight: normal([2, 3, 3, 3, 3]), bias: normal([3])
        ) => B::conv_transpose3d(x, weight, Some(bias), transposed());
        conv_transpose3d_x_backward(
            weight: normal([2, 3, 3, 3, 3]), grad: normal([1, 3, 3, 3, 3])
        ) => B::conv_transpose3d_x_backward(weight, grad, transposed());
        conv_transpose3d_weight_backward(
            x: normal([1, 2, 2, 2, 2]), weight: normal([2, 3, 3, 3, 3]),
            grad: normal([1, 3, 3, 3, 3])
        ) => B::conv_transpose3d_weight_backward(x, weight, grad, transposed());
        conv_transpose3d_bias_backward(
            x: normal([1, 2, 2, 2, 2]), bias: normal([3]), grad: normal([1, 3, 3, 3, 3])
        ) => B::conv_transpose3d_bias_backward(x, bias, grad);

        deform_conv2d(
            x: normal([1, 2, 3, 3]), offset: unit([1, 18, 3, 3]), weight: normal([2, 2, 3, 3]),
            mask: positive([1, 9, 3, 3]), bias: normal([2])
        ) => B::deform_conv2d(x, offset, weight, Some(mask), Some(bias), deformed());
        unfold4d(x: normal([1, 2, 4, 4])) => {
            B::unfold4d(x, [2, 2], UnfoldOptions::new([1, 1], [0, 0], [1, 1]))
        };
    }
    floats {
        deform_conv2d_backward(
            x: normal([1, 2, 3, 3]), offset: unit([1, 18, 3, 3]), weight: normal([2, 2, 3, 3]),
            mask: positive([1, 9, 3, 3]), bias: normal([2]), grad: normal([1, 2, 3, 3])
        ) => {
            let grads = B::deform_conv2d_backward(
                x, offset, weight, Some(mask), Some(bias), grad, deformed(),
            );
            let mut all = vec![grads.x_grad, grads.offset_grad, grads.weight_grad];
            all.extend(grads.mask_grad);
            all.extend(grads.bias_grad);
            assert_eq!(all.len(), 5);
            all
        };
    }
}
