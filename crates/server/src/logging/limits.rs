//! How many lines one cause may write: a client in a loop must not fill the disk.
//!
//! A line that says in its field `from` who caused it is one of few: in each [`PERIOD`] every kind of line takes
//! [`CAUSE_LINES`] of one cause and [`KIND_LINES`] of all. What is more is counted, and told at the end of the period, with
//! what the first of them said. A kind of line is its place in the source. Lines without the field are all written.
//!
//! Lines of the audit log are limited by their cause alone: who did something is not lost because others did much. More causes than
//! [`AUDIT_CAUSES_MAX`] are not counted, and their lines are all written.

use std::cell::Cell;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

use super::category;
use crate::locks::{Rank, Ranked};

/// The field that says who caused a line.
pub(super) const FROM: &str = "from";

/// How long what is too much is counted before it is told.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

/// Lines of a kind that one cause may write in a period.
const CAUSE_LINES: u32 = 20;
/// Lines of a kind that all causes together may write in a period.
const KIND_LINES: u32 = 100;
/// Causes that are told apart in a period, by kind; all others count as one.
const CAUSES_MAX: usize = 64;
/// The same in the audit log, where others are not counted as one.
const AUDIT_CAUSES_MAX: usize = 10_000;
/// The longest name of a cause that is kept, in bytes.
const NAME_MAX: usize = 256;

thread_local! {
    /// The output for which this thread tells what was left out, if it does.
    static TELLS: Cell<Option<usize>> = const { Cell::new(None) };
}

/// What one output has written in this period. Each has its own count, as each has its own levels.
#[derive(Clone, Debug)]
pub(super) struct Limits {
    output: usize,
    kinds: Arc<Ranked<Kinds>>,
}

type Kinds = HashMap<Identifier, Kind, RandomState>;

#[derive(Debug)]
struct Kind {
    about: &'static Metadata<'static>,
    lines: u32,
    causes: HashMap<String, Count, RandomState>,
    others: Count,
}

#[derive(Debug, Default)]
struct Count {
    lines: u32,
    more: u64,
    /// What the first that was left out said.
    first: String,
}

/// What becomes of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Written,
    Counted,
    /// Counted, and wanted in words: it is the first.
    First,
}

/// Lines that were left out.
#[derive(Debug)]
struct More {
    about: &'static Metadata<'static>,
    from: String,
    lines: u64,
    first: String,
}

impl Kind {
    fn new(about: &'static Metadata<'static>) -> Self {
        Self { about, lines: 0, causes: HashMap::default(), others: Count::default() }
    }

    fn is_audit(&self) -> bool {
        category(self.about.target()) == "audit"
    }

    /// Whether a cause is one of too many that came before it.
    fn is_other(&self, from: &str, most: usize) -> bool {
        self.causes.len() >= most && !self.causes.contains_key(from)
    }

    fn of(&mut self, from: &str) -> &mut Count {
        let most = if self.is_audit() { AUDIT_CAUSES_MAX } else { CAUSES_MAX };
        if self.is_other(from, most) {
            return &mut self.others;
        }
        self.causes.entry_ref(from).or_default()
    }

    fn take(&mut self, from: &str) -> Fate {
        let is_audit = self.is_audit();
        if is_audit && self.is_other(from, AUDIT_CAUSES_MAX) {
            return Fate::Written;
        }
        let has_room = is_audit || self.lines < KIND_LINES;
        let count = self.of(from);
        if has_room && count.lines < CAUSE_LINES {
            count.lines += 1;
            self.lines += 1;
            return Fate::Written;
        }
        count.more += 1;
        if count.more == 1 { Fate::First } else { Fate::Counted }
    }
}

impl Limits {
    pub(super) fn new(output: usize) -> Self {
        let kinds = Arc::new(Ranked::new(Rank::LogLimits, Kinds::default()));
        Self { output, kinds }
    }

