//! What is configured for a device, for every thread of the process. Each test takes the device in
//! turn and gives it back as it was.

mod common;

use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use burn::backend::Flex;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::backend::flex::FlexDevice;
use burn::module::{AutodiffModule, Module};
use burn::nn::{Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::backend::{AutodiffBackend, Backend, Device, DeviceId, DeviceOps};
use burn::tensor::{DType, Tensor};
use burn_amp::loss_scale::{DynamicLossScaleConfig, LossScaleConfig};
use burn_amp::{
    Amp, AmpConfig, AmpDevice, AmpError, AmpOptimizerConfig, Autocast, Autodiff, Counters,
    Precision, StepCounters, full_precision,
};

use common::{normal, parameter_bits, randomize, values};

type Plain = burn::backend::Autodiff<Flex>;
type Ours = Autodiff<Amp<Flex>>;
type Burns = burn::backend::Autodiff<Amp<Flex>>;

/// The device, with mixed precision off at both ends.
struct Configured(#[allow(dead_code)] MutexGuard<'static, ()>);

impl Configured {
    fn take() -> Self {
        static DEVICE: Mutex<()> = Mutex::new(());
        Self(DEVICE.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, config: &AmpConfig) -> Precision {
        config.init(&FlexDevice).unwrap()
    }

    fn switch(&self, config: &AmpConfig) -> Precision {
        config.switch(&FlexDevice).unwrap()
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        self.set(&AmpConfig::f32());
    }
}

/// f16 whose scale starts low enough for the tests' models.
fn f16() -> AmpConfig {
    let scaling = DynamicLossScaleConfig::new().with_init_scale(1024.0);
    AmpConfig::f16().with_loss_scale(LossScaleConfig::Dynamic(scaling))
}

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    up: Linear<B>,
    norm: LayerNorm<B>,
    down: Linear<B>,
    activation: Gelu,
}

impl<B: Backend> Mlp<B> {
    fn new(seed: u64) -> Self {
        let device = B::Device::default();
        let model = Self {
            up: LinearConfig::new(8, 16).init(&device),
            norm: LayerNormConfig::new(16).init(&device),
            down: LinearConfig::new(16, 2).init(&device),
            activation: Gelu::new(),
        };
        randomize(model, seed)
    }

    fn forward(&self, seed: u64) -> Tensor<B, 2> {
        let x = normal::<B, 2>([12, 8], seed, &B::Device::default());
        let hidden = self
            .norm
            .forward(self.activation.forward(self.up.forward(x)));
        self.down.forward(hidden)
    }

    fn loss(&self, seed: u64) -> Tensor<B, 1> {
        self.forward(seed).add_scalar(-1.0).powi_scalar(2).mean()
    }
}

#[test]
fn case_47_evaluation_in_training_and_alone_agree() {
    fn check<B: AutodiffBackend>(device: &Configured) {
        let mut model = Mlp::<B>::new(1);
        let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
        device.set(&f16());
        for step in 0..3 {
            let grads = GradientsParams::from_grads(model.loss(step).backward(), &model);
            model = optim.step(1e-3, model, grads);
        }
        let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
        let record = model.valid().into_record();
        let bytes = Recorder::<B::InnerBackend>::record(&recorder, record, ()).unwrap();
        let load = || Recorder::load(&recorder, bytes.clone(), &FlexDevice).unwrap();
        let alone = Mlp::<Amp<Flex>>::new(2).load_record(load());

        for (config, dtype) in [
            (f16(), DType::F16),
            (AmpConfig::bf16(), DType::BF16),
            (AmpConfig::f32(), DType::F32),
        ] {
            device.set(&config);
            Counters::reset();
            let inside = model.valid().forward(9);
            assert_eq!(inside.dtype(), dtype);
            assert_eq!(Counters::get().casts == 0, dtype == DType::F32);
            let inside = values(inside);
            let alone = alone.clone();
            let alone = std::thread::spawn(move || values(alone.forward(9)));
            assert_eq!(alone.join().unwrap(), inside);
            if dtype == DType::F32 {
                let recorder = BinBytesRecorder::<FullPrecisionSettings>::new();
                let record = Recorder::<Flex>::load(&recorder, bytes.clone(), &FlexDevice).unwrap();
                let plain = Mlp::<Flex>::new(2).load_record(record);
                assert_eq!(values(plain.forward(9)), inside);
            }
        }
    }
    let device = Configured::take();
    check::<Ours>(&device);
    check::<Burns>(&device);
}

#[test]
fn case_49_precision_can_be_switched_between_steps() {
    /// Trains 25 steps, and calls `before` with the number of each.
    fn train<B: AutodiffBackend>(before: impl Fn(u64)) -> (StepCounters, Vec<Vec<Vec<u32>>>) {
        let mut model = Mlp::<B>::new(3);
        let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
        let mut params = Vec::new();
        for step in 0..25 {
            before(step);
            let grads = GradientsParams::from_grads(model.loss(step).backward(), &model);
            model = optim.step(1e-3, model, grads);
            let records = Optimizer::<Mlp<B>, B>::to_record(&optim).optim;
            let weight = records[&model.up.weight.id].clone().into_state::<2>();
            assert_eq!(
                weight.momentum.time as u64,
                step + 1,
                "{:?}",
                optim.outcome()
            );
            params.push(parameter_bits(&model));
            if step >= 20 {
                assert_eq!(Counters::get().casts, 0);
            }
        }
        (optim.counters(), params)
    }
    fn check<B: AutodiffBackend>(device: &Configured) {
        let (_, plain) = train::<Plain>(|_| ());
        let (counters, switched) = train::<B>(|step| {
            Counters::reset();
            match step {
                0 => assert_eq!(device.set(&AmpConfig::f32()), Precision::F32),
                10 => assert_eq!(device.switch(&f16()), Precision::F16),
                20 => assert_eq!(device.switch(&AmpConfig::f32()), Precision::F32),
                _ => (),
            }
        });
        assert_eq!(counters.applied, 25);
        assert!(switched[..10] == plain[..10]);
        assert!(switched[10] != plain[10]);
    }
    let device = Configured::take();
    check::<Ours>(&device);
    check::<Burns>(&device);
}

#[test]
fn case_49_the_scale_waits_while_precision_is_off() {
    let device = Configured::take();
    device.set(&f16());
    let model = Mlp::<Ours>::new(4);
    let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
    let mut step = |bad: bool| {
        let loss = model.loss(5) * if bad { f32::NAN } else { 1.0 };
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        optim.step(1e-3, model.clone(), grads);
        optim.scale()
    };
    let start = step(false);
    let halved = step(true);
    assert_eq!(halved, start / 2.0);
    device.switch(&AmpConfig::f32());
    assert_eq!(step(false), 1.0);
    device.switch(&AmpConfig::bf16());
    assert_eq!(step(false), 1.0);
    device.switch(&f16());
    assert_eq!(step(false), halved);
}

#[test]
fn a_new_run_begins_with_a_scale_of_its_own() {
    let device = Configured::take();
    let model = Mlp::<Ours>::new(4);
    let run = |bad: &[bool]| {
        let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
        for bad in bad {
            let loss = model.loss(5) * if *bad { f32::NAN } else { 1.0 };
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            optim.step(1e-3, model.clone(), grads);
        }
        optim
    };
    device.set(&f16());
    let first = run(&[false, true]);
    assert_eq!(first.scale(), 512.0);
    device.set(&f16());
    let second = run(&[false]).loss_scaler().unwrap();
    assert_eq!((second.scale(), second.counters().skipped), (1024.0, 0));
    // The first one's is as it was left, also if precision is off in between.
    assert_eq!(first.scale(), 512.0);
    run(&[true]);
    device.set(&AmpConfig::f32());
    device.set(&f16());
    assert_eq!(run(&[false]).scale(), 1024.0);

    // A record that was used is no reason to keep the scale.
    let record = Optimizer::<Mlp<Ours>, Ours>::to_record(&first);
    let mut resumed = run(&[]).load_record(record.clone());
    device.set(&f16());
    let grads = GradientsParams::from_grads(model.loss(5).backward(), &model);
    let _model: Mlp<Ours> = resumed.step(1e-3, model.clone(), grads);
    assert_eq!(resumed.scale(), 512.0);
    device.set(&f16());
    assert_eq!(run(&[false]).scale(), 1024.0);

    // Nor is one of a run that went on in f32.
    device.set(&AmpConfig::f32());
    let mut resumed = run(&[]).load_record(record);
    let grads = GradientsParams::from_grads(model.loss(5).backward(), &model);
    let _model: Mlp<Ours> = resumed.step(1e-3, model.clone(), grads);
    device.set(&f16());
    assert_eq!(run(&[false]).scale(), 1024.0);
}

#[test]
fn case_38_a_record_that_is_loaded_before_the_configuration_survives_it() {
    let device = Configured::take();
    let new = || AmpOptimizerConfig::new().init(AdamConfig::new().init::<Ours, Mlp<Ours>>());
    let model = Mlp::<Ours>::new(6);
    let scaling = DynamicLossScaleConfig::new().with_init_scale(4096.0);
    let amp = Autocast::new(&AmpConfig::f16().with_loss_scale(LossScaleConfig::Dynamic(scaling)))
        .unwrap();
    let record = amp.run(|| {
        let mut optim = new();
        let loss = model.loss(1) * f32::INFINITY;
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        optim.step(1e-3, model.clone(), grads);
        assert_eq!(optim.scale(), 2048.0);
        optim.to_record()
    });

    // Mixed precision is off here; it is configured after the record was loaded.
    let mut optim = new().load_record(record);
    assert_eq!(optim.scale(), 2048.0);
    device.set(&f16());
    let loss = model.loss(1).backward();
    assert_eq!(loss.scale(), 2048.0);
    let grads = GradientsParams::from_grads(loss, &model);
    optim.step(1e-3, model, grads);
    assert!(optim.outcome().unwrap().is_applied());
    assert_eq!(optim.loss_scaler().unwrap().counters().skipped, 1);
}

#[test]
fn case_50_what_is_configured_for_a_device_holds_on_every_thread() {
    fn check<B: AutodiffBackend>(device: &Configured) {
        device.set(&f16());
        let model = Mlp::<B>::new(7);
        let gradients = |model: &Mlp<B>| {
            let output = model.forward(8);
            assert_eq!(output.dtype(), DType::F16);
            let loss = output.clone().powi_scalar(2).mean();
            let grads = GradientsParams::from_grads(loss.backward(), model);
            let grad = grads.get::<B::InnerBackend, 2>(model.up.weight.id).unwrap();
            (values(output), values(grad))
        };
        let here = gradients(&model);
        std::thread::scope(|threads| {
            let workers: Vec<_> = (0..4)
                .map(|_| threads.spawn(|| gradients(&model.clone())))
                .collect();
            for worker in workers {
                assert!(worker.join().unwrap() == here);
            }
            // A scope of one thread is nobody else's.
            let toggler = threads.spawn(|| {
                for _round in 0..1000 {
                    let one = Tensor::<B, 2>::ones([1, 1], &B::Device::default());
                    let off = full_precision(|| one.clone().matmul(one.clone()));
                    assert_eq!(off.dtype(), DType::F32);
                }
            });
            while !toggler.is_finished() {
                assert!(gradients(&model) == here);
            }
            toggler.join().unwrap();
        });
    }
    let device = Configured::take();
    check::<Ours>(&device);
    check::<Burns>(&device);
}

#[test]
fn case_52_backward_on_another_thread_has_the_precision_of_the_device() {
    fn gradients<B: AutodiffBackend>() -> Vec<Vec<f64>> {
        let model = Mlp::<B>::new(9);
        let loss = model.loss(10);
        let grads = std::thread::spawn(move || loss.backward()).join().unwrap();
        let grads = GradientsParams::from_grads(grads, &model);
        [&model.up, &model.down]
            .map(|layer| values(grads.get::<B::InnerBackend, 2>(layer.weight.id).unwrap()))
            .into()
    }
    let device = Configured::take();
    let single = gradients::<Ours>();
    for config in [f16(), AmpConfig::bf16()] {
        device.set(&config);
        let ours = gradients::<Ours>();
        assert!(gradients::<Autodiff<Amp<Flex>, BalancedCheckpointing>>() == ours);
        assert!(ours != single);
        let burns = gradients::<Burns>();
        assert!(gradients::<burn::backend::Autodiff<Amp<Flex>, BalancedCheckpointing>>() == burns);
        assert!(burns != single);
    }
}

/// Runs `f` and returns what it logs, at the given level.
fn logged(level: log::Level, f: impl FnOnce()) -> Vec<String> {
    struct Lines(Mutex<Vec<(log::Level, String)>>);

    impl log::Log for Lines {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &log::Record<'_>) {
            let line = (record.level(), record.args().to_string());
            self.0.lock().unwrap().push(line);
        }

        fn flush(&self) {}
    }

    static LINES: Lines = Lines(Mutex::new(Vec::new()));
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        log::set_logger(&LINES).unwrap();
        log::set_max_level(log::LevelFilter::Info);
    });
    LINES.0.lock().unwrap().clear();
    f();
    let lines = std::mem::take(&mut *LINES.0.lock().unwrap());
    let of_level = lines.into_iter().filter(|(found, _)| *found == level);
    of_level.map(|(_, line)| line).collect()
}

