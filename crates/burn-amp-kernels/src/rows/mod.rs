//! Kernels that take a row at a time: a cube computes in f32 what a row has in common, and writes the
//! row in its own type.

mod layer_norm;
mod reduce;
mod softmax;

pub use layer_norm::{LayerNormGrads, Moments, layer_norm_backward, layer_norm_forward};
pub use softmax::{log_softmax_backward, log_softmax_forward, softmax_backward, softmax_forward};

use cubecl::prelude::*;

use crate::device::{cube_count, planes, vector_size};
use crate::{DeviceTensor, KernelError};

/// More units than this wait for each other longer than they save.
const MAX_UNITS: usize = 256;

/// How the rows of a tensor are spread over cubes.
struct Rows {
    count: usize,
    width: usize,
    vector: usize,
    cubes: CubeCount,
    units: CubeDim,
    planes: Option<usize>,
    address_type: AddressType,
}

impl Rows {
    /// The last dimension of `tensor` is a row.
    fn of<R: Runtime>(
        client: &ComputeClient<R>,
        tensor: &DeviceTensor,
    ) -> Result<Self, KernelError> {
        let Some(&width) = tensor.shape.last() else {
            return Err(KernelError::Shape {
                what: "the operand of a kernel over rows",
                expected: "at least one dimension".to_owned(),
                actual: "[]".to_owned(),
            });
        };
        let count = tensor.len().checked_div(width).unwrap_or(0);
        let hardware = &client.properties().hardware;
        let vector = vector_size(client, &[width]);
        let smallest = (hardware.plane_size_max as usize).max(32);
        let units = (width / vector.max(1)).next_power_of_two();
        let units = units.clamp(smallest, MAX_UNITS.max(smallest));
        Ok(Self {
            count,
            width,
            vector,
            cubes: cube_count(client, count),
            units: CubeDim::new_1d(units as u32),
            planes: planes(client, units),
            address_type: tensor.address_type::<R>(),
        })
    }

    fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The shape of a statistic of each row.
    fn column(&self, tensor: &DeviceTensor) -> Vec<usize> {
        let mut shape = tensor.shape.to_vec();
        if let Some(last) = shape.last_mut() {
            *last = 1;
        }
        shape
    }
}
