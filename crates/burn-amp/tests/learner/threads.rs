//! Theme 9: threads, recomputation and scopes.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use burn::backend::Flex;
use burn::backend::autodiff::checkpoint::strategy::BalancedCheckpointing;
use burn::module::{AutodiffModule, Module};
use burn::nn::{Gelu, Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor};
use burn::train::{InferenceStep, RegressionOutput, TrainStep};
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::{Amp, AmpConfig, autocast, full_precision};

use crate::common::randomize;
use crate::support::{
    Batch, Configured, Epochs, FEATURES, Losses, Mlp, Ours, Plan, Product, Rows, Step, f16_from,
    folder, learns, output, sgd, steps,
};

fn regressions() -> Epochs {
    Epochs::all(
        (0..8)
            .map(|seed| Rows::regression(6, FEATURES, seed))
            .collect(),
    )
}

/// A scale that does not move, which runs side by side can share.
fn f16_fixed() -> AmpConfig {
    AmpConfig::f16().with_loss_scale(LossScaleConfig::fixed(1024.0))
}

/// The parameters after each step, and the losses.
fn train<B, M>(model: M) -> (Vec<Vec<Vec<u32>>>, Losses)
where
    B: AutodiffBackend,
    M: TrainStep<Input = Batch<B>, Output = RegressionOutput<B>> + AutodiffModule<B> + Display,
    M: 'static,
    M::InnerModule:
        InferenceStep<Input = Batch<B::InnerBackend>, Output = RegressionOutput<B::InnerBackend>>,
{
    let folder = folder();
    let (optim, log) = sgd::<B, M>();
    let valid = Epochs::all(vec![Rows::regression(6, FEATURES, 99)]);
    let plan = Plan::new(&folder, 2);
    let (_, losses) = plan.fit(model, optim, 0.01, regressions(), valid);
    let params = steps(&log).into_iter().map(|step| step.params);
    (params.collect(), losses)
}

#[test]
fn case_50_what_is_configured_for_a_device_holds_for_learners_on_every_thread() {
    let device = Configured::take();
    let single = train(Mlp::<Ours>::new(50));
    for config in [f16_fixed(), AmpConfig::bf16()] {
        device.init(&config);
        let here = train(Mlp::<Ours>::new(50));
        assert!(here != single);
        let done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            // A scope of one thread is nobody else's.
            let toggler = threads.spawn(|| {
                let one = Tensor::<Ours, 2>::ones([1, 1], &Default::default());
                let product = || one.clone().matmul(one.clone()).dtype();
                let mut rounds = 0;
                while rounds < 1000 || !done.load(Ordering::Relaxed) {
                    assert_eq!(full_precision(product), DType::F32);
                    assert_ne!(product(), DType::F32);
                    rounds += 1;
                }
            });
            let workers: Vec<_> = (0..4)
                .map(|_| threads.spawn(|| train(Mlp::<Ours>::new(50))))
                .collect();
            for worker in workers {
                assert!(worker.join().unwrap() == here);
            }
            done.store(true, Ordering::Relaxed);
            toggler.join().unwrap();
        });
    }
}

/// Activations that checkpointing computes again: GELU, a product, tanh, an f32 operand.
#[derive(Module, Debug)]
struct Deep<B: Backend> {
    up: Linear<B>,
    down: Linear<B>,
    activation: Gelu,
}

impl<B: Backend> Deep<B> {
    fn new(seed: u64) -> Self {
        let device = B::Device::default();
        let model = Self {
            up: LinearConfig::new(FEATURES, 16).init(&device),
            down: LinearConfig::new(16, 1).init(&device),
            activation: Gelu::new(),
        };
        randomize(model, seed)
    }

    fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let hidden = self.activation.forward(self.up.forward(batch.x.clone()));
        let hidden = hidden.clone() * hidden.mul_scalar(0.7).tanh();
        let scale = full_precision(|| batch.x.clone().mean_dim(1).exp());
        let y = self.down.forward(relu(hidden) * scale);
        let loss = (y.clone().exp() - batch.y.clone()).powi_scalar(2).mean();
        output(loss, y, batch)
    }
}
learns!(Deep);

