//! Is every kernel right on this device?

mod elementwise;
mod products;
mod rows;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, anyhow};
use burn_amp_kernels::{FloatType, KernelError};

use crate::budget::Budget;
use crate::device::Gpu;
use crate::records::{self, Check, Outcome};

/// A comparison takes less than this, its kernels' compilation included.
const A_CASE: Duration = Duration::from_secs(2);

/// And this if it is tuned before.
const A_TUNED_CASE: Duration = Duration::from_secs(12);

/// What is compared, and where to.
struct Checks<'a> {
    gpu: &'a Gpu,
    halves: Vec<FloatType>,
    quick: bool,
    budget: Budget,
    records: Vec<Check>,
    out: Option<&'a Path>,
}

/// Compares every kernel with its reference; the cheap ones first, so that little time still sees each
/// of them. It writes what it has after each.
///
/// # Errors
///
/// When the file cannot be written.
pub fn run(gpu: &Gpu, quick: bool, budget: Budget, out: Option<&Path>) -> Result<Vec<Check>> {
    let mut checks = Checks {
        gpu,
        halves: gpu.halves(),
        quick,
        budget,
        records: Vec::new(),
        out,
    };
    elementwise::run(&mut checks)?;
    rows::run(&mut checks)?;
    products::run(&mut checks)?;
    Ok(checks.records)
}

/// Runs something that may fail or panic, also long after it was launched.
pub(crate) fn attempt<T>(gpu: &Gpu, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let result = catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(anyhow!("panicked: {}", message(&*panic))));
    if result.is_err() {
        // A device keeps the errors of launches until it is waited for: the next one is not to blame.
        let _ = gpu.sync();
    }
    result
}

impl Checks<'_> {
    /// The types of tensors.
    fn types(&self) -> Vec<FloatType> {
        let mut types = vec![FloatType::F32];
        types.extend(&self.halves);
        types
    }

    /// Runs a comparison, which returns the largest error over its tolerance.
    fn case(
        &mut self,
        kernel: &str,
        case: String,
        compare: impl FnOnce(&Gpu) -> Result<f64>,
    ) -> Result<()> {
        self.long_case(kernel, case, A_CASE, compare)
    }

    fn long_case(
        &mut self,
        kernel: &str,
        case: String,
        needed: Duration,
        compare: impl FnOnce(&Gpu) -> Result<f64>,
    ) -> Result<()> {
        let (outcome, error, reason) = if self.budget.has(needed) {
            judge(attempt(self.gpu, || compare(self.gpu)))
        } else {
            (Outcome::Skipped, None, "no time was left".to_owned())
        };
        self.records.push(Check {
            kernel: kernel.to_owned(),
            case,
            outcome,
            error,
            reason,
        });
        match self.out {
            Some(out) => records::write(out, &self.records),
            None => Ok(()),
        }
    }
}

fn judge(compared: Result<f64>) -> (Outcome, Option<f64>, String) {
    match compared {
        Ok(error) if error <= 1.0 => (Outcome::Ok, Some(error), String::new()),
        Ok(error) => (
            Outcome::Failed,
            Some(error),
            format!("off by {error:.3} tolerances"),
        ),
        Err(error) => {
            let outcome = match error.downcast_ref() {
                Some(KernelError::Matmul { .. } | KernelError::UnsupportedType(_)) => {
                    Outcome::NotOffered
                }
                _ => Outcome::Failed,
            };
            let reason = format!("{error:#}");
            // Some reasons are whole programs.
            let first = reason.lines().next().unwrap_or_default();
            (outcome, None, first.chars().take(160).collect())
        }
    }
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<String>() {
        return text.clone();
    }
    let text = panic.downcast_ref::<&str>();
    text.map_or("without a message", |text| *text).to_owned()
}

/// A type's name in tables.
pub(crate) fn name(dtype: FloatType) -> &'static str {
    match dtype {
        FloatType::F32 => "f32",
        FloatType::F16 => "f16",
        FloatType::BF16 => "bf16",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn should_tell_what_is_wrong_from_what_is_not_there() {
        assert_eq!(judge(Ok(1.0)).0, Outcome::Ok);
        assert_eq!(judge(Ok(1.1)).0, Outcome::Failed);
        assert_eq!(judge(Ok(f64::INFINITY)).0, Outcome::Failed);
        let missing = KernelError::Matmul {
            strategy: "simple cmma".into(),
            reason: "no tile\nat all".into(),
        };
        let (outcome, _, reason) = judge(Err(missing.into()));
        assert_eq!(outcome, Outcome::NotOffered);
        assert!(reason.ends_with("no tile"), "{reason}");
        assert_eq!(judge(Err(anyhow!("lost"))).0, Outcome::Failed);
    }

    #[test]
    fn should_read_what_a_panic_said() {
        let panic = catch_unwind(|| panic!("value {}", 3)).unwrap_err();
        assert_eq!(message(&*panic), "value 3");
        let panic = catch_unwind(|| panic!("plain")).unwrap_err();
        assert_eq!(message(&*panic), "plain");
    }
}
