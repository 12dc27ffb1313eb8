//! The whole table: every op, in every mode, for every mixture of types, in both orders.

use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::Flex;
use burn::tensor::DType;
use burn::tensor::backend::{AutodiffBackend, Backend};

use burn_amp::{Amp, Autodiff, Op, OpClass};

use crate::cases;
use crate::expected::{Expected, expected};
use crate::mode::Mode;
use crate::run::{Value, control, differentiate, draw, evaluate};

type Plain = burn::backend::Autodiff<Flex>;
type Ours = Autodiff<Amp<Flex>>;
type Burns = burn::backend::Autodiff<Amp<Flex>>;

/// Ops that have no case, and why.
const WITHOUT_CASE: [(Op, &str); 2] = [
    (Op::float_argtopk, "Flex has none"),
    (
        Op::ctc_loss_backward,
        "Flex has none: Burn's default body panics",
    ),
];

/// Ops that Burn's autodiff refuses; they are tested without it.
const WITHOUT_AUTODIFF: [Op; 14] = [
    Op::float_topk,
    Op::embedding_backward,
    Op::linear_x_backward,
    Op::linear_weight_backward,
    Op::linear_bias_backward,
    Op::deform_conv2d_backward,
    Op::avg_pool1d_backward,
    Op::avg_pool2d_backward,
    Op::adaptive_avg_pool1d_backward,
    Op::adaptive_avg_pool2d_backward,
    Op::max_pool2d_with_indices_backward,
    Op::interpolate_backward,
    Op::rfft,
    Op::irfft,
];

/// The ops that the rules apply to, of the traits with float tensors.
fn ops() -> Vec<Op> {
    Op::ALL
        .iter()
        .copied()
        .filter(|op| {
            matches!(op.owner(), "FloatTensorOps" | "ActivationOps" | "ModuleOps")
                && op.class() != OpClass::Exempt
        })
        .collect()
}

fn ops_with_case() -> impl Iterator<Item = Op> {
    ops().into_iter().filter(|op| cases::inputs(*op).is_some())
}

fn ops_with_autodiff() -> impl Iterator<Item = Op> {
    ops_with_case().filter(|op| !WITHOUT_AUTODIFF.contains(op))
}

const FLOATS: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// Every mixture of types for up to three inputs; for more, one that differs from the rest.
fn mixtures(inputs: usize) -> Vec<Vec<DType>> {
    if inputs <= 3 {
        return (0..FLOATS.len().pow(inputs as u32))
            .map(|code| {
                (0..inputs)
                    .map(|input| FLOATS[code / FLOATS.len().pow(input as u32) % FLOATS.len()])
                    .collect()
            })
            .collect();
    }
    let mut mixtures: Vec<_> = FLOATS.iter().map(|rest| vec![*rest; inputs]).collect();
    for rest in FLOATS {
        for one in FLOATS.into_iter().filter(|one| *one != rest) {
            for input in 0..inputs {
                let mut mixture = vec![rest; inputs];
                mixture[input] = one;
                mixtures.push(mixture);
            }
        }
    }
    mixtures
}

/// An op in a mode, on inputs of given types.
struct Case {
    op: Op,
    mode: Mode,
    inputs: Vec<Value>,
    dtypes: Vec<DType>,
    expected: Expected,
}

impl Case {
    fn all(ops: impl Iterator<Item = Op>) -> impl Iterator<Item = Case> {
        ops.flat_map(|op| {
            let inputs = cases::inputs(op).expect("an op with a case");
            mixtures(inputs.len()).into_iter().flat_map(move |dtypes| {
                let inputs = inputs.clone();
                Mode::ALL.map(|mode| Case {
                    op,
                    mode,
                    inputs: draw(op, &inputs, &dtypes),
                    expected: expected(op, mode, &dtypes),
                    dtypes: dtypes.clone(),
                })
            })
        })
    }

    fn control<B: Backend>(&self) -> Vec<Value> {
        let Expected { compute, result } = self.expected;
        control::<B>(self.op, &self.inputs, compute, result)
    }

