//! Bytes: what ops keep for backward, what training needs, and that nothing is left behind.

#[path = "../common/mod.rs"]
mod common;

mod field_cases;
mod kept;
mod leaks;
mod meter;

use std::sync::{Mutex, MutexGuard, PoisonError};

use burn_amp::memory::{HeapMeter, MemoryMeter};

#[global_allocator]
static HEAP: HeapMeter = HeapMeter::system();

static METER: MemoryMeter<&HeapMeter> = MemoryMeter::new(&HEAP);

/// The heap is one for all tests: one of them at a time.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}
