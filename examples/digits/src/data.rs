//! The digits: how their file is read, and which of them are for training.

use std::io::Read;

use flate2::read::GzDecoder;
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;
use thiserror::Error;

/// Pixels of a side of a digit.
pub const SIDE: usize = 8;
/// Pixels of a digit.
pub const PIXELS: usize = SIDE * SIDE;
/// Different digits.
pub const CLASSES: usize = 10;
/// The darkest pixel.
pub const DARKEST: u8 = 16;

/// Which samples are for testing does not depend on a run's seed.
const SPLIT_SEED: u64 = 0;
/// One sample in this many is for testing.
const TEST_EVERY: usize = 5;

const MAGIC: &[u8; 8] = b"DIGITS01";
const HEADER: usize = MAGIC.len() + 4;
const BUNDLED: &[u8] = include_bytes!("../data/digits.bin.gz");

/// A file that does not hold digits.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// The file cannot be unpacked.
    #[error("the file of digits is not a complete gzip file")]
    Gzip(#[from] std::io::Error),
    /// The content does not begin as it should.
    #[error(
        "the file of digits begins with {start:?}, it must begin with \"DIGITS01\" and a count"
    )]
    Header {
        /// The first bytes, as text.
        start: String,
    },
    /// The content is too long or too short.
    #[error("{count} digits need {expected} bytes, the file has {bytes}")]
    Length {
        /// How many digits the file says it has.
        count: usize,
        /// The bytes that so many need.
        expected: usize,
        /// The bytes that there are.
        bytes: usize,
    },
    /// A label is none of the ten digits.
    #[error("the label of sample {sample} is {label}, it must be at most 9")]
    Label {
        /// The sample, counted from 0.
        sample: usize,
        /// Its label.
        label: u8,
    },
    /// A pixel is out of range.
    #[error("pixel {pixel} of sample {sample} is {value}, it must be at most {DARKEST}")]
    Pixel {
        /// The sample, counted from 0.
        sample: usize,
        /// The pixel, counted from 0.
        pixel: usize,
        /// Its value.
        value: u8,
    },
}

/// One handwritten digit.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sample {
    /// The pixels row by row, from 0 to [`DARKEST`].
    pub pixels: [u8; PIXELS],
    /// Which digit it is.
    pub label: u8,
}

/// The samples, split.
#[derive(Debug, Clone)]
pub struct Split {
    /// What the model learns from.
    pub train: Vec<Sample>,
    /// What it is tested on.
    pub test: Vec<Sample>,
}

/// The 1,797 digits that come with the example; see `data/SOURCE.md`.
pub fn bundled() -> Vec<Sample> {
    read(BUNDLED).expect("the bundled file is complete")
}

/// Reads a file of digits; `data/SOURCE.md` describes its form.
pub fn read(file: &[u8]) -> Result<Vec<Sample>, DataError> {
    let mut content = Vec::new();
    GzDecoder::new(file).read_to_end(&mut content)?;

    let Some((header, samples)) = content.split_at_checked(HEADER) else {
        return Err(bad_header(&content));
    };
    let (magic, count) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(bad_header(header));
    }
    let count = u32::from_le_bytes(count.try_into().expect("four bytes are left")) as usize;
    if samples.len() != count * (1 + PIXELS) {
        return Err(DataError::Length {
            count,
            expected: HEADER + count * (1 + PIXELS),
            bytes: content.len(),
        });
    }
    samples
        .chunks_exact(1 + PIXELS)
        .enumerate()
        .map(|(sample, bytes)| parse(sample, bytes))
        .collect()
}

fn bad_header(start: &[u8]) -> DataError {
    DataError::Header {
        start: String::from_utf8_lossy(&start[..start.len().min(MAGIC.len())]).into_owned(),
    }
}

fn parse(sample: usize, bytes: &[u8]) -> Result<Sample, DataError> {
    let (label, pixels) = (bytes[0], &bytes[1..]);
    if label as usize >= CLASSES {
        return Err(DataError::Label { sample, label });
    }
    if let Some(pixel) = pixels.iter().position(|value| *value > DARKEST) {
        let value = pixels[pixel];
        return Err(DataError::Pixel {
            sample,
            pixel,
            value,
        });
    }
    Ok(Sample {
        pixels: pixels.try_into().expect("a sample has all its pixels"),
        label,
    })
}

