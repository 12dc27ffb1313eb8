//! What counts as a failure.

use std::collections::BTreeSet;

use burn_amp_kernels::matmul::Tile;
use burn_amp_kernels::{FloatType, KernelError};

use crate::cases::{Case, Operation, Outcome};
use crate::report::Row;

/// The function of cubek that multiplies; others cast or copy an operand before.
const PRODUCT: &str = "matmul_entry";

/// What is wrong before NVRTC sees a source: a kernel without one, a case that was refused and should
/// not have been, or a compute type without tensor cores.
pub fn of_cases(outcomes: &[Outcome]) -> Vec<String> {
    let mut failures = Vec::new();
    for outcome in outcomes {
        let Outcome { case, version, .. } = outcome;
        for failure in outcome
            .kernels
            .iter()
            .filter_map(|kernel| kernel.as_ref().err())
        {
            failures.push(format!(
                "sm_{version}, {case}: {} has no source: {}",
                failure.kernel, failure.reason
            ));
        }
        match &outcome.refused {
            None | Some(KernelError::Matmul { .. }) => {}
            Some(error) => failures.push(format!("sm_{version}, {case}: {error}")),
        }
    }
    failures.extend(not_on_tensor_cores(outcomes));
    failures
}

fn not_on_tensor_cores(outcomes: &[Outcome]) -> Vec<String> {
    let key = |outcome: &Outcome, tile: Tile, compute: FloatType| {
        (outcome.version, format!("{compute:?}"), tile.to_string())
    };
    let mut asked = BTreeSet::new();
    let mut offered = BTreeSet::new();
    for outcome in outcomes {
        let (Some(tile), Some(compute)) = (outcome.case.tile(), outcome.case.compute) else {
            continue;
        };
        asked.insert(key(outcome, tile, compute));
        if outcome.refused.is_none() && outcome.kernels.iter().all(Result::is_ok) {
            offered.insert(key(outcome, tile, compute));
        }
    }
    asked
        .difference(&offered)
        .map(|(version, compute, tile)| {
            format!("sm_{version} has no product in {compute} by {tile}")
        })
        .collect()
}

/// What is wrong with a kernel that was compiled.
pub fn of_row(case: &Case, row: &Row) -> Option<String> {
    let spills = row.spill_stores + row.spill_loads;
    if case.operation == Operation::Matmul {
        let is_product = row.kernel == PRODUCT;
        return (is_product && case.tile().is_some() && row.tensor_core_instructions == 0)
            .then(|| format!("{row}: no tensor-core instruction"));
    }
    (spills > 0).then(|| format!("{row}: spills {spills} bytes"))
}
