//! Burn's fusion: the kernels of the backend below, each as a custom op.
//!
//! A custom op ends the block of ops that is being fused, so only those are registered that replace
//! whole chains. Casts and arithmetic stay Burn's: they fuse with what is around them. The operation
//! objects come from the live queue even where a plan is reused, so that what they hold beside their
//! tensors, such as an epsilon, is their own.

use std::fmt;
use std::sync::Arc;

use burn::tensor::ops::{FloatTensor, IntTensor};
use burn::tensor::{DType, FloatDType, Shape, TensorMetadata};
use burn_fusion::stream::{Operation, OperationStreams};
use burn_fusion::{Fusion, FusionBackend, FusionRuntime};
use burn_ir::{CustomOpIr, HandleContainer, OperationIr, TensorIr};

use super::amp_backend::{AmpBackend, LayerNorm, LayerNormGrads, Moments};
use super::composed;
use super::cube::{linear_shape, multiplies};

type Handles<B> =
    HandleContainer<<<B as FusionBackend>::FusionRuntime as FusionRuntime>::FusionHandle>;

/// What an op gives back: float tensors, then one of flags.
type Results<B> = (Vec<FloatTensor<B>>, Option<IntTensor<B>>);

/// A method of the backend below, to be called on concrete tensors.
struct Deferred<B: FusionBackend> {
    ir: CustomOpIr,
    run: Arc<dyn Fn(Vec<FloatTensor<B>>) -> Results<B> + Send + Sync>,
}

impl<B: FusionBackend> fmt::Debug for Deferred<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred")
            .field("ir", &self.ir)
            .finish_non_exhaustive()
    }
}

impl<B: FusionBackend> Operation<B::FusionRuntime> for Deferred<B> {
    fn execute(&self, handles: &mut Handles<B>) {
        let inputs = self.ir.inputs.iter();
        let inputs = inputs
            .map(|input| handles.get_float_tensor::<B>(input))
            .collect();
        let (floats, flags) = (self.run)(inputs);
        let mut outputs = self.ir.outputs.iter();
        for (float, output) in floats.into_iter().zip(&mut outputs) {
            handles.register_float_tensor::<B>(&output.id, float);
        }
        if let (Some(flags), Some(output)) = (flags, outputs.next()) {
            handles.register_int_tensor::<B>(&output.id, flags);
        }
    }
}

/// Registers a call of `run`, whose results have these shapes and types.
fn defer<B: FusionBackend>(
    name: &'static str,
    inputs: Vec<FloatTensor<Fusion<B>>>,
    outputs: Vec<(Shape, DType)>,
    run: impl Fn(Vec<FloatTensor<B>>) -> Results<B> + Send + Sync + 'static,
) -> Vec<FloatTensor<Fusion<B>>> {
    let client = inputs[0].client.clone();
    let streams = OperationStreams::with_inputs(&inputs);
    let outputs: Vec<_> = outputs
        .into_iter()
        .map(|(shape, dtype)| TensorIr::uninit(client.create_empty_handle(), shape, dtype))
        .collect();
    let inputs: Vec<_> = inputs.into_iter().map(|input| input.into_ir()).collect();
    let ir = CustomOpIr::new(name, &inputs, &outputs);
    let operation = Deferred::<B> {
        ir: ir.clone(),
        run: Arc::new(run),
    };
    client.register(streams, OperationIr::Custom(ir), operation)
}

/// As [`defer`], with one float result.
fn defer_one<B: FusionBackend>(
    name: &'static str,
    inputs: Vec<FloatTensor<Fusion<B>>>,
    output: (Shape, DType),
    run: impl Fn(Vec<FloatTensor<B>>) -> FloatTensor<B> + Send + Sync + 'static,
) -> FloatTensor<Fusion<B>> {
    defer::<B>(name, inputs, vec![output], move |inputs| {
        (vec![run(inputs)], None)
    })
    .remove(0)
}

