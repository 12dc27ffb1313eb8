use std::sync::Arc;

use burn::tensor::backend::DeviceOps;
use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use super::gauge::Gauge;
use crate::policy::DeviceKey;
use crate::{StepCounters, TrainingMonitor};

/// The steps that the optimizer of a device has skipped so far, because a gradient was not finite; those
/// before a resume included.
#[derive(Debug, Clone)]
pub struct SkippedStepsMetric {
    device: DeviceKey,
    gauge: Gauge,
}

impl SkippedStepsMetric {
    /// The steps on `device`.
    pub fn new<D: DeviceOps>(device: &D) -> Self {
        Self {
            device: DeviceKey::of(device),
            gauge: Gauge::default(),
        }
    }
}

impl Metric for SkippedStepsMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        Arc::new("Skipped Steps".to_owned())
    }

    fn description(&self) -> Option<String> {
        Some("Steps that were left out because a gradient was not finite".to_owned())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: Some("steps".to_owned()),
            higher_is_better: false,
        }
        .into()
    }

    fn update(&mut self, _item: &(), _metadata: &MetricMetadata) -> SerializedEntry {
        let counters = TrainingMonitor::of_key(self.device)
            .map_or_else(StepCounters::default, |monitor| monitor.counters());
        let steps = counters.applied + counters.skipped;
        let shown = format!("{} of {steps}", counters.skipped);
        self.gauge.set(counters.skipped as f64, shown)
    }

    fn clear(&mut self) {}
}

impl Numeric for SkippedStepsMetric {
    fn value(&self) -> NumericEntry {
        self.gauge.entry()
    }

    fn running_value(&self) -> NumericEntry {
        self.gauge.entry()
    }
}
