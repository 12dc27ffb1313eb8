//! The recorded run's text, and the windows of it that a step reads.

use std::io::Read;

use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use flate2::read::GzDecoder;

use crate::common::SplitMix64;
use crate::model::CONTEXT;

const BATCH: usize = 16;
const VALIDATION_WINDOWS: usize = 64;

/// Tokens of the training and the validation text.
#[derive(Debug)]
pub struct Text {
    pub vocab: usize,
    train: Vec<i64>,
    validation: Vec<i64>,
}

/// Tokens and the tokens that follow them, both `[batch, CONTEXT]`.
pub type Batch<B> = (Tensor<B, 2, Int>, Tensor<B, 2, Int>);

impl Text {
    /// Reads the text; a token is its character's index in the sorted vocabulary.
    pub fn load() -> Self {
        let mut text = String::new();
        GzDecoder::new(&include_bytes!("../../../../examples/char-gpt/data/eighty.txt.gz")[..])
            .read_to_string(&mut text)
            .expect("the text is intact");

        let mut vocab: Vec<char> = text.chars().collect();
        vocab.sort_unstable();
        vocab.dedup();
        let token = |c| vocab.binary_search(&c).expect("every character is there") as i64;
        let mut train: Vec<i64> = text.chars().map(token).collect();
        let validation = train.split_off(train.len() * 9 / 10);
        Self {
            vocab: vocab.len(),
            train,
            validation,
        }
    }

    /// How many characters are training text.
    pub fn train_len(&self) -> usize {
        self.train.len()
    }

    /// The batches of a seed, one after the other.
    pub fn batches<B: Backend>(
        &self,
        seed: u64,
        device: &B::Device,
    ) -> impl Iterator<Item = Batch<B>> {
        let mut rng = SplitMix64::new(2000 + seed);
        let offsets = (self.train.len() - CONTEXT - 1) as u64;
        std::iter::from_fn(move || {
            let starts = (0..BATCH).map(|_| (rng.next_u64() % offsets) as usize);
            Some(windows(&self.train, starts, device))
        })
    }

    /// Every validation window.
    pub fn validation<B: Backend>(&self, device: &B::Device) -> Batch<B> {
        let stride = (self.validation.len() - CONTEXT - 1) / VALIDATION_WINDOWS;
        let starts = (0..VALIDATION_WINDOWS).map(|window| window * stride);
        windows(&self.validation, starts, device)
    }
}

fn windows<B: Backend>(
    text: &[i64],
    starts: impl Iterator<Item = usize>,
    device: &B::Device,
) -> Batch<B> {
    let starts: Vec<usize> = starts.collect();
    let shifted = |shift: usize| {
        let tokens = starts
            .iter()
            .flat_map(|start| &text[start + shift..start + shift + CONTEXT])
            .copied()
            .collect();
        let data = TensorData::new::<i64, _>(tokens, [starts.len(), CONTEXT]);
        Tensor::from_data(data, device)
    };
    (shifted(0), shifted(1))
}
