//! The recorded cases, written with Burn's own ops and modules.

use burn::backend::Flex;
use burn::nn::loss::{
    CrossEntropyLossConfig, HuberLossConfig, KLDivLossConfig, MseLoss, Reduction,
    SmoothL1LossConfig,
};
use burn::nn::{GroupNormConfig, LayerNormConfig};
use burn::tensor::activation::{log_softmax, sigmoid, softmax};
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, Int, Tensor, linalg};
use burn_amp::Amp;
use half::{bf16, f16};

use crate::common;
use crate::recorded::Case;

type B = Amp<Flex>;

/// What a case runs as: from its inputs to the values of its results, in the order of the record.
pub type Run = fn(&Inputs) -> Vec<Result>;

/// A result's values.
#[derive(Debug)]
pub struct Result {
    pub values: Vec<f64>,
}

impl<const D: usize> From<Tensor<B, D>> for Result {
    fn from(tensor: Tensor<B, D>) -> Self {
        Self {
            values: common::values(tensor),
        }
    }
}

/// How the cases that the record names are run; `None` for a name that is not known.
#[rustfmt::skip]
pub fn run(name: &str) -> Option<Run> {
    Some(match name {
        "softmax_large_logits"
        | "softmax_mask_value_-1e9"
        | "softmax_mask_value_-1e4" => |x| vec![softmax(x.get::<2>(0), 1).into()],
        "softmax_close_large_logits" => |x| vec![softmax(x.get::<1>(0), 0).into()],
        "log_softmax_1e4" => |x| vec![log_softmax(x.get::<2>(0), 1).into()],
        "log_softmax_small_probability" => |x| vec![log_softmax(x.get::<1>(0), 0).into()],
        "log_of_softmax_composed" => |x| vec![softmax(x.get::<1>(0), 0).log().into()],

        "layer_norm_mean1000_std0.1"
        | "layer_norm_large_values"
        | "layer_norm_constant" => |x| vec![layer_norm(x.get(0)).into()],
        "rms_norm_composed" => |x| vec![rms_norm(x.get(0)).into()],
        "group_norm_large_mean" => |x| vec![group_norm(x.get(0)).into()],

        "mse_300_vs_0" | "mse_vector" | "mse_tiny_difference" => |x| vec![
            MseLoss::new().forward(x.get::<1>(0), x.get(1), Reduction::Mean).into(),
        ],
        "mse_composed" => |x| vec![(x.get::<1>(0) - x.get(1)).powi_scalar(2).mean().into()],
        "smooth_l1" => |x| vec![
            SmoothL1LossConfig::new()
                .init()
                .forward_with_reduction(x.get::<1>(0), x.get(1), Reduction::Mean)
                .into(),
        ],
        "huber" => |x| vec![
            HuberLossConfig::new(500.0)
                .init()
                .forward(x.get::<1>(0), x.get(1), Reduction::Mean)
                .into(),
        ],
        "bce_composed" => |x| vec![binary_cross_entropy(x.get(0), x.get(1)).into()],
        "kl_div" => |x| vec![
            KLDivLossConfig::new()
                .init()
                .forward(x.get::<1>(0), x.get(1), Reduction::Sum)
                .into(),
        ],
        "cross_entropy_50k_none" => |x| vec![cross_entropy(x.get(0), &[123, 49999])],
        "cross_entropy_50k_equal" => |x| vec![cross_entropy(x.get(0), &[0])],

        "sum_70000_of_1" | "sum_300_of_1" | "sum_3000_of_1" => |x| vec![x.get::<1>(0).sum().into()],
        "mean_70000_of_1" | "mean_4096_of_0.1" | "mean_3000_of_1" | "mean_100000_of_0.0001" =>
            |x| vec![x.get::<1>(0).mean().into()],
        "sum_as_loop_3000_ones" => |x| vec![sum_as_loop(x.get(0)).into()],
        "prod" => |x| vec![x.get::<1>(0).prod().into()],
        "cumprod" => |x| vec![x.get::<1>(0).cumprod(0).into()],
        "norm_100_of_1e-4" | "norm_10000_of_1e3" => |x| vec![linalg::l2_norm(x.get::<1>(0), 0).into()],
        "norm_composed" => |x| {
            let x = x.get::<1>(0);
            vec![(x.clone() * x).sum().sqrt().into()]
        },
        "var_mean1000_std0.1" => |x| {
            let variance = x.get::<1>(0).var(0);
            vec![variance.clone().into(), variance.sqrt().into()]
        },
        "var_composed" => |x| {
            let x = x.get::<1>(0);
            vec![((x.clone() * x.clone()).mean() - x.mean().powi_scalar(2)).into()]
        },
        "cosine_similarity_large" => |x| vec![
            linalg::cosine_similarity(x.get::<1>(0), x.get(1), 0, None).into(),
        ],
        // Burn has no cdist: the distance of two points is the norm of their difference.
        "cdist" => |x| vec![linalg::l2_norm(x.get::<2>(0) - x.get(1), 1).into()],

        "exp" => |x| vec![x.get::<1>(0).exp().into()],
        "log" => |x| vec![x.get::<1>(0).log().into()],
        "log1p" => |x| vec![x.get::<1>(0).log1p().into()],
        "pow_3" => |x| vec![x.get::<1>(0).powi_scalar(3).into()],
        "pow_half" => |x| vec![x.get::<1>(0).powf_scalar(0.5).into()],
        "pow_tensor" => |x| vec![x.get::<1>(0).powf(x.get(1)).into()],
        "sqrt_rsqrt_reciprocal" => |x| {
            let x = x.get::<1>(0);
            let root = x.clone().sqrt();
            vec![root.clone().into(), root.recip().into(), x.recip().into()]
        },
        "add_absorption" => |x| vec![(x.get::<1>(0) + x.get(1)).into()],
        "mul_underflow" => |x| vec![(x.get::<1>(0) * x.get(1)).into()],

        "matmul_overflow"
        | "matmul_accumulate"
        | "matmul_cancellation"
        | "matmul_small" => |x| vec![x.get::<2>(0).matmul(x.get(1)).into()],
        "attention_scores_overflow" => |x| {
            let [q, v] = [x.get::<4>(0), x.get::<4>(1)];
            let scores = q.clone().matmul(q.clone().swap_dims(2, 3)).div_scalar(8.0);
            let fused = attention(
                q.clone(), q, v.clone(), None, None, AttentionModuleOptions::default(),
            );
            vec![softmax(scores, 3).matmul(v).into(), fused.into()]
        },
        "attention_scale_first" => |x| {
            let q = x.get::<4>(0);
            vec![q.clone().div_scalar(8.0).matmul(q.swap_dims(2, 3)).into()]
        },
        _ => return None,
    })
}

