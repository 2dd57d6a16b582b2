//! How far it is: a bar on a terminal, lines elsewhere.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Steps of the bar in a second.
const STEPS: f64 = 10.0;

/// The time that was planned, and what of it is over.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Seconds of what is done.
    done_s: f64,
}

impl Progress {
    /// All of it takes about so many seconds.
    pub(crate) fn new(all_s: f64) -> Self {
        let bar = ProgressBar::new(steps(all_s));
        let style = "{bar:30} {percent:>3} %  {msg}  ({elapsed} of about {duration})";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Self { bar, done_s: 0.0 }
    }

    /// A run that takes about `takes_s` has been under way for so long.
    pub(crate) fn at(&self, what: &str, elapsed: Duration, takes_s: f64) {
        self.bar.set_message(what.to_owned());
        self.bar.set_position(steps(self.done_s + elapsed.as_secs_f64().min(takes_s)));
    }

    /// A run is done.
    pub(crate) fn done(&mut self, takes_s: f64, line: &str) {
        self.done_s += takes_s;
        self.bar.set_position(steps(self.done_s));
        self.say(line);
    }

    /// A line that stays.
    pub(crate) fn say(&self, line: &str) {
        if self.bar.is_hidden() {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }

    /// The bar goes.
    pub(crate) fn end(self) {
        self.bar.finish_and_clear();
    }
}

fn steps(seconds: f64) -> u64 {
    (seconds * STEPS) as u64
}
