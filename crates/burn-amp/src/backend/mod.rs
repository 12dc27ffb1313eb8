//! The decorator backend: [`Amp`] delegates each op of Burn's backend traits after casting its
//! operands as the rules say. One file per op family, named as in `burn-backend`.

mod activation;
mod amp_backend;
mod bool_tensor;
mod composed;
#[cfg(feature = "kernels")]
mod cube;
mod delegate;
#[cfg(feature = "flex")]
mod flex;
mod float;
#[cfg(feature = "fusion")]
mod fusion;
mod gradients;
mod int_tensor;
mod module;
mod operands;
mod qtensor;
mod scalar;
mod transaction;

use std::marker::PhantomData;

use burn::tensor::backend::{Backend, BackendTypes, DTypeUsageSet, ExecutionError};
use burn::tensor::{DType, TensorData};

pub use amp_backend::{
    AmpBackend, Arithmetic, Attention, AttentionGrads, LayerNorm, LayerNormGrads, Moments,
};
pub(crate) use composed::{as_matrix, sum_of_rows, sum_to_shape};
pub(crate) use gradients::{gradient_ops, register_gradient_ops};
pub(crate) use operands::{product_operand, saturated, to, widen, wider};

/// A backend that runs ops in the precision that the rules give them.
///
/// Tensors are those of `B`, without a wrapper; what is configured with
/// [`AmpConfig::init`](crate::AmpConfig::init) or [`autocast`](crate::autocast) decides, op by op,
/// whether they are f32 or half. Where nothing is configured every op is passed through.
///
/// To train, use [`Autodiff<Amp<B>>`](crate::Autodiff).
#[derive(Clone, Copy, Debug, Default)]
pub struct Amp<B> {
    backend: PhantomData<B>,
}

impl<B: AmpBackend> BackendTypes for Amp<B> {
    type Device = B::Device;

    type FloatTensorPrimitive = B::FloatTensorPrimitive;
    type FloatElem = B::FloatElem;

    type IntTensorPrimitive = B::IntTensorPrimitive;
    type IntElem = B::IntElem;

    type BoolTensorPrimitive = B::BoolTensorPrimitive;
    type BoolElem = B::BoolElem;

    type QuantizedTensorPrimitive = B::QuantizedTensorPrimitive;
}

impl<B: AmpBackend> Backend for Amp<B> {
    fn ad_enabled(device: &Self::Device) -> bool {
        B::ad_enabled(device)
    }

    fn memory_persistent_allocations<
        Output: Send,
        Input: Send,
        Func: Fn(Input) -> Output + Send,
    >(
        device: &Self::Device,
        input: Input,
        func: Func,
    ) -> Output {
        B::memory_persistent_allocations(device, input, func)
    }

    fn memory_cleanup(device: &Self::Device) {
        B::memory_cleanup(device)
    }

    fn name(device: &Self::Device) -> String {
        format!("amp<{}>", B::name(device))
    }

    fn seed(device: &Self::Device, seed: u64) {
        B::seed(device, seed)
    }

    fn sync(device: &Self::Device) -> Result<(), ExecutionError> {
        B::sync(device)
    }

    fn staging<'a, Iter>(data: Iter, device: &Self::Device)
    where
        Iter: Iterator<Item = &'a mut TensorData>,
    {
        B::staging(data, device)
    }

    fn supports_dtype(device: &Self::Device, dtype: DType) -> bool {
        B::supports_dtype(device, dtype)
    }

    fn dtype_usage(device: &Self::Device, dtype: DType) -> DTypeUsageSet {
        B::dtype_usage(device, dtype)
    }

    fn device_count(type_id: u16) -> usize {
        B::device_count(type_id)
    }
}
