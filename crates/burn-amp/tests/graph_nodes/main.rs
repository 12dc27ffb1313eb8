//! The nodes that mixed precision records in Burn's graph: their derivatives, in which types these come
//! out, and what becomes of values at the ends of the half types.

#[path = "../common/mod.rs"]
mod common;

mod chains;
mod checkpointing;
mod finite_differences;
mod kernels;
mod ranges;
mod types;
