//! Keeps `docs/op-rules.md` in step with the op table. After a change of the table:
//! `UPDATE_DOCS=1 cargo test -p burn-amp --test op_rules_page`.

use std::fmt::Write;
use std::path::Path;

use burn_amp::{Op, OpClass};

const TITLE: &str = "\
# Op rules

Which class each op of Burn 0.21's backend traits has under mixed precision. Written from the op table
in `crates/burn-amp/src/policy/op.rs` by a test; a configuration overrides single ops by these names.
";

const CLASSES: [(OpClass, &str); 5] = [
    (
        OpClass::Lower,
        "Float inputs are cast to the compute type (f16 or bf16); so is the result. `embedding` looks up \
         in f32 and lowers the rows that it found.",
    ),
    (
        OpClass::Full,
        "Computed in f32 from whatever comes in; the result is f32.",
    ),
    (
        OpClass::Widen,
        "Computed in f32, stored in the type of the first input.",
    ),
    (
        OpClass::Promote,
        "Operands of different float types meet in the wider one; f16 with bf16 gives f32. In \
         elementwise arithmetic the full-shape operand decides the type of the result, and a finite \
         value that f16 cannot hold saturates.",
    ),
    (
        OpClass::Keep,
        "The type of the input. A scalar that the type cannot hold is applied in f32.",
    ),
];

fn page() -> String {
    let mut page = TITLE.to_owned();
    for (class, what) in CLASSES {
        let mut ops: Vec<&str> = Op::ALL
            .iter()
            .filter(|op| op.class() == class)
            .map(|op| op.name())
            .collect();
        ops.sort_unstable();
        let ops: Vec<String> = ops.iter().map(|op| format!("`{op}`")).collect();
        write!(page, "\n## {class}\n\n{what}\n\n{}\n", ops.join(", ")).unwrap();
    }
    let exempt = Op::ALL
        .iter()
        .filter(|op| op.class() == OpClass::Exempt)
        .count();
    write!(
        page,
        "\n## exempt\n\nThe other {exempt} ops create, cast or move tensors, or work on int, bool and \
         quantized ones: the rules never touch them.\n"
    )
    .unwrap();
    page
}

#[test]
fn should_be_in_step_with_the_op_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/op-rules.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, page()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(
        written == page(),
        "docs/op-rules.md is not what the op table says"
    );
}
