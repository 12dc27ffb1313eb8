//! Several devices: one decision over the gradients of all, loss scales that move together. With the
//! feature `ddp`, Burn's data parallel training too.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/renderer.rs"]
#[allow(dead_code)] // The losses are not looked at here.
mod renderer;

mod backend;
#[cfg(feature = "ddp")]
mod ddp;
mod learner;
mod net;
mod step_multi;
