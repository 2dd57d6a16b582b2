//! From the table of commands to a command line, and from a command line to a command with its words.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches, ValueEnum};

use crate::commands::{self, Command, Kind, Tools, Word};

/// The command line of `leveret ctl`, or of one of the tools of RabbitMQ.
#[derive(Clone, Debug)]
pub struct CtlArgs {
    pub(crate) common: Common,
    pub(crate) entry: &'static Command,
    pub(crate) words: Words,
}

/// What was given for each word of a command, by its name.
pub(crate) type Words = BTreeMap<&'static str, Vec<String>>;

/// Switches that every command takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Control socket of the node, which counts more than LEVERET_URI [default: as the configuration says]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,

    /// Management API of a node elsewhere: http://USER:PASSWORD@HOST:15672, or https
    #[arg(long, global = true, value_name = "URI", env = "LEVERET_URI", hide_env_values = true)]
    pub(crate) uri: Option<String>,

    /// Certificates of the authorities to trust with https [default: the system's]
    #[arg(long, global = true, value_name = "FILE", env = "LEVERET_CACERTFILE")]
    pub(crate) cacertfile: Option<PathBuf>,

    /// Virtual host
    #[arg(short = 'p', long, global = true, default_value = "/", value_name = "VHOST")]
    pub(crate) vhost: String,

    /// Shape of the output
    #[arg(long, global = true, value_enum, default_value_t = Formatter::Table)]
    pub(crate) formatter: Formatter,

    /// Do not say what is being done
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// As --quiet, and no table headers
    #[arg(short, long, global = true)]
    pub(crate) silent: bool,

    /// No table headers
    #[arg(long, global = true)]
    pub(crate) no_table_headers: bool,

    /// Seconds to wait for the node
    #[arg(short, long, global = true, default_value_t = 60, value_name = "SECONDS")]
    pub(crate) timeout: u64,

    /// Name of the node in messages: which one it is the socket or the URI says
    #[arg(short, long, global = true, value_name = "NODE", hide_short_help = true)]
    pub(crate) node: Option<String>,

    /// Accepted for rabbitmqctl's sake
    #[arg(short, long, global = true, hide = true)]
    longnames: bool,
}

/// Shapes of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Formatter {
    /// Columns divided by tabs.
    Table,
    /// Columns in frames.
    PrettyTable,
    /// JSON.
    Json,
    /// Comma-separated values.
    Csv,
    /// Erlang terms.
    Erlang,
}

const AFTER_HELP: &str = "\
Exit status: 0 done, 64 wrong usage, 65 no such object or bad data, 67 no such user, 68 no such host, \
69 no node, not available or a check that failed, 70 failed, 75 timed out, 77 not allowed.

Example:
  leveret ctl list_queues --vhost / name messages consumers --formatter json";

impl Args for CtlArgs {
    fn augment_args(command: clap::Command) -> clap::Command {
        augment(command, Tools::ALL)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for CtlArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        // That one of them comes from the environment is no conflict.
        let is_given = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        if is_given("socket") && is_given("uri") {
            let text =
                "--socket names a node of this machine, --uri one anywhere: give one of them\n";
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, text));
        }
        let missing = || clap::Error::new(ErrorKind::MissingSubcommand);
        let (name, given) = matches.subcommand().ok_or_else(missing)?;
        let entry = commands::all().find(|entry| entry.name == name).ok_or_else(missing)?;
        let words = entry.words.iter().map(|word| (word.name, taken(word, given)));
        Ok(Self { common: Common::from_arg_matches(matches)?, entry, words: words.collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The command line of one of RabbitMQ's tools, under its name.
pub(crate) fn tool(name: &'static str, tools: Tools) -> clap::Command {
    let command = augment(clap::Command::new(name).version(env!("CARGO_PKG_VERSION")), tools);
    // What the switches are said to be is not what the tool is.
    command.about(format!("{name}'s commands, for a node of Leveret"))
}

fn augment(command: clap::Command, tools: Tools) -> clap::Command {
    let command = Common::augment_args(command).after_help(AFTER_HELP).subcommand_required(true);
    let wanted = commands::all().filter(|entry| entry.tools.meets(tools));
    command.arg_required_else_help(true).subcommands(wanted.map(subcommand))
}

fn subcommand(entry: &'static Command) -> clap::Command {
    clap::Command::new(entry.name).about(entry.about).args(entry.words.iter().map(argument))
}

fn argument(word: &'static Word) -> Arg {
    let arg = Arg::new(word.name).help(word.help);
    let takes_value = !matches!(word.kind, Kind::Flag | Kind::IgnoredFlag);
    let arg = if takes_value { arg.allow_negative_numbers(true) } else { arg };
    let arg = match word.kind {
        Kind::One => arg.required(true),
        Kind::Maybe => arg,
        Kind::Many => arg.num_args(0..).action(ArgAction::Append),
        Kind::Flag => arg.long(word.name).action(ArgAction::SetTrue),
        Kind::Value("") => arg.long(word.name),
        Kind::Value(default) => arg.long(word.name).default_value(default),
        Kind::IgnoredFlag => arg.long(word.name).action(ArgAction::SetTrue).hide(true),
        Kind::IgnoredValue => arg.long(word.name).hide(true),
    };
    match word.short {
        Some(short) => arg.short(short),
        None => arg,
    }
}

fn taken(word: &Word, given: &ArgMatches) -> Vec<String> {
    match word.kind {
        Kind::Flag | Kind::IgnoredFlag if given.get_flag(word.name) => vec!["true".to_owned()],
        Kind::Flag | Kind::IgnoredFlag => Vec::new(),
        _ => given.get_many::<String>(word.name).into_iter().flatten().cloned().collect(),
    }
}
