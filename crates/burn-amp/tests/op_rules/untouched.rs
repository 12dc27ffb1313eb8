//! What mixed precision never touches: f64, int, bool and quantized tensors.

use burn::backend::Flex;
use burn::tensor::backend::Backend;
use burn::tensor::quantization::{QuantLevel, QuantScheme, QuantValue};
use burn::tensor::{Bool, DType, FloatDType, Int, Tensor, TensorData, TensorPrimitive};
use burn_amp::{Amp, Autodiff, Counters, Op};

use crate::common;
use crate::mode::Mode;
use crate::run::{Value, evaluate};

/// Runs a program on plain Flex, and under both half types in both orders, without a single cast.
macro_rules! check_same_everywhere {
    ($program:ident) => {
        let plain = $program::<Flex>();
        for mode in [Mode::F16, Mode::Bf16, Mode::FullPrecision] {
            Counters::reset();
            assert_eq!(mode.run($program::<Amp<Flex>>), plain, "{mode:?}");
            assert_eq!(mode.run($program::<Autodiff<Amp<Flex>>>), plain, "{mode:?}");
            assert_eq!(
                mode.run($program::<burn::backend::Autodiff<Amp<Flex>>>),
                plain,
                "{mode:?}"
            );
            assert_eq!(Counters::get().casts, 0, "{mode:?}");
        }
    };
}

fn doubles<B: Backend>() -> Vec<TensorData> {
    let device = Default::default();
    let x = || common::tensor::<B, 2>(&[1.0, -2.0, 1e300, 0.1], [2, 2], DType::F64, &device);
    vec![
        x().matmul(x()),
        x() + 1e-8,
        x() * x(),
        x().exp(),
        burn::tensor::activation::softmax(x(), 1),
        burn::tensor::activation::gelu(x()),
        x().sum_dim(1),
        x().clamp(-1e-8, 1e200),
    ]
    .into_iter()
    .map(|tensor| {
        assert_eq!(tensor.dtype(), DType::F64);
        tensor.into_data()
    })
    .collect()
}

#[test]
fn should_leave_f64_alone() {
    check_same_everywhere!(doubles);
}

fn integers<B: Backend>() -> Vec<TensorData> {
    let device = Default::default();
    let x = || Tensor::<B, 2, Int>::from_data([[7, -2], [70000, 3]], &device);
    let mask = || x().greater_elem(5);
    vec![
        (x() + x()).into_data(),
        (x() * 3).into_data(),
        (x() / 2).into_data(),
        x().matmul(x()).into_data(),
        x().sum().into_data(),
        x().mean_dim(1).into_data(),
        x().cumsum(0).into_data(),
        x().argmax(1).into_data(),
        x().sort(1).into_data(),
        x().bitwise_and(x()).into_data(),
        x().mask_fill(mask(), 65505).into_data(),
        Tensor::cat(vec![x(), x()], 0).into_data(),
        Tensor::<B, 1, Int>::arange(0..5, &device).into_data(),
        // An explicit conversion: the result has the default type of the device, not the compute type.
        x().float().into_data(),
    ]
}

#[test]
fn should_leave_integers_alone() {
    check_same_everywhere!(integers);
}

fn booleans<B: Backend>() -> Vec<TensorData> {
    let device = Default::default();
    let x = || Tensor::<B, 2, Bool>::from_data([[true, false], [true, true]], &device);
    vec![
        x().bool_and(x()).into_data(),
        x().bool_not().into_data(),
        x().any().into_data(),
        x().all_dim(1).into_data(),
        x().argwhere().into_data(),
        x().int().into_data(),
        x().float().into_data(),
        x().transpose().into_data(),
    ]
}

#[test]
fn should_leave_booleans_alone() {
    check_same_everywhere!(booleans);
}

fn creations<B: Backend>() -> Vec<DType> {
    let device = Default::default();
    let shape = [2, 3];
    let x = Tensor::<B, 2>::zeros(shape, &device);
    vec![
        x.dtype(),
        Tensor::<B, 2>::ones(shape, &device).dtype(),
        Tensor::<B, 2>::full(shape, 0.1, &device).dtype(),
        Tensor::<B, 2>::empty(shape, &device).dtype(),
        Tensor::<B, 2>::ones(shape, (&device, DType::F64)).dtype(),
        x.clone().cast(DType::F64).dtype(),
        x.clone().cast(DType::BF16).dtype(),
        x.cast(DType::F16).cast(DType::F32).dtype(),
    ]
}

