//! The precision in force: scopes of the calling thread, and under them each device's configuration.

use std::any::TypeId;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use burn::tensor::DType;
use burn::tensor::backend::{DeviceId, DeviceOps};

use super::rules::{Mode, Policy, Readback, Reduction, Rule, full_precision_rule};
use super::{Op, Precision};
use crate::loss_scale::{
    LossScaleConfig, LossScaleConfigError, LossScaleError, LossScaler, LossScalerRecord,
    SharedScaler,
};

/// Identifies a device across backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct DeviceKey(DeviceId, TypeId);

impl DeviceKey {
    pub(crate) fn of<D: DeviceOps>(device: &D) -> Self {
        Self(device.to_id(), TypeId::of::<D>())
    }
}

/// What is configured for a device. Replaced as a whole, never changed in place.
#[derive(Debug)]
struct DeviceState {
    policy: Policy,
    scaling: DeviceScaling,
    group: Option<Arc<Group>>,
    /// Whether there is nothing but a record, loaded before anything was configured.
    waits: bool,
}

/// Devices that train one model: their loss scales move together.
#[derive(Debug)]
struct Group {
    members: Vec<DeviceKey>,
}

#[derive(Debug, Clone)]
enum DeviceScaling {
    /// Losses are not scaled. A scaler that was in use waits for precision to be switched back.
    Off {
        dormant: Option<SharedScaler>,
    },
    On(SharedScaler),
}

impl DeviceScaling {
    fn existing(&self) -> Option<&SharedScaler> {
        match self {
            DeviceScaling::Off { dormant } => dormant.as_ref(),
            DeviceScaling::On(scaler) => Some(scaler),
        }
    }
}

type Registry = HashMap<DeviceKey, Arc<DeviceState>>;

static REGISTRY: LazyLock<RwLock<Registry>> = LazyLock::new(RwLock::default);

/// Counts the changes of [`REGISTRY`]; zero while no device was ever configured.
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// What a scope puts in force.
#[derive(Debug, Clone)]
pub(crate) enum Frame {
    FullPrecision,
    Autocast {
        policy: Arc<Policy>,
        /// A scaler of the scope's own, or the device's.
        scaler: ScopeScaler,
        /// The device that was checked last, and what the policy comes to there.
        prepared: Cell<Option<(DeviceKey, Mode)>>,
    },
}

/// Where the backward passes of an autocast scope find their scale.
#[derive(Debug, Clone)]
pub(crate) enum ScopeScaler {
    Own(SharedScaler),
    /// The device's, which gets these settings if nobody has configured it.
    Device(LossScaleConfig),
}

struct Scope {
    id: u64,
    frame: Frame,
}

/// The devices that a thread has asked for, as they were at a generation of the registry.
struct DeviceCache {
    generation: u64,
    devices: Vec<(DeviceKey, Arc<DeviceState>)>,
}

impl DeviceCache {
    const fn new() -> Self {
        Self {
            generation: 0,
            devices: Vec::new(),
        }
    }

    fn get(&mut self, key: DeviceKey, generation: u64) -> Option<Arc<DeviceState>> {
        if self.generation != generation {
            self.devices.clear();
            self.generation = generation;
        }
        if let Some((_, state)) = self.devices.iter().find(|(cached, _)| *cached == key) {
            return Some(state.clone());
        }
        let state = registered(&key)?;
        self.devices.push((key, state.clone()));
        Some(state)
    }
}

thread_local! {
    static SCOPES: RefCell<Vec<Scope>> = const { RefCell::new(Vec::new()) };
    static NEXT_SCOPE: Cell<u64> = const { Cell::new(0) };
    /// The length of `SCOPES`, cheaper to ask.
    static DEPTH: Cell<usize> = const { Cell::new(0) };
    /// Whether this thread has entered a mixed-precision scope, so that half tensors may be about.
    static HAS_AUTOCAST: Cell<bool> = const { Cell::new(false) };
    static DEVICES: RefCell<DeviceCache> = const { RefCell::new(DeviceCache::new()) };
    static AUTOMATIC_SCALING_OFF: Cell<usize> = const { Cell::new(0) };
}

/// Ends its scope when dropped, also while a panic unwinds.
///
/// Guards nest, and belong to the thread that made them. Dropping an outer guard
/// first ends the scopes inside it too.
#[derive(Debug)]
#[must_use = "the scope ends when the guard is dropped"]
pub struct ScopeGuard {
    id: u64,
    /// Keeps the guard on its thread.
    not_send: PhantomData<*const ()>,
}

