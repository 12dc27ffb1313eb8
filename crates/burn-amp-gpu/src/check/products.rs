//! Matrix products by every routine that the device offers.

use anyhow::Result;
use burn_amp_kernels::matmul::{Product, Routine, Strategy, Tile, matmul};
use burn_amp_kernels::{DeviceTensor, FloatType};

use super::{A_CASE, A_TUNED_CASE, Checks, name};
use crate::device::Gpu;
use crate::matmul::{fused_routines, routines_after_cast};
use crate::reference::{self, Operands, random, rounded, stored_error, worst};

/// One product.
#[derive(Debug, Clone, Copy)]
struct Case {
    lhs: &'static [usize],
    rhs: &'static [usize],
    /// Whether an operand lies in memory with its last two dimensions exchanged.
    transposed: [bool; 2],
    /// Whether an operand is f32; else it is in the compute type.
    full: [bool; 2],
    /// Whether the result is f32.
    full_out: bool,
    bias: bool,
}

/// A linear layer: half activations, f32 weights, a bias. Everything about it is odd.
const ODD: Case = Case {
    lhs: &[17, 33],
    rhs: &[33, 65],
    transposed: [false, false],
    full: [false, true],
    full_out: false,
    bias: true,
};

/// The same with lengths that vectors and tiles divide.
const EVEN: Case = Case {
    lhs: &[128, 256],
    rhs: &[256, 192],
    ..ODD
};

/// Both gradients of a layer, batches, vectors, a sum of one term, and other types.
const MORE: [Case; 10] = [
    // The gradient of the weights.
    Case {
        lhs: &[96, 256],
        rhs: &[256, 128],
        transposed: [true, false],
        full: [false, false],
        full_out: true,
        bias: false,
    },
    // The gradient of the activations.
    Case {
        lhs: &[128, 192],
        rhs: &[192, 256],
        transposed: [false, true],
        bias: false,
        ..ODD
    },
    // Scores and values of an attention.
    Case {
        lhs: &[2, 3, 40, 16],
        rhs: &[2, 3, 16, 40],
        transposed: [false, true],
        full: [false, false],
        full_out: false,
        bias: false,
    },
    Case {
        lhs: &[3, 2, 9, 20],
        rhs: &[3, 1, 20, 11],
        transposed: [false, true],
        full: [true, true],
        full_out: true,
        bias: false,
    },
    Case {
        lhs: &[1, 768],
        rhs: &[768, 100],
        ..ODD
    },
    Case {
        lhs: &[40, 64],
        rhs: &[64, 1],
        ..ODD
    },
    Case {
        lhs: &[30, 1],
        rhs: &[1, 50],
        ..ODD
    },
    Case {
        lhs: &[1, 1],
        rhs: &[1, 1],
        ..ODD
    },
    Case {
        transposed: [true, true],
        full: [true, true],
        full_out: true,
        ..ODD
    },
    Case {
        full: [true, false],
        ..ODD
    },
];

pub(super) fn run(checks: &mut Checks<'_>) -> Result<()> {
    let every = [ODD, EVEN].into_iter().chain(MORE);
    let simple = |tile| {
        Strategy::Fused(Routine::Simple {
            tile,
            multi_rows: true,
        })
    };
    for compute in checks.halves.clone() {
        for case in every.clone() {
            compare(checks, Strategy::Naive, case, compute)?;
        }
    }
    if checks.quick {
        // A tiled kernel takes long to compile where there is no GPU.
        if let Some(compute) = checks.halves.last().copied() {
            compare(checks, Strategy::Fused(Routine::Unit), ODD, compute)?;
            compare(checks, simple(Tile::Cmma), ODD, compute)?;
        }
        return Ok(());
    }
    let halves = checks.halves.clone();
    // By width: a case for every routine, then every case for those that are always there.
    for case in [EVEN, ODD] {
        for compute in &halves {
            for routine in fused_routines() {
                compare(checks, Strategy::Fused(routine), case, *compute)?;
            }
            for routine in routines_after_cast() {
                compare(checks, Strategy::CastThen(routine), case, *compute)?;
            }
            compare(checks, Strategy::Auto, case, *compute)?;
        }
    }
    for case in MORE {
        for compute in &halves {
            for strategy in [simple(Tile::Mma), simple(Tile::Cmma)] {
                compare(checks, strategy, case, *compute)?;
            }
        }
    }
    for case in MORE {
        for compute in &halves {
            compare(checks, Strategy::Fused(Routine::Unit), case, *compute)?;
        }
    }
    // Each is a kind of product of its own, for which all routines are timed.
    for case in MORE.into_iter().take(3) {
        for compute in &halves {
            compare(checks, Strategy::Auto, case, *compute)?;
        }
    }
    Ok(())
}

