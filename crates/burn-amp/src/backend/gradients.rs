//! What is done with all gradients of a step at once.
//!
//! An optimizer is generic over any autodiff backend of Burn, and a program's training function with
//! it: neither names a backend that can do more. So a backend that decorates one of ours says so when
//! it differentiates, and the optimizer asks by the backend's type.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

use burn::tensor::backend::Backend;
use burn::tensor::ops::{FloatTensor, IntTensor};

use super::{Amp, AmpBackend, composed};

type Unscale<B> = fn(Vec<FloatTensor<B>>, f32) -> (Vec<FloatTensor<B>>, IntTensor<B>);
type Check<B> = fn(Vec<FloatTensor<B>>) -> IntTensor<B>;

/// The ways of a backend; see [`AmpBackend::amp_unscale_and_check`] and [`AmpBackend::amp_check`].
pub(crate) struct GradientOps<B: Backend> {
    pub(crate) unscale_and_check: Unscale<B>,
    pub(crate) check: Check<B>,
}

static OPS: RwLock<Option<HashMap<TypeId, Box<dyn Any + Send + Sync>>>> = RwLock::new(None);

/// Makes the ops of `B` those of `Amp<B>`.
pub(crate) fn register_gradient_ops<B: AmpBackend>() {
    let key = TypeId::of::<Amp<B>>();
    if OPS
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .as_ref()
        .is_some_and(|ops| ops.contains_key(&key))
    {
        return;
    }
    let ops = GradientOps::<Amp<B>> {
        unscale_and_check: B::amp_unscale_and_check,
        check: B::amp_check,
    };
    OPS.write()
        .unwrap_or_else(PoisonError::into_inner)
        .get_or_insert_default()
        .insert(key, Box::new(ops));
}

/// The ops of a backend: its own, or composed of Burn's.
pub(crate) fn gradient_ops<B: Backend>() -> GradientOps<B> {
    let ops = OPS.read().unwrap_or_else(PoisonError::into_inner);
    let own = ops
        .as_ref()
        .and_then(|ops| ops.get(&TypeId::of::<B>()))
        .and_then(|ops| ops.downcast_ref::<GradientOps<B>>());
    match own {
        Some(own) => GradientOps { ..*own },
        None => GradientOps {
            unscale_and_check: composed::unscale_and_check::<B>,
            check: composed::check::<B>,
        },
    }
}
