//! The command line of `leveret perf`: PerfTest's names where PerfTest has the option.
//!
//! PerfTest has options of several letters behind one dash (`-ad`, `-qp`); [`Options::read`]
//! turns those into their long names before clap sees them, and answers every option PerfTest
//! knows and this tool does not with an error that says so.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::{ArgAction, CommandFactory, Parser, ValueEnum};

/// What follows `leveret perf`, unread: it has its own rules (see [`Options::read`]).
#[derive(Clone, Debug, Default, clap::Args)]
#[command(disable_help_flag = true)]
pub struct PerfArgs {
    /// PerfTest's options; `leveret perf --help` lists them
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION")]
    pub raw: Vec<OsString>,
}

/// What the tool measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// As many messages as the options allow
    Throughput,
    /// One message per millisecond (or -r), auto-ack: the time from publish to delivery
    Latency,
}

/// Drive load against an AMQP 0-9-1 broker and measure it.
///
/// Options are PerfTest's. Each producer and each consumer is a connection with one channel.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "leveret perf",
    disable_help_flag = true,
    after_help = "Examples:\n  leveret perf -x 1 -y 1 -a -s 1024 -z 10\n  leveret perf -u orders -f persistent -c 100 -q 200 -A 10 --json run.json\n  leveret perf latency -z 10 --broker-pid 4711\n  leveret perf --idle-connections 1000 --broker-pid 4711\n\nExit status: 0 measured, 1 the run failed, 2 bad options."
)]
pub struct Options {
    /// What to measure
    #[arg(value_enum, default_value = "throughput", hide_default_value = true)]
    pub mode: Mode,

    /// Broker to load
    #[arg(short = 'h', long, default_value = "amqp://guest:guest@localhost:5672/%2F")]
    pub uri: String,
    /// Producers, each with its own connection
    #[arg(short = 'x', long, default_value_t = 1)]
    pub producers: usize,
    /// Consumers, each with its own connection
    #[arg(short = 'y', long, default_value_t = 1)]
    pub consumers: usize,
    /// Queue name [default: named by the server]
    #[arg(short = 'u', long)]
    pub queue: Option<String>,
    /// Exchange name [default: the type's name; '' is the default exchange]
    #[arg(short = 'e', long)]
    pub exchange: Option<String>,
    /// Exchange type
    #[arg(short = 't', long = "type", default_value = "direct")]
    pub kind: String,
    /// Routing key [default: the queue's name]
    #[arg(short = 'k', long)]
    pub routing_key: Option<String>,
    /// Body size in bytes; latency is measured from 12 bytes on
    #[arg(short = 's', long, default_value_t = 12)]
    pub size: usize,
    /// Limit of each producer, messages per second
    #[arg(short = 'r', long)]
    pub rate: Option<f64>,
    /// Limit of each consumer, messages per second
    #[arg(short = 'R', long)]
    pub consumer_rate: Option<f64>,
    /// Publisher confirms, with at most this many messages unconfirmed
    #[arg(short = 'c', long)]
    pub confirm: Option<usize>,
    /// Prefetch of each consumer [default: no limit]
    #[arg(short = 'q', long)]
    pub qos: Option<u16>,
    /// Consume without acknowledgements
    #[arg(short = 'a', long)]
    pub autoack: bool,
    /// Acknowledge every so many messages at once
    #[arg(short = 'A', long)]
    pub multi_ack_every: Option<u32>,
    /// Message flag: persistent, mandatory. May be repeated
    #[arg(short = 'f', long = "flag", value_delimiter = ',')]
    pub flags: Vec<Flag>,
    /// Stop after so many seconds [default: never]
    #[arg(short = 'z', long)]
    pub time: Option<f64>,
    /// Messages of each producer [default: no limit]
    #[arg(short = 'C', long)]
    pub pmessages: Option<u64>,
    /// Messages of each consumer [default: no limit]
    #[arg(short = 'D', long)]
    pub cmessages: Option<u64>,
    /// Declare nothing: queues and exchange are there
    #[arg(short = 'p', long)]
    pub predeclared: bool,
    /// Queues vanish with their last consumer. Also: -ad
    #[arg(long, default_value_t = true, action = ArgAction::Set, value_name = "BOOL")]
    pub auto_delete: bool,
    /// Names of several queues, such as 'orders-%d'. Also: -qp
    #[arg(long, requires = "queue_pattern_to")]
    pub queue_pattern: Option<String>,
    /// First number of the queue pattern. Also: -qpf
    #[arg(long, default_value_t = 1)]
    pub queue_pattern_from: u32,
    /// Last number of the queue pattern. Also: -qpt
    #[arg(long)]
    pub queue_pattern_to: Option<u32>,
    /// Heartbeat to ask for, seconds; 0 is none
    #[arg(short = 'b', long)]
    pub heartbeat: Option<u16>,
    /// Name of the run in lines and files
    #[arg(short = 'd', long, default_value = "leveret")]
    pub id: String,
    /// Seconds between two lines
    #[arg(short = 'i', long, default_value_t = 1.0)]
    pub interval: f64,

