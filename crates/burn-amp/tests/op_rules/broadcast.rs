//! Elementwise arithmetic on operands of different types: who decides the type of the result, and
//! how it is stored.

use burn::backend::Flex;
use burn::tensor::DType::{self, BF16, F16, F32, F64};
use burn::tensor::Shape;
use burn_amp::{Amp, Autodiff, Op};

use crate::common::SplitMix64;
use crate::mode::Mode;
use crate::run::{Value, control, differentiate, evaluate, weights};

type Ours = Autodiff<Amp<Flex>>;
type Burns = burn::backend::Autodiff<Amp<Flex>>;

const OPS: [Op; 6] = [
    Op::float_add,
    Op::float_sub,
    Op::float_mul,
    Op::float_div,
    Op::float_remainder,
    Op::float_atan2,
];

/// Shape and type of two operands, and the type of the result.
type Case = ((&'static [usize], DType), (&'static [usize], DType), DType);

const CASES: [Case; 25] = [
    // The operand that has the shape of the result decides, whatever the rank.
    ((&[2, 3, 4], F16), (&[1, 3, 1], F32), F16),
    ((&[2, 3, 4], BF16), (&[1, 3, 1], F32), BF16),
    ((&[2, 3, 4], F32), (&[1, 3, 1], F16), F32),
    ((&[2, 3, 4], F32), (&[1, 3, 1], BF16), F32),
    ((&[2, 3, 4], F16), (&[1, 1, 1], F32), F16),
    ((&[4], F16), (&[1], F32), F16),
    ((&[3, 4], BF16), (&[3, 1], F32), BF16),
    ((&[2, 3, 4], F16), (&[2, 1, 4], F32), F16),
    ((&[2, 2, 3, 2], F16), (&[1, 2, 1, 1], F32), F16),
    // Two full shapes meet in the wider type.
    ((&[2, 3, 4], F16), (&[2, 3, 4], F32), F32),
    ((&[2, 3, 4], BF16), (&[2, 3, 4], F32), F32),
    ((&[4], F16), (&[4], F32), F32),
    ((&[1], F16), (&[1], F32), F32),
    ((&[1, 1], BF16), (&[1, 1], F32), F32),
    // Nobody has the shape of the result.
    ((&[3, 1], F16), (&[1, 4], F32), F32),
    ((&[2, 1, 4], BF16), (&[1, 3, 4], F32), F32),
    // Neither half type holds the other's values.
    ((&[2, 3, 4], F16), (&[2, 3, 4], BF16), F32),
    ((&[2, 3, 4], F16), (&[1, 3, 1], BF16), F32),
    ((&[2, 3, 4], BF16), (&[1, 3, 1], F16), F32),
    // f64 is never lowered.
    ((&[2, 3, 4], F16), (&[1, 3, 1], F64), F64),
    ((&[2, 3, 4], F32), (&[1, 1, 1], F64), F64),
    ((&[2, 3, 4], F64), (&[1, 3, 1], BF16), F64),
    // Empty tensors have a shape, too.
    ((&[0, 3], F16), (&[1, 3], F32), F16),
    ((&[0, 3], F16), (&[0, 3], F32), F32),
    ((&[2, 0, 3], BF16), (&[1, 1, 3], F32), BF16),
];

fn operand(shape: &[usize], dtype: DType, seed: u64) -> Value {
    let mut rng = SplitMix64::new(seed);
    let count = shape.iter().product();
    let values: Vec<f64> = (0..count).map(|_| 0.5 + rng.next_f64()).collect();
    Value::float(&values, shape, dtype)
}

fn apply<B: burn::tensor::backend::Backend>(mode: Mode, op: Op, operands: &[Value]) -> Value {
    mode.run(|| evaluate::<B>(op, operands)).remove(0)
}

fn check(mode: Mode, op: Op, operands: &[Value], result: DType) {
    let widest = match operands.iter().any(|operand| operand.dtype == Some(F64)) {
        true => F64,
        false => F32,
    };
    let control = control::<Flex>(op, operands, widest, result).remove(0);
    for (backend, actual) in [
        ("Amp", apply::<Amp<Flex>>(mode, op, operands)),
        ("ours", apply::<Ours>(mode, op, operands)),
        ("Burn's", apply::<Burns>(mode, op, operands)),
    ] {
        assert!(
            actual.is_same(&control),
            "{op} of {operands:?} in {mode:?} on {backend}: {actual:?}, expected {control:?}"
        );
    }
}

#[test]
fn should_let_the_full_shape_operand_decide_in_both_orders_of_the_operands() {
    for op in OPS {
        for mode in [Mode::Off, Mode::F16, Mode::Bf16] {
            for ((lhs_shape, lhs), (rhs_shape, rhs), result) in CASES {
                let mut operands = [operand(lhs_shape, lhs, 1), operand(rhs_shape, rhs, 2)];
                check(mode, op, &operands, result);
                operands.reverse();
                check(mode, op, &operands, result);
            }
        }
    }
}

