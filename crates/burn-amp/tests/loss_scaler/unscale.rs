//! `torch._amp_foreach_non_finite_check_and_unscale_`: its arithmetic, and the scale's reciprocal.

use burn_amp::loss_scale::{LossScaleConfig, LossScaleConfigError, LossScaler};
use half::f16;

use crate::oracle::{Unscaled, unscale_recordings};

/// Scales that PyTorch takes, with the reciprocal that makes them useless.
const REFUSED: &[(f32, f32)] = &[
    (f32::MIN_POSITIVE / 4.0, f32::INFINITY),
    (f32::from_bits(1), f32::INFINITY),
    (0.0, f32::INFINITY),
    (f32::INFINITY, 0.0),
    (f32::NAN, f32::NAN),
    (-8.0, -0.125),
];

fn check_unscaled(inv_scale: f32, gradients: &[f16], recorded: &Unscaled, context: &str) {
    assert_eq!(gradients.len(), recorded.out_f32_bits.len(), "{context}");
    for (gradient, expected) in gradients.iter().zip(&recorded.out_f32_bits) {
        let unscaled = f32::from(*gradient) * inv_scale;
        assert!(
            expected.matches(unscaled),
            "{context}: {gradient:?} became {unscaled:?}, expected {expected:?}"
        );
    }
}

#[test]
fn should_unscale_every_recorded_gradient_bit_for_bit() {
    let recordings = unscale_recordings();
    assert_eq!((recordings.scales.len(), recordings.cases.len()), (26, 10));

    for (position, recorded) in recordings.scales.iter().enumerate() {
        let scale = recorded.scale_bits.to_f32();
        let inv_scale = match LossScaler::new(LossScaleConfig::fixed(scale)) {
            Ok(scaler) => scaler.inv_scale(),
            Err(_) => recorded.inv_scale_bits.to_f32(),
        };
        assert!(
            recorded.inv_scale_bits.matches(inv_scale),
            "1 / {scale:?} became {inv_scale:?}"
        );

        for case in &recordings.cases {
            let gradients: Vec<_> = case
                .grad_f16_bits
                .iter()
                .map(|bits| f16::from_bits(bits.0 as u16))
                .collect();
            let context = format!("{} / {scale:?}", case.name);
            check_unscaled(inv_scale, &gradients, &case.by_scale[position], &context);
        }
    }
}

#[test]
fn should_refuse_the_recorded_scales_that_cannot_be_undone() {
    let recordings = unscale_recordings();
    let refused: Vec<_> = recordings
        .scales
        .iter()
        .filter(|recorded| {
            let scale = recorded.scale_bits.to_f32();
            LossScaler::new(LossScaleConfig::fixed(scale)).is_err()
        })
        .collect();
    assert_eq!(refused.len(), REFUSED.len());

    for (recorded, (scale, inv_scale)) in refused.iter().zip(REFUSED) {
        assert_eq!(recorded.scale_bits.0, scale.to_bits());
        assert!(recorded.inv_scale_bits.matches(*inv_scale), "1 / {scale:?}");
        assert!(matches!(
            LossScaleConfig::fixed(*scale).validate(),
            Err(LossScaleConfigError::StaticScale(value)) if value.to_bits() == scale.to_bits()
        ));
    }
}
