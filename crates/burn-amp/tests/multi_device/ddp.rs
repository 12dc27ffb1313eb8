//! Burn's distributed data parallel training, by Burn's own server and strategy.

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn::optim::{AdamConfig, SgdConfig};
use burn::tensor::backend::distributed::{DistributedConfig, ReduceOperation};
use burn::tensor::{DType, Tensor};
use burn::train::ExecutionStrategy;
use burn_amp::loss_scale::{DynamicLossScaleConfig, LossScaleConfig};
use burn_amp::{Amp, AmpConfig, AmpOptimizerConfig, Reduction, StepCounters, TrainingMonitor};

use crate::backend::collective::take_sent;
use crate::backend::{Worker, Workers};
use crate::common;
use crate::net::{Entry, Plan, Training, log_of, loss, samples};

/// Burn has one server for a backend: trainings take turns.
fn take_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn strategy(devices: &[Worker], op: ReduceOperation) -> ExecutionStrategy<Training> {
    ExecutionStrategy::ddp(devices.to_vec(), DistributedConfig { all_reduce_op: op })
}

const REDUCTIONS: [(Reduction, DType); 3] = [
    (Reduction::F32, DType::F32),
    (Reduction::F16, DType::F16),
    (Reduction::Bf16, DType::BF16),
];

/// f16 with a scale low enough for these gradients in f16.
fn calm_f16() -> AmpConfig {
    let scaling = DynamicLossScaleConfig::new().with_init_scale(1024.0);
    AmpConfig::f16().with_loss_scale(LossScaleConfig::Dynamic(scaling))
}

/// Each of two workers takes four steps an epoch.
fn plan() -> Plan {
    Plan {
        samples: samples(64),
        batch: 8,
        epochs: 5,
        accumulate: None,
    }
}

fn logs(devices: [Worker; 2]) -> [Vec<(Vec<Vec<u32>>, f32)>; 2] {
    let key = |entry: Entry| (entry.parameters, entry.scale);
    devices.map(|device| log_of(device).into_iter().map(key).collect())
}

/// Compares the replicas bitwise, pass by pass, and returns what both went through.
fn in_step(devices: [Worker; 2], passes: usize) -> Vec<(Vec<Vec<u32>>, f32)> {
    let [one, other] = logs(devices);
    assert_eq!((one.len(), other.len()), (passes, passes));
    for (pass, (one, other)) in one.iter().zip(&other).enumerate() {
        assert_eq!(one.1, other.1, "the scales of pass {pass}");
        assert!(one.0 == other.0, "the parameters of pass {pass}");
    }
    one
}

#[test]
fn should_keep_replicas_and_scales_in_step() {
    let _turn = take_turn();
    for (index, (reduction, dtype)) in REDUCTIONS.into_iter().enumerate() {
        let first = 60 + 2 * index as u16;
        let devices = [Worker(first), Worker(first + 1)];
        // It grows until it overflows, several times.
        AmpConfig::f16()
            .with_growth_interval(1)
            .with_reduction(reduction)
            .init_devices(&devices)
            .unwrap();
        take_sent();
        let plan = plan();
        let optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
        let strategy = strategy(&devices, ReduceOperation::Mean);
        let net = plan.train::<Training, _>(optim, &devices[0], strategy);

        let before = plan.initial_loss::<Training>(&plan.samples, &devices[0]);
        let after = loss(&net, &plan.samples);
        assert!(after < before / 4.0, "{reduction:?}: {before} to {after}");

        in_step(devices, 20);
        for device in devices {
            let counters = TrainingMonitor::of(&device).unwrap().counters();
            assert_eq!(counters.applied + counters.skipped, 20, "{counters:?}");
            assert!(counters.skipped > 0, "{counters:?}");
        }
        // Four parameters of two workers.
        let sent = take_sent();
        assert_eq!(sent.len(), 20 * 4 * 2);
        assert!(sent.iter().all(|sent| *sent == dtype), "{reduction:?}");
    }
}

#[test]
fn should_skip_on_every_worker_when_one_overflows() {
    let _turn = take_turn();
    for (index, (reduction, _)) in REDUCTIONS.into_iter().enumerate() {
        let first = 66 + 2 * index as u16;
        let devices = [Worker(first), Worker(first + 1)];
        let config = calm_f16().with_reduction(reduction);
        config.init_devices(&devices).unwrap();
        let mut plan = plan();
        // In the second worker's half.
        plan.samples[40][0] = f32::INFINITY;
        let optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
        let strategy = strategy(&devices, ReduceOperation::Sum);
        plan.train::<Training, _>(optim, &devices[0], strategy);

        let one = in_step(devices, 20);
        for (step, pair) in one.windows(2).enumerate() {
            let skipped = step % 4 == 1;
            assert_eq!(pair[0].0 == pair[1].0, skipped, "{reduction:?}, {step}");
            let factor = if skipped { 0.5 } else { 1.0 };
            assert_eq!(pair[1].1, pair[0].1 * factor, "{reduction:?}, {step}");
        }
        for device in devices {
            let counters = TrainingMonitor::of(&device).unwrap().counters();
            let expected = StepCounters {
                applied: 15,
                skipped: 5,
                empty: 0,
            };
            assert_eq!(counters, expected, "{reduction:?}");
        }
    }
}

