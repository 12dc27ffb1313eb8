//! Steps that are skipped, in Burn's `Learner`: it asks for a rate before each batch, and holds the model
//! while a clone of it steps.

use burn::backend::Flex;
use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::module::AutodiffModule;
use burn::optim::AdamConfig;
use burn::train::Learner;
use burn_amp::{Amp, AmpConfig, AmpOptimizerConfig, Autocast, Autodiff, HoldOnSkip};
use digits::data;
use digits::loader::{Batch, Loader};
use digits::model::{DigitNet, evaluate};

type B = Autodiff<Amp<Flex>>;

#[test]
fn should_repeat_the_rate_and_spoil_no_statistics() {
    let device = Default::default();
    let samples = &data::bundled()[..96];
    let batches: Vec<Batch<B>> = Loader::in_order(samples, 32, &device).batches().collect();
    let schedule = LinearLrSchedulerConfig::new(1e-2, 1e-3, 10).init().unwrap();
    let mut plain = schedule;
    let rates: Vec<f64> = (0..4).map(|_| plain.step()).collect();

    let amp = Autocast::new(&AmpConfig::f16()).unwrap();
    amp.loss_scaler().set_scale(1024.0).unwrap();
    amp.run(|| {
        let optim = AmpOptimizerConfig::new().init(AdamConfig::new().init::<B, DigitNet<B>>());
        let schedule = HoldOnSkip::new(schedule);
        let mut learner = Learner::new(DigitNet::<B>::new(&device), optim, schedule);
        let valid = Loader::in_order(samples, 48, &device);
        let score = |model: DigitNet<B>| evaluate(&model.valid(), valid.batches());
        let mut used = Vec::new();
        for (index, is_poisoned) in [false, true, true, false, false].into_iter().enumerate() {
            let mut batch = batches[index % 3].clone();
            if is_poisoned {
                batch.images = batch.images * f32::NAN;
            }
            let before = is_poisoned.then(|| score(learner.model()));
            learner.lr_step();
            used.push(learner.lr_current());
            let output = learner.train_step(batch);
            learner.optimizer_step(output.grads);
            let after = score(learner.model());
            assert!(after.loss.is_finite());
            assert!(before.is_none_or(|before| before == after));
        }
        assert_eq!(used, [0, 1, 1, 1, 2].map(|index| rates[index]));
    });
}
