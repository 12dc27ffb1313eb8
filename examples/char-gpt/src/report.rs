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
    /// Mean loss of the last training steps, in nats a character.
    pub train_loss: f32,
    /// Mean loss over the validation windows, in nats a character.
    pub valid_loss: f32,
    /// Steps that changed the model.
    pub applied: u64,
    /// Steps left out because a gradient was not finite.
    pub skipped: u64,
    /// The loss scale after the last step.
    pub scale: f32,
    /// Mean time of a training step in milliseconds.
    pub ms_per_step: f64,
    /// Characters trained on in a second.
    pub tokens_per_second: f64,
    /// The most heap in use at once, in bytes.
    pub peak_heap_bytes: u64,
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
        "train loss",
        "valid loss",
        "applied",
        "skipped",
        "scale",
        "ms/step",
        "tokens/s",
        "peak heap",
    ]);
    for row in rows {
        table.add_row([
            row.precision.to_string(),
            format!("{:.4}", row.train_loss),
            format!("{:.4}", row.valid_loss),
            row.applied.to_string(),
            row.skipped.to_string(),
            row.scale.to_string(),
            format!("{:.1}", row.ms_per_step),
            format!("{:.0}", row.tokens_per_second),
            format!("{:.1} MiB", row.peak_heap_bytes as f64 / (1 << 20) as f64),
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
            train_loss: 1.25,
            valid_loss: 1.5,
            applied: 298,
            skipped: 2,
            scale: 16384.0,
            ms_per_step: 12.345,
            tokens_per_second: 82949.0,
            peak_heap_bytes: 3 << 19,
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
                "f16", "1.2500", "1.5000", "298", "2", "16384", "12.3", "82949", "1.5 MiB"
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
                "train_loss": 1.25,
                "valid_loss": 1.5,
                "applied": 298,
                "skipped": 2,
                "scale": 16384.0,
                "ms_per_step": 12.345,
                "tokens_per_second": 82949.0,
                "peak_heap_bytes": 1572864,
            }])
        );
    }
}