impl ScopeGuard {
    pub(crate) fn enter(frame: Frame) -> Self {
        if matches!(&frame, Frame::Autocast { policy, .. } if policy.precision != Precision::F32) {
            HAS_AUTOCAST.set(true);
        }
        let id = NEXT_SCOPE.get();
        NEXT_SCOPE.set(id + 1);
        SCOPES.with_borrow_mut(|scopes| {
            scopes.push(Scope { id, frame });
            DEPTH.set(scopes.len());
        });
        Self {
            id,
            not_send: PhantomData,
        }
    }
}

impl Drop for ScopeGuard {
    fn drop(&mut self) {
        SCOPES.with_borrow_mut(|scopes| {
            if let Some(depth) = scopes.iter().position(|scope| scope.id == self.id) {
                scopes.truncate(depth);
            }
            DEPTH.set(scopes.len());
        });
    }
}

/// Runs `f` with every op of class lower, full, widen or promote computing in f32, whatever is
/// configured.
///
/// Half-precision operands of these ops are cast up first. Ops of class keep, among them arithmetic
/// with a scalar and tanh, still return a half tensor for a half one: cast such a tensor at the start.
/// The scope belongs to the calling thread, nests, and ends also when `f` panics.
///
/// # Differences from PyTorch
///
/// `torch.autocast(enabled=False)` leaves half tensors half, and a product of two of them is
/// computed in half. Here it is computed in f32.
///
/// # Example
///
/// ```
/// use burn_amp::{Amp, AmpConfig, autocast, full_precision};
/// use burn::backend::Flex;
/// use burn::tensor::{DType, Tensor};
///
/// # fn main() -> Result<(), burn_amp::AmpError> {
/// let x = Tensor::<Amp<Flex>, 2>::ones([2, 2], &Default::default());
/// autocast(&AmpConfig::bf16(), || {
///     let low = x.clone().matmul(x.clone());
///     assert_eq!(low.dtype(), DType::BF16);
///     assert_eq!(full_precision(|| low.clone().matmul(low)).dtype(), DType::F32);
/// })?;
/// # Ok(())
/// # }
/// ```
pub fn full_precision<R>(f: impl FnOnce() -> R) -> R {
    let _scope = enter_full_precision();
    f()
}

/// Enters a [`full_precision`] scope that ends with the returned guard.
pub fn enter_full_precision() -> ScopeGuard {
    ScopeGuard::enter(Frame::FullPrecision)
}

/// Ends the suspension of automatic loss scaling when dropped.
#[derive(Debug)]
pub(crate) struct ManualScalingGuard(PhantomData<*const ()>);

impl ManualScalingGuard {
    pub(crate) fn enter() -> Self {
        AUTOMATIC_SCALING_OFF.set(AUTOMATIC_SCALING_OFF.get() + 1);
        Self(PhantomData)
    }
}

impl Drop for ManualScalingGuard {
    fn drop(&mut self) {
        AUTOMATIC_SCALING_OFF.set(AUTOMATIC_SCALING_OFF.get() - 1);
    }
}

/// Answers for one device what the policy has to know of it.
pub(crate) trait DeviceQuery {
    type Device: DeviceOps;
    fn device(&self) -> Self::Device;
    fn supports(device: &Self::Device, dtype: DType) -> bool;
}

/// Whether no scope is open on this thread and no device was ever configured.
#[inline]
pub(crate) fn is_idle() -> bool {
    DEPTH.get() == 0 && GENERATION.load(Ordering::Relaxed) == 0
}

/// The rule for `op` on the queried device.
#[inline]
pub(crate) fn rule<Q: DeviceQuery>(op: Op, query: &Q) -> Rule {
    if is_idle() {
        return Rule::Off;
    }
    ambient_rule(op, query)
}

fn ambient_rule<Q: DeviceQuery>(op: Op, query: &Q) -> Rule {
    let scoped = SCOPES.with_borrow(|scopes| match &scopes.last()?.frame {
        Frame::FullPrecision => Some(full_precision_rule(op)),
        frame @ Frame::Autocast { policy, .. } => Some(policy.rule(frame.mode(query), op)),
    });

    scoped.unwrap_or_else(|| {
        with_device(DeviceKey::of(&query.device()), |state| {
            state.map_or(Rule::Off, |state| {
                state.policy.rule(installed_mode(&state.policy), op)
            })
        })
    })
}

