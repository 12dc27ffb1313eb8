//! Saving, loading, setting and reconfiguring.

use burn::record::{
    BinBytesRecorder, FullPrecisionSettings, HalfPrecisionSettings, NamedMpkBytesRecorder, Recorder,
};
use burn_amp::loss_scale::{
    DynamicLossScaleConfig, LossScaleConfig, LossScaleCounters, LossScaler, LossScalerRecord,
    LossScalerRecordV1 as V1,
};
use rstest::rstest;
use serde_json::json;

type B = burn::backend::Flex;

const WITHIN: &str = "a number from 6.1035156e-5 to 1.8446744e19";

fn defaults() -> DynamicLossScaleConfig {
    DynamicLossScaleConfig::new()
}

fn dynamic(config: DynamicLossScaleConfig) -> LossScaler {
    LossScaler::new(LossScaleConfig::Dynamic(config)).unwrap()
}

/// A scaler of which no number is a default, and no scale fits in half precision.
fn used() -> LossScaler {
    let mut scaler = dynamic(
        defaults()
            .with_init_scale(1.0e9)
            .with_growth_factor(1.1)
            .with_backoff_factor(1.0 / 3.0)
            .with_growth_interval(3)
            .with_hysteresis(2),
    );
    for found_inf in [false, false, false, true, true, false, true] {
        scaler.update(found_inf);
    }
    scaler
}

fn used_record() -> V1 {
    let LossScalerRecord::V1(record) = used().to_record() else {
        panic!("records are written in version 1");
    };
    record
}

fn check_recorder<R>(recorder: R)
where
    R: Recorder<B, RecordArgs = (), RecordOutput = Vec<u8>, LoadArgs = Vec<u8>>,
{
    let device = Default::default();
    let bytes = recorder.record(used().to_record(), ()).unwrap();
    let loaded: LossScalerRecord = recorder.load(bytes, &device).unwrap();
    assert_eq!(LossScaler::from_record(loaded).unwrap(), used());
}

#[test]
fn should_survive_burn_recorders_of_any_precision() {
    check_recorder(BinBytesRecorder::<FullPrecisionSettings>::new());
    check_recorder(BinBytesRecorder::<HalfPrecisionSettings>::new());
    check_recorder(NamedMpkBytesRecorder::<FullPrecisionSettings>::new());
    check_recorder(NamedMpkBytesRecorder::<HalfPrecisionSettings>::new());
}

#[test]
fn should_keep_its_format() {
    let mut scaler = LossScaler::new(LossScaleConfig::fixed(1024.0)).unwrap();
    scaler.update(true);

    assert_eq!(
        serde_json::to_value(scaler.to_record()).unwrap(),
        json!({"V1": {
            "config": {"static": {"scale": 1024.0}},
            "scale": 1024.0,
            "growth_tracker": 0,
            "overflows": 0,
            "skips_at_minimum": 1,
            "counters": {
                "applied": 0, "skipped": 1, "consecutive_skips": 1, "growths": 0, "backoffs": 0,
            },
        }})
    );
}

#[test]
fn should_read_settings_from_json_exactly() {
    // A best-effort parser reads this one as 1.118.
    let config = LossScaleConfig::Dynamic(defaults().with_growth_factor(1.1179999999999999));
    let saved = serde_json::to_string(&config).unwrap();

    assert_eq!(
        serde_json::from_str::<LossScaleConfig>(&saved).unwrap(),
        config
    );
}

#[rstest]
#[case(|record: &mut V1| record.scale = f32::NAN, "loss scale is NaN", WITHIN)]
#[case(|record: &mut V1| record.scale = f32::INFINITY, "loss scale is inf", WITHIN)]
#[case(|record: &mut V1| record.scale = 0.0, "loss scale is 0.0", WITHIN)]
#[case(
    |record: &mut V1| record.config = LossScaleConfig::fixed(8.0),
    "loss scale is 366666660.0",
    "a number from 8.0 to 8.0",
)]
#[case(
    |record: &mut V1| record.config = LossScaleConfig::fixed(-1.0),
    "static scale is -1.0",
    "a positive finite number with a finite reciprocal",
)]
fn should_refuse_a_corrupt_record(
    #[case] corrupt: fn(&mut V1),
    #[case] found: &str,
    #[case] expected: &str,
) {
    let message = format!("{found}, expected {expected}");
    let mut record = used_record();
    corrupt(&mut record);
    let record = LossScalerRecord::V1(record);

    let refused = LossScaler::from_record(record.clone()).unwrap_err();
    assert_eq!(refused.to_string(), message);

    let mut running = used();
    assert_eq!(
        running.load_record(record).unwrap_err().to_string(),
        message
    );
    assert_eq!(running, used(), "a refused record changes nothing");
}

#[rstest]
#[case::at_the_minimum(366666660.0, 366666660.0)]
#[case::above_the_minimum(1.0, 183333330.0)]
fn should_not_overflow_on_the_largest_counts(#[case] min_scale: f32, #[case] backed_off: f32) {
    let mut record = used_record();
    record.growth_tracker = u32::MAX;
    record.overflows = u32::MAX;
    record.skips_at_minimum = u32::MAX;
    record.counters = LossScaleCounters {
        applied: u64::MAX,
        skipped: u64::MAX,
        consecutive_skips: u64::MAX,
        growths: u64::MAX,
        backoffs: u64::MAX,
    };
    let config = defaults().with_init_scale(record.scale);
    record.config = LossScaleConfig::Dynamic(config.with_min_scale(min_scale));
    let scaler = LossScaler::from_record(LossScalerRecord::V1(record)).unwrap();

    assert_eq!(scaler.after(true).1.current, backed_off);
    assert_eq!(scaler.after(false).1.current, 2.0 * scaler.scale());
}

