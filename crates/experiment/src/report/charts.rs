//! Which charts an experiment's views ask for.

use anyhow::Result;

use super::chart::{Chart, ChartLine, Scale, bars, lines};
use crate::case::ORDINARY;
use crate::catalogue::{Picture, View};
use crate::outcome::{Facts, Measured, Results, Second};
use crate::table::{Shown, number_of, sentence};

/// The charts of a view. A view that has only a table has none.
pub(super) fn charts(view: View, results: &Results, brokers: &[Facts]) -> Result<Vec<Chart>> {
    let shown = Shown::new(results, brokers);
    match view {
        View::Figures(Picture::Bars) => figures(&shown).map(Vec::from_iter),
        View::Figures(Picture::Lines(unit)) => over_rows(&shown, unit).map(|it| vec![it]),
        View::Gains => gains(&shown).map(Vec::from_iter),
        View::Seconds => seconds(results, &shown),
        View::Load => load(results, &shown).map(|it| vec![it]),
        View::Steps => Ok(Vec::new()),
    }
}

fn figures(shown: &Shown<'_>) -> Result<Option<Chart>> {
    // Bars of different things cannot be compared.
    let Some(subject) = shown.subject() else { return Ok(None) };
    let at = |value: &dyn Fn(&str) -> Option<f64>| {
        let rows = shown.rows.iter().enumerate();
        rows.filter_map(|(at, row)| Some((at as f64, value(row)?))).collect()
    };
    let measured = shown.series.iter().map(|it| ChartLine {
        name: shown.title(*it),
        is_quoted: false,
        points: at(&|row| Some(shown.figure(row, *it)?.median)),
    });
    let quoted = shown.sources.iter().map(|source| ChartLine {
        name: format!("{source} (document)"),
        is_quoted: true,
        points: at(&|row| shown.quoted(row, source)),
    });
    let rows: Vec<String> = shown.rows.iter().map(ToString::to_string).collect();
    bars(&sentence(subject), &rows, &measured.chain(quoted).collect::<Vec<_>>()).map(Some)
}

fn over_rows(shown: &Shown<'_>, unit: &str) -> Result<Chart> {
    let numbers: Vec<f64> = shown.rows.iter().filter_map(|row| number_of(row)).collect();
    let (low, high) =
        (numbers.first().copied().unwrap_or(1.0), numbers.last().copied().unwrap_or(1.0));
    let across = if high / low >= 100.0 { Scale::Tenfold } else { Scale::Even };
    let line = |series| ChartLine {
        name: shown.title(series),
        is_quoted: false,
        points: points(shown, |row| Some(shown.figure(row, series)?.median)),
    };
    let all: Vec<ChartLine> = shown.series.iter().copied().map(line).collect();
    lines(
        &sentence(shown.subject().unwrap_or_default()),
        (unit, across),
        ("messages/s", Scale::Even),
        &all,
    )
}

fn gains(shown: &Shown<'_>) -> Result<Option<Chart>> {
    let factor =
        |row: &str, it, base| Some(shown.figure(row, it)?.median / shown.figure(row, base)?.median);
    let columns = shown.gain_columns();
    if columns.is_empty() {
        return Ok(None);
    }
    // Gains over another broker are of another size, and in tables only.
    let measured = columns.iter().map(|(it, base)| ChartLine {
        name: shown.title(*it),
        is_quoted: false,
        points: points(shown, |row| factor(row, *it, *base)),
    });
    let quoted = shown.sources.iter().map(|source| ChartLine {
        name: format!("{source} (document)"),
        is_quoted: true,
        points: points(shown, |row| shown.quoted(row, source)),
    });
    let title = format!("Rate as a multiple of that under {ORDINARY}");
    let all: Vec<ChartLine> = measured.chain(quoted).collect();
    lines(&title, ("queues", Scale::Even), ("times", Scale::Even), &all).map(Some)
}

/// A point for each row that begins with a number.
fn points(shown: &Shown<'_>, value: impl Fn(&str) -> Option<f64>) -> Vec<(f64, f64)> {
    shown.rows.iter().filter_map(|row| Some((number_of(row)?, value(row)?))).collect()
}

/// Rates and memory of the last run of each case, by seconds.
fn seconds(results: &Results, shown: &Shown<'_>) -> Result<Vec<Chart>> {
    let over_time = |value: fn(&Second) -> Option<f64>| -> Vec<ChartLine> {
        let line = |it: &Measured| {
            let intervals = &it.runs.last()?.intervals;
            Some(ChartLine {
                name: format!("{}, {}", it.case.row, shown.broker(it)),
                is_quoted: false,
                points: intervals.iter().filter_map(|it| Some((it.end_s, value(it)?))).collect(),
            })
        };
        results.measured.iter().filter_map(line).filter(|it| !it.points.is_empty()).collect()
    };
    let rate = over_time(|it| Some(it.published_per_s.max(it.consumed_per_s)));
    let memory = over_time(|it| Some(it.broker_bytes? as f64 / 1e6));
    let time = ("seconds", Scale::Even);
    let mut all = Vec::new();
    if !rate.is_empty() {
        all.push(lines("Messages per second", time, ("messages/s", Scale::Even), &rate)?);
    }
    if !memory.is_empty() {
        all.push(lines("Memory of the broker", time, ("MB", Scale::Even), &memory)?);
    }
    Ok(all)
}

fn load(results: &Results, shown: &Shown<'_>) -> Result<Chart> {
    let mut all = Vec::new();
    for series in &shown.series {
        for (name, figure) in
            [("mean", (|it| it.mean) as fn(crate::outcome::Times) -> f64), ("p99", |it| it.p99)]
        {
            let mine = results.measured.iter().filter(|it| it.broker == series.broker);
            let point = |it: &Measured| {
                let at =
                    |value: fn(&crate::outcome::Run) -> Option<f64>| Some(it.spread(value)?.median);
                let us = it.spread(|run| run.latency_us.map(figure))?.median;
                Some((at(|run| Some(run.published_per_s))?, us))
            };
            let mut points: Vec<_> = mine.filter_map(point).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            all.push(ChartLine {
                name: format!("{}: {name}", shown.title(*series)),
                is_quoted: false,
                points,
            });
        }
    }
    lines("Latency by load", ("messages/s", Scale::Even), ("\u{b5}s", Scale::Tenfold), &all)
}