fn layer_norm(x: Tensor<B, 2>) -> Tensor<B, 2> {
    // Scale 1 and shift 0, which change nothing.
    let [_, width] = x.dims();
    LayerNormConfig::new(width).init(&x.device()).forward(x)
}

fn group_norm(x: Tensor<B, 3>) -> Tensor<B, 3> {
    GroupNormConfig::new(2, 4)
        .with_affine(false)
        .init(&x.device())
        .forward(x)
}

fn rms_norm(x: Tensor<B, 2>) -> Tensor<B, 2> {
    let mean_square = (x.clone() * x.clone()).mean_dim(1);
    x * mean_square.add_scalar(1e-6).sqrt().recip()
}

fn binary_cross_entropy(x: Tensor<B, 1>, y: Tensor<B, 1>) -> Tensor<B, 1> {
    let p = sigmoid(x);
    let one_minus = |tensor: Tensor<B, 1>| -tensor + 1.0;
    -(y.clone() * p.clone().log() + one_minus(y) * one_minus(p).log())
}

/// The loss of each row, as Burn's module gives only their mean.
fn cross_entropy(logits: Tensor<B, 2>, targets: &[i64]) -> Result {
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    let rows = targets.iter().enumerate().map(|(row, target)| {
        let targets = Tensor::<B, 1, Int>::from_ints([*target], &logits.device());
        loss.forward(logits.clone().slice([row..row + 1]), targets)
    });
    Tensor::cat(rows.collect(), 0).into()
}

