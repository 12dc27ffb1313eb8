use std::sync::Arc;

use burn::tensor::backend::DeviceOps;
use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use super::gauge::Gauge;
use crate::TrainingMonitor;
use crate::policy::DeviceKey;

/// The loss scale after the last step on a device; 1 where losses are not scaled.
#[derive(Debug, Clone)]
pub struct LossScaleMetric {
    device: DeviceKey,
    gauge: Gauge,
}

impl LossScaleMetric {
    /// The scale of `device`.
    pub fn new<D: DeviceOps>(device: &D) -> Self {
        Self {
            device: DeviceKey::of(device),
            gauge: Gauge::default(),
        }
    }
}

impl Metric for LossScaleMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        Arc::new("Loss Scale".to_owned())
    }

    fn description(&self) -> Option<String> {
        Some("What losses are multiplied with before backward".to_owned())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes::default().into()
    }

    fn update(&mut self, _item: &(), _metadata: &MetricMetadata) -> SerializedEntry {
        let monitor = TrainingMonitor::of_key(self.device);
        let scale = monitor.map_or(1.0, |monitor| monitor.scale());
        self.gauge.set(scale.into(), scale.to_string())
    }

    fn clear(&mut self) {}
}

impl Numeric for LossScaleMetric {
    fn value(&self) -> NumericEntry {
        self.gauge.entry()
    }

    fn running_value(&self) -> NumericEntry {
        self.gauge.entry()
    }
}
