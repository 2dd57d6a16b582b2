//! The names that stand while a simulation runs: queues of every kind, exchanges, and what goes where.
//!
//! Queues that come and go are added by clients and promise less: see [`Kind::fleeting`].

use leveret_amqp::table::{Table, Value};

/// A queue of the simulation: an index into its table of kinds.
pub(crate) type QueueIndex = usize;

/// Where dead letters go; the first of the plan.
pub(crate) const DEAD: QueueIndex = 0;

/// The queue that nobody takes from before all is calm, and that is purged now and then: so what was in it is known.
pub(crate) const HEAP: &str = "heap";

/// When a queue's part in a confirm is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// The disk has the message, or a consumer acked it.
    Safe,
    /// A consumer acked it.
    Ack,
    /// The same, and the queue forgets it when a consumer gets it.
    Lean,
    /// Now this, now that: a policy says so.
    Changing,
}

/// What may be expected of a queue.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) name: String,
    pub(crate) arguments: Table,
    /// What leaves it the wrong way is found again in [`DEAD`].
    pub(crate) dead_letters: bool,
    /// It may be found again there: a policy that comes and goes says so.
    pub(crate) may_dead_letter: bool,
    /// Its dead letters are in it until they are safe elsewhere.
    pub(crate) is_safe_dead: bool,
    /// Messages may vanish by its own rules (limits without dead-lettering, deletion, purge).
    pub(crate) loses: bool,
    /// What is ready is delivered in the order of publishing.
    pub(crate) is_ordered: bool,
    /// It refuses what it has no room for.
    pub(crate) refuses: bool,
    /// Consumers may want it for themselves: `basic.consume` is refused now and then.
    pub(crate) is_contended: bool,
    pub(crate) is_exclusive: bool,
    pub(crate) is_auto_delete: bool,
    pub(crate) is_durable: bool,
    /// It was declared first and is never deleted.
    pub(crate) is_steady: bool,
    pub(crate) rule: Rule,
}

/// How long a queue that goes with its consumer waits for the first one.
pub(crate) const EXPIRES_MS: u64 = 30_000;

impl Kind {
    fn new(name: impl Into<String>, arguments: &[(&str, Value)]) -> Self {
        let arguments: Table =
            arguments.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let overflow = arguments.get("x-overflow").and_then(Value::as_str);
        let dead_letters = arguments.get("x-dead-letter-exchange").is_some();
        Self {
            name: name.into(),
            dead_letters,
            may_dead_letter: dead_letters,
            is_safe_dead: arguments.get("x-dead-letter-strategy").is_some(),
            loses: arguments.get("x-max-length").is_some() && !dead_letters && overflow.is_none(),
            is_ordered: arguments.get("x-max-priority").is_none(),
            refuses: overflow == Some("reject-publish"),
            is_contended: false,
            is_exclusive: false,
            is_auto_delete: false,
            is_durable: true,
            is_steady: true,
            rule: match arguments.get("x-confirm-on").and_then(Value::as_str) {
                Some("ack") => Rule::Ack,
                Some("ack-lean") => Rule::Lean,
                _ => Rule::Safe,
            },
            arguments,
        }
    }

    /// Whether its consumers take no part in a channel's prefetch: it is a mistake to have them there.
    pub(crate) fn is_quorum(&self) -> bool {
        self.arguments.get("x-queue-type").and_then(Value::as_str) == Some("quorum")
    }

    /// A queue that is deleted, purged, or goes with its connection.
    pub(crate) fn fleeting(name: String, is_exclusive: bool) -> Self {
        // One that never comes to have a consumer would stay.
        let expires = [("x-expires", Value::I32(EXPIRES_MS as i32))];
        let new = Self::new(name, if is_exclusive { &[] } else { &expires });
        Self {
            loses: true,
            is_steady: false,
            is_durable: false,
            is_exclusive,
            is_auto_delete: !is_exclusive,
            ..new
        }
    }

    /// A queue that stays until somebody deletes it.
    pub(crate) fn kept(name: String) -> Self {
        Self { loses: true, is_steady: false, ..Self::new(name, &[]) }
    }

    /// It is there after a restart.
    pub(crate) fn survives(&self) -> bool {
        self.is_durable && !self.is_exclusive
    }
}

