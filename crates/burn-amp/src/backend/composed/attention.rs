//! Attention over a few queries at a time: no more than a slice of the scores exists at once, in
//! forward or in backward.

use std::ops::Range;

use burn::tensor::backend::Backend;
use burn::tensor::ops::{AttentionModuleOptions, BoolTensor, FloatTensor};
use burn::tensor::{FloatDType, Shape, Slice, TensorMetadata, get_device_settings};

use super::sum_to_shape;
use crate::backend::AmpBackend;
use crate::backend::amp_backend::{Attention, AttentionGrads};
use crate::backend::operands::{product_operand, to, wider};

/// Below this many bytes of scores, a slice is not worth its launches.
const MIN_SLICE_BYTES: usize = 4 << 20;

/// Two products in the compute type around a softmax in f32.
pub(in crate::backend) fn attention<B: AmpBackend>(
    operands: Attention<B>,
    options: AttentionModuleOptions,
    compute: FloatDType,
) -> FloatTensor<B> {
    let plan = Plan::new(operands, options, compute);
    if plan.keys == 0 {
        let width = plan.operands.value.shape()[3];
        let shape = Shape::new([plan.batch, plan.heads, plan.queries, width]);
        return B::float_zeros(shape, &B::float_device(&plan.key), compute);
    }
    let run = B::amp_product_type(compute);
    let value = product_operand::<B>(plan.operands.value.clone(), compute, run);
    let outputs = plan.slices().map(|rows| {
        let scores = plan.scores(plan.queries_of(&plan.operands.query, &rows), &rows);
        let probabilities = softmax_of_masked::<B>(scores.masked);
        let probabilities = product_operand::<B>(probabilities, compute, run);
        to::<B>(B::float_matmul(probabilities, value.clone()), compute)
    });
    concatenated::<B>(outputs.collect())
}

/// The scores are computed again, a slice at a time. With P the probabilities and dO the gradient:
/// dV = Pᵀ dO, dP = dO Vᵀ, dS = P (dP - Σ P dP over a row), dQ = dS K and dK = dSᵀ Q, times the scale.
pub(in crate::backend) fn attention_backward<B: AmpBackend>(
    operands: Attention<B>,
    options: AttentionModuleOptions,
    compute: FloatDType,
    grad: FloatTensor<B>,
    dtypes: [FloatDType; 3],
    wants_bias: bool,
) -> AttentionGrads<B> {
    if operands.key.shape()[2] == 0 {
        return without_keys::<B>(&operands, dtypes, wants_bias);
    }
    let plan = Plan::new(operands, options, compute);
    let wide = plan.wide;
    let grad = to::<B>(grad, wide);
    let value = product_operand::<B>(plan.operands.value.clone(), compute, wide);
    let value = B::float_swap_dims(value, 2, 3);

    let mut query_grads = Vec::new();
    let mut bias_rows = Vec::new();
    let mut bias_sum = Sum::<B>::default();
    let mut key_grad = Sum::<B>::default();
    let mut value_grad = Sum::<B>::default();
    for rows in plan.slices() {
        let query = plan.queries_of(&plan.operands.query, &rows);
        let grad = plan.queries_of(&grad, &rows);
        let scores = plan.scores(query.clone(), &rows);
        let probabilities = softmax_of_masked::<B>(scores.masked);

        // As forward multiplied with them.
        let stored = B::amp_round(probabilities.clone(), compute);
        value_grad.add(B::float_matmul(
            B::float_swap_dims(stored, 2, 3),
            grad.clone(),
        ));

        let grad = B::float_matmul(grad, value.clone());
        let weighted = B::float_mul(probabilities.clone(), grad);
        let mean = B::float_sum_dim(weighted.clone(), 3);
        let grad = B::float_sub(weighted, B::float_mul(probabilities, mean));
        if let Some(bias) = plan.operands.bias.as_ref().filter(|_| wants_bias) {
            let mut part = bias.shape();
            if part[2] == 1 {
                bias_sum.add(sum_to_shape::<B>(grad.clone(), &part));
            } else {
                part[2] = rows.len();
                bias_rows.push(sum_to_shape::<B>(grad.clone(), &part));
            }
        }
        // Where the scores were capped, their derivative is 1 - tanh².
        let grad = match scores.tanh {
            Some(tanh) => {
                let square = B::float_mul(tanh.clone(), tanh);
                let slope = B::float_add_scalar(B::float_neg(square), 1.0.into());
                B::float_mul(grad, slope)
            }
            None => grad,
        };
        let grad = B::float_mul_scalar(grad, plan.scale.into());

        let query = product_operand::<B>(query, compute, wide);
        key_grad.add(B::float_matmul(
            B::float_swap_dims(grad.clone(), 2, 3),
            query,
        ));
        query_grads.push(B::float_matmul(grad, plan.key.clone()));
    }

    let finish = |grad: FloatTensor<B>, of: &FloatTensor<B>, dtype: FloatDType| {
        to::<B>(sum_to_shape::<B>(grad, &of.shape()), dtype)
    };
    let operands = &plan.operands;
    let bias = operands.bias.as_ref().filter(|_| wants_bias).map(|bias| {
        let grad = match bias.shape()[2] {
            1 => bias_sum.total(),
            _ => concatenated::<B>(bias_rows),
        };
        to::<B>(grad, bias.dtype().into())
    });
    AttentionGrads {
        query: finish(concatenated::<B>(query_grads), &operands.query, dtypes[0]),
        key: finish(key_grad.total(), &operands.key, dtypes[1]),
        value: finish(value_grad.total(), &operands.value, dtypes[2]),
        bias,
    }
}

