//! The command line of `leveret perf experiment`.

use std::path::PathBuf;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{ArgAction, Args, Subcommand};

use crate::broker::BrokerChoice;
use crate::case::Length;
use crate::catalogue::{ALL, Experiment, find};
use crate::cluster::ClusterArgs;
use crate::everything::EverythingArgs;
use crate::failover::FailoverArgs;
use crate::isolation::IsolationArgs;
use crate::text;

/// Repeat experiments of the documents, on Leveret or beside another broker.
///
/// Without --uri a broker is started for it, on a free port with a directory of its own, and ended afterwards. The report is a page
/// and a JSON file.
#[derive(Clone, Debug, Args)]
#[command(subcommand_negates_reqs = true, args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  leveret perf experiment --list
  leveret perf experiment ladder --quick
  leveret perf experiment confirms --seconds 10 --repeat 3
  leveret perf experiment scenario-1 scenario-2 --against amqp://guest:guest@127.0.0.1:5673/%2F --against-pid 4711

Ctrl-C ends it and writes what there is.
Exit status: 0 measured, 1 a run failed, 64 bad arguments, 130 interrupted.")]
pub struct ExperimentArgs {
    #[command(subcommand)]
    pub(crate) trial: Option<Trial>,
    /// Experiments, by name; --list has them
    #[arg(value_name = "NAME", value_parser = Names, required_unless_present_any = ["list", "all"])]
    pub(crate) names: Vec<&'static str>,
    /// Say what each experiment shows, in a line
    #[arg(long)]
    pub(crate) list: bool,
    /// Run every experiment
    #[arg(long, conflicts_with = "names")]
    pub(crate) all: bool,

    /// Another broker, measured in turn with the first; may be repeated
    #[arg(long, value_name = "URI")]
    pub(crate) against: Vec<String>,
    /// Its process, if it is on this machine: CPU and memory are measured. In the order of --against
    #[arg(long, value_name = "PID", requires = "against")]
    pub(crate) against_pid: Vec<u32>,
    /// The first broker, instead of one that is started for this
    #[arg(long, value_name = "URI")]
    pub(crate) uri: Option<String>,
    /// Its process
    #[arg(long, value_name = "PID", requires = "uri")]
    pub(crate) pid: Option<u32>,

    /// Some seconds for each experiment, instead of as long and as often as in its document
    #[arg(long)]
    pub(crate) quick: bool,
    /// Send each message and each ack in a write of its own, as most clients do
    #[arg(long)]
    pub(crate) flush_each: bool,
    /// Seconds of each timed run
    #[arg(long, value_name = "N", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Runs of each case; medians are shown
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) repeat: Option<u32>,

    /// Where the page goes [default: leveret-experiment.html]
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Where the JSON goes [default: as the page, but .json]
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Write the tables as Markdown, too
    #[arg(long, value_name = "FILE")]
    pub(crate) markdown: Option<PathBuf>,

    /// Print this help
    // By hand: the load tool, of which this is a part, has another -h, and so none of clap's.
    #[arg(short = 'h', short_alias = '?', long, action = ArgAction::Help)]
    pub(crate) help: Option<bool>,
}

/// Experiments that are no document's, with arguments of their own.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Trial {
    /// What an innocent client feels while somebody does one large thing
    Isolation(IsolationArgs),
    /// All that clients and operators do, at once and by chance
    Everything(EverythingArgs),
    /// Whether a cluster keeps every message while its nodes fail, and how long its clients wait
    Failover(FailoverArgs),
    /// What a message costs in a cluster that is well, and how long it takes, by where its clients are
    Cluster(ClusterArgs),
}

impl ExperimentArgs {
    /// Those that are wanted, in the order in which they were named.
    pub(crate) fn experiments(&self) -> Vec<&'static Experiment> {
        if self.all { ALL.to_vec() } else { self.names.iter().filter_map(|it| find(it)).collect() }
    }

    /// The brokers, in the order of columns.
    pub(crate) fn sources(&self) -> Vec<BrokerChoice> {
        let first = match &self.uri {
            Some(uri) => BrokerChoice::Running { uri: uri.clone(), pid: self.pid },
            None => BrokerChoice::Own,
        };
        let pids = self.against_pid.iter().copied().map(Some).chain(std::iter::repeat(None));
        let others = self
            .against
            .iter()
            .zip(pids)
            .map(|(uri, pid)| BrokerChoice::Running { uri: uri.clone(), pid });
        [first].into_iter().chain(others).collect()
    }

    /// How long runs are.
    pub(crate) fn length(&self) -> Length {
        Length { quick: self.quick, seconds: self.seconds }
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86_400.0).contains(&seconds) => Ok(seconds),
        _ => Err("expected seconds, 0.1 to 86400".to_owned()),
    }
}

