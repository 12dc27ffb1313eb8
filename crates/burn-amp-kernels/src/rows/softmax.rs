use cubecl::ir::StorageType;
use cubecl::prelude::*;

use super::Rows;
use super::reduce::{cube_max, cube_sum, lane_max, lane_sum};
use crate::counters::SOFTMAX;
use crate::device::require;
use crate::{DeviceTensor, FloatType, KernelError};

/// Softmax over each row, in f32.
///
/// # Shapes
///
/// - x: `[.., width]`, in any type
/// - returns: the same, in type `out`
///
/// # Errors
///
/// An operand that is not contiguous, or a type that the device lacks.
pub fn softmax_forward<R: Runtime>(
    client: &ComputeClient<R>,
    x: &DeviceTensor,
    out: FloatType,
) -> Result<DeviceTensor, KernelError> {
    launch_forward(client, x, out, false).map(|(output, _)| output)
}

/// The logarithm of softmax over each row, in f32, and log Σ exp(x - max x) of each row.
///
/// # Shapes
///
/// - x: `[.., width]`, in any type
/// - returns: the same, in type `out`, and `[.., 1]` in f32
///
/// # Errors
///
/// As [`softmax_forward`].
pub fn log_softmax_forward<R: Runtime>(
    client: &ComputeClient<R>,
    x: &DeviceTensor,
    out: FloatType,
) -> Result<(DeviceTensor, DeviceTensor), KernelError> {
    launch_forward(client, x, out, true)
}

fn launch_forward<R: Runtime>(
    client: &ComputeClient<R>,
    x: &DeviceTensor,
    out: FloatType,
    log: bool,
) -> Result<(DeviceTensor, DeviceTensor), KernelError> {
    require(client, &[x.dtype, out])?;
    x.require_contiguous("x")?;
    let rows = Rows::of(client, x)?;
    let output = DeviceTensor::empty(client, x.shape.clone(), out);
    let log_sums = DeviceTensor::empty(client, rows.column(x), FloatType::F32);
    if rows.is_empty() {
        return Ok((output, log_sums));
    }
    // SAFETY: a cube beyond the last row does nothing, and units stop at the end of theirs.
    #[allow(unsafe_code)]
    unsafe {
        softmax::launch_unchecked::<R>(
            client,
            rows.cubes.clone(),
            rows.units,
            rows.address_type,
            rows.vector,
            x.array(),
            output.array(),
            log_sums.array(),
            rows.width / rows.vector,
            rows.units.x as usize,
            rows.planes,
            log,
            x.dtype.into(),
            out.into(),
        );
    }
    SOFTMAX.add_one();
    Ok((output, log_sums))
}

/// The gradient of a softmax from its result: `y (g - Σ y g / Σ y)`. A result that was rounded does not
/// sum to one; the division makes up for it.
///
/// # Shapes
///
/// - output, grad: `[.., width]`, in any types
/// - returns: the same, in type `out`
///
/// # Errors
///
/// As [`softmax_forward`].
pub fn softmax_backward<R: Runtime>(
    client: &ComputeClient<R>,
    output: &DeviceTensor,
    grad: &DeviceTensor,
    out: FloatType,
) -> Result<DeviceTensor, KernelError> {
    require(client, &[output.dtype, grad.dtype, out])?;
    output.require_contiguous("output")?;
    grad.require_shape("grad", &output.shape)?;
    let rows = Rows::of(client, output)?;
    let x_grad = DeviceTensor::empty(client, output.shape.clone(), out);
    if rows.is_empty() {
        return Ok(x_grad);
    }
    // SAFETY: a cube beyond the last row does nothing, and units stop at the end of theirs.
    #[allow(unsafe_code)]
    unsafe {
        softmax_gradient::launch_unchecked::<R>(
            client,
            rows.cubes.clone(),
            rows.units,
            rows.address_type,
            rows.vector,
            output.array(),
            grad.array(),
            x_grad.array(),
            rows.count,
            rows.width / rows.vector,
            rows.units.x as usize,
            rows.planes,
            output.dtype.into(),
            grad.dtype.into(),
            out.into(),
        );
    }
    SOFTMAX.add_one();
    Ok(x_grad)
}

/// The gradient of a log-softmax: `g - exp(x - max x - log_sum) Σ g`.
///
/// # Shapes
///
/// - x, grad: `[.., width]`, in any types; log_sum: `[.., 1]`, f32
/// - returns: the shape and type of `x`
///
/// # Errors
///
/// As [`softmax_forward`].
pub fn log_softmax_backward<R: Runtime>(
    client: &ComputeClient<R>,
    x: &DeviceTensor,
    log_sum: &DeviceTensor,
    grad: &DeviceTensor,
) -> Result<DeviceTensor, KernelError> {
    require(client, &[x.dtype, grad.dtype])?;
    x.require_contiguous("x")?;
    grad.require_shape("grad", &x.shape)?;
    let rows = Rows::of(client, x)?;
    log_sum.require_shape("log_sum", &rows.column(x))?;
    log_sum.require_f32("log_sum")?;
    let x_grad = DeviceTensor::empty(client, x.shape.clone(), x.dtype);
    if rows.is_empty() {
        return Ok(x_grad);
    }
    // SAFETY: a cube beyond the last row does nothing, and units stop at the end of theirs.
    #[allow(unsafe_code)]
    unsafe {
        log_softmax_gradient::launch_unchecked::<R>(
            client,
            rows.cubes.clone(),
            rows.units,
            rows.address_type,
            rows.vector,
            x.array(),
            log_sum.array(),
            grad.array(),
            x_grad.array(),
            rows.width / rows.vector,
            rows.units.x as usize,
            rows.planes,
            x.dtype.into(),
            grad.dtype.into(),
        );
    }
    SOFTMAX.add_one();
    Ok(x_grad)
}

