//! Learning rates around skipped steps.

mod common;

use burn::backend::Flex;
use burn::lr_scheduler::LrScheduler;
use burn::lr_scheduler::composed::ComposedLrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::exponential::ExponentialLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::noam::NoamLrSchedulerConfig;
use burn::module::Param;
use burn::optim::adaptor::OptimizerAdaptor;
use burn::optim::{GradientsParams, Optimizer, Sgd, SgdConfig};
use burn::record::{
    BinBytesRecorder, FullPrecisionSettings, HalfPrecisionSettings, NamedMpkBytesRecorder,
    PrecisionSettings, Record, Recorder,
};
use burn::tensor::Tensor;
use burn_amp::{
    Amp, AmpOptimizer, AmpOptimizerConfig, Autodiff, GradientCheck, HoldOnSkip, HoldOnSkipRecord,
};

type Inner = Amp<Flex>;
type B = Autodiff<Inner>;
type Device = burn::tensor::Device<Inner>;
type Module = Param<Tensor<B, 1>>;

/// A module, and an optimizer whose outcomes a test can dictate.
struct Training {
    module: Module,
    optim: AmpOptimizer<OptimizerAdaptor<Sgd<Inner>, Module, B>>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Do {
    Apply,
    Skip,
    Nothing,
}
use Do::{Apply, Nothing, Skip};

impl Training {
    fn new() -> Self {
        Self {
            module: Param::from_tensor(Tensor::zeros([1], &Device::default())),
            optim: AmpOptimizerConfig::new()
                .with_gradient_check(GradientCheck::Always)
                .init(SgdConfig::new().init()),
        }
    }

