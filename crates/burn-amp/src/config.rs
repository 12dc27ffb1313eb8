use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::DType;
use serde::{Deserialize, Serialize};

use crate::AmpError;
use crate::device::AmpDevice;
use crate::loss_scale::{DynamicLossScaleConfig, LossScaleConfig};
use crate::policy::{
    self, DeviceKey, Install, Op, OpClass, Policy, Precision, Readback, Reduction,
};

/// Configures mixed precision: the compute type, exceptions for single ops, loss scaling.
///
/// A configuration is installed for a device with [`init`](AmpConfig::init), or put in force for a
/// closure with [`autocast`](crate::autocast).
///
/// # Example
///
/// ```
/// use burn_amp::{AmpConfig, OpClass};
///
/// # fn main() -> Result<(), burn_amp::AmpError> {
/// let device = burn::backend::flex::FlexDevice;
/// AmpConfig::f16()
///     .with_op("softmax", OpClass::Keep)
///     .with_growth_interval(500)
///     .init(&device)?;
/// # AmpConfig::f32().init(&device)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AmpConfig {
    precision: Precision,
    ops: BTreeMap<String, OpClass>,
    #[serde(skip_serializing_if = "Option::is_none")]
    loss_scale: Option<LossScaleConfig>,
    readback: Readback,
    fallback: bool,
    reduction: Reduction,
}

impl AmpConfig {
    /// Mixed precision off: every op runs in the types that it is given, nothing is scaled.
    pub fn f32() -> Self {
        Self::default()
    }

    /// Mixed precision in bfloat16, without loss scaling: bf16 has the range of f32.
    pub fn bf16() -> Self {
        Self::new(Precision::Bf16)
    }

    /// Mixed precision in float16, with dynamic loss scaling.
    pub fn f16() -> Self {
        Self::new(Precision::F16)
    }

    /// [`bf16`](AmpConfig::bf16) where the device supports it, else [`f16`](AmpConfig::f16), else
    /// [`f32`](AmpConfig::f32) with one line in the log.
    pub fn auto() -> Self {
        Self::new(Precision::Auto)
    }

    /// The configuration for a precision that is a value, as one from the command line.
    pub fn new(precision: Precision) -> Self {
        Self {
            precision,
            ..Self::default()
        }
    }

    /// Gives one op another class, by Burn's name for it: `"matmul"` or `"float_matmul"`.
    ///
    /// Names and classes are checked when the configuration is used.
    pub fn with_op(mut self, op: impl Into<String>, class: OpClass) -> Self {
        self.ops.insert(op.into(), class);
        self
    }

    /// Sets the loss scaling. The default is dynamic for f16 and none for bf16 and f32.
    pub fn with_loss_scale(mut self, loss_scale: LossScaleConfig) -> Self {
        self.loss_scale = Some(loss_scale);
        self
    }

    /// Makes loss scaling dynamic with this many finite steps between growths (default 2000).
    ///
    /// Other settings of a dynamic scale that was set before are kept.
    pub fn with_growth_interval(self, growth_interval: u32) -> Self {
        let dynamic = match &self.loss_scale {
            Some(LossScaleConfig::Dynamic(dynamic)) => dynamic.clone(),
            _ => DynamicLossScaleConfig::new(),
        };
        self.with_loss_scale(LossScaleConfig::Dynamic(
            dynamic.with_growth_interval(growth_interval),
        ))
    }

    /// Sets what reading a half-precision tensor returns (default: f32).
    pub fn with_readback(mut self, readback: Readback) -> Self {
        self.readback = readback;
        self
    }

    /// Whether a device that lacks the compute type runs in f32, with one line in the log, instead
    /// of being refused (default: refused).
    pub fn with_fallback(mut self, fallback: bool) -> Self {
        self.fallback = fallback;
        self
    }

