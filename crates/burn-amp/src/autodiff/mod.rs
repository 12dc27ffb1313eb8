//! Automatic differentiation: the recommended order of the decorators, gradients that carry their
//! loss scale, and graph nodes of our own.

mod activation;
mod amp_backend;
mod arithmetic;
mod attention;
mod cast;
mod conv;
mod gradients;
mod keep;
mod product;
mod rows;
mod unrounded;

use burn::backend::autodiff::checkpoint::strategy::{CheckpointStrategy, NoCheckpointing};
#[cfg(feature = "ddp")]
use burn::tensor::backend::distributed::{DistributedParamId, DistributedParams};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::{BoolTensor, FloatTensor, IntTensor, QuantizedTensor};
use burn::tensor::{FloatDType, TensorMetadata};

pub use gradients::AmpGradients;

use crate::backend::{Amp, AmpBackend, register_gradient_ops};
#[cfg(feature = "ddp")]
use crate::distributed;
use crate::policy::{self, DeviceKey, is_half};

/// Burn's autodiff backend, and its tensors: the graph that our nodes are part of.
type Autodiffed<B, C> = burn::backend::Autodiff<B, C>;
type AutodiffTensor<B, C> = FloatTensor<Autodiffed<B, C>>;

/// Names the backend that trains on `Self`; see [`Autodiff`].
pub trait TrainingOrder<C> {
    /// The training backend.
    type Backend;
}

impl<B, C> TrainingOrder<C> for Amp<B>
where
    B: Backend,
    C: CheckpointStrategy,
{
    type Backend = Amp<burn::backend::Autodiff<B, C>>;
}

/// The backend that trains on `B`, to write where a program had Burn's `Autodiff<B>`.
///
/// `Autodiff<Amp<B>>` is `Amp<burn::backend::Autodiff<B>>`: mixed precision is outermost, so that it
/// sees whole ops before autodiff takes them apart, its casts are part of the graph, and backward
/// runs in the precision that forward chose. Losses are scaled in `backward()`, and the gradients
/// that come out are true f32 gradients.
///
/// Burn's own `Autodiff<Amp<B>>` works too; in f16 it needs a [`GradScaler`](crate::GradScaler).
///
/// # Example
///
/// ```
/// use burn::backend::Flex;
/// use burn_amp::{Amp, Autodiff};
///
/// type MyBackend = Amp<Flex>;
/// type MyAutodiffBackend = Autodiff<MyBackend>;
/// # fn trains<B: burn::tensor::backend::AutodiffBackend>() {}
/// # trains::<MyAutodiffBackend>();
/// ```
pub type Autodiff<B, C = NoCheckpointing> = <B as TrainingOrder<C>>::Backend;

impl<B> AutodiffBackend for Amp<B>
where
    B: AmpBackend + AutodiffBackend,
    B::InnerBackend: AmpBackend,
{
    type InnerBackend = Amp<B::InnerBackend>;
    type Gradients = AmpGradients<B>;

    /// Multiplies the loss by the scale in force, in f32, before it is differentiated.
    fn backward(loss: FloatTensor<Self>) -> Self::Gradients {
        unrounded::forget();
        register_gradient_ops::<B::InnerBackend>();
        let scale = policy::begin_backward(DeviceKey::of(&B::float_device(&loss)));
        let loss = if scale == 1.0 {
            loss
        } else {
            let loss = if is_half(loss.dtype()) {
                B::amp_cast(loss, FloatDType::F32)
            } else {
                loss
            };
            B::float_mul_scalar(loss, scale.into())
        };
        #[cfg(feature = "ddp")]
        let device = B::float_device(&loss);
        let grads = AmpGradients::new(B::backward(loss), scale);
        #[cfg(feature = "ddp")]
        let grads = {
            distributed::remind::<B>(&device);
            grads.reduced(&device)
        };
        grads
    }

    fn grad(
        tensor: &FloatTensor<Self>,
        grads: &Self::Gradients,
    ) -> Option<FloatTensor<Self::InnerBackend>> {
        grads.scaled(tensor).map(|grad| grads.unscale(grad))
    }

    fn grad_remove(
        tensor: &FloatTensor<Self>,
        grads: &mut Self::Gradients,
    ) -> Option<FloatTensor<Self::InnerBackend>> {
        grads.take_scaled(tensor).map(|grad| grads.unscale(grad))
    }

    fn grad_replace(
        tensor: &FloatTensor<Self>,
        grads: &mut Self::Gradients,
        grad: FloatTensor<Self::InnerBackend>,
    ) {
        let scaled = grads.scale_up(grad);
        grads.replace_scaled(tensor, scaled);
    }

    fn inner(tensor: FloatTensor<Self>) -> FloatTensor<Self::InnerBackend> {
        B::inner(tensor)
    }

    fn int_inner(tensor: IntTensor<Self>) -> IntTensor<Self::InnerBackend> {
        B::int_inner(tensor)
    }

    fn bool_inner(tensor: BoolTensor<Self>) -> BoolTensor<Self::InnerBackend> {
        B::bool_inner(tensor)
    }

    fn q_inner(tensor: QuantizedTensor<Self>) -> QuantizedTensor<Self::InnerBackend> {
        B::q_inner(tensor)
    }

    fn from_inner(tensor: FloatTensor<Self::InnerBackend>) -> FloatTensor<Self> {
        B::from_inner(tensor)
    }

    fn int_from_inner(tensor: IntTensor<Self::InnerBackend>) -> IntTensor<Self> {
        B::int_from_inner(tensor)
    }

    fn bool_from_inner(tensor: BoolTensor<Self::InnerBackend>) -> BoolTensor<Self> {
        B::bool_from_inner(tensor)
    }

    fn q_from_inner(tensor: QuantizedTensor<Self::InnerBackend>) -> QuantizedTensor<Self> {
        B::q_from_inner(tensor)
    }

    #[cfg(feature = "ddp")]
    fn set_distributed_params(
        tensor: FloatTensor<Self>,
        param_id: DistributedParamId,
    ) -> FloatTensor<Self> {
        let tensor = B::set_distributed_params(tensor, param_id);
        distributed::mark::<B>(param_id, &tensor);
        tensor
    }

    #[cfg(feature = "ddp")]
    fn distributed_params(tensor: &FloatTensor<Self>) -> Option<DistributedParams> {
        B::distributed_params(tensor)
    }

    #[cfg(feature = "ddp")]
    fn is_distributed(tensor: &FloatTensor<Self>) -> bool {
        B::is_distributed(tensor)
    }
}
