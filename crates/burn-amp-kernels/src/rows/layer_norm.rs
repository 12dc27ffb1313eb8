use cubecl::ir::StorageType;
use cubecl::prelude::*;

use super::reduce::{add_lanes, cube_sum, lane_sum};
use super::{MAX_UNITS, Rows};
use crate::counters::LAYER_NORM;
use crate::device::{cube_count, require};
use crate::{DeviceTensor, FloatType, KernelError};

/// The statistics of each row, f32, `[.., 1]`.
#[derive(Debug, Clone)]
pub struct Moments {
    /// The mean.
    pub mean: DeviceTensor,
    /// One over the square root of the variance plus epsilon.
    pub inv_deviation: DeviceTensor,
}

/// The gradients of a layer norm.
#[derive(Debug, Clone)]
pub struct LayerNormGrads {
    /// `[.., width]`, in the type of `x`.
    pub x: DeviceTensor,
    /// `[width]`, f32.
    pub gamma: DeviceTensor,
    /// `[width]`, f32.
    pub beta: DeviceTensor,
}

/// Normalizes each row: `(x - mean) / sqrt(variance + epsilon) * gamma + beta`, in f32. The variance is
/// that of the values less their mean, so it does not cancel where the mean is large.
///
/// # Shapes
///
/// - x: `[.., width]`, in any type; gamma, beta: `[width]`, f32
/// - returns: `[.., width]` in type `out`, and the moments
///
/// # Errors
///
/// Shapes that do not fit, operands that are not contiguous, gamma or beta not in f32, or a type that
/// the device lacks.
pub fn layer_norm_forward<R: Runtime>(
    client: &ComputeClient<R>,
    x: &DeviceTensor,
    gamma: &DeviceTensor,
    beta: Option<&DeviceTensor>,
    epsilon: f32,
    out: FloatType,
) -> Result<(DeviceTensor, Moments), KernelError> {
    require(client, &[x.dtype, out])?;
    x.require_contiguous("x")?;
    let rows = Rows::of(client, x)?;
    require_parameter("gamma", gamma, rows.width)?;
    if let Some(beta) = beta {
        require_parameter("beta", beta, rows.width)?;
    }
    let output = DeviceTensor::empty(client, x.shape.clone(), out);
    let column = || DeviceTensor::empty(client, rows.column(x), FloatType::F32);
    let moments = Moments {
        mean: column(),
        inv_deviation: column(),
    };
    if rows.is_empty() {
        return Ok((output, moments));
    }
    // SAFETY: a cube beyond the last row does nothing, and units stop at the end of theirs.
    #[allow(unsafe_code)]
    unsafe {
        layer_norm::launch_unchecked::<R>(
            client,
            rows.cubes.clone(),
            rows.units,
            rows.address_type,
            rows.vector,
            x.array(),
            gamma.array(),
            match beta {
                Some(beta) => ComptimeOptionArgs::Some(beta.array()),
                None => ComptimeOptionArgs::None,
            },
            output.array(),
            moments.mean.array(),
            moments.inv_deviation.array(),
            epsilon,
            rows.width as f32,
            rows.units.x as usize,
            rows.planes,
            x.dtype.into(),
            out.into(),
        );
    }
    LAYER_NORM.add_one();
    Ok((output, moments))
}

/// With x̂ = (x - mean) / deviation and h = g γ, over a row of d values:
/// dx = (h - Σ h / d - x̂ Σ h x̂ / d) / deviation, and over the rows dγ = Σ g x̂ and dβ = Σ g.
///
/// The sums over the rows are taken in two steps, in an order that does not change from run to run.
///
/// # Shapes
///
/// - x, grad: `[.., width]`, in any types; gamma: `[width]`, f32; moments: `[.., 1]`, f32
///
/// # Errors
///
/// As [`layer_norm_forward`].
pub fn layer_norm_backward<R: Runtime>(
    client: &ComputeClient<R>,
    x: &DeviceTensor,
    gamma: &DeviceTensor,
    moments: &Moments,
    grad: &DeviceTensor,
) -> Result<LayerNormGrads, KernelError> {
    require(client, &[x.dtype, grad.dtype])?;
    x.require_contiguous("x")?;
    grad.require_shape("grad", &x.shape)?;
    let rows = Rows::of(client, x)?;
    require_parameter("gamma", gamma, rows.width)?;
    for statistic in [&moments.mean, &moments.inv_deviation] {
        statistic.require_shape("a moment", &rows.column(x))?;
        statistic.require_f32("a moment")?;
    }
    let x_grad = DeviceTensor::empty(client, x.shape.clone(), x.dtype);
    if rows.is_empty() {
        let zeros = || {
            let zeros = vec![0f32; rows.width.max(1)];
            let handle = client.create_from_slice(f32::as_bytes(&zeros));
            DeviceTensor::contiguous(handle, [rows.width], FloatType::F32)
        };
        return Ok(LayerNormGrads {
            x: x_grad,
            gamma: zeros(),
            beta: zeros(),
        });
    }
    // SAFETY: a cube beyond the last row does nothing, and units stop at the end of theirs.
    #[allow(unsafe_code)]
    unsafe {
        layer_norm_gradient::launch_unchecked::<R>(
            client,
            rows.cubes.clone(),
            rows.units,
            rows.address_type,
            rows.vector,
            x.array(),
            gamma.array(),
            moments.mean.array(),
            moments.inv_deviation.array(),
            grad.array(),
            x_grad.array(),
            rows.width as f32,
            rows.units.x as usize,
            rows.planes,
            x.dtype.into(),
            grad.dtype.into(),
        );
    }
    LAYER_NORM.add_one();
    let [gamma, beta] = column_sums(client, &rows, x, moments, grad);
    Ok(LayerNormGrads {
        x: x_grad,
        gamma,
        beta,
    })
}

