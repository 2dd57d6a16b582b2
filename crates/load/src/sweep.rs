//! The same run again and again, with one option that changes.

use std::ffi::OsString;

use anyhow::{Context as _, Result, bail};
use clap::ArgAction;

use crate::args::{Options, env};
use crate::lines::rate;
use crate::outcome::Outcome;
use crate::stats::Counter;

/// `--sweep qos=1,10,100`: an option by its long name, and what it shall be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// The option's long name.
    pub option: String,
    /// One for each run.
    pub values: Vec<String>,
}

impl std::str::FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (option, values) = text.split_once('=').ok_or("OPTION=VALUE,VALUE,... is expected")?;
        let option = option.trim_start_matches('-');
        let command = Options::command_for_help();
        let arg = command.get_arguments().find(|arg| arg.get_long() == Some(option));
        let arg = arg.ok_or_else(|| format!("there is no option --{option}"))?;
        if !matches!(arg.get_action(), ArgAction::Set) {
            return Err(format!("--{option} takes no single value"));
        }
        let values = values.split(',').map(str::to_owned).collect();
        Ok(Self { option: option.to_owned(), values })
    }
}

impl Sweep {
    /// The options of each run: those given, and one changed.
    pub(crate) fn runs(&self, raw: &[OsString]) -> Result<Vec<(String, Options)>> {
        let environment = |name: &str| std::env::var(name).ok();
        // The environment wins over what is given, but not over what is asked for here.
        let own = env::name(&environment, &self.option);
        let lookup = |name: &str| environment(name).filter(|_| name != own);
        let run = |value: &String| {
            let changed = OsString::from(format!("--{}={value}", self.option));
            let options = Options::read_with(raw.iter().cloned().chain([changed]), lookup);
            let options = options.with_context(|| format!("--{} {value}", self.option))?;
            if options.limits.time.is_none() && options.limits.pmessages.is_none() {
                bail!("--sweep needs an end for each run: give --time or --pmessages");
            }
            Ok((value.clone(), options))
        };
        self.values.iter().map(run).collect()
    }

    /// The runs beside each other.
    pub(crate) fn table(&self, outcomes: &[(String, Outcome)]) -> Vec<String> {
        let head =
            [&*self.option, "sent", "received", "median µs", "99th µs", "tool CPU", "broker CPU"];
        let rows = outcomes.iter().map(|(value, outcome)| {
            let none = || "-".to_owned();
            let us = |ns: Option<u64>| ns.map_or_else(none, |ns| (ns / 1000).to_string());
            let per_million =
                |seconds: f64| format!("{:.2}", seconds / outcome.messages().max(1) as f64 * 1e6);
            [
                value.clone(),
                rate(outcome.rate(Counter::Published)),
                rate(outcome.rate(Counter::Consumed)),
                us(outcome.latency.as_ref().map(|latency| latency.p50)),
                us(outcome.latency.as_ref().map(|latency| latency.p99)),
                per_million(outcome.own_cpu_s),
                outcome.broker.map_or_else(none, |broker| per_million(broker.cpu_s)),
            ]
        });
        let rows = std::iter::once(head.map(str::to_owned)).chain(rows);
        let line = |cells: [String; 7]| {
            let cells = cells.map(|cell| format!("{cell:>12}"));
            cells.join(" ")
        };
        rows.map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_run_has_its_value() {
        let sweep: Sweep = "qos=1,50".parse().unwrap();
        let raw = ["-q", "9", "-z", "1"].map(OsString::from);
        let runs = sweep.runs(&raw).unwrap();
        let prefetches: Vec<_> = runs.iter().map(|(_, options)| options.consuming.qos).collect();
        assert_eq!(prefetches, [Some(1), Some(50)]);
        let endless = sweep.runs(&[]).unwrap_err().to_string();
        assert!(endless.contains("--time"), "{endless}");
        let wrong: Sweep = "qos=many".parse().unwrap();
        assert!(wrong.runs(&raw).unwrap_err().to_string().contains("--qos many"));
    }

    #[test]
    fn only_options_with_one_value_are_swept() {
        for text in ["qos", "no-such=1", "autoack=true", "queue=a"] {
            assert!(text.parse::<Sweep>().is_err(), "{text}");
        }
    }
}
