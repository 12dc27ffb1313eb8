//! Learning-rate schedules and early stopping in mixed precision.

use std::time::Duration;

use burn::backend::Flex;
use burn::lr_scheduler::composed::{ComposedLrScheduler, ComposedLrSchedulerConfig};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::module::Module;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::train::metric::LossMetric;
use burn::train::metric::store::{Aggregate, Direction, EventStoreClient, Split};
use burn::train::{
    EarlyStoppingStrategy, MetricEarlyStoppingStrategy, RegressionOutput, StoppingCondition,
};
use burn_amp::AmpConfig;

use crate::support::{
    Batch, Configured, Epochs, Losses, Ours, Plain, Plan, Product, Rows, Step, f16_from, folder,
    learns, output, sgd, steps,
};

/// A line through the origin.
#[derive(Module, Debug)]
struct Line<B: Backend> {
    inner: Product<B>,
}

impl<B: Backend> Line<B> {
    fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let y = batch.x.clone().matmul(self.inner.w.val());
        let loss = (y.clone() - batch.y.clone()).powi_scalar(2).mean();
        output(loss, y, batch)
    }
}
learns!(Line);

/// Points of a line with this slope.
fn points(slope: f32) -> Rows {
    let x = vec![1.0, -0.5, 0.25, 1.5];
    let y = x.iter().map(|x| slope * x).collect();
    Rows {
        x,
        y,
        count: 4,
        weight: 1.0,
    }
}

const EPOCHS: usize = 20;
const STEPS: usize = 8;

fn schedule() -> ComposedLrScheduler {
    ComposedLrSchedulerConfig::new()
        .linear(LinearLrSchedulerConfig::new(0.125, 1.0, STEPS))
        .cosine(CosineAnnealingLrSchedulerConfig::new(0.02, EPOCHS * STEPS).with_min_lr(1e-4))
        .init()
        .unwrap()
}

/// Burn's strategy. Burn may ask it before the thread of the metrics has come to the end of the epoch,
/// and then goes on; this one waits for the epoch's one value.
#[derive(Clone)]
struct Patient(MetricEarlyStoppingStrategy);

impl Patient {
    fn new() -> Self {
        Self(MetricEarlyStoppingStrategy::new(
            &LossMetric::<Flex>::new(),
            Aggregate::Mean,
            Direction::Lowest,
            Split::Valid,
            StoppingCondition::NoImprovementSince { n_epochs: 2 },
        ))
    }
}

impl EarlyStoppingStrategy for Patient {
    fn should_stop(&mut self, epoch: usize, store: &EventStoreClient) -> bool {
        let is_there = || store.find_metric("Loss", epoch, Aggregate::Mean, &Split::Valid);
        while is_there().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.should_stop(epoch, store)
    }
}

/// Learns a slope of 2 and is judged by one of 1, so that it gets better at first and then worse.
fn train<B: AutodiffBackend>() -> (Vec<Step>, Losses) {
    let folder = folder();
    let (optim, log) = sgd::<B, Line<B>>();
    let train = Epochs::all(vec![points(2.0); STEPS]);
    let valid = Epochs::all(vec![points(1.0)]);
    let model = Line {
        inner: Product::<B>::new(0.0),
    };
    let plan = Plan::new(&folder, EPOCHS);
    let (_, losses) = plan.fit_with(model, optim, schedule(), train, valid, |training| {
        training.early_stopping(Patient::new())
    });
    (steps(&log), losses)
}

#[test]
fn a_run_in_half_stops_early_and_follows_the_schedule_as_one_in_f32() {
    let device = Configured::take();
    let (plain, plain_losses) = train::<Plain>();
    let epochs = plain_losses.valid.len();
    assert!((4..EPOCHS).contains(&epochs), "{plain_losses:?}");
    assert_eq!(plain.len(), epochs * STEPS);

    // Too high a scale at first: a step is skipped, and Burn's schedule goes on.
    for (config, skips) in [
        (f16_from(65536.0), 1),
        (f16_from(1024.0), 0),
        (AmpConfig::bf16(), 0),
    ] {
        device.init(&config);
        let (ours, losses) = train::<Ours>();
        let skipped = ours.iter().filter(|step| step.is_skipped()).count();
        assert_eq!(skipped, skips);
        assert_eq!(losses.valid.len(), epochs, "{losses:?}");
        let rates = |steps: &[Step]| -> Vec<f64> { steps.iter().map(|step| step.lr).collect() };
        assert_eq!(rates(&ours), rates(&plain));
        for (ours, plain) in losses.valid.iter().zip(&plain_losses.valid) {
            assert!((ours - plain).abs() < 0.05, "{losses:?} {plain_losses:?}");
        }
    }
}
