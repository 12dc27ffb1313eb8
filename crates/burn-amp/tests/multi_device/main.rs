//! Several devices: one decision over the gradients of all, loss scales that move together.
#![cfg_attr(feature = "ddp", recursion_limit = "256")]

#[path = "../common/mod.rs"]
mod common;

mod backend;
