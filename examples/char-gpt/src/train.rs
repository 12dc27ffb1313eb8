//! The training loop and the validation loss.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::composed::{ComposedLrScheduler, ComposedLrSchedulerConfig};
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::optim::{GradientsParams, Optimizer};
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

use crate::data::{Batcher, Windows};
use crate::model::Gpt;

/// Steps between two reads of the loss: a read makes the host wait for the device.
const READ_EVERY: usize = 10;

/// How long and how fast to train.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Number of training steps.
    pub steps: usize,
    /// Highest learning rate.
    pub learning_rate: f64,
    /// Steps in which the learning rate rises to its highest value.
    pub warmup: usize,
}

impl Plan {
    /// A linear rise over the warm-up, then half a cosine down to a tenth.
    fn schedule(&self) -> Result<ComposedLrScheduler> {
        let warmup = self.warmup.max(1);
        ComposedLrSchedulerConfig::new()
            .linear(LinearLrSchedulerConfig::new(
                1.0 / warmup as f64,
                1.0,
                warmup,
            ))
            .cosine(
                CosineAnnealingLrSchedulerConfig::new(self.learning_rate, self.steps)
                    .with_min_lr(self.learning_rate / 10.0),
            )
            .init()
            .map_err(|message| anyhow!("learning rate {}: {message}", self.learning_rate))
    }
}

/// What [`train_steps`] made.
#[derive(Debug)]
pub struct Trained<B: Backend> {
    /// The model after the last step.
    pub model: Gpt<B>,
    /// The loss of each step, before the step.
    pub losses: Vec<f32>,
    /// Mean time of a step; the first, which prepares caches and kernels, counts only if alone.
    pub time_per_step: Duration,
}

impl<B: Backend> Trained<B> {
    /// The mean loss of the last `count` steps, of all if there were fewer.
    pub fn recent_loss(&self, count: usize) -> f32 {
        let recent = &self.losses[self.losses.len().saturating_sub(count)..];
        recent.iter().sum::<f32>() / recent.len() as f32
    }
}

/// Trains a model, calling `on_read` with the losses so far each time that they have been read.
pub fn train_steps<B, O>(
    mut model: Gpt<B>,
    optim: &mut O,
    batcher: &mut Batcher<'_>,
    plan: &Plan,
    device: &B::Device,
    mut on_read: impl FnMut(&[f32]),
) -> Result<Trained<B>>
where
    B: AutodiffBackend,
    O: Optimizer<Gpt<B>, B>,
{
    let mut schedule = plan.schedule()?;
    let mut losses = Vec::with_capacity(plan.steps);
    let mut unread = Vec::with_capacity(READ_EVERY);
    let mut timed_steps = plan.steps;
    let mut start = Instant::now();

    for step in 1..=plan.steps {
        let batch = batcher.next_batch::<B>(device);
        let loss = model.loss(batch.tokens, batch.targets);
        unread.push(loss.clone().inner());
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        model = optim.step(schedule.step(), model, grads);

        if step == 1 || step % READ_EVERY == 0 || step == plan.steps {
            losses.extend(read(&mut unread));
            on_read(&losses);
        }
        if step == 1 && plan.steps > 1 {
            B::sync(device)?;
            timed_steps -= 1;
            start = Instant::now();
        }
    }
    B::sync(device)?;

    Ok(Trained {
        model,
        losses,
        time_per_step: start.elapsed() / timed_steps.max(1) as u32,
    })
}

fn read<B: Backend>(losses: &mut Vec<Tensor<B, 1>>) -> Vec<f32> {
    let data = Tensor::cat(std::mem::take(losses), 0).into_data();
    data.iter().collect()
}

