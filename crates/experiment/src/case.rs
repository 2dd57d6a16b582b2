//! One thing that is run, and what is read off it.

use serde::Serialize;

use crate::outcome::Run;

/// What a figure of a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Measure {
    /// Messages published in a second.
    Published,
    /// Messages consumed in a second.
    Consumed,
    /// Mean microseconds from publish to delivery.
    Latency,
    /// CPU seconds of the broker for a million messages.
    Cpu,
}

impl Measure {
    /// What stands over its figures.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Published => "messages published per second",
            Self::Consumed => "messages consumed per second",
            Self::Latency => "mean latency, microseconds",
            Self::Cpu => "CPU seconds of the broker per million messages",
        }
    }

    /// What it counts; figures with the same unit can be compared.
    pub(crate) fn unit(self) -> &'static str {
        match self {
            Self::Published | Self::Consumed => "messages per second",
            Self::Latency => "microseconds",
            Self::Cpu => "CPU seconds",
        }
    }

    /// The figure of one run, if the run has it.
    pub(crate) fn of(self, run: &Run) -> Option<f64> {
        match self {
            Self::Published => Some(run.published_per_s),
            Self::Consumed => Some(run.consumed_per_s),
            Self::Latency => run.latency_us.map(|it| it.mean),
            Self::Cpu => run.broker_cpu_s_per_million,
        }
    }
}

/// How long everything takes.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Length {
    /// Seconds instead of minutes.
    pub(crate) quick: bool,
    /// Each timed run takes so long, whatever the document says.
    pub(crate) seconds: Option<f64>,
}

impl Length {
    /// The length of a run that takes `full` seconds in its document.
    pub(crate) fn seconds(self, full: f64, quick: f64) -> f64 {
        self.seconds.unwrap_or(if self.quick { quick } else { full })
    }

    /// Any other quantity.
    pub(crate) fn pick<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// One run: a place in the table, and what is given to the load tool.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Case {
    /// Its row in the table.
    pub(crate) row: String,
    /// Its column, of those of one broker; empty if there is only one.
    pub(crate) column: &'static str,
    /// Arguments of `leveret perf`, a line for each load; all run at once.
    pub(crate) loads: Vec<String>,
    /// A load that comes before and is not measured.
    pub(crate) prepare: Option<String>,
    /// What its row shows.
    pub(crate) shows: Measure,
    /// A second row from the same run.
    pub(crate) also: Option<(&'static str, Measure)>,
    /// The rule of its queues' confirms, where the broker is Leveret. Others have one rule, which is `enqueue`.
    pub(crate) rule: Option<&'static str>,
    /// The rate is this share, in percent, of what the first case of the experiment published.
    pub(crate) share_of_first: Option<f64>,
    /// Each message and each ack is a write of its own.
    pub(crate) flush_each: bool,
    /// Seconds it takes, roughly.
    pub(crate) takes_s: f64,
}

impl Case {
    /// A case that shows what is published per second.
    pub(crate) fn new(row: impl Into<String>, load: impl Into<String>) -> Self {
        Self {
            row: row.into(),
            column: "",
            loads: vec![load.into()],
            prepare: None,
            shows: Measure::Published,
            also: None,
            rule: None,
            share_of_first: None,
            flush_each: false,
            takes_s: 5.0,
        }
    }

    /// Stops its loads after so many seconds.
    pub(crate) fn lasts(mut self, seconds: f64) -> Self {
        for load in &mut self.loads {
            load.push_str(&format!(" -z {seconds}"));
        }
        self.takes_s = seconds;
        self
    }

    /// It stops by itself, after about so many seconds.
    pub(crate) fn takes(mut self, seconds: f64) -> Self {
        self.takes_s = seconds;
        self
    }

    /// What its row shows.
    pub(crate) fn shows(mut self, measure: Measure) -> Self {
        self.shows = measure;
        self
    }

    /// A second row from the same run.
    pub(crate) fn also(mut self, row: &'static str, measure: Measure) -> Self {
        self.also = Some((row, measure));
        self
    }