/// The tensors of a call, in order; the caller knows how many there are.
fn all<T: fmt::Debug, const N: usize>(tensors: Vec<T>) -> [T; N] {
    tensors
        .try_into()
        .expect("as many tensors as were registered")
}

/// The type that statistics and results have: f64 from f64.
fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

fn column(shape: &Shape, dim: usize) -> Shape {
    let mut shape = shape.clone();
    shape[dim] = 1;
    shape
}

impl<B: FusionBackend + AmpBackend> AmpBackend for Fusion<B> {
    fn amp_product_type(compute: FloatDType) -> FloatDType {
        B::amp_product_type(compute)
    }

    fn amp_matmul(
        lhs: FloatTensor<Self>,
        rhs: FloatTensor<Self>,
        compute: FloatDType,
        out: FloatDType,
    ) -> FloatTensor<Self> {
        if !multiplies([lhs.dtype(), rhs.dtype()], compute, out) {
            return composed::matmul::<Self>(lhs, rhs, compute, out);
        }
        let shape = product_shape(&lhs.shape(), &rhs.shape());
        defer_one::<B>(
            "amp_matmul",
            vec![lhs, rhs],
            (shape, out.into()),
            move |operands| {
                let [lhs, rhs] = all(operands);
                B::amp_matmul(lhs, rhs, compute, out)
            },
        )
    }

    fn amp_linear(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        bias: Option<FloatTensor<Self>>,
        compute: FloatDType,
    ) -> FloatTensor<Self> {
        if !multiplies([x.dtype(), weight.dtype()], compute, compute) {
            return composed::linear::<Self>(x, weight, bias, compute);
        }
        let shape = linear_shape(&x.shape(), &weight.shape());
        let operands = [x, weight].into_iter().chain(bias).collect();
        defer_one::<B>(
            "amp_linear",
            operands,
            (shape, compute.into()),
            move |mut operands| {
                let bias = (operands.len() == 3).then(|| operands.remove(2));
                let [x, weight] = all(operands);
                B::amp_linear(x, weight, bias, compute)
            },
        )
    }

    fn amp_layer_norm_forward(
        tensor: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        beta: Option<FloatTensor<Self>>,
        epsilon: f64,
    ) -> LayerNorm<Self> {
        let shape = tensor.shape();
        let dtype = wide(tensor.dtype());
        let statistic = column(&shape, shape.num_dims() - 1);
        let outputs = vec![
            (shape, dtype),
            (statistic.clone(), dtype),
            (statistic, dtype),
        ];
        let operands = [tensor, gamma].into_iter().chain(beta).collect();
        let results = defer::<B>("amp_layer_norm", operands, outputs, move |mut operands| {
            let beta = (operands.len() == 3).then(|| operands.remove(2));
            let [tensor, gamma] = all(operands);
            let LayerNorm { output, moments } =
                B::amp_layer_norm_forward(tensor, gamma, beta, epsilon);
            (vec![output, moments.mean, moments.inv_deviation], None)
        });
        let [output, mean, inv_deviation] = all(results);
        LayerNorm {
            output,
            moments: Moments {
                mean,
                inv_deviation,
            },
        }
    }

    fn amp_layer_norm_backward(
        x: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        moments: Moments<Self>,
        grad: FloatTensor<Self>,
    ) -> LayerNormGrads<Self> {
        let dtype = wide(x.dtype());
        let outputs = vec![
            (x.shape(), x.dtype()),
            (gamma.shape(), dtype),
            (gamma.shape(), dtype),
        ];
        let operands = vec![x, gamma, moments.mean, moments.inv_deviation, grad];
        let results = defer::<B>("amp_layer_norm_backward", operands, outputs, |operands| {
            let [x, gamma, mean, inv_deviation, grad] = all(operands);
            let moments = Moments {
                mean,
                inv_deviation,
            };
            let grads = B::amp_layer_norm_backward(x, gamma, moments, grad);
            (vec![grads.x, grads.gamma, grads.beta], None)
        });
        let [x, gamma, beta] = all(results);
        LayerNormGrads { x, gamma, beta }
    }