#[test]
fn case_70_f16_without_a_loss_scale_is_warned_about() {
    let device = Configured::take();
    let warnings = |config: AmpConfig| {
        logged(log::Level::Warn, || {
            let _ = device.set(&config);
        })
    };
    let unscaled = |config: AmpConfig| config.with_loss_scale(LossScaleConfig::none());

    let warned = warnings(unscaled(AmpConfig::f16()));
    assert!(
        warned.len() == 1 && warned[0].contains("without loss scaling"),
        "{warned:?}"
    );
    assert!(warnings(unscaled(AmpConfig::bf16())).is_empty());
    assert!(warnings(AmpConfig::f16()).is_empty());
}

/// A device with f32, and with bf16 if its index says so.
#[derive(Debug, Clone, Default, PartialEq)]
struct Mock {
    index: u16,
}

impl Device for Mock {
    fn from_id(id: DeviceId) -> Self {
        Self { index: id.index_id }
    }

    fn to_id(&self) -> DeviceId {
        DeviceId::new(7, self.index)
    }
}

impl DeviceOps for Mock {}

impl AmpDevice for Mock {
    fn supports_dtype(&self, dtype: DType) -> bool {
        dtype == DType::F32 || (dtype == DType::BF16 && self.index == 1)
    }
}

#[test]
fn case_77_a_device_that_lacks_the_type_is_refused_at_construction() {
    for (config, missing) in [
        (AmpConfig::f16(), DType::F16),
        (AmpConfig::bf16(), DType::BF16),
    ] {
        let error = config.init(&Mock { index: 0 }).unwrap_err();
        let message = error.to_string();
        let AmpError::UnsupportedDType { device, dtype, .. } = error else {
            panic!("{message}")
        };
        assert_eq!(dtype, missing);
        assert!(message.contains(&device) && message.contains(&format!("{missing:?}")));
    }
}

