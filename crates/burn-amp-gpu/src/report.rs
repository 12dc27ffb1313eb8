//! Tables and the chart of what was measured.

use std::path::Path;

use anyhow::Result;
use comfy_table::{CellAlignment, Table, presets};

use crate::chart::{self, Panel};
use crate::records::{Bandwidth, Check, Matmul, Outcome, Training, read};

/// The best of our routines that cast while they load.
pub const FUSED: &str = "fused";
/// The best of our routines after a cast, the cast timed with it.
pub const CAST_THEN: &str = "cast, then";
/// What our tuner, or without it our rule, takes.
pub const AUTO: &str = "auto";
/// Burn's cast and product in the half type, without fusion.
pub const BURN_HALF: &str = "Burn half";
/// Burn's product in f32.
pub const BURN_F32: &str = "Burn f32";
/// PyTorch's product of half operands, its cast timed with it.
pub const PYTORCH: &str = "PyTorch half";
/// PyTorch's product in f32.
pub const PYTORCH_F32: &str = "PyTorch f32";

/// The ways to multiply, in the order of the table.
pub const WAYS: [&str; 7] = [
    FUSED,
    CAST_THEN,
    AUTO,
    BURN_HALF,
    BURN_F32,
    PYTORCH,
    PYTORCH_F32,
];

/// All tables of a directory, and its chart, `gpu.svg`.
///
/// # Errors
///
/// When a file there is not one of ours, or the chart cannot be written.
pub fn report(directory: &Path) -> Result<String> {
    let matmuls = read::<Matmul>(directory)?;
    let trainings = read::<Training>(directory)?;
    let mut text = String::new();
    let mut add = |table: String| {
        text.push_str(&table);
        text.push('\n');
    };
    add(checks(&read(directory)?));
    add(bandwidths(&read(directory)?));
    add(products(&matmuls));
    add(training(&trainings));
    let panels = panels(&matmuls, &trainings);
    if !panels.is_empty() {
        chart::write(&directory.join("gpu.svg"), &panels)?;
    }
    Ok(text.trim_start().replace("\n\n\n", "\n\n"))
}

/// What to say of so many that no time was left for.
pub fn no_time(count: usize, what: &str) -> Option<String> {
    (count > 0).then(|| format!("{count} {what}, for lack of time"))
}

/// What to say of something that failed: the first line of why.
pub fn failed(what: &str, error: &anyhow::Error) -> String {
    let error = format!("{error:#}");
    let first = error.lines().next().unwrap_or_default();
    format!("{what}: {}", first.chars().take(200).collect::<String>())
}

fn render(title: &str, header: &[&str], rows: Vec<Vec<String>>, texts: usize) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header.to_vec());
    for column in table.column_iter_mut().skip(texts) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.add_rows(rows);
    format!("{title}\n{table}\n")
}

/// A line for each kernel, and one for each case that is not as it should be.
pub fn checks(records: &[Check]) -> String {
    let mut kernels: Vec<&str> = Vec::new();
    for record in records {
        if !kernels.contains(&record.kernel.as_str()) {
            kernels.push(&record.kernel);
        }
    }
    let rows = kernels.iter().map(|kernel| {
        let of = || records.iter().filter(|record| record.kernel == *kernel);
        let count = |outcome| of().filter(|record| record.outcome == outcome).count();
        let worst = of().filter_map(|record| record.error).reduce(f64::max);
        vec![
            (*kernel).to_owned(),
            count(Outcome::Ok).to_string(),
            count(Outcome::Failed).to_string(),
            count(Outcome::NotOffered).to_string(),
            count(Outcome::Skipped).to_string(),
            worst.map_or(String::new(), |worst| format!("{worst:.3}")),
        ]
    });
    let header = [
        "kernel",
        "ok",
        "FAILED",
        "not offered",
        "skipped",
        "error / tolerance",
    ];
    let mut text = render("Kernels against f64", &header, rows.collect(), 1);
    for record in records {
        if record.outcome == Outcome::Failed {
            text.push_str(&format!(
                "FAILED: {}, {}: {}\n",
                record.kernel, record.case, record.reason
            ));
        }
    }
    text
}

