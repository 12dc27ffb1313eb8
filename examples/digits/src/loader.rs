//! Batches in an order that a seed and the epoch determine, and nothing else.
//!
//! Burn's shuffling loader carries its random generator from epoch to epoch, so a resumed training would
//! begin with the order of the first epoch. Here each epoch has an order of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor, TensorData};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom;

use crate::data::{DARKEST, PIXELS, SIDE, Sample};

/// Digits and what they are.
#[derive(Debug, Clone)]
pub struct Batch<B: Backend> {
    /// `[batch, 1, SIDE, SIDE]`, from 0 to 1.
    pub images: Tensor<B, 4>,
    /// `[batch]`
    pub labels: Tensor<B, 1, Int>,
}

impl<B: Backend> Batch<B> {
    /// Puts samples on a device.
    pub fn new<'a>(samples: impl Iterator<Item = &'a Sample>, device: &B::Device) -> Self {
        let mut pixels: Vec<f32> = Vec::new();
        let mut labels: Vec<i32> = Vec::new();
        for sample in samples {
            let darkest = f32::from(DARKEST);
            pixels.extend(sample.pixels.iter().map(|it| f32::from(*it) / darkest));
            labels.push(i32::from(sample.label));
        }
        let count = labels.len();
        debug_assert_eq!(pixels.len(), count * PIXELS);
        Self {
            images: Tensor::from_data(TensorData::new(pixels, [count, 1, SIDE, SIDE]), device),
            labels: Tensor::from_data(TensorData::new(labels, [count]), device),
        }
    }
}

/// In which order a [`Loader`] gives the samples.
#[derive(Debug)]
enum Order {
    AsTheyAre,
    Shuffled {
        seed: u64,
        /// The epoch that the next iterator is for.
        epoch: AtomicU64,
    },
}

impl Order {
    /// The order of the next epoch.
    fn next(&self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        if let Self::Shuffled { seed, epoch } = self {
            let mut rng = ChaCha8Rng::seed_from_u64(*seed);
            rng.set_stream(epoch.fetch_add(1, Ordering::Relaxed));
            order.shuffle(&mut rng);
        }
        order
    }
}

impl Clone for Order {
    fn clone(&self) -> Self {
        match self {
            Self::AsTheyAre => Self::AsTheyAre,
            Self::Shuffled { seed, epoch } => Self::Shuffled {
                seed: *seed,
                epoch: AtomicU64::new(epoch.load(Ordering::Relaxed)),
            },
        }
    }
}

/// Gives batches of samples; the last of an epoch may be smaller.
#[derive(Debug)]
pub struct Loader<B: Backend> {
    samples: Arc<[Sample]>,
    batch: usize,
    order: Order,
    device: B::Device,
}

impl<B: Backend> Clone for Loader<B> {
    fn clone(&self) -> Self {
        Self {
            samples: self.samples.clone(),
            batch: self.batch,
            order: self.order.clone(),
            device: self.device.clone(),
        }
    }
}

impl<B: Backend> Loader<B> {
    /// Gives the samples in their own order.
    ///
    /// # Panics
    ///
    /// If `batch` is 0.
    pub fn in_order(samples: &[Sample], batch: usize, device: &B::Device) -> Self {
        assert!(batch > 0, "a batch of 0 samples holds none");
        Self {
            samples: samples.into(),
            batch,
            order: Order::AsTheyAre,
            device: device.clone(),
        }
    }

    /// Gives the samples in another order in each epoch; the first iterator is for `epoch`.
    pub fn shuffled(self, seed: u64, epoch: usize) -> Self {
        let epoch = AtomicU64::new(epoch as u64);
        let order = Order::Shuffled { seed, epoch };
        Self { order, ..self }
    }

    /// Iterates over the batches of the next epoch.
    pub fn batches(&self) -> Batches<'_, B> {
        Batches {
            loader: self,
            order: self.order.next(self.samples.len()),
            position: 0,
        }
    }
}

impl<B: Backend> DataLoader<B, Batch<B>> for Loader<B> {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch<B>> + 'a> {
        Box::new(self.batches())
    }

    fn num_items(&self) -> usize {
        self.samples.len()
    }

    fn to_device(&self, device: &B::Device) -> Arc<dyn DataLoader<B, Batch<B>>> {
        Arc::new(Self {
            device: device.clone(),
            ..self.clone()
        })
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<B, Batch<B>>> {
        Arc::new(Self {
            samples: self.samples[start..end].into(),
            ..self.clone()
        })
    }
}

/// The batches of one epoch.
#[derive(Debug)]
pub struct Batches<'a, B: Backend> {
    loader: &'a Loader<B>,
    order: Vec<usize>,
    position: usize,
}

impl<B: Backend> Iterator for Batches<'_, B> {
    type Item = Batch<B>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.order[self.position..];
        let indices = &rest[..rest.len().min(self.loader.batch)];
        if indices.is_empty() {
            return None;
        }
        self.position += indices.len();
        let samples = indices.iter().map(|index| &self.loader.samples[*index]);
        Some(Batch::new(samples, &self.loader.device))
    }
}

impl<B: Backend> DataLoaderIterator<Batch<B>> for Batches<'_, B> {
    fn progress(&self) -> Progress {
        Progress::new(self.position, self.order.len())
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use burn::backend::Flex;

    use super::*;

    fn samples(count: u8) -> Vec<Sample> {
        (0..count)
            .map(|label| Sample {
                pixels: [label; PIXELS],
                label,
            })
            .collect()
    }

    fn loader() -> Loader<Flex> {
        Loader::in_order(&samples(10), 4, &Default::default())
    }

    fn epoch(loader: &dyn DataLoader<Flex, Batch<Flex>>) -> Vec<i64> {
        let batches = loader.iter();
        batches
            .flat_map(|batch| batch.labels.into_data().iter::<i64>().collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn should_give_every_sample_once_in_batches() {
        let loader = loader();
        let mut batches = loader.batches();
        let mut sizes = Vec::new();
        let mut processed = Vec::new();
        while let Some(batch) = batches.next() {
            sizes.push(batch.images.dims());
            processed.push(batches.progress().items_processed);
        }
        assert_eq!(sizes, [[4, 1, 8, 8], [4, 1, 8, 8], [2, 1, 8, 8]]);
        assert_eq!(processed, [4, 8, 10]);
        assert_eq!(epoch(&loader), (0..10).collect::<Vec<_>>());
        assert_eq!(epoch(&*loader.slice(3, 8)), [3, 4, 5, 6, 7]);
    }

    #[test]
    fn should_scale_pixels_to_one() {
        let batch = Batch::<Flex>::new(samples(17)[15..].iter(), &Default::default());
        let pixels: Vec<f32> = batch.images.into_data().iter().collect();
        assert_eq!(pixels[0], 15.0 / 16.0);
        assert_eq!(pixels[2 * PIXELS - 1], 1.0);
    }

    #[test]
    fn should_go_on_in_an_epoch_as_if_never_interrupted() {
        let whole = loader().shuffled(7, 1);
        let orders: Vec<_> = (0..3).map(|_| epoch(&whole)).collect();
        assert_ne!(orders[0], orders[1]);

        let resumed = loader().shuffled(7, 2).to_device(&Default::default());
        assert_eq!(epoch(&*resumed), orders[1]);
        assert_eq!(epoch(&*resumed), orders[2]);
        assert_ne!(epoch(&loader().shuffled(8, 1)), orders[0]);

        let mut sorted = orders[0].clone();
        sorted.sort();
        assert_eq!(sorted, (0..10).collect::<Vec<_>>());
    }
}
