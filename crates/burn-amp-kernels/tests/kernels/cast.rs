use burn_amp_kernels::{DeviceTensor, FloatType, KernelError, cast};
use half::f16;

use crate::common::*;

#[test]
fn rounds_to_nearest_even_and_overflows_to_infinity() {
    let Some(client) = client() else { return };
    let mut values = random(1, 1001);
    values.extend([
        0.0, -0.0, 1e-8, 6e-8, -5.9e-8, 65504.0, 65519.9, 65520.0, -1e9,
    ]);
    values.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 2049.0, 2051.0]);
    let tensor = upload(&client, &values, &[values.len()], FloatType::F32);

    let half = cast(&client, &tensor, FloatType::F16, false).unwrap();
    let actual = download(&client, &half);
    for (value, actual) in values.iter().zip(actual) {
        let expected = f16::from_f32(*value);
        assert_eq!(
            f16::from_f32(actual).to_bits(),
            expected.to_bits(),
            "{value}"
        );
    }
}

#[test]
fn saturates_finite_values_only() {
    let Some(client) = client() else { return };
    let values = [
        65504.0,
        65519.9,
        65520.0,
        -1e9,
        f32::MAX,
        f32::INFINITY,
        f32::NEG_INFINITY,
        1.0,
    ];
    let tensor = upload(&client, &values, &[8], FloatType::F32);
    let half = cast(&client, &tensor, FloatType::F16, true).unwrap();
    let max = 65504.0;
    assert_eq!(
        download(&client, &half),
        [
            max,
            max,
            max,
            -max,
            max,
            f32::INFINITY,
            f32::NEG_INFINITY,
            1.0
        ]
    );

    let nan = upload(&client, &[f32::NAN], &[1], FloatType::F32);
    let nan = cast(&client, &nan, FloatType::F16, true).unwrap();
    assert!(download(&client, &nan)[0].is_nan());
}

#[test]
fn widens_subnormals_exactly() {
    let Some(client) = client() else { return };
    let values: Vec<f32> = [1u16, 0x3ff, 0x8001, 0x0400, 0x7bff]
        .map(|bits| f16::from_bits(bits).to_f32())
        .to_vec();
    let tensor = upload(&client, &values, &[5], FloatType::F16);
    let wide = cast(&client, &tensor, FloatType::F32, false).unwrap();
    assert_eq!(download(&client, &wide), values);
}

#[test]
fn casts_a_transposed_matrix_where_it_lies() {
    let Some(client) = client() else { return };
    let values = random(2, 35);
    let tensor = upload(&client, &values, &[5, 7], FloatType::F32).transposed();
    let half = cast(&client, &tensor, FloatType::F16, false).unwrap();
    assert_eq!(half.shape.to_vec(), [7, 5]);
    assert_eq!(half.strides.to_vec(), [1, 7]);
    let lying = DeviceTensor::contiguous(half.handle, [5, 7], FloatType::F16);
    assert_eq!(download(&client, &lying), rounded(&values, FloatType::F16));
}

#[test]
fn refuses_what_is_not_dense_or_not_there() {
    let Some(client) = client() else { return };
    let apart = upload_amid_nan(&client, &[1.0; 4], [2, 2], FloatType::F32);
    let refused = cast(&client, &apart, FloatType::F16, false);
    assert!(
        matches!(refused, Err(KernelError::NotContiguous { .. })),
        "{refused:?}"
    );

    let one = upload(&client, &[1.0], &[1], FloatType::F32);
    let refused = cast(&client, &one, FloatType::BF16, false);
    assert_eq!(
        refused.unwrap_err(),
        KernelError::UnsupportedType(FloatType::BF16)
    );
}

#[test]
fn empty_stays_empty() {
    let Some(client) = client() else { return };
    let empty = upload(&client, &[], &[0, 3], FloatType::F32);
    let half = cast(&client, &empty, FloatType::F16, true).unwrap();
    assert_eq!(half.shape.to_vec(), [0, 3]);
}