#[test]
fn should_load_the_state_and_keep_its_settings() {
    let record = used_record();
    let config = LossScaleConfig::Dynamic(defaults().with_hysteresis(2));
    let mut scaler = LossScaler::new(config.clone()).unwrap();

    scaler.load_record(used().to_record()).unwrap();

    assert_eq!(scaler.config(), &config);
    assert_eq!(scaler.scale(), record.scale);
    assert_eq!(scaler.counters(), record.counters);
    // The overflow that the record counted is the first of the two that hysteresis asks for.
    assert_eq!(scaler.update(true).current, record.scale / 2.0);
}

#[rstest]
#[case::into_lower_bounds(LossScaleConfig::Dynamic(defaults().with_max_scale(1e8)), 1e8)]
#[case::into_higher_bounds(
    LossScaleConfig::Dynamic(defaults().with_init_scale(1e9).with_min_scale(1e9)),
    1e9,
)]
#[case::fixed(LossScaleConfig::fixed(128.0), 128.0)]
#[case::none(LossScaleConfig::none(), 1.0)]
fn should_fit_the_scale_to_its_settings(#[case] config: LossScaleConfig, #[case] expected: f32) {
    let mut loaded = LossScaler::new(config.clone()).unwrap();
    loaded.load_record(used().to_record()).unwrap();
    let mut reconfigured = used();
    reconfigured.reconfigure(config).unwrap();

    assert_eq!(loaded, reconfigured);
    assert_eq!(loaded.scale(), expected);
    assert_eq!(loaded.counters(), used().counters());
}

#[test]
fn should_start_at_the_initial_scale_when_scaling_becomes_dynamic() {
    let mut scaler = LossScaler::new(LossScaleConfig::none()).unwrap();
    scaler.update(false);

    scaler.reconfigure(LossScaleConfig::dynamic()).unwrap();

    assert_eq!((scaler.scale(), scaler.growth_tracker()), (65536.0, 0));
    assert_eq!(scaler.counters().applied, 1);
}

#[test]
fn should_forget_tracker_and_overflows_when_scaling_stops_being_dynamic() {
    let config = defaults().with_hysteresis(2);
    for found_inf in [true, false] {
        let mut scaler = dynamic(config.clone());
        scaler.update(found_inf);

        scaler.reconfigure(LossScaleConfig::none()).unwrap();
        assert_eq!(scaler.growth_tracker(), 0);

        let dynamic_again = LossScaleConfig::Dynamic(config.clone());
        scaler.reconfigure(dynamic_again).unwrap();
        assert_eq!(scaler.update(true).current, 65536.0);
    }
}

#[test]
fn case_38_changing_one_setting_keeps_the_rest_of_the_state() {
    let mut scaler = LossScaler::new(LossScaleConfig::dynamic()).unwrap();
    for found_inf in [true, false, false] {
        scaler.update(found_inf);
    }
    let mut other = LossScaler::new(LossScaleConfig::dynamic()).unwrap();
    other.load_record(scaler.to_record()).unwrap();

    let config = defaults().with_growth_interval(3);
    other.reconfigure(LossScaleConfig::Dynamic(config)).unwrap();

    assert_eq!((other.scale(), other.growth_tracker()), (32768.0, 2));
    assert_eq!(other.counters(), scaler.counters());
    assert_eq!(other.update(false).current, 65536.0);
}

#[test]
fn should_set_the_scale_and_nothing_else() {
    let mut scaler = LossScaler::new(LossScaleConfig::dynamic()).unwrap();
    scaler.update(false);
    let counters = scaler.counters();

    scaler.set_scale(3.0).unwrap();

    assert_eq!((scaler.scale(), scaler.growth_tracker()), (3.0, 1));
    assert_eq!(scaler.counters(), counters);
}

#[rstest]
#[case(LossScaleConfig::dynamic(), f32::NAN, "NaN", WITHIN)]
#[case(LossScaleConfig::dynamic(), 1e-5, "1e-5", WITHIN)]
#[case(LossScaleConfig::fixed(8.0), 16.0, "16.0", "a number from 8.0 to 8.0")]
#[case(LossScaleConfig::none(), 2.0, "2.0", "a number from 1.0 to 1.0")]
fn should_refuse_to_set_a_scale_out_of_bounds(
    #[case] config: LossScaleConfig,
    #[case] scale: f32,
    #[case] printed: &str,
    #[case] expected: &str,
) {
    let mut scaler = LossScaler::new(config).unwrap();
    let before = scaler.clone();

    assert_eq!(
        scaler.set_scale(scale).unwrap_err().to_string(),
        format!("loss scale is {printed}, expected {expected}")
    );
    assert_eq!(scaler, before);
}

#[test]
fn should_try_a_scale_set_by_hand_before_calling_it_stuck() {
    let mut scaler = LossScaler::new(LossScaleConfig::fixed(1024.0)).unwrap();
    for _ in 0..19 {
        assert!(!scaler.update(true).stuck);
    }
    assert!(scaler.after(true).1.stuck);

    scaler.reconfigure(LossScaleConfig::fixed(1.0)).unwrap();

    assert!(!scaler.update(true).stuck);
}
