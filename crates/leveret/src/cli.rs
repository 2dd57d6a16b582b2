//! The command line of the program, and its manual.

use std::path::PathBuf;

use clap::{Args, Command, CommandFactory as _, Parser, Subcommand};

/// A message broker that speaks AMQP 0-9-1 with RabbitMQ's extensions.
#[derive(Parser, Debug)]
#[command(name = "leveret", version, propagate_version = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) part: Part,
}

/// What the program is this time.
#[derive(Subcommand, Debug)]
pub(crate) enum Part {
    /// Run the broker
    Serve(ServeArgs),
    /// Steer and look into a running broker, as rabbitmqctl does
    Ctl(leveret_ctl::CtlArgs),
    /// Move the definitions and messages of a running broker, RabbitMQ or Leveret, to another
    Migrate(leveret_migrate::MigrateArgs),
    /// Have the next start let go of messages whose queues are not known, as names were lost
    DropOrphans(DropOrphansArgs),
    /// Load a broker and measure it, as PerfTest does; repeat the documents' experiments
    Perf(PerfWords),
    /// Print a manual page, in roff
    Man {
        /// serve, ctl, migrate, perf, or the name of one of RabbitMQ's tools [default: of the whole program]
        page: Option<String>,
    },
    /// Print a completion script
    Completion {
        /// The shell it is for
        shell: clap_complete::Shell,
        /// The program it is for: this one, or one of RabbitMQ's tools
        #[arg(default_value = "leveret")]
        program: String,
    },
}

/// PerfTest's words, an experiment, or the probe.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PerfWords {
    #[command(subcommand)]
    pub(crate) part: Option<PerfPart>,
    #[command(flatten)]
    pub(crate) load: leveret_load::PerfArgs,
}

/// What the load tool does besides its own.
#[derive(Subcommand, Debug)]
pub(crate) enum PerfPart {
    /// Repeat experiments of the documents, on Leveret or beside another broker
    Experiment(Box<leveret_experiment::ExperimentArgs>),
    /// Feel what an ordinary client feels while others load a broker
    Probe(leveret_load::probe::ProbeArgs),
}

/// Run the broker.
///
/// It needs no configuration: it listens on port 5672 and lets user guest with password guest in
/// from this machine. Every option can be given in the file, in the environment or as a flag; -h
/// lists the common flags, --help all of them.
#[derive(Args, Debug)]
#[command(after_help = "\
SIGTERM and SIGINT end the broker: it closes its connections and stops within seconds.

Example:
  leveret serve --config /etc/rabbitmq/rabbitmq.conf --port 5673 --set heartbeat=30")]
pub(crate) struct ServeArgs {
    /// Configuration file, in the form of rabbitmq.conf
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Check the configuration and the files that it names, tell all that a start would refuse, and end
    #[arg(long)]
    pub(crate) check: bool,

    /// Stop when standard input ends, as it does when the program that holds its other end is gone
    #[arg(long)]
    pub(crate) until_eof: bool,

    #[command(flatten)]
    pub(crate) options: leveret_config::Flags,
}

/// Have the next start let go of messages whose queues are not known.
///
/// When a part of the names is lost, messages of the queues that it had are kept, in no queue, so that a copy of the names
/// brings them back; each start tells of them with an ERROR. This ends that. The broker must not be running.
#[derive(Args, Debug)]
pub(crate) struct DropOrphansArgs {
    /// Configuration file, in the form of rabbitmq.conf
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) options: leveret_config::Flags,
}

/// The command line of a program of this name: this one, or one of RabbitMQ's tools.
pub(crate) fn program(name: &str) -> Option<Command> {
    if name == "leveret" { Some(described()) } else { leveret_ctl::tool(name) }
}

/// This program's command line, with the options that the load tool reads by its own rules.
fn described() -> Command {
    Cli::command().mut_subcommand("perf", |words| {
        let load = leveret_load::Options::command_for_help();
        let load = load.name("perf").disable_version_flag(true);
        load.subcommands(words.get_subcommands().cloned())
    })
}

/// A manual page: of the whole program with every option of the configuration, of a part of it, or of one of
/// RabbitMQ's tools. `None` if there is no such page.
pub(crate) fn manual(page: Option<&str>) -> Option<Vec<u8>> {
    let Some(name) = page else {
        let mut page = rendered(Cli::command());
        page.extend_from_slice(b".SH CONFIGURATION\n");
        page.extend_from_slice(leveret_config::page::man_section().as_bytes());
        return Some(page);
    };
    let of_part = |part: &Command| part.clone().name(format!("leveret-{name}"));
    let command = program(name).or_else(|| described().find_subcommand(name).map(of_part))?;
    let mut page = rendered(command.clone().disable_help_subcommand(true));
    if command.has_subcommands() {
        page.extend_from_slice(commands(command).as_bytes());
    }
    Some(page)
}

