//! What mixed precision gives on hard inputs, against what PyTorch's autocast gave.
//!
//! The record, `tests/data/micro_numerics.json`, was made with torch 2.9.1 on a CPU.

#[path = "../common/mod.rs"]
mod common;

mod cases;
mod gradients;
mod hard_cases;
mod recorded;
mod rounding;
