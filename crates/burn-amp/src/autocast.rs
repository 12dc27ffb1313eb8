use std::sync::Arc;

use crate::loss_scale::{LossScaler, SharedScaler};
use crate::policy::{Frame, Policy, ScopeGuard, ScopeScaler};
use crate::{AmpConfig, AmpError};

/// Runs `f` under `config` on the calling thread; what is configured for the device returns after.
///
/// Scopes nest, and end also when `f` panics. Backward passes use the device's loss scale, which
/// takes its settings from `config` where [`AmpConfig::init`] was not called for the device.
///
/// # Errors
///
/// The configuration has an unknown op name or a setting out of range.
///
/// # Panics
///
/// Ops panic where the device lacks the compute type, unless `config` allows the fallback to f32.
///
/// # Example
///
/// ```
/// use burn_amp::{Amp, AmpConfig, autocast};
/// use burn::backend::Flex;
/// use burn::tensor::{DType, Tensor};
///
/// # fn main() -> Result<(), burn_amp::AmpError> {
/// let x = Tensor::<Amp<Flex>, 2>::ones([2, 2], &Default::default());
/// let y = autocast(&AmpConfig::f16(), || x.clone().matmul(x))?;
/// assert_eq!(y.dtype(), DType::F16);
/// # Ok(())
/// # }
/// ```
pub fn autocast<R>(config: &AmpConfig, f: impl FnOnce() -> R) -> Result<R, AmpError> {
    let policy = Arc::new(config.policy()?);
    let scaler = ScopeScaler::Device(config.scope_loss_scale()?);
    let _scope = ScopeGuard::enter(frame(policy, scaler));
    Ok(f())
}

fn frame(policy: Arc<Policy>, scaler: ScopeScaler) -> Frame {
    Frame::Autocast {
        policy,
        scaler,
        prepared: Default::default(),
    }
}

/// A checked configuration with a loss scale of its own, to enter as often as needed.
///
/// For programs that train several models at once in different precisions: where
/// [`AmpConfig::init`] configures the device for all of them, an `Autocast` belongs to one. Clones
/// share the loss scale, and may be sent to other threads and entered there.
///
/// # Example
///
/// ```
/// use burn_amp::{AmpConfig, Autocast};
///
/// # fn main() -> Result<(), burn_amp::AmpError> {
/// let amp = Autocast::new(&AmpConfig::f16())?;
/// for _step in 0..3 {
///     let _scope = amp.enter();
///     // forward, backward and the optimizer's step
/// }
/// assert_eq!(amp.loss_scaler().scale(), 65536.0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Autocast {
    policy: Arc<Policy>,
    scaler: SharedScaler,
}

impl Autocast {
    /// Checks the configuration and starts its loss scale.
    ///
    /// # Errors
    ///
    /// An op name is unknown or a setting out of range.
    pub fn new(config: &AmpConfig) -> Result<Self, AmpError> {
        Ok(Self {
            policy: Arc::new(config.policy()?),
            scaler: SharedScaler::new(LossScaler::new(config.scope_loss_scale()?)?),
        })
    }

    /// Puts the configuration in force on this thread until the guard is dropped.
    pub fn enter(&self) -> ScopeGuard {
        ScopeGuard::enter(frame(
            self.policy.clone(),
            ScopeScaler::Own(self.scaler.clone()),
        ))
    }

    /// Runs `f` with the configuration in force.
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        let _scope = self.enter();
        f()
    }

    /// The loss scale that backward passes inside use.
    pub fn loss_scaler(&self) -> &SharedScaler {
        &self.scaler
    }
}
