//! Clipping over all parameters at once, in f32.

use burn::module::AutodiffModule;
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Shape, Tensor, TensorMetadata, TensorPrimitive};
use serde::{Deserialize, Serialize};

use super::change::{Change, change};
use super::collect::{Source, collect};
use super::widen::widened;
use crate::full_precision;

/// How gradients are clipped before a step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GradClipping {
    /// All gradients are scaled down by one factor, if the norm over all of them is larger.
    GlobalNorm(f32),
    /// Each value is brought into the range from minus this to this.
    Value(f32),
}

impl GradClipping {
    /// # Panics
    ///
    /// If the bound is not positive and finite.
    pub(super) fn assert_valid(self) {
        let (Self::GlobalNorm(bound) | Self::Value(bound)) = self;
        assert!(
            bound.is_finite() && bound > 0.0,
            "the bound of {self:?} has to be positive and finite"
        );
    }
}

/// Scales all gradients of a module by one factor so that their norm is at most `max_norm`, and returns
/// the norm that they had, on the device: as PyTorch's `clip_grad_norm_`, with its factor
/// `max_norm / (norm + 1e-6)`.
///
/// The norm is computed in f32 and does not overflow before it is itself beyond f32. Burn's
/// `GradientClippingConfig::Norm` clips each parameter by itself instead. A gradient that is not
/// finite makes the norm so; check before, as [`AmpOptimizer`](crate::AmpOptimizer) does, which clips
/// by itself if it is told to: [`AmpOptimizerConfig::with_grad_clipping`](crate::AmpOptimizerConfig::with_grad_clipping).
///
/// # Shapes
///
/// - returns: `[1]`; 0 without any gradient
///
/// # Panics
///
/// If `max_norm` is not positive and finite.
pub fn clip_grad_norm<B, M>(
    grads: &mut GradientsParams,
    module: &M,
    max_norm: f32,
) -> Tensor<B::InnerBackend, 1>
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    let clipping = GradClipping::GlobalNorm(max_norm);
    clipping.assert_valid();
    full_precision(|| clip::<B, M>(&mut [grads], module, Some(clipping), true))
        .expect("the norm was asked for")
}

/// Brings each value of a module's gradients into `[-max, max]`.
///
/// # Panics
///
/// If `max` is not positive and finite.
pub fn clip_grad_value<B, M>(grads: &mut GradientsParams, module: &M, max: f32)
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    let clipping = GradClipping::Value(max);
    clipping.assert_valid();
    full_precision(|| clip::<B, M>(&mut [grads], module, Some(clipping), false));
}

/// The norm over all gradients of a module, in f32, on the device.
///
/// # Shapes
///
/// - returns: `[1]`; 0 without any gradient
pub fn grad_norm<B, M>(grads: &GradientsParams, module: &M) -> Tensor<B::InnerBackend, 1>
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    full_precision(|| self::norm::<B, M>(&[grads], module).total())
}

/// A norm as a product: of the largest magnitude, or 1 if that is smaller, and what is left.
pub(super) struct Norm<B: Backend> {
    scale: Tensor<B, 1>,
    rest: Tensor<B, 1>,
}

fn norm<B, M>(parts: &[&GradientsParams], module: &M) -> Norm<B::InnerBackend>
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    let home = module.devices().into_iter().next().unwrap_or_default();
    let grads: Vec<Tensor<B::InnerBackend, 1>> = collect::<B, M>(module, Source::Shared(parts))
        .into_iter()
        .flat_map(|gradients| gradients.grads)
        .map(flat)
        .filter(|grad| grad.dims()[0] > 0)
        .collect();
    if grads.is_empty() {
        return Norm {
            scale: Tensor::ones([1], &home),
            rest: Tensor::zeros([1], &home),
        };
    }
    let at_home = |parts: Vec<Tensor<B::InnerBackend, 1>>| {
        let parts = parts
            .into_iter()
            .map(|part| part.to_device(&home))
            .collect();
        Tensor::cat(parts, 0)
    };
    let largest = grads.iter().map(|grad| grad.clone().abs().max()).collect();
    let scale = at_home(largest).max().clamp(1.0, f32::MAX);
    let squares = grads.into_iter().map(|grad| {
        let scale = scale.clone().to_device(&grad.device());
        (grad / scale).powi_scalar(2).sum()
    });
    let rest = at_home(squares.collect()).sum().sqrt();
    Norm { scale, rest }
}

impl<B: Backend> Norm<B> {
    pub(super) fn total(self) -> Tensor<B, 1> {
        self.scale * self.rest
    }

    /// `min(1, max_norm / (norm + 1e-6))`.
    pub(super) fn factor(&self, max_norm: f32) -> Tensor<B, 1> {
        let bound = self.scale.clone().recip().mul_scalar(max_norm);
        let slack = self.scale.clone().recip().mul_scalar(1e-6);
        (bound / (self.rest.clone() + slack)).clamp_max(1.0)
    }
}

fn flat<B: Backend>(grad: FloatTensor<B>) -> Tensor<B, 1> {
    let len = grad.shape().num_elements();
    let flat = B::float_reshape(grad, Shape::new([len]));
    let flat = Tensor::from_primitive(TensorPrimitive::Float(flat));
    widened(flat)
}

/// Clips before a step; the norm over all parts, if it was computed.
pub(super) fn clip<B, M>(
    parts: &mut [&mut GradientsParams],
    module: &M,
    clipping: Option<GradClipping>,
    wants_norm: bool,
) -> Option<Tensor<B::InnerBackend, 1>>
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    let norm = (wants_norm || matches!(clipping, Some(GradClipping::GlobalNorm(_)))).then(|| {
        let parts: Vec<_> = parts.iter().map(|part| &**part).collect();
        self::norm::<B, M>(&parts, module)
    });
    let clip = match (clipping, &norm) {
        (Some(GradClipping::GlobalNorm(max)), Some(norm)) => {
            Some(Change::Multiply(norm.factor(max)))
        }
        (Some(GradClipping::Value(max)), _) => Some(Change::Clamp(max)),
        _ => None,
    };
    if let Some(clip) = clip {
        for part in parts {
            change::<B, M>(part, module, &clip);
        }
    }
    norm.map(Norm::total)
}
