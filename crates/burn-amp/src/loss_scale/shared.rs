use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    LossScaleConfig, LossScaleConfigError, LossScaleError, LossScaler, LossScalerRecord,
    ScaleUpdate,
};

/// Identifies an optimizer to a [`SharedScaler`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OptimizerId(u64);

impl OptimizerId {
    /// Creates an identifier that no other call in this process returns.
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl Default for OptimizerId {
    fn default() -> Self {
        Self::new()
    }
}

/// Shares one [`LossScaler`] among the optimizers that step on the gradients of one loss.
///
/// Clones are handles to the same scaler. What the optimizers report between two backward passes
/// is one verdict, the OR of theirs, and moves the scale once. It is final when the next backward
/// pass begins, or when an optimizer that already took part reports again; until then it is
/// pending, and everything that reads the scaler sees it applied.
///
/// # Example
///
/// ```
/// use burn_amp::loss_scale::{LossScaleConfig, LossScaler, OptimizerId, SharedScaler};
///
/// let scaler = SharedScaler::new(LossScaler::new(LossScaleConfig::dynamic())?);
/// let (generator, encoder) = (OptimizerId::new(), OptimizerId::new());
///
/// assert_eq!(scaler.begin_backward(), 65536.0);
/// scaler.report(generator, true);
/// scaler.report(encoder, true);
///
/// assert_eq!(scaler.begin_backward(), 32768.0);
/// # Ok::<(), burn_amp::loss_scale::LossScaleConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct SharedScaler {
    ledger: Arc<Mutex<Ledger>>,
}

impl SharedScaler {
    /// Creates a handle to the given scaler.
    pub fn new(scaler: LossScaler) -> Self {
        Self {
            ledger: Arc::new(Mutex::new(Ledger {
                settled: scaler,
                pending: None,
                is_record: false,
            })),
        }
    }

    /// Creates a handle to a scaler that was loaded.
    pub(crate) fn restored(scaler: LossScaler) -> Self {
        let restored = Self::new(scaler);
        restored.lock().is_record = true;
        restored
    }

    /// Returns the current scale, the pending verdict included.
    pub fn scale(&self) -> f32 {
        self.state().scale()
    }

    /// Returns the current state, the pending verdict included.
    pub fn state(&self) -> LossScaler {
        self.lock().effective()
    }

    /// Commits the pending verdict and returns what to multiply the loss with.
    pub fn begin_backward(&self) -> f32 {
        let mut ledger = self.lock();
        ledger.commit();
        ledger.is_record = false;
        ledger.settled.scale()
    }

    /// Adds an optimizer's verdict to the pending one and returns the update as it stands.
    ///
    /// # Arguments
    ///
    /// * `optimizer` - Who reports. If it is part of the pending verdict already, that one is
    ///   committed first.
    /// * `found_inf` - Whether any of its gradients was not finite.
    pub fn report(&self, optimizer: OptimizerId, found_inf: bool) -> ScaleUpdate {
        self.lock().report(optimizer, found_inf)
    }

    /// Commits the pending verdict and returns its update, or `None` if nothing is pending.
    pub fn commit(&self) -> Option<ScaleUpdate> {
        self.lock().commit()
    }

    /// Takes over the recorded state but keeps the current settings, as
    /// [`LossScaler::load_record`] does, and drops the pending verdict.
    pub fn load(&self, record: LossScalerRecord) -> Result<(), LossScaleError> {
        let mut ledger = self.lock();
        ledger.replace(|scaler| scaler.load_record(record))?;
        ledger.is_record = true;
        Ok(())
    }

    /// Whether the state is that of a record, which nothing has used yet.
    pub(crate) fn is_record(&self) -> bool {
        self.lock().is_record
    }

    /// Commits the pending verdict, then replaces the settings as [`LossScaler::reconfigure`]
    /// does. An error changes nothing.
    pub fn reconfigure(&self, config: LossScaleConfig) -> Result<(), LossScaleConfigError> {
        self.lock().replace(|scaler| scaler.reconfigure(config))
    }

    /// Commits the pending verdict, then replaces the scale as [`LossScaler::set_scale`] does. An
    /// error changes nothing.
    pub fn set_scale(&self, scale: f32) -> Result<(), LossScaleError> {
        self.lock().replace(|scaler| scaler.set_scale(scale))
    }

    /// Whether both are handles to the same scaler.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.ledger, &other.ledger)
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        // Sound even after a panic: the ledger only ever moves from one complete value to the next.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The logic of [`SharedScaler`] without its lock.
#[derive(Debug)]
struct Ledger {
    settled: LossScaler,
    pending: Option<Verdict>,
    /// Whether a record was loaded, and no backward pass or verdict since.
    is_record: bool,
}

#[derive(Debug)]
struct Verdict {
    found_inf: bool,
    reporters: Vec<OptimizerId>,
}

impl Ledger {
    fn effective(&self) -> LossScaler {
        match &self.pending {
            Some(verdict) => self.settled.after(verdict.found_inf).0,
            None => self.settled.clone(),
        }
    }

    fn commit(&mut self) -> Option<ScaleUpdate> {
        let verdict = self.pending.take()?;
        Some(self.settled.update(verdict.found_inf))
    }

    fn report(&mut self, optimizer: OptimizerId, found_inf: bool) -> ScaleUpdate {
        self.is_record = false;
        if let Some(verdict) = &self.pending
            && verdict.reporters.contains(&optimizer)
        {
            self.commit();
        }
        let verdict = self.pending.get_or_insert_with(|| Verdict {
            found_inf: false,
            reporters: Vec::new(),
        });
        verdict.found_inf |= found_inf;
        verdict.reporters.push(optimizer);
        self.settled.after(verdict.found_inf).1
    }

    /// Settles the outcome of `change` on the effective state, or keeps everything as it was.
    fn replace<E>(
        &mut self,
        change: impl FnOnce(&mut LossScaler) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut scaler = self.effective();
        change(&mut scaler)?;
        self.settled = scaler;
        self.pending = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn should_go_on_after_a_panic_of_another_handle() {
        let scaler = SharedScaler::new(LossScaler::new(LossScaleConfig::dynamic()).unwrap());
        let other = scaler.clone();

        std::thread::spawn(move || {
            let _guard = other.lock();
            panic!("poisons the mutex");
        })
        .join()
        .unwrap_err();

        assert!(scaler.ledger.is_poisoned());
        scaler.report(OptimizerId::new(), true);
        assert_eq!(scaler.begin_backward(), 32768.0);
    }
}
