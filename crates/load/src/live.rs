//! The live view: rates, latency, backlog and progress, drawn in place.
//!
//! It goes to stderr, and only when that is a terminal: a log or a pipe gets lines as ever.

use std::collections::VecDeque;
use std::fmt::Write as _;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::lines::{Shown, rate};
use crate::outcome::Interval;
use crate::plan::Plan;
use crate::stats::Counter;

/// Rows with the median, the 99th percentile and the maximum.
const LATENCY: &str = "latency 50/99/max";
const CONFIRM_LATENCY: &str = "confirm 50/99/max";
/// Intervals that are kept for a curve.
const HISTORY: usize = 48;
/// Blocks from an eighth of a line to a whole one.
const LEVELS: std::ops::RangeInclusive<char> = '\u{2581}'..='\u{2588}';

/// A view on a terminal.
#[derive(Debug)]
pub(crate) struct Live {
    progress: ProgressBar,
    rows: Vec<Row>,
    /// Keeps the rows together.
    _all: MultiProgress,
    state: State,
}

#[derive(Debug)]
struct Row {
    name: &'static str,
    bar: ProgressBar,
    curve: Curve,
}

/// The last values of a row.
#[derive(Debug, Default)]
struct Curve(VecDeque<f64>);

/// What is summed up over the run.
#[derive(Debug)]
struct State {
    published: u64,
    consumed: u64,
    copies: Option<u64>,
    goal: Goal,
}

/// What the run goes for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Goal {
    Seconds(f64),
    Messages(u64),
    None,
}

impl Live {
    /// `None` when stderr is no terminal.
    pub(crate) fn start(plan: &Plan, shown: Shown, id: &str) -> Option<Self> {
        let target = ProgressDrawTarget::stderr();
        if target.is_hidden() {
            return None;
        }
        Some(Self::on(target, plan, shown, id))
    }

    fn on(target: ProgressDrawTarget, plan: &Plan, shown: Shown, id: &str) -> Self {
        let all = MultiProgress::with_draw_target(target);
        let style = |template: &str| {
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
        };
        let progress = all.add(ProgressBar::new(1000));
        progress.set_style(style("{prefix} [{bar:40}] {msg}"));
        progress.set_prefix(id.to_owned());
        let names = [
            (shown.published, "sent"),
            (shown.returned, "returned"),
            (shown.confirmed, "confirmed"),
            (shown.confirmed, "nacked"),
            (shown.received, "received"),
            (shown.received, LATENCY),
            (shown.confirmed, CONFIRM_LATENCY),
            (shown.published && shown.received, "backlog"),
        ];
        let rows = names.into_iter().filter(|(is_shown, _)| *is_shown).map(|(_, name)| {
            let bar = all.add(ProgressBar::new(1));
            bar.set_style(style("{prefix:>20}  {msg}"));
            bar.set_prefix(name);
            Row { name, bar, curve: Curve::default() }
        });
        let publishing = &plan.publishing;
        let agents = (publishing.producers * publishing.channels) as u64;
        let goal = match (plan.seconds, publishing.limit) {
            (Some(seconds), _) => Goal::Seconds(seconds),
            (None, Some(limit)) => Goal::Messages(limit * agents),
            (None, None) => Goal::None,
        };
        let state = State { published: 0, consumed: 0, copies: plan.topology.copies(), goal };
        Self { rows: rows.collect(), progress, _all: all, state }
    }

    /// Draws an interval.
    pub(crate) fn interval(&mut self, shown: Shown, interval: &Interval) {
        self.state.add(interval);
        let (share, text) = self.state.progress(interval.end_s);
        self.progress.set_message(text);
        self.progress.set_position((share * 1000.0) as u64);
        for row in &mut self.rows {
            let (value, text) = self.state.figure(row.name, shown, interval);
            row.curve.push(value);
            row.bar.set_message(format!("{text:<28} {}", row.curve));
        }
    }

    /// Leaves the last figures on the screen.
    pub(crate) fn finish(&self) {
        self.rows.iter().for_each(|row| row.bar.abandon());
        self.progress.abandon();
    }
}

impl State {
    fn add(&mut self, interval: &Interval) {
        self.published += interval.totals.get(Counter::Published);
        self.consumed += interval.totals.get(Counter::Consumed);
    }

