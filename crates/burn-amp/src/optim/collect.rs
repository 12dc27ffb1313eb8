//! A module's gradients as lists, one for each device.

use burn::module::{AutodiffModule, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;

use crate::policy::DeviceKey;

/// The gradients of a device.
pub(super) struct OnDevice<B: Backend> {
    device: DeviceKey,
    /// Where each parameter is in the module, and its identifier.
    pub(super) params: Vec<(String, ParamId)>,
    pub(super) grads: Vec<FloatTensor<B>>,
}

/// Where gradients are found.
pub(super) enum Source<'a> {
    Shared(&'a [&'a GradientsParams]),
    Owned(&'a mut GradientsParams),
}

struct Collector<'a, B: Backend> {
    source: Source<'a>,
    path: Vec<String>,
    devices: Vec<OnDevice<B>>,
}

/// The gradients of a module's parameters, in the module's order.
pub(super) fn collect<A, M>(module: &M, source: Source<'_>) -> Vec<OnDevice<A::InnerBackend>>
where
    A: AutodiffBackend,
    M: AutodiffModule<A>,
{
    let mut collector = Collector {
        source,
        path: Vec::new(),
        devices: Vec::new(),
    };
    module.visit(&mut collector);
    collector.devices
}

impl<B: Backend> Collector<'_, B> {
    fn push<const D: usize>(&mut self, id: ParamId, grad: Tensor<B, D>) {
        let device = DeviceKey::of(&grad.device());
        let known = self.devices.iter().position(|known| known.device == device);
        let index = known.unwrap_or_else(|| {
            self.devices.push(OnDevice {
                device,
                params: Vec::new(),
                grads: Vec::new(),
            });
            self.devices.len() - 1
        });
        let gradients = &mut self.devices[index];
        gradients.params.push((self.path.join("."), id));
        gradients.grads.push(grad.into_primitive().tensor());
    }
}

impl<A: AutodiffBackend> ModuleVisitor<A> for Collector<'_, A::InnerBackend> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<A, D>>) {
        let found: Vec<Tensor<A::InnerBackend, D>> = match &mut self.source {
            Source::Shared(parts) => parts
                .iter()
                .filter_map(|grads| grads.get(param.id))
                .collect(),
            Source::Owned(grads) => grads.remove(param.id).into_iter().collect(),
        };
        for grad in found {
            self.push(param.id, grad);
        }
    }

    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }
}
