//! The precisions that the rules are tested in.

use burn::tensor::DType;
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::{AmpConfig, Autocast, full_precision};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Off,
    F16,
    Bf16,
    /// A full-precision scope inside one of f16.
    FullPrecision,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::Off, Mode::F16, Mode::Bf16, Mode::FullPrecision];

    /// The compute type of mixed precision.
    pub fn half(self) -> Option<DType> {
        match self {
            Mode::F16 => Some(DType::F16),
            Mode::Bf16 => Some(DType::BF16),
            Mode::Off | Mode::FullPrecision => None,
        }
    }

    /// Runs `f` in this mode, without loss scaling.
    pub fn run<R>(self, f: impl FnOnce() -> R) -> R {
        let config = match self {
            Mode::Off => AmpConfig::f32(),
            Mode::F16 | Mode::FullPrecision => AmpConfig::f16(),
            Mode::Bf16 => AmpConfig::bf16(),
        };
        let config = config.with_loss_scale(LossScaleConfig::none());
        let amp = Autocast::new(&config).expect("a valid configuration");
        match self {
            Mode::FullPrecision => amp.run(|| full_precision(f)),
            _ => amp.run(f),
        }
    }
}