fn sum_as_loop(x: Tensor<B, 1>) -> Tensor<B, 1> {
    let [count] = x.dims();
    let start = x.clone().slice([0..1]).mul_scalar(0.0);
    (0..count).fold(start, |sum, at| sum + x.clone().slice([at..at + 1]))
}

/// The inputs of a case, rounded to a type.
#[derive(Debug)]
pub struct Inputs {
    tensors: Vec<(Vec<usize>, Vec<f64>)>,
    dtype: DType,
}

impl Inputs {
    /// The f32 inputs of a case.
    pub fn of(case: &Case) -> Self {
        let tensors = case.inputs_f32.iter().enumerate().map(|(index, input)| {
            let values = match (&input.values, input.rule.as_deref()) {
                (Some(values), _) => values.clone(),
                (None, Some(rule)) => follow(&case.name, index, rule, &input.shape),
                (None, None) => panic!("{}: an input without values", case.name),
            };
            let values = values.into_iter().map(|value| f64::from(value as f32));
            (input.shape.clone(), values.collect())
        });
        Self {
            tensors: tensors.collect(),
            dtype: DType::F32,
        }
    }

    /// The inputs rounded to a type, and held in it.
    pub fn rounded(&self, dtype: DType) -> Self {
        let round = |value: &f64| match dtype {
            DType::F16 => f16::from_f64(*value).to_f64(),
            DType::BF16 => bf16::from_f64(*value).to_f64(),
            _ => *value,
        };
        let tensors = self.tensors.iter();
        Self {
            tensors: tensors
                .map(|(shape, values)| (shape.clone(), values.iter().map(round).collect()))
                .collect(),
            dtype,
        }
    }

    /// The same values in f64.
    pub fn exact(&self) -> Self {
        Self {
            tensors: self.tensors.clone(),
            dtype: DType::F64,
        }
    }

    /// In f64, every value moved by half a unit in the last place of f32, up and down by turns.
    pub fn nearby(&self) -> Self {
        let half_unit = f64::from(f32::EPSILON) / 2.0;
        let moved = |(at, value): (usize, &f64)| {
            let direction = if at.is_multiple_of(2) { 1.0 } else { -1.0 };
            value * (1.0 + direction * half_unit)
        };
        let tensors = self.tensors.iter();
        Self {
            tensors: tensors
                .map(|(shape, values)| {
                    (
                        shape.clone(),
                        values.iter().enumerate().map(moved).collect(),
                    )
                })
                .collect(),
            dtype: DType::F64,
        }
    }

    /// The type that the inputs are held in.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The values of one input.
    pub fn values(&self, index: usize) -> &[f64] {
        &self.tensors[index].1
    }

    fn get<const D: usize>(&self, index: usize) -> Tensor<B, D> {
        let (shape, values) = &self.tensors[index];
        let shape = shape.as_slice().try_into().expect("the case's rank");
        common::tensor(values, shape, self.dtype, &Default::default())
    }
}

/// The values that a rule of the record describes.
fn follow(case: &str, index: usize, rule: &str, shape: &[usize]) -> Vec<f64> {
    let count = shape.iter().product();
    if let Some(value) = rule.strip_prefix("all ") {
        let value = value.split(' ').next().unwrap_or(value);
        let value = value.parse().expect("a number follows `all`");
        return vec![value; count];
    }
    let columns = shape[shape.len() - 1];
    match (case, index) {
        ("cross_entropy_50k_none", 0) => (0..count)
            .map(|at| {
                let (row, class) = (at / columns, at % columns);
                ((class * 7919 + 31 * row) % 10007) as f64 / 10007.0 * 20.0 - 10.0
            })
            .collect(),
        ("attention_scores_overflow" | "attention_scale_first", 0) => (0..count)
            .map(|at| {
                if (at / columns).is_multiple_of(2) {
                    50.0
                } else {
                    -50.0
                }
            })
            .collect(),
        ("attention_scores_overflow", 1) => {
            (0..count).map(|at| (at / columns + 1) as f64).collect()
        }
        _ => panic!("{case}: an unknown rule for input {index}: {rule}"),
    }
}
