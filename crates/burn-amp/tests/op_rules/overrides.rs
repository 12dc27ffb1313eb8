//! Classes that a configuration gives to single ops.

use burn::backend::Flex;
use burn::tensor::DType::{self, BF16, F16, F32};
use burn::tensor::backend::Backend;
use burn_amp::loss_scale::LossScaleConfig;
use burn_amp::{Amp, AmpConfig, Autocast, Autodiff, Op, OpClass, full_precision};

use crate::cases;
use crate::run::{self, Value, draw, evaluate};

/// An override, the types that the op is then called with, what it computes in and returns.
type Case = (&'static str, OpClass, &'static [DType], DType, DType);

const CASES: [Case; 10] = [
    ("matmul", OpClass::Full, &[F16, F16], F32, F32),
    ("float_matmul", OpClass::Keep, &[F32, F32], F32, F32),
    ("softmax", OpClass::Keep, &[F16], F16, F16),
    ("softmax", OpClass::Lower, &[F32], F16, F16),
    ("add", OpClass::Lower, &[F32, F32], F16, F16),
    ("add", OpClass::Full, &[F16, F16], F32, F32),
    ("sigmoid", OpClass::Widen, &[F16], F32, F16),
    ("sigmoid", OpClass::Widen, &[BF16], F32, BF16),
    ("exp", OpClass::Promote, &[F16], F16, F16),
    ("relu", OpClass::Full, &[F16], F32, F32),
];

fn inputs(op: Op, dtypes: &[DType]) -> Vec<Value> {
    draw(op, &cases::inputs(op).unwrap(), dtypes)
}

fn call<B: Backend>(op: Op, inputs: &[Value]) -> Value {
    evaluate::<B>(op, inputs).remove(0)
}

fn control(op: Op, inputs: &[Value], compute: DType, result: DType) -> Value {
    run::control::<Flex>(op, inputs, compute, result).remove(0)
}

fn scope(name: &str, class: OpClass) -> Autocast {
    let config = AmpConfig::f16()
        .with_loss_scale(LossScaleConfig::none())
        .with_op(name, class);
    Autocast::new(&config).unwrap()
}

#[test]
fn should_follow_the_override_instead_of_the_class() {
    for (name, class, dtypes, compute, result) in CASES {
        let op = Op::find(name).unwrap();
        let inputs = inputs(op, dtypes);
        let control = control(op, &inputs, compute, result);
        let amp = scope(name, class);

        let plain = amp.run(|| call::<Amp<Flex>>(op, &inputs));
        assert!(
            plain.is_same(&control),
            "{name} as {class}: {plain:?}, expected {control:?}"
        );

        let ours = amp.run(|| call::<Autodiff<Amp<Flex>>>(op, &inputs));
        assert_eq!(ours.dtype, Some(result), "{name} as {class}");
        assert!(
            ours.distance(&control) < 0.005,
            "{name} as {class}: {ours:?}"
        );
    }
}

#[test]
fn should_leave_other_ops_to_their_classes() {
    let inputs = inputs(Op::linear, &[F32; 3]);
    let linear = scope("matmul", OpClass::Full).run(|| call::<Amp<Flex>>(Op::linear, &inputs));
    assert_eq!(linear.dtype, Some(F16));
}

#[test]
fn should_ignore_overrides_in_a_full_precision_scope() {
    for (name, class, dtypes, _, _) in CASES {
        let op = Op::find(name).unwrap();
        if op.class() == OpClass::Keep {
            continue;
        }
        let inputs = inputs(op, dtypes);
        let result = scope(name, class).run(|| full_precision(|| call::<Amp<Flex>>(op, &inputs)));
        assert!(
            result.is_same(&control(op, &inputs, F32, F32)),
            "{name} as {class}"
        );
    }
}

#[test]
fn should_ignore_overrides_where_mixed_precision_is_off() {
    let config = AmpConfig::f32().with_op("add", OpClass::Lower);
    let inputs = inputs(Op::float_add, &[F32, F32]);
    let result = Autocast::new(&config)
        .unwrap()
        .run(|| call::<Amp<Flex>>(Op::float_add, &inputs));
    assert!(result.is_same(&control(Op::float_add, &inputs, F32, F32)));
}