#[test]
fn should_create_and_cast_as_the_program_says() {
    check_same_everywhere!(creations);
}

fn scheme() -> QuantScheme {
    QuantScheme::default()
        .with_value(QuantValue::Q8S)
        .with_level(QuantLevel::Tensor)
}

/// Quantizes, computes, and brings back; autodiff has no quantized ops.
fn quantized<B: Backend>() -> Vec<Value> {
    let x = || Value::float(&[0.5, -1.0, 2.0, 0.25], &[2, 2], DType::F32).load::<B>();
    let q = || B::quantize_dynamic(x(), &scheme());
    let float = |primitive| match primitive {
        TensorPrimitive::Float(tensor) => tensor,
        TensorPrimitive::QFloat(tensor) => B::dequantize(tensor, FloatDType::F32),
    };
    vec![
        B::dequantize(q(), FloatDType::F32),
        B::dequantize(q(), FloatDType::F64),
        B::dequantize(B::q_transpose(q()), FloatDType::F32),
        B::dequantize(B::q_reshape(q(), [4].into()), FloatDType::F32),
        float(B::q_add(q(), q())),
        float(B::q_mul_scalar(q(), 3.0.into())),
        float(B::q_sum_dim(q(), 1)),
        float(B::q_exp(q())),
        float(B::q_matmul(
            TensorPrimitive::QFloat(q()),
            TensorPrimitive::QFloat(q()),
        )),
    ]
    .into_iter()
    .map(Value::read::<B>)
    .collect()
}

#[test]
fn should_leave_quantized_tensors_alone() {
    let plain = quantized::<Flex>();
    for mode in [Mode::F16, Mode::Bf16, Mode::FullPrecision] {
        Counters::reset();
        assert_eq!(mode.run(quantized::<Amp<Flex>>), plain, "{mode:?}");
        assert_eq!(Counters::get().casts, 0, "{mode:?}");
    }
}

#[test]
fn should_quantize_half_tensors_with_ranges_in_f32() {
    fn quantize<B: Backend>(dtype: DType) -> Value {
        let x = Value::float(&[0.1, -1.0, 2.0, 0.3], &[2, 2], DType::F16).load::<B>();
        let x = B::float_cast(x, dtype.into());
        Value::read::<B>(B::dequantize(
            B::quantize_dynamic(x, &scheme()),
            FloatDType::F32,
        ))
    }
    let control = quantize::<Flex>(DType::F32);
    assert!(
        Mode::F16
            .run(|| quantize::<Amp<Flex>>(DType::F16))
            .is_same(&control)
    );
}

#[test]
fn should_lower_the_float_operand_of_a_quantized_product() {
    fn product<B: Backend>(dtype: DType) -> Value {
        let x = || Value::float(&[0.1, -1.0, 2.0, 0.3], &[2, 2], DType::F32).load::<B>();
        let quantized = TensorPrimitive::QFloat(B::quantize_dynamic(x(), &scheme()));
        let float = TensorPrimitive::Float(B::float_cast(x(), dtype.into()));
        match B::q_matmul(float, quantized) {
            TensorPrimitive::Float(tensor) => Value::read::<B>(tensor),
            TensorPrimitive::QFloat(_) => panic!("the product of a float tensor is quantized"),
        }
    }
    for (mode, dtype) in [
        (Mode::F16, DType::F16),
        (Mode::Bf16, DType::BF16),
        (Mode::Off, DType::F32),
    ] {
        let control = product::<Flex>(dtype);
        assert_eq!(control.dtype, Some(dtype));
        assert!(
            mode.run(|| product::<Amp<Flex>>(DType::F32))
                .is_same(&control),
            "{mode:?}"
        );
    }
}

#[test]
fn should_reach_an_op_that_the_rules_exempt_with_the_type_it_was_given() {
    let x = Value::float(&[0.1, 0.2], &[2], DType::F16);
    let moved = Mode::F16.run(|| {
        let device = Default::default();
        let tensor = <Amp<Flex> as burn::tensor::ops::FloatTensorOps<_>>::float_to_device(
            x.load::<Amp<Flex>>(),
            &device,
        );
        tensor.dtype()
    });
    assert_eq!(moved, DType::F16);
    let negated = evaluate::<Amp<Flex>>(Op::float_neg, &[x]);
    assert_eq!(negated[0].dtype, Some(DType::F16));
}
