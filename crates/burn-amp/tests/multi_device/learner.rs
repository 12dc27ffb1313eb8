//! Burn's `Learner` over several devices.

use burn::optim::{AdamConfig, SgdConfig};
use burn::train::{ExecutionStrategy, MultiDeviceOptim};
use burn_amp::{AmpConfig, AmpOptimizerConfig, TrainingMonitor};

use crate::backend::Worker;
use crate::net::{Plan, Training, log_of, loss, samples};

const MODES: [MultiDeviceOptim; 2] = [
    MultiDeviceOptim::OptimMainDevice,
    MultiDeviceOptim::OptimSharded,
];

/// Two devices take two batches a step each.
fn plan() -> Plan {
    Plan {
        samples: samples(64),
        batch: 8,
        epochs: 5,
        accumulate: None,
    }
}

#[test]
fn should_learn_on_two_devices() {
    for (index, mode) in MODES.into_iter().enumerate() {
        let first = 40 + 2 * index as u16;
        let devices = [Worker(first), Worker(first + 1)];
        // It grows until it overflows, several times.
        AmpConfig::f16()
            .with_growth_interval(1)
            .init_devices(&devices)
            .unwrap();
        let plan = plan();
        let optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
        let strategy = ExecutionStrategy::multi(devices.to_vec(), mode);
        let net = plan.train::<Training, _>(optim, &devices[0], strategy);

        let before = plan.initial_loss::<Training>(&plan.samples, &devices[0]);
        let after = loss(&net, &plan.samples);
        assert!(after < before / 4.0, "{mode:?}: {before} to {after}");
        let counters = TrainingMonitor::of(&devices[0]).unwrap().counters();
        assert_eq!(counters.applied + counters.skipped, 20, "{counters:?}");
        assert!(counters.skipped > 0, "{counters:?}");

        let scales = devices.map(|device| {
            let scales: Vec<f32> = log_of(device).iter().map(|entry| entry.scale).collect();
            scales
        });
        assert_eq!(scales[0].len(), 20);
        assert_eq!(scales[0], scales[1], "{mode:?}: the scales are in step");
    }
}

#[test]
fn should_skip_for_one_device_and_go_on() {
    for (index, mode) in MODES.into_iter().enumerate() {
        let first = 44 + 2 * index as u16;
        let devices = [Worker(first), Worker(first + 1)];
        AmpConfig::f16().init_devices(&devices).unwrap();
        let mut plan = plan();
        // In the second device's half: it has not a finite gradient in one step of four.
        plan.samples[40][0] = f32::INFINITY;
        let optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
        let strategy = ExecutionStrategy::multi(devices.to_vec(), mode);
        plan.train::<Training, _>(optim, &devices[0], strategy);

        let counters = TrainingMonitor::of(&devices[0]).unwrap().counters();
        assert_eq!((counters.applied, counters.skipped), (15, 5), "{mode:?}");
        for device in devices {
            let log = log_of(device);
            for (step, pair) in log.windows(2).enumerate() {
                let skipped = step % 4 == 1;
                assert_eq!(pair[0].parameters == pair[1].parameters, skipped);
                let factor = if skipped { 0.5 } else { 1.0 };
                assert_eq!(pair[1].scale, pair[0].scale * factor, "{device:?}, {step}");
            }
        }
    }
}

/// One device for two workers, as there may be on a CPU.
#[cfg(not(feature = "ddp"))]
#[test]
fn should_learn_with_two_workers_on_one_device() {
    use burn::backend::Flex;
    use burn::backend::flex::FlexDevice;
    use burn_amp::{Amp, Autodiff};

    let devices = [FlexDevice; 2];
    AmpConfig::f16()
        .with_growth_interval(1)
        .init_devices(&devices)
        .unwrap();
    let plan = plan();
    let mut total = 0;
    for mode in MODES {
        let optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
        let strategy = ExecutionStrategy::multi(devices.to_vec(), mode);
        let net = plan.train::<Autodiff<Amp<Flex>>, _>(optim, &FlexDevice, strategy);

        let before = plan.initial_loss::<Autodiff<Amp<Flex>>>(&plan.samples, &FlexDevice);
        let after = loss(&net, &plan.samples);
        assert!(after < before / 4.0, "{mode:?}: {before} to {after}");
        let counters = TrainingMonitor::of(&FlexDevice).unwrap().counters();
        assert_eq!(counters.applied + counters.skipped, 20, "{counters:?}");
        total += counters.skipped;
    }
    assert!(total > 0);
    AmpConfig::f32().init(&FlexDevice).unwrap();
}
