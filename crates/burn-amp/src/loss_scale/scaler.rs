use super::{
    DynamicLossScaleConfig, HysteresisMode, LossScaleConfig, LossScaleConfigError,
    LossScaleCounters, LossScaleError, ScaleUpdate,
};

/// Decides the loss scale of each step. A plain value without tensors.
///
/// # Example
///
/// ```
/// use burn_amp::loss_scale::{LossScaleConfig, LossScaler};
///
/// let mut scaler = LossScaler::new(LossScaleConfig::dynamic())?;
///
/// // Every step: backward of loss * scale, gradients * inv_scale, then the verdict on them.
/// assert_eq!(scaler.scale(), 65536.0);
/// let update = scaler.update(true);
///
/// assert_eq!((update.previous, update.current), (65536.0, 32768.0));
/// assert_eq!(scaler.counters().skipped, 1);
/// # Ok::<(), burn_amp::loss_scale::LossScaleConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LossScaler {
    pub(super) config: LossScaleConfig,
    pub(super) scale: f32,
    pub(super) growth_tracker: u32,
    /// Overflows counted towards `hysteresis`.
    pub(super) overflows: u32,
    pub(super) skips_at_minimum: u32,
    pub(super) counters: LossScaleCounters,
}

impl LossScaler {
    /// Creates the state of the first step, or reports a setting that cannot work.
    pub fn new(config: LossScaleConfig) -> Result<Self, LossScaleConfigError> {
        config.validate()?;
        Ok(Self {
            scale: config.init_scale(),
            config,
            growth_tracker: 0,
            overflows: 0,
            skips_at_minimum: 0,
            counters: LossScaleCounters::default(),
        })
    }

    /// Returns what to multiply the loss with. It is 1 without scaling.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Returns what to multiply the scaled gradients with: the reciprocal of the scale, taken in
    /// `f64` and rounded to `f32`.
    pub fn inv_scale(&self) -> f32 {
        reciprocal(self.scale)
    }

    /// Returns the number of finite steps since the scale last grew, or overflowed.
    pub fn growth_tracker(&self) -> u32 {
        self.growth_tracker
    }

    /// Returns how many steps were applied and skipped, and how often the scale moved.
    pub fn counters(&self) -> LossScaleCounters {
        self.counters
    }

    /// Returns the settings.
    pub fn config(&self) -> &LossScaleConfig {
        &self.config
    }

    /// Tells whether the loss is scaled at all.
    pub fn is_enabled(&self) -> bool {
        self.config != LossScaleConfig::None
    }

    /// Tells whether the scale follows the gradients.
    pub fn is_dynamic(&self) -> bool {
        matches!(self.config, LossScaleConfig::Dynamic(_))
    }

    /// Moves to the state after a step.
    ///
    /// # Arguments
    ///
    /// * `found_inf` - Whether any gradient of the step was not finite.
    pub fn update(&mut self, found_inf: bool) -> ScaleUpdate {
        let (next, update) = self.after(found_inf);
        *self = next;
        update
    }

    /// Returns the state after a step, and what changed. This is the rule, a pure function.
    ///
    /// # Arguments
    ///
    /// * `found_inf` - Whether any gradient of the step was not finite.
    pub fn after(&self, found_inf: bool) -> (Self, ScaleUpdate) {
        let bounds = self.config.bounds();
        let mut next = self.clone();

        // Saturating, because a record may carry any count.
        let counters = &mut next.counters;
        if found_inf {
            counters.skipped = counters.skipped.saturating_add(1);
            counters.consecutive_skips = counters.consecutive_skips.saturating_add(1);
        } else {
            counters.applied = counters.applied.saturating_add(1);
            counters.consecutive_skips = 0;
        }
        // Skips on the way down are the search for a scale that works, not a sign of being stuck.
        next.skips_at_minimum = if found_inf && self.scale == *bounds.start() {
            self.skips_at_minimum.saturating_add(1)
        } else {
            0
        };

        if let LossScaleConfig::Dynamic(config) = &self.config {
            if found_inf {
                next.back_off(config);
            } else {
                next.grow(config);
            }
        }
        if next.scale > self.scale {
            next.counters.growths = self.counters.growths.saturating_add(1);
        } else if next.scale < self.scale {
            next.counters.backoffs = self.counters.backoffs.saturating_add(1);
        }

        let update = ScaleUpdate {
            found_inf,
            previous: self.scale,
            current: next.scale,
            at_minimum: next.scale == *bounds.start(),
            at_maximum: next.scale == *bounds.end(),
            consecutive_skips: next.counters.consecutive_skips,
            stuck: next.skips_at_minimum >= self.config.max_consecutive_skips(),
        };
        (next, update)
    }

    /// Lowers the scale if this is the overflow that hysteresis waits for.
    fn back_off(&mut self, config: &DynamicLossScaleConfig) {
        self.growth_tracker = 0;
        self.overflows = self.overflows.saturating_add(1);
        if self.overflows >= config.hysteresis {
            self.overflows = 0;
            self.scale = product(self.scale, config.backoff_factor).max(config.min_scale);
        }
    }

    /// Raises the scale if this is the finite step that completes the interval.
    fn grow(&mut self, config: &DynamicLossScaleConfig) {
        if config.hysteresis_mode == HysteresisMode::Consecutive {
            self.overflows = 0;
        }
        self.growth_tracker = self.growth_tracker.saturating_add(1);
        if self.growth_tracker >= config.growth_interval {
            self.growth_tracker = 0;
            self.overflows = 0;
            let grown = product(self.scale, config.growth_factor);
            if grown.is_finite() {
                self.scale = grown.min(config.max_scale);
            }
        }
    }

    /// Replaces the scale and nothing else: like PyTorch's `update(new_scale)`, it does not reset
    /// the growth tracker.
    ///
    /// # Arguments
    ///
    /// * `scale` - Within the bounds. A fixed scale accepts only itself.
    pub fn set_scale(&mut self, scale: f32) -> Result<(), LossScaleError> {
        let bounds = self.config.bounds();
        if !bounds.contains(&scale) {
            return Err(LossScaleError::ScaleOutOfBounds {
                value: scale,
                min: *bounds.start(),
                max: *bounds.end(),
            });
        }
        self.move_to(scale);
        Ok(())
    }

    /// Replaces the settings, or reports one that cannot work and changes nothing.
    ///
    /// From dynamic scaling to dynamic scaling the state goes on, with the scale moved into the
    /// new bounds. Otherwise the new settings' initial scale applies. Counters go on in any case.
    pub fn reconfigure(&mut self, config: LossScaleConfig) -> Result<(), LossScaleConfigError> {
        config.validate()?;
        if let (LossScaleConfig::Dynamic(_), LossScaleConfig::Dynamic(new)) =
            (&self.config, &config)
        {
            self.move_to(self.scale.clamp(new.min_scale, new.max_scale));
        } else {
            self.move_to(config.init_scale());
            self.growth_tracker = 0;
            self.overflows = 0;
        }
        self.config = config;
        Ok(())
    }

    /// Puts the scale elsewhere by hand, where it has not been tried yet.
    fn move_to(&mut self, scale: f32) {
        if scale != self.scale {
            self.scale = scale;
            self.skips_at_minimum = 0;
        }
    }
}

/// Multiplies in `f64` and rounds once: PyTorch's scale kernel, bit for bit.
fn product(scale: f32, factor: f64) -> f32 {
    (f64::from(scale) * factor) as f32
}

/// The reciprocal of a scale: taken in `f64`, rounded to `f32` once.
pub(crate) fn reciprocal(scale: f32) -> f32 {
    f64::from(scale).recip() as f32
}
