//! Moving averages of parameters.

mod common;

use std::collections::BTreeMap;

use burn::backend::Flex;
use burn::module::{AutodiffModule, Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::nn::{
    BatchNorm, BatchNormConfig, Dropout, DropoutConfig, Gelu, Linear, LinearConfig, LinearLayout,
};
use burn::optim::{AdamConfig, GradientsParams, Optimizer};
use burn::record::{
    BinBytesRecorder, FullPrecisionSettings, HalfPrecisionSettings, NamedMpkBytesRecorder,
    PrecisionSettings, Record, Recorder,
};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, FloatDType, Shape, Tensor};
use burn_amp::{
    Amp, AmpConfig, AmpOptimizerConfig, Autocast, Autodiff, Ema, EmaConfig, EmaError, EmaRecord,
    EmaRecordItem, OpClass, StepOutcome,
};
use common::{SplitMix64, normal, values};

type B = Autodiff<Amp<Flex>>;
type Inner = Amp<Flex>;

#[derive(Module, Debug)]
struct Block<B: Backend> {
    linear: Linear<B>,
    norm: BatchNorm<B>,
    dropout: Dropout,
    name: String,
    width: usize,
}

#[derive(Module, Debug)]
struct Net<B: Backend> {
    blocks: Vec<Block<B>>,
    head: Linear<B>,
    scale: Option<Param<Tensor<B, 1>>>,
    frozen: Param<Tensor<B, 1>>,
    activation: Gelu,
}

impl<B: Backend> Net<B> {
    fn new() -> Self {
        let device = B::Device::default();
        let blocks = (0..2).map(|index| Block {
            linear: LinearConfig::new(4, 4).init(&device),
            norm: BatchNormConfig::new(4).init(&device),
            dropout: DropoutConfig::new(0.0).init(),
            name: format!("block {index}"),
            width: 4,
        });
        Self {
            blocks: blocks.collect(),
            head: LinearConfig::new(4, 1).init(&device),
            scale: Some(Param::from_tensor(Tensor::ones([1], &device))),
            frozen: Param::from_tensor(Tensor::full([2], 0.1, &device)).set_require_grad(false),
            activation: Gelu::new(),
        }
    }

    fn forward(&self, mut x: Tensor<B, 2>) -> Tensor<B, 2> {
        for block in &self.blocks {
            let y = block.norm.forward(block.linear.forward(x));
            x = self.activation.forward(block.dropout.forward(y));
        }
        let scale = self.scale.as_ref().unwrap().val();
        self.head.forward(x) * scale.unsqueeze()
    }

    fn loss(&self, seed: u64) -> Tensor<B, 1> {
        let x = normal::<B, 2>([8, 4], seed, &B::Device::default());
        self.forward(x).powi_scalar(2).mean()
    }
}

fn device() -> <B as burn::tensor::backend::BackendTypes>::Device {
    Default::default()
}

fn ema<M: AutodiffModule<B>>(decay: f64, module: &M) -> Ema<Inner> {
    EmaConfig::new(decay).init(module).unwrap()
}

/// Everything that an average holds, by parameter.
fn averages(ema: &Ema<Inner>) -> BTreeMap<String, (DType, Vec<u64>)> {
    let EmaRecordItem::V1 { averages, .. } =
        Record::<Inner>::into_item::<FullPrecisionSettings>(ema.to_record());
    averages
        .into_iter()
        .map(|average| {
            let bits = average.value.iter::<f64>().map(f64::to_bits);
            (average.path, (average.value.dtype, bits.collect()))
        })
        .collect()
}

/// The values of all float tensors of a module, in its order.
fn parameters<B: Backend, M: Module<B>>(module: &M) -> Vec<(ParamId, DType, Vec<f64>)> {
    struct Read(Vec<(ParamId, DType, Vec<f64>)>);
    impl<B: Backend> ModuleVisitor<B> for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let value = param.val();
            self.0.push((param.id, value.dtype(), values(value)));
        }
    }
    let mut read = Read(Vec::new());
    module.visit(&mut read);
    read.0
}

/// Moves every trained parameter by noise, in a type.
struct Shake {
    noise: SplitMix64,
    dtype: FloatDType,
}

impl<B: Backend> ModuleMapper<B> for Shake {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
        if !param.is_require_grad() {
            return param;
        }
        let noise = normal::<B, D>(param.dims(), self.noise.next_u64(), &param.device());
        param.map(|old| {
            let moved = old.cast(FloatDType::F32) + noise * 0.1;
            moved.detach().cast(self.dtype).require_grad()
        })
    }
}

