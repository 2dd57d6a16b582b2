//! The tables of a report, as text: both the page and the terminal show them.

use crate::case::{Measure, ORDINARY};
use crate::catalogue::{MEAN, Quoted, View};
use crate::outcome::{Facts, Figure, Measured, Results, Run, Series, Spread};
use crate::steady::Steady;
use crate::text;

/// A table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// What it is about.
    pub(crate) title: String,
    /// The first column names the rows.
    pub(crate) head: Vec<String>,
    /// How many of the last columns are a document's.
    pub(crate) quoted: usize,
    /// As many cells as there are in `head`.
    pub(crate) rows: Vec<Vec<String>>,
}

/// The tables that an experiment's views ask for, then that of all figures.
pub(crate) fn tables(results: &Results, brokers: &[Facts]) -> Vec<Table> {
    let shown = Shown::new(results, brokers);
    let mut all = Vec::new();
    for view in results.experiment.views {
        match view {
            View::Figures(_) => all.push(shown.figures()),
            View::Steps => all.push(shown.steps()),
            View::Gains => all.extend(shown.gains()),
            View::Seconds => all.push(shown.steadiness()),
            View::Load => all.push(shown.load()),
        }
    }
    all.push(shown.details());
    all.retain(|table| !table.rows.is_empty());
    all.into_iter().map(Table::without_empty_columns).collect()
}

impl Table {
    /// Leaves out columns in which no row has a figure.
    fn without_empty_columns(mut self) -> Self {
        let is_full = |at: usize| {
            at == 0 || self.rows.iter().any(|row| row.get(at).is_some_and(|it| it != NONE))
        };
        let full: Vec<bool> = (0..self.head.len()).map(is_full).collect();
        let first_quoted = self.head.len() - self.quoted;
        self.quoted = full.iter().skip(first_quoted).filter(|it| **it).count();
        for row in [&mut self.head].into_iter().chain(&mut self.rows) {
            let mut full = full.iter();
            row.retain(|_| full.next().is_none_or(|it| *it));
        }
        self
    }
}

/// A cell without a figure.
const NONE: &str = "-";

/// Results in rows and columns.
pub(crate) struct Shown<'a> {
    results: &'a Results,
    brokers: &'a [Facts],
    figures: Vec<Figure<'a>>,
    /// Rows, in the order in which they came.
    pub(crate) rows: Vec<&'a str>,
    /// Columns, in the order in which they came.
    pub(crate) series: Vec<Series>,
    /// Whose figures are quoted.
    pub(crate) sources: Vec<&'static str>,
}

impl<'a> Shown<'a> {
    /// Sorts results.
    pub(crate) fn new(results: &'a Results, brokers: &'a [Facts]) -> Self {
        let figures = results.figures();
        let mut series = unique(figures.iter().map(|it| it.series));
        series.sort_by_key(|it| it.broker);
        Self {
            rows: unique(figures.iter().map(|it| it.row)),
            series,
            sources: unique(results.experiment.quoted.iter().map(|it| it.source)),
            results,
            brokers,
            figures,
        }
    }

    /// The name of a column: the broker's, and the rule if there are several.
    pub(crate) fn title(&self, series: Series) -> String {
        let broker = self.brokers.get(series.broker);
        let name = broker.map_or("?", |it| it.name.as_str());
        if series.column.is_empty() || (broker.is_some() && !self.is_leveret(series)) {
            return name.to_owned();
        }
        format!("{name}, {}", series.column)
    }

    /// The figure in a row and column.
    pub(crate) fn figure(&self, row: &str, series: Series) -> Option<Spread> {
        self.figures.iter().find(|it| it.row == row && it.series == series)?.spread
    }

    /// The document's figure in a row.
    pub(crate) fn quoted(&self, row: &str, source: &str) -> Option<f64> {
        let is_it = |it: &&Quoted| it.row == row && it.source == source;
        self.results.experiment.quoted.iter().find(is_it).map(|it| it.value)
    }