    /// Write the result as JSON; '-' is stdout, and then lines go to stderr
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Process of the broker, or its parent: measure CPU and memory of the process tree
    #[arg(long, value_name = "PID")]
    pub broker_pid: Option<u32>,
    /// Open so many connections and report what each costs the broker
    #[arg(long, value_name = "N", conflicts_with = "idle_queues")]
    pub idle_connections: Option<usize>,
    /// Declare so many queues and report what each costs the broker
    #[arg(long, value_name = "N")]
    pub idle_queues: Option<usize>,

    /// Print this help
    #[arg(short = '?', long, action = ArgAction::Help)]
    help: Option<bool>,
}

/// A flag on every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Flag {
    /// Delivery mode 2; queues are declared durable
    Persistent,
    /// Unroutable messages come back and are counted
    Mandatory,
}

/// Several letters behind one dash, and their long names.
const SHORT_WORDS: [(&str, &str); 4] = [
    ("-ad", "--auto-delete"),
    ("-qp", "--queue-pattern"),
    ("-qpf", "--queue-pattern-from"),
    ("-qpt", "--queue-pattern-to"),
];

/// PerfTest's options that this tool does not have, so that nobody believes they worked.
#[rustfmt::skip] // a table
const NOT_HERE: &[&str] = &[
    "-B", "--body", "-bc", "--body-count", "-bfc", "--body-field-count", "-T", "--body-content-type",
    "-ca", "--consumer-args", "-cri", "--connection-recovery-interval", "-csd", "--consumer-start-delay",
    "-ct", "--confirm-timeout", "-ctp", "--consumers-thread-pools", "-dcr",
    "--disable-connection-recovery", "-E", "--exclusive", "-env", "--environment-variables",
    "-ew", "--exit-when", "-H", "--uris", "-hst", "--heartbeat-sender-threads", "-jb", "--json-body",
    "-l", "--legacy-metrics", "-L", "--consumer-latency", "-m", "--ptxsize", "-n", "--ctxsize",
    "-M", "--framemax", "-mh", "--metrics-help", "-mp", "--message-properties", "-ms", "--use-millis",
    "-msf", "--metrics-format", "-na", "--nack", "-nsr", "--nio-thread-pool", "-nti", "--nio-threads",
    "-o", "--output-file", "-P", "--publishing-interval", "-pi", "--polling-interval", "-po", "--polling",
    "-prsd", "--producer-random-start-delay", "-pst", "--producer-scheduler-threads", "-Q", "--global-qos",
    "-qa", "--queue-args", "-qf", "--queue-file", "-qq", "--quorum-queue", "-re", "--requeue",
    "-rkcs", "--routing-key-cache-size", "-S", "--slow-start", "-sb", "--skip-binding-queues", "-se",
    "--sasl-external", "-sni", "--server-name-indication", "-sq", "--stream-queue", "-st", "--shutdown-timeout",
    "-sul", "--servers-up-limit", "-suli", "--servers-startup-timeout", "-udsc", "--use-default-ssl-context",
    "-v", "--version", "-vl", "--variable-latency", "-vr", "--variable-rate", "-vs", "--variable-size",
    "-X", "--producer-channel-count", "-Y", "--consumer-channel-count",
];

impl Options {
    /// Reads the arguments after `perf`. The error prints itself (help is one such "error").
    pub fn read(raw: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let mut args = vec![OsString::from("leveret perf")];
        for arg in raw {
            args.push(long_name(arg)?);
        }
        let options = Self::try_parse_from(args)?;
        options.check().map_err(|text| {
            Self::command().error(clap::error::ErrorKind::ArgumentConflict, text)
        })?;
        Ok(options)
    }

    /// The command, for help pages.
    pub fn command_for_help() -> clap::Command {
        Self::command()
    }