    fn progress(&self, now_s: f64) -> (f64, String) {
        match self.goal {
            Goal::Seconds(all) => ((now_s / all).min(1.0), format!("{now_s:.0} of {all} s")),
            Goal::Messages(all) => {
                let share = self.published as f64 / all.max(1) as f64;
                (share, format!("{} of {all} messages, {now_s:.0} s", self.published))
            }
            Goal::None => (0.0, format!("{now_s:.0} s, ends with Ctrl-C")),
        }
    }

    /// A row's value for its curve, and as text.
    fn figure(&self, name: &str, shown: Shown, interval: &Interval) -> (f64, String) {
        let latency = match name {
            LATENCY => Some(&interval.latency),
            CONFIRM_LATENCY => Some(&interval.confirm_latency),
            _ => None,
        };
        if let Some(latency) = latency {
            let [_, median, .., p99, max] = shown.six(latency.as_ref());
            return (p99 as f64, format!("{median} / {p99} / {max} {}", shown.unit()));
        }
        if name == "backlog" {
            let meant = self.published * self.copies.unwrap_or(1);
            let backlog = meant.saturating_sub(self.consumed);
            return (backlog as f64, format!("{backlog} messages"));
        }
        let rates = shown.rates(interval);
        let value = rates.iter().find(|(of, _)| *of == name).map_or(0.0, |(_, value)| *value);
        (value, format!("{} msg/s", rate(value)))
    }
}

impl Curve {
    fn push(&mut self, value: f64) {
        if self.0.len() == HISTORY {
            self.0.pop_front();
        }
        self.0.push_back(value);
    }
}

impl std::fmt::Display for Curve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let most = self.0.iter().copied().fold(0.0, f64::max);
        for value in &self.0 {
            let level = if most > 0.0 { (value / most * 7.0).round() as usize } else { 0 };
            f.write_char(LEVELS.clone().nth(level.min(7)).unwrap_or(' '))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Options;
    use crate::stats::{Percentiles, Tally, Totals};

    fn interval(published: u64, consumed: u64) -> Interval {
        let tally = Tally::default();
        tally.add(Counter::Published, published);
        tally.add(Counter::Consumed, consumed);
        let latency = Percentiles { p50: 2000, p99: 9000, max: 11_000, ..Default::default() };
        Interval {
            end_s: 5.0,
            length_s: 1.0,
            totals: Totals::of([&tally]),
            latency: Some(latency),
            confirm_latency: None,
            confirm_size: None,
            broker_rss: None,
        }
    }

    #[test]
    fn curves_grow_with_their_values() {
        let mut curve = Curve::default();
        [0.0, 50.0, 100.0, 100.0].into_iter().for_each(|value| curve.push(value));
        assert_eq!(curve.to_string(), "▁▅██");
        (0..100).for_each(|_| curve.push(1.0));
        assert_eq!(curve.to_string(), "█".repeat(HISTORY));
    }

    #[test]
    fn rows_hold_what_the_run_has() {
        let options = Options::read(["-z".into(), "20".into()]).unwrap();
        let plan = Plan::new(&options).unwrap();
        let shown = Shown::of(&plan);
        let mut live = Live::on(ProgressDrawTarget::hidden(), &plan, shown, "run");
        live.interval(shown, &interval(300, 100));
        live.interval(shown, &interval(300, 100));
        let names: Vec<&str> = live.rows.iter().map(|row| row.name).collect();
        assert_eq!(names, ["sent", "received", LATENCY, "backlog"]);
        let text = |name| live.state.figure(name, shown, &interval(300, 100)).1;
        assert_eq!((text("sent"), text("backlog")), ("300 msg/s".into(), "400 messages".into()));
        assert_eq!(text(LATENCY), "2 / 9 / 11 µs");
        assert_eq!(live.state.progress(5.0), (0.25, "5 of 20 s".into()));
    }

    #[test]
    fn there_is_no_view_without_a_terminal() {
        let plan = Plan::new(&Options::read([]).unwrap()).unwrap();
        let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
        assert_eq!(Live::start(&plan, Shown::of(&plan), "run").is_some(), is_terminal);
    }
}
