use burn::module::{AutodiffModule, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::backend::AutodiffBackend;
use burn::tensor::{FloatDType, Tensor};

use crate::full_precision;
use crate::policy::is_half;

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

/// The gradients in f32: Burn's order of the decorators leaves those of lowered parameters half.
pub(super) fn in_f32<B, M>(grads: GradientsParams, module: &M) -> GradientsParams
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    if has_half::<B, M>(&[&grads], module) {
        unscale::<B, M>(grads, 1.0, module)
    } else {
        grads
    }
}

/// Whether the gradient of any parameter is half.
pub(super) fn has_half<B, M>(grads: &[&GradientsParams], module: &M) -> bool
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    let mut search = HalfSearch {
        grads,
        found: false,
    };
    module.visit(&mut search);
    search.found
}

struct HalfSearch<'a> {
    grads: &'a [&'a GradientsParams],
    found: bool,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for HalfSearch<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        self.found |= self.grads.iter().any(|grads| {
            grads
                .get::<B::InnerBackend, D>(param.id)
                .is_some_and(|grad| is_half(grad.dtype()))
        });
    }
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
        let grad = if is_half(grad.dtype()) {
            grad.cast(FloatDType::F32)
        } else {
            grad
        };
        let grad = if self.inv_scale == 1.0 {
            grad
        } else {
            grad.mul_scalar(self.inv_scale)
        };
        self.unscaled.register::<B::InnerBackend, D>(param.id, grad);
    }
}