#[test]
fn case_77_a_fallback_or_auto_takes_what_the_device_has_and_says_so() {
    let _device = Configured::take();
    for (config, index, precision, lines) in [
        (AmpConfig::f16().with_fallback(true), 0, Precision::F32, 1),
        (AmpConfig::bf16().with_fallback(true), 0, Precision::F32, 1),
        (AmpConfig::bf16().with_fallback(true), 1, Precision::Bf16, 0),
        (AmpConfig::auto(), 0, Precision::F32, 1),
        (AmpConfig::auto(), 1, Precision::Bf16, 0),
        (AmpConfig::f32(), 0, Precision::F32, 0),
    ] {
        let said = logged(log::Level::Info, || {
            assert_eq!(config.init(&Mock { index }).unwrap(), precision);
        });
        assert_eq!(said.len(), lines, "{said:?}");
    }
    for dtype in [DType::F16, DType::BF16] {
        assert!(FlexDevice.supports_dtype(dtype));
        assert!(<Amp<Flex> as Backend>::supports_dtype(&FlexDevice, dtype));
    }
}

#[cfg(feature = "ndarray")]
#[test]
fn case_77_a_step_with_the_fallback_is_the_plain_step() {
    use burn::backend::NdArray;
    use burn::backend::ndarray::NdArrayDevice;

    fn step<B: AutodiffBackend>() -> Vec<Vec<u32>> {
        let model = Mlp::<B>::new(11);
        let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
        let grads = GradientsParams::from_grads(model.loss(12).backward(), &model);
        let model = optim.step(1e-3, model, grads);
        assert!(optim.outcome().unwrap().is_applied());
        parameter_bits(&model)
    }
    let plain = step::<burn::backend::Autodiff<NdArray>>();
    for config in [AmpConfig::f16(), AmpConfig::bf16()] {
        assert!(config.init(&NdArrayDevice::Cpu).is_err());
        let allowed = config.with_fallback(true);
        assert_eq!(allowed.init(&NdArrayDevice::Cpu).unwrap(), Precision::F32);
        assert!(step::<Autodiff<Amp<NdArray>>>() == plain);
        let scope = Autocast::new(&allowed).unwrap();
        assert!(scope.run(step::<Autodiff<Amp<NdArray>>>) == plain);
    }
}
