//! Looks for gradients that are not finite: flags for each parameter, computed where the gradients are,
//! and one read for all flags of a device.

use burn::module::{AutodiffModule, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::IntTensor;
use burn::tensor::{Int, Tensor, TensorPrimitive};

use super::collect::{Source, collect};
use super::{NonFinite, NonFiniteGradient};
use crate::backend::gradient_ops;

/// Flags on their devices, not read yet.
#[derive(Debug, Clone)]
pub(super) struct Check<B: Backend> {
    devices: Vec<DeviceFlags<B>>,
}

#[derive(Debug, Clone)]
struct DeviceFlags<B: Backend> {
    params: Vec<(String, ParamId)>,
    /// `[params, 2]`: 1 if a gradient has infinities, and 1 if it has NaN.
    flags: Tensor<B, 2, Int>,
}

impl<B: Backend> Check<B> {
    /// Flags the gradients that `grads` hold for the parameters of `module`.
    pub(super) fn of<A, M>(module: &M, grads: &[&GradientsParams]) -> Self
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: AutodiffModule<A>,
    {
        let check = gradient_ops::<B>().check;
        let devices = collect(module, Source::Shared(grads)).into_iter();
        Self {
            devices: devices
                .map(|gradients| DeviceFlags::new(gradients.params, check(gradients.grads)))
                .collect(),
        }
    }

    /// Takes the gradients of `module` out of `scaled`, brings them to f32, multiplies them with
    /// `inv_scale`, and flags them.
    pub(super) fn of_unscaled<A, M>(
        module: &M,
        mut scaled: GradientsParams,
        inv_scale: f32,
    ) -> (GradientsParams, Self)
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: AutodiffModule<A>,
    {
        let unscale_and_check = gradient_ops::<B>().unscale_and_check;
        let mut unscaled = GradientsParams::new();
        let mut devices = Vec::new();
        for gradients in collect(module, Source::Owned(&mut scaled)) {
            let (grads, flags) = unscale_and_check(gradients.grads, inv_scale);
            for ((_, id), grad) in gradients.params.iter().zip(grads) {
                // The container knows nothing of ranks.
                let grad = Tensor::<B, 1>::from_primitive(TensorPrimitive::Float(grad));
                unscaled.register(*id, grad);
            }
            devices.push(DeviceFlags::new(gradients.params, flags));
        }
        (unscaled, Self { devices })
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
}

impl<B: Backend> DeviceFlags<B> {
    fn new(params: Vec<(String, ParamId)>, flags: IntTensor<B>) -> Self {
        Self {
            params,
            flags: Tensor::from_primitive(flags),
        }
    }

    fn read(self) -> impl Iterator<Item = NonFiniteGradient> {
        let flags: Vec<i64> = self.flags.into_data().iter().collect();
        self.params
            .into_iter()
            .enumerate()
            .filter_map(move |(index, (path, id))| {
                let kind = match [flags[2 * index], flags[2 * index + 1]] {
                    [0, 0] => return None,
                    [_, 0] => NonFinite::Infinity,
                    _ => NonFinite::NaN,
                };
                Some(NonFiniteGradient { path, id, kind })
            })
    }
}
