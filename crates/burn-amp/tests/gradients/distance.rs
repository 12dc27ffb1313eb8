//! How far gradients are from exact ones.

use burn::backend::{Autodiff as PlainAutodiff, Flex};
use burn::module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{DType, Tensor};
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::{Amp, AmpConfig, Autocast, Autodiff};

use crate::common;

pub type Ours = Autodiff<Amp<Flex>>;
pub type Plain = PlainAutodiff<Flex>;

/// The casts that a program writes by hand: none for plain Burn and for ours.
#[derive(Debug, Clone, Copy)]
pub struct ByHand(pub Option<DType>);

impl ByHand {
    /// An operand of a product.
    pub fn low<B: Backend, const D: usize>(self, tensor: Tensor<B, D>) -> Tensor<B, D> {
        match self.0 {
            Some(half) => tensor.cast(half),
            None => tensor,
        }
    }

    /// An operand of a norm, a softmax or a loss.
    pub fn full<B: Backend, const D: usize>(self, tensor: Tensor<B, D>) -> Tensor<B, D> {
        match self.0 {
            Some(_) => tensor.cast(DType::F32),
            None => tensor,
        }
    }
}

/// A network that is made of random numbers, and differentiated.
pub trait Network<B: AutodiffBackend>: AutodiffModule<B> {
    fn new(seed: u64) -> Self;

    /// `by_hand` casts activations; parameters come in f32, or in f64 for the exact gradients.
    fn loss(&self, seed: u64, dtype: DType, by_hand: ByHand) -> Tensor<B, 1>;
}

fn gradients<B: AutodiffBackend, N: Network<B>>(
    seed: u64,
    dtype: DType,
    by_hand: ByHand,
) -> Vec<f64> {
    struct ToType(DType);

    impl<B: Backend> ModuleMapper<B> for ToType {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<B, D>>) -> Param<Tensor<B, D>> {
            let dtype = self.0;
            param.map(|tensor| tensor.set_require_grad(false).cast(dtype).require_grad())
        }
    }

    struct Collect<'a> {
        gradients: &'a GradientsParams,
        values: Vec<f64>,
    }

    impl<B: AutodiffBackend> ModuleVisitor<B> for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            if let Some(gradient) = self.gradients.get::<B::InnerBackend, D>(param.id) {
                self.values.extend(common::values(gradient));
            }
        }
    }

    let network = N::new(seed).map(&mut ToType(dtype));
    let loss = network.loss(seed, dtype, by_hand);
    let gradients = GradientsParams::from_grads(loss.backward(), &network);
    let mut collect = Collect {
        gradients: &gradients,
        values: Vec::new(),
    };
    network.visit(&mut collect);
    assert!(!collect.values.is_empty());
    collect.values
}

/// The relative distance of gradients from the exact ones.
fn distance(gradients: &[f64], exact: &[f64]) -> f64 {
    assert_eq!(gradients.len(), exact.len());
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let difference = squares(&mut gradients.iter().zip(exact).map(|(a, b)| a - b));
    (difference / squares(&mut exact.iter().copied())).sqrt()
}

/// Compares means over many networks: of a few, chance decides.
///
/// The loss is not scaled: the networks' gradients are within the range of f16.
pub fn assert_no_further_off_than_by_hand<O, P>(times: f64, bounds: [(DType, f64); 2])
where
    O: Network<Ours>,
    P: Network<Plain>,
{
    const NETWORKS: u64 = 40;

    for (half, bound) in bounds {
        let config = match half {
            DType::F16 => AmpConfig::f16().with_loss_scale(LossScaleConfig::none()),
            _ => AmpConfig::bf16(),
        };
        let [mut ours, mut by_hand] = [0.0; 2];
        for seed in 0..NETWORKS {
            let exact = gradients::<Plain, P>(seed, DType::F64, ByHand(None));
            let lowered = gradients::<Plain, P>(seed, DType::F32, ByHand(Some(half)));
            by_hand += distance(&lowered, &exact);
            let amp = Autocast::new(&config).unwrap();
            let lowered = amp.run(|| gradients::<Ours, O>(seed, DType::F32, ByHand(None)));
            ours += distance(&lowered, &exact);
        }
        let [ours, by_hand] = [ours, by_hand].map(|sum| sum / NETWORKS as f64);
        assert!(
            ours <= times * by_hand,
            "{half:?}: {ours}, by hand {by_hand}"
        );
        assert!(ours < bound, "{half:?}: {ours}");
    }
}