    fn step(&mut self, rate: f64, what: Do) {
        let mut grads = GradientsParams::new();
        let gradient = match what {
            Apply => Some(1.0),
            Skip => Some(f32::INFINITY),
            Nothing => None,
        };
        if let Some(gradient) = gradient {
            let gradient = Tensor::<Inner, 1>::full([1], gradient, &Device::default());
            grads.register::<Inner, 1>(self.module.id, gradient);
        }
        self.module = self.optim.step(rate, self.module.clone(), grads);
        let outcome = self.optim.outcome().unwrap();
        assert_eq!(outcome.is_skipped(), what == Skip);
        assert_eq!(outcome.is_applied(), what == Apply);
    }
}

/// The rates that a schedule gives, one before each step.
fn rates<S: LrScheduler>(training: &mut Training, schedule: &mut S, steps: &[Do]) -> Vec<f64> {
    let mut rates = Vec::new();
    for what in steps {
        let rate = schedule.step();
        training.step(rate, *what);
        rates.push(rate);
    }
    rates
}

fn plain<S: LrScheduler>(mut schedule: S, steps: usize) -> Vec<f64> {
    (0..steps).map(|_| schedule.step()).collect()
}

fn hold<S>(schedule: S) -> HoldOnSkip<S> {
    HoldOnSkip::new(schedule)
}

/// Runs a check with Burn's schedules, whose records differ.
macro_rules! with_every_schedule {
    ($check:ident) => {
        $check(0.125);
        $check(LinearLrSchedulerConfig::new(0.9, 0.1, 7).init().unwrap());
        $check(
            CosineAnnealingLrSchedulerConfig::new(0.3, 5)
                .init()
                .unwrap(),
        );
        $check(ExponentialLrSchedulerConfig::new(0.7, 0.83).init().unwrap());
        $check(
            NoamLrSchedulerConfig::new(0.1)
                .with_warmup_steps(4)
                .init()
                .unwrap(),
        );
        $check(
            ComposedLrSchedulerConfig::new()
                .linear(LinearLrSchedulerConfig::new(0.1, 1.0, 4))
                .exponential(ExponentialLrSchedulerConfig::new(0.9, 0.97))
                .init()
                .unwrap(),
        );
    };
}

const STEPS: [Do; 12] = [
    Skip, Skip, Apply, Apply, Skip, Apply, Nothing, Apply, Skip, Skip, Apply, Apply,
];

#[test]
fn should_repeat_the_rate_of_a_skipped_step() {
    fn check<S: LrScheduler>(schedule: S) {
        let expected = plain(schedule.clone(), 8);
        let mut index = 0;
        let with_repeats: Vec<f64> = STEPS
            .iter()
            .map(|what| {
                let rate = expected[index];
                index += usize::from(*what != Skip);
                rate
            })
            .collect();
        let actual = rates(&mut Training::new(), &mut hold(schedule), &STEPS);
        assert_eq!(actual, with_repeats);
    }
    with_every_schedule!(check);
}

#[test]
fn should_be_the_plain_schedule_where_nothing_is_skipped() {
    fn check<S: LrScheduler>(schedule: S) {
        let steps = [Apply, Apply, Nothing, Apply, Nothing, Apply, Apply, Apply];
        let actual = rates(&mut Training::new(), &mut hold(schedule.clone()), &steps);
        assert_eq!(actual, plain(schedule, 8));
    }
    with_every_schedule!(check);
}

/// Burn's `Learner` asks for a rate before each batch, and uses the last of a window.
#[test]
fn should_hold_a_window_of_micro_batches() {
    let schedule = LinearLrSchedulerConfig::new(0.9, 0.1, 20).init().unwrap();
    let all = plain(schedule, 20);
    let mut schedule = hold(schedule);
    let mut training = Training::new();
    let windows = [Skip, Apply, Apply, Skip, Skip, Apply, Apply].map(|what| {
        let mut rate = 0.0;
        for _micro_batch in 0..3 {
            rate = schedule.step();
        }
        training.step(rate, what);
        rate
    });
    let used = [2, 2, 5, 8, 8, 8, 11].map(|index| all[index]);
    assert_eq!(windows, used);
}

#[test]
fn should_go_on_where_any_step_since_was_applied() {
    let schedule = LinearLrSchedulerConfig::new(0.9, 0.1, 8).init().unwrap();
    let all = plain(schedule, 4);
    let mut schedule = hold(schedule);
    // A schedule that is asked once an epoch.
    let mut training = Training::new();
    let mut epoch = |steps: &[Do]| {
        let rate = schedule.step();
        steps.iter().for_each(|what| training.step(rate, *what));
        rate
    };
    assert_eq!(epoch(&[Apply, Skip, Skip]), all[0]);
    assert_eq!(epoch(&[Skip, Skip]), all[1]);
    assert_eq!(epoch(&[Skip, Apply, Skip]), all[1]);
    assert_eq!(epoch(&[Nothing]), all[2]);
    assert_eq!(epoch(&[]), all[3]);

    // So with two optimizers on the device, as long as one of them goes on.
    let mut other = Training::new();
    let mut schedule = hold(LinearLrSchedulerConfig::new(0.9, 0.1, 8).init().unwrap());
    let mut both = |first, second| {
        let rate = schedule.step();
        training.step(rate, first);
        other.step(rate, second);
        rate
    };
    assert_eq!(both(Skip, Apply), all[0]);
    assert_eq!(both(Apply, Skip), all[1]);
    assert_eq!(both(Skip, Skip), all[2]);
    assert_eq!(both(Apply, Apply), all[2]);
}

#[test]
fn should_not_mind_what_was_before_it() {
    let all = plain(
        ExponentialLrSchedulerConfig::new(0.9, 0.5).init().unwrap(),
        3,
    );
    let exponential = ExponentialLrSchedulerConfig::new(0.9, 0.5).init().unwrap();
    let mut training = Training::new();
    training.step(0.1, Skip);
    let mut schedule = hold(exponential);
    assert!(!schedule.is_held());
    // Nor a step that had no rate of its own.
    training.step(0.1, Skip);
    assert!(!schedule.is_held());
    let rates = rates(&mut training, &mut schedule, &[Apply, Skip, Apply]);
    assert_eq!(rates, [all[0], all[1], all[1]]);
    assert!(!schedule.is_held());
    assert_eq!(schedule.step(), all[2]);
    training.step(all[2], Skip);
    assert!(schedule.is_held());
    assert_eq!(schedule.step(), all[2]);
}

fn through<S, R>(record: R) -> R
where
    S: PrecisionSettings,
    R: Record<B>,
{
    let bin = BinBytesRecorder::<S>::new();
    let bytes = Recorder::<B>::record(&bin, record, ()).unwrap();
    let record: R = Recorder::<B>::load(&bin, bytes, &Device::default()).unwrap();
    let named = NamedMpkBytesRecorder::<S>::new();
    let bytes = Recorder::<B>::record(&named, record, ()).unwrap();
    Recorder::<B>::load(&named, bytes, &Device::default()).unwrap()
}

/// A checkpoint after each number of steps, loaded beside an optimizer that goes on from its own record:
/// in a new process nothing is known of the device, here it has seen other steps.
#[test]
fn should_resume_bitwise() {
    fn check<S: LrScheduler>(schedule: S) {
        let expected = rates(&mut Training::new(), &mut hold(schedule.clone()), &STEPS);
        for at in 0..STEPS.len() {
            let mut training = Training::new();
            let mut first = hold(schedule.clone());
            let before = rates(&mut training, &mut first, &STEPS[..at]);
            let record = first.to_record::<B>();
            let optim = Optimizer::<Module, B>::to_record(&training.optim);

            // A program makes the schedule first, and loads its record into that.
            let second = hold(schedule.clone());
            for unrelated in [Apply, Skip] {
                Training::new().step(0.1, unrelated);
            }
            let mut resumed = Training::new();
            resumed.optim = Optimizer::<Module, B>::load_record(resumed.optim, optim);
            let mut second = second.load_record::<B>(through::<FullPrecisionSettings, _>(record));
            let after = rates(&mut resumed, &mut second, &STEPS[at..]);
            assert_eq!(
                [before, after].concat(),
                expected,
                "resumed after {at} steps"
            );
        }
    }
    with_every_schedule!(check);
}

#[test]
fn should_not_round_the_rate_in_a_half_precision_record() {
    let rate = 0.1234567891011;
    let record = HoldOnSkipRecord {
        scheduler: 7usize,
        rate: Some(rate),
        is_held: true,
    };
    let record = through::<HalfPrecisionSettings, _>(record);
    assert_eq!(record.rate, Some(rate));
    assert!(record.is_held);
}

#[test]
fn should_take_over_the_record_of_a_plain_schedule() {
    let config = LinearLrSchedulerConfig::new(0.9, 0.1, 8);
    let mut schedule = config.init().unwrap();
    let all = plain(schedule, 6);
    for rate in &all[..3] {
        assert_eq!(schedule.step(), *rate);
    }
    let record = HoldOnSkipRecord::from(schedule.to_record::<B>());
    let mut held = hold(config.init().unwrap()).load_record::<B>(record);
    let rates = rates(&mut Training::new(), &mut held, &[Skip, Apply, Apply]);
    assert_eq!(rates, [all[3], all[3], all[4]]);
    assert_eq!(held.inner().to_record::<B>(), {
        let mut plain = schedule;
        plain.step();
        plain.step();
        plain.to_record::<B>()
    });
}

/// As the workers of `ddp`, each with a clone of the schedule: what the others have done is not known yet.
#[test]
fn should_listen_to_its_own_thread() {
    let schedule = LinearLrSchedulerConfig::new(0.9, 0.1, 8).init().unwrap();
    let all = plain(schedule, 3);
    let mut first = hold(schedule);
    let mut second = first.clone();
    let mut training = Training::new();
    let _skipped = rates(&mut training, &mut first, &[Skip]);
    let worker = std::thread::spawn(move || {
        let mut training = Training::new();
        let [before, after] = [&[Apply][..], &[Skip, Apply, Skip]]
            .map(|steps| rates(&mut training, &mut second, steps));
        (before, after, second.to_record::<B>())
    });
    let (before, after, record) = worker.join().unwrap();
    assert_eq!(
        (before, after),
        (vec![all[0]], vec![all[1], all[1], all[2]])
    );
    assert_eq!(rates(&mut training, &mut first, &[Apply, Apply]), all[..2]);

    // A record of one that is held, loaded on a thread where other steps were taken.
    let mut resumed = hold(schedule).load_record::<B>(record);
    let resumed = std::thread::spawn(move || resumed.step()).join().unwrap();
    assert_eq!(resumed, all[2]);
}
