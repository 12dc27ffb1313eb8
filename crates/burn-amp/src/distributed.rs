//! Burn's distributed data parallel training.
//!
//! Burn reduces the gradient of a parameter in the middle of the backward pass, when autodiff has summed
//! it up: below us, in the type of the parameter, and still multiplied by the loss scale. So what is
//! needed here is that all workers have the same scale, from [`start`](DistributedBackend) on; that they
//! go on with the same one follows from reduced gradients that are the same everywhere.
//!
//! Burn forgets in a backward pass which parameters are reduced, and is told again when the optimizer makes
//! new ones. Where none does, after a skipped step or between accumulated passes, we tell it.
//!
//! In a half type, gradients are reduced by us, when the backward pass is over. Burn's server for the
//! inner backend is not started then, which makes autodiff's own reductions do nothing; one for our
//! backend is.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, PoisonError, RwLock};

use burn::tensor::backend::distributed::{
    CollectiveTensor, DistributedBackend, DistributedConfig, DistributedParamId, DistributedParams,
    ReduceOperation, TensorRef, close_distributed_sync_server, get_distributed_sync_client,
    start_distributed_sync_server,
};
use burn::tensor::backend::{AutodiffBackend, DeviceId};
use burn::tensor::ops::{Device, FloatTensor};

use crate::backend::{Amp, AmpBackend};
use crate::policy::{self, DeviceKey, Half, Unlike};

impl<B: AmpBackend + DistributedBackend> DistributedBackend for Amp<B> {
    /// Gives the loss scales of all devices the state of the first one's, and starts Burn's server.
    ///
    /// # Panics
    ///
    /// If a device is named twice, or is configured in another way than the first one.
    fn start_communication_server(devices: &[Device<Self>], config: DistributedConfig) {
        assert_alike(devices);
        // Of the devices, not of a scope: workers have threads of their own.
        let half = devices
            .first()
            .filter(|device| B::ad_enabled(device))
            .and_then(|device| policy::device_reduction(DeviceKey::of(device)).half());
        if let Some(half) = half {
            start_distributed_sync_server::<Self>(devices, config);
            let reduce: (Reduce<B>, Half) = (all_reduce::<B>, half);
            let mut reducers = REDUCERS.write().unwrap_or_else(PoisonError::into_inner);
            reducers.insert(TypeId::of::<B>(), Box::new(reduce));
        } else {
            B::start_communication_server(devices, config);
        }
    }

    fn close_communication_server(device: &Device<Self>) {
        let mut reducers = REDUCERS.write().unwrap_or_else(PoisonError::into_inner);
        let reduced_by_us = reducers.remove(&TypeId::of::<B>()).is_some();
        drop(reducers);
        marked().retain(|(backend, _), _| *backend != TypeId::of::<B>());
        if reduced_by_us {
            close_distributed_sync_server::<Self>();
        } else {
            B::close_communication_server(device);
        }
    }

    // What autodiff asks for, if it is around us: tensors and pointers to them are those of `B`.

    fn register_sync_parameters(device: &Device<Self>, params: Vec<DistributedParams>) {
        B::register_sync_parameters(device, params);
    }

    fn submit_sync_collective(device: &Device<Self>) {
        B::submit_sync_collective(device);
    }

    fn submit_gradient_sync(tensor: TensorRef<Self>, params: DistributedParams) {
        B::submit_gradient_sync(TensorRef(tensor.0), params);
    }

    #[allow(unsafe_code)]
    fn all_reduce(
        tensor: FloatTensor<Self>,
        op: ReduceOperation,
        devices: Vec<DeviceId>,
    ) -> CollectiveTensor<Self> {
        // SAFETY: the handle is not used before it is wrapped again; who unwraps it waits.
        let handle = unsafe { B::all_reduce(tensor, op, devices).assume_resolved() };
        CollectiveTensor::new(handle)
    }

    fn sync_collective(device: &Device<Self>) {
        B::sync_collective(device);
    }
}

fn assert_alike<D: burn::tensor::backend::DeviceOps>(devices: &[D]) {
    let keys: Vec<_> = devices.iter().map(DeviceKey::of).collect();
    if let Err((index, unlike)) = policy::align(&keys) {
        let (first, device) = (&devices[0], &devices[index]);
        match unlike {
            Unlike::Repeated => panic!("device {device:?} is named twice: ddp needs one a worker"),
            Unlike::Policy => panic!(
                "device {device:?} is configured in another way than {first:?}: use \
                 AmpConfig::init_devices"
            ),
            Unlike::LossScale => panic!(
                "the loss scale of device {device:?} has other settings than that of {first:?}: use \
                 AmpConfig::init_devices"
            ),
        }
    }
}

