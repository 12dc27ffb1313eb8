use burn::module::{AutodiffModule, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{DType, FloatDType, Tensor};

use crate::full_precision;

/// Brings the gradients of a module's parameters to f32 and multiplies them with `inv_scale`.
pub(super) fn unscale<B, M>(scaled: GradientsParams, inv_scale: f32, module: &M) -> GradientsParams
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    let mut unscaling = Unscaling {
        scaled,
        inv_scale,
        unscaled: GradientsParams::new(),
    };
    full_precision(|| module.visit(&mut unscaling));
    unscaling.unscaled
}

/// Moves a module's gradients from one container to another.
struct Unscaling {
    scaled: GradientsParams,
    inv_scale: f32,
    unscaled: GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Unscaling {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Some(grad) = self.scaled.remove::<B::InnerBackend, D>(param.id) else {
            return;
        };
        let grad = match grad.dtype() {
            DType::F16 | DType::BF16 => grad.cast(FloatDType::F32),
            _ => grad,
        };
        let grad = if self.inv_scale == 1.0 {
            grad
        } else {
            grad.mul_scalar(self.inv_scale)
        };
        self.unscaled.register::<B::InnerBackend, D>(param.id, grad);
    }
}