fn rendered(command: Command) -> Vec<u8> {
    let mut page = Vec::new();
    // Writing to memory does not fail.
    let _ = clap_mangen::Man::new(command).render(&mut page);
    page
}

/// Each command with its words: pages of their own would be a hundred.
fn commands(mut command: Command) -> String {
    command.build();
    let mut text = String::from(".SH COMMANDS\n");
    for part in command.get_subcommands().filter(|it| it.get_name() != "help") {
        let about = part.get_about().map(ToString::to_string).unwrap_or_default();
        text += &format!(".SS {}\n{about}.\n", part.get_name());
        let own = |arg: &&clap::Arg| !arg.is_global_set() && !arg.is_hide_set();
        for arg in part.get_arguments().filter(own).filter(|arg| arg.get_id() != "help") {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            text += &format!(".TP\n.B {}\n{help}\n", arg.to_string().replace('-', "\\-"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use clap::error::ErrorKind;

    use super::*;

    #[test]
    fn command_line_is_sound() {
        Cli::command().debug_assert();
        described().debug_assert();
    }

    #[test]
    fn the_load_tools_options_are_in_its_page() {
        let page = String::from_utf8(manual(Some("perf")).unwrap()).unwrap();
        assert!(page.contains("multi\\-ack\\-every"), "{page}");
        assert!(page.contains("Also: \\-qpf"), "{page}");
    }

    #[test]
    #[rustfmt::skip] // a table
    fn words_are_taken() {
        check("serve",                                              true);
        check("serve -c f --data-dir d --port 1 --set heartbeat=1", true);
        check("serve --vm-memory-high-watermark-relative 0.5",      true);
        check("serve --nonsense",                                   false);
        check("ctl list_queues name messages -p / -q",              true);
        check("ctl -n rabbit@host list_queues --formatter json",    true);
        check("ctl set_policy --priority 1 a b {}",                 true);
        check("ctl fly",                                            false);
        check("migrate --from-api http://a --from amqp://a",         true);
        check("migrate --from-api http://a --definitions-only",      true);
        check("migrate --from-api http://a",                         false);
        check("migrate --from-api a --from b --prefetch 0",          false);
        check("completion bash",                                    true);
        check("completion bash rabbitmqctl",                        true);
        check("perf -x 1 -y 0 -ad false --help",                    true);
        check("perf experiment ladder --quick",                     true);
        check("perf experiment --list",                             true);
        check("perf experiment fly",                                false);
        check("perf probe --uri amqp://h --seconds 60 --lines",     true);
        check("perf probe --seconds 0",                             false);
        check("man ctl",                                            true);
        check("",                                                   false);
    }

    #[track_caller]
    fn check(words: &str, want: bool) {
        let words = ["leveret"].into_iter().chain(words.split_whitespace());
        let got = Cli::try_parse_from(words);
        assert_eq!(got.is_ok(), want, "{:?}", got.err().map(|it| it.to_string()));
    }

    #[test]
    fn parts_have_help() {
        for words in [
            "",
            "serve",
            "ctl",
            "ctl status",
            "migrate",
            "drop-orphans",
            "perf experiment",
            "perf probe",
            "man",
            "completion",
        ] {
            for flag in ["-h", "--help"] {
                let line = ["leveret"].into_iter().chain(words.split_whitespace()).chain([flag]);
                let error = Cli::try_parse_from(line).expect_err(words);
                assert_eq!(error.kind(), ErrorKind::DisplayHelp, "{words} {flag}: {error}");
            }
        }
    }

    #[test]
    fn manual_has_every_option() {
        let page = |name| String::from_utf8(manual(name).unwrap()).unwrap();
        for key in ["heartbeat", "listeners.tcp.$name", "log.console.level"] {
            assert!(page(None).contains(key), "{key}");
        }
        assert!(page(Some("ctl")).contains(".SS list_queues\nList queues.\n"));
        assert!(page(Some("perf")).contains(".SS experiment\n"));
        assert!(page(Some("rabbitmq-plugins")).contains(".SS enable\n"));
        assert!(page(Some("serve")).contains("leveret\\-serve"));
        assert_eq!(manual(Some("fly")), None);
    }
}