/// A configured policy was resolved against its device by `AmpConfig::init`.
fn installed_mode(policy: &Policy) -> Mode {
    policy.precision.half().map_or(Mode::Off, Mode::Mixed)
}

impl Frame {
    /// What the scope's policy comes to on the queried device, checked once for each device in turn.
    fn mode<Q: DeviceQuery>(&self, query: &Q) -> Mode {
        let Frame::Autocast {
            policy,
            scaler,
            prepared,
        } = self
        else {
            return Mode::FullPrecision;
        };
        if policy.precision == Precision::F32 {
            return Mode::Off;
        }
        let device = query.device();
        let key = DeviceKey::of(&device);
        if let Some((checked, mode)) = prepared.get()
            && checked == key
        {
            return mode;
        }

        let supports = |dtype| Q::supports(&device, dtype);
        let mode = match resolve(policy.precision, supports) {
            Ok(precision) => precision.half().map_or(Mode::Off, Mode::Mixed),
            Err(_) if policy.fallback => Mode::Off,
            Err(dtype) => panic!(
                "autocast to {} on device {device:?}, which does not support {dtype:?}; use \
                 AmpConfig::auto() or with_fallback(true) to run in f32 there",
                policy.precision
            ),
        };
        if let (Mode::Mixed(_), ScopeScaler::Device(config)) = (mode, scaler) {
            arm_device_scaler(key, config);
        }
        prepared.set(Some((key, mode)));
        mode
    }
}

/// Whether ops on the device pass through as they are, here and now.
pub(crate) fn is_off(key: DeviceKey) -> bool {
    let scoped = SCOPES.with_borrow(|scopes| match &scopes.last()?.frame {
        Frame::FullPrecision => Some(false),
        Frame::Autocast { policy, .. } => Some(policy.precision == Precision::F32),
    });
    scoped.unwrap_or_else(|| {
        with_device(key, |state| {
            state.is_none_or(|state| state.policy.precision == Precision::F32)
        })
    })
}

/// Resolves a precision against what the device supports; the error is the type that it lacks.
pub(crate) fn resolve(
    precision: Precision,
    supports: impl Fn(DType) -> bool,
) -> Result<Precision, DType> {
    match precision.required() {
        Some(dtype) if supports(dtype) => Ok(precision),
        Some(dtype) => Err(dtype),
        None if precision == Precision::Auto => Ok([Precision::Bf16, Precision::F16]
            .into_iter()
            .find(|precision| precision.required().is_some_and(&supports))
            .unwrap_or(Precision::F32)),
        None => Ok(precision),
    }
}

/// Runs `f` with the device's state, through a cache of the thread that the next change empties.
fn with_device<R>(key: DeviceKey, f: impl FnOnce(Option<&DeviceState>) -> R) -> R {
    let generation = GENERATION.load(Ordering::Acquire);
    if generation == 0 {
        return f(None);
    }
    let cached = DEVICES.with_borrow_mut(|cache| cache.get(key, generation));
    f(cached.as_deref())
}

fn registered(key: &DeviceKey) -> Option<Arc<DeviceState>> {
    let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
    registry.get(key).cloned()
}

/// Lets `change` replace the states of devices; an error changes nothing.
fn update_registry<E>(change: impl FnOnce(&mut Registry) -> Result<(), E>) -> Result<(), E> {
    let mut registry = REGISTRY.write().unwrap_or_else(PoisonError::into_inner);
    change(&mut registry)?;
    GENERATION.fetch_add(1, Ordering::Release);
    Ok(())
}

/// What becomes of a device's scaler when another configuration is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Install {
    /// A run begins: so does its scaler, unless a record was loaded for it.
    Begin,
    /// A run goes on: scale and counters are kept as far as the new settings allow.
    Switch,
    /// Nothing, where something is configured already.
    Arm,
}

