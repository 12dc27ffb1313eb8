//! Several optimizers, one scaler.

use burn_amp::loss_scale::{
    DynamicLossScaleConfig, LossScaleConfig, LossScaler, OptimizerId, SharedScaler,
};

fn shared() -> SharedScaler {
    SharedScaler::new(LossScaler::new(LossScaleConfig::dynamic()).unwrap())
}

#[test]
fn should_combine_what_is_reported_between_backward_passes() {
    let scaler = shared();
    let (a, b) = (OptimizerId::new(), OptimizerId::new());
    assert_eq!(scaler.begin_backward(), 65536.0);

    let alone = scaler.report(a, false);
    assert!(!alone.found_inf);
    assert_eq!(scaler.state().growth_tracker(), 1);

    let together = scaler.report(b, true);
    assert_eq!((together.found_inf, together.current), (true, 32768.0));
    assert_eq!(scaler.scale(), 32768.0);
    assert_eq!(scaler.state().growth_tracker(), 0);

    assert_eq!(scaler.begin_backward(), 32768.0);
    assert_eq!(scaler.begin_backward(), 32768.0, "nothing is counted twice");
    assert_eq!(scaler.state().counters().skipped, 1);
    assert_eq!(scaler.state().counters().applied, 0);
}

#[test]
fn should_keep_an_overflow_that_a_later_finite_report_follows() {
    let scaler = shared();
    scaler.report(OptimizerId::new(), true);

    let update = scaler.report(OptimizerId::new(), false);

    assert_eq!((update.found_inf, update.current), (true, 32768.0));
}

#[test]
fn should_start_the_next_verdict_when_an_optimizer_reports_again() {
    let scaler = shared();
    let (a, b) = (OptimizerId::new(), OptimizerId::new());
    scaler.report(a, true);
    scaler.report(b, true);

    let second = scaler.report(a, true);
    assert_eq!((second.previous, second.current), (32768.0, 16384.0));

    let joined = scaler.report(b, true);
    assert_eq!((joined.previous, joined.current), (32768.0, 16384.0));
}

#[test]
fn should_commit_once() {
    let scaler = shared();
    assert_eq!(scaler.commit(), None);

    let reported = scaler.report(OptimizerId::new(), true);
    let pending = scaler.state();

    assert_eq!(scaler.commit(), Some(reported));
    assert_eq!(scaler.commit(), None);
    assert_eq!(scaler.state(), pending);
}

#[test]
fn should_record_the_pending_verdict() {
    let scaler = shared();
    scaler.report(OptimizerId::new(), true);

    let restored = LossScaler::from_record(scaler.state().to_record()).unwrap();

    assert_eq!(restored.scale(), scaler.begin_backward());
    assert_eq!(restored, scaler.state());
}

#[test]
fn should_replace_the_pending_verdict_by_a_loaded_record() {
    let scaler = shared();
    let saved = scaler.state();
    scaler.report(OptimizerId::new(), true);

    scaler.load(saved.to_record()).unwrap();

    assert_eq!(scaler.commit(), None);
    assert_eq!(scaler.state(), saved);
}

#[test]
fn should_commit_before_its_scale_or_settings_change() {
    let scaler = shared();
    scaler.report(OptimizerId::new(), true);
    scaler.set_scale(3.0).unwrap();
    assert_eq!(scaler.begin_backward(), 3.0);
    assert_eq!(scaler.state().counters().skipped, 1);

    scaler.report(OptimizerId::new(), true);
    let slow = DynamicLossScaleConfig::new().with_backoff_factor(0.9);
    scaler.reconfigure(LossScaleConfig::Dynamic(slow)).unwrap();
    assert_eq!(scaler.begin_backward(), 1.5);
    assert_eq!(scaler.state().counters().skipped, 2);
}

#[test]
fn should_keep_the_pending_verdict_when_a_change_is_refused() {
    let scaler = shared();
    let a = OptimizerId::new();
    scaler.report(a, false);

    scaler.set_scale(f32::NAN).unwrap_err();
    scaler.reconfigure(LossScaleConfig::fixed(0.0)).unwrap_err();

    scaler.report(OptimizerId::new(), true);
    assert_eq!(
        scaler.state().counters().applied,
        0,
        "both reports are one verdict"
    );
    assert_eq!(scaler.begin_backward(), 32768.0);
}

#[test]
fn should_be_one_scaler_for_all_handles_and_threads() {
    let scaler = shared();
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let handle = scaler.clone();
            std::thread::spawn(move || handle.report(OptimizerId::new(), true))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }

    assert_eq!(scaler.begin_backward(), 32768.0);
    assert_eq!(scaler.state().counters().skipped, 1);
}

#[test]
fn should_tell_its_handles_from_an_equal_scaler() {
    let scaler = shared();

    assert!(scaler.is_same(&scaler.clone()));
    assert!(!scaler.is_same(&shared()));
}
