//! The table that people read, and the files with all rows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use crate::cases::{Case, Operation, Outcome};
use crate::resources::{Instructions, Resources};
use crate::runtime::Kernel;

/// A compiled kernel.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What was called.
    pub operation: Operation,
    /// The types of the operands and the result.
    pub types: String,
    /// How a product is run.
    pub strategy: String,
    /// What else the kernel depends on.
    pub detail: String,
    /// The function that the kernel was written as.
    pub kernel: String,
    /// The function in the source.
    pub entry: String,
    /// Ten times the compute capability.
    pub arch: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Shared memory that is declared in the kernel, in bytes.
    pub static_shared_memory: u32,
    /// Shared memory that is asked for at the launch, in bytes.
    pub dynamic_shared_memory: usize,
    /// Local memory of a thread, in bytes.
    pub stack: u32,
    /// Bytes written to local memory for want of registers.
    pub spill_stores: u32,
    /// Bytes read back.
    pub spill_loads: u32,
    /// Products on tensor cores, as often as they are written in PTX.
    pub tensor_core_instructions: usize,
    /// Bytes of the widest load from global memory.
    pub widest_load: usize,
    /// Bytes of the widest store to global memory.
    pub widest_store: usize,
}

impl Row {
    /// A row of a case's kernel.
    pub fn new(
        case: &Case,
        arch: u32,
        kernel: &Kernel,
        resources: Resources,
        instructions: Instructions,
    ) -> Self {
        Self {
            operation: case.operation,
            types: case.types.clone(),
            strategy: case.strategy(),
            detail: case.detail.clone(),
            kernel: kernel.name.clone(),
            entry: kernel.entry.clone(),
            arch,
            registers: resources.registers,
            static_shared_memory: resources.static_shared_memory,
            dynamic_shared_memory: kernel.dynamic_shared_memory,
            stack: resources.stack,
            spill_stores: resources.spill_stores,
            spill_loads: resources.spill_loads,
            tensor_core_instructions: instructions.tensor_core,
            widest_load: instructions.widest_load,
            widest_store: instructions.widest_store,
        }
    }

    fn shared(&self) -> usize {
        self.static_shared_memory as usize + self.dynamic_shared_memory
    }

    /// What is shown in one line. Of a product's types that is the one that it multiplies: the others
    /// occur with all strategies alike.
    fn group(&self) -> (Operation, String, String, u32, String) {
        let types = match (self.operation, self.types.split_once(" in ")) {
            (Operation::Matmul, Some((_, compute))) => compute,
            _ => &self.types,
        };
        (
            self.operation,
            self.strategy.clone(),
            self.kernel.clone(),
            self.arch,
            types.to_owned(),
        )
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}, {} {}", self.arch, self.operation, self.types)?;
        for more in [&self.strategy, &self.detail] {
            if !more.is_empty() {
                write!(f, ", {more}")?;
            }
        }
        write!(f, ", {}", self.entry)
    }
}

/// A line for kernels of one kind, types and architecture: the most that one of them needs, and the
/// fewest tensor-core instructions and narrowest accesses.
pub fn table(rows: &[Row]) -> String {
    let mut groups: BTreeMap<_, Vec<&Row>> = BTreeMap::new();
    for row in rows {
        groups.entry(row.group()).or_default().push(row);
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "operation",
        "strategy",
        "kernel",
        "sm",
        "types",
        "kernels",
        "registers",
        "shared",
        "stack",
        "spills",
        "mma",
        "load",
        "store",
    ]);
    for column in table.column_iter_mut().skip(5) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for ((operation, strategy, kernel, arch, types), rows) in groups {
        let most = |of: fn(&Row) -> usize| rows.iter().map(|row| of(row)).max().unwrap_or(0);
        let least = |of: fn(&Row) -> usize| rows.iter().map(|row| of(row)).min().unwrap_or(0);
        let numbers = [
            rows.len(),
            most(|row| row.registers as usize),
            most(Row::shared),
            most(|row| row.stack as usize),
            most(|row| (row.spill_stores + row.spill_loads) as usize),
            least(|row| row.tensor_core_instructions),
            least(|row| row.widest_load),
            least(|row| row.widest_store),
        ];
        let mut cells = vec![
            operation.to_string(),
            strategy,
            kernel,
            arch.to_string(),
            types,
        ];
        cells.extend(numbers.map(|number| number.to_string()));
        table.add_row(cells);
    }
    table.to_string()
}

/// The products that a routine does not offer, and why; empty if there are none.
pub fn not_offered(outcomes: &[Outcome]) -> Vec<String> {
    let mut reasons: BTreeMap<String, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for outcome in outcomes {
        if let Some(error) = &outcome.refused {
            let text = error.to_string();
            let reason: Vec<_> = text.split_whitespace().collect();
            let reason = format!("sm_{}, {}", outcome.version, reason.join(" "));
            let (cases, details) = reasons.entry(reason).or_default();
            *cases += 1;
            details.insert(&outcome.case.detail);
        }
    }
    reasons
        .into_iter()
        .map(|(reason, (cases, details))| {
            let details: Vec<_> = details.into_iter().collect();
            format!("{reason} ({cases} cases: {})", details.join("; "))
        })
        .collect()
}

/// Writes all rows as CSV.
///
/// # Errors
///
/// The file cannot be written.
pub fn write_csv(path: &Path, rows: &[Row]) -> Result<()> {
    let mut writer =
        csv::Writer::from_path(path).with_context(|| format!("cannot write {}", path.display()))?;
    for row in rows {
        writer.serialize(row)?;
    }
    writer
        .flush()
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes all rows as a JSON array.
///
/// # Errors
///
/// The file cannot be written.
pub fn write_json(path: &Path, rows: &[Row]) -> Result<()> {
    let text = serde_json::to_string_pretty(rows)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}
