//! Attention in mixed precision.

use burn::tensor::ops::{AttentionModuleOptions, BoolTensor, FloatTensor};
use burn::tensor::{DType, FloatDType, Shape, TensorMetadata, get_device_settings};

use super::{AmpBackend, operands};
use crate::counters;
use crate::policy::{Half, Op, Rule};

/// `softmax(q kᵀ · scale + bias) v`, with the masks and options of Burn's op.
///
/// Where no gradient is recorded the inner backend's own kernel runs, on operands of the rule's
/// type. Autodiff has none: its composition runs softmax in the operands' type, which is NaN in f16
/// from q = k = 40 on, so under autodiff a lowered attention is composed here.
pub(super) fn attention<B: AmpBackend>(
    query: FloatTensor<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
    mask: Option<BoolTensor<B>>,
    bias: Option<FloatTensor<B>>,
    options: AttentionModuleOptions,
) -> FloatTensor<B> {
    let rule = operands::rule::<B>(Op::attention, &query);

    if let Rule::Lower(half) = rule {
        let all_lower = [&query, &key, &value]
            .into_iter()
            .chain(&bias)
            .all(|operand| operand.dtype() != DType::F64);
        if all_lower && B::ad_enabled(&B::float_device(&query)) {
            let [query, key, value] =
                [query, key, value].map(|operand| operands::lower::<B>(operand, half));
            return composed::<B>(query, key, value, mask, bias, options, half);
        }
        if all_lower {
            let bias = bias.map(|bias| {
                counters::count_cast();
                B::amp_cast_saturating(bias, half.dtype())
            });
            let [query, key, value] =
                [query, key, value].map(|operand| operands::lower::<B>(operand, half));
            return B::attention(query, key, value, mask, bias, options);
        }
    }

    let ([query, key, value], [bias], store) =
        operands::cast::<B, 3, 1>(Op::attention, [query, key, value], [bias]);
    store.finish::<B>(B::attention(query, key, value, mask, bias, options))
}

/// Two products in the half type around a softmax in f32.
fn composed<B: AmpBackend>(
    query: FloatTensor<B>,
    key: FloatTensor<B>,
    value: FloatTensor<B>,
    mask: Option<BoolTensor<B>>,
    bias: Option<FloatTensor<B>>,
    options: AttentionModuleOptions,
    half: Half,
) -> FloatTensor<B> {
    let head = query.shape()[3] as f64;
    let scale = options.scale.unwrap_or_else(|| head.sqrt().recip());
    let (exact, rest) = split_scale(scale);

    // Scaled before the product, the scores stay in range; by a power of two, without rounding.
    let query = B::float_mul_scalar(query, exact.into());
    let scores = B::float_matmul(query, B::float_swap_dims(key, 2, 3));
    let scores = operands::to::<B>(scores, FloatDType::F32);
    let scores = B::float_mul_scalar(scores, rest.into());

    let scores = match options.softcap {
        Some(softcap) => {
            assert!(softcap > 0.0, "softcap must be positive, got {softcap}");
            let capped = B::float_tanh(B::float_div_scalar(scores, softcap.into()));
            B::float_mul_scalar(capped, softcap.into())
        }
        None => scores,
    };
    let scores = match mask {
        Some(mask) => B::float_mask_fill(scores, mask, f32::NEG_INFINITY.into()),
        None => scores,
    };
    let scores = if options.is_causal {
        let mask = causal_mask::<B>(&scores);
        B::float_mask_fill(scores, mask, f32::NEG_INFINITY.into())
    } else {
        scores
    };
    let scores = match bias {
        Some(bias) => B::float_add(scores, operands::widen::<B>(bias)),
        None => scores,
    };

    let probabilities = operands::to::<B>(softmax_of_masked::<B>(scores), half.dtype());
    B::float_matmul(probabilities, value)
}

/// Splits a scale into a power of two and a rest between 0.5 and 2.
fn split_scale(scale: f64) -> (f64, f64) {
    if !scale.is_normal() {
        return (1.0, scale);
    }
    let exact = scale.abs().log2().round().clamp(-14.0, 0.0).exp2();
    (exact, scale / exact)
}

/// Softmax over the last dimension; a row of -inf gives zeros, as Burn's attention does.
fn softmax_of_masked<B: AmpBackend>(scores: FloatTensor<B>) -> FloatTensor<B> {
    let max = B::float_max_dim(B::float_detach(scores.clone()), 3);
    let max = B::float_clamp_min(max, f32::MIN.into());
    let numerator = B::float_exp(B::float_sub(scores, max));
    let sum = B::float_sum_dim(numerator.clone(), 3);
    let sum = B::float_clamp_min(sum, f32::MIN_POSITIVE.into());
    B::float_div(numerator, sum)
}

/// True where a key comes after its query; the last query sees the last key.
fn causal_mask<B: AmpBackend>(scores: &FloatTensor<B>) -> BoolTensor<B> {
    let device = B::float_device(scores);
    let settings = get_device_settings::<B>(&device);
    let shape = scores.shape();
    let [queries, keys] = [shape[2], shape[3]];
    let positions = |count: usize, shape| {
        let positions = B::int_arange(0..count as i64, &device, settings.int_dtype);
        B::int_reshape(positions, Shape::new(shape))
    };
    let last_visible = B::int_add_scalar(
        positions(queries, [1, 1, queries, 1]),
        (keys as i64 - queries as i64).into(),
    );
    let mask = B::int_lower(
        last_visible,
        positions(keys, [1, 1, 1, keys]),
        settings.bool_dtype,
    );
    B::bool_expand(mask, shape)
}

#[cfg(test)]
mod tests {
    use super::split_scale;

    #[test]
    fn should_split_a_scale_into_a_power_of_two_and_a_small_rest() {
        for (scale, exact) in [
            (0.125, 0.125),
            (0.25, 0.25),
            (1.0, 1.0),
            (8.0, 1.0),
            (0.17, 0.125),
        ] {
            let (power, rest) = split_scale(scale);
            assert_eq!(power, exact, "scale {scale}");
            assert_eq!(power * rest, scale);
        }
        assert_eq!(split_scale(0.0), (1.0, 0.0));
    }
}
