//! Attention over a few queries at a time: no more than a slice of the scores exists at once, in
//! forward or in backward.

use burn::tensor::backend::Backend;
use burn::tensor::ops::{AttentionModuleOptions, BoolTensor, FloatTensor};
use burn::tensor::{FloatDType, Shape, Slice, TensorMetadata, get_device_settings};

use crate::backend::AmpBackend;
use crate::backend::amp_backend::Attention;
use crate::backend::operands::{to, widen, wider};
use burn::backend::autodiff::ops::broadcast_shape;

/// Below this many bytes of scores, a slice is not worth its launches.
const MIN_SLICE_BYTES: usize = 4 << 20;

/// The gradients of an attention, each in the type of its operand.
#[derive(Debug)]
pub(crate) struct AttentionGrads<B: Backend> {
    pub query: FloatTensor<B>,
    pub key: FloatTensor<B>,
    pub value: FloatTensor<B>,
    pub bias: Option<FloatTensor<B>>,
}

/// Two products in the compute type around a softmax in f32.
pub(crate) fn attention<B: AmpBackend>(
    operands: Attention<B>,
    options: AttentionModuleOptions,
    compute: FloatDType,
) -> FloatTensor<B> {
    let plan = Plan::new(&operands, options, compute);
    let outputs = plan
        .slices()
        .map(|rows| {
            let query = plan.queries::<B>(operands.query.clone(), &rows);
            let scores = plan.scores(&operands, query, &rows);
            let probabilities = softmax_of_masked::<B>(scores.masked);
            B::amp_matmul(probabilities, operands.value.clone(), compute, compute)
        })
        .collect();
    concatenate::<B>(outputs)
}

/// The scores are computed again, a slice at a time. With P the probabilities and dO the gradient:
/// dV = Pᵀ dO, dP = dO Vᵀ, dS = P (dP - Σ P dP over a row), dQ = dS K and dK = dSᵀ Q, times the scale.
pub(crate) fn attention_backward<B: AmpBackend>(
    operands: Attention<B>,
    options: AttentionModuleOptions,
    compute: FloatDType,
    grad: FloatTensor<B>,
) -> AttentionGrads<B> {
    let plan = Plan::new(&operands, options, compute);
    let wide = plan.wide;
    let mut query_grads = Vec::new();
    let mut bias_grads = Vec::new();
    let mut key_grad = None;
    let mut value_grad = None;

    for rows in plan.slices() {
        let query = plan.queries::<B>(operands.query.clone(), &rows);
        let grad = plan.queries::<B>(grad.clone(), &rows);
        let scores = plan.scores(&operands, query.clone(), &rows);
        let probabilities = softmax_of_masked::<B>(scores.masked);

        let stored = to::<B>(probabilities.clone(), compute);
        let sum = B::amp_matmul(transposed::<B>(stored), grad.clone(), compute, wide);
        value_grad = Some(added::<B>(value_grad, sum));

        let value = transposed::<B>(operands.value.clone());
        let grad = B::amp_matmul(grad, value, compute, wide);
        let weighted = B::float_mul(probabilities.clone(), grad);
        let mean = B::float_sum_dim(weighted.clone(), 3);
        let grad = B::float_sub(weighted, B::float_mul(probabilities, mean));

        if let Some(bias) = &operands.bias {
            bias_grads.push(plan.bias_grad::<B>(grad.clone(), bias.shape()));
        }
        // Where the scores were capped, their derivative is 1 - tanh².
        let grad = match scores.tanh {
            Some(tanh) => {
                let slope =
                    B::float_add_scalar(B::float_neg(B::float_mul(tanh.clone(), tanh)), 1.0.into());
                B::float_mul(grad, slope)
            }
            None => grad,
        };
        let grad = B::float_mul_scalar(grad, plan.scale.into());

        let sum = B::amp_matmul(transposed::<B>(grad.clone()), query, compute, wide);
        key_grad = Some(added::<B>(key_grad, sum));
        query_grads.push(B::amp_matmul(grad, operands.key.clone(), compute, wide));
    }

    let zeros = |like: &FloatTensor<B>| {
        B::float_zeros(like.shape(), &B::float_device(like), like.dtype().into())
    };
    let stored = |grad: Option<FloatTensor<B>>, like: &FloatTensor<B>| match grad {
        Some(grad) => to::<B>(grad, like.dtype().into()),
        None => zeros(like),
    };
    let bias = operands.bias.map(|bias| {
        let grad = if bias.shape()[2] == 1 {
            bias_grads.into_iter().reduce(B::float_add)
        } else if bias_grads.is_empty() {
            None
        } else {
            Some(concatenate::<B>(bias_grads))
        };
        stored(grad, &bias)
    });
    let query_grad = (!query_grads.is_empty()).then(|| concatenate::<B>(query_grads));
    AttentionGrads {
        query: stored(query_grad, &operands.query),
        key: stored(key_grad, &operands.key),
        value: stored(value_grad, &operands.value),
        bias,
    }
}

