//! Mixed-precision training as public issue trackers report it: each case is a real report, turned
//! into a test. Cases keep their numbers in the test names.
//!
//! `amp16` and `ampbf` are the decorated backend with f16 and bf16 as compute type, `plain` is the
//! undecorated one in f32.

#[path = "../common/mod.rs"]
mod common;
#[macro_use]
mod support;

mod accumulation;
mod autocast;
mod burn_reports;
mod ergonomics;
mod eval;
mod gradients;
mod loss_scale;
mod numerics;
mod resume;
mod scopes;
mod several;
