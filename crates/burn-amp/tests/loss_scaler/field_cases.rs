//! Field reports of loss scaling in other frameworks, each as a test.

use HysteresisMode::{Consecutive, Total};
use burn_amp::loss_scale::{
    DynamicLossScaleConfig, HysteresisMode, LossScaleConfig, LossScaleConfigError,
    LossScaleCounters, LossScaler, OptimizerId, SharedScaler,
};
use half::f16;
use rstest::rstest;

fn dynamic(config: DynamicLossScaleConfig) -> LossScaler {
    LossScaler::new(LossScaleConfig::Dynamic(config)).unwrap()
}

/// One weight under SGD with learning rate 1; its gradient passes through `format` when scaled.
struct Weight {
    value: f32,
    format: fn(f32) -> f32,
}

impl Weight {
    fn new(format: fn(f32) -> f32) -> Self {
        Self { value: 0.0, format }
    }

    /// Applies the gradient unless it is not finite, and says whether it was not.
    fn step(&mut self, gradient: f32, scaler: &LossScaler) -> bool {
        let unscaled = (self.format)(gradient * scaler.scale()) * scaler.inv_scale();
        if unscaled.is_finite() {
            self.value -= unscaled;
        }
        !unscaled.is_finite()
    }
}

fn through_f16(value: f32) -> f32 {
    f16::from_f32(value).to_f32()
}

#[test]
fn case_17_scale_stops_at_the_minimum_and_recovers() {
    let mut scaler = LossScaler::new(LossScaleConfig::dynamic()).unwrap();
    let mut weight = Weight::new(|scaled| scaled);
    let mut first_stuck = None;

    for step in 1..=200 {
        let found_inf = weight.step(f32::NAN, &scaler);
        let update = scaler.update(found_inf);
        assert!(update.found_inf, "step {step}");
        assert!(update.current >= 2f32.powi(-14), "step {step}");
        assert!(scaler.inv_scale().is_finite(), "step {step}");
        if update.stuck && first_stuck.is_none() {
            first_stuck = Some(step);
        }
    }
    assert_eq!(weight.value, 0.0);
    assert_eq!(scaler.counters().consecutive_skips, 200);
    // 30 halvings lead from 2^16 to 2^-14, then 20 overflows there.
    assert_eq!(first_stuck, Some(50));

    let found_inf = weight.step(1.0, &scaler);
    let update = scaler.update(found_inf);
    assert_eq!(weight.value, -1.0);
    assert!(update.at_minimum && !update.stuck);
    assert_eq!(
        update.to_string(),
        "step applied: loss scale stays 6.1035156e-5"
    );
}

#[rstest]
#[case::widest_bounds(2f32.powi(120), f32::MAX, 2.0, 2f32.powi(127))]
#[case::default_maximum(2f32.powi(60), 2f32.powi(64), 2.0, 2f32.powi(64))]
#[case::maximum_between_powers(1024.0, 5000.0, 2.0, 5000.0)]
#[case::infinite_product(1e20, f32::MAX, 1e30, 1e20)]
fn case_19_scale_stops_at_the_maximum(
    #[case] init: f32,
    #[case] max: f32,
    #[case] growth_factor: f64,
    #[case] expected: f32,
) {
    let mut scaler = dynamic(
        DynamicLossScaleConfig::new()
            .with_init_scale(init)
            .with_max_scale(max)
            .with_growth_factor(growth_factor)
            .with_growth_interval(1),
    );

    for _ in 0..20 {
        let update = scaler.update(false);
        assert!(update.current <= max);
        assert_eq!(update.at_maximum, update.current == max);
        assert!((1e-30 * scaler.scale()).is_finite());
    }
    assert_eq!(scaler.scale(), expected);
    assert_eq!(scaler.update(true).current, expected / 2.0);
}

#[test]
fn case_20_scale_without_a_usable_reciprocal_is_refused() {
    let scale = f32::MIN_POSITIVE / 16.0;
    assert_eq!(f64::from(scale), 2f64.powi(-130));
    let config = DynamicLossScaleConfig::new()
        .with_init_scale(scale)
        .with_min_scale(scale);

    assert_eq!(
        LossScaler::new(LossScaleConfig::Dynamic(config)),
        Err(LossScaleConfigError::MinScale(scale))
    );
    assert_eq!(
        LossScaler::new(LossScaleConfig::fixed(scale)),
        Err(LossScaleConfigError::StaticScale(scale))
    );
}

#[test]
fn case_20_verdict_is_about_the_unscaled_gradient() {
    let mut scaler = dynamic(DynamicLossScaleConfig::new().with_init_scale(2f32.powi(-10)));
    // Backward hands over a scaled gradient that is finite, but not once it is unscaled.
    let mut weight = Weight::new(|_| 3e38);

    let found_inf = weight.step(1.0, &scaler);

    assert!(scaler.update(found_inf).found_inf);
    assert_eq!(weight.value, 0.0);
}

