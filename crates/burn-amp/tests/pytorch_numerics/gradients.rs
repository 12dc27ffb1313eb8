//! Gradients in mixed precision, with and without loss scaling, against PyTorch's.

use burn::backend::Flex;
use burn::module::{Module, Param};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Gelu, Linear, LinearConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::{DType, FloatDType, Int, Tensor, module};
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::{Amp, AmpConfig, AmpOptimizerConfig, Autocast, Autodiff, Precision, StepOutcome};
use rstest::rstest;

use crate::common;
use crate::recorded::{NetworkRun, NetworkTensors, Numbers, RECORDED, Underflow};

type B = Autodiff<Amp<Flex>>;

const ROWS: usize = 6;
const INPUTS: usize = 4;
const HIDDEN: usize = 8;
const CLASSES: usize = 3;

/// The recorded network: `x -> linear -> gelu -> linear -> cross entropy`.
#[derive(Module, Debug)]
struct Network<B: burn::tensor::backend::Backend> {
    up: Linear<B>,
    down: Linear<B>,
    gelu: Gelu,
}

/// A loss and the gradients, in PyTorch's layout.
struct Gradients {
    loss: f64,
    tensors: NetworkTensors<Vec<f64>>,
}

impl Network<B> {
    fn new(dtype: DType) -> Self {
        let device = Default::default();
        let recorded = &RECORDED.small_network.inputs_f32;
        let linear = |weight: &Numbers, bias: &Numbers, inputs, outputs| {
            let mut linear = LinearConfig::new(inputs, outputs).init::<B>(&device);
            let weight = common::tensor::<B, 2>(&weight.values, [outputs, inputs], dtype, &device);
            let bias = common::tensor::<B, 1>(&bias.values, [outputs], dtype, &device);
            linear.weight = Param::from_tensor(weight.transpose());
            linear.bias = Some(Param::from_tensor(bias));
            linear
        };
        Self {
            up: linear(&recorded.w1, &recorded.b1, INPUTS, HIDDEN),
            down: linear(&recorded.w2, &recorded.b2, HIDDEN, CLASSES),
            gelu: Gelu::new(),
        }
    }

    fn inputs(dtype: DType) -> Tensor<B, 2> {
        let x = &RECORDED.small_network.inputs_f32.x.values;
        common::tensor(x, [ROWS, INPUTS], dtype, &Default::default()).require_grad()
    }

    fn loss(&self, x: Tensor<B, 2>) -> Tensor<B, 1> {
        let logits = self.down.forward(self.gelu.forward(self.up.forward(x)));
        let device = logits.device();
        let targets = Tensor::<B, 1, Int>::from_ints([0, 1, 2, 0, 1, 2], &device);
        CrossEntropyLossConfig::new()
            .init(&device)
            .forward(logits, targets)
    }
}

/// Differentiates the network from parameters of a type.
fn differentiate(amp: &Autocast, dtype: DType) -> Gradients {
    amp.run(|| {
        let network = Network::new(dtype);
        let x = Network::inputs(dtype);
        let loss = network.loss(x.clone());
        let grads = loss.backward();

        let weight = |linear: &Linear<B>| {
            let grad = linear.weight.grad(&grads).expect("a gradient");
            assert!(matches!(grad.dtype(), DType::F32 | DType::F64));
            common::values(grad.transpose())
        };
        let bias = |linear: &Linear<B>| {
            let bias = linear.bias.as_ref().expect("the layers have biases");
            common::values(bias.grad(&grads).expect("a gradient"))
        };
        Gradients {
            tensors: NetworkTensors {
                x: common::values(x.grad(&grads).expect("a gradient")),
                w1: weight(&network.up),
                b1: bias(&network.up),
                w2: weight(&network.down),
                b2: bias(&network.down),
            },
            loss: common::values(loss)[0],
        }
    })
}

