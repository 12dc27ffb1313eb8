//! Settings: defaults, builders, validation, JSON.

use burn_amp::loss_scale::{DynamicLossScaleConfig, HysteresisMode, LossScaleConfig, LossScaler};
use rstest::rstest;
use serde_json::json;

fn dynamic(config: DynamicLossScaleConfig) -> LossScaleConfig {
    LossScaleConfig::Dynamic(config)
}

fn defaults() -> DynamicLossScaleConfig {
    DynamicLossScaleConfig::new()
}

#[test]
fn should_have_the_documented_defaults() {
    let expected = DynamicLossScaleConfig {
        init_scale: 65536.0,
        growth_factor: 2.0,
        backoff_factor: 0.5,
        growth_interval: 2000,
        min_scale: 2f32.powi(-14),
        max_scale: 2f32.powi(64),
        hysteresis: 1,
        hysteresis_mode: HysteresisMode::Consecutive,
        max_consecutive_skips: 20,
    };

    assert_eq!(defaults(), expected);
    assert_eq!(DynamicLossScaleConfig::default(), expected);
    assert_eq!(
        LossScaleConfig::dynamic(),
        LossScaleConfig::Dynamic(expected)
    );
}

#[test]
fn should_set_each_field_by_its_builder() {
    let built = defaults()
        .with_init_scale(8.0)
        .with_growth_factor(3.0)
        .with_backoff_factor(0.25)
        .with_growth_interval(7)
        .with_min_scale(2.0)
        .with_max_scale(16.0)
        .with_hysteresis(4)
        .with_hysteresis_mode(HysteresisMode::Total)
        .with_max_consecutive_skips(5);

    assert_eq!(
        built,
        DynamicLossScaleConfig {
            init_scale: 8.0,
            growth_factor: 3.0,
            backoff_factor: 0.25,
            growth_interval: 7,
            min_scale: 2.0,
            max_scale: 16.0,
            hysteresis: 4,
            hysteresis_mode: HysteresisMode::Total,
            max_consecutive_skips: 5,
        }
    );
}

#[rstest]
#[case::defaults(LossScaleConfig::dynamic())]
#[case::widest(dynamic(defaults().with_min_scale(f32::MIN_POSITIVE).with_max_scale(f32::MAX)))]
#[case::one_scale(dynamic(defaults().with_min_scale(65536.0).with_max_scale(65536.0)))]
#[case::smallest_counts(dynamic(defaults().with_growth_interval(1).with_max_consecutive_skips(1)))]
#[case::largest_counts(dynamic(defaults().with_growth_interval(u32::MAX)))]
#[case::fixed(LossScaleConfig::fixed(1024.0))]
#[case::smallest_fixed(LossScaleConfig::fixed(f32::MIN_POSITIVE / 2.0))]
#[case::largest_fixed(LossScaleConfig::fixed(f32::MAX))]
#[case::none(LossScaleConfig::none())]
fn should_accept(#[case] config: LossScaleConfig) {
    assert_eq!(config.validate(), Ok(()));
    assert!(LossScaler::new(config).is_ok());
}

const INIT: &str = "a number from min_scale 6.1035156e-5 to max_scale 1.8446744e19";
const GROWTH: &str = "a finite number greater than 1";
const BACKOFF: &str = "a number greater than 0 and less than 1";
const MIN: &str = "a finite number, at least 1.1754944e-38";
const COUNT: &str = "at least 1";

#[rstest]
#[case(defaults().with_init_scale(f32::NAN), "init_scale is NaN", INIT)]
#[case(defaults().with_init_scale(f32::INFINITY), "init_scale is inf", INIT)]
#[case(defaults().with_init_scale(-2.0), "init_scale is -2.0", INIT)]
#[case(defaults().with_init_scale(1e-5), "init_scale is 1e-5", INIT)]
#[case(defaults().with_init_scale(1e20), "init_scale is 1e20", INIT)]
#[case(defaults().with_growth_factor(1.0), "growth_factor is 1.0", GROWTH)]
#[case(defaults().with_growth_factor(f64::INFINITY), "growth_factor is inf", GROWTH)]
#[case(defaults().with_growth_factor(f64::NAN), "growth_factor is NaN", GROWTH)]
#[case(defaults().with_backoff_factor(0.0), "backoff_factor is 0.0", BACKOFF)]
#[case(defaults().with_backoff_factor(1.0), "backoff_factor is 1.0", BACKOFF)]
#[case(defaults().with_backoff_factor(f64::NAN), "backoff_factor is NaN", BACKOFF)]
#[case(defaults().with_growth_interval(0), "growth_interval is 0", COUNT)]
#[case(defaults().with_min_scale(0.0), "min_scale is 0.0", MIN)]
#[case(defaults().with_min_scale(-1.0), "min_scale is -1.0", MIN)]
#[case(defaults().with_min_scale(f32::NAN), "min_scale is NaN", MIN)]
#[case(defaults().with_min_scale(f32::INFINITY), "min_scale is inf", MIN)]
#[case(defaults().with_min_scale(f32::MIN_POSITIVE / 2.0), "min_scale is 5.877472e-39", MIN)]
#[case(
    defaults().with_max_scale(f32::INFINITY),
    "max_scale is inf",
    "a finite number, at least min_scale 6.1035156e-5",
)]
#[case(
    defaults().with_min_scale(8.0).with_max_scale(4.0),
    "max_scale is 4.0",
    "a finite number, at least min_scale 8.0",
)]
#[case(defaults().with_hysteresis(0), "hysteresis is 0", COUNT)]
#[case(defaults().with_max_consecutive_skips(0), "max_consecutive_skips is 0", COUNT)]
fn should_refuse_dynamic_settings_by_name(
    #[case] config: DynamicLossScaleConfig,
    #[case] found: &str,
    #[case] expected: &str,
) {
    check_refusal(dynamic(config), &format!("{found}, expected {expected}"));
}

