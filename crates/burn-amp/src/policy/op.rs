//! The op table: every op of Burn's backend traits and its class. This is the only place where an
//! op is given a rule; delegation, overrides, documentation and tests are derived from it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::OpClass;

/// Builds [`Op`] and its lookups from lists of op names by trait and class.
macro_rules! op_table {
    ($($owner:ident { $($class:ident: [$($op:ident),* $(,)?],)* })*) => {
        /// An operation of Burn's backend traits, named exactly as the trait's method.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u16)]
        pub enum Op { $($($($op,)*)*)* }

        impl Op {
            /// Every op, in the order of the table.
            pub const ALL: &'static [Op] = &[$($($(Op::$op,)*)*)*];

            /// The class of the op under mixed precision, before overrides.
            pub const fn class(self) -> OpClass {
                match self { $($($(Op::$op => OpClass::$class,)*)*)* }
            }

            /// The name of Burn's method, for example `float_matmul`.
            pub const fn name(self) -> &'static str {
                match self { $($($(Op::$op => stringify!($op),)*)*)* }
            }

            /// The Burn trait that declares the method, for example `FloatTensorOps`.
            pub const fn owner(self) -> &'static str {
                match self { $($($(Op::$op)|*)|* => stringify!($owner),)* }
            }
        }
    };
}

