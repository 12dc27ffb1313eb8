//! Text as tokens: one token a character, the first nine tenths for training.

use std::collections::BTreeSet;
use std::io::Read;

use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use flate2::read::GzDecoder;
use rand::rngs::ChaCha8Rng;
use rand::{RngExt, SeedableRng};
use thiserror::Error;

const BUNDLED: &[u8] = include_bytes!("../data/eighty.txt.gz");

/// A text that cannot be trained on, or a prompt that does not fit it.
#[derive(Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum DataError {
    /// The text has no characters.
    #[error("the text is empty")]
    Empty,
    /// A part of the text has no room for one sequence and the character that follows it.
    #[error(
        "the {part} part of the text has {characters} characters, seq {seq} needs at least {}",
        seq + 1
    )]
    TooShort {
        /// Which part: training or validation.
        part: &'static str,
        /// The part's length.
        characters: usize,
        /// Length of a sequence.
        seq: usize,
    },
    /// A character that the corpus does not contain.
    #[error("character {character:?} at position {position} does not occur in the corpus")]
    UnknownCharacter {
        /// The first such character.
        character: char,
        /// Its position, counted in characters from 0.
        position: usize,
    },
}

/// A text, encoded.
#[derive(Debug, Clone)]
pub struct Corpus {
    vocab: Vec<char>,
    tokens: Vec<i32>,
}

impl Corpus {
    /// The novel that comes with the example: Jules Verne, *Around the World in Eighty Days*.
    pub fn bundled() -> Self {
        let mut text = String::new();
        GzDecoder::new(BUNDLED)
            .read_to_string(&mut text)
            .expect("the bundled corpus is a gzip file of UTF-8 text");
        Self::new(&text).expect("the bundled corpus is not empty")
    }

    /// Encodes a text by its own characters, sorted: a character's token is its rank.
    pub fn new(text: &str) -> Result<Self, DataError> {
        let vocab: Vec<char> = text.chars().collect::<BTreeSet<_>>().into_iter().collect();
        if vocab.is_empty() {
            return Err(DataError::Empty);
        }
        let tokens = encode(&vocab, text)?;
        Ok(Self { vocab, tokens })
    }

    /// The different characters, sorted.
    pub fn vocab(&self) -> &[char] {
        &self.vocab
    }

    /// The first nine tenths of the text.
    pub fn train(&self) -> &[i32] {
        &self.tokens[..self.split()]
    }

    /// The last tenth of the text.
    pub fn valid(&self) -> &[i32] {
        &self.tokens[self.split()..]
    }

    /// Checks that both parts have room for a sequence of `seq` characters and the next one.
    pub fn check_seq(&self, seq: usize) -> Result<(), DataError> {
        check_seq("training", self.train(), seq)?;
        check_seq("validation", self.valid(), seq)
    }

    /// Turns a text into tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<i32>, DataError> {
        encode(&self.vocab, text)
    }

    /// Turns tokens into text.
    ///
    /// # Panics
    ///
    /// If a token is not one of this corpus.
    pub fn decode(&self, tokens: &[i32]) -> String {
        tokens.iter().map(|id| self.vocab[*id as usize]).collect()
    }

    fn split(&self) -> usize {
        self.tokens.len() * 9 / 10
    }
}

fn encode(vocab: &[char], text: &str) -> Result<Vec<i32>, DataError> {
    text.chars()
        .enumerate()
        .map(
            |(position, character)| match vocab.binary_search(&character) {
                Ok(id) => Ok(id as i32),
                Err(_) => Err(DataError::UnknownCharacter {
                    character,
                    position,
                }),
            },
        )
        .collect()
}

fn check_seq(part: &'static str, tokens: &[i32], seq: usize) -> Result<(), DataError> {
    if tokens.len() > seq {
        return Ok(());
    }
    Err(DataError::TooShort {
        part,
        characters: tokens.len(),
        seq,
    })
}