/// Where there is no key nothing has a gradient.
fn without_keys<B: AmpBackend>(
    operands: &Attention<B>,
    dtypes: [FloatDType; 3],
    wants_bias: bool,
) -> AttentionGrads<B> {
    let zeros =
        |like: &FloatTensor<B>, dtype| B::float_zeros(like.shape(), &B::float_device(like), dtype);
    AttentionGrads {
        query: zeros(&operands.query, dtypes[0]),
        key: zeros(&operands.key, dtypes[1]),
        value: zeros(&operands.value, dtypes[2]),
        bias: operands
            .bias
            .as_ref()
            .filter(|_| wants_bias)
            .map(|bias| zeros(bias, bias.dtype().into())),
    }
}

/// The scores of some queries with all keys, in f32.
struct Scores<B: Backend> {
    masked: FloatTensor<B>,
    /// Of the scores before the cap, where there is one.
    tanh: Option<FloatTensor<B>>,
}

/// One attention: its operands, sizes and types.
struct Plan<B: Backend> {
    operands: Attention<B>,
    /// In f32, for every slice.
    key: FloatTensor<B>,
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

impl<B: AmpBackend> Plan<B> {
    fn new(operands: Attention<B>, options: AttentionModuleOptions, compute: FloatDType) -> Self {
        if let Some(softcap) = options.softcap {
            assert!(softcap > 0.0, "softcap must be positive, got {softcap}");
        }
        let products = [&operands.query, &operands.key, &operands.value];
        let [query, key, value] = products.map(TensorMetadata::shape);
        let [batch, heads] = [0, 1].map(|dim| query[dim].max(key[dim]).max(value[dim]));
        let [queries, keys] = [query[2], key[2]];

        let row_bytes = batch * heads * keys * size_of::<f32>();
        let operand_bytes: usize = products
            .iter()
            .map(|operand| operand.shape().num_elements() * operand.dtype().size())
            .sum();
        let slice_bytes = operand_bytes.max(MIN_SLICE_BYTES);
        let wide: FloatDType = wider(compute.into(), FloatDType::F32.into()).into();
        Self {
            key: product_operand::<B>(operands.key.clone(), compute, wide),
            batch,
            heads,
            queries,
            keys,
            rows_at_once: (slice_bytes / row_bytes.max(1)).max(1),
            scale: options
                .scale
                .unwrap_or_else(|| (query[3] as f64).sqrt().recip()),
            options,
            compute,
            wide,
            operands,
        }
    }

