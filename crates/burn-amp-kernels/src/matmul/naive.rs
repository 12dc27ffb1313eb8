//! A unit for each result.

use cubecl::ir::StorageType;
use cubecl::prelude::*;

use super::Product;
use crate::DeviceTensor;
use crate::device::cube_count;

const UNITS: u32 = 128;

/// The operands have the rank of the output, and no stride where they are broadcast.
pub(super) fn launch<R: Runtime>(
    client: &ComputeClient<R>,
    product: &Product,
    output: &DeviceTensor,
) {
    let Product {
        lhs,
        rhs,
        bias,
        compute,
        ..
    } = product;
    let rank = output.shape.len();
    // SAFETY: units beyond the last result do nothing, and positions follow shapes and strides.
    #[allow(unsafe_code)]
    unsafe {
        matmul_naive::launch_unchecked::<R>(
            client,
            cube_count(client, output.len().div_ceil(UNITS as usize)),
            CubeDim::new_1d(UNITS),
            [lhs, rhs, output]
                .map(DeviceTensor::address_type::<R>)
                .into_iter()
                .max()
                .unwrap_or_default(),
            lhs.binding().into_tensor_arg(),
            rhs.binding().into_tensor_arg(),
            match bias {
                Some(bias) => ComptimeOptionArgs::Some(bias.array()),
                None => ComptimeOptionArgs::None,
            },
            output.binding().into_tensor_arg(),
            output.len(),
            rank,
            lhs.dtype.into(),
            rhs.dtype.into(),
            (*compute).into(),
            output.dtype.into(),
        );
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn matmul_naive<L: Float, R: Float, C: Float, O: Float>(
    lhs: &Tensor<L>,
    rhs: &Tensor<R>,
    bias: &ComptimeOption<Array<f32>>,
    output: &mut Tensor<O>,
    len: usize,
    #[comptime] rank: usize,
    #[define(L)] _lhs_type: StorageType,
    #[define(R)] _rhs_type: StorageType,
    #[define(C)] _compute_type: StorageType,
    #[define(O)] _output_type: StorageType,
) {
    let index = ABSOLUTE_POS;
    if index >= len {
        terminate!();
    }
    let column = index % output.shape(rank - 1);
    let mut rest = index / output.shape(rank - 1);
    let row = rest % output.shape(rank - 2);
    rest /= output.shape(rank - 2);
    let mut left = row * lhs.stride(rank - 2);
    let mut right = column * rhs.stride(rank - 1);
    #[unroll]
    for step in 0..rank - 2 {
        let dim = comptime!(rank - 3 - step);
        let position = rest % output.shape(dim);
        rest /= output.shape(dim);
        left += position * lhs.stride(dim);
        right += position * rhs.stride(dim);
    }

    let mut sum = 0.0f32;
    for _ in 0..lhs.shape(rank - 1) {
        // Rounded to the compute type and back: the product of two halves is exact in f32. Some drivers
        // leave the rounding out.
        let l = f32::cast_from(C::cast_from(lhs[left]));
        let r = f32::cast_from(C::cast_from(rhs[right]));
        sum += l * r;
        left += lhs.stride(rank - 1);
        right += rhs.stride(rank - 2);
    }
    #[comptime]
    let sum = match bias {
        ComptimeOption::Some(bias) => sum + bias[column],
        ComptimeOption::None => sum,
    };
    output[index] = O::cast_from(sum);
}
