//! The experiments: an entry each, in the order of the documents.
//!
//! A new experiment is one more [`Experiment`] in the file of its document, and its name in [`ALL`].

mod article;
mod cluster;
mod cmq;
mod cookbook;
mod paging;

pub(crate) use article::MEAN;

use serde::Serialize;

use crate::case::{Case, Length};

/// Every experiment.
pub(crate) const ALL: &[&Experiment] = &[
    &article::LADDER,
    &article::CONFIRMS,
    &paging::PAGING,
    &cluster::SCENARIO_1,
    &cluster::SCENARIO_2,
    &cluster::SCENARIO_3,
    &cluster::LATENCY,
    &cookbook::THREADS,
    &cookbook::SMALL,
    &cookbook::PREFETCH,
    &cookbook::NO_ACK,
    &cookbook::MIRRORED,
    &cookbook::TX,
    &cookbook::MESSAGE_SIZE,
    &cookbook::PREFETCH_SWEEP,
    &cookbook::CONSUMERS,
    &cmq::COLUMNS,
];

/// A document whose experiments are repeated.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Document {
    /// Its number, as the requirements count.
    pub(crate) number: &'static str,
    /// What it is.
    pub(crate) title: &'static str,
    /// The machine its figures come from, as far as it says.
    pub(crate) machine: &'static str,
}

/// An experiment of a document.
#[derive(Debug, Serialize)]
pub(crate) struct Experiment {
    /// The word it is called by.
    pub(crate) name: &'static str,
    /// Where it comes from.
    pub(crate) document: &'static Document,
    /// What it answers, by the numbers of the requirements.
    pub(crate) requirements: &'static [&'static str],
    /// One line: what it shows.
    pub(crate) title: &'static str,
    /// How it is done, where the document leaves something open, and how to read the result.
    pub(crate) about: &'static str,
    /// What of it this version cannot do.
    pub(crate) missing: Option<&'static str>,
    /// How often each case is run when nobody says otherwise: as often as in the document.
    pub(crate) repeats: usize,
    /// Settings of a broker that is started for it.
    pub(crate) settings: &'static [&'static str],
    /// What is run.
    #[serde(skip)]
    pub(crate) cases: fn(Length) -> Vec<Case>,
    /// What the document measured.
    pub(crate) quoted: &'static [Quoted],
    /// The tables and charts of its report.
    #[serde(skip)]
    pub(crate) views: &'static [View],
}

/// A figure of a document.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Quoted {
    /// Whose it is: a column in tables.
    pub(crate) source: &'static str,
    /// The row it belongs to.
    pub(crate) row: &'static str,
    /// In the unit of the row; a factor where a table shows gains.
    pub(crate) value: f64,
}

/// A part of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// The figures, beside the document's, and a picture of them.
    Figures(Picture),
    /// Each row's share of the row before.
    Steps,
    /// What each column gains over the column of the ordinary rule, beside what the document gained.
    Gains,
    /// Rate and memory second by second.
    Seconds,
    /// Latency by load.
    Load,
}

/// How figures are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Picture {
    /// A bar for each figure.
    Bars,
    /// Lines over the number that rows begin with, which is of these.
    Lines(&'static str),
}

const fn quoted(source: &'static str, row: &'static str, value: f64) -> Quoted {
    Quoted { source, row, value }
}

/// The experiment of this name.
pub(crate) fn find(name: &str) -> Option<&'static Experiment> {
    ALL.iter().copied().find(|it| it.name == name)
}

impl Experiment {
    /// Seconds that one broker needs for it.
    pub(crate) fn takes_s(&self, length: Length, repeats: usize) -> f64 {
        // A run has a start and an end besides.
        (self.cases)(length).iter().map(|case| (case.takes_s + 0.5) * repeats as f64).sum()
    }

    /// How often each case is run, if nobody says otherwise.
    pub(crate) fn repeats(&self, length: Length) -> usize {
        length.pick(self.repeats, 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// What the documents ask of experiments, by number: each is answered by an entry.
    const ASKED: [&str; 29] = [
        "S000-38", "S000-39", "S000-40", "S000-41", "S000-42", "S000-43",
        "S000-45", // the article
        "S001-9", "S001-10", "S001-11", "S001-13", "S001-14", "S001-15", "S001-16", // paging
        "S002-14", "S002-15", "S002-16", "S002-17", "S002-22", // the scenarios
        "S003-2", "S003-14", "S003-16", "S003-17", "S003-22", "S003-25",
        "S003-29", // the cookbook
        "S004-9", "S004-10", "S004-11", // the columns
    ];

    #[test]
    fn every_requirement_has_an_entry() {
        let answered: HashSet<_> = ALL.iter().flat_map(|it| it.requirements).collect();
        let missing: Vec<_> = ASKED.iter().filter(|it| !answered.contains(it)).collect();
        assert_eq!(missing, <[&&str; 0]>::default());
    }

    #[test]
    fn names_are_words_of_their_own() {
        let names: HashSet<_> = ALL.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), ALL.len());
        for it in ALL {
            let is_word = |letter: char| {
                letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '-'
            };
            assert!(it.name.chars().all(is_word), "{}", it.name);
            assert_eq!(find(it.name).map(|it| it.name), Some(it.name));
        }
        assert!(find("nonsense").is_none());
    }

    /// A document's figure that has no row would never be seen.
    #[test]
    fn every_quoted_figure_has_a_row() {
        for it in ALL {
            for length in [Length::default(), Length { quick: true, seconds: None }] {
                let cases = (it.cases)(length);
                let rows: HashSet<&str> = cases
                    .iter()
                    .flat_map(|case| [Some(case.row.as_str()), case.also.map(|it| it.0)])
                    .flatten()
                    .chain([MEAN])
                    .collect();
                for quoted in it.quoted {
                    assert!(rows.contains(quoted.row), "{}: {}", it.name, quoted.row);
                }
            }
        }
    }

    #[test]
    fn quick_is_quick() {
        for it in ALL {
            let length = Length { quick: true, seconds: None };
            let takes_s = it.takes_s(length, it.repeats(length));
            assert!(takes_s < 20.0, "{} takes {takes_s} s", it.name);
        }
    }
}
