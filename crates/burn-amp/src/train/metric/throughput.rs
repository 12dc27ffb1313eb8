use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};

/// Metrics arrive in bursts: a shorter time says nothing.
const LEAST: Duration = Duration::from_millis(250);

/// Samples or tokens a second.
///
/// What is shown as an epoch's is the mean from its second step on, without the time that validation takes;
/// beside it is that of the last quarter of a second, or longer steps.
#[derive(Debug, Clone)]
pub struct ThroughputMetric {
    unit: &'static str,
    per_sample: f64,
    epoch: Option<Mark>,
    last: Option<Mark>,
    current: f64,
    mean: f64,
}

/// How far an epoch was at a time.
#[derive(Debug, Clone, Copy)]
struct Mark {
    at: Instant,
    samples: usize,
}

impl Mark {
    fn rate_to(&self, now: &Self) -> f64 {
        let samples = now.samples.saturating_sub(self.samples) as f64;
        samples / (now.at - self.at).as_secs_f64()
    }
}

impl ThroughputMetric {
    /// Samples a second, as the data loader counts them.
    pub fn samples() -> Self {
        Self::of("samples", 1.0)
    }

    /// Tokens a second, of samples with so many tokens each.
    ///
    /// # Panics
    ///
    /// If `tokens_per_sample` is zero.
    pub fn tokens(tokens_per_sample: usize) -> Self {
        assert!(
            tokens_per_sample > 0,
            "a sample has to have at least one token, got 0"
        );
        Self::of("tokens", tokens_per_sample as f64)
    }

    fn of(unit: &'static str, per_sample: f64) -> Self {
        Self {
            unit,
            per_sample,
            epoch: None,
            last: None,
            current: 0.0,
            mean: 0.0,
        }
    }

    /// Takes note that an epoch has seen so many samples.
    fn advance(&mut self, now: Mark) {
        let epoch = *self.epoch.get_or_insert(now);
        let last = *self.last.get_or_insert(now);
        if now.at - last.at >= LEAST {
            self.current = last.rate_to(&now) * self.per_sample;
            self.last = Some(now);
        }
        if now.at > epoch.at {
            self.mean = epoch.rate_to(&now) * self.per_sample;
            // Until then there is no better one.
            if last.at == epoch.at && now.at - epoch.at < LEAST {
                self.current = self.mean;
            }
        }
    }
}

impl Metric for ThroughputMetric {
    type Input = ();

    fn name(&self) -> MetricName {
        Arc::new("Throughput".to_owned())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes {
            unit: Some(format!("{}/s", self.unit)),
            higher_is_better: true,
        }
        .into()
    }

    fn update(&mut self, _item: &(), metadata: &MetricMetadata) -> SerializedEntry {
        self.advance(Mark {
            at: Instant::now(),
            samples: metadata.progress.items_processed,
        });
        let unit = self.unit;
        SerializedEntry::new(
            format!("epoch {:.0} {unit}/s - last {:.0}", self.mean, self.current),
            self.value().serialize(),
        )
    }

    fn clear(&mut self) {
        *self = Self::of(self.unit, self.per_sample);
    }
}

impl Numeric for ThroughputMetric {
    fn value(&self) -> NumericEntry {
        NumericEntry::Value(self.current)
    }

    fn running_value(&self) -> NumericEntry {
        NumericEntry::Value(self.mean)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_that_of_the_time_between_steps() {
        let start = Instant::now();
        let at = |milliseconds: u64, samples| Mark {
            at: start + Duration::from_millis(milliseconds),
            samples,
        };
        let mut metric = ThroughputMetric::tokens(10);
        metric.advance(at(0, 32));
        assert_eq!((metric.mean, metric.current), (0.0, 0.0));
        metric.advance(at(100, 64));
        assert_eq!((metric.mean, metric.current), (3200.0, 3200.0));
        metric.advance(at(500, 132));
        assert_eq!((metric.mean, metric.current), (2000.0, 2000.0));
        // One of a burst: it does not make 320,000 tokens a second.
        metric.advance(at(501, 164));
        assert_eq!(metric.current, 2000.0);
        metric.advance(at(1000, 232));
        assert_eq!((metric.mean, metric.current), (2000.0, 2000.0));
        metric.advance(at(2000, 232));
        assert_eq!((metric.mean, metric.current), (1000.0, 0.0));

        metric.clear();
        metric.advance(at(9000, 32));
        metric.advance(at(10_000, 64));
        assert_eq!(metric.mean, 320.0);
    }

    #[test]
    #[should_panic(expected = "a sample has to have at least one token, got 0")]
    fn a_sample_has_tokens() {
        ThroughputMetric::tokens(0);
    }
}
