use burn_amp_kernels::FloatType;
use burn_amp_kernels::rows::{
    log_softmax_backward, log_softmax_forward, softmax_backward, softmax_forward,
};
use rstest::rstest;

use crate::common::*;

/// Probabilities and log Σ exp(x - max) of each row.
fn reference(x: &[f32], width: usize) -> (Vec<f64>, Vec<f64>) {
    let mut probabilities = Vec::new();
    let mut log_sums = Vec::new();
    for row in x.chunks_exact(width) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exps: Vec<f64> = row.iter().map(|x| f64::from(x - max).exp()).collect();
        let sum: f64 = exps.iter().sum();
        probabilities.extend(exps.iter().map(|exp| exp / sum));
        log_sums.push(sum.ln());
    }
    (probabilities, log_sums)
}

#[rstest]
fn matches_f64(
    #[values(FloatType::F32, FloatType::F16)] x_type: FloatType,
    #[values(FloatType::F32, FloatType::F16)] other_type: FloatType,
    #[values((1, 1), (5, 7), (3, 64), (300, 33), (2, 5003), (65, 96))] shape: (usize, usize),
    #[values(1.0, 30.0)] spread: f32,
) {
    let Some(client) = client() else { return };
    let (rows, width) = shape;
    let x: Vec<f32> = random(1, rows * width).iter().map(|x| x * spread).collect();
    let x = rounded(&x, x_type);
    let grad = rounded(&random(2, rows * width), other_type);
    let (probabilities, log_sums) = reference(&x, width);
    let dims = [rows, width];
    let input = upload(&client, &x, &dims, x_type);
    let tolerance = 64.0 * precision(FloatType::F32) + 1.01 * precision(other_type);

    let output = softmax_forward(&client, &input, other_type).unwrap();
    assert_close(&download(&client, &output), &probabilities, tolerance);
    let (logs, sums) = log_softmax_forward(&client, &input, other_type).unwrap();
    let expected: Vec<f64> = x
        .chunks_exact(width)
        .zip(&log_sums)
        .flat_map(|(row, log_sum)| {
            let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            row.iter()
                .map(move |x| f64::from(*x) - f64::from(max) - log_sum)
        })
        .collect();
    assert_close(&download(&client, &logs), &expected, tolerance);
    assert_close(
        &download(&client, &sums),
        &log_sums,
        64.0 * precision(FloatType::F32),
    );

    // From the result as it was stored, whose rows do not sum to one.
    let stored = download(&client, &output);
    let upstream = upload(&client, &grad, &dims, other_type);
    let x_grad = softmax_backward(&client, &output, &upstream, x_type).unwrap();
    assert_eq!(x_grad.dtype, x_type);
    let expected: Vec<f64> = stored
        .chunks_exact(width)
        .zip(grad.chunks_exact(width))
        .flat_map(|(y, g)| {
            let weighted: f64 = y
                .iter()
                .zip(g)
                .map(|(y, g)| f64::from(*y) * f64::from(*g))
                .sum();
            let total: f64 = y.iter().map(|y| f64::from(*y)).sum();
            let pairs: Vec<_> = y.iter().zip(g).collect();
            pairs
                .into_iter()
                .map(move |(y, g)| f64::from(*y) * (f64::from(*g) - weighted / total))
                .collect::<Vec<_>>()
        })
        .collect();
    let back = 64.0 * precision(FloatType::F32) + 1.01 * precision(x_type);
    assert_close(&download(&client, &x_grad), &expected, back);

    let x_grad = log_softmax_backward(&client, &input, &sums, &upstream).unwrap();
    assert_eq!(x_grad.dtype, x_type);
    let expected: Vec<f64> = probabilities
        .chunks_exact(width)
        .zip(grad.chunks_exact(width))
        .flat_map(|(p, g)| {
            let total: f64 = g.iter().map(|g| f64::from(*g)).sum();
            let pairs: Vec<_> = p.iter().zip(g).collect();
            pairs
                .into_iter()
                .map(move |(p, g)| f64::from(*g) - p * total)
                .collect::<Vec<_>>()
        })
        .collect();
    assert_close(&download(&client, &x_grad), &expected, back * 4.0);
}

/// Masked scores, scores beyond what exp takes, and a row of nothing but -inf, which is NaN as it is
/// composed.
#[test]
fn extremes() {
    let Some(client) = client() else { return };
    let inf = f32::INFINITY;
    let x = [
        0.0, -inf, -inf, 0.0, //
        1e4, 1e4, -1e4, -inf, //
        -1e30, -1e30, -1e30, -1e30, //
        -inf, -inf, -inf, -inf,
    ];
    let input = upload(&client, &x, &[4, 4], FloatType::F32);
    let output = download(
        &client,
        &softmax_forward(&client, &input, FloatType::F32).unwrap(),
    );
    assert_eq!(output[..4], [0.5, 0.0, 0.0, 0.5]);
    assert_eq!(output[4..8], [0.5, 0.5, 0.0, 0.0]);
    assert_eq!(output[8..12], [0.25; 4]);
    assert!(output[12..].iter().all(|value| value.is_nan()));

    let (logs, _) = log_softmax_forward(&client, &input, FloatType::F32).unwrap();
    let logs = download(&client, &logs);
    assert_eq!(logs[1], -inf);
    assert_eq!(logs[6], -2e4 - 2f32.ln());
}

#[test]
fn a_probability_row_of_zeros_has_no_gradient() {
    let Some(client) = client() else { return };
    let output = upload(&client, &[0.0; 4], &[1, 4], FloatType::F16);
    let grad = upload(&client, &[1.0, 2.0, 3.0, 4.0], &[1, 4], FloatType::F32);
    let x_grad = softmax_backward(&client, &output, &grad, FloatType::F32).unwrap();
    assert_eq!(download(&client, &x_grad), [0.0; 4]);
}

#[test]
fn refuses_shapes_that_do_not_fit() {
    let Some(client) = client() else { return };
    let output = upload(&client, &[0.0; 4], &[1, 4], FloatType::F16);
    let grad = upload(&client, &[0.0; 4], &[2, 2], FloatType::F32);
    let refused = softmax_backward(&client, &output, &grad, FloatType::F32);
    assert_eq!(
        refused.unwrap_err().to_string(),
        "grad: expected [1, 4], got [2, 2]"
    );
}

#[test]
fn empty_stays_empty() {
    let Some(client) = client() else { return };
    for shape in [[0, 4], [4, 0]] {
        let input = upload(&client, &[], &shape, FloatType::F16);
        let output = softmax_forward(&client, &input, FloatType::F32).unwrap();
        assert_eq!(output.shape.to_vec(), shape);
    }
}