/// The scores of some queries with all keys.
struct Scores<B: Backend> {
    masked: FloatTensor<B>,
    /// Of the scores before the cap, where there is one.
    tanh: Option<FloatTensor<B>>,
}

/// The sizes and types of one attention.
struct Plan {
    batch: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    rows_at_once: usize,
    scale: f64,
    options: AttentionModuleOptions,
    compute: FloatDType,
    wide: FloatDType,
}

impl Plan {
    fn new<B: AmpBackend>(
        operands: &Attention<B>,
        options: AttentionModuleOptions,
        compute: FloatDType,
    ) -> Self {
        if let Some(softcap) = options.softcap {
            assert!(softcap > 0.0, "softcap must be positive, got {softcap}");
        }
        let query = operands.query.shape();
        let [batch, heads, queries, width] = [query[0], query[1], query[2], query[3]];
        let keys = operands.key.shape()[2];
        let wide: FloatDType = wider(compute.into(), FloatDType::F32.into()).into();

        let row_bytes = batch * heads * keys * size_of::<f32>();
        let operand_bytes: usize = [&operands.query, &operands.key, &operands.value]
            .iter()
            .map(|operand| operand.shape().num_elements() * operand.dtype().size())
            .sum();
        let bytes = operand_bytes.max(MIN_SLICE_BYTES);
        Self {
            batch,
            heads,
            queries,
            keys,
            rows_at_once: (bytes / row_bytes.max(1)).max(1),
            scale: options
                .scale
                .unwrap_or_else(|| (width as f64).sqrt().recip()),
            options,
            compute,
            wide,
        }
    }

    /// At least one slice, so that an attention without queries has a result too.
    fn slices(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        let count = self.queries.div_ceil(self.rows_at_once).max(1);
        (0..count).map(|slice| {
            let start = slice * self.rows_at_once;
            start..(start + self.rows_at_once).min(self.queries)
        })
    }

    fn is_whole(&self, rows: &std::ops::Range<usize>) -> bool {
        rows.len() == self.queries
    }

    fn queries<B: AmpBackend>(
        &self,
        tensor: FloatTensor<B>,
        rows: &std::ops::Range<usize>,
    ) -> FloatTensor<B> {
        if self.is_whole(rows) || tensor.shape()[2] == 1 {
            return tensor;
        }
        B::float_slice(tensor, &slice_of(rows))
    }

    fn scores<B: AmpBackend>(
        &self,
        operands: &Attention<B>,
        query: FloatTensor<B>,
        rows: &std::ops::Range<usize>,
    ) -> Scores<B> {
        let key = transposed::<B>(operands.key.clone());
        // In f32 from the accumulator: in f16, q = k = 40 would be infinite.
        let scores = B::amp_matmul(query, key, self.compute, self.wide);
        let scores = B::float_mul_scalar(scores, self.scale.into());

        let (scores, tanh) = match self.options.softcap {
            Some(softcap) => {
                let tanh = B::float_tanh(B::float_div_scalar(scores, softcap.into()));
                let capped = B::float_mul_scalar(tanh.clone(), softcap.into());
                (capped, Some(tanh))
            }
            None => (scores, None),
        };
        let scores = match &operands.mask {
            Some(mask) => {
                let mask = self.mask::<B>(mask.clone(), rows);
                B::float_mask_fill(scores, mask, f32::NEG_INFINITY.into())
            }
            None => scores,
        };
        let scores = if self.options.is_causal {
            let mask = self.causal_mask::<B>(&scores, rows);
            B::float_mask_fill(scores, mask, f32::NEG_INFINITY.into())
        } else {
            scores
        };
        let masked = match &operands.bias {
            Some(bias) => {
                let bias = self.queries::<B>(bias.clone(), rows);
                B::float_add(scores, to::<B>(widen::<B>(bias), self.wide))
            }
            None => scores,
        };
        Scores { masked, tanh }
    }

