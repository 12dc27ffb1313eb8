//! What the kernels should compute, in f64, and how far off they may be.

use burn_amp_kernels::FloatType;
use half::{bf16, f16};
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};

/// Uniform in [-1, 1), the same for a seed everywhere.
pub fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..len).map(|_| rng.random_range(-1.0f32..1.0)).collect()
}

/// The nearest value of a type.
pub fn round(value: f32, dtype: FloatType) -> f32 {
    match dtype {
        FloatType::F32 => value,
        FloatType::F16 => f16::from_f32(value).to_f32(),
        FloatType::BF16 => bf16::from_f32(value).to_f32(),
    }
}

/// The nearest values of a type.
pub fn rounded(values: &[f32], dtype: FloatType) -> Vec<f32> {
    values.iter().map(|value| round(*value, dtype)).collect()
}

/// Values as they lie in memory.
pub fn to_bytes(values: &[f32], dtype: FloatType) -> Vec<u8> {
    let values = values.iter();
    match dtype {
        FloatType::F32 => values.flat_map(|value| value.to_le_bytes()).collect(),
        FloatType::F16 => values
            .flat_map(|value| f16::from_f32(*value).to_le_bytes())
            .collect(),
        FloatType::BF16 => values
            .flat_map(|value| bf16::from_f32(*value).to_le_bytes())
            .collect(),
    }
}

/// Values from memory.
pub fn from_bytes(bytes: &[u8], dtype: FloatType) -> Vec<f32> {
    match dtype {
        FloatType::F32 => {
            let words = bytes.as_chunks::<4>().0.iter();
            words.map(|bytes| f32::from_le_bytes(*bytes)).collect()
        }
        FloatType::F16 => {
            let words = bytes.as_chunks::<2>().0.iter();
            words.map(|b| f16::from_le_bytes(*b).to_f32()).collect()
        }
        FloatType::BF16 => {
            let words = bytes.as_chunks::<2>().0.iter();
            words.map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
        }
    }
}

/// Half a unit in the last place of values around 1.
pub fn precision(dtype: FloatType) -> f64 {
    match dtype {
        FloatType::F32 => 2f64.powi(-24),
        FloatType::F16 => 2f64.powi(-11),
        FloatType::BF16 => 2f64.powi(-8),
    }
}

/// Half a unit in the last place of what is stored; 0 for f32.
pub fn stored_error(value: f64, dtype: FloatType) -> f64 {
    match dtype {
        FloatType::F32 => 0.0,
        // The smallest normal f16: below it units no longer shrink.
        FloatType::F16 => value.abs().max(6.2e-5) * precision(dtype),
        FloatType::BF16 => value.abs() * precision(dtype),
    }
}

/// The largest error over its tolerance: right up to 1. Where one is NaN and the other is not, it is
/// infinite.
pub fn worst(actual: &[f32], expected: &[f64], tolerance: impl Fn(usize) -> f64) -> f64 {
    if actual.len() != expected.len() {
        return f64::INFINITY;
    }
    let error = |index: usize| {
        let [actual, expected] = [f64::from(actual[index]), expected[index]];
        if actual == expected || actual.is_nan() && expected.is_nan() {
            return 0.0;
        }
        let error = (actual - expected).abs() / tolerance(index);
        if error.is_nan() { f64::INFINITY } else { error }
    };
    (0..actual.len()).map(error).fold(0.0, f64::max)
}

/// The same with a tolerance relative to values over 1, and absolute for others.
pub fn worst_relative(actual: &[f32], expected: &[f64], tolerance: f64) -> f64 {
    worst(actual, expected, |index| {
        tolerance * expected[index].abs().max(1.0)
    })
}

/// A matrix product's operands; leading dimensions broadcast.
#[derive(Debug, Clone)]
pub struct Operands<'a> {
    /// The values on the left and their shape.
    pub lhs: (&'a [f32], &'a [usize]),
    /// The values on the right and their shape.
    pub rhs: (&'a [f32], &'a [usize]),
    /// Added to each column.
    pub bias: Option<&'a [f32]>,
}

