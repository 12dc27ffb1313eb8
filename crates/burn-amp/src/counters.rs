//! What mixed precision adds to a program, counted on each thread: for tests and tuning.

use std::cell::Cell;

thread_local! {
    static COUNTERS: Cell<Counters> = const { Cell::new(Counters { casts: 0, reads: 0 }) };
}

/// Counts of the calling thread, since it started or since [`Counters::reset`].
///
/// # Example
///
/// ```
/// use burn_amp::{Amp, Counters};
/// use burn::{backend::Flex, tensor::Tensor};
///
/// Counters::reset();
/// let x = Tensor::<Amp<Flex>, 1>::ones([3], &Default::default());
/// x.sum().into_scalar();
/// assert_eq!(Counters::get(), Counters { casts: 0, reads: 1 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Casts that the rules have added. A program's own casts do not count.
    pub casts: u64,
    /// Reads of tensors by the host: float, int and bool tensors and transactions, each of which
    /// waits for the device.
    pub reads: u64,
}

impl Counters {
    /// The counts so far.
    pub fn get() -> Self {
        COUNTERS.get()
    }

    /// Starts counting from zero.
    pub fn reset() {
        COUNTERS.set(Self::default());
    }
}

#[inline]
pub(crate) fn count_cast() {
    let mut counters = COUNTERS.get();
    counters.casts += 1;
    COUNTERS.set(counters);
}

#[inline]
pub(crate) fn count_read() {
    let mut counters = COUNTERS.get();
    counters.reads += 1;
    COUNTERS.set(counters);
}
