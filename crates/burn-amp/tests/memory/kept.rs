//! What single ops keep of half operands.

use burn::backend::Flex;
use burn::backend::flex::FlexDevice;
use burn::module::Module;
use burn::nn::attention::{MhaInput, MultiHeadAttentionConfig};
use burn::nn::conv::Conv2dConfig;
use burn::nn::pool::AvgPool2dConfig;
use burn::nn::{BatchNormConfig, DropoutConfig, GroupNormConfig, LayerNormConfig, LinearConfig};
use burn::nn::{PaddingConfig2d, RmsNormConfig};
use burn::tensor::activation::{gelu, log_softmax, relu, sigmoid, softmax};
use burn::tensor::module::attention;
use burn::tensor::{DType, Tensor};
use burn_amp::{Amp, AmpConfig, Autocast, Autodiff};

use crate::common::normal;
use crate::{METER, alone};

type B = Autodiff<Amp<Flex>>;

const SHAPE: [usize; 4] = [4, 8, 64, 64];
const VALUES: u64 = 4 * 8 * 64 * 64;
const ROWS: u64 = VALUES / 64;

/// Rows so short that their statistics show.
const SHORT_ROWS: u64 = VALUES / 4;

fn short_rows(x: Tensor<B, 4>) -> Tensor<B, 4> {
    x.reshape([4, 8, 1024, 4])
}

/// Graph nodes and small tensors.
const OVERHEAD: u64 = 40 << 10;

/// The bytes that an op keeps of a half operand that nothing else holds.
fn kept(op: &dyn Fn(Tensor<B, 4>) -> Tensor<B, 4>) -> u64 {
    let x = normal::<B, 4>(SHAPE, 71, &Default::default()).require_grad();
    let pass = || {
        // Far enough from the leaf not to be taken for a weight, from which a cast is computed again.
        let activation = || (x.clone() * 2.0 * 0.5).cast(DType::BF16);
        let forward = || op(activation()).sum();
        METER.pass(forward, |loss| loss.backward()).1.kept
    };
    Autocast::new(&AmpConfig::bf16()).unwrap().run(|| {
        // The first pass fills the caches of Burn and of its memory.
        pass();
        pass()
    })
}

fn assert_kept(name: &str, expected: u64, bytes: u64) {
    assert!(
        (expected..=expected + OVERHEAD).contains(&bytes),
        "{name} keeps {bytes} bytes, expected {expected}"
    );
}

macro_rules! check {
    ($($name:literal keeps $bytes:expr, for $op:expr;)*) => {$(
        assert_kept($name, $bytes, kept(&$op));
    )*};
}

const HALF: u64 = 2 * VALUES;

#[test]
fn should_keep_half_the_bytes_of_activations() {
    let _alone = alone();
    check! {
        "gelu" keeps HALF, for |x| gelu(x);
        "relu" keeps HALF, for |x| relu(x);
        "sigmoid" keeps HALF, for |x| sigmoid(x);
        "tanh" keeps HALF, for |x| x.tanh();
        "exp" keeps HALF, for |x| x.exp();
        "log" keeps HALF, for |x| x.log();
        "sqrt" keeps HALF, for |x| x.sqrt();
        "powf" keeps HALF, for |x| x.powf_scalar(1.5);
        "square" keeps HALF, for |x| x.square();
        "recip" keeps HALF, for |x| x.recip();
    }
}

#[test]
fn should_keep_nothing_for_what_needs_nothing() {
    let _alone = alone();
    check! {
        "sum" keeps 0, for |x| x.sum_dim(3);
        "mean" keeps 0, for |x| x.mean_dim(3);
        "scaling" keeps 0, for |x| x.mul_scalar(0.1);
        "a broadcast sum" keeps 0, for |x| {
            let row = Tensor::<_, 1>::ones([64], &x.device()).unsqueeze();
            x + row
        };
        "a broadcast quotient" keeps 0, for |x| {
            let row = Tensor::<_, 1>::ones([64], &x.device()).unsqueeze();
            x / row
        };
    }
}

#[test]
fn should_keep_an_operand_or_a_result_and_statistics_for_rows() {
    let _alone = alone();
    check! {
        "softmax" keeps HALF, for |x| softmax(x, 3);
        "log_softmax" keeps HALF + 4 * SHORT_ROWS, for |x| log_softmax(short_rows(x), 3);
        // Its input, and the dropped copy is not kept: the mask is.
        "dropout" keeps HALF, for |x| DropoutConfig::new(0.5).init().forward(x);
        // As in attention: one copy of the probabilities, of the mask, and of the product's operand.
        "dropout of a softmax" keeps 3 * HALF, for |x| {
            let value = Tensor::<_, 1>::ones([64], &x.device()).reshape([1, 1, 64, 1]).require_grad();
            let dropped = DropoutConfig::new(0.5).init().forward(softmax(x, 3));
            dropped.matmul(value.expand([4, 8, 64, 1]))
        };
        "softmax before a product" keeps HALF, for |x| {
            let value = Tensor::<_, 1>::ones([64], &x.device()).reshape([1, 1, 64, 1]).require_grad();
            softmax(x, 3).matmul(value.expand([4, 8, 64, 1]))
        };
    }
}

