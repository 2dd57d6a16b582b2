//! The result as Markdown.

use std::io::Write as _;

use anyhow::Result;

use super::Workload;
use super::goals::{self, Goal};
use super::measure::{Bench, Figures};

/// Prints one table for all targets, and the commands under it.
pub(crate) fn print(targets: &[&str], workloads: &[Workload], bench: &Bench) -> Result<()> {
    std::io::stdout().lock().write_all(markdown(targets, workloads, bench).as_bytes())?;
    Ok(())
}

fn markdown(targets: &[&str], workloads: &[Workload], bench: &Bench) -> String {
    let mut text = format!("| workload | figure | {} | goal |\n", targets.join(" | "));
    text.push_str(&format!("|---|---|{}---|\n", "---:|".repeat(targets.len())));
    for workload in workloads {
        let all: Vec<&[Figures]> =
            targets.iter().map(|target| bench.results(target, *workload)).collect();
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in all.iter().copied().flatten().flatten() {
            if !names.contains(&&**name) {
                names.push(name);
            }
        }
        for (row, name) in names.iter().enumerate() {
            let title = if row == 0 { workload.title() } else { "" };
            let cells: Vec<String> = all.iter().map(|runs| cell(runs, name)).collect();
            let goal = goal(*workload, name, all.first().copied().unwrap_or_default());
            text.push_str(&format!("| {title} | {name} | {} | {goal} |\n", cells.join(" | ")));
        }
    }
    let runs = bench.runs();
    text.push_str(&format!("\nMedians of {runs} runs (smallest to largest). Commands:\n\n"));
    for workload in workloads {
        if let Some(command) = bench.command(*workload) {
            text.push_str(&format!("- {}: `{command}`\n", workload.title()));
        }
    }
    text
}

/// What a figure is to be, and whether the median of the first broker misses it.
fn goal(workload: Workload, name: &str, runs: &[Figures]) -> String {
    let Some(goal) = goals::of(workload, name) else { return String::new() };
    let bound = match goal {
        Goal::AtMost(bound) => format!("at most {}", short(bound)),
        Goal::AtLeast(bound) => format!("at least {}", short(bound)),
    };
    match median(&values(runs, name)) {
        Some(median) if !goal.is_met(median) => format!("{bound}: missed"),
        _ => bound,
    }
}

/// `median (min-max)` of one figure over the runs.
fn cell(runs: &[Figures], name: &str) -> String {
    let values = values(runs, name);
    match (values.as_slice(), median(&values)) {
        ([one], _) => short(*one),
        ([first, .., last], Some(median)) => {
            format!("{} ({}-{})", short(median), short(*first), short(*last))
        }
        _ => String::new(),
    }
}

fn median(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}

/// One figure of all runs, the lowest first.
fn values(runs: &[Figures], name: &str) -> Vec<f64> {
    let mut values: Vec<f64> = runs
        .iter()
        .filter_map(|figures| figures.iter().find(|(figure, _)| *figure == name))
        .map(|(_, value)| *value)
        .collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Three significant digits below a thousand, whole numbers above.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_show_the_median_and_the_range() {
        let runs =
            [3.0, 1.0, 2.0].map(|value| vec![("x".into(), value), ("y".into(), value * 1000.0)]);
        assert_eq!(cell(&runs, "x"), "2.00 (1.00-3.00)");
        assert_eq!(cell(&runs, "y"), "2000 (1000-3000)");
        assert_eq!(cell(&runs[..1], "x"), "3.00");
        assert_eq!(cell(&runs, "z"), "");
    }
}
