//! The closing table, for people and as JSON.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use crate::run::Precision;

/// How one training run went.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// What the run computed in.
    pub precision: Precision,
    /// The share of test samples that are recognized, from 0 to 1.
    pub test_accuracy: f64,
    /// Mean cross-entropy over the test samples, in nats.
    pub test_loss: f64,
    /// Mean cross-entropy of the trained model over the training samples, in nats.
    pub train_loss: f64,
    /// Steps that changed the model, those before a resume included.
    pub steps_applied: u64,
    /// Steps left out because a gradient was not finite, those before a resume included.
    pub steps_skipped: u64,
    /// The loss scale after the last step.
    pub loss_scale: f32,
    /// Time that training took, tests after each epoch included.
    pub seconds: f64,
    /// The most heap in use at once, in bytes.
    pub peak_bytes: u64,
}

/// Renders rows as an array of JSON objects.
pub fn json(rows: &[Row]) -> serde_json::Result<String> {
    serde_json::to_string_pretty(rows)
}

/// Renders rows as a table.
pub fn table(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header([
        "precision",
        "test accuracy",
        "test loss",
        "train loss",
        "applied",
        "skipped",
        "scale",
        "seconds",
        "peak heap",
    ]);
    for row in rows {
        table.add_row([
            row.precision.to_string(),
            format!("{:.2} %", 100.0 * row.test_accuracy),
            format!("{:.4}", row.test_loss),
            format!("{:.4}", row.train_loss),
            row.steps_applied.to_string(),
            row.steps_skipped.to_string(),
            row.loss_scale.to_string(),
            format!("{:.1}", row.seconds),
            format!("{:.1} MiB", row.peak_bytes as f64 / (1 << 20) as f64),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            precision: Precision::F16,
            test_accuracy: 0.9875,
            test_loss: 0.0625,
            train_loss: 0.03125,
            steps_applied: 298,
            steps_skipped: 2,
            loss_scale: 16384.0,
            seconds: 12.345,
            peak_bytes: 3 << 19,
        }
    }

    #[test]
    fn should_print_one_line_for_each_run_under_the_headings() {
        let table = table(&[row(), row()]);
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 6, "{table}");
        let cells: Vec<&str> = lines[3].split(['│', '┆']).map(str::trim).collect();
        assert_eq!(
            cells[1..10],
            [
                "f16", "98.75 %", "0.0625", "0.0312", "298", "2", "16384", "12.3", "1.5 MiB"
            ],
        );
    }

    #[test]
    fn should_write_an_array_of_objects() {
        let value: serde_json::Value = serde_json::from_str(&json(&[row()]).unwrap()).unwrap();
        assert_eq!(
            value,
            serde_json::json!([{
                "precision": "f16",
                "test_accuracy": 0.9875,
                "test_loss": 0.0625,
                "train_loss": 0.03125,
                "steps_applied": 298,
                "steps_skipped": 2,
                "loss_scale": 16384.0,
                "seconds": 12.345,
                "peak_bytes": 1572864,
            }])
        );
    }
}
