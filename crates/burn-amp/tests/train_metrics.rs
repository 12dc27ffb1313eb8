//! Metrics for Burn's dashboard. One test: what they show belongs to the device.

use std::sync::Arc;

use burn::backend::Flex;
use burn::data::dataloader::Progress;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::Tensor;
use burn::train::metric::{Metric, MetricAttributes, MetricMetadata, Numeric};
use burn_amp::loss_scale::{DynamicLossScaleConfig, LossScaleConfig};
use burn_amp::memory::MemorySource;
use burn_amp::train::metric::{
    GradientNormMetric, LossScaleMetric, PeakMemoryMetric, SkippedStepsMetric, ThroughputMetric,
};
use burn_amp::{Amp, AmpConfig, AmpOptimizer, AmpOptimizerConfig, Autodiff};

type B = Autodiff<Amp<Flex>>;

fn metadata(items_processed: usize) -> MetricMetadata {
    let progress = |items_processed| Progress {
        items_processed,
        items_total: 100,
    };
    MetricMetadata {
        progress: progress(items_processed),
        global_progress: progress(1),
        iteration: Some(items_processed),
        lr: None,
    }
}

/// What the dashboard and the log get, and the values.
fn update<M: Metric<Input = ()> + Numeric>(metric: &mut M) -> (String, String, f64, f64) {
    let entry = metric.update(&(), &metadata(1));
    let (value, running) = (metric.value().current(), metric.running_value().current());
    (entry.formatted, entry.serialized, value, running)
}

fn step<O: Optimizer<Linear<B>, B>>(optim: &mut O, model: Linear<B>, x: f32) -> Linear<B> {
    let x = Tensor::<B, 2>::full([1, 2], x, &Default::default());
    let grads = GradientsParams::from_grads(model.forward(x).sum().backward(), &model);
    optim.step(0.0, model, grads)
}

struct Fixed;

impl MemorySource for Fixed {
    fn in_use(&self) -> u64 {
        1 << 20
    }

    fn peak(&self) -> u64 {
        5 << 19
    }

    fn reset_peak(&self) {
        panic!("another's peak");
    }
}

#[test]
fn metrics_show_what_the_last_step_on_the_device_did() {
    let device = Default::default();
    let mut scale = LossScaleMetric::new(&device);
    let mut skipped = SkippedStepsMetric::new(&device);
    let mut norm = GradientNormMetric::new(&device);

    // Before any step.
    assert_eq!(update(&mut scale), ("1".into(), "1".into(), 1.0, 1.0));
    assert_eq!(
        update(&mut skipped),
        ("0 of 0".into(), "0".into(), 0.0, 0.0)
    );
    let (shown, logged, ..) = update(&mut norm);
    assert!(shown.contains("with_gradient_norm"), "{shown}");
    assert_eq!(logged, "0,0");

    // The gradient at the output is the scale itself, an f16.
    let scaling = DynamicLossScaleConfig::new().with_init_scale(1024.0);
    let config = AmpConfig::f16().with_loss_scale(LossScaleConfig::Dynamic(scaling));
    config.init(&device).unwrap();
    let new = |norm| -> AmpOptimizer<_> {
        AmpOptimizerConfig::new()
            .with_gradient_norm(norm)
            .init(SgdConfig::new().init::<B, Linear<B>>())
    };
    let mut model: Linear<B> = LinearConfig::new(2, 1).with_bias(false).init(&device);
    let mut optim = new(false);
    model = step(&mut optim, model, 1.0);
    model = step(&mut optim, model, f32::INFINITY);
    let half = 512.0;
    assert_eq!(update(&mut scale), ("512".into(), "512".into(), half, half));
    assert_eq!(
        update(&mut skipped),
        ("1 of 2".into(), "1".into(), 1.0, 1.0)
    );
    assert_eq!(update(&mut norm).1, "0,0");

    let mut optim = new(true);
    model = step(&mut optim, model, 3.0);
    let (_, logged, value, running) = update(&mut norm);
    let three = f64::from(18f32.sqrt());
    assert_eq!(
        (logged, value, running),
        (format!("{three},1"), three, three)
    );
    step(&mut optim, model, 4.0);
    let four = f64::from(32f32.sqrt());
    let (.., value, running) = update(&mut norm);
    assert_eq!((value, running), (four, (three + four) / 2.0));
    norm.clear();
    assert_eq!(update(&mut norm).3, four);
    // A scale is no mean over an epoch.
    scale.clear();
    assert_eq!(scale.running_value().current(), half);

    // A device's own optimizers and no other's.
    let f32_device = Default::default();
    AmpConfig::f32().init(&f32_device).unwrap();
    let mut plain = new(false);
    step(&mut plain, LinearConfig::new(2, 1).init(&f32_device), 1.0);
    assert_eq!(update(&mut scale).2, 1.0);
    assert_eq!(update(&mut skipped).0, "0 of 1");

    let mut peak = PeakMemoryMetric::new(Fixed);
    assert_eq!(
        update(&mut peak),
        ("2.5 MiB".into(), "2.5".into(), 2.5, 2.5)
    );
    peak.clear();

    let mut speed = ThroughputMetric::tokens(4);
    assert_eq!(update(&mut speed).1, "0");
    assert!(
        speed
            .update(&(), &metadata(33))
            .formatted
            .contains("tokens/s")
    );
    assert!(speed.running_value().current() > 0.0);

    let names = [
        scale.name(),
        skipped.name(),
        norm.name(),
        peak.name(),
        speed.name(),
    ];
    let expected = [
        "Loss Scale",
        "Skipped Steps",
        "Gradient Norm",
        "Peak Memory",
        "Throughput",
    ];
    assert_eq!(names, expected.map(|name| Arc::new(name.to_owned())));
    let unit = |attributes| match attributes {
        MetricAttributes::Numeric(numeric) => numeric.unit,
        MetricAttributes::None => None,
    };
    assert_eq!(unit(speed.attributes()).as_deref(), Some("tokens/s"));
}
