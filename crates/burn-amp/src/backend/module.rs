use burn::tensor::ops::{
    AttentionModuleOptions, BoolTensor, ConvOptions, ConvTransposeOptions, DeformConv2dBackward,
    DeformConvOptions, FloatTensor, IntTensor, InterpolateOptions, MaxPool1dBackward,
    MaxPool1dWithIndices, MaxPool2dBackward, MaxPool2dWithIndices, ModuleOps, UnfoldOptions,
};

use burn::tensor::{DType, TensorMetadata};

use super::amp_backend::Attention;
use super::delegate::{cast, cast_inputs, lower};
use super::{Amp, AmpBackend, operands};
use crate::policy::{Op, Rule};

impl<B: AmpBackend> ModuleOps<Self> for Amp<B> {
    /// Looks up in the table's own type and lowers the rows that were found: the same values as from
    /// a lowered table, without casting it, and its gradient accumulates in f32.
    fn embedding(weights: FloatTensor<Self>, indices: IntTensor<Self>) -> FloatTensor<Self> {
        match operands::rule::<B>(Op::embedding, &weights) {
            Rule::Lower(half) => operands::lower::<B>(B::embedding(weights, indices), half),
            Rule::Full => operands::widen::<B>(B::embedding(weights, indices)),
            Rule::Off | Rule::Native | Rule::Widen => B::embedding(weights, indices),
        }
    }

    fn attention(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        value: FloatTensor<Self>,
        mask: Option<BoolTensor<Self>>,
        attn_bias: Option<FloatTensor<Self>>,
        options: AttentionModuleOptions,
    ) -> FloatTensor<Self> {
        if operands::pass::<B, 3, 1>([&query, &key, &value], [attn_bias.as_ref()]) {
            return B::attention(query, key, value, mask, attn_bias, options);
        }
        let rule = operands::lowered::<B, 3, 1>(
            Op::attention,
            [&query, &key, &value],
            [attn_bias.as_ref()],
        );
        if let Some(compute) = rule {
            let operands = Attention {
                query,
                key,
                value,
                mask,
                bias: attn_bias,
            };
            return B::amp_attention(operands, options, compute);
        }
        let ([query, key, value], [bias], store) =
            operands::cast::<B, 3, 1>(Op::attention, [query, key, value], [attn_bias]);
        store.finish::<B>(B::attention(query, key, value, mask, bias, options))
    }

    fn layer_norm(
        tensor: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        let rule = operands::rule::<B>(Op::layer_norm, &tensor);
        let is_f64 = |dtype| dtype == DType::F64;
        let is_below_f64 =
            !is_f64(gamma.dtype()) && !beta.as_ref().is_some_and(|beta| is_f64(beta.dtype()));
        match rule {
            Rule::Full if is_below_f64 || is_f64(tensor.dtype()) => {
                B::amp_layer_norm(tensor, gamma, beta, epsilon)
            }
            _ => {
                let ([tensor, gamma], [beta], store) =
                    operands::cast_by::<B, 2, 1>(Op::layer_norm, rule, [tensor, gamma], [beta]);
                store.finish::<B>(B::layer_norm(tensor, gamma, beta, epsilon))
            }
        }
    }

    lower! {
        fn linear = amp_linear[x, weight; bias](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            bias: Option<FloatTensor<Self>>,
        ) -> FloatTensor<Self>;
        fn conv1d = amp_conv1d[x, weight; bias](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            bias: Option<FloatTensor<Self>>,
            options: ConvOptions<1>,
        ) -> FloatTensor<Self>;
        fn conv2d = amp_conv2d[x, weight; bias](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            bias: Option<FloatTensor<Self>>,
            options: ConvOptions<2>,
        ) -> FloatTensor<Self>;
        fn conv3d = amp_conv3d[x, weight; bias](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            bias: Option<FloatTensor<Self>>,
            options: ConvOptions<3>,
        ) -> FloatTensor<Self>;
        fn conv_transpose1d = amp_conv_transpose1d[x, weight; bias](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            bias: Option<FloatTensor<Self>>,
            options: ConvTransposeOptions<1>,
        ) -> FloatTensor<Self>;
        fn conv_transpose2d = amp_conv_transpose2d[x, weight; bias](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            bias: Option<FloatTensor<Self>>,
            options: ConvTransposeOptions<2>,
        ) -> FloatTensor<Self>;
        fn conv_transpose3d = amp_conv_transpose3d[x, weight; bias](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            bias: Option<FloatTensor<Self>>,
            options: ConvTransposeOptions<3>,
        ) -> FloatTensor<Self>;
    }

