#[cfg(feature = "ddp")]
use std::collections::HashMap;

use burn::tensor::backend::AutodiffBackend;
#[cfg(feature = "ddp")]
use burn::tensor::backend::distributed::DistributedParamId;
#[cfg(feature = "ddp")]
use burn::tensor::ops::Device;
use burn::tensor::ops::{FloatTensor, FloatTensorOps};

use crate::backend::AmpBackend;
use crate::loss_scale::reciprocal;

/// The gradients of one backward pass, and the scale its loss was multiplied with.
///
/// What is taken out of it is divided by that scale, so gradients of passes with different scales
/// can be accumulated, clipped and logged as they are.
pub struct AmpGradients<B: AutodiffBackend> {
    scaled: B::Gradients,
    scale: f32,
    /// Those that did not stay in the container; in front of it.
    #[cfg(feature = "ddp")]
    outside: HashMap<DistributedParamId, FloatTensor<B::InnerBackend>>,
}

impl<B> AmpGradients<B>
where
    B: AutodiffBackend,
    B::InnerBackend: AmpBackend,
{
    pub(super) fn new(scaled: B::Gradients, scale: f32) -> Self {
        Self {
            scaled,
            scale,
            #[cfg(feature = "ddp")]
            outside: HashMap::new(),
        }
    }

    /// After a backward pass: the gradients that are reduced over several workers, and not by Burn.
    #[cfg(feature = "ddp")]
    pub(super) fn reduced(mut self, device: &Device<B>) -> Self {
        self.outside = crate::distributed::reduce::<B>(&mut self.scaled, device);
        self
    }

    /// The scale that the loss was multiplied with; 1 without loss scaling.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    pub(super) fn scaled(&self, tensor: &FloatTensor<B>) -> Option<FloatTensor<B::InnerBackend>> {
        #[cfg(feature = "ddp")]
        if let Some(params) = B::distributed_params(tensor)
            && let Some(grad) = self.outside.get(&params.param_id)
        {
            return Some(grad.clone());
        }
        B::grad(tensor, &self.scaled)
    }

    pub(super) fn take_scaled(
        &mut self,
        tensor: &FloatTensor<B>,
    ) -> Option<FloatTensor<B::InnerBackend>> {
        #[cfg(feature = "ddp")]
        if let Some(params) = B::distributed_params(tensor)
            && let Some(grad) = self.outside.remove(&params.param_id)
        {
            return Some(grad);
        }
        B::grad_remove(tensor, &mut self.scaled)
    }

    pub(super) fn replace_scaled(
        &mut self,
        tensor: &FloatTensor<B>,
        grad: FloatTensor<B::InnerBackend>,
    ) {
        // Burn would take it for one more contribution, and wait for the other workers'.
        #[cfg(feature = "ddp")]
        if let Some(params) = B::distributed_params(tensor) {
            B::grad_remove(tensor, &mut self.scaled);
            self.outside.insert(params.param_id, grad);
            return;
        }
        B::grad_replace(tensor, &mut self.scaled, grad);
    }

    pub(super) fn unscale(
        &self,
        grad: FloatTensor<B::InnerBackend>,
    ) -> FloatTensor<B::InnerBackend> {
        B::InnerBackend::amp_unscale(grad, reciprocal(self.scale))
    }

    /// Brings a true gradient to the scale of the others.
    pub(super) fn scale_up(
        &self,
        grad: FloatTensor<B::InnerBackend>,
    ) -> FloatTensor<B::InnerBackend> {
        if self.scale == 1.0 {
            return grad;
        }
        B::InnerBackend::float_mul_scalar(grad, self.scale.into())
    }
}

impl<B: AutodiffBackend> std::fmt::Debug for AmpGradients<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AmpGradients")
            .field("scale", &self.scale)
            .finish_non_exhaustive()
    }
}
