use std::fmt;
use std::sync::Arc;

use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

use super::gauge::Gauge;
use crate::memory::MemorySource;

const MEBIBYTE: f64 = (1 << 20) as f64;

/// The most memory in use at once, in MiB, since the program began or [`MemorySource::reset_peak`].
///
/// # Example
///
/// ```
/// use burn_amp::memory::HeapMeter;
/// use burn_amp::train::metric::PeakMemoryMetric;
///
/// #[global_allocator]
/// static HEAP: HeapMeter = HeapMeter::system();
///
/// fn main() {
///     let metric = PeakMemoryMetric::new(&HEAP);
///     // training.metric_train_numeric(metric)
/// #   let _ = metric;
/// }
/// ```
#[derive(Clone)]
pub struct PeakMemoryMetric {
    source: Arc<dyn MemorySource + Send + Sync>,
    gauge: Gauge,
}

impl PeakMemoryMetric {
    /// Reads `source` after each step: a [`HeapMeter`](crate::memory::HeapMeter), or a device's memory,
    /// for which it waits each time.
    pub fn new(source: impl MemorySource + Send + Sync + 'static) -> Self {
        Self {
            source: Arc::new(source),
            gauge: Gauge::default(),
        }
    }
}

impl fmt::Debug for PeakMemoryMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeakMemoryMetric")
            .field("gauge", &self.gauge)
            .finish_non_exhaustive()
    }
}

impl Metric for PeakMemoryMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        Arc::new("Peak Memory".to_owned())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: Some("MiB".to_owned()),
            higher_is_better: false,
        }
        .into()
    }

    fn update(&mut self, _item: &(), _metadata: &MetricMetadata) -> SerializedEntry {
        let peak = self.source.peak() as f64 / MEBIBYTE;
        self.gauge.set(peak, format!("{peak:.1} MiB"))
    }

    fn clear(&mut self) {}
}

impl Numeric for PeakMemoryMetric {
    fn value(&self) -> NumericEntry {
        self.gauge.entry()
    }

    fn running_value(&self) -> NumericEntry {
        self.gauge.entry()
    }
}