    /// What all rows show, if it is one thing or at least has one unit.
    pub(crate) fn subject(&self) -> Option<&'static str> {
        let same = |name: fn(Measure) -> &'static str| {
            let names = unique(self.figures.iter().map(|it| name(it.measure)));
            if let [only] = names[..] { Some(only) } else { None }
        };
        same(Measure::title).or_else(|| same(Measure::unit))
    }

    /// Whether the document's figures are of the same kind as the measured ones, and not gains.
    pub(crate) fn quotes_figures(&self) -> bool {
        !self.results.experiment.views.contains(&View::Gains)
    }

    fn head(&self, first: &str, with_sources: bool) -> Vec<String> {
        let mut head = vec![first.to_owned()];
        head.extend(self.series.iter().map(|it| self.title(*it)));
        if with_sources {
            head.extend(self.sources.iter().map(ToString::to_string));
        }
        head
    }

    fn figures(&self) -> Table {
        let quotes = self.quotes_figures();
        let row = |row: &&str| {
            let measured = self.series.iter().map(|it| spread(self.figure(row, *it)));
            let sources = self.sources.iter().filter(|_| quotes);
            let quoted = sources.map(|it| cell(self.quoted(row, it).map(text::number)));
            let name = [self.row_title(row)];
            name.into_iter().chain(measured).chain(quoted).collect()
        };
        let title = sentence(self.subject().unwrap_or("figures"));
        Table {
            title,
            head: self.head("", quotes),
            quoted: if quotes { self.sources.len() } else { 0 },
            rows: self.rows.iter().map(row).collect(),
        }
    }

    /// A row's name, with its unit where rows differ in it.
    fn row_title(&self, row: &str) -> String {
        match self.figures.iter().find(|it| it.row == row) {
            Some(figure) if self.subject().is_none() => format!("{row}: {}", figure.measure.unit()),
            _ => row.to_owned(),
        }
    }

    fn steps(&self) -> Table {
        let share = |now: Option<f64>, before: Option<f64>| {
            cell(now.zip(before).map(|(now, before)| text::percent(now / before)))
        };
        let row = |pair: &[&str]| {
            let [before, now] = pair else { return Vec::new() };
            let measured = self.series.iter().map(|it| {
                let at = |row| self.figure(row, *it).map(|it| it.median);
                share(at(now), at(before))
            });
            let quoted =
                self.sources.iter().map(|it| share(self.quoted(now, it), self.quoted(before, it)));
            let name = [(*now).to_owned()];
            name.into_iter().chain(measured).chain(quoted).collect()
        };
        Table {
            title: "Share of the rate of the row before".to_owned(),
            head: self.head("", true),
            quoted: self.sources.len(),
            rows: self.rows.windows(2).map(row).collect(),
        }
    }

    /// What each rule gains over the ordinary one of its broker, as the document has it; then over every other broker.
    fn gains(&self) -> Vec<Table> {
        let own = Table {
            title: format!("Gain of the rate over the rule {ORDINARY}"),
            ..self.gains_in(&self.gain_columns(), &self.sources)
        };
        let of_others = self.series.iter().filter(|it| it.column == ORDINARY).map(|base| {
            let is_other = |it: &&Series| it.broker != base.broker && self.is_leveret(**it);
            let columns: Vec<_> =
                self.series.iter().filter(is_other).map(|it| (*it, *base)).collect();
            let title = format!("Gain of the rate over {}", self.title(*base));
            Table { title, ..self.gains_in(&columns, &[]) }
        });
        [own].into_iter().chain(of_others).collect()
    }

    /// Empty if there is nothing to compare.
    fn gains_in(&self, columns: &[(Series, Series)], sources: &[&str]) -> Table {
        if columns.is_empty() {
            return Table::default();
        }
        let row = |row: &str| {
            let measured =
                columns.iter().map(|(it, base)| cell(self.gain(row, *it, *base).map(text::gain)));
            let quoted = sources.iter().map(|it| cell(self.quoted(row, it).map(text::gain)));
            [row.to_owned()].into_iter().chain(measured).chain(quoted).collect()
        };
        let names = columns.iter().map(|(it, _)| self.title(*it));
        let quoted = sources.iter().map(ToString::to_string);
        Table {
            title: String::new(),
            head: [String::new()].into_iter().chain(names).chain(quoted).collect(),
            quoted: sources.len(),
            rows: self.rows.iter().copied().chain([MEAN]).map(row).collect(),
        }
    }

    /// Each rule, and the ordinary one of its broker.
    pub(crate) fn gain_columns(&self) -> Vec<(Series, Series)> {
        let mut all = Vec::new();
        for base in self.series.iter().filter(|it| it.column == ORDINARY) {
            let rules = self.series.iter().filter(|it| it.broker == base.broker && *it != base);
            all.extend(rules.map(|it| (*it, *base)));
        }
        all
    }

    fn is_leveret(&self, series: Series) -> bool {
        self.brokers.get(series.broker).is_some_and(|it| it.is_leveret)
    }

    /// after / before; in the row of means, 1 and the arithmetic mean of the gains above three queues.
    fn gain(&self, row: &str, it: Series, base: Series) -> Option<f64> {
        if row != MEAN {
            return Some(self.figure(row, it)?.median / self.figure(row, base)?.median);
        }
        let many = self.rows.iter().filter(|row| number_of(row).is_some_and(|it| it > 3.0));
        let gains: Vec<f64> = many.filter_map(|row| self.gain(row, it, base)).collect();
        (!gains.is_empty()).then(|| gains.iter().sum::<f64>() / gains.len() as f64)
    }

    fn steadiness(&self) -> Table {
        let row = |it: &Measured| {
            let of =
                |figure: fn(&Steady) -> f64| it.spread(|run| Steady::of(run).map(|it| figure(&it)));
            vec![
                format!("{}, {}", it.case.row, self.broker(it)),
                spread(of(|it| it.median)),
                cell(of(|it| it.worst / it.median).map(|it| text::percent(it.median))),
                cell(of(|it| it.slow as f64).map(|it| text::tick(it.median))),
                cell(of(|it| it.longest_slow as f64).map(|it| text::tick(it.median))),
                cell(
                    it.spread(|run| run.broker_peak_bytes.map(|it| it as f64))
                        .map(|it| text::megabytes(it.median)),
                ),
                cell(
                    it.spread(|run| Some(run.confirm_us?.p999 / 1e3))
                        .map(|it| text::number(it.median)),
                ),
                cell(
                    it.spread(|run| Some(run.confirm_us?.max / 1e3))
                        .map(|it| text::number(it.median)),
                ),
            ]
        };
        Table {
            title: "Steadiness, by seconds; the first and the last do not count".to_owned(),
            head: [
                "",
                "median, messages/s",
                "worst second, of the median",
                "seconds below 90 %",
                "the most in a row",
                "peak memory, MB",
                "confirm p99.9, ms",
                "longest confirm, ms",
            ]
            .map(str::to_owned)
            .into(),
            quoted: 0,
            rows: self.results.measured.iter().filter(|it| !it.runs.is_empty()).map(row).collect(),
        }
    }

    fn load(&self) -> Table {
        let row = |it: &Measured| {
            let us = |figure: fn(&Run) -> Option<f64>| {
                cell(it.spread(figure).map(|it| text::number(it.median)))
            };
            vec![
                format!("{}, {}", it.case.row, self.broker(it)),
                us(|run| Some(run.published_per_s)),
                us(|run| Some(run.latency_us?.mean)),
                us(|run| Some(run.latency_us?.p50)),
                us(|run| Some(run.latency_us?.p99)),
                us(|run| Some(run.latency_us?.p999)),
                us(|run| Some(run.latency_us?.max)),
            ]
        };
        let head = [
            "share of the highest rate",
            "messages/s",
            "mean, \u{b5}s",
            "p50, \u{b5}s",
            "p99, \u{b5}s",
            "p99.9, \u{b5}s",
            "longest, \u{b5}s",
        ];
        let mut measured: Vec<&Measured> =
            self.results.measured.iter().filter(|it| !it.runs.is_empty()).collect();
        measured.sort_by_key(|it| it.broker);
        Table {
            title: "Latency at each load".to_owned(),
            head: head.map(str::to_owned).into(),
            quoted: 0,
            rows: measured.into_iter().map(row).collect(),
        }
    }

    fn details(&self) -> Table {
        let row = |it: &Measured| {
            let of = |figure: fn(&Run) -> Option<f64>| {
                cell(it.spread(figure).map(|it| text::number(it.median)))
            };
            vec![
                it.case.row.clone(),
                self.title(Series { broker: it.broker, column: it.case.column }),
                it.runs.len().to_string(),
                of(|run| Some(run.seconds)),
                of(|run| (run.published > 0).then_some(run.published_per_s)),
                of(|run| (run.consumed > 0).then_some(run.consumed_per_s)),
                of(|run| Some(run.latency_us?.p50)),
                of(|run| Some(run.latency_us?.p99)),
                of(|run| Some(run.confirm_us?.p50)),
                of(|run| Some(run.confirm_us?.p99)),
                of(|run| run.broker_cpu_s_per_million),
                of(|run| Some(run.broker_peak_bytes? as f64 / 1e6)),
                of(|run| Some(run.tool_cpu_s_per_million)),
                of(|run| run.others_cpu_percent),
            ]
        };
        let head = [
            "case",
            "broker",
            "runs",
            "seconds",
            "published/s",
            "consumed/s",
            "latency p50, \u{b5}s",
            "p99",
            "confirm p50, \u{b5}s",
            "p99",
            "broker, CPU s per million",
            "peak memory, MB",
            "load tool, CPU s per million",
            "others, % CPU",
        ];
        Table {
            title: "All figures".to_owned(),
            head: head.map(str::to_owned).into(),
            quoted: 0,
            rows: self.results.measured.iter().filter(|it| !it.runs.is_empty()).map(row).collect(),
        }
    }

    /// The column that a case belongs to.
    pub(crate) fn broker(&self, it: &Measured) -> String {
        self.title(Series { broker: it.broker, column: it.case.column })
    }
}

/// The number that a row begins with.
pub(crate) fn number_of(row: &str) -> Option<f64> {
    row.split(' ').next()?.parse().ok()
}

fn cell(text: Option<String>) -> String {
    text.unwrap_or_else(|| NONE.to_owned())
}

/// The median, and where it is not the only one, the lowest and highest.
fn spread(it: Option<Spread>) -> String {
    let Some(Spread { median, low, high }) = it else { return cell(None) };
    let text = text::number(median);
    if low == high {
        return text;
    }
    format!("{text} ({} to {})", text::number(low), text::number(high))
}

/// Its first letter large.
pub(crate) fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |it| it.to_uppercase().chain(letters).collect())
}

fn unique<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut found = Vec::new();
    for it in all {
        if !found.contains(&it) {
            found.push(it);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_without_figures_are_left_out() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let rows = vec![words("r - 1 - 2"), words("- - - - 3")];
        let table = Table { title: String::new(), head: words("a b c d e"), quoted: 2, rows };
        let table = table.without_empty_columns();
        assert_eq!((table.head.join(" "), table.quoted), ("a c e".to_owned(), 1));
        assert_eq!(table.rows, [words("r 1 2"), words("- - 3")]);
    }
}
