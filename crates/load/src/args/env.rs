//! Options from the environment: the long name in capitals, `_` for `-`.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command};

/// Put before every name, as PerfTest does.
const PREFIX: &str = "RABBITMQ_PERF_TEST_ENV_PREFIX";

/// Arguments that mean the tool itself, not a run.
const NO_VARIABLE: [&str; 4] = ["help", "version", "environment-variables", "metrics-help"];

/// Puts options that are only in the environment before the arguments.
pub(super) fn complete(
    command: &Command,
    args: Vec<OsString>,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<Vec<OsString>, String> {
    let prefix = prefix(&lookup);
    let mut all = Vec::new();
    for (arg, long) in options(command) {
        let name = format!("{prefix}{}", variable(long));
        let Some(value) = lookup(&name) else { continue };
        if args.iter().any(|given| is_given(given, arg, long)) {
            continue;
        }
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

fn is_given(given: &OsString, arg: &Arg, long: &str) -> bool {
    let Some(text) = given.to_str() else { return false };
    if let Some(name) = text.strip_prefix("--") {
        return name.split('=').next() == Some(long);
    }
    arg.get_short()
        .is_some_and(|short| text.strip_prefix('-').is_some_and(|t| t.starts_with(short)))
}