// Deviations from PyTorch's lists, and why (the lists are in `docs/op-rules.md`):
// - mean and sqrt are full: loss reductions and norms pass through them, and Burn has no rsqrt;
// - sigmoid is full: in f16 it is exactly 1 from x = 8.4 on, and a loss on probabilities takes its log;
// - gelu is widened: Burn's derivative cubes its input, which is NaN in f16 from |x| = 41 on;
// - average pooling is widened: a window is summed in the input's type, and a global pool of 112 x 112
//   tens gave 2.6 in f16;
// - embedding is lower (after the look-up), so that the first activation is already half.
op_table! {
    FloatTensorOps {
        Lower: [
            float_matmul,
        ],
        Full: [
            float_recip, float_sum, float_sum_dim, float_prod, float_prod_dim, float_mean,
            float_mean_dim, float_cumsum, float_cumprod, float_exp, float_log, float_log1p,
            float_powf, float_powi, float_powi_scalar, float_powi_scalar_impl,
            float_powf_scalar, float_powf_scalar_impl, float_sqrt, float_tan, float_cosh,
            float_sinh, float_acos, float_acosh, float_asin, float_asinh, float_atanh,
        ],
        Promote: [
            float_add, float_sub, float_mul, float_div, float_remainder, float_cross,
            float_scatter_add, float_scatter_nd, float_select_add, float_slice_assign,
            float_mask_where, float_equal, float_not_equal, float_greater,
            float_greater_equal, float_lower, float_lower_equal, float_atan2, float_cat,
            float_grid_sample_2d,
        ],
        Keep: [
            float_repeat_dim, float_add_scalar, float_clamp_min, float_clamp_max,
            float_clamp, float_sub_scalar, float_mul_scalar, float_div_scalar,
            float_remainder_scalar, float_neg, float_transpose, float_swap_dims,
            float_permute, float_flip, float_reshape, float_gather, float_gather_nd,
            float_select, float_slice, float_mask_fill, float_equal_elem,
            float_not_equal_elem, float_greater_elem, float_greater_equal_elem,
            float_lower_elem, float_lower_equal_elem, float_cummin, float_cummax, float_abs,
            float_cos, float_sin, float_tanh, float_atan, float_round, float_floor,
            float_ceil, float_trunc, float_erf, float_argmax, float_argtopk, float_topk,
            float_argmin, float_max, float_max_dim, float_max_dim_with_indices, float_min,
            float_min_dim, float_min_dim_with_indices, float_max_abs, float_max_abs_dim,
            float_any, float_any_dim, float_all, float_all_dim, float_sign, float_expand,
            float_sort, float_sort_with_indices, float_argsort, float_unfold, float_is_nan,
            float_is_inf,
        ],
        Exempt: [
            float_from_data, float_random, float_zeros, float_ones, float_full,
            float_into_data, float_device, float_to_device, float_into_int, float_empty,
            float_detach, float_set_require_grad, float_is_require_grad, float_cast,
        ],
    }
    ActivationOps {
        Lower: [
            prelu,
        ],
        Full: [
            gelu_backward, sigmoid, log_sigmoid, softmax, log_softmax, softmin,
            log_sigmoid_backward,
        ],
        Widen: [
            gelu, hard_sigmoid,
        ],
        Promote: [
            relu_backward, sigmoid_backward,
        ],
        Keep: [
            leaky_relu, relu,
        ],
    }
    ModuleOps {
        Lower: [
            embedding, linear, linear_x_backward, linear_weight_backward, conv1d,
            conv1d_x_backward, conv1d_weight_backward, conv2d, conv2d_x_backward,
            conv2d_weight_backward, conv3d, conv3d_x_backward, conv3d_weight_backward,
            conv_transpose1d, conv_transpose1d_x_backward, conv_transpose1d_weight_backward,
            conv_transpose2d, conv_transpose2d_x_backward, conv_transpose2d_weight_backward,
            conv_transpose3d, conv_transpose3d_x_backward, conv_transpose3d_weight_backward,
            attention,
        ],
        Full: [
            embedding_backward, linear_bias_backward, conv1d_bias_backward,
            conv2d_bias_backward, conv3d_bias_backward, conv_transpose1d_bias_backward,
            conv_transpose2d_bias_backward, conv_transpose3d_bias_backward, interpolate,
            interpolate_backward, layer_norm, ctc_loss, ctc_loss_backward, rfft, irfft,
        ],
        Widen: [
            deform_conv2d, deform_conv2d_backward, avg_pool1d, avg_pool2d,
            adaptive_avg_pool1d, adaptive_avg_pool2d,
        ],
        Promote: [
            avg_pool1d_backward, avg_pool2d_backward, adaptive_avg_pool2d_backward,
            adaptive_avg_pool1d_backward, max_pool1d_with_indices_backward,
            max_pool2d_with_indices_backward,
        ],
        Keep: [
            unfold4d, max_pool1d, max_pool1d_with_indices, max_pool2d, max_pool2d_with_indices,
        ],
        Exempt: [
            has_ctc_loss_backward,
        ],
    }
    IntTensorOps {
        Exempt: [
            int_empty, int_into_data, int_from_data, int_device, int_to_device, int_reshape,
            int_slice, int_slice_assign, int_into_float, int_mask_where, int_mask_fill,
            int_gather, int_scatter_add, int_scatter_nd, int_gather_nd, int_select,
            int_select_add, int_repeat_dim, int_cat, int_equal, int_not_equal,
            int_equal_elem, int_not_equal_elem, int_greater, int_greater_elem,
            int_greater_equal, int_greater_equal_elem, int_lower, int_lower_elem,
            int_lower_equal, int_lower_equal_elem, int_add, int_add_scalar, int_powi,
            int_powi_scalar, int_powi_scalar_impl, int_clamp_min, int_clamp_max, int_clamp,
            int_sub, int_sub_scalar, int_mul, int_mul_scalar, int_div, int_div_scalar,
            int_remainder, int_remainder_scalar, int_matmul, int_neg, int_zeros, int_ones,
            int_full, int_sum, int_sum_dim, int_prod, int_prod_dim, int_mean, int_mean_dim,
            int_cumsum, int_cumprod, int_cummin, int_cummax, int_argmax, int_argtopk,
            int_topk, int_argmin, int_max, int_max_dim, int_max_dim_with_indices,
            int_max_abs, int_max_abs_dim, int_min, int_min_dim, int_min_dim_with_indices,
            int_abs, int_transpose, int_swap_dims, int_permute, int_flip, int_random,
            int_arange_step, int_arange, int_any, int_any_dim, int_all, int_all_dim,
            int_sign, int_expand, int_sort, int_sort_with_indices, int_argsort, bitwise_and,
            bitwise_and_scalar, bitwise_or, bitwise_or_scalar, bitwise_xor,
            bitwise_xor_scalar, bitwise_not, bitwise_left_shift, bitwise_left_shift_scalar,
            bitwise_right_shift, bitwise_right_shift_scalar, int_cast, int_unfold,
        ],
    }
    BoolTensorOps {
        Exempt: [
            bool_empty, bool_zeros, bool_ones, bool_into_data, bool_from_data,
            bool_into_int, bool_into_float, bool_device, bool_to_device, bool_reshape,
            bool_slice, bool_slice_assign, bool_mask_where, bool_mask_fill, bool_gather,
            bool_scatter_or, bool_select, bool_select_or, bool_repeat_dim, bool_cat,
            bool_equal, bool_not_equal, bool_equal_elem, bool_not_equal_elem, bool_not,
            bool_and, bool_or, bool_xor, bool_transpose, bool_swap_dims, bool_permute,
            bool_flip, bool_any, bool_any_dim, bool_all, bool_all_dim, bool_argwhere,
            bool_expand, bool_unfold,
        ],
    }
    QTensorOps {
        Lower: [
            q_matmul,
        ],
        Full: [
            quantize, quantize_dynamic,
        ],
        Exempt: [
            q_from_data, dequantize, q_device, q_to_device, q_reshape, q_into_data,
            q_detach, q_set_require_grad, q_is_require_grad, q_expand, q_transpose,
            q_swap_dims, q_permute, q_flip, q_select, q_slice, q_gather, q_repeat_dim,
            q_add, q_add_scalar, q_clamp_min, q_clamp_max, q_clamp, q_sub, q_sub_scalar,
            q_mul, q_mul_scalar, q_div, q_div_scalar, q_neg, q_recip, q_sum, q_sum_dim,
            q_prod, q_prod_dim, q_mean, q_mean_dim, q_cumsum, q_cumprod, q_cummin, q_cummax,
            q_exp, q_log, q_log1p, q_powf, q_powi, q_powi_scalar, q_powf_scalar, q_sqrt,
            q_abs, q_cos, q_sin, q_tan, q_cosh, q_sinh, q_tanh, q_erf, q_cat, q_argmax,
            q_argtopk, q_topk, q_argmin, q_max, q_max_dim, q_max_dim_with_indices, q_min,
            q_min_dim, q_min_dim_with_indices, q_max_abs, q_max_abs_dim, q_any, q_any_dim,
            q_all, q_all_dim, q_sort, q_sort_with_indices, q_argsort,
        ],
    }
    TransactionOps {
        Exempt: [
            tr_execute,
        ],
    }
}

