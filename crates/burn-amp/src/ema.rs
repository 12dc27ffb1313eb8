//! An exponential moving average of a module's parameters, in f32.

use std::collections::{BTreeMap, HashSet};

use burn::config::Config;
use burn::module::{AutodiffModule, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::FloatTensor;
use burn::tensor::{Shape, Tensor, TensorData, TensorMetadata, TensorPrimitive, Transaction};
use serde::{Deserialize, Serialize};

use crate::StepOutcome;
use crate::optim::widened;
use crate::policy::full_precision;

/// Configures an [`Ema`].
///
/// # Example
///
/// ```
/// use burn_amp::EmaConfig;
///
/// let config = EmaConfig::new(0.999).with_warmup(true);
/// assert_eq!(config.decay_after(0), 0.1);
/// assert_eq!(config.decay_after(1_000_000), 0.999);
/// ```
#[derive(Config, Debug, PartialEq)]
pub struct EmaConfig {
    /// How much of the average an update keeps: at least 0 and less than 1.
    pub decay: f64,
    /// Whether the decay starts low, so that early parameters do not linger: after `n` updates it is at
    /// most `(1 + n) / (10 + n)`. Default: false.
    #[config(default = false)]
    pub warmup: bool,
}

impl EmaConfig {
    /// Starts an average at the parameters of a module, on whose devices it stays.
    ///
    /// # Errors
    ///
    /// If the decay is not at least 0 and less than 1, with its value.
    pub fn init<B, M>(&self, module: &M) -> Result<Ema<B::InnerBackend>, EmaError>
    where
        B: AutodiffBackend,
        M: AutodiffModule<B>,
    {
        if !(0.0..1.0).contains(&self.decay) {
            return Err(EmaError::Decay(self.decay));
        }
        let mut ema = Ema {
            config: self.clone(),
            averages: BTreeMap::new(),
            updates: 0,
        };
        ema.take_in::<B, M>(module);
        Ok(ema)
    }

    /// The decay of an update that `updates` others came before.
    pub fn decay_after(&self, updates: u64) -> f64 {
        if !self.warmup {
            return self.decay;
        }
        let updates = updates as f64;
        self.decay.min((1.0 + updates) / (10.0 + updates))
    }
}

/// An exponential moving average of the parameters of a module, to evaluate or to publish instead of the
/// parameters themselves.
///
/// An update makes each average `decay * average + (1 - decay) * parameter`. The averages are f32, also of
/// parameters that are f16 or bf16, and f64 only of f64 parameters: in half precision an update of a
/// thousandth would round to nothing. They live on the backend without autodiff, so no graph is recorded.
///
/// What requires a gradient is averaged. Frozen parameters and running statistics, as a batch norm keeps
/// them, are not: they come from the module as they are. With the next update a parameter that was frozen
/// leaves the average, and one that was unfrozen joins it with the value that it has then.
///
/// # Example
///
/// ```
/// use burn::backend::Flex;
/// use burn::nn::{Linear, LinearConfig};
/// use burn::optim::{GradientsParams, Optimizer, SgdConfig};
/// use burn::tensor::Tensor;
/// use burn_amp::{Amp, AmpOptimizerConfig, Autodiff, EmaConfig};
///
/// type B = Autodiff<Amp<Flex>>;
/// # fn main() -> Result<(), burn_amp::EmaError> {
/// let device = Default::default();
/// let mut model: Linear<B> = LinearConfig::new(2, 1).init(&device);
/// let mut optim = AmpOptimizerConfig::new().init(SgdConfig::new().init());
/// let mut ema = EmaConfig::new(0.999).init(&model)?;
///
/// for _step in 0..3 {
///     let loss = model.forward(Tensor::<B, 2>::ones([1, 2], &device)).sum();
///     let grads = GradientsParams::from_grads(loss.backward(), &model);
///     model = optim.step(0.1, model, grads);
///     ema.update_after(&model, optim.outcome()); // not after a skipped step
/// }
/// let averaged: Linear<Amp<Flex>> = ema.valid(&model);
/// assert_eq!(ema.updates(), 3);
/// # let _ = averaged;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Ema<B: Backend> {
    config: EmaConfig,
    averages: BTreeMap<ParamId, Average<B>>,
    updates: u64,
}

#[derive(Debug, Clone)]
struct Average<B: Backend> {
    /// Where the parameter is in the module.
    path: String,
    value: FloatTensor<B>,
}

impl<B: Backend> Ema<B> {
    /// Takes the parameters of a module into the average.
    ///
    /// # Panics
    ///
    /// If the module lacks a parameter that is averaged, or has it in another shape; the message names it.
    pub fn update<A, M>(&mut self, module: &M)
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: AutodiffModule<A>,
    {
        self.take_in::<A, M>(module);
        self.updates += 1;
    }

