use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use super::LossScaleConfigError;

const DEFAULT_MAX_CONSECUTIVE_SKIPS: u32 = 20;

/// Chooses how the loss is scaled.
///
/// In JSON the variant is the key: `{"dynamic": {"growth_interval": 500}}`, `{"static": {"scale":
/// 1024.0}}` or `"none"`. Settings of dynamic scaling that are absent have their defaults.
///
/// # Example
///
/// ```
/// use burn_amp::loss_scale::{DynamicLossScaleConfig, LossScaleConfig};
///
/// let config: LossScaleConfig = serde_json::from_str(r#"{"dynamic": {"growth_interval": 500}}"#)?;
///
/// assert_eq!(
///     config,
///     LossScaleConfig::Dynamic(DynamicLossScaleConfig::new().with_growth_interval(500)),
/// );
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum LossScaleConfig {
    /// The scale follows the gradients: down when they overflow, up when they have not for a while.
    Dynamic(DynamicLossScaleConfig),
    /// The scale never moves.
    Static {
        /// The scale: positive and finite, with a finite reciprocal.
        scale: f32,
    },
    /// The scale is 1, as BF16 and F32 want it.
    None,
}

impl LossScaleConfig {
    /// Creates dynamic scaling with the default settings.
    pub fn dynamic() -> Self {
        Self::Dynamic(DynamicLossScaleConfig::new())
    }

    /// Creates a scale that never moves.
    ///
    /// # Arguments
    ///
    /// * `scale` - Positive and finite, with a finite reciprocal.
    pub fn fixed(scale: f32) -> Self {
        Self::Static { scale }
    }

    /// Creates the absence of scaling.
    pub fn none() -> Self {
        Self::None
    }

    /// Checks every setting and reports the first that cannot work.
    pub fn validate(&self) -> Result<(), LossScaleConfigError> {
        match self {
            Self::Dynamic(config) => config.validate(),
            Self::Static { scale } => {
                if *scale > 0.0 && scale.is_finite() && scale.recip().is_finite() {
                    Ok(())
                } else {
                    Err(LossScaleConfigError::StaticScale(*scale))
                }
            }
            Self::None => Ok(()),
        }
    }

    /// The scale of the first step.
    pub(super) fn init_scale(&self) -> f32 {
        match self {
            Self::Dynamic(config) => config.init_scale,
            Self::Static { scale } => *scale,
            Self::None => 1.0,
        }
    }

    /// The scales that can occur: a single one unless scaling is dynamic.
    pub(super) fn bounds(&self) -> RangeInclusive<f32> {
        match self {
            Self::Dynamic(config) => config.min_scale..=config.max_scale,
            Self::Static { .. } | Self::None => self.init_scale()..=self.init_scale(),
        }
    }

    /// The number of consecutive skips at the smallest scale that counts as stuck.
    pub(super) fn max_consecutive_skips(&self) -> u32 {
        match self {
            Self::Dynamic(config) => config.max_consecutive_skips,
            Self::Static { .. } | Self::None => DEFAULT_MAX_CONSECUTIVE_SKIPS,
        }
    }
}

/// Says which overflows count towards [`hysteresis`](DynamicLossScaleConfig::hysteresis).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HysteresisMode {
    /// Overflows in a row: a finite step starts the count again.
    #[default]
    Consecutive,
    /// All overflows since the scale was last lowered or its growth last due.
    Total,
}

/// Holds the settings of dynamic loss scaling.
///
/// The defaults of the first four are PyTorch's.
///
/// # Example
///
/// ```
/// use burn_amp::loss_scale::{DynamicLossScaleConfig, LossScaleConfig, LossScaler};
///
/// let config = DynamicLossScaleConfig::new()
///     .with_init_scale(1024.0)
///     .with_min_scale(1.0);
/// let scaler = LossScaler::new(LossScaleConfig::Dynamic(config))?;
///
/// assert_eq!(scaler.scale(), 1024.0);
/// # Ok::<(), burn_amp::loss_scale::LossScaleConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DynamicLossScaleConfig {
    /// The scale of the first step, within the bounds. Default 65536.
    pub init_scale: f32,
    /// What the scale is multiplied with when it grows: finite, more than 1. Default 2.
    pub growth_factor: f64,
    /// What the scale is multiplied with after an overflow: between 0 and 1, both excluded.
    /// Default 0.5.
    pub backoff_factor: f64,
    /// The number of finite steps in a row before the scale grows: at least 1. Default 2000.
    pub growth_interval: u32,
    /// The scale's floor: at least `f32::MIN_POSITIVE`, so that its reciprocal is finite.
    /// Default 2⁻¹⁴.
    pub min_scale: f32,
    /// The scale's ceiling: finite, at least the floor. Default 2⁶⁴.
    pub max_scale: f32,
    /// The number of overflows that lower the scale: at least 1. Default 1, each of them.
    ///
    /// Steps are skipped on every overflow, whether or not it lowers the scale.
    pub hysteresis: u32,
    /// Which overflows count towards `hysteresis`. Default [`HysteresisMode::Consecutive`].
    pub hysteresis_mode: HysteresisMode,
    /// The number of consecutive skips at `min_scale` from which on updates report
    /// [`stuck`](super::ScaleUpdate::stuck): at least 1. Default 20.
    pub max_consecutive_skips: u32,
}