/// Rates next to that of a copy.
pub fn bandwidths(records: &[Bandwidth]) -> String {
    let rows = records.iter().map(|record| {
        vec![
            record.kernel.clone(),
            record.types.clone(),
            record.shape.clone(),
            format!("{:.1}", record.bytes as f64 / 1e6),
            format!("{:.1}", record.micros),
            format!("{:.1}", record.gb_per_s),
            format!("{:.2}", record.of_copy),
        ]
    });
    let header = ["kernel", "types", "shape", "MB", "µs", "GB/s", "of a copy"];
    render("Bytes read and written", &header, rows.collect(), 3)
}

/// The products of one shape and type side by side.
struct Line<'a> {
    like: &'a Matmul,
    ways: Vec<&'a Matmul>,
}

fn lines(records: &[Matmul]) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> = Vec::new();
    let dims = |record: &Matmul| (record.m, record.k, record.n);
    for record in records.iter().filter(|record| record.compute != "f32") {
        let same = |line: &&mut Line<'_>| {
            dims(line.like) == dims(record)
                && line.like.product == record.product
                && line.like.compute == record.compute
        };
        match lines.iter_mut().find(same) {
            Some(line) => line.ways.push(record),
            None => lines.push(Line {
                like: record,
                ways: vec![record],
            }),
        }
    }
    // A product in f32 stands beside each half type.
    for line in &mut lines {
        let full = records.iter().filter(|record| {
            record.compute == "f32"
                && dims(record) == dims(line.like)
                && record.product == line.like.product
        });
        line.ways.extend(full);
    }
    lines
}

/// TFLOP/s by shape and way.
pub fn products(records: &[Matmul]) -> String {
    let title = "Products, TFLOP/s; small operands are in the cache from the launch before";
    let mut header = vec!["product", "type", "m × k × n"];
    header.extend(WAYS);
    header.extend([
        "fused / Burn half",
        "fused by",
        "after a cast by",
        "f32 is TF32",
    ]);
    let rows = lines(records).into_iter().map(|line| {
        let like = line.like;
        let of = |way: &str| line.ways.iter().find(|record| record.way == way);
        let figure =
            |way: &str| of(way).map_or(String::new(), |record| format!("{:.2}", record.tflops));
        let routine = |way: &str| of(way).map_or(String::new(), |record| record.routine.clone());
        let mut row = vec![
            if like.group.starts_with(&like.product) {
                like.group.clone()
            } else {
                format!("{}, {}", like.group, like.product)
            },
            like.compute.clone(),
            format!("{} × {} × {}", like.m, like.k, like.n),
        ];
        row.extend(WAYS.map(figure));
        row.push(match (of(FUSED), of(BURN_HALF)) {
            (Some(fused), Some(burn)) => format!("{:.2}", burn.micros / fused.micros),
            _ => String::new(),
        });
        row.extend([routine(FUSED), routine(CAST_THEN)]);
        let tf32 = of(BURN_F32).and_then(|record| record.tf32);
        row.push(
            tf32.map_or("", |tf32| if tf32 { "yes" } else { "no" })
                .to_owned(),
        );
        row
    });
    render(title, &header, rows.collect(), 3)
}

/// Steps of training.
pub fn training(records: &[Training]) -> String {
    let base = records
        .iter()
        .find(|record| record.framework == "Burn" && record.mode == "f32");
    let mib = |bytes: u64| format!("{:.0}", bytes as f64 / f64::from(1 << 20));
    let rows = records.iter().map(|record| {
        let gain = base.filter(|base| base.model == record.model);
        vec![
            record.framework.clone(),
            record.mode.clone(),
            record.attention.clone(),
            record.model.clone(),
            format!("{:.1}", record.step_ms),
            format!("{:.0}", record.tokens_per_s),
            gain.map_or(String::new(), |base| {
                format!("{:.2}", record.tokens_per_s / base.tokens_per_s)
            }),
            mib(record.kept_bytes),
            mib(record.peak_bytes),
            mib(record.reserved_bytes),
            format!("{:.4}", record.first_loss),
            format!("{:.4}", record.last_loss),
            record.steps.to_string(),
            record.skipped.to_string(),
        ]
    });
    let header = [
        "framework",
        "mode",
        "attention",
        "model",
        "ms a step",
        "tokens/s",
        "of Burn f32",
        "kept MiB",
        "peak MiB",
        "reserved MiB",
        "first loss",
        "last loss",
        "steps",
        "skipped",
    ];
    render("Training", &header, rows.collect(), 4)
}

