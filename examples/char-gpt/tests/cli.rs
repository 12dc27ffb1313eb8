//! The program from the outside.

use std::process::{Command, Output};

use serde_json::Value;

const TINY: [&str; 14] = [
    "--steps", "2", "--batch", "2", "--seq", "8", "--width", "8", "--heads", "2", "--layers", "1",
    "--sample", "5",
];

fn char_gpt(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_char-gpt"))
        .args(args)
        .output()
        .expect("the program starts")
}

fn stdout_of(args: &[&str]) -> String {
    let output = char_gpt(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

fn check_error(args: &[&str], expected: &str) {
    let output = char_gpt(args);
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
    let out = stdout_of(&[&TINY[..], &["--json"]].concat());
    let rows: Value = serde_json::from_str(&out).expect("the output is JSON");
    let rows = rows.as_array().expect("an array");

    let precisions: Vec<_> = rows.iter().map(|row| &row["precision"]).collect();
    assert_eq!(precisions, ["f32", "bf16", "f16"]);
    for row in rows {
        check_row(row);
    }
    assert_eq!(rows[0]["scale"], 1.0);
    assert_eq!(rows[0]["skipped"], 0);
}

fn check_row(row: &Value) {
    let count = |field: &str| row[field].as_u64().expect("a whole number");
    assert_eq!(count("applied") + count("skipped"), 2);
    for field in [
        "train_loss",
        "valid_loss",
        "scale",
        "ms_per_step",
        "tokens_per_second",
    ] {
        let value = row[field].as_f64().filter(|_| row[field].is_f64());
        assert!(value.is_some_and(|value| value > 0.0), "{field} in {row}");
    }
    let peak = count("peak_heap_bytes");
    assert!((10_000..100_000_000).contains(&peak), "peak {peak}");
    assert_eq!(row.as_object().map(|row| row.len()), Some(9));
}

#[test]
fn should_print_a_table_to_stdout_and_a_sample_to_stderr() {
    let output = char_gpt(&[&TINY[..], &["--prompt", "Phileas Fogg"]].concat());
    let table = String::from_utf8(output.stdout).expect("the output is UTF-8");
    let notes = String::from_utf8(output.stderr).expect("the notes are UTF-8");
    assert!(table.starts_with('┌'), "{table}");
    assert!(table.contains("valid loss"), "{table}");
    assert!(notes.contains("f32 continues \"Phileas Fogg\":"), "{notes}");
}

#[test]
fn should_give_the_same_losses_for_the_same_seed() {
    let losses = |seed: &str| {
        let out = stdout_of(&[&TINY[..], &["--json", "--seed", seed]].concat());
        let rows: Value = serde_json::from_str(&out).expect("the output is JSON");
        [rows[0]["train_loss"].clone(), rows[0]["valid_loss"].clone()]
    };
    assert_eq!(losses("7"), losses("7"));
    assert_ne!(losses("7"), losses("8"));
}

#[test]
fn should_train_on_a_file() {
    let directory = std::env::temp_dir().join(format!("char-gpt-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("the temporary directory is writable");
    let path = directory.join("text.txt");
    std::fs::write(&path, "to be or not to be, ".repeat(20)).expect("the file is writable");

    let path = path.to_str().expect("the path is UTF-8");
    let out = stdout_of(&[&TINY[..], &["--json", "--text", path]].concat());
    assert!(out.contains("valid_loss"), "{out}");
    check_error(
        &["--text", path, "--seq", "40"],
        "the validation part of the text has 40 characters, seq 40 needs at least 41",
    );
    check_error(
        &["--text", path, "--seq", "8", "--prompt", "to Be"],
        "character 'B' at position 3 does not occur in the corpus",
    );
    std::fs::remove_dir_all(&directory).expect("the directory is ours");
}

#[test]
fn should_name_the_value_that_cannot_be_used() {
    check_error(
        &["--width", "130", "--heads", "4"],
        "width 130 is not a multiple of heads 4",
    );
    check_error(&["--steps", "0"], "invalid value '0' for '--steps <STEPS>'");
    check_error(
        &["--growth-interval", "0"],
        "invalid value '0' for '--growth-interval",
    );
    check_error(&["--dropout", "1"], "dropout is 1, it must be");
    check_error(
        &["--learning-rate", "2"],
        "learning rate is 2, it must be more than 0 and at most 1",
    );
    check_error(&["--precision", "f8"], "invalid value 'f8'");
    check_error(&["--text", "no/such/file"], "no/such/file");
    check_error(&["--prompt", ""], "the prompt is empty");
    check_error(
        &["--seq", "500000"],
        "the training part of the text has 333784 characters, seq 500000 needs",
    );
}