/// As [`check`], for layers that are made before the pass that is measured.
macro_rules! check_layer {
    ($($name:literal keeps $bytes:expr, for $layer:expr, $forward:expr;)*) => {$({
        let device = FlexDevice::default();
        let layer = $layer(&device);
        let forward = $forward;
        assert_kept($name, $bytes, kept(&|x| forward(&layer, x)));
    })*};
}

#[test]
fn should_keep_the_input_of_layers_and_no_second_copy_of_their_weights() {
    let _alone = alone();
    check_layer! {
        "linear" keeps HALF, for |device| LinearConfig::new(64, 512).init(device),
            |layer: &burn::nn::Linear<B>, x| layer.forward(x);
        "layer norm" keeps HALF + 8 * SHORT_ROWS, for |device| LayerNormConfig::new(4).init(device),
            |layer: &burn::nn::LayerNorm<B>, x| layer.forward(short_rows(x));
        "convolution" keeps HALF, for |device| {
            Conv2dConfig::new([8, 8], [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device)
        }, |layer: &burn::nn::conv::Conv2d<B>, x| layer.forward(x);
        "average pooling" keeps HALF, for |_: &FlexDevice| {
            AvgPool2dConfig::new([2, 2]).init()
        }, |layer: &burn::nn::pool::AvgPool2d, x| layer.forward(x);
        // The deviation from the mean, for the variance and again for the quotient, and the quotient.
        "batch norm" keeps 3 * HALF, for |device| BatchNormConfig::new(8).init(device),
            |layer: &burn::nn::BatchNorm<B>, x| layer.forward(x);
        "group norm" keeps 2 * HALF, for |device| GroupNormConfig::new(2, 8).init(device),
            |layer: &burn::nn::GroupNorm<B>, x| layer.forward(x);
        // The operand, for its square in f32 and for the quotient, and the quotient.
        "root mean square norm" keeps 2 * HALF, for |device| RmsNormConfig::new(64).init(device),
            |layer: &burn::nn::RmsNorm<B>, x| layer.forward(x);
    }
}

#[test]
fn should_keep_queries_keys_and_values_for_attention() {
    let _alone = alone();
    check! {
        "attention" keeps HALF, for |x| {
            attention(x.clone(), x.clone(), x, None, None, Default::default())
        };
    }
}

/// Query, key and value layers share one lowered copy of a norm's result.
#[test]
fn should_lower_a_tensor_once_for_several_layers() {
    let _alone = alone();
    check_layer! {
        "a norm before three layers" keeps 2 * HALF + 8 * ROWS, for |device| {
            (
                LayerNormConfig::new(64).init(device),
                [0, 1, 2].map(|_| LinearConfig::new(64, 64).init(device)),
            )
        }, |layer: &(burn::nn::LayerNorm<B>, [burn::nn::Linear<B>; 3]), x| {
            let x = layer.0.forward(x);
            let [query, key, value] = &layer.1;
            query.forward(x.clone()) + key.forward(x.clone()) + value.forward(x)
        };
    }
}

/// Burn's own attention layer, composed of linear layers, products and a softmax: the input, then
/// queries, keys, values and the probabilities, and what the output layer is given.
#[test]
fn should_keep_half_for_burns_attention_layer() {
    let _alone = alone();
    const TOKENS: u64 = VALUES / 64;
    const PROBABILITIES: u64 = 2 * 4 * 4 * 512 * 512;
    check_layer! {
        "multi-head attention" keeps 5 * 2 * TOKENS * 64 + PROBABILITIES, for |device| {
            MultiHeadAttentionConfig::new(64, 4).with_dropout(0.0).init(device)
        }, |layer: &burn::nn::attention::MultiHeadAttention<B>, x: Tensor<B, 4>| {
            let x = x.reshape([4, 512, 64]);
            layer.forward(MhaInput::self_attn(x)).context.unsqueeze()
        };
    }
}

/// A frozen layer's input is not needed, and its weight is kept as it is; so is a query that is learned.
#[test]
fn should_keep_no_second_copy_of_frozen_weights_and_learned_queries() {
    let _alone = alone();
    check_layer! {
        "a frozen linear layer" keeps 0, for |device| {
            LinearConfig::new(64, 2048).init(device).no_grad()
        }, |layer: &burn::nn::Linear<B>, x| layer.forward(x);
        "a frozen convolution" keeps 0, for |device| {
            Conv2dConfig::new([8, 512], [3, 3]).init(device).no_grad()
        }, |layer: &burn::nn::conv::Conv2d<B>, x| layer.forward(x);
        "a product with a frozen weight" keeps 0, for |device| {
            normal::<B, 4>([4, 8, 64, 256], 72, device)
        }, |weight: &Tensor<B, 4>, x: Tensor<B, 4>| x.matmul(weight.clone());
        "learned queries" keeps HALF, for |device| {
            normal::<B, 4>([4, 8, 1024, 64], 73, device).require_grad()
        }, |queries: &Tensor<B, 4>, x: Tensor<B, 4>| {
            attention(queries.clone(), x.clone(), x, None, None, Default::default())
        };
    }
}
