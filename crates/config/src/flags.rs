//! The flags of `leveret serve`: one per option key, and `--set key=value` for every key.

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::load::{Config, FlagSetting};

/// Settings from the command line, in its order. Flatten it into a clap command.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// What was set.
    pub settings: Vec<FlagSetting>,
}

/// Flags that `-h` lists; `--help` lists all.
const COMMON: [&str; 5] = ["data-dir", "listen", "port", "log-level", "ctl-socket"];

/// Every flag: its name, the key it sets, its form, its help.
fn all() -> impl Iterator<Item = (String, &'static str, &'static str, String, &'static str)> {
    Config::sections().into_iter().flat_map(|(title, specs)| {
        specs.into_iter().flat_map(move |spec| {
            let (summary, form) = (spec.summary().to_owned(), spec.form);
            let is_table = spec.keys.iter().any(|key| key.contains('$'));
            let help = match (&spec.default, &spec.range) {
                _ if is_table => summary,
                (default, Some(range)) => format!("{summary} [default: {default}; {range}]"),
                (default, None) if default == "not set" => summary,
                (default, None) => format!("{summary} [default: {default}]"),
            };
            spec.flag_names()
                .into_iter()
                .map(move |(name, key)| (name, key, form, help.clone(), title))
        })
    })
}

impl clap::Args for Flags {
    fn augment_args(mut command: Command) -> Command {
        command = command.arg(
            Arg::new("set")
                .long("set")
                .value_name("KEY=VALUE")
                .action(ArgAction::Append)
                .help("Set any key of the configuration file; can be repeated"),
        );
        for (name, _, form, help, title) in all() {
            let is_common = COMMON.contains(&name.as_str());
            let flag = Arg::new(format!("option.{name}"))
                .long(name)
                .value_name(form)
                .action(ArgAction::Append)
                .hide_short_help(!is_common)
                .help(help);
            command = command.arg(if is_common { flag } else { flag.help_heading(title) });
        }
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut found: Vec<(usize, FlagSetting)> = Vec::new();
        let mut take = |id: &str, setting: &dyn Fn(&str) -> Option<FlagSetting>| {
            let places = matches.indices_of(id).into_iter().flatten();
            let values = matches.get_many::<String>(id).into_iter().flatten();
            for (place, value) in places.zip(values) {
                let setting = setting(value).ok_or_else(|| {
                    let why = format!("--set {value}: expected KEY=VALUE\n");
                    clap::Error::raw(clap::error::ErrorKind::ValueValidation, why)
                })?;
                found.push((place, setting));
            }
            Ok::<(), clap::Error>(())
        };
        take("set", &|text| {
            let (key, value) = text.split_once('=')?;
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            Some(FlagSetting { flag: "--set".to_owned(), key, value })
        })?;
        for (name, key, ..) in all() {
            let flag = format!("--{name}");
            take(&format!("option.{name}"), &|value| {
                let (flag, key, value) = (flag.clone(), key.to_owned(), value.to_owned());
                Some(FlagSetting { flag, key, value })
            })?;
        }
        // The order of the command line, so that what is said later wins.
        found.sort_by_key(|(place, _)| *place);
        Ok(Self { settings: found.into_iter().map(|(_, setting)| setting).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};

    #[test]
    fn command_is_sound() {
        Flags::augment_args(Command::new("serve")).debug_assert();
    }

    #[test]
    fn order_is_kept() {
        let line = ["serve", "--set", "heartbeat=1", "--heartbeat", "2", "--set", "heartbeat = 3"];
        let matches = Flags::augment_args(Command::new("serve")).get_matches_from(line);
        let flags = Flags::from_arg_matches(&matches).unwrap();
        let values: Vec<_> = flags.settings.iter().map(|it| it.value.as_str()).collect();
        assert_eq!(values, ["1", "2", "3"]);
        let line = ["serve", "--set", "heartbeat"];
        let matches = Flags::augment_args(Command::new("serve")).get_matches_from(line);
        assert!(Flags::from_arg_matches(&matches).is_err());
    }
}
