//! A small character-level GPT in plain Burn modules, trained on a novel.
#![recursion_limit = "256"]

pub mod data;
pub mod generate;
pub mod memory;
pub mod model;
pub mod train;
