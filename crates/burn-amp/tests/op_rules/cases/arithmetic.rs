//! Elementwise ops and matrix products.

use super::*;

cases! {
    float {
        float_matmul(a: normal([2, 3, 4]), b: normal([2, 4, 5])) => B::float_matmul(a, b);
        float_cross(a: normal([2, 3]), b: normal([2, 3])) => B::float_cross(a, b, 1);

        float_add(a: normal([2, 3, 4]), b: normal([2, 3, 4])) => B::float_add(a, b);
        float_sub(a: normal([2, 3, 4]), b: normal([2, 3, 4])) => B::float_sub(a, b);
        float_mul(a: normal([2, 3, 4]), b: normal([2, 3, 4])) => B::float_mul(a, b);
        float_div(a: normal([2, 3, 4]), b: positive([2, 3, 4])) => B::float_div(a, b);
        float_remainder(a: normal([2, 3, 4]), b: positive([2, 3, 4])) => B::float_remainder(a, b);
        float_powf(a: positive([2, 3, 4]), b: normal([2, 3, 4])) => B::float_powf(a, b);
        float_atan2(a: normal([2, 3, 4]), b: positive([2, 3, 4])) => B::float_atan2(a, b);

        float_add_scalar(x: normal([2, 3])) => B::float_add_scalar(x, 0.1.into());
        float_sub_scalar(x: normal([2, 3])) => B::float_sub_scalar(x, 0.1.into());
        float_mul_scalar(x: normal([2, 3])) => B::float_mul_scalar(x, 0.3.into());
        float_div_scalar(x: normal([2, 3])) => B::float_div_scalar(x, 0.3.into());
        float_remainder_scalar(x: normal([2, 3])) => B::float_remainder_scalar(x, 0.3.into());
        float_clamp_min(x: normal([4, 5])) => B::float_clamp_min(x, (-0.5).into());
        float_clamp_max(x: normal([4, 5])) => B::float_clamp_max(x, 0.5.into());
        float_clamp(x: normal([4, 5])) => B::float_clamp(x, (-0.5).into(), 0.25.into());
        float_powi(x: normal([2, 3])) => {
            B::float_powi(x, indices::<B, 2>(&[2, 3, 1, 0, 2, 3], [2, 3]))
        };
        float_powi_scalar(x: normal([2, 3])) => B::float_powi_scalar(x, 3.into());
        float_powi_scalar_impl(x: normal([2, 3])) => B::float_powi_scalar_impl(x, 3.into());
        float_powf_scalar(x: positive([2, 3])) => B::float_powf_scalar(x, 0.3.into());
        float_powf_scalar_impl(x: positive([2, 3])) => B::float_powf_scalar_impl(x, 0.3.into());

        float_neg(x: normal([2, 3])) => B::float_neg(x);
        float_abs(x: normal([2, 3])) => B::float_abs(x);
        float_sign(x: normal([2, 3])) => B::float_sign(x);
        float_round(x: normal([2, 3])) => B::float_round(x);
        float_floor(x: normal([2, 3])) => B::float_floor(x);
        float_ceil(x: normal([2, 3])) => B::float_ceil(x);
        float_trunc(x: normal([2, 3])) => B::float_trunc(x);
        float_recip(x: positive([2, 3])) => B::float_recip(x);
        float_exp(x: normal([2, 3])) => B::float_exp(x);
        float_log(x: positive([2, 3])) => B::float_log(x);
        float_log1p(x: positive([2, 3])) => B::float_log1p(x);
        float_sqrt(x: positive([2, 3])) => B::float_sqrt(x);
        float_cos(x: normal([2, 3])) => B::float_cos(x);
        float_sin(x: normal([2, 3])) => B::float_sin(x);
        float_tan(x: unit([2, 3])) => B::float_tan(x);
        float_cosh(x: normal([2, 3])) => B::float_cosh(x);
        float_sinh(x: normal([2, 3])) => B::float_sinh(x);
        float_tanh(x: normal([2, 3])) => B::float_tanh(x);
        float_acos(x: unit([2, 3])) => B::float_acos(x);
        float_acosh(x: above_one([2, 3])) => B::float_acosh(x);
        float_asin(x: unit([2, 3])) => B::float_asin(x);
        float_asinh(x: normal([2, 3])) => B::float_asinh(x);
        float_atan(x: normal([2, 3])) => B::float_atan(x);
        float_atanh(x: unit([2, 3])) => B::float_atanh(x);
        float_erf(x: normal([2, 3])) => B::float_erf(x);
    }
    bool {
        float_equal(a: normal([2, 3]), b: normal([2, 3])) => B::float_equal(a, b, bools::<B>());
        float_not_equal(a: normal([2, 3]), b: normal([2, 3])) => {
            B::float_not_equal(a, b, bools::<B>())
        };
        float_greater(a: normal([2, 3]), b: normal([2, 3])) => B::float_greater(a, b, bools::<B>());
        float_greater_equal(a: normal([2, 3]), b: normal([2, 3])) => {
            B::float_greater_equal(a, b, bools::<B>())
        };
        float_lower(a: normal([2, 3]), b: normal([2, 3])) => B::float_lower(a, b, bools::<B>());
        float_lower_equal(a: normal([2, 3]), b: normal([2, 3])) => {
            B::float_lower_equal(a, b, bools::<B>())
        };
        float_equal_elem(x: normal([4, 5])) => B::float_equal_elem(x, 0.1.into(), bools::<B>());
        float_not_equal_elem(x: normal([4, 5])) => {
            B::float_not_equal_elem(x, 0.1.into(), bools::<B>())
        };
        float_greater_elem(x: normal([4, 5])) => B::float_greater_elem(x, 0.1.into(), bools::<B>());
        float_greater_equal_elem(x: normal([4, 5])) => {
            B::float_greater_equal_elem(x, 0.1.into(), bools::<B>())
        };
        float_lower_elem(x: normal([4, 5])) => B::float_lower_elem(x, 0.1.into(), bools::<B>());
        float_lower_equal_elem(x: normal([4, 5])) => {
            B::float_lower_equal_elem(x, 0.1.into(), bools::<B>())
        };
        float_is_nan(x: normal([2, 3])) => B::float_is_nan(x, bools::<B>());
        float_is_inf(x: normal([2, 3])) => B::float_is_inf(x, bools::<B>());
    }
}