    fn take(&self, about: &'static Metadata<'static>, from: &str) -> Fate {
        let mut kinds = self.kinds.lock();
        kinds.entry(about.callsite()).or_insert_with(|| Kind::new(about)).take(from)
    }

    /// Keeps what a line said of which there are more.
    fn keep(&self, about: &'static Metadata<'static>, from: &str, said: String) {
        if let Some(kind) = self.kinds.lock().get_mut(&about.callsite()) {
            kind.of(from).first = said;
        }
    }

    /// The period is over: what was left out in it.
    fn end(&self) -> Vec<More> {
        let kinds = std::mem::take(&mut *self.kinds.lock());
        let mut all = Vec::new();
        for kind in kinds.into_values() {
            let others = [("others".to_owned(), kind.others)];
            for (from, Count { more, first, .. }) in kind.causes.into_iter().chain(others) {
                if more > 0 {
                    all.push(More { about: kind.about, from, lines: more, first });
                }
            }
        }
        all
    }

    /// Ends the period, and tells what was left out in it.
    pub(super) fn tell(&self) {
        let all = self.end();
        TELLS.set(Some(self.output));
        all.iter().for_each(More::tell);
        TELLS.set(None);
    }
}

impl More {
    fn tell(&self) {
        let Self { about, from, lines, first } = self;
        // A line's category and level are constants of its place in the source.
        macro_rules! tell {
            ($category:literal) => {
                match *about.level() {
                    Level::ERROR => {
                        tracing::error!(target: $category, "{lines} more like it from {from}, the first: {first}");
                    }
                    Level::WARN => {
                        tracing::warn!(target: $category, "{lines} more like it from {from}, the first: {first}");
                    }
                    _ => tracing::info!(target: $category, "{lines} more like it from {from}, the first: {first}"),
                }
            };
        }
        match category(about.target()) {
            "connection" => tell!("connection"),
            "channel" => tell!("channel"),
            "queue" => tell!("queue"),
            "user" => tell!("user"),
            "audit" => tell!("audit"),
            _ => tell!("default"),
        }
    }
}

/// The value of one field as text.
struct Value {
    name: &'static str,
    text: Option<String>,
}

impl Value {
    fn of(name: &'static str, event: &Event<'_>) -> Option<String> {
        let mut value = Self { name, text: None };
        event.record(&mut value);
        value.text
    }
}

impl Visit for Value {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == self.name {
            self.text = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == self.name {
            self.text = Some(format!("{value:?}"));
        }
    }
}

