//! The model learns to read digits in every precision.

mod common;

#[test]
fn should_recognize_nine_of_ten_digits_in_every_precision_after_a_short_training() {
    let rows = common::rows(&["--epochs", "2", "--lr", "0.01"]);
    assert_eq!(rows.len(), 3);
    for row in rows {
        let accuracy = row["test_accuracy"].as_f64().expect("a number");
        assert!(accuracy > 0.9, "{row}");
        assert_eq!(row["steps_applied"], 90, "{row}");
    }
}