#[test]
fn case_52_recomputation_runs_in_the_precision_of_the_forward_pass() {
    type Checkpointed = burn_amp::Autodiff<Amp<Flex>, BalancedCheckpointing>;

    let device = Configured::take();
    let single = train(Deep::<Ours>::new(52));
    for config in [f16_from(1024.0), AmpConfig::bf16()] {
        device.init(&config);
        let kept = train(Deep::<Ours>::new(52));
        device.init(&config);
        assert!(train(Deep::<Checkpointed>::new(52)) == kept);
        assert!(kept != single);
    }
}

/// How a model leaves the scope in which it computes in f32.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Leave {
    AtTheEnd,
    Early,
    ByAPanic,
    Nested,
}

/// 1 + 2⁻¹², which f16 rounds to one.
const FINE: f32 = 1.000_244_1;

/// A product in half, and before it one in f32.
#[derive(Module, Debug)]
struct Nested<B: Backend> {
    product: Product<B>,
    #[module(skip)]
    leave: Leave,
}

impl<B: Backend> Nested<B> {
    fn fine() -> Tensor<B, 2> {
        let device = B::Device::default();
        Tensor::full([1, 1], FINE, &device).matmul(Tensor::ones([1, 1], &device))
    }

    fn early() -> Tensor<B, 2> {
        let _scope = burn_amp::enter_full_precision();
        let fine = Self::fine();
        if fine.dtype() == DType::F32 {
            return fine;
        }
        fine.add_scalar(1.0)
    }

    fn in_f32(&self) -> Tensor<B, 2> {
        match self.leave {
            Leave::AtTheEnd => full_precision(Self::fine),
            Leave::Early => Self::early(),
            Leave::ByAPanic => {
                let mut fine = None;
                let left = catch_unwind(AssertUnwindSafe(|| {
                    full_precision(|| {
                        fine = Some(Self::fine());
                        std::panic::resume_unwind(Box::new("leaves the scope"))
                    })
                }));
                assert!(left.is_err());
                fine.unwrap()
            }
            Leave::Nested => autocast(&AmpConfig::bf16(), || {
                assert_eq!(Self::fine().dtype(), DType::BF16);
                full_precision(Self::fine)
            })
            .unwrap(),
        }
    }

    fn run(&self, batch: Batch<B>) -> RegressionOutput<B> {
        let fine = self.in_f32();
        assert_eq!(fine.dtype(), DType::F32);
        let rounded = Self::fine();
        assert_eq!(rounded.dtype(), DType::F16);
        let y = self.product.run(batch.clone());
        assert_eq!(y.output.dtype(), DType::F16);
        // The gradient of the weight is fine minus rounded, which is 2⁻¹².
        let loss = y.loss * (fine - rounded).reshape([1]);
        output(loss, y.output, batch)
    }
}
learns!(Nested);

#[test]
fn case_53_a_nested_region_keeps_f32_and_the_outer_state_returns() {
    let device = Configured::take();
    for leave in [
        Leave::AtTheEnd,
        Leave::Early,
        Leave::ByAPanic,
        Leave::Nested,
    ] {
        device.init(&f16_from(1024.0));
        let folder = folder();
        let (optim, log) = sgd::<Ours, Nested<Ours>>();
        let model = Nested {
            product: Product::new(0.0),
            leave,
        };
        let rows =
            [1.0, 1.0, f32::INFINITY, 1.0].map(|weight| Rows::dictated(&[1.0]).weighted(weight));
        let train = Epochs::all(rows.into());
        Plan::new(&folder, 1).fit(model, optim, 1.0, train, Epochs::none());
        let steps = steps(&log);
        let values: Vec<f32> = steps.iter().flat_map(Step::values).collect();
        let step = -2f32.powi(-12);
        assert_eq!(
            values,
            [step, 2.0 * step, 2.0 * step, 3.0 * step],
            "{leave:?}"
        );
        let scales: Vec<f32> = steps.iter().map(Step::scale).collect();
        assert_eq!(scales, [1024.0, 1024.0, 512.0, 512.0]);
    }
}
