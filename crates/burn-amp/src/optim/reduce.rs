//! The gradients of several devices as one: what Burn's optimizers do parameter by parameter while they
//! step, here before the check, which so sees what is applied.

use burn::module::{AutodiffModule, ModuleVisitor, Param};
use burn::optim::{GradientsParams, MultiGradientsParams};
use burn::tensor::backend::{AutodiffBackend, Backend, DeviceId};
use burn::tensor::{DType, Tensor};

use super::devices::device_of;
use super::widen::widened;
use crate::policy::Reduction;

/// Sums the gradients of each parameter in f32, on the device where Burn's optimizers would; the other
/// devices hold none of it afterwards.
pub(super) fn reduce<B, M>(grads: &mut MultiGradientsParams, module: &M, reduction: Reduction)
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    if grads.grads.len() > 1 {
        let parts = &mut grads.grads;
        module.visit(&mut Reducing { parts, reduction });
    }
}

struct Reducing<'a> {
    parts: &'a mut Vec<(GradientsParams, DeviceId)>,
    reduction: Reduction,
}

impl<A: AutodiffBackend> ModuleVisitor<A> for Reducing<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<A, D>>) {
        let id = param.id;
        let mut grads: Vec<Option<Tensor<A::InnerBackend, D>>> = self
            .parts
            .iter_mut()
            .map(|(grads, _)| grads.remove(id))
            .collect();
        // As `MultiGradientsParams` chooses: the sum lands where the optimizer's state is.
        let start = id.val() as usize % grads.len();
        let Some(home) = (start..start + grads.len())
            .map(|index| index % grads.len())
            .find(|index| grads[*index].is_some())
        else {
            return;
        };
        let device = device_of::<A::InnerBackend>(self.parts[home].1);
        let own = grads[home]
            .take()
            .map(|own| widened(own.to_device(&device)));
        let sent = grads
            .into_iter()
            .flatten()
            .map(|grad| widened(self.to_send(grad).to_device(&device)));
        if let Some(sum) = own.into_iter().chain(sent).reduce(|sum, grad| sum + grad) {
            self.parts[home].0.register(id, sum);
        }
    }
}

impl Reducing<'_> {
    fn to_send<B: Backend, const D: usize>(&self, grad: Tensor<B, D>) -> Tensor<B, D> {
        match self.reduction.half() {
            Some(half) if grad.dtype() == DType::F32 => grad.cast(half.dtype()),
            _ => grad,
        }
    }
}