    fn take_in<A, M>(&mut self, module: &M)
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: AutodiffModule<A>,
    {
        let mut update = Update {
            share: 1.0 - self.decay(),
            averages: &mut self.averages,
            path: Vec::new(),
            seen: HashSet::new(),
        };
        full_precision(|| module.visit(&mut update));
        let seen = update.seen;
        self.assert_all_seen(&seen);
    }

    fn assert_all_seen(&self, seen: &HashSet<ParamId>) {
        if let Some((id, missing)) = self.averages.iter().find(|(id, _)| !seen.contains(id)) {
            let path = &missing.path;
            panic!("the module lacks parameter `{path}` ({id}), which is averaged");
        }
    }

    /// Does an [`update`](Ema::update) if the last step of the optimizer was applied. If it was skipped or
    /// had nothing to do, or there was none yet, the average stays bitwise what it was.
    ///
    /// # Arguments
    ///
    /// * `module` - The module that the step has returned.
    /// * `outcome` - [`AmpOptimizer::outcome`](crate::AmpOptimizer::outcome), or what
    ///   [`GradScaler::step`](crate::GradScaler::step) has returned.
    ///
    /// # Panics
    ///
    /// As [`update`](Ema::update) does.
    pub fn update_after<'a, A, M>(
        &mut self,
        module: &M,
        outcome: impl Into<Option<&'a StepOutcome>>,
    ) where
        A: AutodiffBackend<InnerBackend = B>,
        M: AutodiffModule<A>,
    {
        if outcome.into().is_some_and(StepOutcome::is_applied) {
            self.update::<A, M>(module);
        }
    }

    /// A clone of a module with the averages for parameters, in the parameters' types. As between any
    /// clones, running statistics are shared with the original.
    ///
    /// # Panics
    ///
    /// As [`update`](Ema::update) does.
    pub fn apply<A, M>(&self, module: &M) -> M
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: AutodiffModule<A>,
    {
        let mut replace = Replace {
            averages: &self.averages,
            seen: HashSet::new(),
        };
        let module = module.clone().map(&mut replace);
        self.assert_all_seen(&replace.seen);
        module
    }

    /// The averaged module without autodiff, for evaluation: [`apply`](Ema::apply) and Burn's
    /// [`valid`](AutodiffModule::valid). The original goes on training.
    ///
    /// # Panics
    ///
    /// As [`update`](Ema::update) does.
    pub fn valid<A, M>(&self, module: &M) -> M::InnerModule
    where
        A: AutodiffBackend<InnerBackend = B>,
        M: AutodiffModule<A>,
    {
        self.apply::<A, M>(module).valid()
    }

    /// The number of updates so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// The decay of the next update.
    pub fn decay(&self) -> f64 {
        self.config.decay_after(self.updates)
    }

    /// What is to be saved: the averages and the number of updates.
    pub fn to_record(&self) -> EmaRecord<B> {
        EmaRecord {
            averages: self.averages.clone(),
            updates: self.updates,
        }
    }

    /// Goes on from a record; the configuration stays. Parameters are known by their identifiers, so the
    /// record of the module itself has to be loaded before [`EmaConfig::init`].
    ///
    /// # Errors
    ///
    /// If the record is that of another module, with the parameter that is missing, unknown or of another
    /// shape.
    pub fn load_record(mut self, mut record: EmaRecord<B>) -> Result<Self, EmaError> {
        for (id, average) in &mut self.averages {
            let path = || average.path.clone();
            let Some(recorded) = record.averages.remove(id) else {
                return Err(EmaError::Missing {
                    path: path(),
                    id: *id,
                });
            };
            if recorded.value.shape() != average.value.shape() {
                return Err(EmaError::Shape {
                    path: path(),
                    recorded: recorded.value.shape(),
                    expected: average.value.shape(),
                });
            }
            let device = B::float_device(&average.value);
            average.value = B::float_to_device(recorded.value, &device);
        }
        if let Some((id, unknown)) = record.averages.pop_first() {
            return Err(EmaError::Unknown {
                path: unknown.path,
                id,
            });
        }
        self.updates = record.updates;
        Ok(self)
    }
}

/// Why an [`Ema`] cannot be made, or cannot go on from a record.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EmaError {
    /// The decay is out of range.
    #[error("decay is {0:?}, expected at least 0 and less than 1")]
    Decay(f64),
    /// The record lacks a parameter of the module.
    #[error(
        "the record has no average of parameter `{path}` ({id}); if it is that of this module, load \
         the module's own record before `EmaConfig::init`"
    )]
    Missing {
        /// Where the parameter is in the module.
        path: String,
        /// The parameter's identifier.
        id: ParamId,
    },
    /// The record has a parameter that the module lacks, or does not train.
    #[error(
        "the record has an average of parameter `{path}` ({id}), which is not trained in the module"
    )]
    Unknown {
        /// Where the parameter was in the module that was recorded.
        path: String,
        /// The parameter's identifier.
        id: ParamId,
    },
    /// The record has another shape for a parameter.
    #[error(
        "the recorded average of parameter `{path}` has shape {recorded:?}, expected {expected:?}"
    )]
    Shape {
        /// Where the parameter is in the module.
        path: String,
        /// The shape in the record.
        recorded: Shape,
        /// The shape in the module.
        expected: Shape,
    },
}