/// The queues that are declared first and never deleted.
pub(crate) fn queues() -> Vec<Kind> {
    let dead = [
        ("x-dead-letter-exchange", Value::from("")),
        ("x-dead-letter-routing-key", Value::from("dead")),
    ];
    let with_dead = |more: &[(&'static str, Value)]| [&dead[..], more].concat();
    let reject = Value::from("reject-publish");
    let careful = [
        ("x-queue-type", "quorum".into()),
        ("x-dead-letter-strategy", "at-least-once".into()),
        ("x-overflow", reject.clone()),
        ("x-max-length", Value::I32(15)),
        ("x-message-ttl", Value::I32(100)),
    ];
    let quorum = ("x-queue-type", Value::from("quorum"));
    vec![
        Kind { is_ordered: false, ..Kind::new("dead", &[]) },
        Kind::new("plain-0", &[]),
        Kind::new("plain-1", &[]),
        Kind::new("plain-2", &[]),
        Kind::new("limited", &with_dead(&[("x-max-length", Value::I32(20))])),
        Kind::new("short", &with_dead(&[("x-message-ttl", Value::I32(50))])),
        Kind::new("refusing", &[("x-max-length", Value::I32(10)), ("x-overflow", reject)]),
        Kind::new("priority", &[("x-max-priority", Value::I32(5))]),
        Kind::new("single", &[("x-single-active-consumer", Value::Bool(true))]),
        Kind::new(
            "lossy",
            &[("x-max-length-bytes", Value::I32(2000)), ("x-max-length", Value::I32(15))],
        ),
        Kind::new("careful", &with_dead(&careful)),
        Kind::new("counted", &with_dead(&[quorum.clone(), ("x-delivery-limit", Value::I32(3))])),
        Kind { is_contended: true, ..Kind::new("contended", &[]) },
        // What these are is said by policies.
        Kind::new("governed", &with_dead(&[])),
        Kind { refuses: true, ..Kind::new("guarded", &with_dead(&[quorum])) },
        Kind { refuses: true, loses: true, may_dead_letter: true, ..Kind::new("turning", &[]) },
        Kind { rule: Rule::Changing, ..Kind::new("changing", &[]) },
        Kind::new("written", &[("x-confirm-on", "enqueue".into())]),
        Kind::new(
            "acked",
            &[
                ("x-confirm-on", "ack".into()),
                ("x-confirm-defer", Value::I32(50)),
                ("x-confirm-timeout", Value::I32(3_000)),
            ],
        ),
        Kind::new(
            "lean",
            &[("x-confirm-on", "ack-lean".into()), ("x-confirm-timeout", Value::I32(3_000))],
        ),
        Kind { loses: true, ..Kind::new(HEAP, &[]) },
    ]
}

/// Policies that come and go: the queue, and what may be said of it. The arguments of "governed" and
/// "guarded" see to it that nothing is lost.
#[rustfmt::skip] // a table
pub(crate) const POLICIES: [(&str, &[&str]); 5] = [
    ("governed", &[
        r#"{"message-ttl": 30}"#,
        r#"{"message-ttl": 0}"#,
        r#"{"max-length": 5}"#,
        r#"{"max-length-bytes": 600}"#,
        r#"{"message-ttl": 100, "max-length": 12}"#,
    ]),
    ("guarded", &[
        r#"{"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}"#,
        r#"{"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "max-length": 8}"#,
        r#"{"dead-letter-strategy": "at-least-once", "overflow": "reject-publish", "message-ttl": 50}"#,
        r#"{"message-ttl": 40}"#,
        r#"{"max-length": 5}"#,
    ]),
    ("turning", &[
        r#"{"dead-letter-exchange": "", "dead-letter-routing-key": "dead", "message-ttl": 50}"#,
        r#"{"max-length": 6, "overflow": "reject-publish"}"#,
        r#"{"max-length": 4}"#,
        r#"{"dead-letter-exchange": "", "dead-letter-routing-key": "dead", "max-length": 6, "overflow": "reject-publish-dlx"}"#,
    ]),
    ("counted", &[r#"{"delivery-limit": 1}"#, r#"{"delivery-limit": 6}"#]),
    ("changing", &[
        r#"{"confirm-on": "ack", "confirm-timeout": 3000, "confirm-defer": 50}"#,
        r#"{"confirm-on": "ack", "confirm-timeout": 3000}"#,
        r#"{"confirm-on": "enqueue"}"#,
    ]),
];

/// Queues that an operator pauses now and then.
pub(crate) const PAUSED: [&str; 5] = ["plain-2", "limited", "careful", "acked", "lean"];

/// Queues that an operator looks into, and moves messages from to [`MOVED_TO`]; or deletes some, where
/// messages may vanish.
pub(crate) const LOOKED_INTO: [&str; 5] = ["limited", "short", "careful", "counted", "lossy"];

/// Where the dead letters of those go.
pub(crate) const MOVED_TO: &str = "dead";

/// Exchanges: name and type.
pub(crate) const EXCHANGES: [(&str, &str); 6] = [
    ("fan", "fanout"),
    ("topics", "topic"),
    ("rules", "fanout"),
    ("labels", "headers"),
    ("ring", "x-consistent-hash"),
    ("parts", "x-modulus-hash"),
];

/// Names and values of arguments or headers.
pub(crate) type Pairs = &'static [(&'static str, &'static str)];

const NONE: Pairs = &[];

/// Bindings: exchange, key, queue, arguments.
#[rustfmt::skip] // a table
pub(crate) const BINDINGS: [(&str, &str, &str, Pairs); 21] = [
    ("fan",    "",    "plain-0", NONE),
    ("fan",    "",    "plain-1", NONE),
    ("fan",    "",    "limited", NONE),
    ("topics", "a.*", "plain-1", NONE),
    ("topics", "#.b", "plain-2", NONE),
    ("topics", "a.#", "single",  NONE),
    ("rules",  "",    "plain-2", NONE),
    ("rules",  "",    "written", NONE),
    ("rules",  "",    "acked",   NONE),
    ("rules",  "",    "changing", NONE),
    ("rules",  "",    "lean",    NONE),
    ("labels", "",    "plain-0", &[("x-match", "all"), ("color", "red"), ("size", "big")]),
    ("labels", "",    "plain-1", &[("x-match", "any"), ("color", "red"), ("size", "big")]),
    ("labels", "",    "counted", &[("color", "blue")]),
    ("labels", "",    "written", &[("x-match", "any-with-x"), ("x-kind", "odd")]),
    ("ring",   "1",   "plain-0", NONE),
    ("ring",   "2",   "plain-2", NONE),
    ("ring",   "1",   "single",  NONE),
    ("parts",  "",    "plain-1", NONE),
    ("parts",  "",    "counted", NONE),
    ("parts",  "",    "written", NONE),
];

/// Where a message goes: exchange, key, headers, queues. Written by hand, not computed from the bindings:
/// the rules of exchanges are what is tested. Hashes lead where RabbitMQ's would, over restarts too.
#[rustfmt::skip] // a table
pub(crate) const ROUTES: [(&str, &str, Pairs, &[&str]); 24] = [
    ("fan",    "any", NONE, &["plain-0", "plain-1", "limited"]),
    ("topics", "a.b", NONE, &["plain-1", "plain-2", "single"]),
    ("topics", "a.c", NONE, &["plain-1", "single"]),
    ("topics", "x.b", NONE, &["plain-2"]),
    ("topics", "a",   NONE, &["single"]),
    ("topics", "b",   NONE, &["plain-2"]),
    ("topics", "x.y", NONE, &[]),
    ("rules",  "any", NONE, &["plain-2", "changing", "written", "acked", "lean"]),
    ("labels", "any", &[("color", "red"), ("size", "big")],   &["plain-0", "plain-1"]),
    ("labels", "any", &[("color", "red"), ("size", "small")], &["plain-1"]),
    ("labels", "any", &[("color", "blue"), ("size", "big")],  &["plain-1", "counted"]),
    ("labels", "any", &[("color", "blue"), ("x-kind", "odd")], &["counted", "written"]),
    ("labels", "any", &[("color", "green")],                  &[]),
    ("labels", "any", NONE,                                   &[]),
    ("ring",   "k0",  NONE, &["plain-2"]),
    ("ring",   "k1",  NONE, &["single"]),
    ("ring",   "k2",  NONE, &["plain-2"]),
    ("ring",   "k3",  NONE, &["plain-2"]),
    ("ring",   "k4",  NONE, &["plain-2"]),
    ("parts",  "k0",  NONE, &["written"]),
    ("parts",  "k1",  NONE, &["counted"]),
    ("parts",  "k2",  NONE, &["counted"]),
    ("parts",  "k3",  NONE, &["counted"]),
    ("parts",  "k4",  NONE, &["plain-1"]),
];
