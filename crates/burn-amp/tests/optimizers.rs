//! Training through the wrapper, in both orders of the decorators.

mod common;

use burn::backend::Flex;
use burn::module::Module;
use burn::nn::{Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, Optimizer};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor};
use burn_amp::{Amp, AmpConfig, AmpOptimizerConfig, Autocast, Autodiff};

#[derive(Module, Debug)]
struct Mlp<B: Backend> {
    up: Linear<B>,
    norm: LayerNorm<B>,
    down: Linear<B>,
    activation: Gelu,
}

impl<B: Backend> Mlp<B> {
    fn new(device: &B::Device) -> Self {
        Self {
            up: LinearConfig::new(8, 32).init(device),
            norm: LayerNormConfig::new(32).init(device),
            down: LinearConfig::new(32, 1).init(device),
            activation: Gelu::new(),
        }
    }

    fn forward(&self, x: Tensor<B, 2>) -> Tensor<B, 2> {
        let hidden = self.activation.forward(self.up.forward(x));
        self.down.forward(self.norm.forward(hidden))
    }
}

fn losses<B: AutodiffBackend>(device: &B::Device, steps: usize) -> Vec<f32> {
    let mut model = common::randomize(Mlp::<B>::new(device), 7);
    let mut optim = AmpOptimizerConfig::new().init(AdamWConfig::new().init());
    let x = common::normal::<B, 2>([64, 8], 8, device);
    let y = x.clone().sum_dim(1).tanh();

    (0..steps)
        .map(|_| {
            let error = model.forward(x.clone()) - y.clone();
            let loss = error.powi_scalar(2).mean();
            assert_eq!(loss.dtype(), DType::F32);
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            model = optim.step(1e-2, model.clone(), grads);
            loss.into_data().to_vec::<f32>().unwrap()[0]
        })
        .collect()
}

#[test]
fn should_train_in_every_precision_and_both_orders() {
    let device = Default::default();
    let plain = losses::<burn::backend::Autodiff<Flex>>(&device, 40);
    assert!(plain[39] < 0.1 * plain[0], "{plain:?}");

    for config in [AmpConfig::f32(), AmpConfig::bf16(), AmpConfig::f16()] {
        let amp = Autocast::new(&config).unwrap();
        let ours = amp.run(|| losses::<Autodiff<Amp<Flex>>>(&device, 40));
        let burns = amp.run(|| losses::<burn::backend::Autodiff<Amp<Flex>>>(&device, 40));
        for (order, losses) in [("ours", ours), ("Burn's", burns)] {
            let (last, expected) = (losses[39], plain[39]);
            assert!(
                (last - expected).abs() < 0.01 * plain[0],
                "{} in {order} order: {last}, f32 {expected}",
                config.precision(),
            );
        }
    }
}