/// Reduces gradients over all workers, and waits for it.
type Reduce<B> = fn(&mut [(DistributedParamId, FloatTensor<B>)], &Device<B>);

type Reducers = HashMap<TypeId, Box<dyn Any + Send + Sync>>;

/// By backend, those whose gradients are reduced by us.
static REDUCERS: LazyLock<RwLock<Reducers>> = LazyLock::new(RwLock::default);

type Marked = HashMap<(TypeId, DeviceKey), Box<dyn Any + Send>>;

/// By backend and device, the parameters that are trained together with those of other workers.
static MARKED: LazyLock<Mutex<Marked>> = LazyLock::new(Mutex::default);

fn marked() -> std::sync::MutexGuard<'static, Marked> {
    MARKED.lock().unwrap_or_else(PoisonError::into_inner)
}

type Params<B> = HashMap<DistributedParamId, FloatTensor<B>>;

fn key_of<B: AutodiffBackend>(tensor: &FloatTensor<B>) -> (TypeId, DeviceKey) {
    let device = DeviceKey::of(&B::float_device(tensor));
    (TypeId::of::<B>(), device)
}

/// Remembers a parameter whose gradients are reduced.
pub(crate) fn mark<B: AutodiffBackend>(id: DistributedParamId, param: &FloatTensor<B>) {
    marked()
        .entry(key_of::<B>(param))
        .or_insert_with(|| Box::new(Params::<B>::new()))
        .downcast_mut::<Params<B>>()
        .expect("the key has the backend's type")
        .insert(id, param.clone());
}

fn params_on<B: AutodiffBackend>(device: &Device<B>) -> Params<B> {
    marked()
        .get(&(TypeId::of::<B>(), DeviceKey::of(device)))
        .and_then(|params| params.downcast_ref().cloned())
        .unwrap_or_default()
}

/// After a backward pass: tells Burn again which parameters are reduced, for the next.
pub(crate) fn remind<B: AutodiffBackend>(device: &Device<B>) {
    for (id, param) in params_on::<B>(device) {
        B::set_distributed_params(param, id);
    }
}

/// Takes the gradients of the parameters that are trained together out of a container, reduces them in
/// the half type that is configured, and returns them; none where Burn reduces them.
pub(crate) fn reduce<B>(
    grads: &mut B::Gradients,
    device: &Device<B>,
) -> HashMap<DistributedParamId, FloatTensor<B::InnerBackend>>
where
    B: AutodiffBackend,
    B::InnerBackend: AmpBackend,
{
    let reducers = REDUCERS.read().unwrap_or_else(PoisonError::into_inner);
    let reduce: Option<(Reduce<B>, Half)> = reducers
        .get(&TypeId::of::<B>())
        .and_then(|reduce| reduce.downcast_ref().copied());
    drop(reducers);
    let Some((reduce, half)) = reduce else {
        return HashMap::new();
    };
    let mut found: Vec<_> = params_on::<B>(device)
        .into_iter()
        .filter_map(|(id, param)| {
            let grad = B::grad_remove(&param, grads)?;
            let grad = B::InnerBackend::amp_cast(grad, half.dtype());
            Some((id, B::from_inner(grad)))
        })
        .collect();
    if !found.is_empty() {
        reduce(&mut found, device);
    }
    found
        .into_iter()
        .map(|(id, grad)| (id, B::inner(grad)))
        .collect()
}

fn all_reduce<B: AmpBackend + DistributedBackend>(
    grads: &mut [(DistributedParamId, FloatTensor<B>)],
    device: &Device<B>,
) {
    let Some(server) = get_distributed_sync_client::<Amp<B>>() else {
        return;
    };
    let params = |id: &DistributedParamId| DistributedParams { param_id: *id };
    server.register_sync_parameters(grads.iter().map(|(id, _)| params(id)).collect());
    for (id, grad) in grads {
        server.submit_gradient_sync(TensorRef(grad), params(id));
    }
    server.submit_sync_collective(device.clone());
}

/// What `ExecutionStrategy::ddp` asks of a backend, of the one that has collectives.
#[cfg(feature = "cuda")]
const _: fn() = || {
    fn trains<B: AutodiffBackend + DistributedBackend>() {}
    trains::<crate::Autodiff<Amp<burn::backend::Cuda>>>();
};
