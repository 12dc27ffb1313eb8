//! `torch._amp_update_scale_`, the update kernel on its own.

use burn_amp::loss_scale::{
    DynamicLossScaleConfig, LossScaleConfig, LossScaleConfigError, LossScaleCounters,
    LossScaleError, LossScaler, LossScalerRecord, LossScalerRecordV1,
};
use rstest::rstest;

use crate::oracle::{GrowthToLimit, RawCase, scaler_recordings};

/// What happens here where the kernel is not followed.
#[derive(Clone, Copy)]
enum Instead {
    /// The scale is refused.
    Refused,
    /// The scale stops at the smallest normal number.
    StopsAtFloor,
    /// Growth that is due takes place: the scale doubles.
    Grows,
    /// A tracker is not negative.
    NotRepresentable,
}

use Instead::{Grows, NotRepresentable, Refused, StopsAtFloor};

/// By position and name, since names are not unique.
const DEVIATIONS: &[(usize, &str, Instead)] = &[
    (12, "grow", Refused),    // inf
    (13, "backoff", Refused), // inf
    (14, "grow", Refused),    // 0
    (15, "backoff", Refused), // 0
    (16, "grow", Refused),    // 2^-149
    (17, "backoff", Refused), // 2^-149
    (19, "backoff", StopsAtFloor),
    (20, "grow", Refused),    // 2^-149
    (21, "backoff", Refused), // 2^-149
    (22, "grow", Refused),    // nan
    (23, "backoff", Refused), // nan
    (35, "tracker", Grows),
    (36, "tracker", Grows),
    (37, "tracker", Grows),
    (38, "tracker", NotRepresentable),
    (88, "rounding", StopsAtFloor),
    (90, "rounding", StopsAtFloor),
    (92, "rounding", StopsAtFloor),
    (94, "rounding", StopsAtFloor),
];

fn config(init_scale: f32) -> DynamicLossScaleConfig {
    DynamicLossScaleConfig::new()
        .with_init_scale(init_scale)
        .with_min_scale(f32::MIN_POSITIVE)
        .with_max_scale(f32::MAX)
}

fn scaler(case: &RawCase, growth_tracker: u32) -> Result<LossScaler, LossScaleError> {
    let scale = case.scale_in_bits.to_f32();
    LossScaler::from_record(LossScalerRecord::V1(LossScalerRecordV1 {
        config: LossScaleConfig::Dynamic(
            config(scale)
                .with_growth_factor(case.factors.growth_factor)
                .with_backoff_factor(case.factors.backoff_factor)
                .with_growth_interval(case.factors.growth_interval),
        ),
        scale,
        growth_tracker,
        overflows: 0,
        skips_at_minimum: 0,
        counters: LossScaleCounters::default(),
    }))
}

fn check_case(position: usize, case: &RawCase, deviation: Option<Instead>) {
    let context = format!("case {position} ({})", case.name);
    let found_inf = case.found_inf.0 != 0.0;
    let Ok(tracker) = u32::try_from(case.growth_tracker_in) else {
        assert!(matches!(deviation, Some(NotRepresentable)), "{context}");
        return;
    };
    let updated = scaler(case, tracker).map(|before| {
        let after = before.after(found_inf).0;
        (after.scale().to_bits(), i64::from(after.growth_tracker()))
    });
    let theirs = (case.scale_out_bits.0, case.growth_tracker_out);

    let expected = match deviation {
        None => theirs,
        Some(StopsAtFloor) => (f32::MIN_POSITIVE.to_bits(), 0),
        Some(Grows) => ((2.0 * case.scale_in_bits.to_f32()).to_bits(), 0),
        Some(Refused) => {
            let Err(LossScaleError::Config(LossScaleConfigError::InitScale { value, .. })) =
                updated
            else {
                panic!("{context}: {updated:?}");
            };
            assert_eq!(value.to_bits(), case.scale_in_bits.0, "{context}");
            return;
        }
        Some(NotRepresentable) => panic!("{context} does not deviate"),
    };
    assert!(
        deviation.is_none() || expected != theirs,
        "{context} does not deviate"
    );
    assert_eq!(updated, Ok(expected), "{context}");
}

#[test]
fn should_follow_every_kernel_case_or_deviate_as_listed() {
    let cases = scaler_recordings().raw_update_scale.cases;
    assert_eq!(cases.len(), 95);
    for (position, name, _) in DEVIATIONS {
        assert_eq!(&cases[*position].name, name, "case {position}");
    }

    for (position, case) in cases.iter().enumerate() {
        let deviation = DEVIATIONS.iter().find(|(deviant, ..)| *deviant == position);
        check_case(position, case, deviation.map(|(.., instead)| *instead));
    }
}

#[rstest]
#[case::by_two(2.0, scaler_recordings().raw_growth_to_limit, 125)]
#[case::by_one_point_four(1.4, scaler_recordings().raw_growth_to_limit_1p4, 235)]
fn should_grow_to_the_limit_like_the_kernel(
    #[case] growth_factor: f64,
    #[case] recorded: GrowthToLimit,
    #[case] count: usize,
) {
    let config = config(65536.0)
        .with_growth_factor(growth_factor)
        .with_growth_interval(1);
    let mut scaler = LossScaler::new(LossScaleConfig::Dynamic(config)).unwrap();

    assert_eq!(recorded.rows.len(), count);
    for (k, _, bits, tracker) in recorded.rows {
        scaler.update(false);
        assert_eq!(scaler.scale().to_bits(), bits.0, "growth {k}");
        assert_eq!(scaler.growth_tracker(), tracker, "growth {k}");
    }
}