/// The mean over two halves of a batch is the gradient of the whole batch, up to the order of the sums.
#[test]
fn should_learn_what_one_worker_learns_on_the_whole_batch() {
    let _turn = take_turn();
    let train = |devices: &[Worker], reduction, plan: &Plan| {
        let config = AmpConfig::bf16().with_reduction(reduction);
        config.init_devices(devices).unwrap();
        let optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
        let strategy = match devices {
            [device] => ExecutionStrategy::single(*device),
            devices => strategy(devices, ReduceOperation::Mean),
        };
        let net = plan.train::<Training, _>(optim, &devices[0], strategy);
        loss(&net, &plan.samples)
    };
    let whole = Plan {
        batch: 64,
        ..plan()
    };
    let halves = Plan {
        batch: 32,
        ..plan()
    };
    let alone = train(&[Worker(80)], Reduction::F32, &whole);
    let f32 = train(&[Worker(81), Worker(82)], Reduction::F32, &halves);
    let bf16 = train(&[Worker(83), Worker(84)], Reduction::Bf16, &halves);
    assert!((f32 - alone).abs() < 1e-4 * alone, "{f32} for {alone}");
    assert!((bf16 - alone).abs() < 1e-2 * alone, "{bf16} for {alone}");
    assert_ne!(f32.to_bits(), bf16.to_bits());
}

#[test]
fn should_accumulate_before_a_step() {
    let _turn = take_turn();
    for (index, (reduction, _)) in REDUCTIONS.into_iter().enumerate() {
        let first = 90 + 2 * index as u16;
        let devices = [Worker(first), Worker(first + 1)];
        let config = calm_f16().with_reduction(reduction);
        config.init_devices(&devices).unwrap();
        let plan = Plan {
            accumulate: Some(2),
            ..plan()
        };
        let optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
        let strategy = strategy(&devices, ReduceOperation::Mean);
        plan.train::<Training, _>(optim, &devices[0], strategy);
        in_step(devices, 20);
        let counters = TrainingMonitor::of(&devices[1]).unwrap().counters();
        assert_eq!(counters.applied, 10, "{reduction:?}");
    }
}

/// As after a resume, which restores the scale of one device.
#[test]
fn should_begin_with_the_scale_of_the_first_device() {
    let _turn = take_turn();
    let devices = [Worker(76), Worker(77)];
    for device in &devices {
        AmpConfig::f16().init(device).unwrap();
    }
    // One step that is skipped, on the first device only.
    let mut poisoned = plan();
    poisoned.samples.truncate(8);
    poisoned.samples[0][0] = f32::NAN;
    poisoned.epochs = 1;
    let optim = || AmpOptimizerConfig::new().init(SgdConfig::new().init());
    let alone = ExecutionStrategy::single(devices[0]);
    poisoned.train::<Training, _>(optim(), &devices[0], alone);

    let strategy = strategy(&devices, ReduceOperation::Mean);
    plan().train::<Training, _>(optim(), &devices[0], strategy);
    let scales = |device| log_of(device).last().unwrap().scale;
    assert_eq!(devices.map(scales), [32768.0; 2]);
}

#[test]
fn should_refuse_devices_that_are_configured_differently() {
    let _turn = take_turn();
    let start = |devices: &[Worker]| {
        use burn::tensor::backend::distributed::DistributedBackend;
        let config = DistributedConfig {
            all_reduce_op: ReduceOperation::Sum,
        };
        let started = std::panic::catch_unwind(|| {
            Training::start_communication_server(devices, config);
            Training::close_communication_server(&devices[0]);
        });
        started.map_err(|panic| *panic.downcast::<String>().unwrap())
    };
    let devices = [Worker(72), Worker(73)];
    assert_eq!(start(&devices), Ok(()), "neither is configured");

    AmpConfig::f16().init(&devices[0]).unwrap();
    let message = start(&devices).unwrap_err();
    assert!(
        message.contains("Worker(73)") && message.contains("init_devices"),
        "{message}"
    );

    let slow = AmpConfig::f16().with_growth_interval(7);
    slow.init(&devices[1]).unwrap();
    let message = start(&devices).unwrap_err();
    assert!(
        message.contains("loss scale of device Worker(73)"),
        "{message}"
    );

    slow.init(&devices[0]).unwrap();
    assert_eq!(start(&devices), Ok(()));
    let message = start(&[devices[0], devices[0]]).unwrap_err();
    assert!(message.contains("Worker(72) is named twice"), "{message}");
}

/// A parameter's gradient can be replaced, as a program does that clips by hand.
#[test]
fn should_replace_the_gradient_of_a_distributed_parameter() {
    let _turn = take_turn();
    let device = Worker(74);
    AmpConfig::f16().init(&device).unwrap();
    let w = Tensor::<Training, 1>::from_floats([1.0, 2.0], &device)
        .require_grad()
        .set_distributed(74.into());
    assert!(w.is_distributed());
    let mut grads = (w.clone() * 3.0).sum().backward();
    assert_eq!(common::values(w.grad(&grads).unwrap()), [3.0; 2]);

    let zeros = Tensor::<Amp<Workers>, 1>::zeros([2], &device);
    w.grad_replace(&mut grads, zeros);
    assert_eq!(common::values(w.grad_remove(&mut grads).unwrap()), [0.0; 2]);
    assert!(w.grad(&grads).is_none());
}