/// Computes the mean loss over all windows.
pub fn validation_loss<B: Backend>(
    model: &Gpt<B>,
    windows: &Windows<'_>,
    batch: usize,
    device: &B::Device,
) -> f32 {
    let mut sum = 0.0;
    let mut count = 0;
    for batch in windows.batches::<B>(batch, device) {
        let [size, _] = batch.tokens.dims();
        let data = model.loss(batch.tokens, batch.targets).into_data();
        sum += size as f64 * data.iter::<f64>().sum::<f64>();
        count += size;
    }
    (sum / count as f64) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(steps: usize, warmup: usize) -> Vec<f64> {
        let plan = Plan {
            steps,
            learning_rate: 0.01,
            warmup,
        };
        let mut schedule = plan.schedule().unwrap();
        (0..steps)
            .map(|_| LrScheduler::step(&mut schedule))
            .collect()
    }

    #[test]
    fn should_warm_up_and_then_decay_to_a_tenth() {
        let rates = rates(200, 20);
        let peak = rates
            .iter()
            .position(|rate| rates.iter().all(|other| other <= rate));
        assert_eq!(peak, Some(20));
        assert!(rates[0] < 0.06 * 0.01, "first {}", rates[0]);
        assert!((rates[199] - 0.001).abs() < 1e-5, "last {}", rates[199]);
    }

    #[test]
    fn should_not_need_more_steps_than_the_warm_up_has() {
        assert!(rates(2, 20).into_iter().all(|rate| rate > 0.0));
        assert!(rates(1, 1).iter().all(|rate| (rate - 0.01).abs() < 1e-9));
    }

    #[test]
    fn should_refuse_a_learning_rate_out_of_range_by_value() {
        let plan = Plan {
            steps: 1,
            learning_rate: 1.5,
            warmup: 1,
        };
        let error = plan.schedule().err().unwrap().to_string();
        assert!(error.starts_with("learning rate 1.5: "), "{error}");
    }

    #[cfg(feature = "flex")]
    mod on_flex {
        use burn::backend::{Autodiff, Flex};
        use burn::module::AutodiffModule;
        use burn::optim::AdamWConfig;

        use super::*;
        use crate::data::Corpus;
        use crate::model::GptConfig;

        fn corpus() -> Corpus {
            Corpus::new(&"abcdefgh ".repeat(40)).unwrap()
        }

        fn train(corpus: &Corpus, steps: usize) -> (Trained<Autodiff<Flex>>, Vec<usize>) {
            let device = Default::default();
            let config = GptConfig::new(corpus.vocab().len(), 8)
                .with_width(16)
                .with_heads(2)
                .with_layers(1)
                .with_dropout(0.0);
            let plan = Plan {
                steps,
                learning_rate: 0.01,
                warmup: 5,
            };
            let mut optim = AdamWConfig::new().init();
            let mut batcher = Batcher::new(corpus, 4, 8, 1).unwrap();
            let mut reads = Vec::new();
            let trained = train_steps(
                config.init(&device),
                &mut optim,
                &mut batcher,
                &plan,
                &device,
                |losses| reads.push(losses.len()),
            );
            (trained.unwrap(), reads)
        }

        #[test]
        fn should_learn_a_text_that_repeats() {
            let corpus = corpus();
            let (trained, _) = train(&corpus, 80);
            let windows = Windows::new(&corpus, 8, 4).unwrap();
            let valid = validation_loss(&trained.model.valid(), &windows, 3, &Default::default());

            assert!(trained.losses[0] > 1.5, "first loss {}", trained.losses[0]);
            assert!(trained.recent_loss(10) < 0.5, "{:?}", trained.losses);
            assert!(valid < 0.5, "validation loss {valid}");
        }

        #[test]
        fn should_report_every_loss_in_few_reads() {
            let (trained, reads) = train(&corpus(), 25);
            assert_eq!(trained.losses.len(), 25);
            assert_eq!(reads, [1, 10, 20, 25]);
        }

        #[test]
        fn should_average_the_last_losses_or_all_there_are() {
            let (mut trained, _) = train(&corpus(), 1);
            trained.losses = vec![9.0, 2.0, 4.0];
            assert_eq!(trained.recent_loss(2), 3.0);
            assert_eq!(trained.recent_loss(50), 5.0);
        }

        #[test]
        fn should_weigh_a_smaller_last_batch_by_its_size() {
            let corpus = corpus();
            let windows = Windows::new(&corpus, 8, 3).unwrap();
            let (trained, _) = train(&corpus, 1);
            let model = trained.model.valid();
            let by = |batch| validation_loss(&model, &windows, batch, &Default::default());
            assert!((by(2) - by(1)).abs() < 1e-5, "{} {}", by(2), by(1));
        }
    }
}