/// A product, and Σ|a||b| of each of its values.
///
/// Operands have to be values of the compute type already.
pub fn matmul(operands: &Operands<'_>) -> (Vec<f64>, Vec<f64>) {
    let Operands { lhs, rhs, bias } = operands;
    let [m, k] = [lhs.1[lhs.1.len() - 2], lhs.1[lhs.1.len() - 1]];
    let n = rhs.1[rhs.1.len() - 1];
    let batches = leading(lhs.1, rhs.1);
    let mut results = Vec::new();
    let mut magnitudes = Vec::new();
    for batch in 0..batches.iter().product() {
        let left = &lhs.0[m * k * matrix_of(batch, &batches, lhs.1)..];
        let right = &rhs.0[k * n * matrix_of(batch, &batches, rhs.1)..];
        for row in 0..m {
            // Rows of the right operand one after the other, as they lie.
            let mut sums = match bias {
                Some(bias) => bias.iter().map(|bias| f64::from(*bias)).collect(),
                None => vec![0.0; n],
            };
            let mut sizes: Vec<f64> = sums.iter().map(|sum| sum.abs()).collect();
            for inner in 0..k {
                let value = f64::from(left[row * k + inner]);
                for column in 0..n {
                    let product = value * f64::from(right[inner * n + column]);
                    sums[column] += product;
                    sizes[column] += product.abs();
                }
            }
            results.extend(sums);
            magnitudes.extend(sizes);
        }
    }
    (results, magnitudes)
}

/// The leading dimensions of a product.
fn leading(lhs: &[usize], rhs: &[usize]) -> Vec<usize> {
    let rank = lhs.len().max(rhs.len());
    let size = |shape: &[usize], dim: usize| match (dim + shape.len()).checked_sub(rank) {
        Some(dim) => shape[dim],
        None => 1,
    };
    (0..rank - 2)
        .map(|dim| size(lhs, dim).max(size(rhs, dim)))
        .collect()
}

/// Which matrix of an operand a batch of the result takes.
fn matrix_of(batch: usize, batches: &[usize], shape: &[usize]) -> usize {
    let mut rest = batch;
    let mut matrix = 0;
    let mut stride = 1;
    for dim in (0..batches.len()).rev() {
        let position = rest % batches[dim];
        rest /= batches[dim];
        let own = (dim + shape.len()).checked_sub(batches.len() + 2);
        let size = own.map_or(1, |dim| shape[dim]);
        if size > 1 {
            matrix += position * stride;
        }
        stride *= size;
    }
    matrix
}

/// Softmax of rows, forward and backward.
#[derive(Debug, Clone, PartialEq)]
pub struct Softmax {
    /// The probabilities.
    pub probabilities: Vec<f64>,
    /// log Σ exp(x - max x) of each row.
    pub log_sums: Vec<f64>,
    /// The logarithms.
    pub logs: Vec<f64>,
    /// The gradient of the log-softmax.
    pub log_grad: Vec<f64>,
}

/// Softmax and log-softmax of rows, with the gradient of the latter.
pub fn softmax(x: &[f32], grad: &[f32], width: usize) -> Softmax {
    let mut all = Softmax {
        probabilities: Vec::new(),
        log_sums: Vec::new(),
        logs: Vec::new(),
        log_grad: Vec::new(),
    };
    for (row, grad) in x.chunks_exact(width).zip(grad.chunks_exact(width)) {
        let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let shifted = row.iter().map(|x| f64::from(*x) - f64::from(max));
        let sum: f64 = shifted.clone().map(f64::exp).sum();
        let total: f64 = grad.iter().map(|g| f64::from(*g)).sum();
        for (shifted, grad) in shifted.zip(grad) {
            let probability = shifted.exp() / sum;
            all.probabilities.push(probability);
            all.logs.push(shifted - sum.ln());
            all.log_grad.push(f64::from(*grad) - probability * total);
        }
        all.log_sums.push(sum.ln());
    }
    all
}

