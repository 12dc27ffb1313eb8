//! What mixed precision adds to a training by Burn's `Learner`: metrics for its dashboard, and the
//! checkpoints to go on from.

mod checkpoint;
pub mod metric;

pub use checkpoint::checkpoints;
