//! Options from the environment: the long name in capitals, `_` for `-`.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

/// Put before every name, as PerfTest does.
const PREFIX: &str = "RABBITMQ_PERF_TEST_ENV_PREFIX";

/// Arguments that mean the tool itself, not a run.
const NO_VARIABLE: [&str; 4] = ["help", "version", "environment-variables", "metrics-help"];

/// Puts options that are in the environment in the place of those that were given: with PerfTest, too, the
/// environment wins.
pub(super) fn complete(
    command: &Command,
    mut args: Vec<OsString>,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Vec<OsString>, String> {
    let mut all = Vec::new();
    for (arg, long) in options(command) {
        let name = name(&lookup, long);
        let Some(value) = lookup(&name) else { continue };
        remove(&mut args, arg, long);
        match arg.get_action() {
            ArgAction::SetTrue => match value.to_ascii_lowercase().as_str() {
                "true" => all.push(format!("--{long}").into()),
                "false" => {}
                _ => return Err(format!("{name} is '{value}': true or false is expected")),
            },
            _ => all.push(format!("--{long}={value}").into()),
        }
    }
    all.extend(args);
    Ok(all)
}

/// Removes an option and its value as often as it is there.
fn remove(args: &mut Vec<OsString>, arg: &Arg, long: &str) {
    let mut is_value = false;
    args.retain(|given| {
        if std::mem::take(&mut is_value) {
            return false;
        }
        let Some(has_value) = given.to_str().and_then(|text| names(text, arg, long)) else {
            return true;
        };
        is_value = arg.get_action().takes_values() && !has_value;
        false
    });
}

/// Whether a word is this option; if it is, whether its value is in the same word.
fn names(text: &str, arg: &Arg, long: &str) -> Option<bool> {
    if let Some(name) = text.strip_prefix("--") {
        let (name, value) =
            name.split_once('=').map_or((name, None), |(name, it)| (name, Some(it)));
        return (name == long).then_some(value.is_some());
    }
    let rest = text.strip_prefix('-')?.strip_prefix(arg.get_short()?)?;
    Some(!rest.is_empty())
}

/// The name of an option's variable.
pub(crate) fn name(lookup: &impl Fn(&str) -> Option<String>, long: &str) -> String {
    format!("{}{}", prefix(lookup), variable(long))
}

/// What `-env` prints.
pub(crate) fn page(command: &Command, lookup: impl Fn(&str) -> Option<String>) -> String {
    let prefix = prefix(&lookup);
    let mut lines: Vec<String> = options(command)
        .map(|(arg, long)| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            format!("{prefix}{:<31} {help}\n", variable(long))
        })
        .collect();
    lines.sort();
    lines.concat()
}

fn options(command: &Command) -> impl Iterator<Item = (&Arg, &str)> {
    let named = command.get_arguments().filter_map(|arg| Some((arg, arg.get_long()?)));
    named.filter(|(_, long)| !NO_VARIABLE.contains(long))
}

fn variable(long: &str) -> String {
    long.replace('-', "_").to_ascii_uppercase()
}

fn prefix(lookup: &impl Fn(&str) -> Option<String>) -> String {
    match lookup(PREFIX).as_deref().map(str::trim) {
        None | Some("") => String::new(),
        Some(prefix) if prefix.ends_with('_') => prefix.to_owned(),
        Some(prefix) => format!("{prefix}_"),
    }
}
