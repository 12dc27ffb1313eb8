//! Peak heap use, counted by an allocator that a program installs with `#[global_allocator]`.

use std::alloc::System;

use peakmem_alloc::{PeakMemAlloc, PeakMemAllocTrait};

/// The system's allocator, counting; without it installed, [`peak_bytes`] stays 0.
pub static HEAP: PeakMemAlloc<System> = PeakMemAlloc::system();

/// Starts a new measurement.
pub fn reset_peak() {
    HEAP.reset_peak_memory();
}

/// The most bytes in use at once since [`reset_peak`], over those in use then.
pub fn peak_bytes() -> u64 {
    HEAP.get_peak_memory() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[global_allocator]
    static GLOBAL: &PeakMemAlloc<System> = &HEAP;

    #[test]
    fn should_remember_the_peak_until_the_next_reset() {
        const SIZE: usize = 1 << 28;
        // Other tests allocate at the same time, far less than this.
        let seen = SIZE as u64 / 2..2 * SIZE as u64;

        reset_peak();
        drop(std::hint::black_box(vec![0u8; SIZE]));
        assert!(seen.contains(&peak_bytes()), "{}", peak_bytes());

        reset_peak();
        assert!(peak_bytes() < seen.start, "{}", peak_bytes());
    }
}