/// Enough blocks of rows to keep a device busy, and few enough that their sums are soon added up.
const MAX_BLOCKS: usize = 128;

fn column_sums<R: Runtime>(
    client: &ComputeClient<R>,
    rows: &Rows,
    x: &DeviceTensor,
    moments: &Moments,
    grad: &DeviceTensor,
) -> [DeviceTensor; 2] {
    let vectors = rows.width / rows.vector;
    let units = vectors.next_power_of_two().clamp(32, MAX_UNITS);
    let columns = vectors.div_ceil(units);
    let rows_at_once = rows.count.div_ceil(MAX_BLOCKS);
    let blocks = rows.count.div_ceil(rows_at_once);
    let part = || DeviceTensor::empty(client, [blocks, rows.width], FloatType::F32);
    let [gamma_parts, beta_parts] = [part(), part()];
    // SAFETY: units beyond the last column do nothing, and none goes beyond the last row.
    #[allow(unsafe_code)]
    unsafe {
        layer_norm_block_sums::launch_unchecked::<R>(
            client,
            CubeCount::Static(columns as u32, blocks as u32, 1),
            CubeDim::new_1d(units as u32),
            rows.address_type,
            rows.vector,
            x.array(),
            moments.mean.array(),
            moments.inv_deviation.array(),
            grad.array(),
            gamma_parts.array(),
            beta_parts.array(),
            rows_at_once,
            vectors,
            x.dtype.into(),
            grad.dtype.into(),
        );
    }
    LAYER_NORM.add_one();
    let sum = || DeviceTensor::empty(client, [rows.width], FloatType::F32);
    let [gamma, beta] = [sum(), sum()];
    // SAFETY: units beyond the last column do nothing.
    #[allow(unsafe_code)]
    unsafe {
        layer_norm_sum_of_blocks::launch_unchecked::<R>(
            client,
            cube_count(client, vectors.div_ceil(units)),
            CubeDim::new_1d(units as u32),
            gamma_parts.address_type::<R>(),
            rows.vector,
            gamma_parts.array(),
            beta_parts.array(),
            gamma.array(),
            beta.array(),
            blocks,
        );
    }
    LAYER_NORM.add_one();
    [gamma, beta]
}

