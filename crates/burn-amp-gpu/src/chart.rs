//! Bars in an SVG file.

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;

/// Bars that share a scale.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// What is compared, and its unit.
    pub title: String,
    /// Labels and values.
    pub bars: Vec<(String, f64)>,
}

const WIDTH: i32 = 900;
const BAR: i32 = 14;
const TITLE: i32 = 22;
const GAP: i32 = 14;
const LEFT: i32 = 30;
const LABEL: i32 = 190;

/// Ours in blues, others in the colours of the memory chart.
fn colour(label: &str) -> RGBColor {
    let colours = [
        ("PyTorch", RGBColor(235, 140, 60)),
        ("Burn", RGBColor(150, 150, 150)),
        ("cast", RGBColor(90, 165, 220)),
    ];
    colours
        .iter()
        .find(|(prefix, _)| label.starts_with(prefix))
        .map_or(RGBColor(45, 110, 180), |(_, colour)| *colour)
}

/// Draws the panels below each other.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write(path: &Path, panels: &[Panel]) -> Result<()> {
    let bars: i32 = panels.iter().map(|panel| panel.bars.len() as i32).sum();
    let height = 20 + bars * BAR + panels.len() as i32 * (TITLE + GAP);
    let error =
        |error: &dyn std::fmt::Display| anyhow::anyhow!("cannot draw {}: {error}", path.display());
    let area = SVGBackend::new(path, (WIDTH as u32, height as u32)).into_drawing_area();
    area.fill(&WHITE).map_err(|e| error(&e))?;
    let title = ("sans-serif", 14).into_font();
    let small = ("sans-serif", 11).into_font();
    let draw_text = |line: &str, font: &FontDesc<'_>, at: (i32, i32)| {
        area.draw(&Text::new(line.to_owned(), at, font.clone()))
            .map_err(|e| error(&e))
    };

    let mut y = 14;
    for panel in panels {
        draw_text(&panel.title, &title, (LEFT, y))?;
        y += TITLE;
        let largest = panel.bars.iter().map(|bar| bar.1);
        let largest = largest.fold(f64::MIN_POSITIVE, f64::max);
        let scale = f64::from(WIDTH - 2 * LEFT - LABEL - 60) / largest;
        for (label, value) in &panel.bars {
            draw_text(label, &small, (LEFT, y))?;
            let start = LEFT + LABEL;
            let end = start + (value * scale) as i32;
            area.draw(&Rectangle::new(
                [(start, y), (end, y + BAR - 3)],
                colour(label).filled(),
            ))
            .map_err(|e| error(&e))?;
            draw_text(&figure(*value), &small, (end + 4, y))?;
            y += BAR;
        }
        y += GAP;
    }
    area.present().map_err(|e| error(&e))
}

/// Three digits or more.
fn figure(value: f64) -> String {
    if value >= 100.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn should_scale_the_bars_of_a_panel_to_its_largest() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.svg");
        let panel = Panel {
            title: "rates".into(),
            bars: vec![("fused".into(), 200.0), ("Burn f32".into(), 50.0)],
        };
        write(&path, &[panel]).unwrap();
        let svg = std::fs::read_to_string(path).unwrap();
        let whole = WIDTH - 2 * LEFT - LABEL - 60;
        assert!(svg.contains(&format!("width=\"{whole}\"")), "{svg}");
        assert!(svg.contains(&format!("width=\"{}\"", whole / 4)), "{svg}");
    }

    #[test]
    fn should_tell_ours_from_others() {
        assert_ne!(colour("fused"), colour("Burn half"));
        assert_ne!(colour("fused"), colour("cast, then"));
        assert_eq!(colour("burn-amp bf16"), colour("fused"));
    }
}
