//! How often each kernel was launched in this process, over all devices and threads.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Launches {
    /// Products that read their operands as they are.
    pub fused_matmul: u64,
    /// Products of operands that were cast to one type before.
    pub plain_matmul: u64,
    /// Casts of a tensor.
    pub cast: u64,
    /// Gradients divided by the scale and checked, many at a time.
    pub unscale: u64,
    /// Gradients checked, many at a time.
    pub check: u64,
    /// Layer norm, forward and backward.
    pub layer_norm: u64,
    /// Softmax and log-softmax, forward and backward.
    pub softmax: u64,
}

macro_rules! counters {
    ($($name:ident: $counter:ident),*) => {
        $(pub(crate) static $counter: Counter = Counter(AtomicU64::new(0));)*

        /// The counts up to now.
        pub fn launches() -> Launches {
            Launches { $($name: $counter.0.load(Ordering::Relaxed)),* }
        }

        impl std::ops::Sub for Launches {
            type Output = Self;

            fn sub(self, before: Self) -> Self {
                Self { $($name: self.$name - before.$name),* }
            }
        }
    };
}

pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

counters!(
    fused_matmul: FUSED_MATMUL,
    plain_matmul: PLAIN_MATMUL,
    cast: CAST,
    unscale: UNSCALE,
    check: CHECK,
    layer_norm: LAYER_NORM,
    softmax: SOFTMAX
);
