//! What a device offers, and how a launch is cut for it.

use cubecl::features::{Plane, TypeUsage};
use cubecl::prelude::*;

use crate::{FloatType, KernelError};

/// Whether the device stores a type in buffers and converts it.
pub fn supports<R: Runtime>(client: &ComputeClient<R>, dtype: FloatType) -> bool {
    let usage = client.properties().type_usage(dtype.into());
    usage.is_superset(TypeUsage::Buffer | TypeUsage::Conversion)
}

pub(crate) fn require<R: Runtime>(
    client: &ComputeClient<R>,
    dtypes: &[FloatType],
) -> Result<(), KernelError> {
    match dtypes.iter().find(|dtype| !supports(client, **dtype)) {
        Some(dtype) => Err(KernelError::UnsupportedType(*dtype)),
        None => Ok(()),
    }
}

/// The largest number of f32 values that one instruction loads and that divides all of `lengths`.
pub(crate) fn vector_size<R: Runtime>(client: &ComputeClient<R>, lengths: &[usize]) -> usize {
    client
        .io_optimized_vector_sizes(size_of::<f32>())
        .find(|size| lengths.iter().all(|len| len % size == 0))
        .unwrap_or(1)
}

/// The planes (warps) of a cube, where sums over one are instructions and its size is known.
pub(crate) fn planes<R: Runtime>(client: &ComputeClient<R>, units: usize) -> Option<usize> {
    let hardware = &client.properties().hardware;
    let size = hardware.plane_size_max as usize;
    let is_known = hardware.plane_size_min == hardware.plane_size_max && size > 0;
    let has_sums = client.properties().features.plane.contains(Plane::Ops);
    (has_sums && is_known && units.is_multiple_of(size)).then(|| units / size)
}

/// At least `cubes` cubes, spread over as many dimensions as the device needs for them.
pub(crate) fn cube_count<R: Runtime>(client: &ComputeClient<R>, cubes: usize) -> CubeCount {
    let (max_x, max_y, _) = client.properties().hardware.max_cube_count;
    let [max_x, max_y] = [max_x, max_y].map(|max| max as usize);
    if cubes <= max_x {
        return CubeCount::Static(cubes as u32, 1, 1);
    }
    let y = cubes.div_ceil(max_x);
    if y <= max_y {
        return CubeCount::Static(cubes.div_ceil(y) as u32, y as u32, 1);
    }
    let z = cubes.div_ceil(max_x * max_y);
    CubeCount::Static(max_x as u32, max_y as u32, z as u32)
}
