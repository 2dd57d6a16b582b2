//! The page.

use anyhow::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::Chart;
use super::charts::charts;
use crate::outcome::{Facts, Results, Session};
use crate::table::{Table, tables};
use crate::text;

/// Above so many percent of all processors for others, figures are not to be relied on.
const BUSY_PERCENT: f64 = 10.0;

/// The whole report as one file.
pub(crate) fn page(session: &Session) -> Result<String> {
    let experiments = &session.experiments;
    let title = match &experiments[..] {
        [only] => format!("{}: {}", only.experiment.name, only.experiment.title),
        all => format!("{} experiments", all.len()),
    };
    let mut sections = Vec::new();
    for results in experiments {
        sections.push(section(results, &session.brokers)?);
    }
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (PreEscaped(include_str!("style.css"))) }
            }
            body {
                h1 { @if experiments.len() == 1 { "An experiment, repeated" } @else { "Experiments, repeated" } }
                p.faint { "Leveret " (session.program) ", " (session.started) }
                (notices(session))
                (conditions(session))
                @if experiments.len() > 1 {
                    nav { ul {
                        @for it in experiments {
                            li { a href={ "#" (it.experiment.name) } { (it.experiment.name) } }
                        }
                    } }
                }
                @for it in sections { (it) }
            }
        }
    };
    Ok(page.into_string())
}

/// What a reader must know before any figure.
fn notices(session: &Session) -> Markup {
    let busy = session.others_cpu_percent().filter(|it| *it > BUSY_PERCENT);
    html! {
        @if session.interrupted {
            p.notice { "This was interrupted: what was measured until then is here, the rest is missing." }
        }
        @if let Some(percent) = busy {
            p.notice {
                "Other programs had up to " (text::number(percent)) " % of the processors while this was measured. Rates and latencies \
                 say little then; CPU seconds per message say more."
            }
        }
        @if session.length.quick {
            p.notice { "Quick runs, of seconds: enough to see that it works, not to publish." }
        }
    }
}

fn conditions(session: &Session) -> Markup {
    let machine = &session.machine;
    html! {
        dl {
            dt { "Machine" }
            dd { (machine) }
            @for it in &session.brokers {
                dt { "Broker" }
                dd { (it.name) " (tells its clients: " (it.told) "), " (place(it)) }
            }
            dt { "Others" }
            dd {
                @match session.others_cpu_percent() {
                    Some(percent) => { "at most " (text::number(percent)) " % of the processors for programs that are neither broker nor load" },
                    None => "not known: no broker's process was watched",
                }
            }
            dt { "Load" }
            dd { "on the same machine as this report was made; the broker's CPU is user and system time of its process" }
            dt { "Writes" }
            dd { (session.writes()) }
            dt { "Command" }
            dd { code { (session.command) } }
        }
    }
}

fn place(it: &Facts) -> &'static str {
    match (it.started_here, it.is_watched) {
        (true, _) => "started for this, with its data in the directory for temporary files",
        (false, true) => "running before",
        (false, false) => {
            "running before; its process was not named, so its CPU and memory are not known"
        }
    }
}

fn section(results: &Results, brokers: &[Facts]) -> Result<Markup> {
    let it = results.experiment;
    let mut pictures = Vec::new();
    for view in it.views {
        pictures.extend(charts(*view, results, brokers)?);
    }
    let mut all = tables(results, brokers);
    let details = all.pop();
    Ok(html! {
        section id=(it.name) {
            h2 { (it.name) ": " (it.title) }
            p.faint {
                "Document " (it.document.number) ", " (it.document.title) "; " (it.document.machine) ". "
                (it.requirements.join(", ")) ". "
                (results.how_often())
            }
            p { (it.about) }
            @if let Some(missing) = it.missing { p.notice { (missing) } }
            @for it in &results.measured {
                @if let Some(failure) = &it.failure {
                    p.notice { (it.label()) ": failed: " (failure) }
                }
            }
            @for it in &all { (table(it)) }
            @for it in &pictures { (figure(it)) }
            @if let Some(it) = &details {
                details { summary { (it.title) } (table(it)) }
            }
            details { summary { "Commands" } (commands(results, brokers)) }
        }
    })
}

fn table(it: &Table) -> Markup {
    let first_quoted = it.head.len() - it.quoted;
    let class = |at: usize| (at >= first_quoted).then_some("quoted");
    html! {
        h3 { (it.title) }
        div.wide { table {
            thead { tr {
                @for (at, name) in it.head.iter().enumerate() { th scope="col" class=[class(at)] { (name) } }
            } }
            tbody {
                @for row in &it.rows {
                    tr {
                        @for (at, cell) in row.iter().enumerate() {
                            @if at == 0 { th scope="row" { (cell) } } @else { td class=[class(at)] { (cell) } }
                        }
                    }
                }
            }
        } }
        @if it.quoted > 0 { p.faint { "Shaded: the document's figures, from its own machines." } }
    }
}

fn figure(it: &Chart) -> Markup {
    html! {
        figure {
            figcaption {
                (it.title)
                div.legend {
                    @for (name, color) in &it.legend {
                        span { i style={ "background:" (color) } {} (name) }
                    }
                }
            }
            (PreEscaped(&it.svg))
        }
    }
}

/// What repeats each case by hand.
fn commands(results: &Results, brokers: &[Facts]) -> Markup {
    let mut lines = Vec::new();
    for it in &results.measured {
        let name = brokers.get(it.broker).map_or("", |it| it.name.as_str());
        let pid = if brokers.get(it.broker).is_some_and(|it| it.is_watched) {
            " --broker-pid PID"
        } else {
            ""
        };
        lines.push(format!("# {}, {name}", it.label()));
        for (load, end) in it.prepare.iter().map(|it| (it, "")).chain(loads(&it.commands)) {
            lines.push(format!("leveret perf {load} -h URI{pid}{end}"));
        }
    }
    html! { pre { (lines.join("\n")) } }
}

/// Loads that run at the same time are sent to the background but for the last.
pub(super) fn loads(commands: &[String]) -> impl Iterator<Item = (&String, &'static str)> {
    let last = commands.len().saturating_sub(1);
    commands.iter().enumerate().map(move |(at, it)| (it, if at < last { " &" } else { "" }))
}
