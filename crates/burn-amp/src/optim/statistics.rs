//! Running statistics, as a batch norm keeps them: what a forward pass leaves in them stays there although
//! its step is skipped. If that is not finite, it is taken back.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use burn::module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Int, Tensor, TensorPrimitive};

use super::StepOutcome;
use crate::backend::gradient_ops;
use crate::policy::DeviceKey;

/// The statistics that a module had after its optimizer's last step, by reference.
#[derive(Debug, Clone, Default)]
pub(super) struct Statistics {
    /// [`Values`] on a backend that the optimizer's type does not name.
    last: Option<Arc<dyn Any + Send + Sync>>,
    warned: bool,
}

type Values<B> = HashMap<ParamId, FloatTensor<B>>;

/// A float tensor without gradient: a running statistic, or a frozen parameter, which looks the same.
struct Statistic<B: Backend> {
    id: ParamId,
    path: String,
    value: FloatTensor<B>,
}

impl Statistics {
    /// Keeps the statistics of a step that was applied. After a skipped one it puts them back if some are no
    /// longer finite: at one read by the host, and another if there are any.
    pub(super) fn after<B, M>(&mut self, module: &M, outcome: &StepOutcome)
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        match outcome {
            StepOutcome::NothingToDo => {}
            StepOutcome::Applied => self.update::<B, M>(module, false),
            StepOutcome::Skipped { .. } => self.update::<B, M>(module, true),
        }
    }

    /// The same after a forward pass whose gradients were kept, or dropped.
    pub(super) fn update<B, M>(&mut self, module: &M, is_dropped: bool)
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        // A visit does not see the last update of a running state, only what was there before.
        let before = collect::<B, M>(module);
        if before.is_empty() {
            return;
        }
        // This merges the updates of all threads, in the state that the module shares with its clones.
        drop(module.valid());
        let mut now = collect::<B, M>(module);
        if is_dropped {
            self.put_back::<B, M>(module, before, &mut now);
        }
        self.last = Some(Arc::new(values_of(now)));
    }

    fn put_back<B, M>(
        &mut self,
        module: &M,
        before: Vec<Statistic<B::InnerBackend>>,
        now: &mut [Statistic<B::InnerBackend>],
    ) where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        let is_finite = are_finite::<B::InnerBackend>(now.iter().map(|new| &new.value));
        if is_finite.iter().all(|is_finite| *is_finite) {
            return;
        }

        // At a first step nothing is kept yet; what its last forward pass has replaced is at hand.
        let mut known: Vec<(ParamId, FloatTensor<B::InnerBackend>)> =
            before.into_iter().map(|old| (old.id, old.value)).collect();
        if let Some(last) = &self.last
            && let Some(last) = last.downcast_ref::<Values<B::InnerBackend>>()
        {
            known.extend(last.iter().map(|(id, value)| (*id, value.clone())));
        }
        let is_good = are_finite::<B::InnerBackend>(known.iter().map(|(_, value)| value));
        let known = known.into_iter().zip(is_good);
        // The later of two is the better, if both are finite.
        let good: Values<B::InnerBackend> = known
            .filter_map(|(entry, is_good)| is_good.then_some(entry))
            .collect();

        let mut is_poisoned = false;
        for (new, is_finite) in now.iter().zip(is_finite) {
            if is_finite {
                continue;
            }
            if good.contains_key(&new.id) {
                is_poisoned = true;
            } else if !self.warned {
                // Once only: it may be meant to be so, as a mask is.
                self.warned = true;
                log::warn!(
                    "{} is not finite after a skipped step, and no finite value of it is known",
                    new.path
                );
            }
        }
        if !is_poisoned {
            return;
        }
        // All of them: behind a ReLU that makes zeros of NaN, statistics are finite and no better.
        for new in now.iter_mut() {
            if let Some(value) = good.get(&new.id) {
                new.value = value.clone();
            }
        }
        let mut put_back = PutBack::<B::InnerBackend>(good);
        // Of a clone only the running states are the module's own, so no parameter is touched.
        drop(module.clone().map(&mut put_back));
    }
}

fn values_of<B: Backend>(statistics: Vec<Statistic<B>>) -> Values<B> {
    let values = statistics.into_iter();
    values.map(|each| (each.id, each.value)).collect()
}

/// Whether each tensor has finite values only: one read by the host for each device.
fn are_finite<'a, B: Backend>(tensors: impl IntoIterator<Item = &'a FloatTensor<B>>) -> Vec<bool> {
    let mut devices: HashMap<DeviceKey, Vec<(usize, FloatTensor<B>)>> = HashMap::new();
    let mut count = 0;
    for tensor in tensors {
        let device = DeviceKey::of(&B::float_device(tensor));
        let on_device = devices.entry(device).or_default();
        on_device.push((count, tensor.clone()));
        count += 1;
    }
    let check = gradient_ops::<B>().check;
    let mut are_finite = vec![true; count];
    for (indices, tensors) in devices.into_values().map(|all| all.into_iter().unzip()) {
        let indices: Vec<usize> = indices;
        let flags = Tensor::<B, 2, Int>::from_primitive(check(tensors));
        let flags: Vec<i64> = flags.into_data().iter().collect();
        for (index, flags) in indices.into_iter().zip(flags.chunks(2)) {
            are_finite[index] = flags == [0, 0];
        }
    }
    are_finite
}

fn collect<A, M>(module: &M) -> Vec<Statistic<A::InnerBackend>>
where
    A: AutodiffBackend,
    M: AutodiffModule<A>,
{
    let mut collector = Collector {
        path: Vec::new(),
        statistics: Vec::new(),
    };
    module.visit(&mut collector);
    collector.statistics
}

struct Collector<B: Backend> {
    path: Vec<String>,
    statistics: Vec<Statistic<B>>,
}

impl<A: AutodiffBackend> ModuleVisitor<A> for Collector<A::InnerBackend> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<A, D>>) {
        if param.is_require_grad() {
            return;
        }
        // Quantized weights are never touched.
        if let TensorPrimitive::Float(value) = param.val().inner().into_primitive() {
            self.statistics.push(Statistic {
                id: param.id,
                path: self.path.join("."),
                value,
            });
        }
    }

    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }
}

struct PutBack<B: Backend>(Values<B>);

impl<A: AutodiffBackend> ModuleMapper<A> for PutBack<A::InnerBackend> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<A, D>>) -> Param<Tensor<A, D>> {
        let Some(value) = self.0.get(&param.id) else {
            return param;
        };
        let value = Tensor::from_primitive(TensorPrimitive::Float(value.clone()));
        param.map(|old| Tensor::from_inner(value).to_device(&old.device()))
    }
}
