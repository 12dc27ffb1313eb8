use burn_amp_kernels::rows::{layer_norm_backward, layer_norm_forward};
use burn_amp_kernels::{FloatType, KernelError};
use rstest::rstest;

use crate::common::*;

const EPSILON: f32 = 1e-5;

struct Reference {
    output: Vec<f64>,
    mean: Vec<f64>,
    inv_deviation: Vec<f64>,
    x_grad: Vec<f64>,
    gamma_grad: Vec<f64>,
    beta_grad: Vec<f64>,
}

fn reference(x: &[f32], gamma: &[f32], beta: &[f32], grad: &[f32]) -> Reference {
    let width = gamma.len();
    let mut all = Reference {
        output: Vec::new(),
        mean: Vec::new(),
        inv_deviation: Vec::new(),
        x_grad: Vec::new(),
        gamma_grad: vec![0.0; width],
        beta_grad: vec![0.0; width],
    };
    let d = width as f64;
    for (row, grad) in x.chunks_exact(width).zip(grad.chunks_exact(width)) {
        let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / d;
        let variance = row
            .iter()
            .map(|x| (f64::from(*x) - mean).powi(2))
            .sum::<f64>()
            / d;
        let inv = 1.0 / (variance + f64::from(EPSILON)).sqrt();
        let normalized: Vec<f64> = row.iter().map(|x| (f64::from(*x) - mean) * inv).collect();
        let scaled: Vec<f64> = grad
            .iter()
            .zip(gamma)
            .map(|(g, gamma)| f64::from(*g) * f64::from(*gamma))
            .collect();
        let sum = scaled.iter().sum::<f64>() / d;
        let slope = scaled
            .iter()
            .zip(&normalized)
            .map(|(h, n)| h * n)
            .sum::<f64>()
            / d;
        for column in 0..width {
            let n = normalized[column];
            all.output
                .push(n * f64::from(gamma[column]) + f64::from(beta[column]));
            all.x_grad.push((scaled[column] - sum - n * slope) * inv);
            all.gamma_grad[column] += f64::from(grad[column]) * n;
            all.beta_grad[column] += f64::from(grad[column]);
        }
        all.mean.push(mean);
        all.inv_deviation.push(inv);
    }
    all
}

#[rstest]
fn matches_f64(
    #[values(FloatType::F32, FloatType::F16)] x_type: FloatType,
    #[values(FloatType::F32, FloatType::F16)] other_type: FloatType,
    #[values((1, 1), (5, 7), (3, 64), (300, 33), (2, 1030), (129, 96))] shape: (usize, usize),
) {
    let Some(client) = client() else { return };
    let (rows, width) = shape;
    let x = rounded(&random(1, rows * width), x_type);
    let grad = rounded(&random(2, rows * width), other_type);
    let [gamma, beta] = [3, 4].map(|seed| random(seed, width));
    let expected = reference(&x, &gamma, &beta, &grad);

    let dims = [rows, width];
    let x = upload(&client, &x, &dims, x_type);
    let grad = upload(&client, &grad, &dims, other_type);
    let [gamma, beta] = [gamma, beta].map(|p| upload(&client, &p, &[width], FloatType::F32));
    let (output, moments) =
        layer_norm_forward(&client, &x, &gamma, Some(&beta), EPSILON, other_type).unwrap();
    assert_eq!(output.dtype, other_type);
    // A row of one value has a deviation of sqrt(epsilon).
    let scale = if width == 1 { 400.0 } else { 1.0 };
    let f32s = 16.0 * scale * precision(FloatType::F32);
    assert_close(
        &download(&client, &output),
        &expected.output,
        f32s + 1.01 * precision(other_type),
    );
    assert_close(&download(&client, &moments.mean), &expected.mean, f32s);
    assert_close(
        &download(&client, &moments.inv_deviation),
        &expected.inv_deviation,
        f32s,
    );

    let grads = layer_norm_backward(&client, &x, &gamma, &moments, &grad).unwrap();
    assert_eq!(grads.x.dtype, x_type);
    let spread = f32s * 8.0 + 1.01 * precision(x_type);
    assert_close(&download(&client, &grads.x), &expected.x_grad, spread);
    let sums = f32s * 8.0 * (rows as f64).sqrt();
    assert_close(&download(&client, &grads.gamma), &expected.gamma_grad, sums);
    assert_close(&download(&client, &grads.beta), &expected.beta_grad, sums);
}

