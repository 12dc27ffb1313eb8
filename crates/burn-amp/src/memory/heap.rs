// An allocator is unsafe by its trait; this one counts, and hands every call on to another.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::MemorySource;

/// An allocator that counts the bytes in use, for backends that compute on the CPU.
///
/// A program installs it in place of its allocator; the cost is two atomic additions a call.
///
/// # Example
///
/// ```
/// use burn_amp::memory::{HeapMeter, MemorySource};
///
/// #[global_allocator]
/// static HEAP: HeapMeter = HeapMeter::system();
///
/// fn main() {
///     let before = HEAP.in_use();
///     let values = vec![0u8; 1 << 20];
///     assert_eq!(HEAP.in_use() - before, 1 << 20);
///     drop(values);
/// }
/// ```
#[derive(Debug)]
pub struct HeapMeter<A = System> {
    allocator: A,
    in_use: AtomicUsize,
    peak: AtomicUsize,
}

impl HeapMeter<System> {
    /// Counts what the system's allocator hands out.
    pub const fn system() -> Self {
        Self::new(System)
    }
}

impl<A> HeapMeter<A> {
    /// Counts what `allocator` hands out.
    pub const fn new(allocator: A) -> Self {
        Self {
            allocator,
            in_use: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
        }
    }

    fn add(&self, bytes: usize) {
        let in_use = self.in_use.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(in_use, Ordering::Relaxed);
    }

    fn subtract(&self, bytes: usize) {
        self.in_use.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl<A: Sync> MemorySource for HeapMeter<A> {
    fn in_use(&self) -> u64 {
        self.in_use.load(Ordering::Relaxed) as u64
    }

    fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed) as u64
    }

    fn reset_peak(&self) {
        self.peak
            .store(self.in_use.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the inner allocator with the arguments it came with.
unsafe impl<A: GlobalAlloc> GlobalAlloc for HeapMeter<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let pointer = unsafe { self.allocator.alloc(layout) };
        if !pointer.is_null() {
            self.add(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let pointer = unsafe { self.allocator.alloc_zeroed(layout) };
        if !pointer.is_null() {
            self.add(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { self.allocator.dealloc(pointer, layout) };
        self.subtract(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let moved = unsafe { self.allocator.realloc(pointer, layout, size) };
        if !moved.is_null() {
            if size >= layout.size() {
                self.add(size - layout.size());
            } else {
                self.subtract(layout.size() - size);
            }
        }
        moved
    }
}