/// Installs a policy and loss-scale settings for devices, which form a group if they are several; the
/// first one's scale is then everyone's. One that is switched stays in its group.
pub(crate) fn install(
    keys: &[DeviceKey],
    policy: Policy,
    loss_scale: LossScaleConfig,
    how: Install,
) -> Result<(), LossScaleConfigError> {
    loss_scale.validate()?;
    let group = (keys.len() > 1).then(|| {
        let members = keys.to_vec();
        Arc::new(Group { members })
    });
    update_registry(|registry| {
        let mut first: Option<LossScaler> = None;
        for key in keys {
            let is_configured = registry.get(key).is_some_and(|state| !state.waits);
            if how == Install::Arm && is_configured {
                continue;
            }
            let existing = registry
                .get(key)
                .and_then(|state| state.scaling.existing().cloned())
                .filter(|scaler| how == Install::Switch || scaler.is_record());
            let scaling = match (&loss_scale, existing) {
                (LossScaleConfig::None, dormant) => DeviceScaling::Off { dormant },
                (loss_scale, Some(scaler)) => {
                    scaler.reconfigure(loss_scale.clone())?;
                    DeviceScaling::On(scaler)
                }
                (loss_scale, None) => {
                    DeviceScaling::On(SharedScaler::new(LossScaler::new(loss_scale.clone())?))
                }
            };
            if let DeviceScaling::On(scaler) = &scaling {
                match &first {
                    Some(first) => copy(first, scaler),
                    None => first = Some(scaler.state()),
                }
            }
            let group = match (&group, how) {
                (None, Install::Switch) => registry.get(key).and_then(|state| state.group.clone()),
                (group, _) => group.clone(),
            };
            let state = DeviceState {
                policy: policy.clone(),
                scaling,
                group,
                waits: false,
            };
            registry.insert(*key, Arc::new(state));
        }
        Ok(())
    })
}

/// Gives a scaler the state of another with the same settings.
fn copy(from: &LossScaler, to: &SharedScaler) {
    if to.state() != *from {
        to.load(from.to_record())
            .expect("the state of a scaler with the same settings is valid");
    }
}

fn is_configured(key: DeviceKey) -> bool {
    with_device(key, |state| state.is_some_and(|state| !state.waits))
}

/// Gives the device a scaler with the settings of a scope, unless it was configured before.
fn arm_device_scaler(key: DeviceKey, loss_scale: &LossScaleConfig) {
    if matches!(loss_scale, LossScaleConfig::None) || is_configured(key) {
        return;
    }
    install(&[key], Policy::off(), loss_scale.clone(), Install::Arm)
        .expect("the settings of a scope are checked when it is entered");
}

/// Takes over a recorded scale: into the scope's own scaler, or into the device's, which waits for
/// its configuration if there is none yet.
pub(crate) fn restore_scaler(
    key: DeviceKey,
    record: LossScalerRecord,
) -> Result<SharedScaler, LossScaleError> {
    let existing = match scoped_scaler() {
        Some(scaler) => vec![scaler],
        None => group_of(key)
            .into_iter()
            .filter_map(|key| with_device(key, |state| state?.scaling.existing().cloned()))
            .collect(),
    };
    for scaler in &existing {
        scaler.load(record.clone())?;
    }
    if let Some(scaler) = existing.into_iter().next() {
        return Ok(scaler);
    }
    let scaler = SharedScaler::restored(LossScaler::from_record(record)?);
    update_registry::<LossScaleError>(|registry| {
        let state = registry.get(&key);
        let state = DeviceState {
            policy: state.map_or_else(Policy::off, |state| state.policy.clone()),
            scaling: DeviceScaling::Off {
                dormant: Some(scaler.clone()),
            },
            group: state.and_then(|state| state.group.clone()),
            waits: state.is_none_or(|state| state.waits),
        };
        registry.insert(key, Arc::new(state));
        Ok(())
    })?;
    Ok(scaler)
}

/// The device, and behind it those that were configured together with it.
pub(crate) fn group_of(key: DeviceKey) -> Vec<DeviceKey> {
    let group = with_device(key, |state| state?.group.clone());
    let mut keys = vec![key];
    if let Some(group) = group {
        // A device that was configured by itself since then has left the group.
        let others = group.members.iter().copied().filter(|other| {
            *other != key
                && with_device(*other, |state| {
                    state
                        .and_then(|state| state.group.as_ref())
                        .is_some_and(|other| Arc::ptr_eq(other, &group))
                })
        });
        keys.extend(others);
    }
    keys
}

/// Where the device is not configured: the one of its kind that is, or the first of a group.
pub(crate) fn only_configured(key: DeviceKey) -> Option<DeviceKey> {
    if is_configured(key) {
        return None;
    }
    let configured: Vec<DeviceKey> = {
        let registry = REGISTRY.read().unwrap_or_else(PoisonError::into_inner);
        let of_kind = registry
            .iter()
            .filter(|(other, state)| other.1 == key.1 && !state.waits);
        of_kind.map(|(other, _)| *other).collect()
    };
    let group = group_of(*configured.first()?);
    let is_one = configured.iter().all(|other| group.contains(other));
    is_one.then(|| group[0])
}