/// Splits samples: they are shuffled, always in the same way, and every fifth is for testing.
pub fn split(mut samples: Vec<Sample>) -> Split {
    samples.shuffle(&mut ChaCha8Rng::seed_from_u64(SPLIT_SEED));
    let mut split = Split {
        train: Vec::new(),
        test: Vec::new(),
    };
    for (position, sample) in samples.into_iter().enumerate() {
        if position % TEST_EVERY == 0 {
            split.test.push(sample);
        } else {
            split.train.push(sample);
        }
    }
    split
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(content: &[u8]) -> Vec<u8> {
        let mut file = GzEncoder::new(Vec::new(), Compression::fast());
        file.write_all(content).unwrap();
        file.finish().unwrap()
    }

    /// Two blank samples, changed, and the error that reading them gives.
    fn error(change: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut content = MAGIC.to_vec();
        content.extend(2u32.to_le_bytes());
        content.extend([0; 2 * (1 + PIXELS)]);
        assert_eq!(read(&gzip(&content)).unwrap().len(), 2);
        change(&mut content);
        read(&gzip(&content)).unwrap_err().to_string()
    }

    fn counts(samples: &[Sample]) -> HashMap<Sample, usize> {
        let mut counts = HashMap::new();
        for sample in samples {
            *counts.entry(sample.clone()).or_default() += 1;
        }
        counts
    }

    #[test]
    fn should_unpack_the_bundled_digits() {
        let samples = bundled();
        assert_eq!(samples.len(), 1797);
        let mut of_label = [0; CLASSES];
        for sample in &samples {
            of_label[sample.label as usize] += 1;
        }
        assert_eq!(of_label, [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]);
        let pixels = || samples.iter().flat_map(|sample| sample.pixels);
        assert_eq!(pixels().min(), Some(0));
        assert_eq!(pixels().max(), Some(DARKEST));
        assert_eq!(pixels().map(u64::from).sum::<u64>(), 561_718);
        assert_eq!(samples[0].pixels[..SIDE], [0, 0, 5, 13, 9, 1, 0, 0]);
    }

    #[test]
    fn should_use_every_sample_once_for_training_or_testing() {
        let samples = bundled();
        let split = split(samples.clone());
        assert_eq!([split.train.len(), split.test.len()], [1437, 360]);
        assert_eq!(
            counts(&[split.train.clone(), split.test.clone()].concat()),
            counts(&samples)
        );
        let of_train = counts(&split.train);
        assert!(
            split
                .test
                .iter()
                .all(|sample| !of_train.contains_key(sample))
        );
        for label in 0..CLASSES as u8 {
            let count = split.test.iter().filter(|it| it.label == label).count();
            assert!((20..=55).contains(&count), "{count} of {label}");
        }
    }

    #[test]
    fn should_split_in_the_same_way_every_time() {
        assert_eq!(split(bundled()).test, split(bundled()).test);
    }

    #[test]
    fn should_say_what_is_wrong_with_a_file() {
        assert_eq!(
            error(|content| content[HEADER] = 10),
            "the label of sample 0 is 10, it must be at most 9"
        );
        assert_eq!(
            error(|content| content[HEADER + 1 + PIXELS + 1 + 7] = 17),
            "pixel 7 of sample 1 is 17, it must be at most 16"
        );
        assert_eq!(
            error(|content| content.truncate(HEADER + 100)),
            "2 digits need 142 bytes, the file has 112"
        );
        assert_eq!(
            error(|content| content.push(0)),
            "2 digits need 142 bytes, the file has 143"
        );
        let header = "the file of digits begins with \"LETTERS\", \
                      it must begin with \"DIGITS01\" and a count";
        assert_eq!(error(|content| *content = b"LETTERS".to_vec()), header);
        assert!(error(|content| content[0] = b'F').contains("\"FIGITS01\""));
    }

    #[test]
    fn should_refuse_a_file_that_is_cut_off_or_not_compressed() {
        for file in [&BUNDLED[..BUNDLED.len() / 2], b"DIGITS01", b""] {
            let error = read(file).unwrap_err().to_string();
            assert_eq!(error, "the file of digits is not a complete gzip file");
        }
    }
}
