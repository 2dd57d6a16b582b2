//! What a run does, made of the options: places, limits, and who does what.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Options as ClientOptions, Uri};

use crate::args::values::{Step, Wait, table, timestamp};
use crate::args::{ExitWhen, Flag, Mode, Options};
use crate::content::Content;
use crate::stamp::Clock;
use crate::steps::Steps;
use crate::topology::Topology;
use crate::verbose::Verbose;
use crate::verify::{Ledger, Verification};

/// Messages of the latency mode that are left out while caches and code warm up.
const LATENCY_WARM_UP: u64 = 500;
/// Length of a latency run for which nothing else is said.
const LATENCY_SECONDS: f64 = 10.0;
/// Prefetch of a stream's consumers, who must have one.
const STREAM_PREFETCH: u16 = 200;

/// A run that has been thought through.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Connections go to them in turn.
    pub(crate) uris: Vec<Uri>,
    pub(crate) client: ClientOptions,
    pub(crate) startup: Startup,
    /// How long to wait before connecting again; `None` does not.
    pub(crate) recovery: Option<Wait>,
    pub(crate) topology: Topology,
    pub(crate) content: Content,
    /// Where messages are accounted for, if they are.
    pub(crate) ledger: Option<Arc<Ledger>>,
    pub(crate) clock: Clock,
    pub(crate) publishing: Publishing,
    pub(crate) consuming: Consuming,
    pub(crate) seconds: Option<f64>,
    pub(crate) exit_when: Option<ExitWhen>,
    pub(crate) shutdown: Duration,
    /// Tells every message.
    pub(crate) verbose: Option<Verbose>,
}

/// How to wait for brokers that are not there yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Startup {
    pub(crate) timeout: Option<Duration>,
    pub(crate) needed: usize,
}

/// What producers do. Rates and limits are those of a channel.
#[derive(Clone, Debug)]
pub(crate) struct Publishing {
    pub(crate) producers: usize,
    pub(crate) channels: usize,
    /// Messages per second.
    pub(crate) rate: Option<Rate>,
    pub(crate) limit: Option<u64>,
    pub(crate) confirm_window: Option<usize>,
    pub(crate) confirm_timeout: Duration,
    /// Messages of a transaction.
    pub(crate) transaction: Option<u64>,
    pub(crate) persistent: bool,
    pub(crate) mandatory: bool,
    /// Each message is a write of its own.
    pub(crate) flush_each: bool,
    pub(crate) keys: Keys,
    /// The longest time a producer waits before it starts.
    pub(crate) start_delay: Duration,
}

/// How fast to publish.
#[derive(Clone, Debug)]
pub(crate) enum Rate {
    Fixed(f64),
    Steps(Steps),
}

/// Routing keys of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// That of the producer.
    Fixed,
    /// One for each message.
    Random,
    /// One of so many for each message.
    Some(usize),
}

/// What consumers do. Rates and limits are those of a channel.
#[derive(Clone, Debug)]
pub(crate) struct Consuming {
    pub(crate) consumers: usize,
    pub(crate) channels: usize,
    /// Messages per second.
    pub(crate) rate: Option<f64>,
    pub(crate) limit: Option<u64>,
    pub(crate) prefetch: Option<u16>,
    pub(crate) channel_prefetch: Option<u16>,
    pub(crate) ack: Ack,
    /// Messages are refused, and go back or not.
    pub(crate) nack: Option<Requeue>,
    /// Each answer is a write of its own.
    pub(crate) flush_each: bool,
    /// Messages of a transaction.
    pub(crate) transaction: Option<u64>,
    /// Microseconds that a message takes.
    pub(crate) latency_us: Option<Steps>,
    pub(crate) arguments: Table,
    /// Fetch with basic.get, with this time between two of them.
    pub(crate) polling: Option<Duration>,
    pub(crate) start_delay: Duration,
    pub(crate) slow_start: bool,
    /// First messages of each consumer whose latency is not counted.
    pub(crate) warm_up: u64,
}

/// Whether refused messages go back to their queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Requeue(pub(crate) bool);

/// How deliveries are acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ack {
    /// By the broker itself.
    Auto,
    /// One ack for each message.
    Each,
    /// One ack for so many messages.
    Every(u64),
}

