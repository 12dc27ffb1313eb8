use burn::tensor::backend::ExecutionError;
use burn::tensor::ops::{
    BoolTensor, Device, FloatTensor, FloatTensorOps, GridSampleOptions, IntTensor,
};
use burn::tensor::{
    BoolDType, Distribution, FloatDType, IndexingUpdateOp, IntDType, Scalar, Shape, Slice,
    TensorData, TensorMetadata,
};

use super::delegate::{cast, cast_inputs, elementwise, forward, with_scalar};
use super::operands;
use super::{Amp, AmpBackend, Arithmetic, scalar};
use crate::counters;
use crate::policy::{self, Op, Rule, is_half};

/// Delegates arithmetic; on operands of two types, our own runs.
macro_rules! arithmetic {
    ($(fn $name:ident = $op:ident;)*) => {$(
        fn $name(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
            if operands::pass::<B, 2, 0>([&lhs, &rhs], []) {
                return B::$name(lhs, rhs);
            }
            match operands::result_of_two::<B>(Op::$name, &lhs, &rhs) {
                Some(out) => B::amp_arithmetic(Arithmetic::$op, lhs, rhs, out),
                None => {
                    let ([lhs, rhs], store) =
                        operands::elementwise::<B>(Op::$name, [lhs, rhs], None);
                    store.finish::<B>(B::$name(lhs, rhs))
                }
            }
        }
    )*};
}

/// Delegates a comparison with a scalar.
macro_rules! compare_with_scalar {
    ($(fn $name:ident;)*) => {$(
        fn $name(lhs: FloatTensor<Self>, rhs: Scalar, out_dtype: BoolDType) -> BoolTensor<Self> {
            let (lhs, _) = scalar::operand::<B>(Op::$name, lhs, &[rhs]);
            B::$name(lhs, rhs, out_dtype)
        }
    )*};
}

impl<B: AmpBackend> FloatTensorOps<Self> for Amp<B> {
    // Creation, device and autodiff state