    /// The control and the gradients of its operands.
    fn differentiate_control(&self) -> (Vec<Value>, Vec<Option<Value>>) {
        let Expected { compute, result } = self.expected;
        let inputs: Vec<_> = self
            .inputs
            .iter()
            .map(|input| input.cast(compute))
            .collect();
        let (outputs, gradients) = differentiate::<Plain>(self.op, &inputs);
        let outputs = outputs.iter().map(|output| output.cast(result)).collect();
        (outputs, gradients)
    }

    fn run<B: Backend>(&self) -> Vec<Value> {
        self.mode.run(|| evaluate::<B>(self.op, &self.inputs))
    }

    fn differentiate<B: AutodiffBackend>(&self) -> (Vec<Value>, Vec<Option<Value>>) {
        self.mode.run(|| differentiate::<B>(self.op, &self.inputs))
    }

    /// The results bit by bit; close, where mixed precision runs an op of its own.
    fn check_outputs(
        &self,
        outputs: &[Value],
        control: &[Value],
        own: &[Op],
    ) -> Result<(), String> {
        if self.mode == Mode::Off || !own.contains(&self.op) {
            return self.check_same(outputs, control);
        }
        self.check_types(outputs)?;
        self.check_close(&outputs[0], &control[0])
    }

    /// The types of the results, and every bit of them.
    fn check_same(&self, outputs: &[Value], control: &[Value]) -> Result<(), String> {
        self.check_types(outputs)?;
        check(
            outputs.len() == control.len()
                && outputs.iter().zip(control).all(|(a, b)| a.is_same(b)),
            || format!("{outputs:?}, the control has {control:?}"),
        )
    }

    fn check_types(&self, outputs: &[Value]) -> Result<(), String> {
        let dtypes: Vec<_> = outputs.iter().filter_map(|output| output.dtype).collect();
        check(
            dtypes.iter().all(|dtype| *dtype == self.expected.result),
            || format!("{dtypes:?}, expected {:?}", self.expected.result),
        )
    }

    fn check_close(&self, output: &Value, control: &Value) -> Result<(), String> {
        let distance = output.distance(control);
        check(distance < self.tolerance(), || {
            format!("{output:?}, the control has {control:?}, a distance of {distance}")
        })
    }

    /// A few units in the last place of the narrowest type that is involved.
    fn tolerance(&self) -> f64 {
        let involved = [self.expected.compute, self.expected.result];
        self.dtypes
            .iter()
            .chain(&involved)
            .chain(&self.mode.half())
            .map(|dtype| match dtype {
                DType::BF16 => 0.04,
                DType::F16 => 0.005,
                _ => 1e-5,
            })
            .fold(0.0, f64::max)
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {:?} in {:?}", self.op, self.dtypes, self.mode)
    }
}

fn check(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}

/// Runs a check on every case, and names those that fail.
fn check_all(ops: impl Iterator<Item = Op>, check: impl Fn(&Case) -> Result<(), String>) {
    let mut count = 0;
    let failures: Vec<String> = Case::all(ops)
        .inspect(|_| count += 1)
        .filter_map(|case| {
            let failure = catch_unwind(AssertUnwindSafe(|| check(&case)))
                .unwrap_or_else(|_| Err("panicked".to_owned()))
                .err()?;
            Some(format!("{case}: {failure}"))
        })
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {count} cases:\n{}",
        failures.len(),
        failures[..failures.len().min(40)].join("\n")
    );
}

#[test]
fn should_have_a_case_for_every_op_but_those_that_are_listed() {
    for op in ops() {
        let is_listed = WITHOUT_CASE.iter().any(|(listed, _)| *listed == op);
        assert_ne!(cases::inputs(op).is_some(), is_listed, "{op}");
    }
    assert!(WITHOUT_CASE.iter().all(|(_, reason)| !reason.is_empty()));
}

