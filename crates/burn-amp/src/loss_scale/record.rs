use burn::record::{PrecisionSettings, Record};
use burn::tensor::backend::Backend;
use serde::{Deserialize, Serialize};

use super::{LossScaleConfig, LossScaleCounters, LossScaleError, LossScaler};

/// Stores a [`LossScaler`] in a checkpoint.
///
/// It is plain numbers under any of Burn's precision settings: half-precision records do not
/// round it.
///
/// # Example
///
/// ```
/// use burn_amp::loss_scale::{LossScaleConfig, LossScaler, LossScalerRecord};
///
/// let mut scaler = LossScaler::new(LossScaleConfig::dynamic())?;
/// scaler.update(true);
///
/// let saved = serde_json::to_string(&scaler.to_record())?;
/// let loaded: LossScalerRecord = serde_json::from_str(&saved)?;
///
/// assert_eq!(LossScaler::from_record(loaded)?, scaler);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LossScalerRecord {
    /// The first version.
    V1(LossScalerRecordV1),
}

/// Holds the first version of a [`LossScalerRecord`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossScalerRecordV1 {
    /// The settings.
    pub config: LossScaleConfig,
    /// The scale of the next step, within the bounds of `config`.
    pub scale: f32,
    /// The number of finite steps since the scale last grew, or overflowed.
    pub growth_tracker: u32,
    /// The number of overflows counted towards hysteresis.
    pub overflows: u32,
    /// The number of consecutive skips at the smallest scale.
    pub skips_at_minimum: u32,
    /// What became of the steps so far.
    pub counters: LossScaleCounters,
}

impl<B: Backend> Record<B> for LossScalerRecord {
    type Item<S: PrecisionSettings> = Self;

    fn into_item<S: PrecisionSettings>(self) -> Self::Item<S> {
        self
    }

    fn from_item<S: PrecisionSettings>(item: Self::Item<S>, _device: &B::Device) -> Self {
        item
    }
}

impl LossScaler {
    /// Returns the complete state and the settings, for a checkpoint.
    pub fn to_record(&self) -> LossScalerRecord {
        LossScalerRecord::V1(LossScalerRecordV1 {
            config: self.config.clone(),
            scale: self.scale,
            growth_tracker: self.growth_tracker,
            overflows: self.overflows,
            skips_at_minimum: self.skips_at_minimum,
            counters: self.counters,
        })
    }

    /// Creates the scaler that was recorded, or reports the value that cannot be right.
    pub fn from_record(record: LossScalerRecord) -> Result<Self, LossScaleError> {
        let LossScalerRecord::V1(record) = record;
        let mut scaler = Self::new(record.config)?;
        scaler.set_scale(record.scale)?;
        Ok(Self {
            growth_tracker: record.growth_tracker,
            overflows: record.overflows,
            skips_at_minimum: record.skips_at_minimum,
            counters: record.counters,
            ..scaler
        })
    }

    /// Takes over the recorded state but keeps the current settings, as
    /// [`reconfigure`](Self::reconfigure) does; or reports what is wrong with the record and
    /// changes nothing.
    pub fn load_record(&mut self, record: LossScalerRecord) -> Result<(), LossScaleError> {
        let mut recorded = Self::from_record(record)?;
        recorded.reconfigure(self.config.clone())?;
        *self = recorded;
        Ok(())
    }
}
