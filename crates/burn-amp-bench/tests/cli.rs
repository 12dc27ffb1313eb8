//! The program's output as other programs read it.

use std::process::{Command, Output};

use burn_amp_bench::memory::Model;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_burn-amp-bench"))
        .args(arguments)
        .output()
        .expect("the program starts")
}

#[test]
fn should_print_measurements_as_json_and_write_the_files() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let output = run(&["memory", "--json", "--model", "resnet", "--out", out]);
    assert!(output.status.success(), "{output:?}");

    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).expect("only JSON");
    let rows = rows.as_array().expect("an array");
    let modes: Vec<_> = rows
        .iter()
        .map(|row| row["mode"].as_str().unwrap())
        .collect();
    assert_eq!(modes, ["f32", "bf16", "f16"]);
    for row in rows {
        assert_eq!(row["model"], "resnet-b8s32c32l12");
        assert!(row["attention"].is_null());
        assert_eq!(row["dropout"], 0.0);
        assert!(row["peak_bytes"].as_u64() >= row["kept_bytes"].as_u64());
        assert!(row["kept_bytes"].as_u64().unwrap() > 1 << 20);
    }

    let csv = std::fs::read_to_string(directory.path().join("memory.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + rows.len());
    let chart = std::fs::read_to_string(directory.path().join("memory.svg")).unwrap();
    assert!(chart.starts_with("<svg") && chart.contains("burn-amp bf16"));
}

#[test]
fn should_name_the_models_that_there_are() {
    let output = run(&["memory", "--model", "gpt3"]);
    assert!(!output.status.success());
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("`gpt3`"), "{message}");
    for model in Model::all() {
        assert!(message.contains(&model.name()), "{message}");
    }
}
