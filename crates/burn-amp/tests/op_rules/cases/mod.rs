//! Inputs and a call for every op: the data of the tests.

mod activation;
mod arithmetic;
mod convolution;
mod indexing;
mod module;
mod reduction;

use burn::tensor::backend::Backend;
use burn::tensor::ops::{BoolTensor, FloatTensor, IntTensor};
use burn::tensor::{BoolDType, IntDType, Shape, TensorData, get_device_settings};
use burn_amp::Op;

use crate::run::{Domain, Input, Output};

/// Defines `inputs` and `call` of a file. Every line is an op, its inputs, and how it is called; the
/// sections say what comes out.
macro_rules! cases {
    ($($kind:ident { $($op:ident($($x:ident: $input:expr),+) => $call:expr;)* })*) => {
        pub fn inputs(op: Op) -> Option<Vec<Input>> {
            match op {
                $($(Op::$op => Some(vec![$($input),+]),)*)*
                _ => None,
            }
        }

        pub fn call<B: Backend>(
            op: Op,
            inputs: &[FloatTensor<B>],
        ) -> Option<Vec<Output<B>>> {
            let mut inputs = inputs.iter().cloned();
            match op {
                $($(Op::$op => {
                    $(let $x = inputs.next().expect(stringify!($op));)+
                    Some($kind::<B>($call))
                })*)*
                _ => None,
            }
        }
    };
}
use cases;

/// Looks an op up in a family.
type Family = fn(Op) -> Option<Vec<Input>>;

/// The inputs of an op, if it has a case.
pub fn inputs(op: Op) -> Option<Vec<Input>> {
    let families: [Family; 6] = [
        arithmetic::inputs,
        activation::inputs,
        convolution::inputs,
        indexing::inputs,
        module::inputs,
        reduction::inputs,
    ];
    families.iter().find_map(|inputs| inputs(op))
}

/// Calls an op.
pub fn call<B: Backend>(op: Op, inputs: Vec<FloatTensor<B>>) -> Vec<Output<B>> {
    type Call<B> = fn(Op, &[FloatTensor<B>]) -> Option<Vec<Output<B>>>;
    let families: [Call<B>; 6] = [
        arithmetic::call::<B>,
        activation::call::<B>,
        convolution::call::<B>,
        indexing::call::<B>,
        module::call::<B>,
        reduction::call::<B>,
    ];
    families
        .iter()
        .find_map(|call| call(op, &inputs))
        .unwrap_or_else(|| panic!("{op} has no case"))
}

// Kinds of results

fn float<B: Backend>(tensor: FloatTensor<B>) -> Vec<Output<B>> {
    vec![Output::Float(tensor)]
}

fn int<B: Backend>(tensor: IntTensor<B>) -> Vec<Output<B>> {
    vec![Output::Int(tensor)]
}

fn bool<B: Backend>(tensor: BoolTensor<B>) -> Vec<Output<B>> {
    vec![Output::Bool(tensor)]
}

fn floats<B: Backend>(tensors: Vec<FloatTensor<B>>) -> Vec<Output<B>> {
    tensors.into_iter().map(Output::Float).collect()
}

fn indexed<B: Backend>((tensor, indices): (FloatTensor<B>, IntTensor<B>)) -> Vec<Output<B>> {
    vec![Output::Float(tensor), Output::Int(indices)]
}

// Inputs

fn normal<const D: usize>(shape: [usize; D]) -> Input {
    Input::new(shape, Domain::Normal)
}

fn positive<const D: usize>(shape: [usize; D]) -> Input {
    Input::new(shape, Domain::Positive)
}

fn unit<const D: usize>(shape: [usize; D]) -> Input {
    Input::new(shape, Domain::Unit)
}

fn above_one<const D: usize>(shape: [usize; D]) -> Input {
    Input::new(shape, Domain::AboveOne)
}

fn log_probability<const D: usize>(shape: [usize; D]) -> Input {
    Input::new(shape, Domain::LogProbability)
}

// What is passed beside float tensors

fn bools<B: Backend>() -> BoolDType {
    get_device_settings::<B>(&Default::default()).bool_dtype
}

fn ints<B: Backend>() -> IntDType {
    get_device_settings::<B>(&Default::default()).int_dtype
}

fn indices<B: Backend, const D: usize>(values: &[i64], shape: [usize; D]) -> IntTensor<B> {
    let data = TensorData::new(values.to_vec(), Shape::from(shape));
    B::int_from_data(data.convert_dtype(ints::<B>().into()), &Default::default())
}

/// True at every third element.
fn mask<B: Backend, const D: usize>(shape: [usize; D]) -> BoolTensor<B> {
    let count: usize = shape.iter().product();
    let values: Vec<bool> = (0..count).map(|index| index % 3 == 0).collect();
    let data = TensorData::new(values, Shape::from(shape));
    B::bool_from_data(data, &Default::default())
}