/// 4096 + (0, 1, 2, 3): the mean square less the squared mean cancels in f32.
#[test]
fn variance_does_not_cancel() {
    let Some(client) = client() else { return };
    let x: Vec<f32> = (0..64).map(|index| 4096.0 + (index % 4) as f32).collect();
    let one = vec![1.0; 64];
    let expected = reference(&x, &one, &[0.0; 64], &one);
    let x = upload(&client, &x, &[1, 64], FloatType::F32);
    let gamma = upload(&client, &one, &[64], FloatType::F32);
    let (output, _) =
        layer_norm_forward(&client, &x, &gamma, None, EPSILON, FloatType::F32).unwrap();
    assert_close(&download(&client, &output), &expected.output, 1e-5);
}

/// The last block of rows is not full.
#[test]
fn sums_stop_at_the_last_row() {
    let Some(client) = client() else { return };
    let [rows, width] = [131, 20];
    let [x, grad] = [1, 2].map(|seed| random(seed, rows * width));
    let gamma = random(3, width);
    let expected = reference(&x, &gamma, &vec![0.0; width], &grad);
    let operand =
        |values: &[f32], shape: &[usize]| upload_before_nan(&client, values, shape, FloatType::F32);
    let x = operand(&x, &[rows, width]);
    let grad = operand(&grad, &[rows, width]);
    let gamma = operand(&gamma, &[width]);
    let (_, moments) =
        layer_norm_forward(&client, &x, &gamma, None, EPSILON, FloatType::F32).unwrap();
    let grads = layer_norm_backward(&client, &x, &gamma, &moments, &grad).unwrap();
    assert_close(&download(&client, &grads.gamma), &expected.gamma_grad, 1e-4);
    assert_close(&download(&client, &grads.beta), &expected.beta_grad, 1e-4);
    assert_close(&download(&client, &grads.x), &expected.x_grad, 1e-5);
}

#[test]
fn no_rows_have_zero_gradients() {
    let Some(client) = client() else { return };
    let x = upload(&client, &[], &[0, 6], FloatType::F16);
    let gamma = upload(&client, &[1.0; 6], &[6], FloatType::F32);
    let (output, moments) =
        layer_norm_forward(&client, &x, &gamma, None, EPSILON, FloatType::F32).unwrap();
    assert_eq!(output.shape.to_vec(), [0, 6]);
    let grads = layer_norm_backward(&client, &x, &gamma, &moments, &output).unwrap();
    assert_eq!(download(&client, &grads.gamma), [0.0; 6]);
    assert_eq!(download(&client, &grads.beta), [0.0; 6]);
}

#[test]
fn refuses_parameters_that_do_not_fit() {
    let Some(client) = client() else { return };
    let x = upload(&client, &[1.0; 8], &[2, 4], FloatType::F32);
    let gamma = upload(&client, &[1.0; 3], &[3], FloatType::F32);
    let refused = layer_norm_forward(&client, &x, &gamma, None, EPSILON, FloatType::F32);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "gamma: expected [4], got [3]"
    );

    let gamma = upload(&client, &[1.0; 4], &[4], FloatType::F16);
    let refused = layer_norm_forward(&client, &x, &gamma, None, EPSILON, FloatType::F32);
    assert!(matches!(
        refused,
        Err(KernelError::Type { what: "gamma", .. })
    ));
}

#[test]
fn not_finite_in_a_row_stays_in_it() {
    let Some(client) = client() else { return };
    let mut x = random(9, 3 * 40);
    x[45] = f32::NAN;
    x[85] = f32::INFINITY;
    let x = upload(&client, &x, &[3, 40], FloatType::F32);
    let gamma = upload(&client, &[1.0; 40], &[40], FloatType::F32);
    let (output, _) =
        layer_norm_forward(&client, &x, &gamma, None, EPSILON, FloatType::F32).unwrap();
    let output = download(&client, &output);
    assert!(output[..40].iter().all(|value| value.is_finite()));
    assert!(output[40..80].iter().all(|value| value.is_nan()));
    assert!(output[80..].iter().all(|value| !value.is_finite()));
}
