use burn_amp_kernels::matmul::{Product, Routine, Strategy, Tile, matmul};
use burn_amp_kernels::{DeviceTensor, FloatType, KernelError};
use rstest::rstest;

use crate::common::*;

/// An operand and the values that its indices have.
struct Operand {
    tensor: DeviceTensor,
    values: Vec<f32>,
}

impl Operand {
    fn new(client: &Client, seed: u64, shape: &[usize], dtype: FloatType, layout: Layout) -> Self {
        let values = random(seed, shape.iter().product());
        let rank = shape.len();
        let tensor = match layout {
            Layout::Contiguous => upload(client, &values, shape, dtype),
            Layout::Transposed => {
                let [rows, columns] = [shape[rank - 2], shape[rank - 1]];
                let mut lying = Vec::with_capacity(values.len());
                for matrix in values.chunks(rows * columns) {
                    for column in 0..columns {
                        lying.extend((0..rows).map(|row| matrix[row * columns + column]));
                    }
                }
                let mut shape = shape.to_vec();
                shape.swap(rank - 2, rank - 1);
                upload(client, &lying, &shape, dtype).transposed()
            }
            Layout::AmidNan => {
                assert_eq!(rank, 2);
                upload_amid_nan(client, &values, [shape[0], shape[1]], dtype)
            }
        };
        Self {
            tensor,
            values: rounded(&values, dtype),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Layout {
    Contiguous,
    Transposed,
    AmidNan,
}

/// The result in f64 of operands rounded to f16, and Σ|a||b| of each value.
fn reference(
    lhs: (&[f32], &[usize]),
    rhs: (&[f32], &[usize]),
    bias: Option<&[f32]>,
    batches: &[usize],
) -> (Vec<f64>, Vec<f64>) {
    let [m, k] = [lhs.1[lhs.1.len() - 2], lhs.1[lhs.1.len() - 1]];
    let n = rhs.1[rhs.1.len() - 1];
    let [left, right] = [lhs.0, rhs.0].map(|values| rounded(values, FloatType::F16));
    let offset = |batch: usize, shape: &[usize]| {
        let mut rest = batch;
        let mut offset = 0;
        let mut stride = 1;
        for dim in (0..batches.len()).rev() {
            let position = rest % batches[dim];
            rest /= batches[dim];
            let size = match (dim + shape.len()).checked_sub(batches.len() + 2) {
                Some(dim) => shape[dim],
                None => 1,
            };
            if size > 1 {
                offset += position * stride;
            }
            stride *= size;
        }
        offset
    };
    let mut results = Vec::new();
    let mut magnitudes = Vec::new();
    for batch in 0..batches.iter().product() {
        let left = &left[offset(batch, lhs.1) * m * k..];
        let right = &right[offset(batch, rhs.1) * k * n..];
        for row in 0..m {
            for column in 0..n {
                let products = (0..k).map(|inner| {
                    f64::from(left[row * k + inner]) * f64::from(right[inner * n + column])
                });
                let bias = bias.map_or(0.0, |bias| f64::from(bias[column]));
                results.push(products.clone().sum::<f64>() + bias);
                magnitudes.push(products.map(f64::abs).sum::<f64>() + bias.abs());
            }
        }
    }
    (results, magnitudes)
}

#[allow(clippy::too_many_arguments)]
fn compare(
    strategy: Strategy,
    shapes: [&[usize]; 2],
    layouts: [Layout; 2],
    dtypes: [FloatType; 2],
    out: FloatType,
    with_bias: bool,
) {
    let Some(client) = client() else { return };
    let lhs = Operand::new(&client, 1, shapes[0], dtypes[0], layouts[0]);
    let rhs = Operand::new(&client, 2, shapes[1], dtypes[1], layouts[1]);
    let n = shapes[1][shapes[1].len() - 1];
    let bias = with_bias.then(|| random(3, n));
    let product = Product {
        lhs: lhs.tensor,
        rhs: rhs.tensor,
        bias: bias
            .as_ref()
            .map(|bias| upload(&client, bias, &[n], FloatType::F32)),
        compute: FloatType::F16,
        out,
    };
    let output = matmul(&client, &product, strategy).unwrap();
    assert_eq!(output.dtype, out);
    let rank = output.shape.len();
    let batches = output.shape[..rank - 2].to_vec();
    let (expected, magnitudes) = reference(
        (&lhs.values, shapes[0]),
        (&rhs.values, shapes[1]),
        bias.as_deref(),
        &batches,
    );
    let actual = download(&client, &output);
    assert_eq!(actual.len(), expected.len());
    let rounding = rounding(&client, strategy, dtypes);
    for index in 0..actual.len() {
        let error = (f64::from(actual[index]) - expected[index]).abs();
        let tolerance =
            (4e-7 + rounding) * magnitudes[index] + 1.01 * stored_error(expected[index], out);
        assert!(
            error <= tolerance,
            "{strategy} {shapes:?} {layouts:?} {dtypes:?} {out:?}: value {index} is {}, not {}",
            actual[index],
            expected[index]
        );
    }
}

/// What rounding both operands to f16 may change, relative to |a||b|. A driver may leave out the
/// rounding of a value that is widened again at once, as newer versions of lavapipe do: then the
/// result is nearer to that of the operands as they were.
fn rounding(client: &Client, strategy: Strategy, dtypes: [FloatType; 2]) -> f64 {
    if strategy != Strategy::Naive || dtypes == [FloatType::F16; 2] {
        return 0.0;
    }
    let between = 1.0 + 2f32.powi(-12);
    let probe = Product {
        lhs: upload(client, &[between], &[1, 1], FloatType::F32),
        rhs: upload(client, &[1.0], &[1, 1], FloatType::F32),
        bias: None,
        compute: FloatType::F16,
        out: FloatType::F32,
    };
    let output = matmul(client, &probe, strategy).unwrap();
    if download(client, &output) == [1.0] {
        return 0.0;
    }
    2.0 * precision(FloatType::F16)
}

/// Half a unit in the last place of what is stored.
fn stored_error(value: f64, dtype: FloatType) -> f64 {
    match dtype {
        FloatType::F32 => 0.0,
        _ => value.abs().max(6.1e-5) * precision(dtype),
    }
}

#[rstest]
#[case(&[1, 1], &[1, 1])]
#[case(&[17, 33], &[33, 65])]
#[case(&[64, 64], &[64, 64])]
#[case(&[1, 128], &[128, 96])]
#[case(&[96, 128], &[128, 1])]
#[case(&[31, 1], &[1, 37])]
#[case(&[3, 2, 5, 7], &[1, 2, 7, 4])]
#[case(&[3, 1, 5, 7], &[2, 7, 4])]
#[case(&[5, 7], &[4, 7, 3])]
fn naive_on_all_shapes_types_and_layouts(
    #[case] lhs: &[usize],
    #[case] rhs: &[usize],
    #[values(Layout::Contiguous, Layout::Transposed)] left: Layout,
    #[values(Layout::Contiguous, Layout::Transposed)] right: Layout,
    #[values(true, false)] with_bias: bool,
) {
    for left_type in HALF_AND_FULL {
        for right_type in HALF_AND_FULL {
            for out in HALF_AND_FULL {
                let dtypes = [left_type, right_type];
                compare(
                    Strategy::Naive,
                    [lhs, rhs],
                    [left, right],
                    dtypes,
                    out,
                    with_bias,
                );
            }
        }
    }
}

#[test]
fn naive_reads_nothing_beside_its_operands() {
    let layouts = [Layout::AmidNan, Layout::AmidNan];
    let dtypes = [FloatType::F32, FloatType::F16];
    compare(
        Strategy::Naive,
        [&[9, 13], &[13, 6]],
        layouts,
        dtypes,
        FloatType::F32,
        true,
    );
}

/// Tiled kernels take seconds to compile there, so that each case is a small product of its own kind.
#[rstest]
#[case(&[17, 33], &[33, 65], [Layout::Contiguous; 2], [FloatType::F32; 2], FloatType::F32, true)]
#[case(&[17, 33], &[33, 65], [Layout::AmidNan; 2], [FloatType::F16, FloatType::F32], FloatType::F16, true)]
#[case(&[3, 8, 16], &[1, 16, 8], [Layout::Contiguous, Layout::Transposed], [FloatType::F16, FloatType::F32], FloatType::F16, false)]
#[case(&[16, 24], &[24, 8], [Layout::Transposed, Layout::Contiguous], [FloatType::F16; 2], FloatType::F32, false)]
#[case(&[1, 1], &[1, 1], [Layout::Contiguous; 2], [FloatType::F32; 2], FloatType::F16, true)]
#[case(&[1, 40], &[40, 24], [Layout::Contiguous; 2], [FloatType::F32, FloatType::F16], FloatType::F32, false)]
#[case(&[9, 16], &[16, 24], [Layout::Contiguous; 2], [FloatType::F16, FloatType::F32], FloatType::F16, true)]
fn tiled_casts_on_load(
    #[case] lhs: &[usize],
    #[case] rhs: &[usize],
    #[case] layouts: [Layout; 2],
    #[case] dtypes: [FloatType; 2],
    #[case] out: FloatType,
    #[case] with_bias: bool,
) {
    let strategy = Strategy::Fused(Routine::Unit);
    compare(strategy, [lhs, rhs], layouts, dtypes, out, with_bias);
}

fn product(client: &Client, lhs: &[usize], rhs: &[usize]) -> Product {
    let operand = |shape: &[usize]| {
        let values = vec![1.0; shape.iter().product()];
        upload(client, &values, shape, FloatType::F32)
    };
    Product {
        lhs: operand(lhs),
        rhs: operand(rhs),
        bias: None,
        compute: FloatType::F16,
        out: FloatType::F32,
    }
}

#[test]
fn a_sum_of_nothing_is_the_bias() {
    let Some(client) = client() else { return };
    for strategy in [
        Strategy::Auto,
        Strategy::Naive,
        Strategy::Fused(Routine::Unit),
    ] {
        let mut product = product(&client, &[2, 0], &[0, 3]);
        let output = matmul(&client, &product, strategy).unwrap();
        assert_eq!(download(&client, &output), [0.0; 6]);
        product.bias = Some(upload(&client, &[1.0, 2.0, 3.0], &[3], FloatType::F32));
        let output = matmul(&client, &product, strategy).unwrap();
        assert_eq!(download(&client, &output), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    }
}

#[test]
fn nothing_times_something_is_nothing() {
    let Some(client) = client() else { return };
    for (lhs, rhs, shape) in [([0, 4], [4, 3], [0, 3]), ([3, 4], [4, 0], [3, 0])] {
        let product = product(&client, &lhs, &rhs);
        let output = matmul(&client, &product, Strategy::Auto).unwrap();
        assert_eq!(output.shape.to_vec(), shape);
    }
}

/// 2048 + 1 is 2049 in the accumulator, 2048 in f16; with a bias of 1 it is 2050.
#[test]
fn rounds_once_after_the_bias() {
    let Some(client) = client() else { return };
    for strategy in [Strategy::Naive, Strategy::Fused(Routine::Unit)] {
        let mut values = vec![1.0; 8];
        values[0] = 2042.0;
        let product = Product {
            lhs: upload(&client, &values, &[1, 8], FloatType::F32),
            rhs: upload(&client, &[1.0; 8], &[8, 1], FloatType::F16),
            bias: Some(upload(&client, &[1.0], &[1], FloatType::F32)),
            compute: FloatType::F16,
            out: FloatType::F16,
        };
        let output = matmul(&client, &product, strategy).unwrap();
        assert_eq!(download(&client, &output), [2050.0], "{strategy}");
        let product = Product {
            bias: None,
            out: FloatType::F32,
            ..product
        };
        let output = matmul(&client, &product, strategy).unwrap();
        assert_eq!(download(&client, &output), [2049.0], "{strategy}");
    }
}

#[test]
fn refuses_what_does_not_fit() {
    let Some(client) = client() else { return };
    let refusal = |product: &Product| matmul(&client, product, Strategy::Auto).unwrap_err();
    assert_eq!(
        refusal(&product(&client, &[2, 3], &[4, 5])).to_string(),
        "the operands of a product: expected [.., m, k] and [.., k, n], got [2, 3] and [4, 5]"
    );
    assert_eq!(
        refusal(&product(&client, &[2, 2, 3], &[3, 3, 5])).to_string(),
        "the operands of a product: expected leading dimensions that broadcast, \
         got [2, 2, 3] and [3, 3, 5]"
    );
    assert!(matches!(
        refusal(&product(&client, &[3], &[3, 5])),
        KernelError::Shape { .. }
    ));

    let fitting = product(&client, &[2, 3], &[3, 5]);
    let wrong = Product {
        compute: FloatType::BF16,
        ..fitting.clone()
    };
    assert_eq!(
        refusal(&wrong),
        KernelError::UnsupportedType(FloatType::BF16)
    );
    let wrong = Product {
        compute: FloatType::F32,
        ..fitting.clone()
    };
    assert!(matches!(refusal(&wrong), KernelError::Type { .. }));
    let bias = upload(&client, &[1.0; 4], &[4], FloatType::F32);
    let wrong = Product {
        bias: Some(bias),
        ..fitting.clone()
    };
    assert_eq!(
        refusal(&wrong).to_string(),
        "the bias of a product: expected [5], got [4]"
    );
    let bias = upload(&client, &[1.0; 5], &[5], FloatType::F16);
    let wrong = Product {
        bias: Some(bias),
        ..fitting
    };
    assert!(matches!(refusal(&wrong), KernelError::Type { .. }));
}

/// Where the device has no tensor cores, a routine that needs them says so before anything is launched.
#[test]
fn a_routine_that_cannot_run_says_why() {
    let Some(client) = client() else { return };
    let product = product(&client, &[16, 16], &[16, 16]);
    let mma = Strategy::Fused(Routine::Simple {
        tile: Tile::Mma,
        multi_rows: false,
    });
    let refused = matmul(&client, &product, mma).unwrap_err();
    assert!(matches!(&refused, KernelError::Matmul { strategy, .. } if strategy == "simple mma"));

    let tma = Strategy::Fused(Routine::SpecializedTma { tile: Tile::Cmma });
    let refused = matmul(&client, &product, tma).unwrap_err();
    assert!(matches!(&refused, KernelError::Matmul { .. }), "{refused}");
}

/// On tensor cores where the device has them, as newer versions of lavapipe do.
#[rstest]
#[case(&[17, 33], &[33, 65], [Layout::Contiguous; 2], [FloatType::F32; 2], FloatType::F32, true)]
#[case(&[17, 33], &[33, 65], [Layout::AmidNan; 2], [FloatType::F16, FloatType::F32], FloatType::F16, true)]
#[case(&[3, 8, 16], &[1, 16, 8], [Layout::Contiguous, Layout::Transposed], [FloatType::F16, FloatType::F32], FloatType::F16, false)]
#[case(&[16, 24], &[24, 8], [Layout::Transposed, Layout::Contiguous], [FloatType::F16; 2], FloatType::F32, false)]
fn cooperative_matrices(
    #[case] lhs: &[usize],
    #[case] rhs: &[usize],
    #[case] layouts: [Layout; 2],
    #[case] dtypes: [FloatType; 2],
    #[case] out: FloatType,
    #[case] with_bias: bool,
) {
    let Some(client) = client() else { return };
    let strategy = Strategy::Fused(Routine::Simple {
        tile: Tile::Cmma,
        multi_rows: false,
    });
    if client.properties().features.matmul.cmma.is_empty() {
        let refused = matmul(&client, &product(&client, lhs, rhs), strategy);
        assert!(matches!(refused, Err(KernelError::Matmul { .. })));
        return;
    }
    compare(strategy, [lhs, rhs], layouts, dtypes, out, with_bias);
}