/// The list of all experiments.
pub(crate) fn list() -> String {
    let mut text = String::from(
        "Experiments, by the document they are from; as long as there, and with --quick:\n",
    );
    let mut document = "";
    let width = ALL.iter().map(|it| it.name.len()).max().unwrap_or(0);
    for it in ALL {
        if it.document.number != document {
            document = it.document.number;
            text += &format!("\n{document}: {}\n", it.document.title);
        }
        let takes = |quick| {
            let length = Length { quick, seconds: None };
            text::duration(it.takes_s(length, it.repeats(length)))
        };
        text +=
            &format!("  {:width$}  {} ({}, {})\n", it.name, it.title, takes(false), takes(true));
        if it.missing.is_some() {
            text += &format!(
                "  {:width$}  in part: the rest needs a cluster, which this version does not have\n",
                ""
            );
        }
    }
    text += "\nOf no document, with options of their own:\n  isolation   what an innocent client feels while somebody does one large thing\n  everything  all that clients and operators do, at once and by chance\n  failover    whether a cluster keeps every message while its nodes fail, and how long its clients wait\n  cluster     what a message costs in a cluster that is well, and how long it takes, by where its clients are\n";
    text
}

/// The names of experiments, for completions; another name is answered with the list.
#[derive(Clone)]
struct Names;

impl TypedValueParser for Names {
    type Value = &'static str;

    fn parse_ref(
        &self,
        command: &clap::Command,
        _: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<&'static str, clap::Error> {
        let name = value.to_string_lossy();
        find(&name).map(|it| it.name).ok_or_else(|| {
            let text = format!("there is no experiment '{name}'\n\n{}", list());
            clap::Error::raw(ErrorKind::InvalidValue, text).with_cmd(command)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(ALL.iter().map(|it| PossibleValue::new(it.name).help(it.title))))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    #[command(disable_help_flag = true)]
    struct Program {
        #[command(flatten)]
        args: ExperimentArgs,
    }

    fn read(line: &str) -> Result<ExperimentArgs, String> {
        let words = ["experiment"].into_iter().chain(line.split_whitespace());
        Program::try_parse_from(words).map(|it| it.args).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_are_read() {
        let args = read("ladder tx --quick --repeat 3 --against amqp://h --against-pid 7").unwrap();
        let names: Vec<_> = args.experiments().iter().map(|it| it.name).collect();
        assert_eq!(names, ["ladder", "tx"]);
        assert!(matches!(
            &args.sources()[..],
            [BrokerChoice::Own, BrokerChoice::Running { pid: Some(7), .. }]
        ));
        assert_eq!(read("--all").unwrap().experiments().len(), ALL.len());
        assert!(read("--list").unwrap().list);
        let two =
            read("tx --against amqp://a --against amqp://b --against-pid 7").unwrap().sources();
        assert!(matches!(
            &two[1..],
            [BrokerChoice::Running { pid: Some(7), .. }, BrokerChoice::Running { pid: None, .. }]
        ));
        let elsewhere = read("ladder --uri amqp://h").unwrap().sources();
        assert!(matches!(&elsewhere[..], [BrokerChoice::Running { pid: None, .. }]));
    }

    #[test]
    fn refused_lines_say_why() {
        for (line, text) in [
            ("", "required"),
            ("ladders", "there is no experiment 'ladders'"),
            ("ladders", "what acks, confirms and persistence each cost"),
            ("ladder --seconds 0", "0.1 to 86400"),
            ("ladder --repeat 0", "1..=100"),
            ("ladder --pid 3", "--uri"),
            ("ladder --all", "cannot be used with"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(text), "{line}: {error}");
        }
    }
}
