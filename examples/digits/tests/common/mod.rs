//! Runs the program. Mixed precision and random numbers belong to a process: tests that train in one
//! would disturb each other.

use std::process::{Command, Output};

use serde_json::Value;

pub fn digits(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_digits"))
        .args(args)
        .output()
        .expect("the program starts")
}

pub fn stdout_of(args: &[&str]) -> String {
    let output = digits(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

/// The rows that `--json` prints.
pub fn rows(args: &[&str]) -> Vec<Value> {
    let out = stdout_of(&[args, &["--json"]].concat());
    let rows: Value = serde_json::from_str(&out).expect("the output is JSON and nothing else");
    rows.as_array().expect("an array").clone()
}
