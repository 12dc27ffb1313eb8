//! Unscaling and checking all gradients of a step.

use burn::backend::Flex;
use burn::tensor::{FloatDType, Int, Tensor, TensorMetadata};
use burn_amp::AmpBackend;

use crate::device::{Fused, Plain, device, random, tensor, values};

/// 40 gradients of all types and sizes, some not finite, one twice, one empty.
fn unscaled<B: AmpBackend>(device: &B::Device) -> (Vec<Vec<f32>>, Vec<i64>, Vec<i64>) {
    let mut grads: Vec<_> = (0..40)
        .map(|index| {
            let mut gradient = random(index as u64, 1 + index * 13 % 50);
            match index {
                3 => gradient[0] = f32::NAN,
                11 => gradient[1] = f32::INFINITY,
                17 => gradient.truncate(0),
                22 => gradient[0] = f32::NEG_INFINITY,
                _ => {}
            }
            let dtype = if index % 3 == 0 {
                FloatDType::F16
            } else {
                FloatDType::F32
            };
            tensor::<B>(&gradient, &[gradient.len()], dtype, device)
        })
        .collect();
    grads[30] = grads[31].clone();
    let read = |flags| -> Vec<i64> {
        Tensor::<B, 2, Int>::from_primitive(flags)
            .into_data()
            .iter()
            .collect()
    };
    let checked = read(B::amp_check(grads.clone()));
    let (unscaled, flags) = B::amp_unscale_and_check(grads, 0.125);
    let dtypes: Vec<_> = unscaled.iter().map(|grad| grad.dtype()).collect();
    assert!(
        dtypes
            .iter()
            .all(|dtype| *dtype == burn::tensor::DType::F32)
    );
    let unscaled = unscaled.into_iter().map(values::<B>).collect();
    (unscaled, read(flags), checked)
}

#[test]
fn agree_with_flex() {
    let Some(device) = device() else { return };
    let expected = unscaled::<Flex>(&Default::default());
    assert_eq!(expected.1, expected.2);
    assert_eq!(expected.1.iter().sum::<i64>(), 3);
    for actual in [unscaled::<Plain>(&device), unscaled::<Fused>(&device)] {
        assert_eq!(expected.1, actual.1);
        assert_eq!(expected.2, actual.2);
        for (expected, actual) in expected.0.iter().zip(&actual.0) {
            let bits = |values: &[f32]| -> Vec<u32> {
                let payload_free = values
                    .iter()
                    .map(|v| if v.is_nan() { f32::NAN } else { *v });
                payload_free.map(f32::to_bits).collect()
            };
            assert_eq!(bits(expected), bits(actual));
        }
    }
}

/// A gradient that the program still holds is not written to.
#[test]
fn a_gradient_in_use_stays_as_it_is() {
    let Some(device) = device() else { return };
    fn run<B: AmpBackend>(device: &B::Device) {
        let grad = tensor::<B>(&[1.0, 2.0, 4.0, 8.0], &[4], FloatDType::F32, device);
        let (unscaled, _) = B::amp_unscale_and_check(vec![grad.clone()], 0.5);
        assert_eq!(values::<B>(grad), [1.0, 2.0, 4.0, 8.0]);
        assert_eq!(values::<B>(unscaled[0].clone()), [0.5, 1.0, 2.0, 4.0]);
    }
    run::<Plain>(&device);
    run::<Fused>(&device);
}