/// Sequences and, for each of their characters, the one that follows.
#[derive(Debug, Clone)]
pub struct Batch<B: Backend> {
    /// `[batch, seq]`
    pub tokens: Tensor<B, 2, Int>,
    /// `[batch, seq]`
    pub targets: Tensor<B, 2, Int>,
}

impl<B: Backend> Batch<B> {
    fn new(text: &[i32], offsets: &[usize], seq: usize, device: &B::Device) -> Self {
        let windows = |shift: usize| {
            let ids: Vec<i32> = offsets
                .iter()
                .flat_map(|offset| &text[offset + shift..offset + shift + seq])
                .copied()
                .collect();
            Tensor::from_data(TensorData::new(ids, [offsets.len(), seq]), device)
        };
        Self {
            tokens: windows(0),
            targets: windows(1),
        }
    }
}

/// Draws training batches at random places of a text; the same seed draws the same batches.
#[derive(Debug)]
pub struct Batcher<'a> {
    text: &'a [i32],
    batch: usize,
    seq: usize,
    rng: ChaCha8Rng,
}

impl<'a> Batcher<'a> {
    /// Prepares to draw batches of `batch` sequences of `seq` characters from the training part.
    pub fn new(corpus: &'a Corpus, batch: usize, seq: usize, seed: u64) -> Result<Self, DataError> {
        let text = corpus.train();
        check_seq("training", text, seq)?;
        Ok(Self {
            text,
            batch,
            seq,
            rng: ChaCha8Rng::seed_from_u64(seed),
        })
    }

    /// Draws the next batch.
    pub fn next_batch<B: Backend>(&mut self, device: &B::Device) -> Batch<B> {
        let offsets = self.offsets();
        Batch::new(self.text, &offsets, self.seq, device)
    }

    fn offsets(&mut self) -> Vec<usize> {
        let end = self.text.len() - self.seq;
        (0..self.batch)
            .map(|_| self.rng.random_range(0..end))
            .collect()
    }
}

/// Fixed places of the validation part, spread evenly over it.
#[derive(Debug, Clone)]
pub struct Windows<'a> {
    text: &'a [i32],
    offsets: Vec<usize>,
    seq: usize,
}

impl<'a> Windows<'a> {
    /// Places up to `count` windows of `seq` characters, fewer if they would overlap.
    pub fn new(corpus: &'a Corpus, seq: usize, count: usize) -> Result<Self, DataError> {
        let text = corpus.valid();
        check_seq("validation", text, seq)?;
        let last = text.len() - seq - 1;
        let count = count.min(last / seq).max(1);
        let stride = last / count;
        Ok(Self {
            text,
            offsets: (0..count).map(|i| i * stride).collect(),
            seq,
        })
    }