/// The distance of gradients from the exact ones, over all tensors.
fn distance(gradients: &NetworkTensors<Vec<f64>>, exact: &NetworkTensors<Vec<f64>>) -> f64 {
    let all = |tensors: &NetworkTensors<Vec<f64>>| {
        let NetworkTensors { x, w1, b1, w2, b2 } = tensors;
        [x, w1, b1, w2, b2].map(Vec::clone).concat()
    };
    let squares = all(gradients).into_iter().zip(all(exact));
    squares.map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
}

fn f16_scaled_by(scale: f32) -> AmpConfig {
    AmpConfig::f16().with_loss_scale(LossScaleConfig::fixed(scale))
}

/// Single tensors are nearer or further by how their roundings fall; all together are no further off
/// than a hundredth. In f16 see the next test too: there the gradients differ by PyTorch's last rounding.
#[rstest]
#[case::f32(AmpConfig::f32(), &RECORDED.small_network.fp32)]
#[case::bf16(AmpConfig::bf16(), &RECORDED.small_network.autocast_bf16)]
#[case::f16(f16_scaled_by(1.0), &RECORDED.small_network.autocast_f16_scale_1)]
#[case::f16_scaled(f16_scaled_by(65536.0), &RECORDED.small_network.autocast_f16_scale_65536)]
fn should_have_gradients_no_further_off_than_pytorch(
    #[case] config: AmpConfig,
    #[case] theirs: &NetworkRun,
) {
    let exact = differentiate(&Autocast::new(&AmpConfig::f32()).unwrap(), DType::F64);
    let mut ours = differentiate(&Autocast::new(&config).unwrap(), DType::F32).tensors;
    if config.precision() == Precision::F16 {
        ours = ours.map(|gradient| gradient.iter().map(in_f16).collect());
    }
    let ours = distance(&ours, &exact.tensors);
    let theirs = distance(&theirs.gradients(), &exact.tensors);
    assert!(ours > 0.0, "compared with itself");
    assert!(ours <= 1.01 * theirs, "{ours:e}, PyTorch's {theirs:e}");
}

/// PyTorch rounds each of them to f16 on its way out of the product; ours stay in f32.
#[test]
fn should_have_the_parameter_gradients_that_pytorch_rounds_to_f16() {
    let ours = differentiate(&Autocast::new(&f16_scaled_by(1.0)).unwrap(), DType::F32).tensors;
    let theirs = RECORDED.small_network.autocast_f16_scale_1.gradients();
    let pairs = [
        (ours.w1, theirs.w1),
        (ours.b1, theirs.b1),
        (ours.w2, theirs.w2),
        (ours.b2, theirs.b2),
    ];
    for (ours, theirs) in pairs {
        assert!(ours.iter().any(|value| *value != in_f16(value)));
        let rounded: Vec<f64> = ours.iter().map(in_f16).collect();
        assert_eq!(rounded, theirs);
    }
}

fn in_f16(value: &f64) -> f64 {
    half::f16::from_f32(*value as f32).to_f64()
}

#[rstest]
#[case::bf16(AmpConfig::bf16(), &RECORDED.small_network.autocast_bf16)]
#[case::f16(AmpConfig::f16(), &RECORDED.small_network.autocast_f16_scale_1024)]
fn should_have_the_loss_of_the_network_in_half(
    #[case] config: AmpConfig,
    #[case] theirs: &NetworkRun,
) {
    let ours = differentiate(&Autocast::new(&config).unwrap(), DType::F32);
    assert!((ours.loss - theirs.loss).abs() < 1e-3 * theirs.loss);
    assert!(theirs.scale >= 1.0);
}

#[test]
fn should_have_the_same_gradients_at_every_scale_that_does_not_overflow() {
    let gradients = |scale| {
        let amp = Autocast::new(&f16_scaled_by(scale)).unwrap();
        let gradients = differentiate(&amp, DType::F32).tensors;
        [
            gradients.x,
            gradients.w1,
            gradients.b1,
            gradients.w2,
            gradients.b2,
        ]
    };
    let unscaled = gradients(1.0);
    assert_eq!(gradients(1024.0), unscaled);
    assert_eq!(gradients(65536.0), unscaled);
}

