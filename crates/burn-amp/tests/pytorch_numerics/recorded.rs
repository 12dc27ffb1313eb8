//! The recorded data, `tests/data/micro_numerics.json`, as types.

use std::sync::LazyLock;

use burn::tensor::DType;
use serde::{Deserialize, Deserializer};

/// Everything that the file holds and the tests use.
#[derive(Debug, Deserialize)]
pub struct Recorded {
    pub case_count: usize,
    pub cases: Vec<Case>,
    pub rounding_f32_to_low: Rows<Rounding>,
    pub small_network: SmallNetwork,
    pub gradient_underflow: Rows<Underflow>,
}

pub static RECORDED: LazyLock<Recorded> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../data/micro_numerics.json"))
        .expect("the recorded data is of this form")
});

#[derive(Debug, Deserialize)]
pub struct Rows<T> {
    pub rows: Vec<T>,
}

/// One hard case: an op on given inputs, and what f64 and PyTorch's autocast make of it.
#[derive(Debug, Deserialize)]
pub struct Case {
    pub name: String,
    pub inputs_f32: Vec<Input>,
    pub results: Results,
}

/// An input: its values, or a rule that makes them.
#[derive(Debug, Clone, Deserialize)]
pub struct Input {
    pub shape: Vec<usize>,
    #[serde(default, deserialize_with = "optional_numbers")]
    pub values: Option<Vec<f64>>,
    pub rule: Option<String>,
}

#[derive(Debug, Deserialize)]
pub struct Results {
    #[serde(deserialize_with = "one_or_many")]
    pub f64: Vec<Output>,
    pub f16: Low,
    pub bf16: Low,
}

/// What PyTorch's autocast to one half type gave.
#[derive(Debug, Deserialize)]
pub struct Low {
    #[serde(rename = "autocast_from_f32_input", deserialize_with = "one_or_many")]
    pub from_f32: Vec<Output>,
    #[serde(
        alias = "autocast_from_f16_input",
        alias = "autocast_from_bf16_input",
        deserialize_with = "one_or_many"
    )]
    pub from_low: Vec<Output>,
    #[serde(default)]
    pub inputs_rounded: Vec<Numbers>,
}

/// A tensor: all its values, or for a large one its ends.
#[derive(Debug, Clone, Deserialize)]
pub struct Output {
    #[serde(default, deserialize_with = "optional_numbers")]
    values: Option<Vec<f64>>,
    #[serde(default, deserialize_with = "optional_numbers")]
    first_8: Option<Vec<f64>>,
    #[serde(default, deserialize_with = "optional_numbers")]
    last_4: Option<Vec<f64>>,
}

impl Output {
    /// The recorded values.
    pub fn values(&self) -> Vec<f64> {
        match (&self.values, &self.first_8, &self.last_4) {
            (Some(values), ..) => values.clone(),
            (None, Some(first), Some(last)) => [first.as_slice(), last].concat(),
            _ => panic!("neither values nor a summary: {self:?}"),
        }
    }

    /// Those of our values that the record has counterparts of.
    pub fn select(&self, ours: &[f64]) -> Vec<f64> {
        match self.values {
            Some(_) => ours.to_vec(),
            None => [&ours[..8], &ours[ours.len() - 4..]].concat(),
        }
    }
}

#[derive(Debug, Deserialize)]
pub struct Rounding {
    #[serde(deserialize_with = "bits_u32")]
    pub f32_bits: u32,
    #[serde(deserialize_with = "bits_u16")]
    pub f16_bits: u16,
    #[serde(deserialize_with = "bits_u16")]
    pub bf16_bits: u16,
}

/// A two-layer network's loss and gradients.
#[derive(Debug, Deserialize)]
pub struct SmallNetwork {
    pub inputs_f32: NetworkTensors<Numbers>,
    pub fp32: NetworkRun,
    pub autocast_bf16: NetworkRun,
    pub autocast_f16_scale_1: NetworkRun,
    pub autocast_f16_scale_1024: NetworkRun,
    pub autocast_f16_scale_65536: NetworkRun,
    #[serde(rename = "autocast_f16_scale_2^24")]
    pub autocast_f16_scale_2_24: NetworkRun,
}

#[derive(Debug, Deserialize)]
pub struct NetworkRun {
    pub scale: f32,
    pub loss: f64,
    pub grads_unscaled: NetworkTensors<Output>,
}

/// One value list for each tensor of the network, in PyTorch's layout (weights `[out, in]`).
#[derive(Debug, Deserialize)]
pub struct NetworkTensors<T> {
    pub x: T,
    pub w1: T,
    pub b1: T,
    pub w2: T,
    pub b2: T,
}

impl NetworkRun {
    /// The recorded gradients.
    pub fn gradients(&self) -> NetworkTensors<Vec<f64>> {
        let NetworkTensors { x, w1, b1, w2, b2 } = &self.grads_unscaled;
        NetworkTensors { x, w1, b1, w2, b2 }.map(Output::values)
    }
}

impl<T> NetworkTensors<T> {
    pub fn map<U>(self, f: impl FnMut(T) -> U) -> NetworkTensors<U> {
        let Self { x, w1, b1, w2, b2 } = self;
        let [x, w1, b1, w2, b2] = [x, w1, b1, w2, b2].map(f);
        NetworkTensors { x, w1, b1, w2, b2 }
    }
}

/// A gradient on its way through a low-precision linear layer.
#[derive(Debug, Deserialize)]
pub struct Underflow {
    pub mode: String,
    pub upstream_gradient: f64,
    pub scale: f32,
    pub grad_w_unscaled: Numbers,
}

/// The type that a name of the record stands for.
pub fn dtype_of(name: &str) -> DType {
    match name {
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        _ => panic!("not a half type: {name}"),
    }
}

/// Numbers as JSON has them, infinities and NaN as strings.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub struct Numbers {
    #[serde(deserialize_with = "numbers")]
    pub values: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    NonFinite(String),
}

fn numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    let numbers = Vec::<Number>::deserialize(deserializer)?;
    numbers
        .into_iter()
        .map(|number| match number {
            Number::Finite(value) => Ok(value),
            // Rust reads `inf`, `-inf` and `nan`.
            Number::NonFinite(name) => name.parse().map_err(serde::de::Error::custom),
        })
        .collect()
}

fn optional_numbers<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<f64>>, D::Error> {
    numbers(deserializer).map(Some)
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Output>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        Many(Vec<Output>),
        One(Output),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(output) => vec![output],
        OneOrMany::Many(outputs) => outputs,
    })
}

fn bits(digits: &str) -> Option<u32> {
    u32::from_str_radix(digits.strip_prefix("0x")?, 16).ok()
}

fn bits_u32<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let digits = String::deserialize(deserializer)?;
    bits(&digits).ok_or_else(|| serde::de::Error::custom(digits))
}

fn bits_u16<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u16, D::Error> {
    let digits = String::deserialize(deserializer)?;
    bits(&digits)
        .and_then(|bits| bits.try_into().ok())
        .ok_or_else(|| serde::de::Error::custom(digits))
}
