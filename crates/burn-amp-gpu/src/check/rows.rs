//! Layer norm, softmax and log-softmax.

use anyhow::Result;
use burn_amp_kernels::FloatType;
use burn_amp_kernels::rows::{
    layer_norm_backward, layer_norm_forward, log_softmax_backward, log_softmax_forward,
    softmax_backward, softmax_forward,
};

use super::{Checks, name};
use crate::device::Gpu;
use crate::reference::{
    layer_norm, precision, random, rounded, softmax, softmax_grad, worst_relative,
};

const EPSILON: f32 = 1e-5;

pub(super) fn run(checks: &mut Checks<'_>) -> Result<()> {
    let shapes: &[[usize; 2]] = if checks.quick {
        &[[5, 7], [3, 64]]
    } else {
        &[[129, 768], [5, 7], [300, 33], [1, 1], [2, 5003], [3, 50257]]
    };
    let types = checks.types();
    for x in &types {
        for other in &types {
            // Two half types never meet.
            if x != other && *x != FloatType::F32 && *other != FloatType::F32 {
                continue;
            }
            for (index, shape) in shapes.iter().enumerate() {
                // Every pair is a set of kernels to compile: two shapes see all of them.
                if x != other && index >= 2 {
                    continue;
                }
                let case = format!("{} and {}, {shape:?}", name(*x), name(*other));
                checks.case("layer norm", case.clone(), |gpu| {
                    norm(gpu, *x, *other, *shape)
                })?;
                checks.case("softmax", case.clone(), |gpu| {
                    probabilities(gpu, *x, *other, *shape, 1.0)
                })?;
                checks.case("softmax", format!("{case}, wide"), |gpu| {
                    probabilities(gpu, *x, *other, *shape, 30.0)
                })?;
                checks.case("log-softmax", case, |gpu| logs(gpu, *x, *other, *shape))?;
            }
        }
    }
    for half in checks.halves.clone() {
        checks.case("softmax", format!("masked {}", name(half)), |gpu| {
            masked(gpu, half)
        })?;
    }
    Ok(())
}

fn norm(
    gpu: &Gpu,
    x_type: FloatType,
    other_type: FloatType,
    [rows, width]: [usize; 2],
) -> Result<f64> {
    let client = &gpu.client;
    let x = rounded(&random(1, rows * width), x_type);
    let grad = rounded(&random(2, rows * width), other_type);
    let [gamma, beta] = [3, 4].map(|seed| random(seed, width));
    let expected = layer_norm(&x, [&gamma, &beta], &grad, EPSILON);

    let dims = [rows, width];
    let x = gpu.upload(&x, &dims, x_type);
    let grad = gpu.upload(&grad, &dims, other_type);
    let [gamma, beta] = [gamma, beta].map(|p| gpu.upload(&p, &[width], FloatType::F32));
    // A row of one value has a deviation of sqrt(epsilon).
    let scale = if width == 1 { 400.0 } else { 1.0 };
    let f32s = 16.0 * scale * precision(FloatType::F32);
    let worst = |tensor, expected: &[f64], tolerance| {
        gpu.download(tensor)
            .map(|actual| worst_relative(&actual, expected, tolerance))
    };

    let (output, moments) =
        layer_norm_forward(client, &x, &gamma, Some(&beta), EPSILON, other_type)?;
    let grads = layer_norm_backward(client, &x, &gamma, &moments, &grad)?;
    let stored = f32s + 1.01 * precision(other_type);
    let spread = f32s * 8.0 + 1.01 * precision(x_type);
    let sums = f32s * 8.0 * (rows as f64).sqrt();
    let errors = [
        worst(&output, &expected.output, stored)?,
        worst(&moments.mean, &expected.mean, f32s)?,
        worst(&moments.inv_deviation, &expected.inv_deviation, f32s)?,
        worst(&grads.x, &expected.x_grad, spread)?,
        worst(&grads.gamma, &expected.gamma_grad, sums)?,
        worst(&grads.beta, &expected.beta_grad, sums)?,
    ];
    Ok(errors.into_iter().fold(0.0, f64::max))
}

/// A device's exponential may be a few units off.
const F32S: f64 = 64.0 / (1 << 24) as f64;

fn probabilities(
    gpu: &Gpu,
    x_type: FloatType,
    other_type: FloatType,
    [rows, width]: [usize; 2],
    spread: f32,
) -> Result<f64> {
    let x: Vec<f32> = random(1, rows * width).iter().map(|x| x * spread).collect();
    let x = rounded(&x, x_type);
    let grad = rounded(&random(2, rows * width), other_type);
    let expected = softmax(&x, &grad, width);

    let dims = [rows, width];
    let input = gpu.upload(&x, &dims, x_type);
    let upstream = gpu.upload(&grad, &dims, other_type);
    let output = softmax_forward(&gpu.client, &input, other_type)?;
    let stored = gpu.download(&output)?;
    let tolerance = F32S + 1.01 * precision(other_type);
    let forward = worst_relative(&stored, &expected.probabilities, tolerance);

    let x_grad = softmax_backward(&gpu.client, &output, &upstream, x_type)?;
    let tolerance = F32S + 1.01 * precision(x_type);
    let expected = softmax_grad(&stored, &grad, width);
    let backward = worst_relative(&gpu.download(&x_grad)?, &expected, tolerance);
    Ok(forward.max(backward))
}

fn logs(
    gpu: &Gpu,
    x_type: FloatType,
    other_type: FloatType,
    [rows, width]: [usize; 2],
) -> Result<f64> {
    let x: Vec<f32> = random(1, rows * width).iter().map(|x| x * 8.0).collect();
    let x = rounded(&x, x_type);
    let grad = rounded(&random(2, rows * width), other_type);
    let expected = softmax(&x, &grad, width);

    let dims = [rows, width];
    let input = gpu.upload(&x, &dims, x_type);
    let upstream = gpu.upload(&grad, &dims, other_type);
    let (output, sums) = log_softmax_forward(&gpu.client, &input, other_type)?;
    let x_grad = log_softmax_backward(&gpu.client, &input, &sums, &upstream)?;
    // The gradient's sum over a row is rounded in the size of its terms.
    let sum = F32S * (width as f64).sqrt();
    let errors = [
        worst_relative(
            &gpu.download(&output)?,
            &expected.logs,
            F32S + 1.01 * precision(other_type),
        ),
        worst_relative(&gpu.download(&sums)?, &expected.log_sums, F32S),
        worst_relative(
            &gpu.download(&x_grad)?,
            &expected.log_grad,
            sum + 1.01 * precision(x_type),
        ),
    ];
    Ok(errors.into_iter().fold(0.0, f64::max))
}

/// Masked scores, and scores beyond what an exponential takes.
fn masked(gpu: &Gpu, half: FloatType) -> Result<f64> {
    let inf = f32::INFINITY;
    let x = [
        0.0, -inf, -inf, 0.0, //
        1e4, 1e4, -1e4, -inf, //
        -6e4, -6e4, -6e4, -6e4, //
        -inf, 3.0, -inf, -inf,
    ];
    let input = gpu.upload(&x, &[4, 4], half);
    let output = softmax_forward(&gpu.client, &input, FloatType::F32)?;
    let expected = [
        0.5, 0.0, 0.0, 0.5, //
        0.5, 0.5, 0.0, 0.0, //
        0.25, 0.25, 0.25, 0.25, //
        0.0, 1.0, 0.0, 0.0,
    ];
    Ok(worst_relative(&gpu.download(&output)?, &expected, F32S))
}
