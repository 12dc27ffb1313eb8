//! The devices that a step concerns, and their loss scales.

use burn::module::{AutodiffModule, ModuleVisitor, Param};
use burn::prelude::DeviceOps;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend, DeviceId};
use burn::tensor::ops::Device;

use crate::loss_scale::{OptimizerId, ScaleUpdate, SharedScaler};
use crate::policy::{self, DeviceKey};

/// The devices of the parameters that are trained. Not those of running statistics: replicas of a module
/// share them, on the device of whichever was there last.
pub(super) fn trained_on<B, M>(module: &M) -> Vec<Device<B>>
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    struct Search<B: Backend>(Vec<Device<B>>);

    impl<B: AutodiffBackend> ModuleVisitor<B> for Search<B> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            let device = param.device();
            if param.is_require_grad() && !self.0.contains(&device) {
                self.0.push(device);
            }
        }
    }

    let mut search = Search::<B>(Vec::new());
    module.visit(&mut search);
    if search.0.is_empty() {
        module.devices()
    } else {
        search.0
    }
}

/// Devices and those that were configured together with them, each once. Of a replica that is trained
/// with others, only its own: theirs report the same.
pub(super) fn devices_of<B, M>(module: &M, devices: &[Device<B>]) -> Vec<DeviceKey>
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    let each_once = |keys: Vec<DeviceKey>| {
        let mut found = Vec::new();
        for key in keys {
            if !found.contains(&key) {
                found.push(key);
            }
        }
        found
    };
    let own = each_once(devices.iter().map(DeviceKey::of).collect());
    let groups = each_once(own.iter().copied().flat_map(policy::group_of).collect());
    if groups.len() > own.len() && !is_replica::<B, M>(module) {
        groups
    } else {
        own
    }
}

/// The scalers of devices, each once.
pub(super) fn scalers_of(devices: &[DeviceKey]) -> Vec<SharedScaler> {
    let mut scalers: Vec<SharedScaler> = Vec::new();
    for scaler in devices.iter().copied().filter_map(policy::scaler) {
        if !scalers.iter().any(|known| known.is_same(&scaler)) {
            scalers.push(scaler);
        }
    }
    scalers
}

/// Reports a verdict to every scaler, which were given the same ones and stay in step, and returns what the
/// first made of it. `last` is what came back the time before: that a scale is stuck is logged once.
pub(super) fn report(
    scalers: &[SharedScaler],
    id: OptimizerId,
    found_inf: bool,
    last: Option<ScaleUpdate>,
) -> Option<ScaleUpdate> {
    let mut first = None;
    for scaler in scalers {
        let update = scaler.report(id, found_inf);
        first.get_or_insert(update);
    }
    if let Some(update) = first
        && update.stuck
        && !last.is_some_and(|last| last.stuck)
    {
        log::warn!("{update}");
    }
    first
}

pub(super) fn device_of<B: Backend>(id: DeviceId) -> Device<B> {
    burn::tensor::Device::<B>::from_id(id)
}

/// Whether the module is one of several that burn trains on reduced gradients.
#[cfg(feature = "ddp")]
pub(super) fn is_replica<B, M>(module: &M) -> bool
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    struct Search(bool);

    impl<B: AutodiffBackend> ModuleVisitor<B> for Search {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<B, D>>) {
            self.0 = self.0 || param.val().is_distributed();
        }
    }

    let mut search = Search(false);
    module.visit(&mut search);
    search.0
}

#[cfg(not(feature = "ddp"))]
pub(super) fn is_replica<B, M>(_module: &M) -> bool
where
    B: AutodiffBackend,
    M: AutodiffModule<B>,
{
    false
}
