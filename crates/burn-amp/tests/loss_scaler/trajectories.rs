//! `GradScaler` step by step.

use burn_amp::loss_scale::{
    DynamicLossScaleConfig, LossScaleConfig, LossScaleConfigError, LossScaler, LossScalerRecord,
    OptimizerId, SharedScaler,
};

use crate::oracle::{TorchConfig, TorchFactors, Trajectory, scaler_recordings};

/// The scale's bits, the growth tracker and whether the step was skipped, after a step.
type Row = (u32, u32, bool);

/// What happens here where PyTorch's trajectory is not followed.
enum Instead {
    /// The configuration is refused.
    Refused(LossScaleConfigError),
    /// Scale, growth tracker and skipped after each recorded step.
    Runs(&'static [(f32, u32, bool)]),
}

const DEVIATIONS: &[(&str, &str, Instead)] = &[
    (
        "tracker_already_at_interval",
        "the tracker is compared by >=, so growth that is due takes place",
        Instead::Runs(&[
            (131072.0, 0, false),
            (131072.0, 1, false),
            (131072.0, 2, false),
        ]),
    ),
    (
        "tracker_beyond_interval",
        "the tracker is compared by >=, so growth that is due takes place",
        Instead::Runs(&[
            (131072.0, 0, false),
            (65536.0, 0, true),
            (65536.0, 1, false),
        ]),
    ),
    (
        "setters_midway",
        "an interval set below the tracker takes effect at the next finite step",
        Instead::Runs(&[
            (1024.0, 1, false),
            (2048.0, 0, false),
            (2048.0, 1, false),
            (8192.0, 0, false),
            (1024.0, 0, true),
            (4096.0, 0, false),
            (16384.0, 0, false),
        ]),
    ),
    (
        "enabled_false",
        "steps that are not finite are counted without scaling too",
        Instead::Runs(&[
            (1.0, 0, false),
            (1.0, 0, true),
            (1.0, 0, true),
            (1.0, 0, false),
        ]),
    ),
    (
        "tiny_scale_2e-127",
        "the scale is subnormal",
        Instead::Refused(init_scale_below_floor(f32::MIN_POSITIVE / 2.0)),
    ),
    (
        "tiny_scale_2e-129",
        "the scale's reciprocal is infinite",
        Instead::Refused(init_scale_below_floor(f32::MIN_POSITIVE / 8.0)),
    ),
    (
        "tiny_scale_2e-149",
        "the scale's reciprocal is infinite",
        Instead::Refused(init_scale_below_floor(f32::from_bits(1))),
    ),
    (
        "interval_zero",
        "growth would never take place",
        Instead::Refused(LossScaleConfigError::GrowthInterval(0)),
    ),
    (
        "backoff_negative",
        "the scale would become negative",
        Instead::Refused(LossScaleConfigError::BackoffFactor(-0.5)),
    ),
];

const fn init_scale_below_floor(value: f32) -> LossScaleConfigError {
    LossScaleConfigError::InitScale {
        value,
        min: f32::MIN_POSITIVE,
        max: f32::MAX,
    }
}

/// PyTorch's settings; `defaults` supplies the bounds, which PyTorch does not have.
fn configured(torch: &TorchConfig, defaults: &DynamicLossScaleConfig) -> LossScaleConfig {
    if !torch.enabled {
        return LossScaleConfig::none();
    }
    let config = defaults.clone().with_init_scale(torch.init_scale as f32);
    LossScaleConfig::Dynamic(with_factors(config, &torch.factors))
}

fn with_factors(config: DynamicLossScaleConfig, factors: &TorchFactors) -> DynamicLossScaleConfig {
    config
        .with_growth_factor(factors.growth_factor)
        .with_backoff_factor(factors.backoff_factor)
        .with_growth_interval(factors.growth_interval)
}

/// As close to having no bounds as it gets.
fn widest() -> DynamicLossScaleConfig {
    DynamicLossScaleConfig::new()
        .with_min_scale(f32::MIN_POSITIVE)
        .with_max_scale(f32::MAX)
}

fn theirs(trajectory: &Trajectory) -> Vec<Row> {
    let rows = trajectory.records.iter();
    rows.map(|step| {
        (
            step.scale_bits(),
            step.growth_tracker_after,
            step.any_skipped(),
        )
    })
    .collect()
}

fn ours(trajectory: &Trajectory, scaler: LossScaler) -> Vec<Row> {
    if trajectory
        .records
        .iter()
        .any(|step| step.verdicts().len() > 1)
    {
        run_shared(trajectory, scaler)
    } else {
        run_alone(trajectory, scaler)
    }
}

fn run_alone(trajectory: &Trajectory, mut scaler: LossScaler) -> Vec<Row> {
    if let Some(tracker) = trajectory.loaded_growth_tracker {
        let LossScalerRecord::V1(mut record) = scaler.to_record() else {
            panic!("records are written in version 1");
        };
        record.growth_tracker = tracker;
        scaler.load_record(LossScalerRecord::V1(record)).unwrap();
    }

    let mut rows = Vec::new();
    let mut records = trajectory.records.iter().enumerate().peekable();
    let steps = trajectory.steps_run.unwrap_or(trajectory.records.len());
    for index in 0..steps {
        let recorded = records.next_if(|(position, step)| step.step.unwrap_or(*position) == index);
        let Some((_, step)) = recorded else {
            // Of long runs only the interesting steps are recorded; the others are finite.
            scaler.update(false);
            continue;
        };
        let skipped = scaler.counters().skipped;
        match step.update_new_scale {
            Some(scale) => scaler.set_scale(scale).unwrap(),
            None => {
                scaler.update(step.verdicts()[0]);
            }
        }
        rows.push(row(&scaler, skipped));

        if let Some(factors) = &step.setters_called_after_update {
            let config = with_factors(widest(), factors);
            scaler
                .reconfigure(LossScaleConfig::Dynamic(config))
                .unwrap();
        }
        if step.state_dict_saved.is_some() {
            let saved = scaler.to_record();
            scaler.update(true);
            scaler.load_record(saved).unwrap();
        }
    }
    rows
}

fn run_shared(trajectory: &Trajectory, scaler: LossScaler) -> Vec<Row> {
    let shared = SharedScaler::new(scaler);
    let optimizers: Vec<_> = (0..3).map(|_| OptimizerId::new()).collect();

    let steps = trajectory.records.iter();
    steps
        .map(|step| {
            shared.begin_backward();
            let skipped = shared.state().counters().skipped;
            for (optimizer, found_inf) in optimizers.iter().zip(step.verdicts()) {
                shared.report(*optimizer, found_inf);
            }
            row(&shared.state(), skipped)
        })
        .collect()
}

fn row(scaler: &LossScaler, skipped_before: u64) -> Row {
    (
        scaler.scale().to_bits(),
        scaler.growth_tracker(),
        scaler.counters().skipped > skipped_before,
    )
}

fn check_trajectory(trajectory: &Trajectory) {
    let name = &trajectory.name;
    let scaler = LossScaler::new(configured(&trajectory.config, &widest()));
    let deviation = DEVIATIONS.iter().find(|(deviant, ..)| deviant == name);

    match deviation {
        None => assert_eq!(
            ours(trajectory, scaler.unwrap()),
            theirs(trajectory),
            "{name}"
        ),
        Some((_, reason, Instead::Refused(error))) => {
            assert_eq!(scaler.as_ref(), Err(error), "{name}: {reason}");
        }
        Some((_, reason, Instead::Runs(expected))) => {
            let expected: Vec<Row> = expected
                .iter()
                .map(|(s, t, k)| (s.to_bits(), *t, *k))
                .collect();
            assert_ne!(expected, theirs(trajectory), "{name} does not deviate");
            assert_eq!(
                ours(trajectory, scaler.unwrap()),
                expected,
                "{name}: {reason}"
            );
        }
    }
}

#[test]
fn should_follow_every_trajectory_or_deviate_as_listed() {
    let trajectories = scaler_recordings().trajectories;
    assert_eq!(trajectories.len(), 33);
    for (deviant, ..) in DEVIATIONS {
        assert!(
            trajectories.iter().any(|t| t.name == *deviant),
            "{deviant} is not recorded"
        );
    }

    trajectories.iter().for_each(check_trajectory);
}

#[test]
fn should_follow_with_the_default_bounds_while_the_scale_is_within_them() {
    let defaults = DynamicLossScaleConfig::new();
    let bounds = defaults.min_scale..=defaults.max_scale;
    let recordings = scaler_recordings();
    let within: Vec<_> = recordings
        .trajectories
        .iter()
        .filter(|t| !DEVIATIONS.iter().any(|(deviant, ..)| deviant == &t.name))
        .filter(|t| bounds.contains(&(t.config.init_scale as f32)))
        .collect();
    assert_eq!(within.len(), 21);

    for trajectory in within {
        let scaler = LossScaler::new(configured(&trajectory.config, &defaults)).unwrap();
        assert_eq!(
            ours(trajectory, scaler),
            theirs(trajectory),
            "{}",
            trajectory.name
        );
    }
}