    fn check(&self) -> Result<(), String> {
        let positive = |rate: Option<f64>| rate.is_none_or(|rate| rate > 0.0 && rate < 1e9);
        let idle = self.idle_connections.is_some() || self.idle_queues.is_some();
        if !positive(self.rate) || !positive(self.consumer_rate) || !positive(self.time) {
            return Err("rates and times must be above zero".into());
        }
        if self.interval < 0.1 {
            return Err("--interval must be at least 0.1 seconds".into());
        }
        if self.confirm == Some(0) {
            return Err("--confirm needs a window of at least one message".into());
        }
        if self.multi_ack_every == Some(0) {
            return Err("--multi-ack-every must be at least 1".into());
        }
        if self.autoack && self.multi_ack_every.is_some() {
            return Err("--autoack and --multi-ack-every exclude each other".into());
        }
        if let (Some(every), Some(prefetch)) = (self.multi_ack_every, self.qos)
            && prefetch != 0
            && every > u32::from(prefetch)
        {
            return Err(format!(
                "with prefetch {prefetch}, acknowledging every {every} messages waits for ever"
            ));
        }
        if self.queue.is_some() && self.queue_pattern.is_some() {
            return Err("--queue and --queue-pattern exclude each other".into());
        }
        if let (Some(pattern), Some(last)) = (&self.queue_pattern, self.queue_pattern_to) {
            if !pattern.contains("%d") {
                return Err("--queue-pattern must contain %d".into());
            }
            if last < self.queue_pattern_from {
                return Err("--queue-pattern-to is below --queue-pattern-from".into());
            }
        }
        if self.predeclared && self.queue.is_none() && self.queue_pattern.is_none() {
            return Err("--predeclared needs --queue or --queue-pattern".into());
        }
        if self.producers == 0 && self.consumers == 0 && !idle {
            return Err("neither producers nor consumers: nothing to do".into());
        }
        if self.mode == Mode::Latency && (self.producers == 0 || self.consumers == 0) {
            return Err("latency needs a producer and a consumer".into());
        }
        if idle && self.broker_pid.is_none() {
            return Err("idle costs are read from the broker's process: give --broker-pid".into());
        }
        Ok(())
    }

    /// Whether every message has `flag`.
    pub fn has(&self, flag: Flag) -> bool {
        self.flags.contains(&flag)
    }
}

fn long_name(arg: OsString) -> Result<OsString, clap::Error> {
    let Some(text) = arg.to_str() else { return Ok(arg) };
    let (name, value) = match text.split_once('=') {
        Some((name, value)) if name.starts_with('-') => (name, Some(value)),
        _ => (text, None),
    };
    if NOT_HERE.contains(&name) {
        return Err(Options::command().error(
            clap::error::ErrorKind::UnknownArgument,
            format!("PerfTest's option '{name}' is not supported here"),
        ));
    }
    let Some((_, long)) = SHORT_WORDS.iter().find(|(short, _)| *short == name) else {
        return Ok(arg);
    };
    let mut out = OsString::from(long);
    if let Some(value) = value {
        out.push(OsStr::new("="));
        out.push(value);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, String> {
        let words = line.split_whitespace().map(|word| match word {
            "''" => OsString::new(),
            word => word.into(),
        });
        Options::read(words).map_err(|error| error.to_string())
    }

    #[test]
    fn perftest_lines_are_read() {
        let options = read(
            "-h amqp://h -x 2 -y 3 -e '' -t topic -k key -s 1500 -r 10 -R 5.5 -c 100 -q 50 -A 10 \
             -f persistent -f mandatory -z 15 -C 7 -D 8 -ad false -qp p%d -qpf 1 -qpt 30 --id run",
        )
        .unwrap();
        assert_eq!((options.producers, options.consumers), (2, 3));
        assert_eq!(options.exchange.as_deref(), Some(""));
        assert!(options.has(Flag::Persistent) && options.has(Flag::Mandatory));
        assert!(!options.auto_delete);
        assert_eq!((options.queue_pattern_from, options.queue_pattern_to), (1, Some(30)));
        assert_eq!(options.consumer_rate, Some(5.5));
        assert_eq!(options.mode, Mode::Throughput);
    }

    #[test]
    fn defaults_are_perftests() {
        let options = read("").unwrap();
        assert_eq!((options.producers, options.consumers, options.size), (1, 1, 12));
        assert!(options.auto_delete && !options.autoack && !options.predeclared);
        assert_eq!(read("latency").unwrap().mode, Mode::Latency);
    }

    #[test]
    fn a_program_hands_everything_on_unread() {
        #[derive(Parser)]
        enum Program {
            Perf(PerfArgs),
        }
        let Program::Perf(args) = Program::try_parse_from([
            "leveret", "perf", "-h", "uri", "-ad", "false", "--help", "-a",
        ])
        .unwrap();
        assert_eq!(args.raw, ["-h", "uri", "-ad", "false", "--help", "-a"]);
    }

    #[test]
    fn refused_lines_say_why() {
        for (line, text) in [
            ("-qq", "'-qq' is not supported"),
            ("--exit-when empty", "'--exit-when' is not supported"),
            ("--no-such", "--no-such"),
            ("-a -A 5", "exclude each other"),
            ("-q 5 -A 10", "waits for ever"),
            ("-x 0 -y 0", "nothing to do"),
            ("-c 0", "at least one"),
            ("-p", "--predeclared needs"),
            ("-qp x -qpt 3", "must contain %d"),
            ("-qp x%d", "queue-pattern-to"),
            ("-qp x%d -qpf 4 -qpt 3", "below"),
            ("--idle-queues 5", "--broker-pid"),
            ("-f loud", "loud"),
            ("-r 0", "above zero"),
        ] {
            let error = read(line).unwrap_err();
            assert!(error.contains(text), "{line}: {error}");
        }
    }
}
