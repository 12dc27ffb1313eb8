//! Casts, and gradients unscaled and checked.

use anyhow::{Result, ensure};
use burn_amp_kernels::unscale::{Found, check, unscale_and_check};
use burn_amp_kernels::{FloatType, cast};

use super::{Checks, name};
use crate::device::Gpu;
use crate::reference::{random, round, rounded};

pub(super) fn run(checks: &mut Checks<'_>) -> Result<()> {
    for half in checks.halves.clone() {
        for saturating in [false, true] {
            let how = if saturating {
                "saturating"
            } else {
                "to infinity"
            };
            checks.case("cast", format!("f32 to {}, {how}", name(half)), |gpu| {
                narrow(gpu, half, saturating)
            })?;
        }
        checks.case("cast", format!("{} to f32", name(half)), |gpu| {
            widen(gpu, half)
        })?;
        checks.case("cast", format!("transposed f32 to {}", name(half)), |gpu| {
            transposed(gpu, half)
        })?;
    }
    let largest = if checks.quick { 1003 } else { 1_000_000 };
    for dtype in checks.types() {
        for len in [1, 7, 1000, largest] {
            for in_place in [true, false] {
                if in_place && dtype != FloatType::F32 {
                    continue;
                }
                let how = if in_place { "in place" } else { "to f32" };
                let case = format!("{} {how}, [{len}]", name(dtype));
                checks.case("unscale_and_check", case, |gpu| {
                    one_gradient(gpu, dtype, len, in_place)
                })?;
            }
        }
        let counts: &[usize] = if checks.quick { &[5] } else { &[1, 33, 150] };
        for count in counts {
            let case = format!("{count} {} gradients", name(dtype));
            checks.case("unscale_and_check", case.clone(), |gpu| {
                many(gpu, dtype, *count, true)
            })?;
            checks.case("check", case, |gpu| many(gpu, dtype, *count, false))?;
        }
    }
    Ok(())
}

/// 0 if the two are the same value, or both NaN.
fn same(actual: f32, expected: f32) -> bool {
    actual.to_bits() == expected.to_bits() || actual.is_nan() && expected.is_nan()
}

fn all_same(actual: &[f32], expected: impl IntoIterator<Item = f32>) -> Result<f64> {
    let mut count = 0;
    for (index, (actual, expected)) in actual.iter().zip(expected).enumerate() {
        ensure!(
            same(*actual, expected),
            "value {index} is {actual:e}, not {expected:e}"
        );
        count += 1;
    }
    ensure!(
        count == actual.len(),
        "{} values, not {count}",
        actual.len()
    );
    Ok(0.0)
}

/// Values that are halfway, tiny, too large, or none.
fn hard_values() -> Vec<f32> {
    let mut values = random(1, 1003);
    values.extend([0.0, -0.0, 1e-8, 6e-8, -5.9e-8, 1e-5]);
    values.extend([65504.0, 65519.9, 65520.0, -1e9, 3.39e38, -f32::MAX]);
    values.extend([2049.0, 2051.0, 257.0, 259.0, 1.003_906_3, 1.011_718_8]);
    values.extend([f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
    values
}

fn narrow(gpu: &Gpu, half: FloatType, saturating: bool) -> Result<f64> {
    let values = hard_values();
    let tensor = gpu.upload(&values, &[values.len()], FloatType::F32);
    let stored = gpu.download(&cast(&gpu.client, &tensor, half, saturating)?)?;
    let largest = match half {
        FloatType::F16 => half::f16::MAX.to_f32(),
        _ => half::bf16::MAX.to_f32(),
    };
    let expected = values.iter().map(|value| {
        let nearest = round(*value, half);
        if saturating && value.is_finite() {
            nearest.clamp(-largest, largest)
        } else {
            nearest
        }
    });
    all_same(&stored, expected)
}

fn widen(gpu: &Gpu, half: FloatType) -> Result<f64> {
    let values = rounded(&hard_values(), half);
    let tensor = gpu.upload(&values, &[values.len()], half);
    let stored = gpu.download(&cast(&gpu.client, &tensor, FloatType::F32, false)?)?;
    all_same(&stored, values)
}

fn transposed(gpu: &Gpu, half: FloatType) -> Result<f64> {
    let values = random(2, 15 * 32);
    let tensor = gpu.upload(&values, &[15, 32], FloatType::F32).transposed();
    let stored = cast(&gpu.client, &tensor, half, false)?;
    ensure!(stored.shape.iter().eq(&[32, 15]), "another shape");
    // As it lies.
    all_same(&gpu.download(&stored.transposed())?, rounded(&values, half))
}

fn one_gradient(gpu: &Gpu, dtype: FloatType, len: usize, in_place: bool) -> Result<f64> {
    let inv_scale = 1.0f32 / 3.0;
    let finite = rounded(&random(len as u64, len), dtype);
    let lasts = [
        None,
        Some(f32::INFINITY),
        Some(f32::NEG_INFINITY),
        Some(f32::NAN),
    ];
    for last in lasts {
        let mut values = finite.clone();
        if let Some(last) = last {
            values[len - 1] = last;
        }
        let grad = gpu.upload(&values, &[len], dtype);
        let kept = (!in_place).then(|| grad.clone());
        let inv = gpu.scalar(inv_scale);
        let mut unscaled = [grad];
        let flags = unscale_and_check(&gpu.client, &mut unscaled, &inv)?;
        let found = Found {
            infinity: last.is_some_and(f32::is_infinite),
            nan: last.is_some_and(f32::is_nan),
        };
        let flags = flags.read(&gpu.client);
        ensure!(flags == [found], "{flags:?} for {last:?}");
        let unscaled = gpu.download(&unscaled[0])?;
        all_same(&unscaled, values.iter().map(|value| value * inv_scale))?;
        if let Some(kept) = kept {
            all_same(&gpu.download(&kept)?, values)?;
        }
    }
    Ok(0.0)
}

fn many(gpu: &Gpu, dtype: FloatType, count: usize, unscale: bool) -> Result<f64> {
    let values: Vec<Vec<f32>> = (0..count)
        .map(|index| {
            let mut values = rounded(&random(index as u64, 4 * (index * 37 % 50) + 4), dtype);
            match index % 7 {
                3 => values[0] = f32::NAN,
                5 => values[1] = f32::INFINITY,
                _ => {}
            }
            values
        })
        .collect();
    let mut grads: Vec<_> = values
        .iter()
        .map(|values| gpu.upload(values, &[values.len()], dtype))
        .collect();
    let flags = if unscale {
        let flags = unscale_and_check(&gpu.client, &mut grads, &gpu.scalar(0.25))?;
        for (unscaled, values) in grads.iter().zip(&values) {
            let expected = values.iter().map(|value| value * 0.25);
            all_same(&gpu.download(unscaled)?, expected)?;
        }
        flags
    } else {
        check(&gpu.client, &grads)?
    };
    for (index, found) in flags.read(&gpu.client).into_iter().enumerate() {
        let expected = Found {
            nan: index % 7 == 3,
            infinity: index % 7 == 5,
        };
        ensure!(found == expected, "gradient {index}: {found:?}");
    }
    Ok(0.0)
}