    fn mask<B: AmpBackend>(
        &self,
        mask: BoolTensor<B>,
        rows: &std::ops::Range<usize>,
    ) -> BoolTensor<B> {
        let mask = if self.is_whole(rows) || mask.shape()[2] == 1 {
            mask
        } else {
            B::bool_slice(mask, &slice_of(rows))
        };
        B::bool_expand(mask, self.score_shape(rows))
    }

    /// True where a key comes after its query; the last query sees the last key.
    fn causal_mask<B: AmpBackend>(
        &self,
        scores: &FloatTensor<B>,
        rows: &std::ops::Range<usize>,
    ) -> BoolTensor<B> {
        let device = B::float_device(scores);
        let settings = get_device_settings::<B>(&device);
        let positions = |range: std::ops::Range<i64>, shape: [usize; 4]| {
            let positions = B::int_arange(range, &device, settings.int_dtype);
            B::int_reshape(positions, Shape::new(shape))
        };
        let ahead = self.keys as i64 - self.queries as i64;
        let last_visible = positions(
            rows.start as i64 + ahead..rows.end as i64 + ahead,
            [1, 1, rows.len(), 1],
        );
        let keys = positions(0..self.keys as i64, [1, 1, 1, self.keys]);
        let mask = B::int_lower(last_visible, keys, settings.bool_dtype);
        B::bool_expand(mask, self.score_shape(rows))
    }

    fn score_shape(&self, rows: &std::ops::Range<usize>) -> Shape {
        Shape::new([self.batch, self.heads, rows.len(), self.keys])
    }

    /// The part of a bias gradient that some queries give: summed where the bias is broadcast.
    fn bias_grad<B: AmpBackend>(&self, grad: FloatTensor<B>, bias: Shape) -> FloatTensor<B> {
        let rows = grad.shape()[2];
        let rows = if bias[2] == 1 { 1 } else { rows };
        broadcast_shape::<B>(grad, &Shape::new([bias[0], bias[1], rows, bias[3]]))
    }
}

fn slice_of(rows: &std::ops::Range<usize>) -> [Slice; 4] {
    let all = Slice::full();
    [all, all, Slice::from(rows.clone()), all]
}

fn transposed<B: AmpBackend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    B::float_swap_dims(tensor, 2, 3)
}

fn added<B: AmpBackend>(sum: Option<FloatTensor<B>>, more: FloatTensor<B>) -> FloatTensor<B> {
    match sum {
        Some(sum) => B::float_add(sum, more),
        None => more,
    }
}

fn concatenate<B: AmpBackend>(mut slices: Vec<FloatTensor<B>>) -> FloatTensor<B> {
    if slices.len() == 1 {
        return slices.remove(0);
    }
    B::float_cat(slices, 2)
}

/// Softmax over the last dimension; a row of -inf gives zeros, as Burn's attention does.
fn softmax_of_masked<B: AmpBackend>(scores: FloatTensor<B>) -> FloatTensor<B> {
    let max = B::float_max_dim(scores.clone(), 3);
    let max = B::float_clamp_min(max, f32::MIN.into());
    let numerator = B::float_exp(B::float_sub(scores, max));
    let sum = B::float_sum_dim(numerator.clone(), 3);
    let sum = B::float_clamp_min(sum, f32::MIN_POSITIVE.into());
    B::float_div(numerator, sum)
}
