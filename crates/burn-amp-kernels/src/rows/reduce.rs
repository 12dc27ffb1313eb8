//! Sums and maxima over the units of a cube, in an order that does not change from run to run.

use cubecl::prelude::*;

/// The sum of the units' values, for every unit; by planes, if their number is known.
#[cube]
pub(super) fn cube_sum(
    value: f32,
    shared: &mut SharedMemory<f32>,
    #[comptime] planes: Option<usize>,
) -> f32 {
    if planes.is_some() {
        let of_plane = plane_sum(value);
        if UNIT_POS_PLANE == 0 {
            shared[PLANE_POS as usize] = of_plane;
        }
        sync_cube();
        let mut total = 0.0f32;
        #[unroll]
        for plane in 0..comptime!(planes.unwrap_or(0)) {
            total += shared[plane];
        }
        sync_cube();
        total
    } else {
        shared[UNIT_POS as usize] = value;
        sync_cube();
        let mut stride = CUBE_DIM / 2u32;
        while stride > 0u32 {
            if UNIT_POS < stride {
                let other = shared[(UNIT_POS + stride) as usize];
                shared[UNIT_POS as usize] += other;
            }
            sync_cube();
            stride /= 2u32;
        }
        let total = shared[0];
        sync_cube();
        total
    }
}

/// The largest of the units' values, for every unit; by planes, if their number is known.
#[cube]
pub(super) fn cube_max(
    value: f32,
    shared: &mut SharedMemory<f32>,
    #[comptime] planes: Option<usize>,
) -> f32 {
    if planes.is_some() {
        let of_plane = plane_max(value);
        if UNIT_POS_PLANE == 0 {
            shared[PLANE_POS as usize] = of_plane;
        }
        sync_cube();
        let mut largest = shared[0];
        #[unroll]
        for plane in 1..comptime!(planes.unwrap_or(1)) {
            largest = max(largest, shared[plane]);
        }
        sync_cube();
        largest
    } else {
        shared[UNIT_POS as usize] = value;
        sync_cube();
        let mut stride = CUBE_DIM / 2u32;
        while stride > 0u32 {
            if UNIT_POS < stride {
                let other = shared[(UNIT_POS + stride) as usize];
                shared[UNIT_POS as usize] = max(shared[UNIT_POS as usize], other);
            }
            sync_cube();
            stride /= 2u32;
        }
        let largest = shared[0];
        sync_cube();
        largest
    }
}

/// The sum of a vector's lanes.
#[cube]
pub(super) fn lane_sum<N: Size>(vector: Vector<f32, N>) -> f32 {
    let mut total = 0.0f32;
    #[unroll]
    for lane in 0..N::value() {
        total += vector[lane];
    }
    total
}

/// The largest of a vector's lanes.
#[cube]
pub(super) fn lane_max<N: Size>(vector: Vector<f32, N>) -> f32 {
    let mut largest = vector[0];
    #[unroll]
    for lane in 1..N::value() {
        largest = max(largest, vector[lane]);
    }
    largest
}