#[test]
fn case_22_scale_below_one_lets_large_gradients_through() {
    let config = DynamicLossScaleConfig::new().with_init_scale(1.0);
    let mut scaler = dynamic(config.with_min_scale(2f32.powi(-10)));
    let mut weight = Weight::new(through_f16);

    let found: Vec<bool> = (0..5)
        .map(|_| {
            let found_inf = weight.step(1e6, &scaler);
            scaler.update(found_inf).found_inf
        })
        .collect();

    assert_eq!(found, [true, true, true, true, false]);
    assert_eq!(scaler.scale(), 2f32.powi(-4));
    assert_eq!(weight.value, -999936.0);
}

#[test]
fn case_22_minimum_of_one_is_reported_as_stuck() {
    let config = DynamicLossScaleConfig::new().with_init_scale(1.0);
    let mut scaler = dynamic(config.with_min_scale(1.0).with_max_consecutive_skips(3));
    let mut weight = Weight::new(through_f16);

    let messages: Vec<String> = (0..3)
        .map(|_| {
            let found_inf = weight.step(1e6, &scaler);
            scaler.update(found_inf).to_string()
        })
        .collect();

    assert_eq!(
        messages[1],
        "step skipped, gradients are not finite: loss scale stays 1.0, its minimum"
    );
    assert_eq!(
        messages[2],
        "step skipped, gradients are not finite: loss scale stays 1.0, its minimum; 3 skips in a \
         row: look for a loss or an input that is not finite, or allow a lower scale"
    );
}

/// An overflow.
const O: bool = true;
/// A finite step.
const F: bool = false;

#[rstest]
#[case::each(1, Consecutive, [512.0, 512.0, 256.0, 256.0, 128.0, 64.0])]
#[case::consecutive(2, Consecutive, [1024.0, 1024.0, 1024.0, 1024.0, 1024.0, 512.0])]
#[case::total(2, Total, [1024.0, 1024.0, 512.0, 512.0, 512.0, 256.0])]
fn case_23_hysteresis_tolerates_single_overflows(
    #[case] hysteresis: u32,
    #[case] mode: HysteresisMode,
    #[case] scales: [f32; 6],
) {
    let mut scaler = dynamic(
        DynamicLossScaleConfig::new()
            .with_init_scale(1024.0)
            .with_hysteresis(hysteresis)
            .with_hysteresis_mode(mode),
    );

    let mut previous = 1024.0;
    for (found_inf, scale) in [O, F, O, F, O, O].into_iter().zip(scales) {
        let update = scaler.update(found_inf);
        assert_eq!(scaler.scale(), scale);
        assert_eq!((update.previous, update.current), (previous, scale));
        assert_eq!(update.to_string().contains("->"), scale != previous);
        assert_eq!(scaler.growth_tracker(), u32::from(!found_inf));
        previous = scale;
    }
    assert_eq!(
        (scaler.counters().skipped, scaler.counters().applied),
        (4, 2)
    );
}

#[test]
fn case_23_growth_starts_the_total_count_again() {
    let mut scaler = dynamic(
        DynamicLossScaleConfig::new()
            .with_init_scale(1024.0)
            .with_growth_interval(2)
            .with_hysteresis(2)
            .with_hysteresis_mode(Total),
    );

    let scales = [O, F, F, O, O].map(|found_inf| scaler.update(found_inf).current);

    assert_eq!(scales, [1024.0, 1024.0, 2048.0, 2048.0, 1024.0]);
}

#[test]
fn case_44_two_optimizers_share_one_scale() {
    let scaler = SharedScaler::new(dynamic(
        DynamicLossScaleConfig::new().with_init_scale(1024.0),
    ));
    let ids = [OptimizerId::new(), OptimizerId::new()];
    let mut weights = [Weight::new(|scaled| scaled), Weight::new(|scaled| scaled)];
    let mut iteration = |gradients: [f32; 2]| {
        scaler.begin_backward();
        let state = scaler.state();
        for ((weight, id), gradient) in weights.iter_mut().zip(ids).zip(gradients) {
            scaler.report(id, weight.step(gradient, &state));
        }
        let values = [weights[0].value, weights[1].value];
        (values, scaler.scale(), scaler.state().growth_tracker())
    };

    assert_eq!(iteration([1.0, f32::INFINITY]), ([-1.0, 0.0], 512.0, 0));
    assert_eq!(iteration([1.0, 1.0]), ([-2.0, -1.0], 512.0, 1));
}

#[test]
fn case_61_counters_tell_which_steps_happened() {
    let mut scaler = LossScaler::new(LossScaleConfig::dynamic()).unwrap();
    let mut schedule = 0;

    for iteration in 0..10 {
        let update = scaler.update([1, 4, 9].contains(&iteration));
        schedule += u32::from(!update.found_inf);
    }

    assert_eq!(schedule, 7);
    assert_eq!(
        scaler.counters(),
        LossScaleCounters {
            applied: 7,
            skipped: 3,
            consecutive_skips: 1,
            growths: 0,
            backoffs: 3,
        }
    );
}
