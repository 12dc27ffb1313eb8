//! Text from a trained model.

use burn::tensor::backend::Backend;
use burn::tensor::{Tensor, TensorData};
use rand::SeedableRng;
use rand::distr::Distribution;
use rand::distr::weighted::WeightedIndex;
use rand::rngs::ChaCha8Rng;

use crate::model::Gpt;

/// Below 1, likely characters become likelier.
const TEMPERATURE: f32 = 0.8;

/// Continues a prompt by `length` tokens, which it returns; the same seed draws the same ones.
///
/// # Panics
///
/// If the prompt is empty or the model's logits are not finite.
pub fn generate<B: Backend>(
    model: &Gpt<B>,
    prompt: &[i32],
    length: usize,
    seed: u64,
    device: &B::Device,
) -> Vec<i32> {
    assert!(!prompt.is_empty(), "a prompt needs at least one token");
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut tokens = prompt.to_vec();
    for _ in 0..length {
        let seen = tokens.len().min(model.seq());
        let context = tokens[tokens.len() - seen..].to_vec();
        let context = Tensor::from_data(TensorData::new(context, [1, seen]), device);
        let logits = model.forward(context).slice([0..1, seen - 1..seen]);
        tokens.push(draw(
            &logits.into_data().iter().collect::<Vec<f32>>(),
            &mut rng,
        ));
    }
    tokens.split_off(prompt.len())
}

fn draw(logits: &[f32], rng: &mut ChaCha8Rng) -> i32 {
    let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights = logits
        .iter()
        .map(|logit| ((logit - highest) / TEMPERATURE).exp());
    let index = WeightedIndex::new(weights).expect("the logits are finite");
    index.sample(rng) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn should_draw_likely_tokens_more_often() {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut counts = [0; 3];
        for _ in 0..1000 {
            counts[draw(&[0.0, 2.0, -80.0], &mut rng) as usize] += 1;
        }
        // exp(2 / 0.8) is 12.2 times as likely.
        assert!((50..110).contains(&counts[0]), "{counts:?}");
        assert_eq!(counts[2], 0);
    }

    #[cfg(feature = "flex")]
    mod on_flex {
        use burn::backend::Flex;

        use super::*;
        use crate::model::GptConfig;

        #[test]
        fn should_write_more_than_the_model_sees_at_once() {
            let device = Default::default();
            let config = GptConfig::new(5, 4)
                .with_width(8)
                .with_heads(2)
                .with_layers(1);
            let model = config.init::<Flex>(&device);
            let write = |seed| generate(&model, &[1, 2, 3, 4, 0, 1], 20, seed, &device);

            assert_eq!(write(1).len(), 20);
            assert!(write(1).iter().all(|token| (0..5).contains(token)));
            assert_eq!(write(1), write(1));
            assert_ne!(write(1), write(2));
        }
    }
}