    /// A second load, at the same time.
    pub(crate) fn beside(mut self, load: impl Into<String>) -> Self {
        self.loads.push(load.into());
        self
    }

    /// A load that comes before and is not measured.
    pub(crate) fn after(mut self, load: impl Into<String>) -> Self {
        self.prepare = Some(load.into());
        self
    }

    /// Its queues' rule of confirms.
    pub(crate) fn rule(mut self, rule: &'static str) -> Self {
        self.rule = Some(rule);
        self
    }

    /// The rule, as a column of its own.
    pub(crate) fn column_of_rule(mut self, rule: &'static str) -> Self {
        self.column = rule;
        self.rule(rule)
    }

    /// Publishes at this share, in percent, of what the first case did.
    pub(crate) fn share_of_first(mut self, percent: f64) -> Self {
        self.share_of_first = Some(percent);
        self
    }

    /// Whether a broker can run it: one that is not Leveret has no rules to choose from.
    pub(crate) fn runs_on(&self, is_leveret: bool) -> bool {
        is_leveret || self.rule.is_none_or(|rule| rule == ORDINARY)
    }

    /// The words of its loads on such a broker, without those that say where it is.
    pub(crate) fn commands(&self, is_leveret: bool, rate: Option<f64>) -> Vec<String> {
        let words = |load: &String| self.words(load, is_leveret, rate);
        self.loads.iter().map(words).collect()
    }

    /// The words of the load that comes before.
    pub(crate) fn prepare_command(&self, is_leveret: bool) -> Option<String> {
        self.prepare.as_ref().map(|load| self.words(load, is_leveret, None))
    }

    fn words(&self, load: &str, is_leveret: bool, rate: Option<f64>) -> String {
        let mut words = load.to_owned();
        if let Some(rate) = rate {
            words.push_str(&format!(" -r {rate:.0}"));
        }
        if self.flush_each {
            words.push_str(" --flush-each");
        }
        if let Some(rule) = self.rule.filter(|_| is_leveret) {
            words.push_str(&format!(" -qa x-confirm-on={rule}"));
        }
        words
    }
}

/// The rule by which every broker but Leveret confirms: when a message is stored.
pub(crate) const ORDINARY: &str = "enqueue";

/// The words of a command as the load tool takes them; two apostrophes are the empty word.
pub(crate) fn split(command: &str) -> Vec<String> {
    let word = |word: &str| if word == "''" { String::new() } else { word.to_owned() };
    command.split_whitespace().map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_writes_as_the_case_says() {
        let case = Case::new("1", "-x 1").beside("-y 1").after("-C 10");
        let case = Case { flush_each: true, ..case };
        assert_eq!(
            case.commands(true, Some(7.0)),
            ["-x 1 -r 7 --flush-each", "-y 1 -r 7 --flush-each"]
        );
        assert_eq!(case.prepare_command(false).as_deref(), Some("-C 10 --flush-each"));
    }

    #[test]
    fn rules_are_for_leveret_alone() {
        let case = Case::new("1", "-x 1").column_of_rule("ack").lasts(2.5);
        assert!(case.runs_on(true) && !case.runs_on(false));
        assert_eq!(case.commands(true, None), ["-x 1 -z 2.5 -qa x-confirm-on=ack"]);
        let ordinary = Case::new("1", "-x 1").column_of_rule(ORDINARY);
        assert!(ordinary.runs_on(false));
        assert_eq!(ordinary.commands(false, Some(99.6)), ["-x 1 -r 100"]);
    }

    #[test]
    fn lengths() {
        let full = Length::default();
        let quick = Length { quick: true, seconds: None };
        let told = Length { quick: true, seconds: Some(7.0) };
        assert_eq!([full, quick, told].map(|it| it.seconds(600.0, 1.0)), [600.0, 1.0, 7.0]);
        assert_eq!([full, quick, told].map(|it| it.pick(8, 4)), [8, 4, 4]);
    }

    #[test]
    fn empty_words() {
        assert_eq!(split("-e '' -u q"), ["-e", "", "-u", "q"]);
    }
}
