//! The model trains alike in every precision, on the plain backend and on the decorated one. One test,
//! in a binary of its own: weights and dropout come from the process-wide random generator.

use burn::backend::Flex;
use burn::module::AutodiffModule;
use burn::optim::{AdamWConfig, Optimizer};
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, Int, Tensor};
use burn_amp::{Amp, AmpConfig, AmpOptimizerConfig, Autocast};
use char_gpt::data::{Batcher, Corpus, Windows};
use char_gpt::model::{Gpt, GptConfig};
use char_gpt::train::{Plan, train_steps, validation_loss};

type Plain = burn::backend::Autodiff<Flex>;
type Mixed = burn_amp::Autodiff<Amp<Flex>>;

const SEQ: usize = 32;
const BATCH: usize = 8;
const SEEDS: [u64; 3] = [0, 1, 2];

/// Enough for the loss to fall well below its start; an unoptimised build takes its time.
const STEPS: usize = if cfg!(debug_assertions) { 12 } else { 150 };

fn trained_loss<B, O>(seed: u64, mut optim: O) -> f32
where
    B: AutodiffBackend,
    O: Optimizer<Gpt<B>, B>,
{
    let device = Default::default();
    B::seed(&device, seed);
    let corpus = Corpus::bundled();
    let model = GptConfig::new(corpus.vocab().len(), SEQ).init::<B>(&device);
    let plan = Plan {
        steps: STEPS,
        learning_rate: 3e-3,
        warmup: 10,
    };
    let mut batcher = Batcher::new(&corpus, BATCH, SEQ, seed).unwrap();
    let trained = train_steps(model, &mut optim, &mut batcher, &plan, &device, |_| ()).unwrap();
    assert!(trained.losses[STEPS - 1] < 0.9 * trained.losses[0]);

    let windows = Windows::new(&corpus, SEQ, 32).unwrap();
    validation_loss(&trained.model.valid(), &windows, BATCH, &device)
}

fn logits_dtype() -> DType {
    let device = Default::default();
    let model = GptConfig::new(10, SEQ).init::<Mixed>(&device);
    model
        .forward(Tensor::<Mixed, 2, Int>::zeros([1, SEQ], &device))
        .dtype()
}

#[test]
fn should_reach_the_same_loss_in_every_precision() {
    for seed in SEEDS {
        let plain = trained_loss::<Plain, _>(seed, AdamWConfig::new().init());

        for (config, dtype) in [
            (AmpConfig::f32(), DType::F32),
            (AmpConfig::bf16(), DType::BF16),
            (AmpConfig::f16(), DType::F16),
        ] {
            let amp = Autocast::new(&config).unwrap();
            assert_eq!(amp.run(logits_dtype), dtype);

            let optim = AmpOptimizerConfig::new().init(AdamWConfig::new().init());
            let mixed = amp.run(|| trained_loss::<Mixed, _>(seed, optim));
            assert!(
                (mixed - plain).abs() < 0.02 * plain,
                "{} with seed {seed}: {mixed}, plain f32 {plain}",
                config.precision()
            );
            if dtype == DType::F32 {
                assert_eq!(mixed.to_bits(), plain.to_bits());
            } else {
                assert_ne!(mixed.to_bits(), plain.to_bits());
            }
        }
    }
}
