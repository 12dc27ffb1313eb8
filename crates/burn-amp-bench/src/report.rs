//! The memory benchmark's table, its CSV file and its chart.

use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use plotters::prelude::*;
use serde::Deserialize;

use crate::gpt::AttentionKind;
use crate::memory::{Measurement, Model};

/// Bytes kept by PyTorch for the same stacks, in MiB.
#[derive(Debug, Clone, Deserialize)]
pub struct PyTorch {
    stacks: Vec<PyTorchStack>,
}

/// Those of one stack.
#[derive(Debug, Clone, Deserialize)]
pub struct PyTorchStack {
    model: String,
    attention: AttentionKind,
    dropout: f64,
    /// Without autocast.
    pub fp32_mib: f64,
    /// Under autocast with the rules for CUDA.
    pub amp_cuda_mib: f64,
    /// Under autocast with the rules for CPUs.
    pub amp_cpu_mib: f64,
}

impl PyTorch {
    /// The recorded figures.
    ///
    /// # Errors
    ///
    /// When the file that came with the program is not what it was.
    pub fn recorded() -> Result<Self> {
        let text = include_str!("../data/pytorch_memory.json");
        serde_json::from_str(text).context("data/pytorch_memory.json is not as it was recorded")
    }

    fn of(&self, measurement: &Measurement) -> Option<&PyTorchStack> {
        self.stacks.iter().find(|stack| {
            stack.model == measurement.model
                && Some(stack.attention) == measurement.attention
                && stack.dropout == measurement.dropout
        })
    }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// What the measurements of one model are compared with: its first, plain Burn.
fn plain<'a>(measurements: &'a [Measurement], of: &Measurement) -> Option<&'a Measurement> {
    measurements
        .iter()
        .find(|other| other.mode == "f32" && other.is_same_model(of))
}

fn ideal(models: &[Model], of: &Measurement) -> Option<f64> {
    let model = models.iter().find(|model| match model {
        Model::Gpt(config) => {
            model.name() == of.model
                && Some(config.attention) == of.attention
                && config.dropout == of.dropout
        }
        Model::ResNet(_) => false,
    })?;
    model.ideal_bytes().map(mib)
}

fn attention(measurement: &Measurement) -> &'static str {
    match measurement.attention {
        Some(AttentionKind::Explicit) => "explicit",
        Some(AttentionKind::Op) => "op",
        None => "",
    }
}

/// The table that people read.
pub fn table(measurements: &[Measurement], models: &[Model], pytorch: &PyTorch) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED).set_header([
        "model",
        "attention",
        "dropout",
        "mode",
        "kept MiB",
        "of plain",
        "peak MiB",
        "of plain",
        "ideal",
        "PyTorch fp32",
        "AMP CUDA",
        "AMP CPU",
    ]);
    for column in table.column_iter_mut().skip(4) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let number = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.1}"));
    for row in measurements {
        let plain = plain(measurements, row);
        let ratio = |bytes: u64, of: Option<u64>| {
            of.map_or(String::new(), |of| {
                format!("{:.3}", bytes as f64 / of as f64)
            })
        };
        let recorded = pytorch.of(row);
        table.add_row([
            row.model.clone(),
            attention(row).to_owned(),
            row.dropout.to_string(),
            row.mode.clone(),
            number(Some(mib(row.kept_bytes))),
            ratio(row.kept_bytes, plain.map(|plain| plain.kept_bytes)),
            number(Some(mib(row.peak_bytes))),
            ratio(row.peak_bytes, plain.map(|plain| plain.peak_bytes)),
            number((row.mode != "f32").then(|| ideal(models, row)).flatten()),
            number(recorded.map(|stack| stack.fp32_mib)),
            number(recorded.map(|stack| stack.amp_cuda_mib)),
            number(recorded.map(|stack| stack.amp_cpu_mib)),
        ]);
    }
    table.to_string()
}

/// Writes `memory.csv` into a directory.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write_csv(directory: &Path, measurements: &[Measurement], pytorch: &PyTorch) -> Result<()> {
    let path = directory.join("memory.csv");
    let mut writer = csv::Writer::from_path(&path)
        .with_context(|| format!("cannot write {}", path.display()))?;
    writer.write_record([
        "model",
        "attention",
        "dropout",
        "mode",
        "kept_bytes",
        "peak_bytes",
        "pytorch_fp32_mib",
        "pytorch_amp_cuda_mib",
        "pytorch_amp_cpu_mib",
    ])?;
    for row in measurements {
        let recorded = pytorch.of(row);
        let figure = |of: fn(&PyTorchStack) -> f64| {
            recorded.map_or(String::new(), |stack| of(stack).to_string())
        };
        writer.write_record([
            row.model.clone(),
            attention(row).to_owned(),
            row.dropout.to_string(),
            row.mode.clone(),
            row.kept_bytes.to_string(),
            row.peak_bytes.to_string(),
            figure(|stack| stack.fp32_mib),
            figure(|stack| stack.amp_cuda_mib),
            figure(|stack| stack.amp_cpu_mib),
        ])?;
    }
    writer.flush()?;
    Ok(())
}

