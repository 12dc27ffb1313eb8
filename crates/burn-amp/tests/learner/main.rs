//! Reports of the issue trackers in the form of real training: Burn's `Learner` with accumulation,
//! checkpoints and metrics, and loops over epochs where it has no place for what the case needs. Cases
//! keep their numbers in the test names; `field_cases` has them as single steps.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/renderer.rs"]
mod renderer;
mod support;

mod accumulation;
mod drop_micro_batch;
mod eval;
mod guide;
mod guide_amp;
mod guide_loop;
mod guide_plain;
mod resume;
mod schedule;
mod several;
mod threads;
mod unscale_and_clipping;
