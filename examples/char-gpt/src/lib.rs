//! A small character-level GPT in plain Burn modules, trained on a novel.
//!
//! [`model`], [`data`], [`train`] and [`generate`] are ordinary Burn code, generic over the backend
//! and the optimizer: not one line of them is about precision. [`run`] is the only place that picks
//! one.
#![recursion_limit = "256"]

pub mod cli;
pub mod data;
pub mod generate;
pub mod memory;
pub mod model;
pub mod report;
pub mod run;
pub mod train;