#[rstest]
#[case(0.0, "0.0")]
#[case(-8.0, "-8.0")]
#[case(f32::NAN, "NaN")]
#[case(f32::INFINITY, "inf")]
#[case(f32::MIN_POSITIVE / 4.0, "2.938736e-39")]
fn should_refuse_a_fixed_scale_that_cannot_be_undone(#[case] scale: f32, #[case] printed: &str) {
    let expectation = "expected a positive finite number with a finite reciprocal";
    check_refusal(
        LossScaleConfig::fixed(scale),
        &format!("static scale is {printed}, {expectation}"),
    );
}

fn check_refusal(config: LossScaleConfig, message: &str) {
    assert_eq!(config.validate().unwrap_err().to_string(), message);
    assert_eq!(
        LossScaler::new(config.clone()).unwrap_err().to_string(),
        message
    );

    let mut running = LossScaler::new(LossScaleConfig::dynamic()).unwrap();
    running.update(true);
    let before = running.clone();
    assert_eq!(
        running.reconfigure(config).unwrap_err().to_string(),
        message
    );
    assert_eq!(running, before, "a refused configuration changes nothing");
}

#[rstest]
#[case(json!("none"), LossScaleConfig::none())]
#[case(json!({"static": {"scale": 1024.0}}), LossScaleConfig::fixed(1024.0))]
#[case(json!({"dynamic": {}}), LossScaleConfig::dynamic())]
#[case(
    json!({"dynamic": {"hysteresis": 2, "hysteresis_mode": "total"}}),
    dynamic(defaults().with_hysteresis(2).with_hysteresis_mode(HysteresisMode::Total)),
)]
fn should_load_from_json_with_defaults(
    #[case] json: serde_json::Value,
    #[case] expected: LossScaleConfig,
) {
    let loaded: LossScaleConfig = serde_json::from_value(json).unwrap();
    assert_eq!(loaded, expected);

    let saved = serde_json::to_string(&loaded).unwrap();
    assert_eq!(
        serde_json::from_str::<LossScaleConfig>(&saved).unwrap(),
        expected
    );
}

#[rstest]
#[case(json!({"dynamic": {"init_scal": 1.0}}), "unknown field `init_scal`")]
#[case(json!({"static": {"scale": 1.0, "growth_factor": 2.0}}), "unknown field `growth_factor`")]
#[case(json!({"static": {}}), "missing field `scale`")]
#[case(json!("Dynamic"), "unknown variant `Dynamic`")]
#[case(json!({"dynamic": {"hysteresis_mode": "always"}}), "unknown variant `always`")]
fn should_refuse_json_that_it_does_not_know(
    #[case] json: serde_json::Value,
    #[case] message: &str,
) {
    let error = serde_json::from_value::<LossScaleConfig>(json).unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
}

#[rstest]
#[case(LossScaleConfig::dynamic(), 65536.0, true, true)]
#[case(LossScaleConfig::fixed(1024.0), 1024.0, true, false)]
#[case(LossScaleConfig::none(), 1.0, false, false)]
fn should_tell_its_mode(
    #[case] config: LossScaleConfig,
    #[case] scale: f32,
    #[case] enabled: bool,
    #[case] dynamic: bool,
) {
    let scaler = LossScaler::new(config.clone()).unwrap();

    assert_eq!(scaler.config(), &config);
    assert_eq!((scaler.scale(), scaler.inv_scale()), (scale, 1.0 / scale));
    assert_eq!(
        (scaler.is_enabled(), scaler.is_dynamic()),
        (enabled, dynamic)
    );
}
