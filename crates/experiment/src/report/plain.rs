//! The tables as text: for a terminal, and as Markdown for documents.

use std::fmt::Write as _;

use crate::outcome::{Measured, Results, Session};
use crate::table::{Table, tables};
use crate::text;

/// The tables of figures, for a terminal.
pub(crate) fn terminal(session: &Session) -> String {
    let mut out = format!("\n{}\n", session.writes());
    for results in &session.experiments {
        out += &format!("\n{}: {}\n", results.experiment.name, results.experiment.title);
        for table in without_details(results, session) {
            out += &format!("\n{}\n{}", table.title, columns(&table));
        }
        for line in failures(results).chain(results.experiment.missing.map(str::to_owned)) {
            out += &format!("\n{line}\n");
        }
    }
    out
}

/// A table in columns: names to the left, figures to the right.
fn columns(table: &Table) -> String {
    let rows = || [&table.head].into_iter().chain(&table.rows);
    let width = |at: usize| {
        rows().filter_map(|row| row.get(at)).map(|it| it.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..table.head.len()).map(width).collect();
    let mut out = String::new();
    for row in rows() {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| {
            if at == 0 { format!("{cell:<width$}") } else { format!("  {cell:>width$}") }
        });
        out += cells.collect::<String>().trim_end();
        out.push('\n');
    }
    out
}

/// The tables of figures as Markdown, with what they were measured on.
pub(crate) fn markdown(session: &Session) -> String {
    let mut out = format!("Leveret {}, {}; {}.", session.program, session.started, session.machine);
    let others = session.others_cpu_percent();
    let others = others.map_or_else(
        || "an unknown share".to_owned(),
        |it| format!("at most {} %", text::number(it)),
    );
    let _ = writeln!(out, " Other programs had {others} of the processors. `{}`", session.command);
    let _ = writeln!(out, "\n{}", session.writes());
    if session.length.quick {
        out += "\nQuick runs, of seconds: enough to see that it works, not to publish.\n";
    }
    for results in &session.experiments {
        let _ = writeln!(
            out,
            "\n### {}: {}\n\n{}",
            results.experiment.name,
            results.experiment.title,
            results.how_often()
        );
        for table in without_details(results, session) {
            let _ = writeln!(out, "\n{}:\n\n{}", table.title, piped(&table).trim_end());
        }
        for line in failures(results).chain(results.experiment.missing.map(str::to_owned)) {
            let _ = writeln!(out, "\n{line}");
        }
    }
    out
}

/// What went wrong.
fn failures(results: &Results) -> impl Iterator<Item = String> {
    let failed = |it: &Measured| Some(format!("{}: failed: {}", it.label(), it.failure.as_ref()?));
    results.measured.iter().filter_map(failed)
}

/// Names to the left, figures to the right; a document's columns say so.
fn piped(table: &Table) -> String {
    let first_quoted = table.head.len() - table.quoted;
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let head = table.head.iter().enumerate().map(|(at, name)| {
        if at >= first_quoted { format!("{name} (document)") } else { name.clone() }
    });
    let rule = (0..table.head.len()).map(|at| if at == 0 { "---" } else { "---:" }.to_owned());
    let rows = table.rows.iter().map(|row| line(row.clone()));
    line(head.collect()) + &line(rule.collect()).replace(' ', "") + &rows.collect::<String>()
}

fn without_details(results: &Results, session: &Session) -> Vec<Table> {
    let mut all = tables(results, &session.brokers);
    all.pop();
    all
}
