//! Laws that hold for any settings and any sequence of verdicts.

use burn_amp::loss_scale::{
    DynamicLossScaleConfig, HysteresisMode, LossScaleConfig, LossScaler, OptimizerId, SharedScaler,
};
use proptest::collection::vec;
use proptest::prelude::*;

fn any_scale() -> impl Strategy<Value = f32> {
    (f32::MIN_POSITIVE.to_bits()..=f32::MAX.to_bits()).prop_map(f32::from_bits)
}

prop_compose! {
    fn any_dynamic()(
        mut scales in [any_scale(), any_scale(), any_scale()],
        growth_factor in prop_oneof![Just(2.0), 1.000001..4.0, Just(1e30)],
        backoff_factor in prop_oneof![Just(0.5), 0.000001..0.999999, Just(1e-30)],
        growth_interval in 1u32..6,
        hysteresis in 1u32..4,
        hysteresis_mode in prop_oneof![
            Just(HysteresisMode::Consecutive),
            Just(HysteresisMode::Total),
        ],
        max_consecutive_skips in 1u32..6,
    ) -> DynamicLossScaleConfig {
        scales.sort_by(f32::total_cmp);
        let [min_scale, init_scale, max_scale] = scales;
        DynamicLossScaleConfig {
            init_scale,
            growth_factor,
            backoff_factor,
            growth_interval,
            min_scale,
            max_scale,
            hysteresis,
            hysteresis_mode,
            max_consecutive_skips,
        }
    }
}

fn any_config() -> impl Strategy<Value = LossScaleConfig> {
    prop_oneof![
        4 => any_dynamic().prop_map(LossScaleConfig::Dynamic),
        1 => any_scale().prop_map(LossScaleConfig::fixed),
        1 => Just(LossScaleConfig::none()),
    ]
}

fn any_verdicts() -> impl Strategy<Value = Vec<bool>> {
    prop_oneof![
        vec(any::<bool>(), 0..60),
        vec(prop::bool::weighted(0.9), 0..60)
    ]
}

prop_compose! {
    /// A scaler somewhere on its way.
    fn any_scaler()(config in any_config(), verdicts in any_verdicts()) -> LossScaler {
        let mut scaler = LossScaler::new(config).unwrap();
        for found_inf in verdicts {
            scaler.update(found_inf);
        }
        scaler
    }
}

fn bounds(config: &LossScaleConfig) -> (f32, f32) {
    match config {
        LossScaleConfig::Dynamic(config) => (config.min_scale, config.max_scale),
        LossScaleConfig::Static { scale } => (*scale, *scale),
        LossScaleConfig::None => (1.0, 1.0),
    }
}

proptest! {
    #[test]
    fn should_stay_within_bounds_and_report_the_truth(
        config in any_config(),
        verdicts in any_verdicts(),
    ) {
        let (min, max) = bounds(&config);
        let limit = match &config {
            LossScaleConfig::Dynamic(config) => config.max_consecutive_skips,
            LossScaleConfig::Static { .. } | LossScaleConfig::None => 20,
        };
        let mut scaler = LossScaler::new(config).unwrap();
        let mut skips_at_minimum = 0;
        for (step, found_inf) in (1u64..).zip(&verdicts) {
            let before = scaler.clone();
            let update = scaler.update(*found_inf);
            let skips = verdicts[..step as usize].iter().rev().take_while(|f| **f).count();
            let counters = scaler.counters();
            let at_minimum = *found_inf && before.scale() == min;
            skips_at_minimum = if at_minimum { skips_at_minimum + 1 } else { 0 };

            prop_assert!(scaler.scale().is_finite() && scaler.scale() > 0.0);
            prop_assert!((min..=max).contains(&scaler.scale()));
            prop_assert_eq!(update.found_inf, *found_inf);
            prop_assert_eq!((update.previous, update.current), (before.scale(), scaler.scale()));
            prop_assert_eq!(update.at_minimum, scaler.scale() == min);
            prop_assert_eq!(update.at_maximum, scaler.scale() == max);
            prop_assert_eq!(update.consecutive_skips, skips as u64);
            prop_assert_eq!(update.stuck, skips_at_minimum >= limit);
            prop_assert_eq!(counters.consecutive_skips, skips as u64);
            prop_assert_eq!(counters.applied + counters.skipped, step);
            prop_assert_eq!(
                counters.growths - before.counters().growths,
                u64::from(scaler.scale() > before.scale())
            );
            prop_assert_eq!(
                counters.backoffs - before.counters().backoffs,
                u64::from(scaler.scale() < before.scale())
            );
            prop_assert!(*found_inf || scaler.scale() >= before.scale());
            prop_assert!(!*found_inf || scaler.scale() <= before.scale());
        }
    }

    #[test]
    fn should_undo_a_power_of_two_exactly(
        scale_exponent in -14i32..=64,
        mantissa in 1f32..2.0,
        exponent in -60i32..60,
    ) {
        let scaler = LossScaler::new(LossScaleConfig::fixed(2f32.powi(scale_exponent))).unwrap();
        let gradient = mantissa * 2f32.powi(exponent);

        prop_assert_eq!(gradient * scaler.scale() * scaler.inv_scale(), gradient);
    }

    #[test]
    fn should_continue_from_a_record_as_if_uninterrupted(
        scaler in any_scaler(),
        verdicts in any_verdicts(),
    ) {
        let saved = serde_json::to_string(&scaler.to_record()).unwrap();
        let mut resumed = LossScaler::from_record(serde_json::from_str(&saved).unwrap()).unwrap();
        let mut uninterrupted = scaler;

        for found_inf in verdicts {
            prop_assert_eq!(resumed.update(found_inf), uninterrupted.update(found_inf));
        }
        prop_assert_eq!(resumed.scale().to_bits(), uninterrupted.scale().to_bits());
        prop_assert_eq!(resumed, uninterrupted);
    }

    #[test]
    fn should_be_a_pure_function_of_state_and_verdict(scaler in any_scaler(), found_inf: bool) {
        let before = scaler.clone();
        let first = scaler.after(found_inf);
        let second = scaler.after(found_inf);
        prop_assert_eq!(&first, &second);
        prop_assert_eq!(&scaler, &before);

        let mut updated = scaler;
        let update = updated.update(found_inf);
        prop_assert_eq!((updated, update), first);
    }

    #[test]
    fn should_not_change_when_nothing_is_reconfigured(scaler in any_scaler()) {
        let mut same = scaler.clone();
        same.reconfigure(scaler.config().clone()).unwrap();
        same.set_scale(scaler.scale()).unwrap();
        same.load_record(scaler.to_record()).unwrap();

        prop_assert_eq!(same, scaler);
    }

    #[test]
    fn case_43_shared_verdict_is_the_or_of_all_reports(
        scaler in any_scaler(),
        rounds in vec(vec(any::<bool>(), 1..5), 0..40),
        backward_between in any::<bool>(),
    ) {
        let optimizers: Vec<_> = (0..5).map(|_| OptimizerId::new()).collect();
        let shared = SharedScaler::new(scaler.clone());
        let mut single = scaler;

        for reports in rounds {
            if backward_between {
                prop_assert_eq!(shared.begin_backward(), single.scale());
            }
            let update = single.update(reports.contains(&true));
            let mut reported = None;
            for (optimizer, found_inf) in optimizers.iter().zip(reports) {
                reported = Some(shared.report(*optimizer, found_inf));
            }
            prop_assert_eq!(reported, Some(update));
            prop_assert_eq!(&shared.state(), &single);
        }
    }
}
