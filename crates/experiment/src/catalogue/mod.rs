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
mod tests;
