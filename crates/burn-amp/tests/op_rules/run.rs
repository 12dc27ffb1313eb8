//! Calls ops on backends, with inputs and results as plain values.

use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::ops::{BoolTensor, FloatTensor, IntTensor};
use burn::tensor::{DType, Shape, TensorData, TensorMetadata, read_sync};
use burn_amp::Op;

use crate::cases;
use crate::common::SplitMix64;

/// A result of an op on a backend.
pub enum Output<B: Backend> {
    Float(FloatTensor<B>),
    Int(IntTensor<B>),
    Bool(BoolTensor<B>),
}

/// The values that an op is defined on, or is interesting on.
#[derive(Debug, Clone, Copy)]
pub enum Domain {
    Normal,
    Positive,
    /// Between -0.9 and 0.9.
    Unit,
    AboveOne,
    /// Logarithms of probabilities.
    LogProbability,
}

/// The shape and the values of an input, not yet its type.
#[derive(Debug, Clone)]
pub struct Input {
    pub shape: Vec<usize>,
    domain: Domain,
}

impl Input {
    pub fn new<const D: usize>(shape: [usize; D], domain: Domain) -> Self {
        Self {
            shape: shape.to_vec(),
            domain,
        }
    }

    fn draw(&self, rng: &mut SplitMix64) -> f64 {
        match self.domain {
            Domain::Normal => rng.next_normal(),
            Domain::Positive => 0.1 + 2.0 * rng.next_f64(),
            Domain::Unit => 1.8 * rng.next_f64() - 0.9,
            Domain::AboveOne => 1.1 + 2.0 * rng.next_f64(),
            Domain::LogProbability => -0.2 - 2.0 * rng.next_f64(),
        }
    }
}

/// A tensor without a backend; `dtype` is that of a float tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    pub dtype: Option<DType>,
    pub shape: Vec<usize>,
    pub values: Vec<f64>,
}

impl Value {
    /// A float tensor, with the values rounded to its type.
    pub fn float(values: &[f64], shape: &[usize], dtype: DType) -> Self {
        Self {
            dtype: Some(dtype),
            shape: shape.to_vec(),
            values: values.iter().map(|value| round(*value, dtype)).collect(),
        }
    }

    /// Casts by hand: float tensors only.
    pub fn cast(&self, dtype: DType) -> Self {
        match self.dtype {
            Some(_) => Self::float(&self.values, &self.shape, dtype),
            None => self.clone(),
        }
    }

    /// Loads a float tensor.
    pub fn load<B: Backend>(&self) -> FloatTensor<B> {
        let dtype = self.dtype.expect("a float tensor");
        let shape = Shape::from(self.shape.clone());
        let data = TensorData::new(self.values.clone(), shape).convert_dtype(dtype);
        B::float_from_data(data, &Default::default())
    }

    pub fn read<B: Backend>(tensor: FloatTensor<B>) -> Self {
        let (dtype, shape) = (tensor.dtype(), tensor.shape());
        let data = read_sync(B::float_into_data(tensor)).expect("a readable tensor");
        Self::of(Some(dtype), shape, data)
    }

    fn of(dtype: Option<DType>, shape: Shape, data: TensorData) -> Self {
        Self {
            dtype,
            shape: shape.iter().copied().collect(),
            values: data.iter::<f64>().collect(),
        }
    }

    pub fn largest(&self) -> f64 {
        self.values
            .iter()
            .fold(0.0, |max, value| value.abs().max(max))
    }

    /// Whether type, shape and every bit agree; all NaN are one.
    pub fn is_same(&self, other: &Self) -> bool {
        let bits = |values: &[f64]| -> Vec<u64> {
            let canonical = |value: &f64| if value.is_nan() { f64::NAN } else { *value };
            values
                .iter()
                .map(|value| canonical(value).to_bits())
                .collect()
        };
        self.dtype == other.dtype
            && self.shape == other.shape
            && bits(&self.values) == bits(&other.values)
    }

    /// The largest difference, relative to the largest value if that is more than a thousandth.
    pub fn distance(&self, other: &Self) -> f64 {
        assert_eq!(self.shape, other.shape);
        let scale = self.largest().max(other.largest()).max(1e-3);
        self.values
            .iter()
            .zip(&other.values)
            .map(|(a, b)| match (a - b).abs() {
                _ if a.to_bits() == b.to_bits() => 0.0,
                difference if difference.is_nan() => f64::INFINITY,
                difference => difference / scale,
            })
            .fold(0.0, f64::max)
    }
}

