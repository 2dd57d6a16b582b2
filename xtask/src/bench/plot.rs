//! Rate and memory of every second as a picture: one SVG file that needs nothing else.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use serde_json::Value;

/// Size of one panel.
const PANEL: (u32, u32) = (760, 260);

/// What one phase of one run has shown.
#[derive(Debug, Default, PartialEq)]
struct Series {
    title: String,
    /// Second, thousands of messages in it.
    rate: Vec<(f64, f64)>,
    /// Second, megabytes of memory at its end.
    memory: Vec<(f64, f64)>,
}

/// Draws all lines of a benchmark that are about a second: a row for each phase of each run, its rate on
/// the left and the broker's memory on the right.
pub(crate) fn write(lines: &[Value], path: &Path) -> Result<()> {
    let all = series(lines);
    if all.is_empty() {
        return Err(anyhow!("no workload of this run has seconds to draw; those of K1 have"));
    }
    let size = (2 * PANEL.0, PANEL.1 * all.len() as u32);
    let area = SVGBackend::new(path, size).into_drawing_area();
    let shown = |error: &dyn std::fmt::Display| anyhow!("drawing {}: {error}", path.display());
    area.fill(&WHITE).map_err(|error| shown(&error))?;
    for (row, series) in area.split_evenly((all.len(), 1)).iter().zip(&all) {
        let (left, right) = row.split_horizontally(PANEL.0);
        let rate = format!("{}: thousands of messages/s", series.title);
        draw(&left, &rate, &series.rate, &BLUE).map_err(|error| shown(&error))?;
        let memory = format!("{}: resident memory, MB", series.title);
        draw(&right, &memory, &series.memory, &RED).map_err(|error| shown(&error))?;
    }
    area.present().map_err(|error| shown(&error))
}

fn draw<'a>(
    area: &DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
    title: &str,
    points: &[(f64, f64)],
    color: &RGBColor,
) -> Result<(), DrawingAreaErrorKind<<SVGBackend<'a> as DrawingBackend>::ErrorType>> {
    let last = points.last().map_or(1.0, |point| point.0.max(1.0));
    // From zero: a curve that looks steep is steep.
    let top = points.iter().map(|point| point.1).fold(1.0, f64::max) * 1.05;
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(48)
        .build_cartesian_2d(0.0..last, 0.0..top)?;
    chart.configure_mesh().x_labels(10).y_labels(5).light_line_style(WHITE).draw()?;
    chart.draw_series(LineSeries::new(points.iter().copied(), color))?;
    Ok(())
}

fn series(lines: &[Value]) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for line in lines {
        let Some(second) = line["second"].as_f64() else { continue };
        let text = |key: &str| line[key].as_str().unwrap_or_default();
        let run = line["run"].as_u64().unwrap_or_default();
        let title =
            format!("{}, {}, {}, run {run}", text("target"), text("workload"), text("phase"));
        if all.last().is_none_or(|last| last.title != title) {
            all.push(Series { title, ..Series::default() });
        }
        let Some(series) = all.last_mut() else { continue };
        if let Some(rate) = line["messages_per_s"].as_f64() {
            series.rate.push((second, rate / 1e3));
        }
        if let Some(bytes) = line["rss_bytes"].as_f64() {
            series.memory.push((second, bytes / 1e6));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(phase: &str, second: f64, rate: f64) -> Value {
        json!({
            "target": "Leveret", "workload": "K1", "phase": phase, "run": 1,
            "second": second, "messages_per_s": rate, "rss_bytes": 2_000_000,
        })
    }

    #[test]
    fn a_row_for_each_phase() {
        let lines = [
            line("publish", 1.0, 5000.0),
            line("publish", 2.0, 6000.0),
            line("drain", 1.0, 7000.0),
            json!({ "workload": "K1", "figures": {} }),
        ];
        let all = series(&lines);
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].title, "Leveret, K1, publish, run 1");
        assert_eq!(all[0].rate, [(1.0, 5.0), (2.0, 6.0)]);
        assert_eq!(all[1].memory, [(1.0, 2.0)]);

        let name = format!("leveret-plot-{}.svg", std::process::id());
        let path = std::env::temp_dir().join(name);
        write(&lines, &path).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(text.contains("<svg") && text.contains("K1, drain, run 1: resident memory, MB"));
        assert!(write(&[], &path).is_err());
    }
}
