//! Scalars beside half tensors: applied in f32, or as the nearest value that keeps their promise.

use burn::backend::Flex;
use burn::tensor::activation::{hard_sigmoid, leaky_relu};
use burn::tensor::backend::Backend;
use burn::tensor::{Bool, DType, Tensor};
use burn_amp::{Amp, Autodiff};

use crate::common;
use crate::mode::Mode;

/// Runs a check on every backend, in f16 and bf16 scopes.
macro_rules! in_every_order {
    ($check:ident) => {
        for mode in [Mode::F16, Mode::Bf16] {
            mode.run($check::<Amp<Flex>>);
            mode.run($check::<Autodiff<Amp<Flex>>>);
            mode.run($check::<burn::backend::Autodiff<Amp<Flex>>>);
        }
    };
}

const INF: f64 = f64::INFINITY;
/// The smallest value of f16 above zero.
const TINY: f64 = 5.960464477539063e-8;

fn tensor<B: Backend>(values: &[f64], dtype: DType) -> Tensor<B, 1> {
    common::tensor(values, [values.len()], dtype, &Default::default())
}

fn f16<B: Backend>(values: &[f64]) -> Tensor<B, 1> {
    tensor(values, DType::F16)
}

fn bf16<B: Backend>(values: &[f64]) -> Tensor<B, 1> {
    tensor(values, DType::BF16)
}

/// Compares a half result with the exact values, rounded to its type.
fn check<B: Backend>(subject: &str, actual: Tensor<B, 1>, dtype: DType, exact: &[f64]) {
    assert_eq!(actual.dtype(), dtype, "{subject}");
    let expected = common::values(tensor::<Flex>(exact, dtype));
    let actual = common::values(actual);
    for (actual, expected) in actual.iter().zip(&expected) {
        assert!(
            actual == expected || (actual.is_nan() && expected.is_nan()),
            "{subject} on {}: {actual}, expected {expected}",
            B::name(&Default::default())
        );
    }
    assert_eq!(actual.len(), expected.len());
}

fn check_mask<B: Backend>(subject: &str, actual: Tensor<B, 1, Bool>, expected: &[bool]) {
    let actual: Vec<bool> = actual.into_data().iter().collect();
    assert_eq!(actual, expected, "{subject}");
}

fn arithmetic<B: Backend>() {
    let f16_of = |subject, actual, exact: &[f64]| check::<B>(subject, actual, DType::F16, exact);

    f16_of("x + 1e-8", f16(&[1.0, 0.0]) + 1e-8, &[1.0, 0.0]);
    f16_of(
        "x * 1e5",
        f16(&[0.001, 1.0, INF]) * 1e5,
        &[f64::from(half::f16::from_f64(0.001)) * 1e5, 65504.0, INF],
    );
    f16_of(
        "x * 1e-8",
        f16(&[60000.0, 1.0]) * 1e-8,
        &[60000.0 * 1e-8, 0.0],
    );
    f16_of(
        "x / 1e-8",
        f16(&[1e-4, 0.0, 1.0, -1.0]) / 1e-8,
        &[
            f64::from(half::f16::from_f64(1e-4)) / 1e-8,
            0.0,
            // The scalar is within range, so the overflow is the program's own and stays visible.
            INF,
            -INF,
        ],
    );
    f16_of("x / 1e5", f16(&[1.0, 60000.0]) / 1e5, &[1e-5, 0.6]);
    f16_of(
        "x - 1e5",
        f16(&[1000.0, 60000.0]) - 1e5,
        &[-65504.0, -40000.0],
    );
    f16_of("x % 1e5", f16(&[60000.0]) % 1e5, &[60000.0]);

    // 1.003 is no bf16, and 1 + 2^-7 is the next one after 1.
    let x = bf16::<B>(&[1000.0]);
    check("x * 1.003", x * 1.003, DType::BF16, &[1003.0]);
}

#[test]
fn should_apply_scalars_that_the_type_cannot_hold_in_f32() {
    in_every_order!(arithmetic);
}

fn comparisons<B: Backend>() {
    let x = || f16::<B>(&[0.0, TINY, 65504.0, INF, f64::NAN]);

    check_mask(
        "> 1e-8",
        x().greater_elem(1e-8),
        &[false, true, true, true, false],
    );
    check_mask(
        ">= 1e-8",
        x().greater_equal_elem(1e-8),
        &[false, true, true, true, false],
    );
    check_mask(
        "< 1e-8",
        x().lower_elem(1e-8),
        &[true, false, false, false, false],
    );
    check_mask(
        "<= 1e-8",
        x().lower_equal_elem(1e-8),
        &[true, false, false, false, false],
    );
    check_mask("== 1e-8", x().equal_elem(1e-8), &[false; 5]);
    check_mask("!= 1e-8", x().not_equal_elem(1e-8), &[true; 5]);

    check_mask(
        "> 1e5",
        x().greater_elem(1e5),
        &[false, false, false, true, false],
    );
    check_mask(
        ">= 1e5",
        x().greater_equal_elem(1e5),
        &[false, false, false, true, false],
    );
    check_mask(
        "< 1e5",
        x().lower_elem(1e5),
        &[true, true, true, false, false],
    );
    check_mask("== 1e5", x().equal_elem(1e5), &[false; 5]);

    // Both are 1 in bf16.
    let x = || bf16::<B>(&[1.0]);
    check_mask("> 1.001", x().greater_elem(1.001), &[false]);
    check_mask("> 0.999", x().greater_elem(0.999), &[true]);
    check_mask("== 1.001", x().equal_elem(1.001), &[false]);
}