/// Rounds to nearest even, from the f32 or the half that the value is. Conversions from f64 would
/// not do: those of the half crate, and so of Flex's casts, look at 20 of the 52 bits.
fn round(value: f64, dtype: DType) -> f64 {
    match dtype {
        DType::F64 => value,
        DType::F32 => f64::from(value as f32),
        DType::F16 => f64::from(half::f16::from_f32(value as f32)),
        DType::BF16 => f64::from(half::bf16::from_f32(value as f32)),
        _ => panic!("{dtype:?} is no float type"),
    }
}

/// The inputs of an op, the same for every backend and mode.
pub fn draw(op: Op, inputs: &[Input], dtypes: &[DType]) -> Vec<Value> {
    let mut rng = SplitMix64::new(op as u64);
    inputs
        .iter()
        .zip(dtypes)
        .map(|(input, dtype)| {
            let count = input.shape.iter().product();
            let values: Vec<f64> = (0..count).map(|_| input.draw(&mut rng)).collect();
            Value::float(&values, &input.shape, *dtype)
        })
        .collect()
}

fn read_all<B: Backend>(outputs: Vec<Output<B>>) -> Vec<Value> {
    outputs
        .into_iter()
        .map(|output| match output {
            Output::Float(tensor) => Value::read::<B>(tensor),
            Output::Int(tensor) => {
                let shape = tensor.shape();
                let data = read_sync(B::int_into_data(tensor)).expect("a readable tensor");
                Value::of(None, shape, data)
            }
            Output::Bool(tensor) => {
                let shape = tensor.shape();
                let data = read_sync(B::bool_into_data(tensor)).expect("a readable tensor");
                Value::of(None, shape, data.convert::<i64>())
            }
        })
        .collect()
}

fn load_all<B: Backend>(inputs: &[Value]) -> Vec<FloatTensor<B>> {
    inputs.iter().map(Value::load::<B>).collect()
}

/// Calls an op.
pub fn evaluate<B: Backend>(op: Op, inputs: &[Value]) -> Vec<Value> {
    read_all(cases::call::<B>(op, load_all::<B>(inputs)))
}

/// The control: operands cast by hand, the plain op, float results cast by hand.
pub fn control<B: Backend>(op: Op, inputs: &[Value], compute: DType, result: DType) -> Vec<Value> {
    let inputs: Vec<_> = inputs.iter().map(|input| input.cast(compute)).collect();
    let outputs = evaluate::<B>(op, &inputs);
    outputs.iter().map(|output| output.cast(result)).collect()
}

/// As [`evaluate`], with the gradients of the sum of the first float result.
/// Weights for a result's values, exact in every type: a plain sum would not tell a softmax's gradient
/// from zero.
pub fn weights(shape: &Shape, dtype: DType) -> Value {
    let cycle = [1.0, 0.5, 2.0, 0.25, 1.5].into_iter().cycle();
    let values: Vec<f64> = cycle.take(shape.num_elements()).collect();
    Value::float(&values, shape, dtype)
}

pub fn differentiate<B: AutodiffBackend>(
    op: Op,
    inputs: &[Value],
) -> (Vec<Value>, Vec<Option<Value>>) {
    let leaves: Vec<_> = load_all::<B>(inputs)
        .into_iter()
        .map(|input| B::float_set_require_grad(input, true))
        .collect();
    let outputs = cases::call::<B>(op, leaves.clone());

    let loss = outputs.iter().find_map(|output| match output {
        Output::Float(tensor) => Some(B::float_sum(B::float_mul(
            tensor.clone(),
            weights(&tensor.shape(), tensor.dtype()).load::<B>(),
        ))),
        _ => None,
    });
    let gradients = match loss {
        None => leaves.iter().map(|_| None).collect(),
        Some(loss) => {
            let gradients = B::backward(loss);
            leaves
                .iter()
                .map(|leaf| B::grad(leaf, &gradients).map(Value::read::<B::InnerBackend>))
                .collect()
        }
    };
    (read_all(outputs), gradients)
}