impl<S: Subscriber> Filter<S> for Limits {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    /// Each event is looked at: what `event_enabled` finds is to be part of that look.
    fn callsite_enabled(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        if let Some(output) = TELLS.get() {
            return output == self.output;
        }
        let about = event.metadata();
        if about.fields().field(FROM).is_none() {
            return true;
        }
        let mut from = Value::of(FROM, event).unwrap_or_default();
        from.truncate(from.floor_char_boundary(NAME_MAX));
        let fate = self.take(about, &from);
        if fate == Fate::First {
            self.keep(about, &from, Value::of("message", event).unwrap_or_default());
        }
        fate == Fate::Written
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tracing_subscriber::Layer as _;
    use tracing_subscriber::filter::{FilterExt as _, Targets};
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::super::text::OneLine;
    use super::*;

    /// What is logged in `work`, to outputs of these levels.
    fn logged<const N: usize>(
        levels: [LevelFilter; N],
        work: impl FnOnce(&[Limits]),
    ) -> [Vec<String>; N] {
        #[derive(Clone, Default)]
        struct Written(Arc<std::sync::Mutex<Vec<u8>>>);
        impl Write for Written {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().expect("no panic").write(bytes)
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let kept: [Written; N] = std::array::from_fn(|_| Written::default());
        let limits: Vec<Limits> = (0..N).map(Limits::new).collect();
        let layers: Vec<_> = (0..N)
            .map(|at| {
                let to = kept[at].clone();
                let filter = Targets::new().with_default(levels[at]).and(limits[at].clone());
                let layer = tracing_subscriber::fmt::layer().without_time().with_target(false);
                let layer = layer.with_ansi(false).fmt_fields(OneLine);
                layer.with_writer(move || to.clone()).with_filter(filter)
            })
            .collect();
        let subscriber = tracing_subscriber::registry().with(layers);
        tracing::subscriber::with_default(subscriber, || work(&limits));
        kept.map(|kept| {
            let bytes = kept.0.lock().expect("no panic").clone();
            let text = String::from_utf8(bytes).expect("text");
            text.lines().map(|line| line.trim_start().to_owned()).collect()
        })
    }

    fn complain(from: &str, n: u32) {
        tracing::warn!(from, n, "no\nluck {n}");
    }

    #[test]
    fn one_cause_has_few_lines_and_the_rest_is_counted() {
        let [lines] = logged([LevelFilter::INFO], |limits| {
            (0..100).for_each(|n| complain("a@1.2.3.4", n));
            complain("b", 7);
            limits[0].tell();
            complain("a@1.2.3.4", 100);
            limits[0].tell();
        });
        assert_eq!(lines[0], "WARN no\\nluck 0 n=0");
        assert_eq!(lines[19], "WARN no\\nluck 19 n=19");
        assert_eq!(lines[20], "WARN no\\nluck 7 n=7");
        assert_eq!(lines[21], "WARN 80 more like it from a@1.2.3.4, the first: no\\nluck 20");
        assert_eq!(lines[22..], ["WARN no\\nluck 100 n=100"]);
    }

    #[test]
    fn a_crowd_has_few_lines_too() {
        let [lines] = logged([LevelFilter::INFO], |limits| {
            for n in 0..10_000 {
                complain(&format!("user {}", n % 1000), n);
            }
            limits[0].tell();
        });
        assert!(lines.len() <= KIND_LINES as usize + CAUSES_MAX + 1, "{}", lines.len());
        let more: u64 = lines
            .iter()
            .filter(|line| line.contains("more like it"))
            .map(|line| {
                line.split(' ').nth(1).and_then(|count| count.parse::<u64>().ok()).expect("a count")
            })
            .sum();
        assert_eq!(more, 10_000 - u64::from(KIND_LINES));
    }

    /// Logins of one user in a loop are counted, and nobody who logs in beside them is left out.
    #[test]
    fn the_audit_log_names_everybody() {
        let accepted = |from: &str| tracing::info!(target: "audit", from, "accepted {from}");
        let [lines] = logged([LevelFilter::INFO], |limits| {
            (0..1000).for_each(|_| accepted("a@1.2.3.4"));
            (0..5000).for_each(|n| accepted(&format!("user {n}")));
            limits[0].tell();
        });
        assert_eq!(lines.len(), 20 + 5000 + 1);
        assert_eq!(lines[20], "INFO accepted user 0");
        assert_eq!(
            lines[5020],
            "INFO 980 more like it from a@1.2.3.4, the first: accepted a@1.2.3.4"
        );
        let [lines] = logged([LevelFilter::INFO], |limits| {
            (0..20_000).for_each(|n| accepted(&format!("user {n}")));
            limits[0].tell();
        });
        assert_eq!(lines.len(), 20_000);
    }

    #[test]
    fn outputs_of_other_levels_lose_nothing() {
        let [all, errors] = logged([LevelFilter::INFO, LevelFilter::ERROR], |limits| {
            for n in 0..30 {
                complain("a", n);
                tracing::error!(n, "bad");
            }
            limits.iter().for_each(Limits::tell);
        });
        assert_eq!(all.len(), 20 + 30 + 1, "{all:#?}");
        assert_eq!(errors.len(), 30, "{errors:#?}");
    }
}