fn require_parameter(
    what: &'static str,
    parameter: &DeviceTensor,
    width: usize,
) -> Result<(), KernelError> {
    parameter.require_shape(what, &[width])?;
    parameter.require_f32(what)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn layer_norm<X: Float, O: Float, N: Size>(
    x: &Array<Vector<X, N>>,
    gamma: &Array<Vector<f32, N>>,
    beta: &ComptimeOption<Array<Vector<f32, N>>>,
    output: &mut Array<Vector<O, N>>,
    means: &mut Array<f32>,
    inv_deviations: &mut Array<f32>,
    epsilon: f32,
    width: f32,
    #[comptime] units: usize,
    #[comptime] planes: Option<usize>,
    #[define(X)] _x_type: StorageType,
    #[define(O)] _output_type: StorageType,
) {
    let row = CUBE_POS;
    if row >= means.len() {
        terminate!();
    }
    let mut shared = SharedMemory::<f32>::new(units);
    let vectors = gamma.len();
    let first = row * vectors;

    let mut sum = Vector::<f32, N>::new(0.0f32);
    let mut column = UNIT_POS as usize;
    while column < vectors {
        sum += Vector::<f32, N>::cast_from(x[first + column]);
        column += units;
    }
    let mean = cube_sum(lane_sum::<N>(sum), &mut shared, planes) / width;

    let mut squares = Vector::<f32, N>::new(0.0f32);
    let mut column = UNIT_POS as usize;
    while column < vectors {
        let centered = Vector::<f32, N>::cast_from(x[first + column]) - Vector::new(mean);
        squares += centered * centered;
        column += units;
    }
    let variance = cube_sum(lane_sum::<N>(squares), &mut shared, planes) / width;
    let inv_deviation = 1.0f32 / f32::sqrt(variance + epsilon);

    let mut column = UNIT_POS as usize;
    while column < vectors {
        let centered = Vector::<f32, N>::cast_from(x[first + column]) - Vector::new(mean);
        let scaled = centered * Vector::new(inv_deviation) * gamma[column];
        #[comptime]
        let shifted = match beta {
            ComptimeOption::Some(beta) => scaled + beta[column],
            ComptimeOption::None => scaled,
        };
        output[first + column] = Vector::cast_from(shifted);
        column += units;
    }
    if UNIT_POS == 0 {
        means[row] = mean;
        inv_deviations[row] = inv_deviation;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn layer_norm_gradient<X: Float, G: Float, N: Size>(
    x: &Array<Vector<X, N>>,
    gamma: &Array<Vector<f32, N>>,
    means: &Array<f32>,
    inv_deviations: &Array<f32>,
    grad: &Array<Vector<G, N>>,
    x_grad: &mut Array<Vector<X, N>>,
    width: f32,
    #[comptime] units: usize,
    #[comptime] planes: Option<usize>,
    #[define(X)] _x_type: StorageType,
    #[define(G)] _grad_type: StorageType,
) {
    let row = CUBE_POS;
    if row >= means.len() {
        terminate!();
    }
    let mut shared = SharedMemory::<f32>::new(units);
    let vectors = gamma.len();
    let first = row * vectors;
    let mean = Vector::<f32, N>::new(means[row]);
    let inv_deviation = Vector::<f32, N>::new(inv_deviations[row]);

    // Neither sums of vectors nor a sum for each vector: those do not fit into a unit's registers.
    let mut sum = 0.0f32;
    let mut slope = 0.0f32;
    let mut column = UNIT_POS as usize;
    while column < vectors {
        let normalized = (Vector::<f32, N>::cast_from(x[first + column]) - mean) * inv_deviation;
        let scaled = Vector::<f32, N>::cast_from(grad[first + column]) * gamma[column];
        sum = add_lanes::<N>(sum, scaled);
        slope = add_lanes::<N>(slope, scaled * normalized);
        column += units;
    }
    let sum = cube_sum(sum, &mut shared, planes) / width;
    let slope = cube_sum(slope, &mut shared, planes) / width;

    let mut column = UNIT_POS as usize;
    while column < vectors {
        let normalized = (Vector::<f32, N>::cast_from(x[first + column]) - mean) * inv_deviation;
        let scaled = Vector::<f32, N>::cast_from(grad[first + column]) * gamma[column];
        let centered = scaled - Vector::new(sum) - normalized * Vector::new(slope);
        x_grad[first + column] = Vector::cast_from(centered * inv_deviation);
        column += units;
    }
}

/// Σ g x̂ and Σ g over a block of rows; a unit has a vector of columns.
#[cube(launch_unchecked, address_type = "dynamic")]
fn layer_norm_block_sums<X: Float, G: Float, N: Size>(
    x: &Array<Vector<X, N>>,
    means: &Array<f32>,
    inv_deviations: &Array<f32>,
    grad: &Array<Vector<G, N>>,
    gamma_parts: &mut Array<Vector<f32, N>>,
    beta_parts: &mut Array<Vector<f32, N>>,
    rows_at_once: usize,
    vectors: usize,
    #[define(X)] _x_type: StorageType,
    #[define(G)] _grad_type: StorageType,
) {
    let column = ABSOLUTE_POS_X as usize;
    if column < vectors {
        let block = CUBE_POS_Y as usize;
        let mut row = block * rows_at_once;
        let last = row + rows_at_once;
        let end = select(last < means.len(), last, means.len());
        let mut gamma = Vector::<f32, N>::new(0.0f32);
        let mut beta = Vector::<f32, N>::new(0.0f32);
        while row < end {
            let pos = row * vectors + column;
            let centered = Vector::<f32, N>::cast_from(x[pos]) - Vector::new(means[row]);
            let grad = Vector::<f32, N>::cast_from(grad[pos]);
            gamma += grad * centered * Vector::new(inv_deviations[row]);
            beta += grad;
            row += 1;
        }
        gamma_parts[block * vectors + column] = gamma;
        beta_parts[block * vectors + column] = beta;
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn layer_norm_sum_of_blocks<N: Size>(
    gamma_parts: &Array<Vector<f32, N>>,
    beta_parts: &Array<Vector<f32, N>>,
    gamma: &mut Array<Vector<f32, N>>,
    beta: &mut Array<Vector<f32, N>>,
    blocks: usize,
) {
    let column = ABSOLUTE_POS;
    if column < gamma.len() {
        let mut gamma_sum = Vector::<f32, N>::new(0.0f32);
        let mut beta_sum = Vector::<f32, N>::new(0.0f32);
        for block in 0..blocks {
            let pos = block * gamma.len() + column;
            gamma_sum += gamma_parts[pos];
            beta_sum += beta_parts[pos];
        }
        gamma[column] = gamma_sum;
        beta[column] = beta_sum;
    }
}
