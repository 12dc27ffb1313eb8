use std::any::{TypeId, type_name};
use std::sync::Once;

use burn::record::{FullPrecisionSettings, PrecisionSettings, Record};
use burn::tensor::backend::Backend;
use serde::{Deserialize, Serialize};

use super::StepCounters;
use crate::loss_scale::LossScalerRecord;
use crate::policy::DeviceKey;

/// What an [`AmpOptimizer`](crate::AmpOptimizer) saves: the inner optimizer's record, the loss
/// scaler's and the counters.
///
/// All of it is stored in full precision whatever the recorder's settings: `CompactRecorder` narrows the
/// weights of a module to f16, and would narrow moments too, of which the second are soon below what f16
/// holds.
#[derive(Debug, Clone)]
pub struct AmpOptimizerRecord<R> {
    /// The record of the inner optimizer.
    pub optim: R,
    /// The state of the loss scaler; `None` where losses are not scaled.
    pub scaler: Option<LossScalerRecord>,
    /// The optimizer's own counters.
    pub counters: StepCounters,
    /// The device whose scaler it is.
    pub(super) device: Option<DeviceKey>,
    /// Whether that is the default device only because nobody said another.
    pub(super) is_default_device: bool,
}

impl<R> From<R> for AmpOptimizerRecord<R> {
    /// Takes over the record of a plain optimizer. The loss scale stays what it is.
    ///
    /// Burn's `Learner` reads the optimizer's file of a checkpoint as the record of its own optimizer. To
    /// go on from a plain one, load its record, convert it, and record it in place of the file.
    fn from(optim: R) -> Self {
        Self {
            optim,
            scaler: None,
            counters: StepCounters::default(),
            device: None,
            is_default_device: false,
        }
    }
}

/// The serialized form of an [`AmpOptimizerRecord`].
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound = "I: Serialize + serde::de::DeserializeOwned")]
pub enum AmpOptimizerRecordItem<I> {
    /// The first version.
    V1 {
        /// The item of the inner optimizer.
        optim: I,
        /// The state of the loss scaler.
        scaler: Option<LossScalerRecord>,
        /// The optimizer's own counters.
        counters: StepCounters,
    },
}

impl<B: Backend, R: Record<B>> Record<B> for AmpOptimizerRecord<R> {
    type Item<S: PrecisionSettings> = AmpOptimizerRecordItem<R::Item<FullPrecisionSettings>>;

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        tell_if_widened::<S>();
        AmpOptimizerRecordItem::V1 {
            optim: self.optim.into_item(),
            scaler: self.scaler,
            counters: self.counters,
        }
    }

    fn from_item<S: PrecisionSettings>(item: Self::Item<S>, device: &B::Device) -> Self {
        let AmpOptimizerRecordItem::V1 {
            optim,
            scaler,
            counters,
        } = item;
        Self {
            optim: R::from_item(optim, device),
            scaler,
            counters,
            device: Some(DeviceKey::of(device)),
            is_default_device: *device == B::Device::default(),
        }
    }
}

fn tell_if_widened<S: PrecisionSettings>() {
    static TOLD: Once = Once::new();
    if TypeId::of::<S::FloatElem>() != TypeId::of::<f32>() {
        TOLD.call_once(|| {
            log::info!(
                "the recorder stores floats as {}; the optimizer's state is stored as f32",
                type_name::<S::FloatElem>()
            );
        });
    }
}
