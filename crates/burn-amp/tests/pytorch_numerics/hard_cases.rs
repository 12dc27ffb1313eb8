//! Each recorded case under our rules, from f32 and from half inputs: never further from the exact
//! result than PyTorch's autocast from the same inputs.

use burn::tensor::DType;
use burn_amp::{AmpConfig, Autocast, full_precision};
use rstest::rstest;

use crate::cases::{self, Inputs, Result, Run};
use crate::recorded::{Case, Low, Output, RECORDED, dtype_of};

/// Cases that have to be wrapped in [`full_precision`] when their inputs are half, and in which types.
///
/// PyTorch computes these in f32 as wholes, or rounds once. Burn composes them of ops, and their
/// first one, a difference, square or product of half tensors, is half: it is beyond the range, or
/// rounded, before a reduction in f32 sees it.
const TO_WRAP: &[(&str, &[&str])] = &[
    ("smooth_l1", &["f16", "bf16"]),
    ("cosine_similarity_large", &["f16"]),
    ("norm_composed", &["bf16"]),
    ("var_composed", &["bf16"]),
];

/// Cases that are further off than PyTorch's from f32 inputs because Flex sums f32 in another order.
/// No rule is involved: the result is bitwise that of the plain backend.
const SUMS_OF_FLEX: &[&str] = &["mean_4096_of_0.1", "mean_100000_of_0.0001", "var_composed"];

/// What is compared: a case's results in one half type from inputs of one type.
struct Comparison<'a> {
    case: &'a Case,
    half: &'a str,
    run: Run,
    amp: &'a Autocast,
    inputs: Inputs,
    theirs: &'a [Output],
}

impl<'a> Comparison<'a> {
    /// A case from f32 inputs, and from half ones.
    fn of(case: &'a Case, half: &'a str, amp: &'a Autocast) -> [Self; 2] {
        let low = low(case, half);
        let from = |inputs, theirs| Self {
            case,
            half,
            run: cases::run(&case.name).expect("every case is run"),
            amp,
            inputs,
            theirs,
        };
        let inputs = Inputs::of(case);
        let rounded = inputs.rounded(dtype_of(half));
        [from(inputs, &low.from_f32), from(rounded, &low.from_low)]
    }

    fn is_wrapped(&self) -> bool {
        self.inputs.dtype() != DType::F32
            && TO_WRAP
                .iter()
                .any(|(name, halves)| *name == self.case.name && halves.contains(&self.half))
    }

    fn is_sum_of_flex(&self) -> bool {
        self.inputs.dtype() == DType::F32 && SUMS_OF_FLEX.contains(&self.case.name.as_str())
    }

    /// A line for each value that is further off than PyTorch's.
    ///
    /// Sums are not taken in PyTorch's order, so a difference is granted that is no more than a
    /// rounding of f32, see [`slack`].
    fn excesses(&self, run: impl Fn(&Inputs) -> Vec<Result>) -> Vec<String> {
        let exact = exactly(self.run, &self.inputs.exact());
        let nearby = exactly(self.run, &self.inputs.nearby());
        let ours = self.amp.run(|| run(&self.inputs));
        assert_eq!(ours.len(), self.theirs.len(), "{}", self.case.name);

        let mut excesses = Vec::new();
        for (index, theirs) in self.theirs.iter().enumerate() {
            let [exact, nearby, ours] =
                [&exact, &nearby, &ours].map(|results| theirs.select(&results[index].values));
            let theirs = theirs.values();
            assert_eq!(ours.len(), theirs.len(), "{}", self.case.name);

            for (at, exact) in exact.into_iter().enumerate() {
                let [ours, theirs] = [ours[at], theirs[at]];
                let slack = slack(exact, nearby[at]);
                if error(ours, exact) > error(theirs, exact) + slack {
                    excesses.push(format!(
                        "{} from {:?}, result {index}, value {at}: {ours:e}, PyTorch's {theirs:e}, \
                         exact {exact:e}, slack {slack:e}",
                        self.case.name,
                        self.inputs.dtype(),
                    ));
                }
            }
        }
        excesses
    }
}

/// A rounding of f32: one unit in the last place of the result, and what half a unit in the last
/// place of the inputs does to it, which is more where the op is ill-conditioned. Nothing where one
/// of them is not finite.
fn slack(exact: f64, nearby: f64) -> f64 {
    let slack = f64::from(f32::EPSILON) * exact.abs() + (nearby - exact).abs();
    if slack.is_finite() { slack } else { 0.0 }
}

/// What PyTorch gave in a half type.
fn low<'a>(case: &'a Case, half: &str) -> &'a Low {
    match half {
        "f16" => &case.results.f16,
        _ => &case.results.bf16,
    }
}

/// The results as the plain backend has them, in the type of the inputs; in f64 they are exact.
fn exactly(run: Run, inputs: &Inputs) -> Vec<Result> {
    Autocast::new(&AmpConfig::f32())
        .unwrap()
        .run(|| run(inputs))
}