#[test]
fn should_show_an_overflow_in_every_gradient_as_pytorch_does() {
    let theirs = &RECORDED
        .small_network
        .autocast_f16_scale_2_24
        .grads_unscaled;
    let amp = Autocast::new(&f16_scaled_by(16777216.0)).unwrap();
    let ours = differentiate(&amp, DType::F32).tensors;

    for (ours, theirs) in [
        (&ours.x, &theirs.x),
        (&ours.w1, &theirs.w1),
        (&ours.b1, &theirs.b1),
        (&ours.w2, &theirs.w2),
        (&ours.b2, &theirs.b2),
    ] {
        assert!(!theirs.values().iter().any(|value| value.is_finite()));
        assert!(!ours.iter().any(|value| value.is_finite()));
    }
}

#[test]
fn should_skip_the_step_of_a_loss_that_is_scaled_too_far() {
    Autocast::new(&f16_scaled_by(16777216.0)).unwrap().run(|| {
        let network = Network::new(DType::F32);
        let before = common::parameter_bits(&network);
        let mut optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
        let grads = network.loss(Network::inputs(DType::F32)).backward();
        let grads = GradientsParams::from_grads(grads, &network);
        let network = optim.step(0.1, network, grads);

        assert!(optim.outcome().is_some_and(StepOutcome::is_skipped));
        assert_eq!(common::parameter_bits(&network), before);
    });
}

const X: [f64; 6] = [1.0, 0.5, -2.0, 1.0, 0.5, -2.0];

#[test]
fn should_lose_no_more_of_a_small_gradient_than_pytorch() {
    assert_eq!(RECORDED.gradient_underflow.rows.len(), 90);
    for row in &RECORDED.gradient_underflow.rows {
        let ours = weight_gradient(row);
        for ((ours, theirs), x) in ours.iter().zip(&row.grad_w_unscaled.values).zip(X) {
            let exact = row.upstream_gradient * x;
            let error = |value: f64| {
                if value.is_finite() {
                    (value - exact).abs()
                } else {
                    f64::INFINITY
                }
            };
            assert!(
                error(*ours) <= error(*theirs),
                "{row:?}: {ours:e}, PyTorch's {theirs:e}, exact {exact:e}"
            );
        }
    }
}

#[test]
fn should_lose_small_gradients_in_f16_without_scaling_only() {
    let gradient = |mode: &str, scale| {
        weight_gradient(&Underflow {
            mode: mode.to_owned(),
            upstream_gradient: 1e-8,
            scale,
            grad_w_unscaled: Numbers { values: Vec::new() },
        })
    };
    let is_near = |gradient: Vec<f64>| {
        gradient
            .iter()
            .zip(X)
            .all(|(value, x)| (value - 1e-8 * x).abs() < 1e-10)
    };
    assert_eq!(gradient("autocast_f16", 1.0), [0.0; 6]);
    assert!(is_near(gradient("autocast_f16", 65536.0)));
    assert!(is_near(gradient("autocast_bf16", 1.0)));
}

/// `w`'s gradient of `sum(f32(linear(x, w)) * c)`, in PyTorch's layout.
fn weight_gradient(row: &Underflow) -> Vec<f64> {
    let config = match row.mode.as_str() {
        "fp32" => AmpConfig::f32(),
        "autocast_f16" => AmpConfig::f16(),
        "autocast_bf16" => AmpConfig::bf16(),
        mode => panic!("an unknown mode: {mode}"),
    };
    let config = config.with_loss_scale(LossScaleConfig::fixed(row.scale));
    let device = Default::default();
    Autocast::new(&config).unwrap().run(|| {
        let x = Tensor::<B, 2>::from_floats([[1.0, 0.5, -2.0]], &device);
        let w = Tensor::<B, 2>::ones([3, 2], &device).require_grad();
        let y = module::linear(x, w.clone(), None).cast(FloatDType::F32);
        let loss = y.mul_scalar(row.upstream_gradient).sum();
        let grad = w.grad(&loss.backward()).expect("a gradient");
        assert_eq!(grad.dtype(), DType::F32);
        common::values(grad.transpose())
    })
}
