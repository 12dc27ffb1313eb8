use super::{Half, Op, OpClass, Precision};

/// What an op does with its float operands, here and now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Mixed precision is off: what plain Burn does. Operands of different types, which it does not
    /// take, meet in the wider one.
    Off,
    /// The operands' own types; where they differ, the wider one. Scalars are applied in f32.
    Native,
    /// Operands are cast to the compute type.
    Lower(Half),
    /// Half operands are cast to f32.
    Full,
    /// As [`Full`](Rule::Full), and the result goes back to the first operand's type.
    Widen,
}

/// Which precision is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Mixed precision is off.
    Off,
    /// A full-precision scope: see [`full_precision_rule`].
    FullPrecision,
    /// Mixed precision with this compute type.
    Mixed(Half),
}

/// What a read of a half-precision tensor returns.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Readback {
    /// f16 and bf16 tensors are read as f32, so that `to_vec::<f32>()` works on any result.
    #[default]
    F32,
    /// The tensor's own type.
    Native,
}

/// The type that gradients are in when they go from device to device to be reduced.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Reduction {
    /// f32, as the gradients are.
    #[default]
    F32,
    /// bf16: half the bytes, 8 significant bits.
    Bf16,
    /// f16: half the bytes, 11 significant bits; a gradient beyond 65504 is an overflow.
    F16,
}

impl Reduction {
    pub(crate) fn half(self) -> Option<Half> {
        match self {
            Reduction::F32 => None,
            Reduction::Bf16 => Some(Half::Bf16),
            Reduction::F16 => Some(Half::F16),
        }
    }
}

/// The rules that a configuration stands for: plain data, cheap to consult.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Policy {
    pub precision: Precision,
    pub readback: Readback,
    /// Few entries or none: a linear search beats a table.
    pub overrides: Vec<(Op, OpClass)>,
    /// Whether a device that lacks the type runs in f32 instead of failing.
    pub fallback: bool,
    pub reduction: Reduction,
}

impl Policy {
    pub(crate) fn off() -> Self {
        Self {
            precision: Precision::F32,
            readback: Readback::Native,
            overrides: Vec::new(),
            fallback: false,
            reduction: Reduction::F32,
        }
    }

    fn class(&self, op: Op) -> OpClass {
        self.overrides
            .iter()
            .find(|(overridden, _)| *overridden == op)
            .map_or_else(|| op.class(), |(_, class)| *class)
    }

    pub(crate) fn rule(&self, mode: Mode, op: Op) -> Rule {
        let half = match mode {
            Mode::Off => return Rule::Off,
            Mode::FullPrecision => return full_precision_rule(op),
            Mode::Mixed(half) => half,
        };

        match self.class(op) {
            OpClass::Lower => Rule::Lower(half),
            OpClass::Full => Rule::Full,
            OpClass::Widen => Rule::Widen,
            OpClass::Promote | OpClass::Keep | OpClass::Exempt => Rule::Native,
        }
    }
}

/// Overrides belong to mixed precision: in a full-precision scope every op computes in f32 but for those
/// of class keep, which follow their operands.
pub(crate) fn full_precision_rule(op: Op) -> Rule {
    match op.class() {
        OpClass::Lower | OpClass::Full | OpClass::Widen | OpClass::Promote => Rule::Full,
        OpClass::Keep | OpClass::Exempt => Rule::Native,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(overrides: Vec<(Op, OpClass)>) -> Policy {
        Policy {
            precision: Precision::F16,
            overrides,
            ..Policy::off()
        }
    }

    #[test]
    fn should_follow_the_class_under_mixed_precision() {
        let policy = mixed(Vec::new());
        let rule = |op| policy.rule(Mode::Mixed(Half::F16), op);

        assert_eq!(rule(Op::float_matmul), Rule::Lower(Half::F16));
        assert_eq!(rule(Op::float_exp), Rule::Full);
        assert_eq!(rule(Op::gelu), Rule::Widen);
        assert_eq!(rule(Op::float_add), Rule::Native);
        assert_eq!(rule(Op::float_neg), Rule::Native);
        assert_eq!(rule(Op::float_cast), Rule::Native);
    }

    #[test]
    fn should_let_an_override_replace_the_class_of_its_op_only() {
        let policy = mixed(vec![(Op::float_matmul, OpClass::Full)]);
        let rule = |op| policy.rule(Mode::Mixed(Half::Bf16), op);

        assert_eq!(rule(Op::float_matmul), Rule::Full);
        assert_eq!(rule(Op::linear), Rule::Lower(Half::Bf16));
    }

    #[test]
    fn should_leave_every_op_alone_when_off() {
        let policy = mixed(Vec::new());

        assert!(
            Op::ALL
                .iter()
                .all(|op| policy.rule(Mode::Off, *op) == Rule::Off)
        );
    }

    #[test]
    fn should_never_lower_in_full_precision_whatever_the_overrides() {
        let policy = mixed(vec![(Op::float_exp, OpClass::Lower)]);

        assert!(Op::ALL.iter().all(|op| matches!(
            policy.rule(Mode::FullPrecision, *op),
            Rule::Native | Rule::Full
        )));
    }
}