    fn amp_softmax(tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self> {
        let output = (tensor.shape(), wide(tensor.dtype()));
        defer_one::<B>("amp_softmax", vec![tensor], output, move |operands| {
            let [tensor] = all(operands);
            B::amp_softmax(tensor, dim)
        })
    }

    fn amp_softmax_backward(
        output: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        dim: usize,
        out: FloatDType,
    ) -> FloatTensor<Self> {
        let result = (output.shape(), out.into());
        defer_one::<B>(
            "amp_softmax_backward",
            vec![output, grad],
            result,
            move |operands| {
                let [output, grad] = all(operands);
                B::amp_softmax_backward(output, grad, dim, out)
            },
        )
    }

    fn amp_log_softmax_forward(
        tensor: FloatTensor<Self>,
        dim: usize,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let shape = tensor.shape();
        let dtype = wide(tensor.dtype());
        let outputs = vec![(shape.clone(), dtype), (column(&shape, dim), dtype)];
        let results = defer::<B>("amp_log_softmax", vec![tensor], outputs, move |operands| {
            let [tensor] = all(operands);
            let (output, log_sum) = B::amp_log_softmax_forward(tensor, dim);
            (vec![output, log_sum], None)
        });
        let [output, log_sum] = all(results);
        (output, log_sum)
    }

    fn amp_log_softmax_backward(
        x: FloatTensor<Self>,
        log_sum: FloatTensor<Self>,
        grad: FloatTensor<Self>,
        dim: usize,
    ) -> FloatTensor<Self> {
        let result = (x.shape(), x.dtype());
        defer_one::<B>(
            "amp_log_softmax_backward",
            vec![x, log_sum, grad],
            result,
            move |operands| {
                let [x, log_sum, grad] = all(operands);
                B::amp_log_softmax_backward(x, log_sum, grad, dim)
            },
        )
    }

    fn amp_unscale_and_check(
        grads: Vec<FloatTensor<Self>>,
        inv_scale: f32,
    ) -> (Vec<FloatTensor<Self>>, IntTensor<Self>) {
        let mut outputs: Vec<_> = grads
            .iter()
            .map(|grad| (grad.shape(), wide(grad.dtype())))
            .collect();
        outputs.push((Shape::new([grads.len(), 2]), DType::I32));
        let mut results = defer::<B>("amp_unscale_and_check", grads, outputs, move |grads| {
            let (unscaled, flags) = B::amp_unscale_and_check(grads, inv_scale);
            (unscaled, Some(flags_as_i32::<B>(flags)))
        });
        let flags = results.pop().expect("the flags are registered last");
        (results, flags)
    }

    fn amp_check(grads: Vec<FloatTensor<Self>>) -> IntTensor<Self> {
        let flags = (Shape::new([grads.len(), 2]), DType::I32);
        defer::<B>("amp_check", grads, vec![flags], |grads| {
            let flags = B::amp_check(grads);
            (Vec::new(), Some(flags_as_i32::<B>(flags)))
        })
        .remove(0)
    }
}

/// The type that the flags were registered with.
fn flags_as_i32<B: AmpBackend>(flags: IntTensor<B>) -> IntTensor<B> {
    if flags.dtype() == DType::I32 {
        return flags;
    }
    B::int_cast(flags, burn::tensor::IntDType::I32)
}

/// `[.., m, k] · [.., k, n]`, with leading dimensions that broadcast.
fn product_shape(lhs: &Shape, rhs: &Shape) -> Shape {
    let rank = lhs.num_dims();
    let mut shape = lhs.clone();
    for dim in 0..rank - 2 {
        shape[dim] = lhs[dim].max(rhs[dim]);
    }
    shape[rank - 1] = rhs[rank - 1];
    shape
}