    /// Iterates over the windows in batches of at most `batch`.
    pub fn batches<B: Backend>(
        &self,
        batch: usize,
        device: &B::Device,
    ) -> impl Iterator<Item = Batch<B>> {
        self.offsets
            .chunks(batch)
            .map(|offsets| Batch::new(self.text, offsets, self.seq, device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corpus(characters: usize) -> Corpus {
        let text: String = ('a'..='z').cycle().take(characters).collect();
        Corpus::new(&text).unwrap()
    }

    #[test]
    fn should_read_back_what_it_encoded() {
        let corpus = Corpus::new("Où est Fogg ? Là.").unwrap();
        let tokens = corpus.encode("Là est Fogg.").unwrap();
        assert_eq!(corpus.decode(&tokens), "Là est Fogg.");
    }

    #[test]
    fn should_number_characters_in_sorted_order() {
        let corpus = Corpus::new("banana").unwrap();
        assert_eq!(corpus.vocab(), ['a', 'b', 'n']);
        assert_eq!(corpus.encode("nab"), Ok(vec![2, 0, 1]));
    }

    #[test]
    fn should_keep_the_last_tenth_for_validation() {
        let corpus = corpus(105);
        assert_eq!(corpus.train().len(), 94);
        assert_eq!(corpus.valid().len(), 11);
        assert_eq!(
            [corpus.train(), corpus.valid()].concat(),
            corpus.tokens,
            "no character is lost or used twice"
        );
    }

    #[test]
    fn should_unpack_the_bundled_novel() {
        let corpus = Corpus::bundled();
        assert_eq!(corpus.tokens.len(), 370_872);
        assert_eq!(corpus.vocab().len(), 78);
        let title = corpus.decode(&corpus.train()[..31]);
        assert_eq!(title, "AROUND THE WORLD IN EIGHTY DAYS");
    }

    #[test]
    fn should_draw_the_same_batches_from_the_same_seed() {
        let corpus = corpus(1000);
        let draw = |seed| {
            let mut batcher = Batcher::new(&corpus, 4, 10, seed).unwrap();
            [batcher.offsets(), batcher.offsets()]
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_ne!(draw(1)[0], draw(1)[1]);
    }

    #[test]
    fn should_reach_every_place_that_has_a_next_character_and_no_other() {
        let corpus = corpus(20);
        let mut batcher = Batcher::new(&corpus, 200, 15, 0).unwrap();
        let drawn: BTreeSet<usize> = batcher.offsets().into_iter().collect();
        assert_eq!(drawn, BTreeSet::from([0, 1, 2]));
    }

    #[test]
    fn should_spread_validation_windows_over_the_whole_part() {
        let corpus = corpus(1000);
        let windows = Windows::new(&corpus, 9, 4).unwrap();
        assert_eq!(windows.offsets, [0, 22, 44, 66]);

        let windows = Windows::new(&corpus, 9, 64).unwrap();
        assert_eq!(windows.offsets, [0, 9, 18, 27, 36, 45, 54, 63, 72, 81]);
    }

    #[test]
    fn should_accept_a_text_of_exactly_one_window() {
        let corpus = corpus(100);
        let windows = Windows::new(&corpus, 9, 64).unwrap();
        assert_eq!(windows.offsets, [0]);
        assert_eq!(corpus.check_seq(9), Ok(()));
    }

    #[test]
    fn should_name_the_values_of_a_text_that_is_too_short() {
        let message = |result: Result<(), DataError>| result.unwrap_err().to_string();
        assert_eq!(
            message(corpus(100).check_seq(10)),
            "the validation part of the text has 10 characters, seq 10 needs at least 11"
        );
        assert_eq!(
            message(corpus(100).check_seq(90)),
            "the training part of the text has 90 characters, seq 90 needs at least 91"
        );
        assert!(Batcher::new(&corpus(100), 1, 90, 0).is_err());
        assert!(Windows::new(&corpus(100), 10, 1).is_err());
        assert_eq!(message(Corpus::new("").map(drop)), "the text is empty");
    }

    #[test]
    fn should_name_the_first_character_outside_the_vocabulary() {
        let error = Corpus::new("abc").unwrap().encode("abécè").unwrap_err();
        assert_eq!(
            error.to_string(),
            "character 'é' at position 2 does not occur in the corpus"
        );
    }

    #[cfg(feature = "flex")]
    mod batches {
        use burn::backend::Flex;

        use super::*;

        fn ids(tensor: Tensor<Flex, 2, Int>) -> Vec<i64> {
            tensor.into_data().iter().collect()
        }

        #[test]
        fn should_pair_each_character_with_the_next() {
            let batch = Batch::<Flex>::new(&[5, 6, 7, 8, 9], &[2, 0], 2, &Default::default());
            assert_eq!(batch.tokens.dims(), [2, 2]);
            assert_eq!(ids(batch.tokens), [7, 8, 5, 6]);
            assert_eq!(ids(batch.targets), [8, 9, 6, 7]);
        }

        #[test]
        fn should_give_every_window_once_in_batches() {
            let corpus = corpus(1000);
            let windows = Windows::new(&corpus, 9, 5).unwrap();
            let sizes: Vec<usize> = windows
                .batches::<Flex>(2, &Default::default())
                .map(|batch| batch.tokens.dims()[0])
                .collect();
            assert_eq!(sizes, [2, 2, 1]);
        }
    }
}
