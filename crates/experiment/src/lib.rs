//! `leveret perf experiment`: the documents' experiments, repeated.
//!
//! An experiment is an entry of a table ([`catalogue`]): who made it, what was found, and what is run. What is
//! run are lines of the load tool's arguments, so that each figure of a report can be had again by hand.
//!
//! ```text
//! args --> catalogue --> run --> outcome --> table --> report (a page, JSON), terminal
//!                         |
//!                       broker (started here, or running), load tool
//! ```

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

mod args;
mod broker;
mod case;
mod catalogue;
mod cluster;
mod echo;
mod everything;
mod failover;
mod interrupt;
mod isolation;
mod loads;
mod machine;
mod outcome;
mod progress;
mod report;
mod run;
mod site;
mod steady;
mod table;
mod text;

pub use args::ExperimentArgs;

use args::Trial;
use interrupt::Interrupt;
use isolation::End;
use outcome::Session;
use progress::Progress;
use run::Runner;

/// Where the page goes if nothing else is said.
const PAGE: &str = "leveret-experiment.html";

/// The status of a program that was ended by Ctrl-C.
const INTERRUPTED: u8 = 130;

/// Runs `leveret perf experiment` with its arguments; errors go to stderr.
pub fn main(args: &ExperimentArgs) -> ExitCode {
    if args.list {
        // Whoever has read enough is no failure.
        let _ = std::io::stdout().write_all(args::list().as_bytes());
        return ExitCode::SUCCESS;
    }
    if let Some(trial) = &args.trial {
        return try_it(trial);
    }
    match experiment(args) {
        Ok(session) if session.interrupted => ExitCode::from(INTERRUPTED),
        Ok(session) if session.has_failed() => ExitCode::FAILURE,
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "leveret perf experiment: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn try_it(trial: &Trial) -> ExitCode {
    let end = match trial {
        Trial::Isolation(args) => isolation::run(args),
        Trial::Everything(args) => everything::run(args),
        Trial::Failover(args) => failover::run(args),
        Trial::Cluster(args) => cluster::run(args),
    };
    match end {
        Ok(End::Good) => ExitCode::SUCCESS,
        Ok(End::Bad) => ExitCode::FAILURE,
        Ok(End::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "leveret perf experiment: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn experiment(args: &ExperimentArgs) -> Result<Session> {
    let page = args.report.clone().unwrap_or_else(|| PathBuf::from(PAGE));
    let json = args.json.clone().unwrap_or_else(|| page.with_extension("json"));
    let (sources, length, experiments) = (args.sources(), args.length(), args.experiments());
    let repeats = args.repeat.map(|it| it as usize);
    let takes_s: f64 = experiments
        .iter()
        .map(|it| {
            it.takes_s(length, repeats.unwrap_or_else(|| it.repeats(length))) * sources.len() as f64
        })
        .sum();
    for path in [&page, &json].into_iter().chain(&args.markdown) {
        leveret_load::check_writable(path)?;
    }
    let interrupt = Interrupt::listen()?;
    let mut progress = Progress::new(takes_s);
    progress.say(&format!(
        "this takes about {}; Ctrl-C ends it and writes what there is",
        text::duration(takes_s)
    ));
    let mut session = Session {
        program: env!("CARGO_PKG_VERSION"),
        started: OffsetDateTime::now_utc().replace_nanosecond(0)?.format(&Rfc3339)?,
        command: shown(std::env::args()),
        machine: machine::Machine::here(),
        length,
        flush_each: args.flush_each,
        brokers: Vec::new(),
        experiments: Vec::new(),
        interrupted: false,
    };
    let mut failure = None;
    for experiment in experiments {
        let mut runner = Runner {
            sources: &sources,
            length,
            flush_each: args.flush_each,
            repeats,
            interrupt: &interrupt,
            progress: &mut progress,
        };
        match runner.run(experiment) {
            Ok((results, brokers)) => {
                session.brokers = brokers;
                session.experiments.push(results);
            }
            Err(error) => failure = Some(error.context(experiment.name)),
        }
        session.interrupted = interrupt.is_set();
        if session.interrupted || failure.is_some() {
            break;
        }
    }
    progress.end();
    // What was measured before something broke is kept.
    if !session.experiments.is_empty() {
        write(&session, &page, &json, args.markdown.as_deref())?;
    }
    failure.map_or(Ok(session), Err)
}

/// A command line without passwords.
fn shown(words: impl Iterator<Item = String>) -> String {
    let word = |word: String| match (word.split_once("://"), word.rsplit_once('@')) {
        (Some((scheme, login)), Some((_, place))) => {
            let user = login.split([':', '@']).next().unwrap_or_default();
            format!("{scheme}://{user}:...@{place}")
        }
        _ => word,
    };
    words.map(word).collect::<Vec<_>>().join(" ")
}

/// Writes the page and the other files, and says what is in them.
fn write(session: &Session, page: &Path, json: &Path, markdown: Option<&Path>) -> Result<()> {
    let put = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    };
    put(page, &report::page(session)?)?;
    put(json, &(serde_json::to_string_pretty(session)? + "\n"))?;
    if let Some(path) = markdown {
        put(path, &report::markdown(session))?;
    }
    let told = report::terminal(session);
    let _ = write!(std::io::stdout(), "{told}\n{} and {}\n", page.display(), json.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn passwords_are_not_shown() {
        let words = ["leveret", "--against", "amqp://me:se@cret@host:5672/%2F", "--quick", "a@b"];
        let told = super::shown(words.into_iter().map(str::to_owned));
        assert_eq!(told, "leveret --against amqp://me:...@host:5672/%2F --quick a@b");
    }
}
