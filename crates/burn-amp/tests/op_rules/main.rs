//! Every float op of the table: the type of its result, and its values against a control whose
//! operands are cast by hand.

#[path = "../common/mod.rs"]
mod common;

mod attention;
mod broadcast;
mod cases;
mod expected;
mod mode;
mod overrides;
mod readback;
mod run;
mod scalars;
mod table;
mod untouched;
