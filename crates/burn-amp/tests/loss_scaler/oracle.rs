//! The recordings' format.

use serde::{Deserialize, Deserializer, de::Error};

/// A number as recorded: JSON has no infinities and no NaN, so those are strings.
#[derive(Clone, Copy, Debug)]
pub struct Number(pub f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Repr {
            Finite(f64),
            Text(String),
        }
        match Repr::deserialize(deserializer)? {
            Repr::Finite(value) => Ok(Self(value)),
            Repr::Text(text) => text.parse().map(Self).map_err(D::Error::custom),
        }
    }
}

/// A bit pattern, recorded as a hexadecimal string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits(pub u32);

impl<'de> Deserialize<'de> for Bits {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.trim_start_matches("0x");
        u32::from_str_radix(digits, 16)
            .map(Self)
            .map_err(D::Error::custom)
    }
}

impl Bits {
    pub fn to_f32(self) -> f32 {
        f32::from_bits(self.0)
    }

    /// Equal bits, or both NaN: the payload of a NaN is not defined by either side.
    pub fn matches(self, value: f32) -> bool {
        value.to_bits() == self.0 || (value.is_nan() && self.to_f32().is_nan())
    }
}

#[derive(Deserialize)]
pub struct ScalerRecordings {
    pub trajectories: Vec<Trajectory>,
    pub raw_update_scale: RawUpdateScale,
    pub raw_growth_to_limit: GrowthToLimit,
    pub raw_growth_to_limit_1p4: GrowthToLimit,
}

#[derive(Deserialize)]
pub struct Trajectory {
    pub name: String,
    pub config: TorchConfig,
    pub loaded_growth_tracker: Option<u32>,
    pub steps_run: Option<usize>,
    pub records: Vec<Step>,
}

#[derive(Clone, Deserialize)]
#[serde(default)]
pub struct TorchConfig {
    pub enabled: bool,
    pub init_scale: f64,
    #[serde(flatten)]
    pub factors: TorchFactors,
}

impl Default for TorchConfig {
    fn default() -> Self {
        Self {
            enabled: true,
            init_scale: 65536.0,
            factors: TorchFactors::default(),
        }
    }
}

#[derive(Clone, Deserialize)]
#[serde(default)]
pub struct TorchFactors {
    pub growth_factor: f64,
    pub backoff_factor: f64,
    pub growth_interval: u32,
}

impl Default for TorchFactors {
    fn default() -> Self {
        Self {
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
        }
    }
}

#[derive(Deserialize)]
pub struct Step {
    pub step: Option<usize>,
    pub event: Option<OneOrMany<String>>,
    pub found_inf: Option<f64>,
    #[serde(default)]
    pub optimizers: Vec<OptimizerStep>,
    pub skipped: Option<OneOrMany<bool>>,
    pub stepped: Option<bool>,
    pub scale_after: f64,
    pub scale_after_bits: Option<Bits>,
    pub growth_tracker_after: u32,
    pub update_new_scale: Option<f32>,
    pub setters_called_after_update: Option<TorchFactors>,
    pub state_dict_saved: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
pub struct OptimizerStep {
    pub found_inf: Option<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    fn as_slice(&self) -> &[T] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Many(values) => values,
        }
    }
}

impl Step {
    /// What each optimizer found. A disabled scaler did not look, so the event has to say.
    pub fn verdicts(&self) -> Vec<bool> {
        let checked: Option<Vec<f64>> = self.optimizers.iter().map(|o| o.found_inf).collect();
        match (checked, self.found_inf, &self.event) {
            (Some(found), _, _) if !found.is_empty() => found.iter().map(|f| *f != 0.0).collect(),
            (_, Some(found), _) => vec![found != 0.0],
            (_, _, Some(event)) => event.as_slice().iter().map(|e| e != "finite").collect(),
            _ => panic!("a step has a verdict or an event"),
        }
    }

    /// Whether any optimizer skipped the step.
    pub fn any_skipped(&self) -> bool {
        match (&self.skipped, self.stepped) {
            (Some(skipped), _) => skipped.as_slice().contains(&true),
            (None, Some(stepped)) => !stepped,
            (None, None) => panic!("a step says whether it was skipped"),
        }
    }

    pub fn scale_bits(&self) -> u32 {
        self.scale_after_bits
            .map_or((self.scale_after as f32).to_bits(), |bits| bits.0)
    }
}

#[derive(Deserialize)]
pub struct RawUpdateScale {
    pub cases: Vec<RawCase>,
}

#[derive(Deserialize)]
pub struct RawCase {
    pub name: String,
    pub scale_in_bits: Bits,
    pub growth_tracker_in: i64,
    pub found_inf: Number,
    #[serde(flatten)]
    pub factors: TorchFactors,
    pub scale_out_bits: Bits,
    pub growth_tracker_out: i64,
}

#[derive(Deserialize)]
pub struct GrowthToLimit {
    /// k, scale after, its bits, tracker after.
    pub rows: Vec<(usize, f64, Bits, u32)>,
}

#[derive(Deserialize)]
pub struct UnscaleRecordings {
    pub scales: Vec<RecordedScale>,
    pub cases: Vec<UnscaleCase>,
}

#[derive(Deserialize)]
pub struct RecordedScale {
    pub scale_bits: Bits,
    pub inv_scale_bits: Bits,
}

#[derive(Deserialize)]
pub struct UnscaleCase {
    pub name: String,
    pub grad_f16_bits: Vec<Bits>,
    /// In the order of the scales.
    pub by_scale: Vec<Unscaled>,
}

#[derive(Deserialize)]
pub struct Unscaled {
    pub out_f32_bits: Vec<Bits>,
}

pub fn scaler_recordings() -> ScalerRecordings {
    serde_json::from_str(include_str!("../data/scaler_trajectories.json")).unwrap()
}

pub fn unscale_recordings() -> UnscaleRecordings {
    serde_json::from_str(include_str!("../data/unscale_check.json")).unwrap()
}
