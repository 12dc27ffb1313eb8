use burn::module::{AutodiffModule, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{FloatDType, Tensor};

use crate::policy::is_half;

/// The gradients in f32: Burn's order of the decorators leaves those of lowered parameters half.
pub(super) fn in_f32<B, M>(grads: GradientsParams, module: &M) -> GradientsParams
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    if !has_half::<B, M>(&[&grads], module) {
        return grads;
    }
    let mut widening = Widening {
        grads,
        wide: GradientsParams::new(),
    };
    module.visit(&mut widening);
    widening.wide
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

/// A half tensor in f32.
pub(crate) fn widened<B: Backend, const D: usize>(tensor: Tensor<B, D>) -> Tensor<B, D> {
    if is_half(tensor.dtype()) {
        return tensor.cast(FloatDType::F32);
    }
    tensor
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
struct Widening {
    grads: GradientsParams,
    wide: GradientsParams,
}

impl<B: AutodiffBackend> ModuleVisitor<B> for Widening {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
        let Some(grad) = self.grads.remove::<B::InnerBackend, D>(param.id) else {
            return;
        };
        self.wide
            .register::<B::InnerBackend, D>(param.id, widened(grad));
    }
}