/// The gradient of a softmax from its result as it was stored, whose rows need not sum to one.
pub fn softmax_grad(output: &[f32], grad: &[f32], width: usize) -> Vec<f64> {
    let mut all = Vec::new();
    for (row, grad) in output.chunks_exact(width).zip(grad.chunks_exact(width)) {
        let pairs = row.iter().zip(grad);
        let pairs = pairs.map(|(y, g)| (f64::from(*y), f64::from(*g)));
        let weighted: f64 = pairs.clone().map(|(y, g)| y * g).sum();
        let total: f64 = row.iter().map(|y| f64::from(*y)).sum();
        all.extend(pairs.map(|(y, g)| y * (g - weighted / total)));
    }
    all
}

/// A layer norm, forward and backward.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNorm {
    /// The normalized rows.
    pub output: Vec<f64>,
    /// The mean of each row.
    pub mean: Vec<f64>,
    /// One over the deviation of each row.
    pub inv_deviation: Vec<f64>,
    /// The gradient of the rows.
    pub x_grad: Vec<f64>,
    /// The gradient of gamma.
    pub gamma_grad: Vec<f64>,
    /// The gradient of beta.
    pub beta_grad: Vec<f64>,
}

/// Normalizes rows as wide as `gamma`, and differentiates.
pub fn layer_norm(x: &[f32], [gamma, beta]: [&[f32]; 2], grad: &[f32], epsilon: f32) -> LayerNorm {
    let width = gamma.len();
    let d = width as f64;
    let mut all = LayerNorm {
        output: Vec::new(),
        mean: Vec::new(),
        inv_deviation: Vec::new(),
        x_grad: Vec::new(),
        gamma_grad: vec![0.0; width],
        beta_grad: vec![0.0; width],
    };
    for (row, grad) in x.chunks_exact(width).zip(grad.chunks_exact(width)) {
        let row = row.iter().map(|x| f64::from(*x));
        let mean = row.clone().sum::<f64>() / d;
        let variance = row.clone().map(|x| (x - mean).powi(2)).sum::<f64>() / d;
        let inv = 1.0 / (variance + f64::from(epsilon)).sqrt();
        let normalized: Vec<f64> = row.map(|x| (x - mean) * inv).collect();
        let scaled: Vec<f64> = grad
            .iter()
            .zip(gamma)
            .map(|(g, gamma)| f64::from(*g) * f64::from(*gamma))
            .collect();
        let sum = scaled.iter().sum::<f64>() / d;
        let slope = scaled.iter().zip(&normalized).map(|(h, n)| h * n);
        let slope = slope.sum::<f64>() / d;
        for column in 0..width {
            let n = normalized[column];
            let output = n * f64::from(gamma[column]) + f64::from(beta[column]);
            all.output.push(output);
            all.x_grad.push((scaled[column] - sum - n * slope) * inv);
            all.gamma_grad[column] += f64::from(grad[column]) * n;
            all.beta_grad[column] += f64::from(grad[column]);
        }
        all.mean.push(mean);
        all.inv_deviation.push(inv);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn should_come_back_from_bytes_rounded() {
        let values = random(1, 33);
        for dtype in [FloatType::F32, FloatType::F16, FloatType::BF16] {
            let bytes = to_bytes(&values, dtype);
            assert_eq!(bytes.len(), 33 * dtype.size());
            let back = from_bytes(&bytes, dtype);
            assert_eq!(back, rounded(&values, dtype));
            let exact: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
            assert!(worst_relative(&back, &exact, precision(dtype)) <= 1.0);
        }
    }

    #[test]
    fn should_measure_errors_in_tolerances() {
        assert_eq!(worst_relative(&[1.5, 8.0], &[1.0, 8.0], 0.25), 2.0);
        assert_eq!(worst_relative(&[f32::NAN], &[f64::NAN], 0.1), 0.0);
        assert_eq!(worst_relative(&[f32::NAN], &[1.0], 0.1), f64::INFINITY);
        assert_eq!(worst_relative(&[1.0], &[f64::NAN], 0.1), f64::INFINITY);
        let infinite = worst_relative(&[f32::INFINITY], &[f64::INFINITY], 0.1);
        assert_eq!(infinite, 0.0);
        assert_eq!(worst_relative(&[1.0], &[1.0, 2.0], 0.1), f64::INFINITY);
    }

    #[test]
    fn should_multiply_with_a_bias() {
        let (results, magnitudes) = matmul(&Operands {
            lhs: (&[1.0, -2.0], &[1, 2]),
            rhs: (&[3.0, 4.0, 5.0, 6.0], &[2, 2]),
            bias: Some(&[0.5, -0.5]),
        });
        assert_eq!(results, [-6.5, -8.5]);
        assert_eq!(magnitudes, [13.5, 16.5]);
    }

    #[test]
    fn should_broadcast_leading_dimensions() {
        let (results, _) = matmul(&Operands {
            lhs: (&[1.0, 2.0, 3.0], &[3, 1, 1, 1]),
            rhs: (&[10.0, 100.0], &[2, 1, 1]),
            bias: None,
        });
        assert_eq!(results, [10.0, 100.0, 20.0, 200.0, 30.0, 300.0]);
    }

    /// The derivative of Σ g f(x) by differences.
    fn slope(x: &[f32], index: usize, f: impl Fn(&[f32]) -> f64) -> f64 {
        let step = 1.0 / 1024.0;
        let moved = |by: f32| {
            let mut x = x.to_vec();
            x[index] += by;
            f(&x)
        };
        (moved(step) - moved(-step)) / (2.0 * f64::from(step))
    }

    fn dot(values: &[f64], grad: &[f32]) -> f64 {
        values
            .iter()
            .zip(grad)
            .map(|(v, g)| v * f64::from(*g))
            .sum()
    }

    #[test]
    fn should_differentiate_softmax() {
        let [x, grad] = [1, 2].map(|seed| random(seed, 10));
        let all = softmax(&x, &grad, 5);
        let total: f64 = all.probabilities[..5].iter().sum();
        assert!((total - 1.0).abs() < 1e-12);
        let stored: Vec<f32> = all.probabilities.iter().map(|p| *p as f32).collect();
        let by_result = softmax_grad(&stored, &grad, 5);
        for (index, by_result) in by_result.into_iter().enumerate() {
            let of = slope(&x, index, |x| {
                dot(&softmax(x, &grad, 5).probabilities, &grad)
            });
            assert!((by_result - of).abs() < 1e-5);
            let of = slope(&x, index, |x| dot(&softmax(x, &grad, 5).logs, &grad));
            assert!((all.log_grad[index] - of).abs() < 1e-5);
        }
    }

    #[test]
    fn should_differentiate_a_layer_norm() {
        let [x, grad] = [1, 2].map(|seed| random(seed, 12));
        let [gamma, beta] = [3, 4].map(|seed| random(seed, 4));
        let all = layer_norm(&x, [&gamma, &beta], &grad, 1e-5);
        let sum = |x: &[f32], gamma: &[f32], beta: &[f32]| {
            dot(&layer_norm(x, [gamma, beta], &grad, 1e-5).output, &grad)
        };
        for index in 0..12 {
            let of = slope(&x, index, |x| sum(x, &gamma, &beta));
            assert!((all.x_grad[index] - of).abs() < 1e-3, "{index}");
        }
        for index in 0..4 {
            let of = slope(&gamma, index, |gamma| sum(&x, gamma, &beta));
            assert!((all.gamma_grad[index] - of).abs() < 1e-5);
            let of = slope(&beta, index, |beta| sum(&x, &gamma, beta));
            assert!((all.beta_grad[index] - of).abs() < 1e-5);
        }
    }
}
