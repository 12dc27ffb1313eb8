//! Heap use, counted by the allocator of every program that links this library.

use burn_amp::memory::{HeapMeter, MemoryMeter};

#[global_allocator]
static HEAP: HeapMeter = HeapMeter::system();

/// Reads the heap.
pub static METER: MemoryMeter<&HeapMeter> = MemoryMeter::new(&HEAP);