#[test]
fn should_compute_and_store_in_f32_in_a_full_precision_scope() {
    for op in OPS.into_iter().chain([Op::float_powf]) {
        for ((lhs_shape, lhs), (rhs_shape, rhs), result) in CASES {
            let operands = [operand(lhs_shape, lhs, 1), operand(rhs_shape, rhs, 2)];
            let result = if result == F64 { F64 } else { F32 };
            check(Mode::FullPrecision, op, &operands, result);
        }
    }
}

#[test]
fn should_give_powers_in_f32_under_mixed_precision_whatever_the_shapes() {
    for ((lhs_shape, lhs), (rhs_shape, rhs), result) in CASES {
        let operands = [operand(lhs_shape, lhs, 1), operand(rhs_shape, rhs, 2)];
        let result = if result == F64 { F64 } else { F32 };
        check(Mode::F16, Op::float_powf, &operands, result);
        check(Mode::Bf16, Op::float_powf, &operands, result);
    }
}

#[test]
fn should_select_by_a_mask_as_arithmetic_does() {
    // The mask of the case has the shape [2, 3, 4].
    const CASES: [Case; 6] = [
        ((&[2, 3, 4], F16), (&[1, 1, 1], F32), F16),
        ((&[2, 3, 4], BF16), (&[1, 3, 1], F32), BF16),
        ((&[2, 3, 4], F32), (&[1, 3, 1], BF16), F32),
        ((&[2, 3, 4], F16), (&[2, 3, 4], F32), F32),
        ((&[2, 3, 4], F16), (&[1, 3, 1], BF16), F32),
        // The mask alone has the shape of the result.
        ((&[1, 3, 4], F16), (&[1, 1, 1], F32), F32),
    ];
    for (lhs, rhs, result) in CASES {
        let mut operands = [operand(lhs.0, lhs.1, 1), operand(rhs.0, rhs.1, 2)];
        check(Mode::F16, Op::float_mask_where, &operands, result);
        operands.reverse();
        check(Mode::F16, Op::float_mask_where, &operands, result);
    }
}

/// An f16 or bf16 tensor [2, 3, 4] and an f32 tensor [1, 1, 4].
fn with_row(dtype: DType, row: [f64; 4]) -> [Value; 2] {
    let full: Vec<f64> = (0..24).map(|index| f64::from(index % 7)).collect();
    [
        Value::float(&full, &[2, 3, 4], dtype),
        Value::float(&row, &[1, 1, 4], F32),
    ]
}

fn check_rows(dtype: DType, row: [f64; 4], expected: [f64; 4]) {
    for reversed in [false, true] {
        let mut operands = with_row(dtype, row);
        if reversed {
            operands.reverse();
        }
        for actual in [
            apply::<Amp<Flex>>(Mode::F16, Op::float_add, &operands),
            apply::<Ours>(Mode::F16, Op::float_add, &operands),
            apply::<Burns>(Mode::F16, Op::float_add, &operands),
        ] {
            assert_eq!(actual.dtype, Some(dtype));
            for (index, value) in actual.values.iter().enumerate() {
                let expected = expected[index % 4];
                assert!(
                    *value == expected || (value.is_nan() && expected.is_nan()),
                    "{dtype:?} + {row:?}: {value} at {index}, expected {expected}"
                );
            }
        }
    }
}

#[test]
fn should_saturate_finite_results_and_keep_infinities_and_nan() {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    check_rows(F16, [-1e9, 1e9, inf, nan], [-65504.0, 65504.0, inf, nan]);
    check_rows(
        F16,
        [-65520.0 - 8.0, 1e38, -inf, nan],
        [-65504.0, 65504.0, -inf, nan],
    );

    let bf16_max = f64::from(half::bf16::MAX);
    let beyond = f64::from(f32::MAX);
    check_rows(
        BF16,
        [-beyond, beyond, inf, nan],
        [-bf16_max, bf16_max, inf, nan],
    );
}

#[test]
fn should_let_the_gradient_through_a_saturating_store() {
    let operands = with_row(F16, [-1e9, 1e9, 0.0, 1.0]);
    // Those of the loss itself, and their sums over the rows.
    let weights = weights(&Shape::new([2, 3, 4]), F32);
    let sums: Vec<f64> = (0..4)
        .map(|column| weights.values.iter().skip(column).step_by(4).sum())
        .collect();
    let expected = [weights, Value::float(&sums, &[1, 1, 4], F32)];
    let check = |backend: &str, gradients: Vec<Option<Value>>| {
        for (gradient, expected) in gradients.into_iter().zip(&expected) {
            let gradient = gradient.unwrap();
            assert!(gradient.is_same(expected), "{backend}: {gradient:?}");
        }
    };
    Mode::F16.run(|| {
        let (_, gradients) = differentiate::<Ours>(Op::float_add, &operands);
        check("ours", gradients);
        let (_, gradients) = differentiate::<Burns>(Op::float_add, &operands);
        check("Burn's", gradients);
    });
}
