//! Looks for gradients that are not finite: one flag for each parameter, computed where the gradient
//! is, and one read for all flags of a device.

use burn::module::{AutodiffModule, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Int, Tensor};

use super::{NonFinite, NonFiniteGradient};
use crate::policy::DeviceKey;

/// Flags on their devices, not read yet.
#[derive(Debug, Clone)]
pub(super) struct Check<B: Backend> {
    devices: Vec<DeviceFlags<B>>,
}

#[derive(Debug, Clone)]
struct DeviceFlags<B: Backend> {
    device: DeviceKey,
    params: Vec<(String, ParamId)>,
    /// For each parameter 0 if its gradient is finite, 1 if it has infinities, 2 if it has NaN.
    flags: Vec<Tensor<B, 1, Int>>,
}

impl<B: Backend> Check<B> {
    /// Flags the gradients that `grads` holds for the parameters of `module`.
    pub(super) fn of<A, M>(module: &M, grads: &[&GradientsParams]) -> Self
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: AutodiffModule<A>,
    {
        let mut visitor = CheckVisitor {
            grads,
            path: Vec::new(),
            check: Check {
                devices: Vec::new(),
            },
        };
        module.visit(&mut visitor);
        visitor.check
    }

    /// Whether no parameter has a gradient.
    pub(super) fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Reads the flags, once for each device, and returns the gradients that are not finite.
    pub(super) fn read(self) -> Vec<NonFiniteGradient> {
        self.devices
            .into_iter()
            .flat_map(DeviceFlags::read)
            .collect()
    }

    fn push<const D: usize>(&mut self, path: String, id: ParamId, grad: Tensor<B, D>) {
        let device = DeviceKey::of(&grad.device());
        let index = self
            .devices
            .iter()
            .position(|flags| flags.device == device)
            .unwrap_or_else(|| {
                self.devices.push(DeviceFlags {
                    device,
                    params: Vec::new(),
                    flags: Vec::new(),
                });
                self.devices.len() - 1
            });
        let flags = &mut self.devices[index];
        if grad.shape().num_elements() > 0 {
            flags.params.push((path, id));
            flags.flags.push(flag(grad));
        }
    }
}

fn flag<B: Backend, const D: usize>(grad: Tensor<B, D>) -> Tensor<B, 1, Int> {
    let nan = grad.clone().is_nan();
    let non_finite = grad.is_inf().bool_or(nan.clone());
    non_finite.any().int() + nan.any().int()
}

impl<B: Backend> DeviceFlags<B> {
    fn read(self) -> impl Iterator<Item = NonFiniteGradient> {
        let flags: Vec<i64> = if self.flags.is_empty() {
            Vec::new()
        } else {
            Tensor::cat(self.flags, 0).into_data().iter().collect()
        };
        self.params
            .into_iter()
            .zip(flags)
            .filter_map(|((path, id), flag)| {
                let kind = match flag {
                    0 => return None,
                    1 => NonFinite::Infinity,
                    _ => NonFinite::NaN,
                };
                Some(NonFiniteGradient { path, id, kind })
            })
    }
}

struct CheckVisitor<'a, B: Backend> {
    grads: &'a [&'a GradientsParams],
    path: Vec<String>,
    check: Check<B>,
}

impl<A: AutodiffBackend> ModuleVisitor<A> for CheckVisitor<'_, A::InnerBackend> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<A, D>>) {
        for grads in self.grads {
            if let Some(grad) = grads.get::<A::InnerBackend, D>(param.id) {
                self.check.push(self.path.join("."), param.id, grad);
            }
        }
    }

    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }
}
