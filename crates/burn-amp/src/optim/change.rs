//! The same change to all gradients of a module.

use burn::module::{AutodiffModule, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};

use super::widen::widened;

/// What is done to a gradient, in f32.
pub(super) enum Change<B: Backend> {
    Multiply(Tensor<B, 1>),
    Clamp(f32),
    Divide(usize),
}

/// Changes the gradient of each parameter of a module.
pub(super) fn change<B, M>(
    grads: &mut GradientsParams,
    module: &M,
    change: &Change<B::InnerBackend>,
) where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    let mut visitor = Changing { grads, change };
    module.visit(&mut visitor);
}

struct Changing<'a, B: Backend> {
    grads: &'a mut GradientsParams,
    change: &'a Change<B>,
}

impl<A: AutodiffBackend> ModuleVisitor<A> for Changing<'_, A::InnerBackend> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<A, D>>) {
        let Some(grad) = self.grads.remove::<A::InnerBackend, D>(param.id) else {
            return;
        };
        let grad = widened(grad);
        let grad = match self.change {
            Change::Multiply(factor) => {
                let factor = factor.clone().to_device(&grad.device()).reshape([1; D]);
                grad * factor
            }
            Change::Clamp(max) => grad.clamp(-max, *max),
            Change::Divide(count) => grad.div_scalar(*count as f64),
        };
        self.grads.register(param.id, grad);
    }
}