impl Plan {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let publishing = Publishing::new(options);
        let consuming = Consuming::new(options)?;
        let limits = &options.limits;
        let broker = &options.broker;
        let latency = options.mode == Mode::Latency;
        let unlimited = limits.time.is_none() && publishing.limit.is_none();
        let uris = uris(options)?;
        let run = format!("{:08x}", rand::random::<u32>());
        let frame_max = broker.framemax.and_then(|bytes| u32::try_from(bytes).ok());
        let buffer = |bytes: Option<u64>| {
            bytes.filter(|bytes| *bytes > 0).and_then(|bytes| usize::try_from(bytes).ok())
        };
        let client = ClientOptions::default();
        let topology = Topology::new(options, consuming.consumers * consuming.channels, &run)?;
        let agents = publishing.producers * publishing.channels;
        let ledger = || Arc::new(Ledger::new(rand::random(), topology.queues.len(), agents));
        Ok(Self {
            client: ClientOptions {
                name: Some(options.output.id.clone()),
                heartbeat_s: broker.heartbeat,
                frame_max: frame_max.unwrap_or(client.frame_max),
                send_buffer: buffer(broker.tcp_send_buffer_size),
                receive_buffer: buffer(broker.tcp_receive_buffer_size),
                no_delay: broker.tcp_no_delay,
                ..client
            },
            startup: Startup {
                timeout: broker.servers_startup_timeout.filter(|s| *s > 0).map(Duration::from_secs),
                needed: match broker.servers_up_limit {
                    None | Some(0) => uris.len(),
                    Some(limit) => usize::try_from(limit).unwrap_or(usize::MAX).min(uris.len()),
                },
            },
            uris,
            recovery: (!broker.disable_connection_recovery)
                .then_some(broker.connection_recovery_interval),
            ledger: options.extras.verify.then(ledger),
            topology,
            content: Content::new(options)?,
            clock: if options.output.use_millis { Clock::Wall } else { Clock::Monotonic },
            publishing,
            consuming,
            seconds: limits.time.or_else(|| (latency && unlimited).then_some(LATENCY_SECONDS)),
            exit_when: limits.exit_when,
            shutdown: Duration::from_secs(limits.shutdown_timeout),
            verbose: Verbose::of(options),
        })
    }

    /// What the verification has found, if there is one. `has_read_all`: consumers were there until
    /// nothing came any more.
    pub(crate) fn judge(&self, has_read_all: bool) -> Option<Verification> {
        let ledger = self.ledger.as_ref()?;
        let consuming = &self.consuming;
        let consumers = 0..consuming.consumers * consuming.channels;
        let read: Vec<usize> =
            consumers.flat_map(|consumer| self.topology.queues_of(consumer)).collect();
        Some(ledger.judge(has_read_all, |producer, queue| {
            if !read.contains(&queue) {
                return Some(false);
            }
            match self.publishing.keys {
                Keys::Fixed => self.topology.reaches(producer, queue),
                Keys::Random | Keys::Some(_) => None,
            }
        }))
    }

    /// Where the connection of this number goes.
    pub(crate) fn uri(&self, number: usize) -> &Uri {
        &self.uris[number % self.uris.len()]
    }
}

fn uris(options: &Options) -> Result<Vec<Uri>> {
    let broker = &options.broker;
    let texts = match &*broker.uris {
        [] => std::slice::from_ref(&broker.uri),
        several => several,
    };
    let read = |text: &String| {
        let mut uri: Uri = text.trim().parse().with_context(|| format!("--uri {text}"))?;
        if let Some(tls) = &mut uri.tls {
            tls.is_external |= broker.sasl_external;
            tls.server_name =
                broker.server_name_indication.clone().or_else(|| tls.server_name.take());
        } else if broker.sasl_external {
            anyhow::bail!("--sasl-external: {text} has no certificate; use amqps://");
        }
        Ok(uri)
    };
    texts.iter().map(read).collect()
}

impl Publishing {
    fn new(options: &Options) -> Self {
        let args = &options.publishing;
        let fixed = args.rate.or_else(|| args.publishing_interval.map(|seconds| 1.0 / seconds));
        let of_mode = (options.mode == Mode::Latency).then_some(1000.0);
        let rate = match Steps::new(&args.variable_rate) {
            Some(steps) => Some(Rate::Steps(steps)),
            None => fixed.or(of_mode).map(Rate::Fixed),
        };
        let is_crowd = args.producers * args.producer_channel_count > 1;
        let usual = if rate.is_some() && is_crowd { 1.0 } else { 0.0 };
        let delay = args.producer_random_start_delay.unwrap_or(usual);
        let of_type = options.topology.quorum_queue || options.topology.stream_queue;
        Self {
            producers: args.producers,
            channels: args.producer_channel_count,
            rate,
            limit: options.limits.pmessages.filter(|limit| *limit > 0),
            confirm_window: args
                .confirm
                .and_then(|window| usize::try_from(window).ok())
                .filter(|window| *window > 0),
            confirm_timeout: Duration::from_secs(args.confirm_timeout),
            transaction: args.ptxsize.filter(|size| *size > 0),
            persistent: of_type || options.has(Flag::Persistent),
            mandatory: options.has(Flag::Mandatory),
            flush_each: options.extras.flush_each,
            keys: match options.topology.routing_key_cache_size {
                0 if options.topology.random_routing_key => Keys::Random,
                0 => Keys::Fixed,
                count => Keys::Some(count),
            },
            start_delay: Duration::from_secs_f64(delay),
        }
    }
}