fn compare(
    checks: &mut Checks<'_>,
    strategy: Strategy,
    case: Case,
    compute: FloatType,
) -> Result<()> {
    let order = |transposed: bool| if transposed { " transposed" } else { "" };
    let dtype = |full: bool| if full { "f32" } else { name(compute) };
    let text = format!(
        "{} {:?}{} × {} {:?}{} in {} to {}{}",
        dtype(case.full[0]),
        case.lhs,
        order(case.transposed[0]),
        dtype(case.full[1]),
        case.rhs,
        order(case.transposed[1]),
        name(compute),
        dtype(case.full_out),
        if case.bias { " with bias" } else { "" },
    );
    let needed = match strategy {
        Strategy::Auto => A_TUNED_CASE,
        _ => A_CASE,
    };
    checks.long_case(&strategy.to_string(), text, needed, |gpu| {
        error_of(gpu, strategy, case, compute)
    })
}

fn error_of(gpu: &Gpu, strategy: Strategy, case: Case, compute: FloatType) -> Result<f64> {
    let dtype = |full: bool| if full { FloatType::F32 } else { compute };
    let out = dtype(case.full_out);
    let operand = |side: usize, shape: &[usize]| {
        let values = random(side as u64 + 1, shape.iter().product());
        let tensor = upload(
            gpu,
            &values,
            shape,
            dtype(case.full[side]),
            case.transposed[side],
        );
        // What is not in the compute type yet is rounded on the way.
        (tensor, rounded(&values, compute))
    };
    let (lhs, left) = operand(0, case.lhs);
    let (rhs, right) = operand(1, case.rhs);
    let columns = case.rhs[case.rhs.len() - 1];
    let bias = case.bias.then(|| random(3, columns));
    let product = Product {
        lhs,
        rhs,
        bias: bias
            .as_ref()
            .map(|bias| gpu.upload(bias, &[columns], FloatType::F32)),
        compute,
        out,
    };
    let output = matmul(&gpu.client, &product, strategy)?;
    let actual = gpu.download(&output)?;
    let (expected, magnitudes) = reference::matmul(&Operands {
        lhs: (&left, case.lhs),
        rhs: (&right, case.rhs),
        bias: bias.as_deref(),
    });
    Ok(worst(&actual, &expected, |index| {
        // Sums in f32, in any order; then one rounding.
        1e-6 * magnitudes[index] + 1.01 * stored_error(expected[index], out) + 1e-30
    }))
}

fn upload(
    gpu: &Gpu,
    values: &[f32],
    shape: &[usize],
    dtype: FloatType,
    transposed: bool,
) -> DeviceTensor {
    if !transposed {
        return gpu.upload(values, shape, dtype);
    }
    let rank = shape.len();
    let [rows, columns] = [shape[rank - 2], shape[rank - 1]];
    let mut lying = Vec::with_capacity(values.len());
    for matrix in values.chunks(rows * columns) {
        for column in 0..columns {
            lying.extend((0..rows).map(|row| matrix[row * columns + column]));
        }
    }
    let mut shape = shape.to_vec();
    shape.swap(rank - 2, rank - 1);
    gpu.upload(&lying, &shape, dtype).transposed()
}
