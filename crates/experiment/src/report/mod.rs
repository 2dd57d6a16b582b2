//! The report: one page that needs nothing from outside, and the same tables for a terminal and in Markdown.

mod chart;
mod charts;
mod page;
mod plain;

pub(crate) use page::page;
pub(crate) use plain::{markdown, terminal};

#[cfg(test)]
mod tests;
