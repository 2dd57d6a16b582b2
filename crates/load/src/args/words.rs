//! PerfTest's spelling: several letters behind one dash, long names behind one dash, and the options
//! that only a JVM understands.

use std::ffi::OsString;

/// Several letters behind one dash, and their long names.
#[rustfmt::skip] // a table
const SHORT_WORDS: &[(&str, &str)] = &[
    ("-ad", "auto-delete"), ("-bc", "body-count"), ("-bfc", "body-field-count"), ("-ca", "consumer-args"),
    ("-cri", "connection-recovery-interval"), ("-csd", "consumer-start-delay"), ("-ct", "confirm-timeout"),
    ("-dcr", "disable-connection-recovery"), ("-env", "environment-variables"), ("-em", "exposed-metrics"),
    ("-ew", "exit-when"), ("-mcla", "metrics-command-line-arguments"), ("-mh", "metrics-help"),
    ("-mpe", "metrics-prometheus-endpoint"), ("-mpp", "metrics-prometheus-port"),
    ("-mpr", "metrics-prometheus"), ("-mpx", "metrics-prefix"), ("-mt", "metrics-tags"),
    ("-jb", "json-body"), ("-ll", "leader-locator"), ("-ma", "max-age"), ("-mf", "metrics-format"),
    ("-mlb", "max-length-bytes"), ("-mp", "message-properties"), ("-ms", "use-millis"), ("-na", "nack"),
    ("-pi", "polling-interval"), ("-po", "polling"), ("-prsd", "producer-random-start-delay"),
    ("-qa", "queue-args"), ("-qf", "queue-file"), ("-qp", "queue-pattern"), ("-qpf", "queue-pattern-from"),
    ("-qpt", "queue-pattern-to"), ("-qq", "quorum-queue"), ("-re", "requeue"),
    ("-rkcs", "routing-key-cache-size"), ("-sb", "skip-binding-queues"), ("-sco", "stream-consumer-offset"),
    ("-se", "sasl-external"), ("-smssb", "stream-max-segment-size-bytes"), ("-sni", "server-name-indication"),
    ("-sq", "stream-queue"), ("-sst", "servers-startup-timeout"), ("-st", "shutdown-timeout"),
    ("-sul", "servers-up-limit"), ("-tnd", "tcp-no-delay"), ("-trbs", "tcp-receive-buffer-size"),
    ("-tsbs", "tcp-send-buffer-size"), ("-vl", "variable-latency"), ("-vr", "variable-rate"),
    ("-vs", "variable-size"),
];

/// What only tunes a JVM: short name, long name, whether a value follows.
#[rustfmt::skip] // a table
const OF_A_JVM: &[(&str, &str, bool)] = &[
    ("-cal", "--connection-allocation", true), ("-ctp", "--consumers-thread-pools", true),
    ("-hst", "--heartbeat-sender-threads", true), ("-l", "--legacy-metrics", false),
    ("-mc", "--metrics-client", false), ("-mcl", "--metrics-class-loader", false),
    ("-mjgc", "--metrics-jvm-gc", false), ("-mjm", "--metrics-jvm-memory", false),
    ("-mjp", "--metrics-processor", false), ("-mjt", "--metrics-jvm-thread", false),
    ("-mjx", "--metrics-jmx", false), ("-niot", "--nio-threads", true),
    ("-niotp", "--nio-thread-pool", true), ("-nty", "--netty", false), ("-ntyep", "--netty-epoll", false),
    ("-ntykq", "--netty-kqueue", false), ("-ntyt", "--netty-threads", true),
    ("-pst", "--producer-scheduler-threads", true), ("-udsc", "--use-default-ssl-context", false),
];

/// PerfTest's options that this tool does not have, so that nobody believes they worked.
#[rustfmt::skip] // a table
const NOT_HERE: &[&str] = &[
    "-ei", "--expected-instances", "-isn", "--instance-sync-namespace", "-ist", "--instance-sync-timeout",
    "-mda", "--metrics-datadog", "-mdak", "--metrics-datadog-application-key", "-mdd",
    "--metrics-datadog-descriptions", "-mdh", "--metrics-datadog-host-tag", "-mdk",
    "--metrics-datadog-api-key", "-mds", "--metrics-datadog-step-size", "-mdu", "--metrics-datadog-uri",
    "-o2gr", "--oauth2-grant-type", "-o2id", "--oauth2-client-id", "-o2p", "--oauth2-parameters",
    "-o2sec", "--oauth2-client-secret", "-o2uri", "--oauth2-token-endpoint",
];

/// Arguments as clap reads them, and what was left out.
#[derive(Debug, Default)]
pub(super) struct Words {
    pub(super) args: Vec<OsString>,
    pub(super) without_effect: Vec<String>,
}

/// The letters behind one dash for an option's long name.
pub(super) fn short_of(long: &str) -> Option<&'static str> {
    SHORT_WORDS.iter().find(|(_, of)| *of == long).map(|(short, _)| *short)
}

/// Spells arguments as clap reads them.
pub(super) fn expand(raw: impl IntoIterator<Item = OsString>) -> Result<Words, String> {
    let mut words = Words::default();
    let mut raw = raw.into_iter();
    while let Some(arg) = raw.next() {
        let Some(text) = arg.to_str().filter(|text| text.starts_with('-')) else {
            words.args.push(arg);
            continue;
        };
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        if NOT_HERE.contains(&name) {
            return Err(format!("PerfTest's option '{name}' is not supported here"));
        }
        let of_a_jvm = OF_A_JVM.iter().find(|(short, long, _)| name == *short || name == *long);
        if let Some((_, _, has_value)) = of_a_jvm {
            if *has_value && value.is_none() {
                raw.next();
            }
            words.without_effect.push(name.to_owned());
            continue;
        }
        // `-queue-pattern` is PerfTest's `--queue-pattern`, too.
        let long = SHORT_WORDS
            .iter()
            .find(|(short, long)| *short == name || name.strip_prefix('-') == Some(*long));
        words.args.push(match (long, value) {
            (Some((_, long)), Some(value)) => format!("--{long}={value}").into(),
            (Some((_, long)), None) => format!("--{long}").into(),
            (None, _) => arg,
        });
    }
    Ok(words)
}
