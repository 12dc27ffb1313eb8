use cubecl::ir::StorageType;
use cubecl::prelude::*;

use crate::counters::CAST;
use crate::device::{cube_count, require, vector_size};
use crate::{DeviceTensor, FloatType, KernelError};

const UNITS: u32 = 256;

/// Casts a tensor, rounding to nearest even. A value beyond the range becomes infinite, or the largest
/// finite one if the cast is saturating; infinities and NaN stay what they are.
///
/// The elements may lie in any dense order, which the result keeps: a transposed weight is cast where
/// it lies.
///
/// # Errors
///
/// The device lacks a type, or the elements are not dense.
pub fn cast<R: Runtime>(
    client: &ComputeClient<R>,
    tensor: &DeviceTensor,
    dtype: FloatType,
    saturating: bool,
) -> Result<DeviceTensor, KernelError> {
    require(client, &[tensor.dtype, dtype])?;
    if !is_dense(tensor) {
        tensor.require_contiguous("the operand of a cast")?;
    }
    let mut output = DeviceTensor::empty(client, tensor.shape.clone(), dtype);
    output.strides = tensor.strides.clone();
    if tensor.is_empty() {
        return Ok(output);
    }
    let vector = vector_size(client, &[tensor.len()]);
    let bound = if saturating { largest(dtype) } else { None };
    let vectors = tensor.len() / vector;
    // SAFETY: units beyond the end of the arrays do nothing.
    #[allow(unsafe_code)]
    unsafe {
        cast_elements::launch_unchecked::<R>(
            client,
            cube_count(client, vectors.div_ceil(UNITS as usize)),
            CubeDim::new_1d(UNITS),
            tensor.address_type::<R>(),
            vector,
            tensor.array(),
            output.array(),
            bound.unwrap_or(f32::MAX),
            bound.is_some(),
            tensor.dtype.into(),
            dtype.into(),
        );
    }
    CAST.add_one();
    Ok(output)
}

/// The largest finite value of a type that f32 values can exceed.
fn largest(dtype: FloatType) -> Option<f32> {
    match dtype {
        FloatType::F32 => None,
        FloatType::F16 => Some(half::f16::MAX.to_f32()),
        FloatType::BF16 => Some(half::bf16::MAX.to_f32()),
    }
}

/// Whether the elements fill a stretch of memory, in whatever order of the dimensions.
pub(crate) fn is_dense(tensor: &DeviceTensor) -> bool {
    let mut dims: Vec<(usize, usize)> = (0..tensor.shape.len())
        .map(|dim| (tensor.strides[dim], tensor.shape[dim]))
        .filter(|(_, size)| *size != 1)
        .collect();
    dims.sort_unstable();
    let mut expected = 1;
    dims.into_iter().all(|(stride, size)| {
        let fits = stride == expected;
        expected *= size;
        fits
    })
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn cast_elements<I: Float, O: Float, N: Size>(
    input: &Array<Vector<I, N>>,
    output: &mut Array<Vector<O, N>>,
    bound: f32,
    #[comptime] saturating: bool,
    #[define(I)] _input_type: StorageType,
    #[define(O)] _output_type: StorageType,
) {
    if ABSOLUTE_POS < output.len() {
        let value = Vector::<f32, N>::cast_from(input[ABSOLUTE_POS]);
        if saturating {
            let mut stored = Vector::<f32, N>::empty();
            #[unroll]
            for lane in 0..N::value() {
                let x = value[lane];
                // Neither comparison holds for NaN, and an infinity stays one.
                let beyond = (x > bound || x < -bound) && !x.is_inf();
                let limit = select(x > 0.0f32, bound, -bound);
                stored[lane] = select(beyond, limit, x);
            }
            output[ABSOLUTE_POS] = Vector::cast_from(stored);
        } else {
            output[ABSOLUTE_POS] = Vector::cast_from(value);
        }
    }
}
