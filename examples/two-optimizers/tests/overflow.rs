//! One optimizer's overflow is not the other's. One test, in a process of its own: the loss scale and
//! the random generator are the device's.

use two_optimizers::{Plan, TARGET_MEAN, Training, train};

#[test]
fn should_step_the_generator_where_the_discriminator_overflows() {
    let plan = Plan {
        steps: 400,
        overflow_every: 60,
        growth_interval: 100,
        seed: 1,
    };
    let report = train::<Training>(&plan, &Default::default()).unwrap();
    assert_eq!(report.discriminator.skipped, [60, 120, 180, 240, 300, 360]);
    assert_eq!(report.discriminator.counters.applied, 394);
    assert_eq!(report.discriminator.counters.skipped, 6);
    assert!(report.generator.skipped.is_empty());
    assert_eq!(report.generator.counters.applied, 400);

    // A step has two backward passes: the scale doubles after 50 steps and is halved 10 later.
    let at = |step: usize| report.scales[step - 1];
    assert_eq!(
        [at(49), at(50), at(59), at(60)],
        [65536.0, 131072.0, 131072.0, 65536.0]
    );
    assert!(
        report
            .scales
            .iter()
            .all(|scale| [65536.0, 131072.0].contains(scale))
    );
    assert!((report.mean - TARGET_MEAN).abs() < 1.5, "{}", report.mean);
}
