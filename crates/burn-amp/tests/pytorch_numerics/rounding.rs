//! Casts from f32, bit for bit.

use burn::backend::Flex;
use burn::tensor::{DType, FloatDType, Tensor, TensorData};
use burn_amp::{Amp, AmpConfig, Autocast, Readback};
use half::{bf16, f16};

use crate::recorded::{RECORDED, Rounding};

type B = Amp<Flex>;

/// The recorded f32 values, cast to a half type and read as they are.
fn cast(dtype: FloatDType) -> TensorData {
    let rows = &RECORDED.rounding_f32_to_low.rows;
    let values: Vec<f32> = rows
        .iter()
        .map(|row| f32::from_bits(row.f32_bits))
        .collect();
    let values = TensorData::new(values, [rows.len()]);
    let native = AmpConfig::f16().with_readback(Readback::Native);

    Autocast::new(&native).unwrap().run(|| {
        let tensor = Tensor::<B, 1>::from_data(values, &Default::default());
        assert_eq!(tensor.dtype(), DType::F32);
        tensor.cast(dtype).into_data()
    })
}

/// Compares bits; of NaN only that it is one, as PyTorch's own payloads differ between the types.
fn check(row: &Rounding, name: &str, is_nan: bool, bits: u16, recorded: u16) {
    let value = f32::from_bits(row.f32_bits);
    assert!(
        bits == recorded || (value.is_nan() && is_nan),
        "{value:e} to {name}: {bits:#06x}, PyTorch's {recorded:#06x}"
    );
}

#[test]
fn should_round_to_f16_bit_for_bit() {
    let rounded = cast(FloatDType::F16).to_vec::<f16>().unwrap();
    for (row, value) in RECORDED.rounding_f32_to_low.rows.iter().zip(rounded) {
        check(row, "f16", value.is_nan(), value.to_bits(), row.f16_bits);
    }
}

#[test]
fn should_round_to_bf16_bit_for_bit() {
    let rounded = cast(FloatDType::BF16).to_vec::<bf16>().unwrap();
    for (row, value) in RECORDED.rounding_f32_to_low.rows.iter().zip(rounded) {
        check(row, "bf16", value.is_nan(), value.to_bits(), row.bf16_bits);
    }
}

#[test]
fn should_have_the_whole_table() {
    assert_eq!(RECORDED.rounding_f32_to_low.rows.len(), 41);
}