impl Consuming {
    fn new(options: &Options) -> Result<Self> {
        let args = &options.consuming;
        let is_latency = options.mode == Mode::Latency;
        let is_stream = options.topology.stream_queue;
        let ack = match args.multi_ack_every {
            _ if args.autoack => Ack::Auto,
            Some(1) => Ack::Each,
            None | Some(0) if is_latency && !args.nack => Ack::Auto,
            None | Some(0) => Ack::Each,
            Some(count) => Ack::Every(count),
        };
        let fixed = [Step { value: args.consumer_latency, seconds: 1 }];
        let fixed: &[Step] = if args.consumer_latency > 0 { &fixed } else { &[] };
        let steps = if args.variable_latency.is_empty() { fixed } else { &args.variable_latency };
        let mut arguments = table(&args.consumer_args);
        if let Some(offset) = &args.stream_consumer_offset {
            arguments.set("x-stream-offset", stream_offset(offset)?);
        }
        let some = |prefetch: Option<u16>| prefetch.filter(|count| *count > 0);
        Ok(Self {
            consumers: args.consumers,
            channels: args.consumer_channel_count,
            rate: args.consumer_rate,
            limit: options.limits.cmessages.filter(|limit| *limit > 0),
            prefetch: some(args.qos).or_else(|| is_stream.then_some(STREAM_PREFETCH)),
            channel_prefetch: some(args.global_qos),
            ack,
            nack: args.nack.then_some(Requeue(args.requeue)),
            flush_each: options.extras.flush_each,
            transaction: args.ctxsize.filter(|size| *size > 0),
            latency_us: Steps::new(steps),
            arguments,
            polling: args.polling.then(|| Duration::from_millis(args.polling_interval)),
            start_delay: Duration::from_secs(args.consumer_start_delay),
            slow_start: args.slow_start,
            warm_up: if is_latency { LATENCY_WARM_UP } else { 0 },
        })
    }
}

fn stream_offset(text: &str) -> Result<Value> {
    if ["first", "last", "next"].contains(&text) {
        return Ok(text.into());
    }
    if let Ok(offset) = text.parse() {
        return Ok(Value::I64(offset));
    }
    timestamp(text).map(Value::Timestamp).context(
        "--stream-consumer-offset is first, last, next, a number, or a time such as 2022-06-03T07:45:54Z",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(line: &str) -> Plan {
        let words = line.split_whitespace().map(Into::into);
        Plan::new(&Options::read(words).unwrap()).unwrap()
    }

    fn rate(plan: &Plan) -> Option<f64> {
        match plan.publishing.rate {
            Some(Rate::Fixed(rate)) => Some(rate),
            _ => None,
        }
    }

    #[test]
    fn the_latency_mode_fills_in_what_is_not_given() {
        let short = plan("latency");
        assert_eq!((rate(&short), short.seconds), (Some(1000.0), Some(10.0)));
        assert_eq!((short.consuming.ack, short.consuming.warm_up), (Ack::Auto, 500));
        let long = plan("latency -r 200 -C 5000 -A 1");
        assert_eq!((rate(&long), long.seconds), (Some(200.0), None));
        assert_eq!(long.consuming.ack, Ack::Each);
    }

    #[test]
    fn zero_is_no_limit() {
        let plan = plan("-C 0 -D 0 -q 0 -Q 0 -m 0 -n 0 -A 0 -c -1");
        assert_eq!((plan.publishing.limit, plan.consuming.limit), (None, None));
        assert_eq!((plan.consuming.prefetch, plan.consuming.ack), (None, Ack::Each));
        assert_eq!((plan.publishing.transaction, plan.publishing.confirm_window), (None, None));
    }

    #[test]
    fn an_interval_is_a_rate() {
        assert_eq!(rate(&plan("-P 0.5")), Some(2.0));
        assert_eq!(plan("-P 0.5").publishing.start_delay, Duration::ZERO);
        assert_eq!(plan("-P 0.5 -x 2").publishing.start_delay, Duration::from_secs(1));
        assert!(matches!(plan("-vr 5:1,6:1").publishing.rate, Some(Rate::Steps(_))));
    }

    #[test]
    fn brokers_take_turns() {
        let plan = plan("-H amqp://a,amqp://b -sul 1 -sst 9");
        assert_eq!([0, 1, 2].map(|number| &*plan.uri(number).host), ["a", "b", "a"]);
        assert_eq!((plan.startup.needed, plan.startup.timeout), (1, Some(Duration::from_secs(9))));
        let external = Options::read(["-se".into()]).unwrap();
        assert!(Plan::new(&external).unwrap_err().to_string().contains("amqps"));
    }
}