impl Default for DynamicLossScaleConfig {
    fn default() -> Self {
        Self {
            init_scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            min_scale: 1.0 / 16384.0,
            max_scale: 18446744073709551616.0,
            hysteresis: 1,
            hysteresis_mode: HysteresisMode::Consecutive,
            max_consecutive_skips: DEFAULT_MAX_CONSECUTIVE_SKIPS,
        }
    }
}

impl DynamicLossScaleConfig {
    /// Creates the default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets [`init_scale`](Self::init_scale).
    pub fn with_init_scale(mut self, init_scale: f32) -> Self {
        self.init_scale = init_scale;
        self
    }

    /// Sets [`growth_factor`](Self::growth_factor).
    pub fn with_growth_factor(mut self, growth_factor: f64) -> Self {
        self.growth_factor = growth_factor;
        self
    }

    /// Sets [`backoff_factor`](Self::backoff_factor).
    pub fn with_backoff_factor(mut self, backoff_factor: f64) -> Self {
        self.backoff_factor = backoff_factor;
        self
    }

    /// Sets [`growth_interval`](Self::growth_interval).
    pub fn with_growth_interval(mut self, growth_interval: u32) -> Self {
        self.growth_interval = growth_interval;
        self
    }

    /// Sets [`min_scale`](Self::min_scale).
    pub fn with_min_scale(mut self, min_scale: f32) -> Self {
        self.min_scale = min_scale;
        self
    }

    /// Sets [`max_scale`](Self::max_scale).
    pub fn with_max_scale(mut self, max_scale: f32) -> Self {
        self.max_scale = max_scale;
        self
    }

    /// Sets [`hysteresis`](Self::hysteresis).
    pub fn with_hysteresis(mut self, hysteresis: u32) -> Self {
        self.hysteresis = hysteresis;
        self
    }

    /// Sets [`hysteresis_mode`](Self::hysteresis_mode).
    pub fn with_hysteresis_mode(mut self, hysteresis_mode: HysteresisMode) -> Self {
        self.hysteresis_mode = hysteresis_mode;
        self
    }

    /// Sets [`max_consecutive_skips`](Self::max_consecutive_skips).
    pub fn with_max_consecutive_skips(mut self, max_consecutive_skips: u32) -> Self {
        self.max_consecutive_skips = max_consecutive_skips;
        self
    }

    fn validate(&self) -> Result<(), LossScaleConfigError> {
        let (min, max) = (self.min_scale, self.max_scale);

        // A subnormal number's reciprocal may be infinite, and devices may flush it to zero.
        if !(min.is_normal() && min > 0.0) {
            return Err(LossScaleConfigError::MinScale(min));
        }
        if !(max.is_finite() && max >= min) {
            return Err(LossScaleConfigError::MaxScale { value: max, min });
        }
        if !(min..=max).contains(&self.init_scale) {
            return Err(LossScaleConfigError::InitScale {
                value: self.init_scale,
                min,
                max,
            });
        }
        if !(self.growth_factor.is_finite() && self.growth_factor > 1.0) {
            return Err(LossScaleConfigError::GrowthFactor(self.growth_factor));
        }
        if !(self.backoff_factor > 0.0 && self.backoff_factor < 1.0) {
            return Err(LossScaleConfigError::BackoffFactor(self.backoff_factor));
        }
        if self.growth_interval == 0 {
            return Err(LossScaleConfigError::GrowthInterval(self.growth_interval));
        }
        if self.hysteresis == 0 {
            return Err(LossScaleConfigError::Hysteresis(self.hysteresis));
        }
        if self.max_consecutive_skips == 0 {
            return Err(LossScaleConfigError::MaxConsecutiveSkips(
                self.max_consecutive_skips,
            ));
        }
        Ok(())
    }
}
