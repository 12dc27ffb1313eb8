//! Values at the ends of the half types.

use burn::backend::{Autodiff as PlainAutodiff, Flex};
use burn::nn::LayerNormConfig;
use burn::tensor::activation::{gelu, log_softmax, softmax};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, DType, Tensor, TensorData};
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::{Amp, AmpConfig, Autocast, Autodiff};

use crate::common;

type B = Autodiff<Amp<Flex>>;
type Plain = PlainAutodiff<Flex>;

/// Without a loss scale: at 65536, a gradient of one would be infinite.
fn f16(f: impl FnOnce()) {
    let config = AmpConfig::f16().with_loss_scale(LossScaleConfig::none());
    Autocast::new(&config).unwrap().run(f);
}

#[test]
fn should_differentiate_gelu_far_from_zero() {
    let values: Vec<f64> = (-10..=10).map(|value| f64::from(value) * 100.0).collect();
    let slopes: Vec<f64> = values
        .iter()
        .map(|value| match value {
            0.0 => 0.5,
            value => f64::from(*value > 0.0),
        })
        .collect();
    f16(|| {
        let x = common::tensor::<B, 1>(&values, [21], DType::F16, &Default::default());
        let x = x.require_grad();
        let gradients = gelu(x.clone()).sum().backward();
        assert_eq!(common::values(x.grad(&gradients).unwrap()), slopes);
    });
}

#[test]
fn should_keep_attention_finite_where_its_scores_are_beyond_f16() {
    f16(|| {
        let qkv = [0, 1, 2].map(|_| {
            let values = vec![40.0; 4 * 128];
            common::tensor::<B, 4>(&values, [1, 1, 4, 128], DType::F16, &Default::default())
                .require_grad()
        });
        let [query, key, value] = qkv.clone();
        let output = attention(query, key, value, None, None, Default::default());
        assert!(
            common::values(output.clone())
                .iter()
                .all(|value| *value == 40.0)
        );
        let gradients = output.sum().backward();
        for tensor in qkv {
            let gradient = common::values(tensor.grad(&gradients).unwrap());
            assert!(
                gradient.iter().all(|value| value.is_finite()),
                "{gradient:?}"
            );
        }
    });
}

/// The gradient of an f32 query is 150000, beyond f16.
#[test]
fn should_hold_gradients_of_attention_beyond_the_range_of_f16() {
    f16(|| {
        let device = Default::default();
        let leaf = |values: &[f64]| {
            common::tensor::<B, 4>(values, [1, 1, values.len(), 1], DType::F32, &device)
                .require_grad()
        };
        let (query, key, value) = (leaf(&[0.0]), leaf(&[0.0, 1.0]), leaf(&[0.0, 300.0]));
        let output = attention(query.clone(), key, value, None, None, Default::default());
        let gradients = output.mul_scalar(2000.0).sum().backward();
        assert_eq!(common::values(query.grad(&gradients).unwrap()), [150_000.0]);
    });
}

#[test]
fn should_give_a_fully_masked_row_zeros_and_no_gradient() {
    f16(|| {
        let device = Default::default();
        let [query, key, value] = [41, 42, 43]
            .map(|seed| common::normal::<B, 4>([1, 2, 3, 4], seed, &device).require_grad());
        let hidden: Vec<bool> = (0..18).map(|index| index / 3 % 3 == 1).collect();
        let mask = Tensor::<B, 4, Bool>::from_data(TensorData::new(hidden, [1, 2, 3, 3]), &device);
        let output = attention(
            query.clone(),
            key.clone(),
            value.clone(),
            Some(mask),
            None,
            Default::default(),
        );
        let gradients = output.clone().sum().backward();
        let rows = |tensor| {
            common::values::<_, 4>(tensor)
                .chunks(4)
                .map(Vec::from)
                .collect()
        };
        let outputs: Vec<Vec<f64>> = rows(output.inner());
        let query_gradients: Vec<Vec<f64>> = rows(query.grad(&gradients).unwrap());
        for (index, (output, gradient)) in outputs.iter().zip(&query_gradients).enumerate() {
            let is_masked = index % 3 == 1;
            assert_eq!(output.iter().all(|value| *value == 0.0), is_masked);
            assert_eq!(gradient.iter().all(|value| *value == 0.0), is_masked);
        }
        for tensor in [key, value] {
            let gradient = common::values(tensor.grad(&gradients).unwrap());
            assert!(gradient.iter().all(|value| value.is_finite()));
        }
    });
}

/// More scores than one slice takes: the last of them is shorter.
#[test]
fn should_attend_in_slices_as_at_once() {
    const QUERIES: usize = 1100;
    const KEYS: usize = 1400;

    fn run<B: AutodiffBackend>() -> Vec<Vec<f64>> {
        let device = Default::default();
        let draw = |rows, seed| common::normal::<B, 4>([1, 1, rows, 8], seed, &device);
        let bias = common::normal::<B, 4>([1, 1, QUERIES, 1], 54, &device);
        let row_bias = common::normal::<B, 4>([1, 1, 1, KEYS], 56, &device).require_grad();
        let qkv = [draw(QUERIES, 51), draw(KEYS, 52), draw(KEYS, 53)].map(Tensor::require_grad);
        let hidden: Vec<bool> = (0..QUERIES * KEYS).map(|index| index % 7 == 3).collect();
        let mask = TensorData::new(hidden, [1, 1, QUERIES, KEYS]);
        let mask = Tensor::<B, 4, Bool>::from_data(mask, &device);
        let options = AttentionModuleOptions {
            is_causal: true,
            ..Default::default()
        };
        let [query, key, value] = qkv.clone();
        let bias = bias.mul_scalar(0.1).expand([1, 1, QUERIES, KEYS]) + row_bias.clone();
        let output = attention(query, key, value, Some(mask), Some(bias), options);
        let weights = draw(QUERIES, 55);
        let gradients = (output.clone() * weights).sum().backward();
        let mut results = vec![common::values(output)];
        results.extend(qkv.map(|tensor| common::values(tensor.grad(&gradients).unwrap())));
        results.push(common::values(row_bias.grad(&gradients).unwrap()));
        results
    }

    let expected = run::<Plain>();
    let mut ours = Vec::new();
    f16(|| ours = run::<B>());
    for (ours, expected) in ours.iter().zip(&expected) {
        let norm = |values: &[f64]| values.iter().map(|value| value * value).sum::<f64>().sqrt();
        let difference: Vec<f64> = ours.iter().zip(expected).map(|(a, b)| a - b).collect();
        assert!(norm(&difference) < 2e-3 * norm(expected));
    }
}

#[test]
fn should_show_nan_and_infinities_in_results_and_gradients() {
    f16(|| {
        for bad in [f64::NAN, f64::INFINITY] {
            let values = [1.0, bad, 0.5, -1.0];
            let x = || {
                common::tensor::<B, 2>(&values, [1, 4], DType::F16, &Default::default())
                    .require_grad()
            };
            let ops: [fn(Tensor<B, 2>) -> Tensor<B, 2>; 3] = [
                |x| softmax(x, 1),
                |x| log_softmax(x, 1),
                |x| LayerNormConfig::new(4).init(&x.device()).forward(x),
            ];
            for op in ops {
                let leaf = x();
                let output = op(leaf.clone());
                assert!(
                    common::values(output.clone())
                        .iter()
                        .any(|value| value.is_nan())
                );
                let gradients = output.sum().backward();
                let gradient = common::values(leaf.grad(&gradients).unwrap());
                assert!(gradient.iter().any(|value| value.is_nan()), "{gradient:?}");
            }
        }
    });
}
