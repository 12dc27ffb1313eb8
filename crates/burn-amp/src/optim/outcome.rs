use std::fmt;

use burn::module::ParamId;
use serde::{Deserialize, Serialize};

use crate::loss_scale::ScaleUpdate;

/// What an optimizer step did.
#[derive(Debug, Clone, PartialEq)]
pub enum StepOutcome {
    /// The inner optimizer updated the parameters.
    Applied,
    /// A gradient was not finite: module and optimizer state are bitwise what they were.
    Skipped {
        /// The parameters whose gradients were not finite, in the module's order.
        gradients: Vec<NonFiniteGradient>,
        /// What happened to the loss scale; `None` where losses are not scaled.
        scale: Option<ScaleUpdate>,
    },
    /// There was no gradient for any parameter: nothing changed, and the loss scale is unaffected.
    NothingToDo,
}

impl StepOutcome {
    /// Whether the parameters were updated.
    pub fn is_applied(&self) -> bool {
        matches!(self, StepOutcome::Applied)
    }

    /// Whether the step was refused for a gradient that was not finite.
    pub fn is_skipped(&self) -> bool {
        matches!(self, StepOutcome::Skipped { .. })
    }
}

impl fmt::Display for StepOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepOutcome::Applied => f.write_str("applied"),
            StepOutcome::NothingToDo => f.write_str("nothing to do: no parameter has a gradient"),
            StepOutcome::Skipped { gradients, scale } => {
                f.write_str("skipped")?;
                if let Some(first) = gradients.first() {
                    write!(f, ": {first}")?;
                }
                if gradients.len() > 1 {
                    write!(f, " and {} more", gradients.len() - 1)?;
                }
                match scale {
                    Some(update) => write!(f, "; {update}"),
                    None => Ok(()),
                }
            }
        }
    }
}

/// A parameter whose gradient was not finite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NonFiniteGradient {
    /// Where the parameter is in the module, for example `blocks.0.attn.query.weight`.
    pub path: String,
    /// The parameter's identifier.
    pub id: ParamId,
    /// What was found.
    pub kind: NonFinite,
}

impl fmt::Display for NonFiniteGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in the gradient of {}", self.kind, self.path)
    }
}

/// A kind of value that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NonFinite {
    /// Infinities and no NaN: an overflow, which a lower loss scale may cure.
    Infinity,
    /// At least one NaN.
    NaN,
}

impl fmt::Display for NonFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NonFinite::Infinity => "infinity",
            NonFinite::NaN => "NaN",
        })
    }
}

/// Counts the outcomes of an optimizer's steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StepCounters {
    /// Steps whose update was applied.
    pub applied: u64,
    /// Steps that were skipped because a gradient was not finite.
    pub skipped: u64,
    /// Steps without any gradient.
    pub empty: u64,
}

impl StepCounters {
    pub(super) fn count(&mut self, outcome: &StepOutcome) {
        match outcome {
            StepOutcome::Applied => self.applied += 1,
            StepOutcome::Skipped { .. } => self.skipped += 1,
            StepOutcome::NothingToDo => self.empty += 1,
        }
    }
}