/// What an [`Ema`] saves. It is f32 with every recorder, also with one that stores modules in half
/// precision.
#[derive(Debug, Clone)]
pub struct EmaRecord<B: Backend> {
    averages: BTreeMap<ParamId, Average<B>>,
    updates: u64,
}

/// The serialized form of an [`EmaRecord`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum EmaRecordItem {
    /// The first version.
    V1 {
        /// The number of updates.
        updates: u64,
        /// The averages.
        averages: Vec<EmaAverageItem>,
    },
}

/// The serialized form of the average of a parameter.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EmaAverageItem {
    /// The parameter's identifier.
    pub id: String,
    /// Where the parameter is in the module.
    pub path: String,
    /// The average.
    pub value: TensorData,
}

impl<B: Backend> Record<B> for EmaRecord<B> {
    /// The same for all settings: none of them narrows it.
    type Item<S: PrecisionSettings> = EmaRecordItem;

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        let mut read = Transaction::default();
        let mut names = Vec::new();
        for (id, average) in self.averages {
            read = read.register(of_any_rank::<B>(average.value));
            names.push((id.serialize(), average.path));
        }
        // Some backends do not take an empty one.
        let values = if names.is_empty() {
            Vec::new()
        } else {
            read.execute()
        };
        let averages = names.into_iter().zip(values);
        EmaRecordItem::V1 {
            updates: self.updates,
            averages: averages
                .map(|((id, path), value)| EmaAverageItem { id, path, value })
                .collect(),
        }
    }

    fn from_item<S: PrecisionSettings>(item: Self::Item<S>, device: &B::Device) -> Self {
        let EmaRecordItem::V1 { updates, averages } = item;
        let averages = averages.into_iter().map(|item| {
            let average = Average {
                path: item.path,
                value: B::float_from_data(item.value, device),
            };
            (ParamId::deserialize(&item.id), average)
        });
        Self {
            averages: averages.collect(),
            updates,
        }
    }
}

/// A reader of many tensors asks for no ranks.
fn of_any_rank<B: Backend>(value: FloatTensor<B>) -> Tensor<B, 1> {
    Tensor::from_primitive(TensorPrimitive::Float(value))
}

impl<B: Backend> Average<B> {
    /// The path, and the average on the device of its parameter.
    fn into_tensor<const D: usize>(self, param: &Tensor<B, D>) -> (String, Tensor<B, D>) {
        let (path, shape, expected) = (self.path, param.shape(), self.value.shape());
        assert!(
            shape == expected,
            "parameter `{path}` has shape {shape:?}, expected {expected:?} as its average has"
        );
        let value = Tensor::from_primitive(TensorPrimitive::Float(self.value));
        (path, value.to_device(&param.device()))
    }
}

/// A visit that moves averages towards a module's parameters.
struct Update<'a, B: Backend> {
    averages: &'a mut BTreeMap<ParamId, Average<B>>,
    /// The share of the parameter: one less the decay.
    share: f64,
    path: Vec<String>,
    seen: HashSet<ParamId>,
}

impl<A: AutodiffBackend> ModuleVisitor<A> for Update<'_, A::InnerBackend> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<A, D>>) {
        // A parameter that two layers share is met twice.
        if !self.seen.insert(param.id) {
            return;
        }
        if !param.is_require_grad() {
            self.averages.remove(&param.id);
            return;
        }
        let value = widened(param.val().inner());
        let average = match self.averages.remove(&param.id) {
            None => Average {
                path: self.path.join("."),
                value: value.into_primitive().tensor(),
            },
            Some(old) => {
                let (path, old) = old.into_tensor(&value);
                // With two factors, each rounded, the average of a constant would be another number.
                let change = (value - old.clone()) * self.share;
                Average {
                    path,
                    value: (old + change).into_primitive().tensor(),
                }
            }
        };
        self.averages.insert(param.id, average);
    }

    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }
}

/// Puts averages in the place of parameters.
struct Replace<'a, B: Backend> {
    averages: &'a BTreeMap<ParamId, Average<B>>,
    seen: HashSet<ParamId>,
}

impl<A: AutodiffBackend> ModuleMapper<A> for Replace<'_, A::InnerBackend> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<A, D>>) -> Param<Tensor<A, D>> {
        let Some(average) = self.averages.get(&param.id) else {
            return param;
        };
        self.seen.insert(param.id);
        param.map(|param| {
            let (_, average) = average.clone().into_tensor(&param.clone().inner());
            let average = average.cast(param.dtype());
            Tensor::from_inner(average).set_require_grad(param.is_require_grad())
        })
    }
}
