use burn::train::metric::{NumericEntry, SerializedEntry};

/// A value of which the last counts, and not the mean.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Gauge(Option<f64>);

impl Gauge {
    /// `shown` is for the dashboard, `value` for the log.
    pub(super) fn set(&mut self, value: f64, shown: String) -> SerializedEntry {
        self.0 = Some(value);
        SerializedEntry::new(shown, NumericEntry::Value(value).serialize())
    }

    /// NaN before there is one, as in Burn's metrics.
    pub(super) fn entry(&self) -> NumericEntry {
        NumericEntry::Value(self.0.unwrap_or(f64::NAN))
    }
}
