use burn_amp_kernels::unscale::{Found, check, gradients_at_once, unscale_and_check};
use burn_amp_kernels::{DeviceTensor, FloatType, KernelError, counters};
use half::f16;
use rstest::rstest;

use crate::common::*;

fn scale_of(client: &Client, inv_scale: f32) -> cubecl::server::Handle {
    client.create_from_slice(&inv_scale.to_le_bytes())
}

/// A gradient that nothing else holds is written in place; a second handle keeps it.
#[rstest]
fn multiplies_in_f32_and_finds_what_is_not_finite(
    #[values(FloatType::F32, FloatType::F16)] dtype: FloatType,
    #[values(1, 7, 8, 1000, 100_003, 1_000_000)] len: usize,
    #[values(true, false)] shared: bool,
) {
    let Some(client) = client() else { return };
    let inv_scale = 1.0f32 / 3.0;
    let finite = rounded(&random(len as u64, len), dtype);
    let none = Found::default();
    let cases = [
        (None, none),
        (
            Some(f32::INFINITY),
            Found {
                infinity: true,
                ..none
            },
        ),
        (
            Some(f32::NEG_INFINITY),
            Found {
                infinity: true,
                ..none
            },
        ),
        (Some(f32::NAN), Found { nan: true, ..none }),
    ];
    for (last, found) in cases {
        let mut values = finite.clone();
        if let Some(last) = last {
            values[len - 1] = last;
        }
        let grad = upload(&client, &values, &[len], dtype);
        let kept = shared.then(|| grad.clone());
        let mut unscaled = [grad];
        let scale = scale_of(&client, inv_scale);
        let flags = unscale_and_check(&client, &mut unscaled, &scale).unwrap();

        assert_eq!(flags.read(&client), [found], "{last:?}");
        assert_eq!(unscaled[0].dtype, FloatType::F32);
        let unscaled = download(&client, &unscaled[0]);
        for (value, unscaled) in values.iter().zip(&unscaled) {
            let expected = value * inv_scale;
            assert!(
                expected.to_bits() == unscaled.to_bits() || expected.is_nan() && unscaled.is_nan(),
                "{value} became {unscaled}"
            );
        }
        if let Some(kept) = kept {
            let kept = download(&client, &kept);
            assert!(
                kept.iter()
                    .zip(&values)
                    .all(|(a, b)| a.to_bits() == b.to_bits() || b.is_nan())
            );
        }
    }
}

#[test]
fn subnormals_come_through() {
    let Some(client) = client() else { return };
    let half: Vec<f32> = [1u16, 0x3ff, 0x8001]
        .map(|bits| f16::from_bits(bits).to_f32())
        .to_vec();
    let full = [f32::from_bits(1 << 20), -f32::MIN_POSITIVE / 2.0];
    let mut unscaled = [
        upload(&client, &half, &[3], FloatType::F16),
        upload(&client, &full, &[2], FloatType::F32),
    ];
    let flags = unscale_and_check(&client, &mut unscaled, &scale_of(&client, 1.0)).unwrap();
    assert_eq!(download(&client, &unscaled[0]), half);
    // Vulkan leaves it to the driver whether f32 arithmetic flushes them to zero.
    let unscaled = download(&client, &unscaled[1]);
    assert!(unscaled == full || unscaled == [0.0; 2], "{unscaled:?}");
    assert_eq!(flags.read(&client), [Found::default(); 2]);
}

/// Lengths around the limit of a launch, of mixed types and sizes, with flags where they belong.
#[rstest]
fn many_gradients_in_few_launches(#[values(1, 3, 15, 16, 17, 33, 50)] count: usize) {
    let Some(client) = client() else { return };
    let values: Vec<Vec<f32>> = (0..count)
        .map(|index| {
            let mut values = random(index as u64, 4 * (index * 37 % 50) + 4);
            match index % 7 {
                3 => values[0] = f32::NAN,
                5 => values[1] = f32::INFINITY,
                _ => {}
            }
            values
        })
        .collect();
    let mut unscaled: Vec<_> = values
        .iter()
        .map(|values| upload(&client, values, &[values.len()], FloatType::F32))
        .collect();
    let before = counters::launches();
    let flags = unscale_and_check(&client, &mut unscaled, &scale_of(&client, 0.5)).unwrap();
    let launches = counters::launches() - before;
    // Other tests may launch at the same time, so that this is a lower bound for what was counted.
    let limit = gradients_at_once(&client, true).unwrap();
    assert!(launches.unscale >= count.div_ceil(limit) as u64);

    for (index, found) in flags.read(&client).into_iter().enumerate() {
        let expected = Found {
            nan: index % 7 == 3,
            infinity: index % 7 == 5,
        };
        assert_eq!(found, expected, "gradient {index} of {count}");
    }
    for (values, unscaled) in values.iter().zip(&unscaled) {
        let unscaled = download(&client, unscaled);
        assert!(
            unscaled
                .iter()
                .zip(values)
                .all(|(a, b)| *a == b * 0.5 || b.is_nan())
        );
    }
}

#[test]
fn check_alone_leaves_gradients_as_they_are() {
    let Some(client) = client() else { return };
    let nan = [1.0, f32::NAN, f32::INFINITY];
    let grads = [
        upload(&client, &random(3, 12), &[3, 4], FloatType::F16),
        upload(&client, &nan, &[3], FloatType::F32),
        upload(&client, &[], &[0], FloatType::F32),
        upload(&client, &[f32::NEG_INFINITY], &[1], FloatType::F16),
    ];
    let found = check(&client, &grads).unwrap().read(&client);
    let both = Found {
        infinity: true,
        nan: true,
    };
    let infinity = Found {
        infinity: true,
        nan: false,
    };
    assert_eq!(found, [Found::default(), both, Found::default(), infinity]);
    assert_eq!(download(&client, &grads[1])[0], 1.0);
    assert!(check(&client, &[]).unwrap().read(&client).is_empty());
}

#[test]
fn finite_values_whose_sum_is_not_are_finite() {
    let Some(client) = client() else { return };
    let grads = [upload(&client, &[f32::MAX; 9], &[9], FloatType::F32)];
    let found = check(&client, &grads).unwrap().read(&client);
    assert_eq!(found, [Found::default()]);
}

#[test]
fn refuses_gradients_with_gaps() {
    let Some(client) = client() else { return };
    let grad: DeviceTensor = upload_amid_nan(&client, &[1.0; 4], [2, 2], FloatType::F32);
    let refused = check(&client, &[grad]).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "a gradient has to be contiguous, got shape [2, 2] with strides [5, 1]"
    );
    assert!(matches!(refused, KernelError::NotContiguous { .. }));
}

/// A scale below one may take a finite gradient beyond f32.
#[test]
fn the_result_is_what_has_to_be_finite() {
    let Some(client) = client() else { return };
    let mut grads = [
        upload(&client, &[1e30, 1.0], &[2], FloatType::F32),
        upload(&client, &[6e4, 1.0], &[2], FloatType::F16),
    ];
    let flags = unscale_and_check(&client, &mut grads, &scale_of(&client, 1e34)).unwrap();
    let found = Found {
        infinity: true,
        nan: false,
    };
    assert_eq!(flags.read(&client), [found; 2]);
}