    cast! {
        fn embedding_backward[weights, output_grad](
            weights: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
            indices: IntTensor<Self>,
        ) -> FloatTensor<Self>;
        fn linear_x_backward[weight, output_grad](
            weight: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn linear_weight_backward[x, output_grad](
            x: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn linear_bias_backward[output_grad](output_grad: FloatTensor<Self>) -> FloatTensor<Self>;
        fn conv1d_x_backward[x, weight, output_grad](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
            options: ConvOptions<1>,
        ) -> FloatTensor<Self>;
        fn conv1d_weight_backward[x, weight, output_grad](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
            options: ConvOptions<1>,
        ) -> FloatTensor<Self>;
        fn conv1d_bias_backward[x, bias, output_grad](
            x: FloatTensor<Self>,
            bias: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn conv2d_x_backward[x, weight, output_grad](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
            options: ConvOptions<2>,
        ) -> FloatTensor<Self>;
        fn conv2d_weight_backward[x, weight, output_grad](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
            options: ConvOptions<2>,
        ) -> FloatTensor<Self>;
        fn conv2d_bias_backward[x, bias, output_grad](
            x: FloatTensor<Self>,
            bias: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn deform_conv2d[x, offset, weight; mask, bias](
            x: FloatTensor<Self>,
            offset: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            mask: Option<FloatTensor<Self>>,
            bias: Option<FloatTensor<Self>>,
            options: DeformConvOptions<2>,
        ) -> FloatTensor<Self>;
        fn conv3d_x_backward[x, weight, output_grad](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
            options: ConvOptions<3>,
        ) -> FloatTensor<Self>;
        fn conv3d_weight_backward[x, weight, output_grad](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
            options: ConvOptions<3>,
        ) -> FloatTensor<Self>;
        fn conv3d_bias_backward[x, bias, output_grad](
            x: FloatTensor<Self>,
            bias: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn conv_transpose1d_x_backward[weight, output_grad](
            weight: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
            options: ConvTransposeOptions<1>,
        ) -> FloatTensor<Self>;
        fn conv_transpose1d_weight_backward[x, weight, output_grad](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
            options: ConvTransposeOptions<1>,
        ) -> FloatTensor<Self>;
        fn conv_transpose1d_bias_backward[x, bias, output_grad](
            x: FloatTensor<Self>,
            bias: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn conv_transpose2d_x_backward[weight, output_grad](
            weight: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
            options: ConvTransposeOptions<2>,
        ) -> FloatTensor<Self>;
        fn conv_transpose2d_weight_backward[x, weight, output_grad](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
            options: ConvTransposeOptions<2>,
        ) -> FloatTensor<Self>;
        fn conv_transpose2d_bias_backward[x, bias, output_grad](
            x: FloatTensor<Self>,
            bias: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn conv_transpose3d_x_backward[weight, output_grad](
            weight: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
            options: ConvTransposeOptions<3>,
        ) -> FloatTensor<Self>;
        fn conv_transpose3d_weight_backward[x, weight, output_grad](
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
            options: ConvTransposeOptions<3>,
        ) -> FloatTensor<Self>;
        fn conv_transpose3d_bias_backward[x, bias, output_grad](
            x: FloatTensor<Self>,
            bias: FloatTensor<Self>,
            output_grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn unfold4d[x](
            x: FloatTensor<Self>,
            kernel_size: [usize; 2],
            options: UnfoldOptions,
        ) -> FloatTensor<Self>;
        fn avg_pool1d[x](
            x: FloatTensor<Self>,
            kernel_size: usize,
            stride: usize,
            padding: usize,
            count_include_pad: bool,
            ceil_mode: bool,
        ) -> FloatTensor<Self>;
        fn avg_pool1d_backward[x, grad](
            x: FloatTensor<Self>,
            grad: FloatTensor<Self>,
            kernel_size: usize,
            stride: usize,
            padding: usize,
            count_include_pad: bool,
            ceil_mode: bool,
        ) -> FloatTensor<Self>;
        fn avg_pool2d[x](
            x: FloatTensor<Self>,
            kernel_size: [usize; 2],
            stride: [usize; 2],
            padding: [usize; 2],
            count_include_pad: bool,
            ceil_mode: bool,
        ) -> FloatTensor<Self>;
        fn avg_pool2d_backward[x, grad](
            x: FloatTensor<Self>,
            grad: FloatTensor<Self>,
            kernel_size: [usize; 2],
            stride: [usize; 2],
            padding: [usize; 2],
            count_include_pad: bool,
            ceil_mode: bool,
        ) -> FloatTensor<Self>;
        fn adaptive_avg_pool2d[x](
            x: FloatTensor<Self>,
            output_size: [usize; 2],
        ) -> FloatTensor<Self>;
        fn adaptive_avg_pool2d_backward[x, grad](
            x: FloatTensor<Self>,
            grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn adaptive_avg_pool1d[x](x: FloatTensor<Self>, output_size: usize) -> FloatTensor<Self>;
        fn adaptive_avg_pool1d_backward[x, grad](
            x: FloatTensor<Self>,
            grad: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn max_pool1d[x](
            x: FloatTensor<Self>,
            kernel_size: usize,
            stride: usize,
            padding: usize,
            dilation: usize,
            ceil_mode: bool,
        ) -> FloatTensor<Self>;
        fn max_pool2d[x](
            x: FloatTensor<Self>,
            kernel_size: [usize; 2],
            stride: [usize; 2],
            padding: [usize; 2],
            dilation: [usize; 2],
            ceil_mode: bool,
        ) -> FloatTensor<Self>;
        fn interpolate[x](
            x: FloatTensor<Self>,
            output_size: [usize; 2],
            options: InterpolateOptions,
        ) -> FloatTensor<Self>;
        fn interpolate_backward[x, grad](
            x: FloatTensor<Self>,
            grad: FloatTensor<Self>,
            output_size: [usize; 2],
            options: InterpolateOptions,
        ) -> FloatTensor<Self>;
        fn ctc_loss[log_probs](
            log_probs: FloatTensor<Self>,
            targets: IntTensor<Self>,
            input_lengths: IntTensor<Self>,
            target_lengths: IntTensor<Self>,
            blank: usize,
        ) -> FloatTensor<Self>;
        fn ctc_loss_backward[log_probs, grad_loss](
            log_probs: FloatTensor<Self>,
            targets: IntTensor<Self>,
            input_lengths: IntTensor<Self>,
            target_lengths: IntTensor<Self>,
            grad_loss: FloatTensor<Self>,
            blank: usize,
        ) -> FloatTensor<Self>;
        fn irfft[spectrum_re, spectrum_im](
            spectrum_re: FloatTensor<Self>,
            spectrum_im: FloatTensor<Self>,
            dim: usize,
            n: Option<usize>,
        ) -> FloatTensor<Self>;
    }

    cast_inputs! {
        fn rfft[signal](
            signal: FloatTensor<Self>,
            dim: usize,
            n: Option<usize>,
        ) -> (FloatTensor<Self>, FloatTensor<Self>);
    }

    fn has_ctc_loss_backward() -> bool {
        B::has_ctc_loss_backward()
    }

    fn deform_conv2d_backward(
        x: FloatTensor<Self>,
        offset: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        mask: Option<FloatTensor<Self>>,
        bias: Option<FloatTensor<Self>>,
        output_grad: FloatTensor<Self>,
        options: DeformConvOptions<2>,
    ) -> DeformConv2dBackward<Self> {
        let ([x, offset, weight, output_grad], [mask, bias], _) = operands::cast::<B, 4, 2>(
            Op::deform_conv2d_backward,
            [x, offset, weight, output_grad],
            [mask, bias],
        );
        let grads = B::deform_conv2d_backward(x, offset, weight, mask, bias, output_grad, options);
        DeformConv2dBackward {
            x_grad: grads.x_grad,
            offset_grad: grads.offset_grad,
            weight_grad: grads.weight_grad,
            mask_grad: grads.mask_grad,
            bias_grad: grads.bias_grad,
        }
    }

    fn max_pool1d_with_indices(
        x: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
    ) -> MaxPool1dWithIndices<Self> {
        let ([x], [], _) = operands::cast::<B, 1, 0>(Op::max_pool1d_with_indices, [x], []);
        let pooled =
            B::max_pool1d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode);
        MaxPool1dWithIndices::new(pooled.output, pooled.indices)
    }

    fn max_pool1d_with_indices_backward(
        x: FloatTensor<Self>,
        kernel_size: usize,
        stride: usize,
        padding: usize,
        dilation: usize,
        ceil_mode: bool,
        output_grad: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> MaxPool1dBackward<Self> {
        let ([x, output_grad], [], _) =
            operands::cast::<B, 2, 0>(Op::max_pool1d_with_indices_backward, [x, output_grad], []);
        let grads = B::max_pool1d_with_indices_backward(
            x,
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            output_grad,
            indices,
        );
        MaxPool1dBackward::new(grads.x_grad)
    }

    fn max_pool2d_with_indices(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
    ) -> MaxPool2dWithIndices<Self> {
        let ([x], [], _) = operands::cast::<B, 1, 0>(Op::max_pool2d_with_indices, [x], []);
        let pooled =
            B::max_pool2d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode);
        MaxPool2dWithIndices::new(pooled.output, pooled.indices)
    }

    fn max_pool2d_with_indices_backward(
        x: FloatTensor<Self>,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
        output_grad: FloatTensor<Self>,
        indices: IntTensor<Self>,
    ) -> MaxPool2dBackward<Self> {
        let ([x, output_grad], [], _) =
            operands::cast::<B, 2, 0>(Op::max_pool2d_with_indices_backward, [x, output_grad], []);
        let grads = B::max_pool2d_with_indices_backward(
            x,
            kernel_size,
            stride,
            padding,
            dilation,
            ceil_mode,
            output_grad,
            indices,
        );
        MaxPool2dBackward::new(grads.x_grad)
    }
}