#[test]
fn should_equal_the_average_in_f64() {
    // What is in force for the model does not reach the average.
    let half = AmpConfig::bf16()
        .with_op("float_sub", OpClass::Lower)
        .with_op("float_add", OpClass::Lower);
    let half = Autocast::new(&half).unwrap();
    for dtype in [FloatDType::F32, FloatDType::F16, FloatDType::BF16] {
        for warmup in [false, true] {
            let mut shake = Shake {
                noise: SplitMix64::new(1),
                dtype,
            };
            let mut net = Net::<B>::new().map(&mut shake);
            let config = EmaConfig::new(0.98).with_warmup(warmup);
            let mut ema = config.init(&net).unwrap();
            assert!(
                averages(&ema)
                    .values()
                    .all(|(dtype, _)| *dtype == DType::F32)
            );
            let mut expected = parameters::<B, _>(&net);
            for step in 0..60u32 {
                net = net.map(&mut shake);
                let n = f64::from(step);
                let warm = if warmup { (1.0 + n) / (10.0 + n) } else { 1.0 };
                let decay = warm.min(0.98);
                assert_eq!(ema.decay(), decay);
                for ((_, _, average), (_, _, param)) in
                    expected.iter_mut().zip(parameters::<B, _>(&net))
                {
                    for (average, param) in average.iter_mut().zip(param) {
                        *average = decay * *average + (1.0 - decay) * param;
                    }
                }
                half.run(|| ema.update(&net));
            }
            assert_eq!(ema.updates(), 60);

            let kept = averages(&ema);
            assert_eq!(kept.len(), 11, "{:?}", kept.keys());
            for (path, (dtype, _)) in &kept {
                assert_eq!(*dtype, DType::F32, "{path}");
            }
            let weight = &net.blocks[1].linear.weight;
            let index = parameters::<B, _>(&net);
            let index = index.iter().position(|(id, ..)| *id == weight.id).unwrap();
            let actual = &kept["blocks.1.linear.weight"].1;
            for (actual, expected) in actual.iter().zip(&expected[index].2) {
                let actual = f64::from_bits(*actual);
                assert!((actual - expected).abs() < 1e-6, "{actual} {expected}");
            }

            let averaged = parameters::<Inner, _>(&ema.valid(&net));
            let tolerance = match dtype {
                FloatDType::F32 => 1e-6,
                FloatDType::F16 => 1e-3,
                _ => 8e-3,
            };
            assert_eq!(averaged.len(), expected.len());
            for ((id, kind, actual), (_, _, expected)) in averaged.iter().zip(&expected) {
                let param = parameters::<B, _>(&net);
                assert!(
                    param
                        .iter()
                        .any(|(known, dtype, _)| known == id && dtype == kind)
                );
                for (actual, expected) in actual.iter().zip(expected) {
                    assert!(
                        (actual - expected).abs() <= tolerance * expected.abs().max(1.0),
                        "{actual} {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn should_keep_a_constant_bitwise() {
    let net = Net::<B>::new().map(&mut Shake {
        noise: SplitMix64::new(2),
        dtype: FloatDType::F32,
    });
    let mut ema = ema(0.9999, &net);
    let before = averages(&ema);
    for _update in 0..1000 {
        ema.update(&net);
    }
    assert_eq!(averages(&ema), before);
    assert_eq!(
        parameters::<B, _>(&ema.apply(&net)),
        parameters::<B, _>(&net)
    );
}

#[test]
fn should_move_by_less_than_half_precision_can_tell() {
    let mut param = Param::from_tensor(Tensor::<B, 1>::full([1], 1.0, (&device(), DType::BF16)));
    let mut ema = ema(0.999, &param);
    param = param.map(|old| (old * 2.0).detach().require_grad());
    for _update in 0..100 {
        ema.update(&param);
    }
    let (_, bits) = &averages(&ema)[""];
    let expected = 2.0 - 0.999f64.powi(100);
    assert!((f64::from_bits(bits[0]) - expected).abs() < 1e-5);
}

/// Trains in f16; the steps in `overflow` are skipped.
fn train(
    amp: &Autocast,
    steps: usize,
    overflow: &[usize],
    mut each: impl FnMut(&Net<B>, &StepOutcome),
) {
    let mut net = Net::<B>::new();
    let mut optim = AmpOptimizerConfig::new().init(AdamConfig::new().init());
    for step in 0..steps {
        let exponent = if overflow.contains(&step) { 60 } else { 8 };
        amp.loss_scaler().set_scale(2f32.powi(exponent)).unwrap();
        let grads = GradientsParams::from_grads(net.loss(step as u64).backward(), &net);
        net = optim.step(0.01, net, grads);
        let outcome = optim.outcome().unwrap();
        assert_eq!(outcome.is_skipped(), overflow.contains(&step));
        each(&net, outcome);
    }
}

#[test]
fn should_not_move_after_a_skipped_step() {
    let amp = Autocast::new(&AmpConfig::f16()).unwrap();
    let mut average: Option<Ema<Inner>> = None;
    amp.run(|| {
        train(&amp, 8, &[0, 3, 4], |net, outcome| {
            let average = average.get_or_insert_with(|| ema(0.9, net));
            let before = (averages(average), average.updates());
            average.update_after(net, outcome);
            let after = (averages(average), average.updates());
            if outcome.is_applied() {
                assert_eq!(after.1, before.1 + 1);
                assert_ne!(after.0, before.0);
            } else {
                assert_eq!(after, before);
            }
        });
    });
    assert_eq!(average.unwrap().updates(), 5);

    let net = Net::<B>::new();
    let mut average = ema(0.5, &net);
    let before = averages(&average);
    let moved = net.clone().map(&mut Shake {
        noise: SplitMix64::new(3),
        dtype: FloatDType::F32,
    });
    average.update_after(&moved, None);
    average.update_after(&moved, &StepOutcome::NothingToDo);
    assert_eq!((averages(&average), average.updates()), (before, 0));
    average.update_after(&moved, Some(&StepOutcome::Applied));
    assert_eq!(average.updates(), 1);
}

#[test]
fn should_go_on_bitwise_from_every_recorder() {
    fn check<S: PrecisionSettings>() {
        let mut shake = Shake {
            noise: SplitMix64::new(4),
            dtype: FloatDType::F32,
        };
        let net = Net::<B>::new().map(&mut shake);
        let config = EmaConfig::new(0.99).with_warmup(true);
        let mut uninterrupted = config.init(&net).unwrap();
        let mut nets = vec![net];
        for _ in 0..8 {
            nets.push(nets.last().unwrap().clone().map(&mut shake));
        }
        for net in &nets[..4] {
            uninterrupted.update(net);
        }

        let bin = BinBytesRecorder::<S>::new();
        let bytes = Recorder::<Inner>::record(&bin, uninterrupted.to_record(), ()).unwrap();
        let from_bin: EmaRecord<Inner> = Recorder::<Inner>::load(&bin, bytes, &device()).unwrap();
        let named = NamedMpkBytesRecorder::<S>::new();
        let bytes = Recorder::<Inner>::record(&named, uninterrupted.to_record(), ()).unwrap();
        let from_named = Recorder::<Inner>::load(&named, bytes, &device()).unwrap();
        let item = Record::<Inner>::into_item::<S>(uninterrupted.to_record());
        let json = serde_json::to_string(&item).unwrap();
        let item = serde_json::from_str(&json).unwrap();
        let from_json = <EmaRecord<Inner> as Record<Inner>>::from_item::<S>(item, &device());

        for net in &nets[4..] {
            uninterrupted.update(net);
        }
        for record in [from_bin, from_named, from_json] {
            // Another value, under the same identifiers.
            let mut resumed = config.init(&nets[8]).unwrap().load_record(record).unwrap();
            assert_eq!(resumed.updates(), 4);
            for net in &nets[4..] {
                resumed.update(net);
            }
            assert_eq!(averages(&resumed), averages(&uninterrupted));
            assert_eq!(resumed.decay(), uninterrupted.decay());
        }
    }
    check::<FullPrecisionSettings>();
    check::<HalfPrecisionSettings>();
}

#[test]
fn should_name_what_is_wrong_with_a_record() {
    let net = Net::<B>::new();
    let other = Net::<B>::new();
    let error = ema(0.9, &net).load_record(ema(0.9, &other).to_record());
    let error = error.unwrap_err();
    assert!(matches!(error, EmaError::Missing { .. }), "{error}");
    // Any of the parameters: they are compared by identifier.
    let message = error.to_string();
    let paths = ["linear.", "norm.", "head.", "scale"];
    assert!(paths.iter().any(|path| message.contains(path)), "{message}");

    // More than the module trains.
    let id = net.scale.as_ref().unwrap().id;
    let less = Net {
        scale: net.scale.clone().map(|scale| scale.set_require_grad(false)),
        ..net.clone()
    };
    let error = ema(0.9, &less)
        .load_record(ema(0.9, &net).to_record())
        .unwrap_err();
    assert_eq!(
        error,
        EmaError::Unknown {
            path: "scale".to_owned(),
            id,
        }
    );
    assert_eq!(
        error.to_string(),
        format!(
            "the record has an average of parameter `scale` ({id}), which is not trained in the module"
        )
    );
    let error = ema(0.9, &net)
        .load_record(ema(0.9, &less).to_record())
        .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("no average of parameter `scale`"),
        "{error}"
    );

    let long = Net {
        scale: Some(Param::initialized(
            id,
            Tensor::ones([3], &device()).require_grad(),
        )),
        ..net.clone()
    };
    let error = ema(0.9, &net)
        .load_record(ema(0.9, &long).to_record())
        .unwrap_err();
    assert_eq!(
        error,
        EmaError::Shape {
            path: "scale".to_owned(),
            recorded: Shape::new([3]),
            expected: Shape::new([1]),
        }
    );
    assert!(
        error.to_string().contains("[3]") && error.to_string().contains("[1]"),
        "{error}"
    );
}

#[test]
fn should_refuse_a_decay_that_is_none() {
    let net = Net::<B>::new();
    for decay in [-0.1, 1.0, 1.5, f64::NAN, f64::INFINITY] {
        let error = EmaConfig::new(decay).init(&net).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("decay is {decay:?}, expected at least 0 and less than 1")
        );
    }
    assert!(EmaConfig::new(0.0).init(&net).is_ok());
}

fn message_of(panic: Box<dyn std::any::Any + Send>) -> String {
    *panic.downcast::<String>().unwrap()
}

#[test]
fn should_panic_with_the_name_of_a_parameter_that_does_not_fit() {
    let net = Net::<B>::new();
    for use_it in [
        (|ema, net| ema.update(net)) as fn(&mut Ema<Inner>, &Net<B>),
        |ema, net| drop(ema.apply(net)),
    ] {
        let run = |other: Net<B>| {
            let mut ema = ema(0.9, &net);
            let run = std::panic::AssertUnwindSafe(|| use_it(&mut ema, &other));
            message_of(std::panic::catch_unwind(run).unwrap_err())
        };
        let message = run(Net {
            scale: None,
            ..net.clone()
        });
        assert!(message.contains("lacks parameter `scale`"), "{message}");
        let id = net.scale.as_ref().unwrap().id;
        let message = run(Net {
            scale: Some(Param::initialized(
                id,
                Tensor::ones([3], &device()).require_grad(),
            )),
            ..net.clone()
        });
        for part in ["`scale`", "[3]", "[1]"] {
            assert!(message.contains(part), "{message}");
        }
    }
}

#[test]
fn should_leave_the_original_as_it_was() {
    let mut shake = Shake {
        noise: SplitMix64::new(5),
        dtype: FloatDType::F32,
    };
    let mut net = Net::<B>::new().map(&mut shake);
    let mut ema = ema(0.5, &net);
    for seed in 0..3 {
        net = net.map(&mut shake);
        net.loss(seed);
        ema.update(&net);
    }
    // Brings the statistics up to date.
    let _ = net.valid();
    let before = parameters::<B, _>(&net);

    let averaged = ema.apply(&net);
    let valid = ema.valid(&net);
    assert_eq!(averaged.blocks[1].name, "block 1");
    assert_eq!(valid.blocks[1].width, 4);
    let weight = |net: &Net<B>| values(net.head.weight.val());
    assert_ne!(weight(&averaged), weight(&net));
    assert_eq!(weight(&averaged), values(valid.head.weight.val()));
    // Trained and frozen stay what they are.
    assert!(averaged.head.weight.is_require_grad());
    assert!(!averaged.frozen.is_require_grad());
    assert_eq!(values(averaged.frozen.val()), values(net.frozen.val()));
    // Statistics are those of the original.
    for (block, original) in valid.blocks.iter().zip(&net.blocks) {
        let mean = values(block.norm.running_mean.value());
        assert_eq!(mean, values(original.norm.running_mean.value()));
        assert!(mean.iter().any(|value| *value != 0.0));
    }
    // And it trains on.
    let x = normal::<Inner, 2>([8, 4], 1, &device());
    let out = values(valid.forward(x.clone()));
    assert_eq!(parameters::<B, _>(&net), before);
    let grads = GradientsParams::from_grads(net.loss(9).backward(), &net);
    assert_eq!(grads.len(), 11);
    net.loss(10);
    let _ = net.valid();
    assert_eq!(values(valid.forward(x)), out);
}

#[test]
fn should_follow_what_is_trained() {
    let mut net = Net::<B>::new();
    let mut ema = ema(0.5, &net);
    assert!(!averages(&ema).contains_key("frozen"));
    net.frozen = net.frozen.set_require_grad(true);
    net.head = net.head.no_grad();
    ema.update(&net);
    let kept = averages(&ema);
    assert!(kept.contains_key("frozen"));
    assert!(!kept.contains_key("head.weight"));
    net.frozen = net.frozen.map(|old| (old * 3.0).detach().require_grad());
    ema.update(&net);
    let bits = &averages(&ema)["frozen"].1;
    assert!((f64::from_bits(bits[0]) - 0.2).abs() < 1e-7);
}

#[test]
fn should_count_a_shared_parameter_once() {
    let shared = Param::from_tensor(Tensor::<B, 1>::zeros([1], &device()));
    let mut ema = ema(0.5, &vec![shared.clone(), shared.clone()]);
    let moved = shared.map(|old| (old + 1.0).detach().require_grad());
    ema.update(&vec![moved.clone(), moved.clone()]);
    for applied in ema.apply(&vec![moved.clone(), moved]) {
        assert_eq!(values(applied.val()), [0.5]);
    }
}

#[test]
fn should_keep_how_a_parameter_is_saved() {
    let config = LinearConfig::new(3, 2).with_layout(LinearLayout::Col);
    let mut layer: Linear<B> = config.init(&device());
    // Burn 0.21 transposes such a weight after it was made a leaf, and does not train it.
    layer.weight = layer.weight.map(|weight| weight.detach().require_grad());
    let ema = ema(0.9, &layer);
    assert_eq!(averages(&ema).len(), 2);
    let saved = ema.apply(&layer).into_record().weight.val();
    // The transpose.
    assert_eq!(saved.dims(), [2, 3]);
    assert_eq!(values(saved), values(layer.into_record().weight.val()));
}

#[test]
fn should_be_stored_as_a_configuration() {
    let config = EmaConfig::new(0.99).with_warmup(true);
    let json = serde_json::to_string(&config).unwrap();
    assert_eq!(serde_json::from_str::<EmaConfig>(&json).unwrap(), config);
    assert!(!EmaConfig::new(0.99).warmup);
}

/// Burn's order of the decorators, and the undecorated backend, which adds no two types.
#[test]
fn should_work_on_any_backend() {
    fn check<B: AutodiffBackend>() {
        let shake = |seed| Shake {
            noise: SplitMix64::new(seed),
            dtype: FloatDType::BF16,
        };
        let net = Net::<B>::new().map(&mut shake(6));
        let before = values(net.scale.as_ref().unwrap().val())[0];
        let mut ema = EmaConfig::new(0.5).init::<B, _>(&net).unwrap();
        let assert_f32 = |ema: &Ema<B::InnerBackend>| {
            let record = ema.to_record();
            let EmaRecordItem::V1 { averages, .. } =
                Record::<B::InnerBackend>::into_item::<FullPrecisionSettings>(record);
            assert!(
                averages
                    .iter()
                    .all(|average| average.value.dtype == DType::F32)
            );
        };
        assert_f32(&ema);
        let moved = net.map(&mut shake(7));
        ema.update::<B, _>(&moved);
        assert_f32(&ema);
        let averaged = ema.valid::<B, _>(&moved).scale.unwrap().val();
        assert_eq!(averaged.dtype(), DType::BF16);
        let expected = (before + values(moved.scale.unwrap().val())[0]) / 2.0;
        assert!((values(averaged)[0] - expected).abs() < 1e-2);
    }
    check::<burn::backend::Autodiff<Amp<Flex>>>();
    check::<burn::backend::Autodiff<Flex>>();
}