    /// At least one slice, so that an attention without queries has a result too.
    fn slices(&self) -> impl Iterator<Item = Range<usize>> + use<B> {
        let (queries, rows) = (self.queries, self.rows_at_once);
        (0..queries.div_ceil(rows).max(1))
            .map(move |slice| slice * rows..((slice + 1) * rows).min(queries))
    }

    /// The part of a tensor that belongs to some queries; all of it where it is the same for every query.
    fn queries_of(&self, tensor: &FloatTensor<B>, rows: &Range<usize>) -> FloatTensor<B> {
        if self.is_whole(tensor.shape()[2], rows) {
            return tensor.clone();
        }
        B::float_slice(tensor.clone(), &slice_of(rows))
    }

    fn is_whole(&self, len: usize, rows: &Range<usize>) -> bool {
        rows.len() == self.queries || len == 1
    }

    fn scores(&self, query: FloatTensor<B>, rows: &Range<usize>) -> Scores<B> {
        // In f32 from the accumulator: in f16, q = k = 40 would be infinite.
        let key = B::float_swap_dims(self.key.clone(), 2, 3);
        let query = product_operand::<B>(query, self.compute, self.wide);
        let scores = B::float_matmul(query, key);
        let scores = B::float_mul_scalar(scores, self.scale.into());

        let (scores, tanh) = match self.options.softcap {
            Some(softcap) => {
                let tanh = B::float_tanh(B::float_div_scalar(scores, softcap.into()));
                let capped = B::float_mul_scalar(tanh.clone(), softcap.into());
                (capped, Some(tanh))
            }
            None => (scores, None),
        };
        let hidden = f32::NEG_INFINITY;
        let scores = match &self.operands.mask {
            Some(mask) => {
                let mask = self.mask(mask.clone(), rows, scores.shape());
                B::float_mask_fill(scores, mask, hidden.into())
            }
            None => scores,
        };
        let scores = if self.options.is_causal {
            let mask = self.causal_mask(&scores, rows);
            B::float_mask_fill(scores, mask, hidden.into())
        } else {
            scores
        };
        let masked = match &self.operands.bias {
            Some(bias) => B::float_add(scores, to::<B>(self.queries_of(bias, rows), self.wide)),
            None => scores,
        };
        Scores { masked, tanh }
    }

    fn mask(&self, mask: BoolTensor<B>, rows: &Range<usize>, scores: Shape) -> BoolTensor<B> {
        let mask = if self.is_whole(mask.shape()[2], rows) {
            mask
        } else {
            B::bool_slice(mask, &slice_of(rows))
        };
        B::bool_expand(mask, scores)
    }

    /// True where a key comes after its query; the last query sees the last key.
    fn causal_mask(&self, scores: &FloatTensor<B>, rows: &Range<usize>) -> BoolTensor<B> {
        let device = B::float_device(scores);
        let settings = get_device_settings::<B>(&device);
        let positions = |range: Range<i64>, shape: [usize; 4]| {
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
        B::bool_expand(mask, scores.shape())
    }
}

/// A sum over slices.
struct Sum<B: Backend>(Option<FloatTensor<B>>);

impl<B: Backend> Default for Sum<B> {
    fn default() -> Self {
        Self(None)
    }
}

impl<B: Backend> Sum<B> {
    fn add(&mut self, more: FloatTensor<B>) {
        self.0 = Some(match self.0.take() {
            Some(sum) => B::float_add(sum, more),
            None => more,
        });
    }

    fn total(self) -> FloatTensor<B> {
        self.0.expect("there is at least one slice")
    }
}

fn slice_of(rows: &Range<usize>) -> [Slice; 4] {
    let all = Slice::full();
    [all, all, Slice::from(rows.clone()), all]
}

fn concatenated<B: AmpBackend>(mut slices: Vec<FloatTensor<B>>) -> FloatTensor<B> {
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