#[test]
fn should_compare_with_the_scalar_itself_and_not_with_its_rounding() {
    in_every_order!(comparisons);
}

fn clamps<B: Backend>() {
    let f16_of = |subject, actual, exact: &[f64]| check::<B>(subject, actual, DType::F16, exact);

    f16_of(
        "at least 1e-8",
        f16(&[0.0, -1.0, 1.0]).clamp_min(1e-8),
        &[TINY, TINY, 1.0],
    );
    f16_of(
        "at most 1e5",
        f16(&[INF, 65504.0, -INF]).clamp_max(1e5),
        &[65504.0, 65504.0, -INF],
    );
    f16_of(
        "at most -1e-8",
        f16(&[0.0, 1.0]).clamp_max(-1e-8),
        &[-TINY, -TINY],
    );
    f16_of(
        "at least -1e5",
        f16(&[-INF, 1.0]).clamp_min(-1e5),
        &[-65504.0, 1.0],
    );
    f16_of(
        "between",
        f16(&[0.0, INF, 2.0]).clamp(1e-8, 1e5),
        &[TINY, 65504.0, 2.0],
    );
    f16_of(
        "at most infinity",
        f16(&[INF, 1.0]).clamp_max(INF),
        &[INF, 1.0],
    );
    f16_of(
        "exact bounds",
        f16(&[-3.0, 3.0]).clamp(-0.5, 0.5),
        &[-0.5, 0.5],
    );

    // The next bf16 inside the bounds, not the nearest.
    let inside = bf16::<B>(&[1.0, 2.0]).clamp_min(1.001);
    check("at least 1.001", inside, DType::BF16, &[1.0078125, 2.0]);
    let inside = bf16::<B>(&[1.0, 0.5]).clamp_max(0.999);
    check("at most 0.999", inside, DType::BF16, &[0.99609375, 0.5]);
}

#[test]
fn should_keep_the_promise_of_bounds_that_the_type_cannot_hold() {
    // Burn's autodiff composes a clamp of a comparison and a fill.
    for mode in [Mode::F16, Mode::Bf16] {
        mode.run(clamps::<Amp<Flex>>);
        mode.run(clamps::<Autodiff<Amp<Flex>>>);
    }
}

fn fills<B: Backend>() {
    let filled = |value: f64| {
        let x = f16::<B>(&[1.0, 2.0]);
        let mask = x.clone().equal_elem(1.0);
        x.mask_fill(mask, value)
    };
    for (value, expected) in [
        (1e9, 65504.0),
        (-1e9, -65504.0),
        (INF, INF),
        (-INF, -INF),
        (f64::NAN, f64::NAN),
        (0.1, 0.1),
    ] {
        check("fill", filled(value), DType::F16, &[expected, 2.0]);
    }
    let x = bf16::<B>(&[1.0]);
    let mask = x.clone().equal_elem(1.0);
    check("fill", x.mask_fill(mask, -1e9), DType::BF16, &[-1e9]);
}

#[test]
fn should_fill_with_a_finite_value_where_a_finite_value_was_given() {
    in_every_order!(fills);
}

fn slopes<B: Backend>() {
    // f16 has 1.0014e-5 and 1.0065e-6 for these slopes.
    let x = f16::<B>(&[-60000.0, 3.0]);
    check("slope 1e-5", leaky_relu(x, 1e-5), DType::F16, &[-0.6, 3.0]);
    let x = f16::<B>(&[-60000.0, 3.0]);
    check(
        "slope 1e-8",
        leaky_relu(x, 1e-8),
        DType::F16,
        &[-60000.0 * 1e-8, 3.0],
    );

    let x = f16::<B>(&[1.0, -1.0, 1000.0]);
    check(
        "alpha 1e-8",
        hard_sigmoid(x, 1e-8, 0.3),
        DType::F16,
        &[0.3, 0.3, 0.30001],
    );
    let x = f16::<B>(&[1e-6, -1e-6]);
    let small = f64::from(half::f16::from_f64(1e-6));
    let expected = [0.3 + 1e5 * small, 0.3 - 1e5 * small];
    check(
        "alpha 1e5",
        hard_sigmoid(x, 1e5, 0.3),
        DType::F16,
        &expected,
    );
}

#[test]
fn should_apply_slopes_of_activations_in_f32() {
    in_every_order!(slopes);
}
