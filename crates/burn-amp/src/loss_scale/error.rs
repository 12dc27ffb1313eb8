use thiserror::Error;

/// Says which setting of a [`LossScaleConfig`](super::LossScaleConfig) cannot work, and why.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum LossScaleConfigError {
    /// The initial scale is outside the bounds.
    #[error(
        "init_scale is {value:?}, expected a number from min_scale {min:?} to max_scale {max:?}"
    )]
    InitScale {
        /// The refused value.
        value: f32,
        /// The configured minimum.
        min: f32,
        /// The configured maximum.
        max: f32,
    },
    /// The growth factor would not raise the scale.
    #[error("growth_factor is {0:?}, expected a finite number greater than 1")]
    GrowthFactor(f64),
    /// The backoff factor would not lower the scale, or would make it zero or negative.
    #[error("backoff_factor is {0:?}, expected a number greater than 0 and less than 1")]
    BackoffFactor(f64),
    /// The growth interval is zero.
    #[error("growth_interval is {0}, expected at least 1")]
    GrowthInterval(u32),
    /// The minimum is not positive, or so small that dividing by it is not safe.
    #[error(
        "min_scale is {0:?}, expected a finite number, at least {min:?}",
        min = f32::MIN_POSITIVE
    )]
    MinScale(f32),
    /// The maximum is not finite or below the minimum.
    #[error("max_scale is {value:?}, expected a finite number, at least min_scale {min:?}")]
    MaxScale {
        /// The refused value.
        value: f32,
        /// The configured minimum.
        min: f32,
    },
    /// The number of overflows that lower the scale is zero.
    #[error("hysteresis is {0}, expected at least 1")]
    Hysteresis(u32),
    /// The number of skips that count as stuck is zero.
    #[error("max_consecutive_skips is {0}, expected at least 1")]
    MaxConsecutiveSkips(u32),
    /// The fixed scale is not positive and finite, or its reciprocal is not finite.
    #[error("static scale is {0:?}, expected a positive finite number with a finite reciprocal")]
    StaticScale(f32),
}

/// Says why the state of a [`LossScaler`](super::LossScaler) cannot be set.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum LossScaleError {
    /// The settings cannot work.
    #[error(transparent)]
    Config(#[from] LossScaleConfigError),
    /// The scale is outside the bounds that the settings allow.
    #[error("loss scale is {value:?}, expected a number from {min:?} to {max:?}")]
    ScaleOutOfBounds {
        /// The refused value.
        value: f32,
        /// The smallest scale allowed.
        min: f32,
        /// The largest scale allowed.
        max: f32,
    },
}