    forward! {
        fn float_from_data(data: TensorData, device: &Device<Self>) -> FloatTensor<Self>;
        fn float_zeros(shape: Shape, device: &Device<Self>, dtype: FloatDType) -> FloatTensor<Self>;
        fn float_ones(shape: Shape, device: &Device<Self>, dtype: FloatDType) -> FloatTensor<Self>;
        fn float_full(
            shape: Shape,
            fill_value: Scalar,
            device: &Device<Self>,
            dtype: FloatDType,
        ) -> FloatTensor<Self>;
        fn float_empty(shape: Shape, device: &Device<Self>, dtype: FloatDType) -> FloatTensor<Self>;
        fn float_device(tensor: &FloatTensor<Self>) -> Device<Self>;
        fn float_to_device(tensor: FloatTensor<Self>, device: &Device<Self>) -> FloatTensor<Self>;
        fn float_into_int(tensor: FloatTensor<Self>, out_dtype: IntDType) -> IntTensor<Self>;
        fn float_detach(tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_set_require_grad(
            tensor: FloatTensor<Self>,
            require_grad: bool,
        ) -> FloatTensor<Self>;
        fn float_is_require_grad(tensor: &FloatTensor<Self>) -> bool;
    }

    fn float_random(
        shape: Shape,
        distribution: Distribution,
        device: &Device<Self>,
        dtype: FloatDType,
    ) -> FloatTensor<Self> {
        let tensor = B::float_random(shape, distribution, device, dtype);
        // A dropout mask: zeros and ones.
        if let Distribution::Bernoulli(_) = distribution
            && let Rule::Lower(half) = operands::rule::<B>(Op::float_matmul, &tensor)
        {
            B::amp_note_exact(&tensor, half.dtype());
        }
        tensor
    }

    /// A program casts to compute in another type, as a norm that squares in f32 does.
    fn float_cast(tensor: FloatTensor<Self>, dtype: FloatDType) -> FloatTensor<Self> {
        match operands::rule::<B>(Op::float_cast, &tensor) {
            Rule::Off => B::amp_cast(tensor, dtype),
            _ => B::amp_cast_operand(tensor, dtype),
        }
    }

    fn float_into_data(
        tensor: FloatTensor<Self>,
    ) -> impl Future<Output = Result<TensorData, ExecutionError>> + Send {
        counters::count_read();
        B::float_into_data(read_back::<B>(tensor))
    }

    // Matrix products

    fn float_matmul(lhs: FloatTensor<Self>, rhs: FloatTensor<Self>) -> FloatTensor<Self> {
        if operands::pass::<B, 2, 0>([&lhs, &rhs], []) {
            return B::float_matmul(lhs, rhs);
        }
        if let Some(compute) = operands::lowered::<B, 2, 0>(Op::float_matmul, [&lhs, &rhs], []) {
            return B::amp_matmul(lhs, rhs, compute, compute);
        }
        let ([lhs, rhs], [], store) = operands::cast::<B, 2, 0>(Op::float_matmul, [lhs, rhs], []);
        store.finish::<B>(B::float_matmul(lhs, rhs))
    }

    cast! {
        fn float_cross[lhs, rhs](
            lhs: FloatTensor<Self>,
            rhs: FloatTensor<Self>,
            dim: usize,
        ) -> FloatTensor<Self>;
    }

    // Elementwise arithmetic

    elementwise! {
        fn float_remainder(lhs, rhs);
        fn float_powf(lhs, rhs);
        fn float_atan2(lhs, rhs);
    }

    arithmetic! {
        fn float_add = Add;
        fn float_sub = Sub;
        fn float_mul = Mul;
        fn float_div = Div;
    }

    with_scalar! {
        fn float_add_scalar(lhs, rhs);
        fn float_sub_scalar(lhs, rhs);
        fn float_mul_scalar(lhs, rhs);
        fn float_div_scalar(lhs, rhs);
        fn float_remainder_scalar(lhs, rhs);
        fn float_powi_scalar(lhs, rhs);
        fn float_powi_scalar_impl(lhs, rhs);
        fn float_powf_scalar(tensor, value);
        fn float_powf_scalar_impl(tensor, value);
    }

    fn float_clamp_min(tensor: FloatTensor<Self>, min: Scalar) -> FloatTensor<Self> {
        let (tensor, bounds, store) = scalar::clamped::<B>(Op::float_clamp_min, tensor);
        store.finish::<B>(B::float_clamp_min(tensor, bounds.at_least(min)))
    }

    fn float_clamp_max(tensor: FloatTensor<Self>, max: Scalar) -> FloatTensor<Self> {
        let (tensor, bounds, store) = scalar::clamped::<B>(Op::float_clamp_max, tensor);
        store.finish::<B>(B::float_clamp_max(tensor, bounds.at_most(max)))
    }

    fn float_clamp(tensor: FloatTensor<Self>, min: Scalar, max: Scalar) -> FloatTensor<Self> {
        let (tensor, bounds, store) = scalar::clamped::<B>(Op::float_clamp, tensor);
        let (min, max) = bounds.between(min, max);
        store.finish::<B>(B::float_clamp(tensor, min, max))
    }

    // Elementwise functions

    cast! {
        fn float_neg[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_abs[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_sign[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_round[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_floor[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_ceil[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_trunc[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_recip[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_exp[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_log[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_log1p[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_sqrt[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_powi[lhs](lhs: FloatTensor<Self>, rhs: IntTensor<Self>) -> FloatTensor<Self>;
        fn float_cos[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_sin[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_tan[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_cosh[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_sinh[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_tanh[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_acos[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_acosh[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_asin[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_asinh[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_atan[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_atanh[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_erf[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
    }

    // Layout

    cast! {
        fn float_transpose[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_swap_dims[tensor](
            tensor: FloatTensor<Self>,
            dim1: usize,
            dim2: usize,
        ) -> FloatTensor<Self>;
        fn float_permute[tensor](tensor: FloatTensor<Self>, axes: &[usize]) -> FloatTensor<Self>;
        fn float_flip[tensor](tensor: FloatTensor<Self>, axes: &[usize]) -> FloatTensor<Self>;
        fn float_reshape[tensor](tensor: FloatTensor<Self>, shape: Shape) -> FloatTensor<Self>;
        fn float_expand[tensor](tensor: FloatTensor<Self>, shape: Shape) -> FloatTensor<Self>;
        fn float_repeat_dim[tensor](
            tensor: FloatTensor<Self>,
            dim: usize,
            times: usize,
        ) -> FloatTensor<Self>;
        fn float_unfold[tensor](
            tensor: FloatTensor<Self>,
            dim: usize,
            size: usize,
            step: usize,
        ) -> FloatTensor<Self>;
    }

    fn float_cat(tensors: Vec<FloatTensor<Self>>, dim: usize) -> FloatTensor<Self> {
        let (tensors, store) = operands::cast_all::<B>(Op::float_cat, tensors);
        store.finish::<B>(B::float_cat(tensors, dim))
    }

    // Indexing and selection

    cast! {
        fn float_slice[tensor](tensor: FloatTensor<Self>, slices: &[Slice]) -> FloatTensor<Self>;
        fn float_slice_assign[tensor, value](
            tensor: FloatTensor<Self>,
            slices: &[Slice],
            value: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn float_select[tensor](
            tensor: FloatTensor<Self>,
            dim: usize,
            indices: IntTensor<Self>,
        ) -> FloatTensor<Self>;
        fn float_select_add[tensor, value](
            tensor: FloatTensor<Self>,
            dim: usize,
            indices: IntTensor<Self>,
            value: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn float_gather[tensor](
            dim: usize,
            tensor: FloatTensor<Self>,
            indices: IntTensor<Self>,
        ) -> FloatTensor<Self>;
        fn float_scatter_add[tensor, value](
            dim: usize,
            tensor: FloatTensor<Self>,
            indices: IntTensor<Self>,
            value: FloatTensor<Self>,
        ) -> FloatTensor<Self>;
        fn float_gather_nd[data](
            data: FloatTensor<Self>,
            indices: IntTensor<Self>,
        ) -> FloatTensor<Self>;
        fn float_scatter_nd[data, values](
            data: FloatTensor<Self>,
            indices: IntTensor<Self>,
            values: FloatTensor<Self>,
            reduction: IndexingUpdateOp,
        ) -> FloatTensor<Self>;
        fn float_grid_sample_2d[tensor, grid](
            tensor: FloatTensor<Self>,
            grid: FloatTensor<Self>,
            options: GridSampleOptions,
        ) -> FloatTensor<Self>;
    }

    fn float_mask_where(
        tensor: FloatTensor<Self>,
        mask: BoolTensor<Self>,
        value: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let ([tensor, value], store) =
            operands::elementwise::<B>(Op::float_mask_where, [tensor, value], Some(mask.shape()));
        store.finish::<B>(B::float_mask_where(tensor, mask, value))
    }

    fn float_mask_fill(
        tensor: FloatTensor<Self>,
        mask: BoolTensor<Self>,
        value: Scalar,
    ) -> FloatTensor<Self> {
        let (tensor, value, store) = scalar::filled::<B>(Op::float_mask_fill, tensor, value);
        store.finish::<B>(B::float_mask_fill(tensor, mask, value))
    }

    // Comparison and predicates

    cast_inputs! {
        fn float_equal[lhs, rhs](
            lhs: FloatTensor<Self>,
            rhs: FloatTensor<Self>,
            out_dtype: BoolDType,
        ) -> BoolTensor<Self>;
        fn float_not_equal[lhs, rhs](
            lhs: FloatTensor<Self>,
            rhs: FloatTensor<Self>,
            out_dtype: BoolDType,
        ) -> BoolTensor<Self>;
        fn float_greater[lhs, rhs](
            lhs: FloatTensor<Self>,
            rhs: FloatTensor<Self>,
            out_dtype: BoolDType,
        ) -> BoolTensor<Self>;
        fn float_greater_equal[lhs, rhs](
            lhs: FloatTensor<Self>,
            rhs: FloatTensor<Self>,
            out_dtype: BoolDType,
        ) -> BoolTensor<Self>;
        fn float_lower[lhs, rhs](
            lhs: FloatTensor<Self>,
            rhs: FloatTensor<Self>,
            out_dtype: BoolDType,
        ) -> BoolTensor<Self>;
        fn float_lower_equal[lhs, rhs](
            lhs: FloatTensor<Self>,
            rhs: FloatTensor<Self>,
            out_dtype: BoolDType,
        ) -> BoolTensor<Self>;
        fn float_is_nan[tensor](
            tensor: FloatTensor<Self>,
            out_dtype: BoolDType,
        ) -> BoolTensor<Self>;
        fn float_is_inf[tensor](
            tensor: FloatTensor<Self>,
            out_dtype: BoolDType,
        ) -> BoolTensor<Self>;
        fn float_any[tensor](tensor: FloatTensor<Self>, out_dtype: BoolDType) -> BoolTensor<Self>;
        fn float_any_dim[tensor](
            tensor: FloatTensor<Self>,
            dim: usize,
            out_dtype: BoolDType,
        ) -> BoolTensor<Self>;
        fn float_all[tensor](tensor: FloatTensor<Self>, out_dtype: BoolDType) -> BoolTensor<Self>;
        fn float_all_dim[tensor](
            tensor: FloatTensor<Self>,
            dim: usize,
            out_dtype: BoolDType,
        ) -> BoolTensor<Self>;
    }

    compare_with_scalar! {
        fn float_equal_elem;
        fn float_not_equal_elem;
        fn float_greater_elem;
        fn float_greater_equal_elem;
        fn float_lower_elem;
        fn float_lower_equal_elem;
    }

    // Reductions and scans

    cast! {
        fn float_sum[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_sum_dim[tensor](tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self>;
        fn float_prod[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_prod_dim[tensor](tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self>;
        fn float_mean[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_mean_dim[tensor](tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self>;
        fn float_cumsum[tensor](tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self>;
        fn float_cumprod[tensor](tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self>;
        fn float_cummin[tensor](tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self>;
        fn float_cummax[tensor](tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self>;
        fn float_max[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_max_dim[tensor](tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self>;
        fn float_min[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_min_dim[tensor](tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self>;
        fn float_max_abs[tensor](tensor: FloatTensor<Self>) -> FloatTensor<Self>;
        fn float_max_abs_dim[tensor](tensor: FloatTensor<Self>, dim: usize) -> FloatTensor<Self>;
    }

    // Order statistics

    cast! {
        fn float_topk[tensor](tensor: FloatTensor<Self>, dim: usize, k: usize) -> FloatTensor<Self>;
        fn float_sort[tensor](
            tensor: FloatTensor<Self>,
            dim: usize,
            descending: bool,
        ) -> FloatTensor<Self>;
    }

    cast_inputs! {
        fn float_argmax[tensor](
            tensor: FloatTensor<Self>,
            dim: usize,
            out_dtype: IntDType,
        ) -> IntTensor<Self>;
        fn float_argmin[tensor](
            tensor: FloatTensor<Self>,
            dim: usize,
            out_dtype: IntDType,
        ) -> IntTensor<Self>;
        fn float_argtopk[tensor](
            tensor: FloatTensor<Self>,
            dim: usize,
            k: usize,
            out_dtype: IntDType,
        ) -> IntTensor<Self>;
        fn float_argsort[tensor](
            tensor: FloatTensor<Self>,
            dim: usize,
            descending: bool,
            out_dtype: IntDType,
        ) -> IntTensor<Self>;
        fn float_max_dim_with_indices[tensor](
            tensor: FloatTensor<Self>,
            dim: usize,
            indices_dtype: IntDType,
        ) -> (FloatTensor<Self>, IntTensor<Self>);
        fn float_min_dim_with_indices[tensor](
            tensor: FloatTensor<Self>,
            dim: usize,
            indices_dtype: IntDType,
        ) -> (FloatTensor<Self>, IntTensor<Self>);
        fn float_sort_with_indices[tensor](
            tensor: FloatTensor<Self>,
            dim: usize,
            descending: bool,
            indices_dtype: IntDType,
        ) -> (FloatTensor<Self>, IntTensor<Self>);
    }
}

/// The tensor as it is read: f32 for a half type, where the configuration says so.
pub(super) fn read_back<B: AmpBackend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    if is_half(tensor.dtype()) && policy::reads_as_f32(&B::float_device(&tensor)) {
        // Detached, so that a read is not part of the graph.
        return B::amp_cast(B::float_detach(tensor), FloatDType::F32);
    }
    tensor
}
