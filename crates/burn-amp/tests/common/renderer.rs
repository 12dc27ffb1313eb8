//! A renderer for trainings by Burn's `Learner` in tests.

use std::sync::{Arc, Mutex};

use burn::train::LearnerSummary;
use burn::train::metric::MetricDefinition;
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};

/// What the metrics came to, in the order of the batches.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Losses {
    pub train: Vec<f64>,
    pub valid: Vec<f64>,
}

/// A renderer that shows nothing.
#[derive(Debug, Clone, Default)]
pub struct Silent(Arc<Mutex<Losses>>);

impl Silent {
    pub fn losses(&self) -> Losses {
        self.0.lock().unwrap().clone()
    }
}

fn loss(state: &MetricState) -> Option<f64> {
    match state {
        MetricState::Numeric(_, value) => Some(value.current()),
        MetricState::Generic(_) => None,
    }
}

impl MetricsRendererTraining for Silent {
    fn update_train(&mut self, state: MetricState) {
        self.0.lock().unwrap().train.extend(loss(&state));
    }

    fn update_valid(&mut self, state: MetricState) {
        self.0.lock().unwrap().valid.extend(loss(&state));
    }

    fn render_train(&mut self, _item: TrainingProgress, _indicators: Vec<ProgressType>) {}

    fn render_valid(&mut self, _item: TrainingProgress, _indicators: Vec<ProgressType>) {}

    fn on_train_end(
        &mut self,
        _summary: Option<LearnerSummary>,
    ) -> Result<(), Box<dyn std::error::Error>> {
        Ok(())
    }
}

impl MetricsRendererEvaluation for Silent {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}

    fn render_test(&mut self, _item: EvaluationProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRenderer for Silent {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, _definition: MetricDefinition) {}
}