/// The maximum and the sum come from one walk over the row: where a unit meets a larger value, what it
/// has summed so far is scaled down to it.
#[cube(launch_unchecked, address_type = "dynamic")]
fn softmax<X: Float, O: Float, N: Size>(
    x: &Array<Vector<X, N>>,
    output: &mut Array<Vector<O, N>>,
    log_sums: &mut Array<f32>,
    vectors: usize,
    #[comptime] units: usize,
    #[comptime] planes: Option<usize>,
    #[comptime] log: bool,
    #[define(X)] _x_type: StorageType,
    #[define(O)] _output_type: StorageType,
) {
    let row = CUBE_POS;
    if row >= log_sums.len() {
        terminate!();
    }
    let mut shared = SharedMemory::<f32>::new(units);
    let first = row * vectors;

    // The lowest finite value: with -inf a row's first difference would be NaN.
    let mut of_unit = f32::MIN.runtime();
    let mut sum = 0.0f32;
    let mut column = UNIT_POS as usize;
    while column < vectors {
        let values = Vector::<f32, N>::cast_from(x[first + column]);
        let larger = max(of_unit, lane_max::<N>(values));
        let added = lane_sum::<N>((values - Vector::new(larger)).exp());
        sum = sum * (of_unit - larger).exp() + added;
        of_unit = larger;
        column += units;
    }
    let largest = cube_max(of_unit, &mut shared, planes);
    let sum = cube_sum(sum * (of_unit - largest).exp(), &mut shared, planes);
    let log_sum = sum.ln();

    let mut column = UNIT_POS as usize;
    while column < vectors {
        let shifted = Vector::<f32, N>::cast_from(x[first + column]) - Vector::new(largest);
        if log {
            output[first + column] = Vector::cast_from(shifted - Vector::new(log_sum));
        } else {
            output[first + column] = Vector::cast_from(shifted.exp() / Vector::new(sum));
        }
        column += units;
    }
    if UNIT_POS == 0 {
        log_sums[row] = log_sum;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn softmax_gradient<Y: Float, G: Float, O: Float, N: Size>(
    output: &Array<Vector<Y, N>>,
    grad: &Array<Vector<G, N>>,
    x_grad: &mut Array<Vector<O, N>>,
    rows: usize,
    vectors: usize,
    #[comptime] units: usize,
    #[comptime] planes: Option<usize>,
    #[define(Y)] _output_type: StorageType,
    #[define(G)] _grad_type: StorageType,
    #[define(O)] _x_grad_type: StorageType,
) {
    let row = CUBE_POS;
    if row >= rows {
        terminate!();
    }
    let mut shared = SharedMemory::<f32>::new(units);
    let first = row * vectors;

    let mut weighted = Vector::<f32, N>::new(0.0f32);
    let mut total = Vector::<f32, N>::new(0.0f32);
    let mut column = UNIT_POS as usize;
    while column < vectors {
        let y = Vector::<f32, N>::cast_from(output[first + column]);
        weighted += y * Vector::<f32, N>::cast_from(grad[first + column]);
        total += y;
        column += units;
    }
    let weighted = cube_sum(lane_sum::<N>(weighted), &mut shared, planes);
    let total = cube_sum(lane_sum::<N>(total), &mut shared, planes);
    // The smallest normal value keeps a row of zeros at zero.
    let mean = weighted / max(total, 1.1754944e-38f32);

    let mut column = UNIT_POS as usize;
    while column < vectors {
        let y = Vector::<f32, N>::cast_from(output[first + column]);
        let g = Vector::<f32, N>::cast_from(grad[first + column]);
        x_grad[first + column] = Vector::cast_from(y * (g - Vector::new(mean)));
        column += units;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn log_softmax_gradient<X: Float, G: Float, N: Size>(
    x: &Array<Vector<X, N>>,
    log_sums: &Array<f32>,
    grad: &Array<Vector<G, N>>,
    x_grad: &mut Array<Vector<X, N>>,
    vectors: usize,
    #[comptime] units: usize,
    #[comptime] planes: Option<usize>,
    #[define(X)] _x_type: StorageType,
    #[define(G)] _grad_type: StorageType,
) {
    let row = CUBE_POS;
    if row >= log_sums.len() {
        terminate!();
    }
    let mut shared = SharedMemory::<f32>::new(units);
    let first = row * vectors;

    let mut of_unit = f32::MIN.runtime();
    let mut total = Vector::<f32, N>::new(0.0f32);
    let mut column = UNIT_POS as usize;
    while column < vectors {
        let values = Vector::<f32, N>::cast_from(x[first + column]);
        of_unit = max(of_unit, lane_max::<N>(values));
        total += Vector::<f32, N>::cast_from(grad[first + column]);
        column += units;
    }
    let largest = cube_max(of_unit, &mut shared, planes);
    let total = cube_sum(lane_sum::<N>(total), &mut shared, planes);
    let log_sum = log_sums[row];

    let mut column = UNIT_POS as usize;
    while column < vectors {
        let values = Vector::<f32, N>::cast_from(x[first + column]);
        let probabilities = (values - Vector::new(largest) - Vector::new(log_sum)).exp();
        let g = Vector::<f32, N>::cast_from(grad[first + column]);
        x_grad[first + column] = Vector::cast_from(g - probabilities * Vector::new(total));
        column += units;
    }
}
