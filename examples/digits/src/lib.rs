//! Handwritten digits, learned by a small convolutional network with Burn's `Learner`.
//!
//! [`data`], [`loader`], [`model`] and [`train`] are ordinary Burn code, generic over the backend and
//! the optimizer: not one line of them is about precision. [`run`] is the only place that picks one.
#![recursion_limit = "256"]

pub mod checkpoint;
pub mod cli;
pub mod data;
pub mod loader;
pub mod memory;
pub mod model;
pub mod progress;
pub mod report;
pub mod run;
pub mod train;
pub mod watch;
