//! Gradients of whole networks in mixed precision against f64: no further off than what a program gets
//! that casts by hand on plain Burn.

#[path = "../common/mod.rs"]
mod common;

mod conv_net;
mod distance;
mod transformer;
