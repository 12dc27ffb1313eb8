//! The program from the outside.

mod common;

use common::{digits, rows, stdout_of};
use serde_json::Value;

/// Two steps.
const TINY: [&str; 6] = ["--epochs", "1", "--batch", "1000", "--seed", "3"];

fn check_error(args: &[&str], expected: &str) {
    let output = digits(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{args:?} did not fail");
    assert!(output.stdout.is_empty(), "{args:?} wrote to stdout");
    assert!(
        errors.contains(expected),
        "{args:?} gave\n{errors}not {expected:?}"
    );
}

#[test]
fn should_print_only_the_table_as_json_to_stdout() {
    let rows = rows(&TINY);
    let precisions: Vec<_> = rows.iter().map(|row| &row["precision"]).collect();
    assert_eq!(precisions, ["f32", "bf16", "f16"]);
    for row in &rows {
        check_row(row);
    }
    assert_eq!(rows[0]["loss_scale"], 1.0);
    assert_eq!(rows[2]["loss_scale"], 65536.0);
}

fn check_row(row: &Value) {
    let count = |field: &str| row[field].as_u64().expect("a whole number");
    assert_eq!(count("steps_applied") + count("steps_skipped"), 2);
    for field in ["test_loss", "train_loss", "loss_scale", "seconds"] {
        let value = row[field].as_f64().filter(|_| row[field].is_f64());
        assert!(value.is_some_and(|value| value > 0.0), "{field} in {row}");
    }
    let accuracy = row["test_accuracy"].as_f64().expect("a number");
    assert!((0.0..=1.0).contains(&accuracy), "{row}");
    let peak = count("peak_bytes");
    assert!((1_000_000..1_000_000_000).contains(&peak), "peak {peak}");
    assert_eq!(row.as_object().map(|row| row.len()), Some(9));
}

#[test]
fn should_print_a_table_to_stdout() {
    let table = stdout_of(&[&TINY[..], &["--precision", "bf16", "--no-tui"]].concat());
    assert!(table.starts_with('┌'), "{table}");
    assert!(table.contains("test accuracy"), "{table}");
    assert_eq!(table.lines().count(), 5, "{table}");
}

#[test]
fn should_stop_early_if_asked_to() {
    // The smallest learning rate changes nothing: no epoch is better than the first.
    let slow = [
        "--precision",
        "f32",
        "--batch",
        "1000",
        "--epochs",
        "9",
        "--lr",
        "1e-300",
        "--patience",
        "2",
    ];
    let steps = rows(&slow)[0]["steps_applied"].as_u64().expect("a count");
    assert!((6..18).contains(&steps), "{steps} steps");
}

#[test]
fn should_name_the_value_that_cannot_be_used() {
    check_error(
        &["--precision", "f8"],
        "invalid value 'f8' for '--precision",
    );
    check_error(
        &["--epochs", "0"],
        "invalid value '0' for '--epochs <EPOCHS>'",
    );
    check_error(&["--batch", "0"], "invalid value '0' for '--batch <BATCH>'");
    check_error(
        &["--batch", "1438"],
        "batch is 1438, there are 1437 training samples",
    );
    check_error(
        &["--lr", "2"],
        "learning rate is 2, it must be more than 0 and at most 1",
    );
    check_error(&["--lr", "NaN"], "learning rate is NaN");
    check_error(
        &["--growth-interval", "0"],
        "invalid value '0' for '--growth-interval",
    );
    check_error(&["--patience", "0"], "invalid value '0' for '--patience");
    check_error(
        &["--device", "abacus"],
        "invalid value 'abacus' for '--device",
    );
    check_error(&["--resume"], "--out <DIR>");
    check_error(&["--tui", "--json"], "'--tui' cannot be used with '--json'");
    check_error(&["--tui"], "--tui needs a");
}