/// One for each kind of product that was measured in more than one way, one for training.
fn panels(matmuls: &[Matmul], trainings: &[Training]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = lines(matmuls)
        .into_iter()
        .filter(|line| line.ways.len() > 2)
        .map(|line| {
            let like = line.like;
            let bars = WAYS.iter().filter_map(|way| {
                let record = line.ways.iter().find(|record| record.way == *way)?;
                Some(((*way).to_owned(), record.tflops))
            });
            Panel {
                title: format!(
                    "{} {} {} × {} × {}, TFLOP/s",
                    like.product, like.compute, like.m, like.k, like.n
                ),
                bars: bars.collect(),
            }
        })
        .collect();
    let bars = |figure: fn(&Training) -> f64| {
        let bar = |record: &Training| {
            let label = format!("{} {} {}", record.framework, record.mode, record.attention);
            (label, figure(record))
        };
        trainings.iter().map(bar).collect::<Vec<_>>()
    };
    if !trainings.is_empty() {
        panels.push(Panel {
            title: "training, tokens a second".to_owned(),
            bars: bars(|record| record.tokens_per_s),
        });
        panels.push(Panel {
            title: "training, MiB kept for backward".to_owned(),
            bars: bars(|record| record.kept_bytes as f64 / f64::from(1 << 20)),
        });
    }
    panels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::write;

    fn product(compute: &str, way: &str, micros: f64) -> Matmul {
        Matmul {
            group: "square".into(),
            product: "forward".into(),
            compute: compute.into(),
            m: 8,
            k: 16,
            n: 32,
            way: way.into(),
            routine: format!("by {way}"),
            micros,
            tflops: 100.0 / micros,
            tf32: (way == BURN_F32).then_some(true),
        }
    }

    #[test]
    fn should_put_the_ways_of_a_product_side_by_side() {
        let records = [
            product("bf16", FUSED, 2.0),
            product("f16", FUSED, 4.0),
            product("bf16", BURN_HALF, 5.0),
            product("f32", BURN_F32, 10.0),
        ];
        let lines = lines(&records);
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].ways.len(), 3);
        assert_eq!(lines[1].ways.len(), 2);

        let table = products(&records);
        let bf16 = table.lines().find(|line| line.contains("bf16")).unwrap();
        for figure in ["50.00", "20.00", "10.00", "2.50", "by fused", "yes"] {
            assert!(bf16.contains(figure), "{figure} in {bf16}");
        }
    }

    #[test]
    fn should_list_failures_below_the_counts() {
        let check = |case: &str, outcome, error| Check {
            kernel: "softmax".into(),
            case: case.into(),
            outcome,
            error,
            reason: "off".into(),
        };
        let text = checks(&[
            check("a", Outcome::Ok, Some(0.25)),
            check("b", Outcome::Failed, Some(3.5)),
        ]);
        assert!(text.contains("3.500"), "{text}");
        assert!(text.ends_with("FAILED: softmax, b: off\n"), "{text}");
    }

    #[test]
    fn should_compare_training_with_plain_burn() {
        let record = |framework: &str, mode: &str, tokens_per_s| Training {
            framework: framework.into(),
            mode: mode.into(),
            attention: "explicit".into(),
            model: "gpt".into(),
            step_ms: 10.0,
            tokens_per_s,
            kept_bytes: 2 << 20,
            peak_bytes: 3 << 20,
            reserved_bytes: 4 << 20,
            steps: 12,
            skipped: 1,
            first_loss: 9.0,
            last_loss: 3.25,
        };
        let records = [
            record("burn-amp", "bf16", 2500.0),
            record("Burn", "f32", 1000.0),
        ];
        let table = training(&records);
        assert!(table.contains("2.50"), "{table}");

        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), &records).unwrap();
        let text = report(directory.path()).unwrap();
        assert!(text.contains("burn-amp"), "{text}");
        let svg = std::fs::read_to_string(directory.path().join("gpu.svg")).unwrap();
        assert!(svg.contains("Burn f32 explicit"), "{svg}");
    }

    #[test]
    fn should_say_nothing_of_nothing() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(report(directory.path()).unwrap().trim(), "");
        assert!(!directory.path().join("gpu.svg").exists());
    }
}