/// The type that gradients on the device are reduced in.
pub(crate) fn reduction(key: DeviceKey) -> Reduction {
    let scoped = SCOPES.with_borrow(|scopes| {
        scopes.iter().rev().find_map(|scope| match &scope.frame {
            Frame::Autocast { policy, .. } => Some(policy.reduction),
            Frame::FullPrecision => None,
        })
    });
    scoped.unwrap_or_else(|| device_reduction(key))
}

/// The same, whatever scopes are open.
pub(crate) fn device_reduction(key: DeviceKey) -> Reduction {
    with_device(key, |state| {
        state.map_or(Reduction::F32, |state| state.policy.reduction)
    })
}

/// Why two devices cannot train one model.
#[cfg(feature = "ddp")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unlike {
    Repeated,
    Policy,
    LossScale,
}

/// Gives the loss scales of all devices the state of the first one's. The error is the index of a device
/// that is configured in another way than the first.
#[cfg(feature = "ddp")]
pub(crate) fn align(keys: &[DeviceKey]) -> Result<(), (usize, Unlike)> {
    let Some((first, others)) = keys.split_first() else {
        return Ok(());
    };
    let policy = |key| with_device(key, |state| state.map(|state| state.policy.clone()));
    let state_of = |key| device_scaler(key).map(|scaler| scaler.state());
    let state = state_of(*first);
    for (index, key) in others.iter().enumerate() {
        let unlike = if keys[..=index].contains(key) {
            Some(Unlike::Repeated)
        } else if policy(*key) != policy(*first) {
            Some(Unlike::Policy)
        } else if state_of(*key).map(|state| state.config().clone())
            != state.as_ref().map(|state| state.config().clone())
        {
            Some(Unlike::LossScale)
        } else {
            None
        };
        if let Some(unlike) = unlike {
            return Err((index + 1, unlike));
        }
    }
    for key in others {
        if let (Some(scaler), Some(state)) = (device_scaler(*key), &state) {
            copy(state, &scaler);
        }
    }
    Ok(())
}

fn scoped_scaler() -> Option<SharedScaler> {
    SCOPES.with_borrow(|scopes| {
        scopes.iter().rev().find_map(|scope| match &scope.frame {
            Frame::Autocast {
                scaler: ScopeScaler::Own(scaler),
                ..
            } => Some(scaler.clone()),
            _ => None,
        })
    })
}

/// The scaler for a backward pass or an optimizer step on a device: the innermost scope's own, else
/// the device's; none where losses are not scaled.
pub(crate) fn scaler(key: DeviceKey) -> Option<SharedScaler> {
    // A scope without loss scaling hides what is configured outside of it.
    if let Some(scaler) = scoped_scaler() {
        return scaler.state().is_enabled().then_some(scaler);
    }
    device_scaler(key)
}

fn device_scaler(key: DeviceKey) -> Option<SharedScaler> {
    with_device(key, |state| match &state?.scaling {
        DeviceScaling::On(scaler) => Some(scaler.clone()),
        DeviceScaling::Off { .. } => None,
    })
}

/// The scale for the backward pass of a loss on a device; 1 where nothing is scaled automatically.
pub(crate) fn begin_backward(key: DeviceKey) -> f32 {
    if AUTOMATIC_SCALING_OFF.get() > 0 {
        return 1.0;
    }
    if let Some(scaler) = scaler(key) {
        return scaler.begin_backward();
    }
    // A run without loss scaling has begun: a record that was loaded is not for the next one.
    with_device(key, |state| {
        if let Some(DeviceScaling::Off {
            dormant: Some(scaler),
        }) = state.map(|state| &state.scaling)
        {
            scaler.begin_backward();
        }
    });
    1.0
}

/// Whether a half-precision tensor on the device is read as f32.
pub(crate) fn reads_as_f32<D: DeviceOps>(device: &D) -> bool {
    let scoped = SCOPES.with_borrow(|scopes| {
        scopes.iter().rev().find_map(|scope| match &scope.frame {
            Frame::Autocast { policy, .. } if policy.precision != Precision::F32 => {
                Some(policy.readback == Readback::F32)
            }
            _ => None,
        })
    });
    scoped.unwrap_or_else(|| {
        with_device(DeviceKey::of(device), |state| match state {
            Some(state) if state.policy.precision != Precision::F32 => {
                state.policy.readback == Readback::F32
            }
            // A tensor that a scope lowered may outlive it.
            _ => HAS_AUTOCAST.get(),
        })
    })
}
