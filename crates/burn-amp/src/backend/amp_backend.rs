use burn::tensor::backend::Backend;
use burn::tensor::ops::{
    AttentionModuleOptions, BoolTensor, ConvOptions, ConvTransposeOptions, FloatTensor, IntTensor,
};
use burn::tensor::{DType, FloatDType, TensorMetadata};

use super::composed;
use super::operands::{in_wider, saturated, to, widen};

/// Declares convolutions with their default: Burn's op on operands of the compute type.
macro_rules! convolutions {
    ($($(#[$doc:meta])* fn $name:ident = $op:ident($options:ty);)*) => {$(
        $(#[$doc])*
        fn $name(
            x: FloatTensor<Self>,
            weight: FloatTensor<Self>,
            bias: Option<FloatTensor<Self>>,
            options: $options,
            compute: FloatDType,
        ) -> FloatTensor<Self> {
            let (x, weight, bias) = composed::layer_operands::<Self>(x, weight, bias, compute);
            to::<Self>(Self::$op(x, weight, bias, options), compute)
        }
    )*};
}

/// A backend that [`Amp`](crate::Amp) can decorate, and the operations that mixed precision needs
/// beyond Burn's own.
///
/// Every method has a default composed of plain backend ops, so a third party's backend opts in
/// with an empty `impl`. Backends override what they can do in one pass; Burn's `Autodiff` overrides
/// what mixed precision records in the graph.
///
/// Operands come in the types that the program gave them. Where a method takes a `compute` type, the
/// method brings them to it; elsewhere an f64 operand makes f64 what is f32 below.
pub trait AmpBackend: Backend {
    // Casts

    /// Casts a float tensor, rounding to nearest even; a value beyond the range becomes infinite.
    ///
    /// # Shapes
    ///
    /// - tensor: any
    /// - returns: the same
    fn amp_cast(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        if tensor.dtype() == DType::from(dtype) {
            return tensor;
        }
        Self::float_cast(tensor, dtype)
    }

    /// Casts a float tensor like [`amp_cast`](AmpBackend::amp_cast), but a finite value beyond the
    /// range becomes the largest finite one. Infinities and NaN stay what they are.
    ///
    /// # Shapes
    ///
    /// - tensor: any
    /// - returns: the same
    fn amp_cast_saturating(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        composed::cast_saturating::<Self>(tensor, dtype)
    }

    /// Casts an operand of an op that keeps its operands for backward. Under autodiff, what is kept is
    /// the tensor that was cast: the cast is computed again.
    ///
    /// # Shapes
    ///
    /// - tensor: any
    /// - returns: the same
    fn amp_cast_operand(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        Self::amp_cast(tensor, dtype)
    }

    /// Takes note that a half type holds every value of `tensor`, as those of a dropout mask. Under
    /// autodiff, an op that keeps it for backward then keeps it in that type.
    fn amp_note_exact(_tensor: &FloatTensor<Self>, _dtype: FloatDType) {}

    /// Divides a gradient by the loss scale: f32(gradient) × `inv_scale`, in f32 (f64 stays f64).
    ///
    /// The arithmetic is that of PyTorch's `_amp_foreach_non_finite_check_and_unscale_`; a scale of
    /// one leaves the values alone.
    ///
    /// # Shapes
    ///
    /// - grad: any
    /// - returns: the same
    fn amp_unscale(grad: FloatTensor<Self>, inv_scale: f32) -> FloatTensor<Self> {
        composed::unscale::<Self>(grad, inv_scale, Self::amp_cast)
    }

    /// Divides many gradients by the loss scale, as [`amp_unscale`](AmpBackend::amp_unscale), and flags
    /// those that are not finite then, as [`amp_check`](AmpBackend::amp_check).
    ///
    /// # Shapes
    ///
    /// - grads: any
    /// - returns: the same, and `[gradients, 2]`
    fn amp_unscale_and_check(
        grads: Vec<FloatTensor<Self>>,
        inv_scale: f32,
    ) -> (Vec<FloatTensor<Self>>, IntTensor<Self>) {
        composed::unscale_and_check::<Self>(grads, inv_scale)
    }

    /// Flags gradients that are not finite: for each, 1 if it has an infinity, else 0, and the same for
    /// NaN. There has to be at least one gradient.
    ///
    /// # Shapes
    ///
    /// - grads: any
    /// - returns: `[gradients, 2]`
    fn amp_check(grads: Vec<FloatTensor<Self>>) -> IntTensor<Self> {
        composed::check::<Self>(grads)
    }

    // Products

    /// The type in which products of operands in the `compute` type are run; `compute` by default. A
    /// backend names f32 if its products in half types are slower, or round their sums on the way.
    fn amp_product_type(compute: FloatDType) -> FloatDType {
        compute
    }

    /// The nearest values of another type, in the tensor's own.
    ///
    /// # Shapes
    ///
    /// - tensor: any
    /// - returns: the same
    fn amp_round(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        let own = tensor.dtype().into();
        Self::amp_cast(Self::amp_cast(tensor, dtype), own)
    }

    /// Matrix product of operands in the `compute` type, with a result in type `out`.
    ///
    /// A result that is wider than the compute type comes from the accumulator, without having been
    /// rounded to the compute type; the default multiplies in type `out` then.
    ///
    /// # Shapes
    ///
    /// - lhs: `[.., m, k]`, rhs: `[.., k, n]`, with leading dimensions that broadcast
    /// - returns: `[.., m, n]`
    fn amp_matmul(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        compute: FloatDType,
        out: FloatDType,
    ) -> FloatTensor<Self> {
        composed::matmul::<Self>(lhs, rhs, compute, out)
    }

    /// Linear layer `x · weight + bias` in the `compute` type, which the result has too.
    ///
    /// # Shapes
    ///
    /// - x: `[.., d_input]`, weight: `[d_input, d_output]`, bias: `[d_output]`
    /// - returns: `[.., d_output]`
    fn amp_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        compute: FloatDType,
    ) -> FloatTensor<Self> {
        composed::linear::<Self>(x, weight, bias, compute)
    }

    convolutions! {
        /// Convolution over one dimension in the `compute` type, which the result has too.
        ///
        /// # Shapes
        ///
        /// - x: `[batch, channels_in, length]`, weight: `[channels_out, channels_in / groups, kernel]`
        /// - returns: `[batch, channels_out, length_out]`
        fn amp_conv1d = conv1d(ConvOptions<1>);
        /// Convolution over two dimensions; see [`amp_conv1d`](AmpBackend::amp_conv1d).
        fn amp_conv2d = conv2d(ConvOptions<2>);
        /// Convolution over three dimensions; see [`amp_conv1d`](AmpBackend::amp_conv1d).
        fn amp_conv3d = conv3d(ConvOptions<3>);
        /// Transposed convolution over one dimension in the `compute` type, which the result has too.
        ///
        /// # Shapes
        ///
        /// - x: `[batch, channels_in, length]`, weight: `[channels_in, channels_out / groups, kernel]`
        /// - returns: `[batch, channels_out, length_out]`
        fn amp_conv_transpose1d = conv_transpose1d(ConvTransposeOptions<1>);
        /// Transposed convolution over two dimensions; see
        /// [`amp_conv_transpose1d`](AmpBackend::amp_conv_transpose1d).
        fn amp_conv_transpose2d = conv_transpose2d(ConvTransposeOptions<2>);
        /// Transposed convolution over three dimensions; see
        /// [`amp_conv_transpose1d`](AmpBackend::amp_conv_transpose1d).
        fn amp_conv_transpose3d = conv_transpose3d(ConvTransposeOptions<3>);
    }

    /// Attention with products in the `compute` type, which the result has too, and softmax in f32.
    /// A row with everything masked gives zeros.
    ///
    /// # Shapes
    ///
    /// - query: `[batch, heads, queries, d_head]`, key: `[batch, heads, keys, d_head]`,
    ///   value: `[batch, heads, keys, d_value]`, with a batch and heads that broadcast
    /// - mask (true hides a key), bias: `[batch, heads, queries, keys]`, or 1 where they broadcast
    /// - returns: `[batch, heads, queries, d_value]`
    fn amp_attention(
        operands: Attention<Self>,
        options: AttentionModuleOptions,
        compute: FloatDType,
    ) -> FloatTensor<Self> {
        composed::attention::<Self>(operands, options, compute)
    }

    /// The gradients of an attention, from its operands alone. `dtypes` are those of the gradients of
    /// query, key and value; that of a bias, if it is wanted, has the type of the bias.
    ///
    /// # Shapes
    ///
    /// - operands: as in [`amp_attention`](AmpBackend::amp_attention)
    /// - grad: `[batch, heads, queries, d_value]`
    fn amp_attention_backward(
        operands: Attention<Self>,
        options: AttentionModuleOptions,
        compute: FloatDType,
        grad: FloatTensor<Self>,
        dtypes: [FloatDType; 3],
        wants_bias: bool,
    ) -> AttentionGrads<Self> {
        composed::attention_backward::<Self>(operands, options, compute, grad, dtypes, wants_bias)
    }

    // Elementwise arithmetic of two types

    /// Arithmetic on operands that broadcast, computed in the wider of their types and stored in `out`;
    /// a finite value beyond the range of `out` becomes its largest.
    ///
    /// # Shapes
    ///
    /// - lhs, rhs: any that broadcast
    fn amp_arithmetic(
        op: Arithmetic,
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        out: FloatDType,
    ) -> FloatTensor<Self> {
        let [lhs, rhs] = in_wider::<Self>(lhs, rhs);
        let result = match op {
            Arithmetic::Add => Self::float_add(lhs, rhs),
            Arithmetic::Sub => Self::float_sub(lhs, rhs),
            Arithmetic::Mul => Self::float_mul(lhs, rhs),
            Arithmetic::Div => Self::float_div(lhs, rhs),
        };
        saturated::<Self>(result, out)
    }

    // Activations

    /// GELU, computed in f32 and stored in the operand's type.
    ///
    /// # Shapes
    ///
    /// - tensor: any
    /// - returns: the same
    fn amp_gelu(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        let dtype = tensor.dtype().into();
        to::<Self>(Self::gelu(widen::<Self>(tensor)), dtype)
    }

    /// `grad` times the derivative of GELU at `x`: Φ(x) + x φ(x), with the normal distribution and its
    /// density. Computed in f32, where it is finite for every finite operand; stored in the type of `x`.
    ///
    /// # Shapes
    ///
    /// - x, grad: the same
    fn amp_gelu_backward(x: FloatTensor<Self>, grad: FloatTensor<Self>) -> FloatTensor<Self> {
        composed::gelu_backward::<Self>(x, grad)
    }

    /// The larger of `tensor` and zero. Under autodiff the result is kept, not the operand: the next
    /// layer keeps it too.
    ///
    /// # Shapes
    ///
    /// - tensor: any
    /// - returns: the same
    fn amp_relu(tensor: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::relu(tensor)
    }

    // Rows: norms and softmax

    /// Normalizes over the last dimension: `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, in
    /// f32 from whatever comes in; the result is f32.
    ///
    /// # Shapes
    ///
    /// - tensor: `[.., d_model]`, gamma, beta: `[d_model]`
    /// - returns: `[.., d_model]`
    fn amp_layer_norm(
        tensor: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> FloatTensor<Self> {
        Self::amp_layer_norm_forward(tensor, gamma, beta, epsilon).output
    }

    /// As [`amp_layer_norm`](AmpBackend::amp_layer_norm), with what backward needs of each row.
    ///
    /// The variance must not cancel for rows whose mean is large beside it.
    fn amp_layer_norm_forward(
        tensor: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> LayerNorm<Self> {
        composed::layer_norm::<Self>(tensor, gamma, beta, epsilon)
    }

    /// The gradients of a layer norm. That of `x` has the type of `x`, the others f32.
    ///
    /// # Shapes
    ///
    /// - x, grad: `[.., d_model]`, gamma: `[d_model]`, mean, inv_deviation: `[.., 1]`
    fn amp_layer_norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        moments: Moments<Self>,
        grad: FloatTensor<Self>,
    ) -> LayerNormGrads<Self> {
        composed::layer_norm_backward::<Self>(x, gamma, moments, grad)
    }

    /// Softmax over dimension `dim` in f32; the result is f32.
    ///
    /// # Shapes
    ///
    /// - tensor: any
    /// - returns: the same
    fn amp_softmax(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        composed::softmax::<Self>(tensor, dim)
    }

    /// The gradient of a softmax, from its result `output`: `y (g - Σ y g / Σ y)`, in f32, stored in
    /// type `out`. A result that was rounded does not sum to one; the division makes up for it.
    ///
    /// # Shapes
    ///
    /// - output, grad: the same
    fn amp_softmax_backward(
        output: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        dim: usize,
        out: FloatDType,
    ) -> FloatTensor<Self> {
        composed::softmax_backward::<Self>(output, grad, dim, out)
    }

    /// Logarithm of softmax over dimension `dim` in f32; the result is f32.
    ///
    /// # Shapes
    ///
    /// - tensor: any
    /// - returns: the same
    fn amp_log_softmax(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        Self::amp_log_softmax_forward(tensor, dim).0
    }

    /// As [`amp_log_softmax`](AmpBackend::amp_log_softmax), with what backward needs of each row:
    /// log Σ exp(x - max x), in f32.
    ///
    /// # Shapes
    ///
    /// - tensor: any
    /// - returns: the same, and with size 1 in dimension `dim`
    fn amp_log_softmax_forward(
        tensor: FloatTensor<Self>,
        dim: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        composed::log_softmax::<Self>(tensor, dim)
    }

    /// The gradient of a log-softmax, `g - exp(x - max x - log_sum) Σ g`, in f32, stored in the type of
    /// `x`.
    ///
    /// # Shapes
    ///
    /// - x, grad: the same; log_sum: the same with size 1 in dimension `dim`
    fn amp_log_softmax_backward(
        x: FloatTensor<Self>,
        log_sum: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        dim: usize,
    ) -> FloatTensor<Self> {
        composed::log_softmax_backward::<Self>(x, log_sum, grad, dim)
    }
}

/// An elementwise op of two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    /// `lhs + rhs`
    Add,
    /// `lhs - rhs`
    Sub,
    /// `lhs * rhs`
    Mul,
    /// `lhs / rhs`
    Div,
}

/// The operands of an attention, in any float types.
#[derive(Debug, Clone)]
pub struct Attention<B: Backend> {
    /// `[batch, heads, queries, d_head]`
    pub query: FloatTensor<B>,
    /// `[batch, heads, keys, d_head]`
    pub key: FloatTensor<B>,
    /// `[batch, heads, keys, d_value]`
    pub value: FloatTensor<B>,
    /// True hides a key from a query; `[batch, heads, queries, keys]`, or 1 where it broadcasts.
    pub mask: Option<BoolTensor<B>>,
    /// Added to the scores; shaped as the mask.
    pub bias: Option<FloatTensor<B>>,
}

/// The gradients of an attention, each in the shape of its operand.
#[derive(Debug, Clone)]
pub struct AttentionGrads<B: Backend> {
    /// Of the query.
    pub query: FloatTensor<B>,
    /// Of the key.
    pub key: FloatTensor<B>,
    /// Of the value.
    pub value: FloatTensor<B>,
    /// Of the bias, if there is one and it is wanted.
    pub bias: Option<FloatTensor<B>>,
}

/// The statistics of each row of a layer norm, in f32.
#[derive(Debug, Clone)]
pub struct Moments<B: Backend> {
    /// `[.., 1]`
    pub mean: FloatTensor<B>,
    /// One over the square root of the variance plus epsilon; `[.., 1]`.
    pub inv_deviation: FloatTensor<B>,
}

/// A layer norm's result, in f32, and its statistics.
#[derive(Debug, Clone)]
pub struct LayerNorm<B: Backend> {
    /// `[.., d_model]`
    pub output: FloatTensor<B>,
    /// What backward needs.
    pub moments: Moments<B>,
}

/// The gradients of a layer norm.
#[derive(Debug, Clone)]
pub struct LayerNormGrads<B: Backend> {
    /// `[.., d_model]`, in the type of the operand.
    pub x: FloatTensor<B>,
    /// `[d_model]`, in f32.
    pub gamma: FloatTensor<B>,
    /// `[d_model]`, in f32.
    pub beta: FloatTensor<B>,
}

/// The largest finite value of a type that f32 values can exceed.
pub(crate) fn largest_finite(dtype: FloatDType) -> Option<f32> {
    match dtype {
        FloatDType::F16 => Some(f32::from(half::f16::MAX)),
        FloatDType::BF16 => Some(f32::from(half::bf16::MAX)),
        _ => None,
    }
}

/// NdArray's own bounds name a private type, so its element types are spelled out.
#[cfg(feature = "ndarray")]
macro_rules! ndarray {
    ($($float:ty: [$($int:ty),*]),*) => {$($(
        impl<Q: burn::backend::ndarray::QuantElement> AmpBackend
            for burn::backend::NdArray<$float, $int, Q>
        {
        }
    )*)*};
}

#[cfg(feature = "ndarray")]
ndarray!(f32: [i64, i32, i16, i8], f64: [i64, i32, i16, i8]);
