//! A bar on standard error in place of Burn's dashboard, which takes the whole terminal.

use burn::train::LearnerSummary;
use burn::train::metric::MetricDefinition;
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};
use indicatif::{ProgressBar, ProgressStyle};

/// Draws how far the training is, if standard error is a terminal; prints nothing else.
#[derive(Debug)]
pub struct Bar(ProgressBar);

impl Bar {
    /// Begins a bar.
    pub fn new(name: &str, epochs: usize) -> Self {
        let style = ProgressStyle::with_template(
            "{prefix:>4} {wide_bar} {pos}/{len} epochs, {elapsed}, {eta} left",
        )
        .expect("the template is well-formed");
        let bar = ProgressBar::new(epochs as u64)
            .with_style(style)
            .with_prefix(name.to_owned());
        Self(bar)
    }
}

impl MetricsRendererTraining for Bar {
    fn update_train(&mut self, _state: MetricState) {}

    fn update_valid(&mut self, _state: MetricState) {}

    fn render_train(&mut self, item: TrainingProgress, _indicators: Vec<ProgressType>) {
        let epoch = item.global_progress.items_processed;
        self.0.set_position(epoch.saturating_sub(1) as u64);
    }

    fn render_valid(&mut self, _item: TrainingProgress, _indicators: Vec<ProgressType>) {}

    fn on_train_end(
        &mut self,
        _summary: Option<LearnerSummary>,
    ) -> Result<(), Box<dyn core::error::Error>> {
        self.0.finish_and_clear();
        Ok(())
    }
}

impl MetricsRendererEvaluation for Bar {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}

    fn render_test(&mut self, _item: EvaluationProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRenderer for Bar {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, _definition: MetricDefinition) {}
}
