//! Sums and maxima over the units of a cube, in an order that does not change from run to run.

use cubecl::prelude::*;

/// The sum of the units' values, for every unit; by planes, if their number is known.
#[cube]
pub(super) fn cube_sum(
    value: f32,
    shared: &mut SharedMemory<f32>,
    #[comptime] planes: Option<usize>,
) -> f32 {
    let of_group = if planes.is_some() {
        plane_sum(value)
    } else {
        value
    };
    cube_reduce(of_group, shared, planes, false)
}

/// The largest of the units' values, for every unit; by planes, if their number is known.
#[cube]
pub(super) fn cube_max(
    value: f32,
    shared: &mut SharedMemory<f32>,
    #[comptime] planes: Option<usize>,
) -> f32 {
    let of_group = if planes.is_some() {
        plane_max(value)
    } else {
        value
    };
    cube_reduce(of_group, shared, planes, true)
}

/// Combines a value of each plane, one after the other, or of each unit, in halves.
#[cube]
fn cube_reduce(
    value: f32,
    shared: &mut SharedMemory<f32>,
    #[comptime] planes: Option<usize>,
    #[comptime] is_max: bool,
) -> f32 {
    if planes.is_some() {
        if UNIT_POS_PLANE == 0 {
            shared[PLANE_POS as usize] = value;
        }
        sync_cube();
        let mut result = shared[0];
        #[unroll]
        for plane in 1..comptime!(planes.unwrap_or(1)) {
            result = combine(result, shared[plane], is_max);
        }
        sync_cube();
        result
    } else {
        shared[UNIT_POS as usize] = value;
        sync_cube();
        let mut stride = CUBE_DIM / 2u32;
        while stride > 0u32 {
            if UNIT_POS < stride {
                let other = shared[(UNIT_POS + stride) as usize];
                let own = shared[UNIT_POS as usize];
                shared[UNIT_POS as usize] = combine(own, other, is_max);
            }
            sync_cube();
            stride /= 2u32;
        }
        let result = shared[0];
        sync_cube();
        result
    }
}

#[cube]
fn combine(a: f32, b: f32, #[comptime] is_max: bool) -> f32 {
    if is_max { max(a, b) } else { a + b }
}

/// The sum of a vector's lanes.
#[cube]
pub(super) fn lane_sum<N: Size>(vector: Vector<f32, N>) -> f32 {
    add_lanes::<N>(0.0f32, vector)
}

/// A vector's lanes added to `total`, one after the other.
#[cube]
pub(super) fn add_lanes<N: Size>(total: f32, vector: Vector<f32, N>) -> f32 {
    let mut total = total;
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