/// How far off a value is; without bound where it or the exact one is not finite, unless both are the
/// same.
fn error(value: f64, exact: f64) -> f64 {
    match value {
        value if value == exact || (value.is_nan() && exact.is_nan()) => 0.0,
        value if value.is_finite() && exact.is_finite() => (value - exact).abs(),
        _ => f64::INFINITY,
    }
}

/// The lines for every case and both kinds of inputs, but for those that are listed.
fn report(half: &str, config: &AmpConfig) -> Vec<String> {
    let amp = Autocast::new(config).unwrap();
    let cases = RECORDED.cases.iter();
    cases
        .flat_map(|case| Comparison::of(case, half, &amp))
        .filter(|comparison| !comparison.is_wrapped() && !comparison.is_sum_of_flex())
        .flat_map(|comparison| comparison.excesses(comparison.run))
        .collect()
}

#[rstest]
#[case::f16("f16", AmpConfig::f16())]
#[case::bf16("bf16", AmpConfig::bf16())]
fn should_never_be_further_off_than_pytorch(#[case] half: &str, #[case] config: AmpConfig) {
    let excesses = report(half, &config);
    assert!(excesses.is_empty(), "{}", excesses.join("\n"));
}

#[rstest]
#[case::f16("f16", AmpConfig::f16())]
#[case::bf16("bf16", AmpConfig::bf16())]
fn should_match_pytorch_on_what_is_wrapped(#[case] half: &str, #[case] config: AmpConfig) {
    let amp = Autocast::new(&config).unwrap();
    let cases = RECORDED.cases.iter();
    let wrapped: Vec<_> = cases
        .flat_map(|case| Comparison::of(case, half, &amp))
        .filter(Comparison::is_wrapped)
        .collect();
    let listed = TO_WRAP.iter().filter(|(_, halves)| halves.contains(&half));
    assert_eq!(wrapped.len(), listed.count());

    for comparison in wrapped {
        let run = comparison.run;
        let excesses = comparison.excesses(|inputs| full_precision(|| run(inputs)));
        assert!(excesses.is_empty(), "{}", excesses.join("\n"));

        let bare = comparison.excesses(run);
        let name = &comparison.case.name;
        assert!(!bare.is_empty(), "{name} need not be wrapped for {half}");
    }
}

#[rstest]
#[case::f16("f16", AmpConfig::f16())]
#[case::bf16("bf16", AmpConfig::bf16())]
fn should_sum_f32_as_the_plain_backend_does(#[case] half: &str, #[case] config: AmpConfig) {
    let amp = Autocast::new(&config).unwrap();
    let cases = RECORDED.cases.iter();
    let sums: Vec<_> = cases
        .flat_map(|case| Comparison::of(case, half, &amp))
        .filter(Comparison::is_sum_of_flex)
        .collect();
    assert_eq!(sums.len(), SUMS_OF_FLEX.len());

    for sum in sums {
        let (name, run) = (&sum.case.name, sum.run);
        let ours = amp.run(|| run(&sum.inputs));
        for (ours, plain) in ours.iter().zip(exactly(run, &sum.inputs)) {
            assert_eq!(ours.values, plain.values, "{name}");
        }
        assert!(
            !sum.excesses(run).is_empty(),
            "{name} need not be listed for {half}"
        );
    }
}

#[test]
fn should_run_every_recorded_case() {
    assert_eq!(RECORDED.cases.len(), RECORDED.case_count);
    let missing: Vec<_> = RECORDED
        .cases
        .iter()
        .filter(|case| cases::run(&case.name).is_none())
        .map(|case| &case.name)
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The cases are what the record says: in f64 they give the recorded results.
#[test]
fn should_compute_what_was_recorded() {
    for case in &RECORDED.cases {
        let run = cases::run(&case.name).expect("every case is run");
        let ours = exactly(run, &Inputs::of(case).exact());
        for (ours, recorded) in ours.iter().zip(&case.results.f64) {
            for (ours, recorded) in recorded.select(&ours.values).iter().zip(recorded.values()) {
                // A variance taken as E[x²] - E[x]², by the case or by Flex, cancels also in f64.
                let slack = match case.name.as_str() {
                    "layer_norm_mean1000_std0.1" => 1e-8,
                    "var_composed" => 1e-7,
                    _ => 1e-12,
                };
                assert!(
                    error(*ours, recorded) <= slack * recorded.abs(),
                    "{}: {ours}, recorded {recorded}",
                    case.name
                );
            }
        }
    }
}

#[rstest]
#[case::f16("f16")]
#[case::bf16("bf16")]
fn should_round_the_inputs_as_recorded(#[case] half: &str) {
    for case in &RECORDED.cases {
        let rounded = Inputs::of(case).rounded(dtype_of(half));
        for (index, recorded) in low(case, half).inputs_rounded.iter().enumerate() {
            assert_eq!(rounded.values(index), recorded.values, "{}", case.name);
        }
    }
}