/// Kept bytes side by side: a group of bars for each model.
struct Group {
    label: String,
    bars: Vec<(&'static str, RGBColor, f64)>,
}

const PLAIN: RGBColor = RGBColor(150, 150, 150);
const PYTORCH_FP32: RGBColor = RGBColor(225, 190, 130);
const PYTORCH_CUDA: RGBColor = RGBColor(235, 140, 60);
const PYTORCH_CPU: RGBColor = RGBColor(200, 90, 40);
const BF16: RGBColor = RGBColor(45, 110, 180);
const F16: RGBColor = RGBColor(90, 165, 220);

fn groups(measurements: &[Measurement], pytorch: &PyTorch) -> Vec<Group> {
    measurements
        .iter()
        .filter(|row| row.mode == "f32")
        .map(|row| {
            let mut bars = vec![("Burn f32", PLAIN, mib(row.kept_bytes))];
            if let Some(stack) = pytorch.of(row) {
                bars.push(("PyTorch fp32", PYTORCH_FP32, stack.fp32_mib));
                bars.push(("PyTorch AMP, CUDA rules", PYTORCH_CUDA, stack.amp_cuda_mib));
                bars.push(("PyTorch AMP, CPU rules", PYTORCH_CPU, stack.amp_cpu_mib));
            }
            for (mode, name, colour) in [
                ("bf16", "burn-amp bf16", BF16),
                ("f16", "burn-amp f16", F16),
            ] {
                let half = measurements
                    .iter()
                    .find(|half| half.mode == mode && half.is_same_model(row));
                bars.extend(half.map(|half| (name, colour, mib(half.kept_bytes))));
            }
            let label = match row.attention {
                Some(_) => format!(
                    "{}, {} attention, dropout {}",
                    row.model,
                    attention(row),
                    row.dropout
                ),
                None => row.model.clone(),
            };
            Group { label, bars }
        })
        .collect()
}

/// Writes `memory.svg` into a directory.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write_chart(
    directory: &Path,
    measurements: &[Measurement],
    pytorch: &PyTorch,
) -> Result<()> {
    const WIDTH: u32 = 900;
    const BAR: i32 = 13;
    const GAP: i32 = 34;
    const LEFT: i32 = 40;
    const TOP: i32 = 84;

    let groups = groups(measurements, pytorch);
    let bars: i32 = groups.iter().map(|group| group.bars.len() as i32).sum();
    let height = TOP + bars * BAR + groups.len() as i32 * GAP + 20;
    let largest = groups
        .iter()
        .flat_map(|group| &group.bars)
        .fold(1.0, |largest: f64, bar| largest.max(bar.2));
    let scale = f64::from(WIDTH as i32 - 2 * LEFT - 70) / largest;

    let path = directory.join("memory.svg");
    let error =
        |error: &dyn std::fmt::Display| anyhow::anyhow!("cannot draw {}: {error}", path.display());
    let area = SVGBackend::new(&path, (WIDTH, height as u32)).into_drawing_area();
    area.fill(&WHITE).map_err(|e| error(&e))?;
    let title = ("sans-serif", 20).into_font();
    let text = ("sans-serif", 13).into_font();
    let small = ("sans-serif", 11).into_font();
    let draw_text = |line: &str, font: &FontDesc, at: (i32, i32)| {
        area.draw(&Text::new(line.to_owned(), at, font.clone()))
            .map_err(|e| error(&e))
    };
    draw_text("MiB kept for backward", &title, (LEFT, 14))?;

    let mut legend: Vec<(&str, RGBColor)> = Vec::new();
    for (name, colour, _) in groups.iter().flat_map(|group| &group.bars) {
        if !legend.iter().any(|(known, _)| known == name) {
            legend.push((name, *colour));
        }
    }
    let mut x = LEFT;
    for (name, colour) in legend {
        area.draw(&Rectangle::new([(x, 50), (x + 10, 60)], colour.filled()))
            .map_err(|e| error(&e))?;
        draw_text(name, &small, (x + 14, 49))?;
        x += 26 + 6 * name.len() as i32;
    }

    let mut y = TOP;
    for group in &groups {
        draw_text(&group.label, &text, (LEFT, y))?;
        y += 18;
        for (_, colour, value) in &group.bars {
            let end = LEFT + (value * scale) as i32;
            area.draw(&Rectangle::new(
                [(LEFT, y), (end, y + BAR - 2)],
                colour.filled(),
            ))
            .map_err(|e| error(&e))?;
            draw_text(&format!("{value:.1}"), &small, (end + 4, y))?;
            y += BAR;
        }
        y += GAP - 18;
    }
    area.present().map_err(|e| error(&e))
}
