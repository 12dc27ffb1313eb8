use std::fmt;

use serde::{Deserialize, Serialize};

/// Counts what became of the steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossScaleCounters {
    /// The number of steps whose gradients were all finite.
    pub applied: u64,
    /// The number of steps with a gradient that was not finite.
    pub skipped: u64,
    /// The number of skipped steps since the last applied one.
    pub consecutive_skips: u64,
    /// The number of times the scale rose.
    pub growths: u64,
    /// The number of times the scale fell.
    pub backoffs: u64,
}

/// Reports what one step did to the scale.
///
/// It displays as one line that tells the change which really took place.
///
/// # Example
///
/// ```
/// use burn_amp::loss_scale::{LossScaleConfig, LossScaler};
///
/// let mut scaler = LossScaler::new(LossScaleConfig::dynamic())?;
///
/// assert_eq!(
///     scaler.update(true).to_string(),
///     "step skipped, gradients are not finite: loss scale 65536.0 -> 32768.0",
/// );
/// # Ok::<(), burn_amp::loss_scale::LossScaleConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScaleUpdate {
    /// Whether a gradient was not finite, so that the step is skipped.
    pub found_inf: bool,
    /// The scale before the update.
    pub previous: f32,
    /// The scale after the update.
    pub current: f32,
    /// Whether the scale after the update cannot fall any further. A fixed scale never can.
    pub at_minimum: bool,
    /// Whether the scale after the update cannot rise any further. A fixed scale never can.
    pub at_maximum: bool,
    /// The number of skipped steps since the last applied one.
    pub consecutive_skips: u64,
    /// Whether skipping has stopped helping: as many steps in a row as [`max_consecutive_skips`]
    /// says (20 for a fixed scale) overflowed at the smallest scale.
    ///
    /// [`max_consecutive_skips`]: super::DynamicLossScaleConfig::max_consecutive_skips
    pub stuck: bool,
}

impl fmt::Display for ScaleUpdate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.found_inf {
            "step skipped, gradients are not finite: "
        } else {
            "step applied: "
        })?;
        if self.current == self.previous {
            write!(f, "loss scale stays {:?}", self.current)?;
        } else {
            write!(f, "loss scale {:?} -> {:?}", self.previous, self.current)?;
        }
        if self.found_inf && self.at_minimum {
            f.write_str(", its minimum")?;
        }
        if self.stuck {
            write!(
                f,
                "; {} skips in a row: look for a loss or an input that is not finite, or allow a \
                 lower scale",
                self.consecutive_skips
            )?;
        }
        Ok(())
    }
}