    /// Sets the type in which gradients go from device to device to be summed or averaged (default:
    /// f32): between the workers of `ddp`, and where an [`AmpOptimizer`](crate::AmpOptimizer) is handed
    /// gradients of several devices. Half types halve the bytes; values are rounded once to send them.
    ///
    /// The workers of `ddp` send gradients that are still multiplied by the loss scale, so that small
    /// ones survive in f16, after their backward pass instead of during it. Everywhere else true
    /// gradients are sent, of which f16 holds none below 3e-8 and none beyond 65504, so that steps may be
    /// skipped for good: prefer bf16 there. Burn's own order of the decorators sends them in the type they
    /// have, and so does its strategy `OptimMainDevice`, before an optimizer sees them.
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// The precision that is asked for.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// The loss scaling in force for `precision`: the one that was set, or the precision's own.
    fn loss_scale_for(&self, precision: Precision) -> LossScaleConfig {
        match (&self.loss_scale, precision) {
            (Some(loss_scale), _) => loss_scale.clone(),
            (None, Precision::F16) => LossScaleConfig::dynamic(),
            (None, Precision::F32 | Precision::Bf16 | Precision::Auto) => LossScaleConfig::none(),
        }
    }

    /// Installs the configuration for a device, for every thread, and returns the precision that it
    /// comes to there.
    ///
    /// Call it before a run: the loss scale starts at its initial value, whatever an earlier run in the
    /// same process left. A scale that an optimizer's record has just brought is kept, so the record may
    /// be loaded before or after. In the middle of a run use [`switch`](AmpConfig::switch).
    ///
    /// # Errors
    ///
    /// The device lacks the type, an op name is unknown, a setting is out of range.
    pub fn init<D: AmpDevice>(&self, device: &D) -> Result<Precision, AmpError> {
        self.init_devices(std::slice::from_ref(device))
    }

    /// Installs the configuration for the devices that train one model together, for every thread, and
    /// returns the precision that it comes to on all of them.
    ///
    /// The loss scale of each moves by what an optimizer found on any of them, so that none goes on with
    /// a scale that has overflowed elsewhere; a record that was loaded for the first is everyone's. Use it
    /// for the multi-device strategies of Burn's `Learner` and for `ddp`, with the devices the strategy is
    /// given. A device may be named twice. [`init`](AmpConfig::init) takes a device out again.
    ///
    /// # Errors
    ///
    /// As [`init`](AmpConfig::init), if any device lacks the type; or there is no device.
    ///
    /// # Example
    ///
    /// ```standalone_crate
    /// use burn::backend::flex::FlexDevice;
    /// use burn_amp::{AmpConfig, Precision};
    ///
    /// # fn main() -> Result<(), burn_amp::AmpError> {
    /// let devices = vec![FlexDevice, FlexDevice];
    /// assert_eq!(AmpConfig::auto().init_devices(&devices)?, Precision::Bf16);
    /// # Ok(())
    /// # }
    /// ```
    pub fn init_devices<D: AmpDevice>(&self, devices: &[D]) -> Result<Precision, AmpError> {
        self.install(devices, Install::Begin)
    }