/// Flex takes a norm's variance as E[x²] - E[x]², and in half types it rounds the result of a layer with
/// a bias twice, before and after the bias. Attention is the same in training and without.
const OWN_ON_FLEX: [Op; 9] = [
    Op::attention,
    Op::layer_norm,
    Op::linear,
    Op::conv1d,
    Op::conv2d,
    Op::conv3d,
    Op::conv_transpose1d,
    Op::conv_transpose2d,
    Op::conv_transpose3d,
];

#[test]
fn should_equal_the_explicitly_cast_control_without_autodiff() {
    check_all(ops_with_case(), |case| {
        let (outputs, control) = (case.run::<Amp<Flex>>(), case.control::<Flex>());
        case.check_outputs(&outputs, &control, &OWN_ON_FLEX)
    });
}

#[test]
fn should_equal_the_explicitly_cast_control_in_the_recommended_order() {
    check_all(ops_with_autodiff(), |case| {
        let (control, control_grads) = case.differentiate_control();
        let (outputs, grads) = case.differentiate::<Ours>();
        // Burn's autodiff composes the softmaxes of other ops; here they are one.
        let softmaxes = [Op::softmax, Op::softmin, Op::log_softmax];
        let own = [&OWN_ON_FLEX[..], &softmaxes].concat();
        case.check_outputs(&outputs, &control, &own)?;
        check_grads(case, &grads, &control_grads)
    });
}

/// Gradients come out in f32, but for f64 leaves, and near those of the control.
fn check_grads(
    case: &Case,
    grads: &[Option<Value>],
    control: &[Option<Value>],
) -> Result<(), String> {
    for ((grad, control), dtype) in grads.iter().zip(control).zip(&case.dtypes) {
        let (Some(grad), Some(control)) = (grad, control) else {
            check(grad.is_none() && control.is_none(), || {
                format!("gradient {grad:?}, the control has {control:?}")
            })?;
            continue;
        };
        let expected = match dtype {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        check(grad.dtype == Some(expected), || {
            format!("gradient {grad:?}, expected {expected:?}")
        })?;
        check_finite(grad)?;
        case.check_close(grad, control)?;
    }
    Ok(())
}

fn check_finite(grad: &Value) -> Result<(), String> {
    check(grad.values.iter().all(|value| value.is_finite()), || {
        format!("gradient {grad:?}")
    })
}

/// Ops that Burn's autodiff composes of others. The rules then see those one by one, which gives the
/// same values within rounding, but not always the type of the whole op.
const COMPOSED_IN_BURNS_ORDER: [Op; 22] = [
    Op::float_grid_sample_2d,
    Op::relu_backward,
    Op::leaky_relu,
    Op::prelu,
    Op::hard_sigmoid,
    Op::log_softmax,
    Op::layer_norm,
    Op::conv1d_x_backward,
    Op::conv1d_weight_backward,
    Op::conv1d_bias_backward,
    Op::conv2d_x_backward,
    Op::conv2d_weight_backward,
    Op::conv2d_bias_backward,
    Op::conv3d_x_backward,
    Op::conv3d_weight_backward,
    Op::conv3d_bias_backward,
    Op::conv_transpose1d_weight_backward,
    Op::conv_transpose1d_bias_backward,
    Op::conv_transpose2d_weight_backward,
    Op::conv_transpose2d_bias_backward,
    Op::conv_transpose3d_weight_backward,
    Op::conv_transpose3d_bias_backward,
];

#[test]
fn should_accept_every_mixture_in_burns_order() {
    check_all(ops_with_autodiff(), |case| {
        let (control, _) = case.differentiate_control();
        let (outputs, grads) = case.differentiate::<Burns>();
        if !COMPOSED_IN_BURNS_ORDER.contains(&case.op) {
            case.check_types(&outputs)?;
        }
        for (output, control) in outputs.iter().zip(&control) {
            case.check_close(output, control)?;
        }
        grads.iter().flatten().try_for_each(check_finite)
    });
}
