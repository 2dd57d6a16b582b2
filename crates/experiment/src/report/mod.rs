//! The report: one page that needs nothing from outside, and the same tables for a terminal.

mod chart;
mod charts;
mod page;

pub(crate) use page::{page, terminal};