impl Op {
    /// How many ops there are.
    pub const COUNT: usize = Op::ALL.len();

    /// Finds the op called `name`, with or without the `float_` prefix: `matmul` is `float_matmul`.
    ///
    /// # Errors
    ///
    /// [`UnknownOp`] with the nearest names.
    pub fn find(name: &str) -> Result<Op, UnknownOp> {
        let exact = |wanted: &str| Op::ALL.iter().copied().find(|op| op.name() == wanted);

        exact(name)
            .or_else(|| exact(&format!("float_{name}")))
            .ok_or_else(|| UnknownOp::new(name))
    }

    fn short_name(self) -> &'static str {
        self.name().strip_prefix("float_").unwrap_or(self.name())
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Op {
    type Err = UnknownOp;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Op::find(name)
    }
}

impl Serialize for Op {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Op {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Op::find(&name).map_err(serde::de::Error::custom)
    }
}

/// The name is not an op of Burn's backend traits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown op `{name}`, nearest names: {}", nearest.join(", "))]
pub struct UnknownOp {
    /// The name that was given.
    pub name: String,
    /// Up to three names that resemble it, best first.
    pub nearest: Vec<&'static str>,
}

impl UnknownOp {
    const SUGGESTIONS: usize = 3;

    fn new(name: &str) -> Self {
        let similarity = |op: &Op| {
            f64::max(
                strsim::jaro_winkler(name, op.name()),
                strsim::jaro_winkler(name, op.short_name()),
            )
        };
        let mut ranked: Vec<(f64, Op)> = Op::ALL
            .iter()
            .filter(|op| op.class() != OpClass::Exempt)
            .map(|op| (similarity(op), *op))
            .collect();
        ranked.sort_by(|a, b| b.0.total_cmp(&a.0));

        Self {
            name: name.to_owned(),
            nearest: ranked
                .iter()
                .take(Self::SUGGESTIONS)
                .map(|(_, op)| op.name())
                .collect(),
        }
    }
}
