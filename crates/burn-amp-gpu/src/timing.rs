//! Times of launches.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::device::Gpu;
use crate::stats::{median, repetitions};

/// How long and how often a launch is timed.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// How long one batch of launches takes, between two waits.
    pub batch: Duration,
    /// How many batches the median is of.
    pub batches: usize,
    /// The most launches in a batch.
    pub most: usize,
}

impl Effort {
    /// For figures.
    pub const FULL: Self = Self {
        batch: Duration::from_millis(20),
        batches: 5,
        most: 1000,
    };
    /// To choose the best of several.
    pub const ROUGH: Self = Self {
        batch: Duration::from_millis(4),
        batches: 3,
        most: 200,
    };
    /// To see that it runs.
    pub const QUICK: Self = Self {
        batch: Duration::from_millis(1),
        batches: 1,
        most: 1,
    };
}

/// The median time of a launch, by the host's clock: batches of launches one after the other, with a
/// wait at the end of each. What comes before, compilation and tuning included, is not counted.
///
/// # Errors
///
/// When a launch fails, at once or on the device.
pub fn time(gpu: &Gpu, effort: Effort, mut launch: impl FnMut() -> Result<()>) -> Result<Duration> {
    launch()?;
    gpu.sync()?;
    let start = Instant::now();
    launch()?;
    gpu.sync()?;
    let count = repetitions(start.elapsed(), effort.batch, effort.most);
    // With the wait in it, one launch alone looks slower than it is.
    let start = Instant::now();
    for _ in 0..count {
        launch()?;
    }
    gpu.sync()?;
    let once = start.elapsed() / count as u32;
    let count = repetitions(once, effort.batch, effort.most);

    let mut times = Vec::with_capacity(effort.batches);
    for _ in 0..effort.batches {
        let start = Instant::now();
        for _ in 0..count {
            launch()?;
        }
        gpu.sync()?;
        times.push(start.elapsed() / count as u32);
    }
    Ok(median(&times))
}
