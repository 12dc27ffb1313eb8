use burn::tensor::backend::AutodiffBackend;
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
}

impl<B> AmpGradients<B>
where
    B: AutodiffBackend,
    B::InnerBackend: AmpBackend,
{
    pub(super) fn new(scaled: B::Gradients, scale: f32) -> Self {
        Self { scaled, scale }
    }

    /// The scale that the loss was multiplied with; 1 without loss scaling.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    pub(super) fn scaled(&self) -> &B::Gradients {
        &self.scaled
    }

    pub(super) fn scaled_mut(&mut self) -> &mut B::Gradients {
        &mut self.scaled
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
