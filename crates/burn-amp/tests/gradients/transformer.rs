//! Two blocks of a transformer.

use burn::module::{Module, Param};
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::{gelu, log_softmax, softmax};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::module::linear;
use burn::tensor::{DType, Tensor};

use crate::common;
use crate::distance::{ByHand, Network, Ours, Plain, assert_no_further_off_than_by_hand};

const TOKENS: usize = 16;
const WIDTH: usize = 32;
const HEADS: usize = 2;
const CLASSES: usize = 11;

#[derive(Module, Debug)]
struct Transformer<B: Backend> {
    blocks: Vec<Block<B>>,
    norm: LayerNorm<B>,
    head: Param<Tensor<B, 2>>,
}

#[derive(Module, Debug)]
struct Block<B: Backend> {
    norms: [LayerNorm<B>; 2],
    query_key_value: Linear<B>,
    projection: Linear<B>,
    up: Linear<B>,
    down: Linear<B>,
}

fn apply<B: Backend>(layer: &Linear<B>, x: Tensor<B, 3>, by_hand: ByHand) -> Tensor<B, 3> {
    linear(
        by_hand.low(x),
        by_hand.low(layer.weight.val()),
        layer.bias.as_ref().map(|bias| by_hand.low(bias.val())),
    )
}

impl<B: Backend> Block<B> {
    fn forward(&self, x: Tensor<B, 3>, by_hand: ByHand) -> Tensor<B, 3> {
        let [batch, tokens, width] = x.dims();
        let head = width / HEADS;
        let normed = self.norms[0].forward(by_hand.full(x.clone()));
        let all = apply(&self.query_key_value, normed, by_hand);
        let [query, key, value] = [0, 1, 2].map(|part| {
            all.clone()
                .slice([0..batch, 0..tokens, part * width..(part + 1) * width])
                .reshape([batch, tokens, HEADS, head])
                .swap_dims(1, 2)
        });
        // By a power of two, so that no scalar has to be applied in f32.
        let scores = query.matmul(key.transpose()) * 0.25;
        let probabilities = softmax(by_hand.full(scores), 3);
        let attended = by_hand.low(probabilities).matmul(value);
        let attended = attended.swap_dims(1, 2).reshape([batch, tokens, width]);
        let x = x + apply(&self.projection, attended, by_hand);
        let normed = self.norms[1].forward(by_hand.full(x.clone()));
        let hidden = gelu(apply(&self.up, normed, by_hand));
        x + apply(&self.down, hidden, by_hand)
    }
}

impl<B: AutodiffBackend> Network<B> for Transformer<B> {
    fn new(seed: u64) -> Self {
        let device = B::Device::default();
        let norm = || LayerNormConfig::new(WIDTH).init(&device);
        let layer = |from, to| LinearConfig::new(from, to).init(&device);
        let blocks = (0..2).map(|_| Block {
            norms: [norm(), norm()],
            query_key_value: layer(WIDTH, 3 * WIDTH),
            projection: layer(WIDTH, WIDTH),
            up: layer(WIDTH, 4 * WIDTH),
            down: layer(4 * WIDTH, WIDTH),
        });
        let network = Self {
            blocks: blocks.collect(),
            norm: norm(),
            head: Param::from_tensor(Tensor::ones([WIDTH, CLASSES], &device)),
        };
        common::randomize(network, 100 + seed)
    }

    fn loss(&self, seed: u64, dtype: DType, by_hand: ByHand) -> Tensor<B, 1> {
        let device = B::Device::default();
        let x = common::normal::<B, 3>([2, TOKENS, WIDTH], 200 + seed, &device).cast(dtype);
        let mut x = by_hand.low(x);
        if dtype == DType::F32 && by_hand.0.is_none() {
            // As an embedding's rows come out: the first activation is half.
            let identity = Tensor::<B, 2>::eye(WIDTH, &device).unsqueeze();
            x = x.matmul(identity);
        }
        for block in &self.blocks {
            x = block.forward(x, by_hand);
        }
        let x = self.norm.forward(by_hand.full(x));
        let head = by_hand.low(self.head.val()).unsqueeze();
        let logits = by_hand.low(x).matmul(head);
        let logits = log_softmax(by_hand.full(logits), 2);
        logits.slice([0..2, 0..TOKENS, 3..4]).mean().neg()
    }
}

#[test]
fn should_have_gradients_of_a_transformer_no_further_off_than_by_hand() {
    assert_no_further_off_than_by_hand::<Transformer<Ours>, Transformer<Plain>>(
        1.0,
        [(DType::BF16, 5e-3), (DType::F16, 6e-4)],
    );
}
