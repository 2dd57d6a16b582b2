//! The command line of the program, and its manual.

use std::path::PathBuf;

use clap::{Args, CommandFactory as _, Parser, Subcommand};

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
    /// Load a broker and measure it, as PerfTest does
    Perf(leveret_load::PerfArgs),
    /// Print the manual page, in roff
    Man,
    /// Print a completion script
    Completion {
        /// The shell it is for
        shell: clap_complete::Shell,
    },
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

    /// Check the configuration and end
    #[arg(long)]
    pub(crate) check: bool,

    #[command(flatten)]
    pub(crate) options: leveret_config::Flags,
}

/// The manual page: the commands, then every option of the configuration.
pub(crate) fn manual() -> Vec<u8> {
    let mut page = Vec::new();
    let command = Cli::command();
    // Writing to memory does not fail.
    let _ = clap_mangen::Man::new(command).render(&mut page);
    page.extend_from_slice(b".SH CONFIGURATION\n");
    page.extend_from_slice(leveret_config::page::man_section().as_bytes());
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_sound() {
        Cli::command().debug_assert();
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
        check("completion bash",                                    true);
        check("",                                                   false);
    }

    #[track_caller]
    fn check(words: &str, want: bool) {
        let words = ["leveret"].into_iter().chain(words.split_whitespace());
        let got = Cli::try_parse_from(words);
        assert_eq!(got.is_ok(), want, "{:?}", got.err().map(|it| it.to_string()));
    }

    #[test]
    fn manual_has_every_option() {
        let page = String::from_utf8(manual()).unwrap();
        for key in ["heartbeat", "listeners.tcp.$name", "log.console.level"] {
            assert!(page.contains(key), "{key}");
        }
    }
}
