use std::sync::Arc;

use burn::tensor::backend::DeviceOps;
use burn::train::metric::state::{FormatOptions, NumericMetricState};
use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use crate::TrainingMonitor;
use crate::policy::DeviceKey;

/// The norm over all gradients, in f32 and before clipping, of the last step that was applied on a device.
///
/// The optimizer has to compute it: it does if it clips by norm, or with
/// [`with_gradient_norm`](crate::AmpOptimizerConfig::with_gradient_norm). Reading it waits for the device,
/// on the thread that computes metrics.
#[derive(Clone)]
pub struct GradientNormMetric {
    device: DeviceKey,
    state: NumericMetricState,
}

impl GradientNormMetric {
    /// The gradients on `device`.
    pub fn new<D: DeviceOps>(device: &D) -> Self {
        Self {
            device: DeviceKey::of(device),
            state: NumericMetricState::new(),
        }
    }
}

impl std::fmt::Debug for GradientNormMetric {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GradientNormMetric")
            .field("norm", &self.value().current())
            .finish_non_exhaustive()
    }
}

impl Metric for GradientNormMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        Arc::new("Gradient Norm".to_owned())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: None,
            higher_is_better: false,
        }
        .into()
    }

    fn update(&mut self, _item: &(), _metadata: &MetricMetadata) -> SerializedEntry {
        let norm = TrainingMonitor::of_key(self.device).and_then(|monitor| monitor.gradient_norm());
        match norm {
            Some(norm) => {
                let format = FormatOptions::new(self.name()).precision(3);
                self.state.update(norm.into(), 1, format)
            }
            // A count of none: an average is not changed by it.
            None => {
                let nothing = NumericEntry::Aggregated {
                    aggregated_value: 0.0,
                    count: 0,
                };
                SerializedEntry::new(
                    "not computed: see AmpOptimizerConfig::with_gradient_norm".to_owned(),
                    nothing.serialize(),
                )
            }
        }
    }

    fn clear(&mut self) {
        self.state.reset();
    }
}

impl Numeric for GradientNormMetric {
    fn value(&self) -> NumericEntry {
        self.state.current_value()
    }

    fn running_value(&self) -> NumericEntry {
        self.state.running_value()
    }
}