    /// As [`init`](AmpConfig::init), in the middle of a run, between steps: the loss scale goes on from
    /// where it was as far as the new settings allow, also after a time without loss scaling. A device of
    /// several stays with the others, which are to be switched too.
    ///
    /// # Errors
    ///
    /// As [`init`](AmpConfig::init).
    ///
    /// # Example
    ///
    /// ```standalone_crate
    /// use burn_amp::AmpConfig;
    ///
    /// # fn main() -> Result<(), burn_amp::AmpError> {
    /// let device = burn::backend::flex::FlexDevice;
    /// AmpConfig::f32().init(&device)?;
    /// // the first steps, then
    /// AmpConfig::f16().switch(&device)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn switch<D: AmpDevice>(&self, device: &D) -> Result<Precision, AmpError> {
        self.install(std::slice::from_ref(device), Install::Switch)
    }

    fn install<D: AmpDevice>(&self, devices: &[D], how: Install) -> Result<Precision, AmpError> {
        let mut policy = self.policy()?;
        policy.precision = self.resolve(devices)?;
        policy.reduction = self.resolve_reduction(devices)?;
        let loss_scale = self.loss_scale_for(policy.precision);

        if policy.precision == Precision::F16 && matches!(loss_scale, LossScaleConfig::None) {
            log::warn!("f16 without loss scaling: gradients below 6e-8 become zero");
        }
        let precision = policy.precision;
        let mut keys: Vec<DeviceKey> = Vec::new();
        for key in devices.iter().map(DeviceKey::of) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        policy::install(&keys, policy, loss_scale, how)?;
        Ok(precision)
    }

    fn resolve<D: AmpDevice>(&self, devices: &[D]) -> Result<Precision, AmpError> {
        if devices.is_empty() {
            return Err(AmpError::NoDevice);
        }
        let lacks = |dtype| devices.iter().find(|device| !device.supports_dtype(dtype));
        let name = |dtype| format!("{:?}", lacks(dtype).unwrap_or(&devices[0]));

        match policy::resolve(self.precision, |dtype| lacks(dtype).is_none()) {
            Ok(Precision::F32) if self.precision == Precision::Auto => {
                log::info!(
                    "device {} has neither bf16 nor f16: running in f32",
                    name(DType::F16)
                );
                Ok(Precision::F32)
            }
            Ok(precision) => Ok(precision),
            Err(dtype) if self.fallback => {
                log::info!(
                    "device {} does not support {dtype:?}: running in f32",
                    name(dtype)
                );
                Ok(Precision::F32)
            }
            Err(dtype) => Err(AmpError::UnsupportedDType {
                device: name(dtype),
                dtype,
                precision: self.precision,
            }),
        }
    }

    fn resolve_reduction<D: AmpDevice>(&self, devices: &[D]) -> Result<Reduction, AmpError> {
        let reduction = self.reduction;
        let lacking = reduction.half().and_then(|half| {
            let dtype = half.dtype().into();
            devices.iter().find(|device| !device.supports_dtype(dtype))
        });
        match lacking {
            None => Ok(reduction),
            Some(device) if self.fallback => {
                log::info!("device {device:?} does not support {reduction:?}: reducing in f32");
                Ok(Reduction::F32)
            }
            Some(device) => Err(AmpError::UnsupportedReduction {
                device: format!("{device:?}"),
                reduction,
            }),
        }
    }

    /// Checks everything that can be checked without a device.
    ///
    /// # Errors
    ///
    /// As [`init`](AmpConfig::init), but for the device.
    pub fn validate(&self) -> Result<(), AmpError> {
        self.policy()?;
        self.loss_scale_for(self.precision).validate()?;
        Ok(())
    }

    /// The rules, with op names looked up and overrides checked.
    pub(crate) fn policy(&self) -> Result<Policy, AmpError> {
        let overrides = self
            .ops
            .iter()
            .map(|(name, class)| {
                let op = Op::find(name)?;
                let refused = |reason| AmpError::InvalidOverride {
                    op,
                    class: *class,
                    reason,
                };
                match (op.class(), class) {
                    (OpClass::Exempt, _) => Err(refused("the rules never touch this op")),
                    (_, OpClass::Exempt) => Err(refused("use keep to leave an op's inputs alone")),
                    _ => Ok((op, *class)),
                }
            })
            .collect::<Result<_, _>>()?;

        Ok(Policy {
            precision: self.precision,
            readback: self.readback,
            overrides,
            fallback: self.fallback,
            reduction: self.reduction,
        })
    }

    /// The loss scaling of a scope, whose device is not known yet.
    pub(crate) fn scope_loss_scale(&self) -> Result<LossScaleConfig, AmpError> {
        // Auto may come to f16; in bf16 a scale changes nothing but the exponent.
        let precision = match self.precision {
            Precision::Auto => Precision::F16,
            precision => precision,
        };
        let loss_scale = self.loss_scale_for(precision);
        loss_scale.validate()?;
        Ok(loss_scale)
    }

    /// Writes the configuration as JSON.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), AmpError> {
        let path = path.as_ref();
        let json = serde_json::to_string_pretty(self).map_err(|source| AmpError::Json {
            path: path.to_owned(),
            source,
        })?;
        std::fs::write(path, json + "\n").map_err(|source| AmpError::Io {
            path: path.to_owned(),
            source,
        })
    }

    /// Reads a configuration from JSON and checks it.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is not a configuration, has an unknown field or op, or a setting
    /// out of range.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, AmpError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|source| AmpError::Io {
            path: path.to_owned(),
            source,
        })?;
        let config: Self = serde_json::from_str(&text).map_err(|source| AmpError::Json {
            path: path.to_owned(),
            source,
        })?;
        config.validate()?;
        Ok(config)
    }
}
