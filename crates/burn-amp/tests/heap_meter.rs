//! The counting allocator. One test in a process of its own: others would be counted too.

use burn_amp::memory::{HeapMeter, MemoryMeter, MemorySource};

#[global_allocator]
static HEAP: HeapMeter = HeapMeter::system();

#[test]
fn should_count_allocations_of_every_kind() {
    let near = |bytes: u64, expected: u64| bytes.abs_diff(expected) < 1 << 16;
    const SIZE: u64 = 1 << 22;

    let before = HEAP.in_use();
    let mut values: Vec<u8> = Vec::with_capacity(SIZE as usize);
    assert!(near(HEAP.in_use() - before, SIZE));
    values.reserve_exact(2 * SIZE as usize);
    assert!(near(HEAP.in_use() - before, 2 * SIZE));
    let zeros = vec![0u8; SIZE as usize];
    assert!(near(HEAP.in_use() - before, 3 * SIZE));
    drop((values, zeros));
    assert!(near(HEAP.in_use(), before));
    assert!(near(HEAP.peak(), before + 3 * SIZE));
    HEAP.reset_peak();
    assert!(near(HEAP.peak(), before));

    let ((), peak) =
        MemoryMeter::new(&HEAP).peak(|| drop(std::hint::black_box(vec![1u8; SIZE as usize])));
    assert!(near(peak, SIZE), "{peak}");

    // One that is not installed counts nothing.
    let other = HeapMeter::system();
    let values = std::hint::black_box(vec![1u8; 1 << 20]);
    assert_eq!((other.in_use(), other.peak()), (0, 0));
    drop(values);
}
