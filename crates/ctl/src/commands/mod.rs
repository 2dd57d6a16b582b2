//! The table of commands: one entry each, in the file of what it is about.

mod access;
mod checks;
mod cluster;
mod connections;
mod definitions;
mod limits;
mod lists;
mod node;
mod plugins;
mod policies;
mod queues;
mod report;
mod status;
mod vhosts;

use clap::Command;

use crate::call::{Answer, Call};
use crate::fault::{Code, Fault};

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    /// The tools that have it.
    pub(crate) tools: Tools,
    pub(crate) about: &'static str,
    pub(crate) words: &'static [Word],
    /// What is being done, with places for words; see [`Call::fill`].
    pub(crate) banner: &'static str,
    /// What is told when the node has no such object.
    pub(crate) missing: (Code, &'static str),
    pub(crate) run: Run,
}

type Run = fn(&mut Call<'_>) -> Result<Answer, Fault>;

impl Entry {
    const fn new(name: &'static str, tools: Tools, about: &'static str, run: Run) -> Self {
        let missing = (Code::Data, "Virtual host '{vhost}' does not exist");
        Self { name, tools, about, words: &[], banner: "", missing, run }
    }

    const fn takes(self, words: &'static [Word]) -> Self {
        Self { words, ..self }
    }

    const fn says(self, banner: &'static str) -> Self {
        Self { banner, ..self }
    }

    const fn or_missing(self, code: Code, text: &'static str) -> Self {
        Self { missing: (code, text), ..self }
    }
}

/// A set of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tools(u8);

impl Tools {
    const CTL: Self = Self(1);
    const DIAGNOSTICS: Self = Self(2);
    const QUEUES: Self = Self(4);
    const PLUGINS: Self = Self(8);
    const UPGRADE: Self = Self(16);
    const CTL_AND_DIAGNOSTICS: Self = Self(1 | 2);
    const QUEUES_AND_DIAGNOSTICS: Self = Self(4 | 2);
    const EVERY: Self = Self(31);
    /// What `leveret ctl` has: all but the plugins', whose names (`list`, `set`) mean nothing by themselves.
    pub(crate) const ALL: Self = Self(1 | 2 | 4 | 16);

    pub(crate) const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// A word of a command line: an argument or a switch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    pub(crate) short: Option<char>,
}

/// What a word is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// An argument that has to be there.
    One,
    /// An argument that may be missing.
    Maybe,
    /// Any number of arguments.
    Many,
    /// A switch.
    Flag,
    /// A switch with a value, and what it is without.
    Value(&'static str),
    /// A switch that means nothing here.
    IgnoredFlag,
    /// A switch with a value that means nothing here.
    IgnoredValue,
}

const fn word(name: &'static str, kind: Kind, help: &'static str) -> Word {
    Word { name, help, kind, short: None }
}

const fn one(name: &'static str, help: &'static str) -> Word {
    word(name, Kind::One, help)
}

const fn maybe(name: &'static str, help: &'static str) -> Word {
    word(name, Kind::Maybe, help)
}

const fn many(name: &'static str, help: &'static str) -> Word {
    word(name, Kind::Many, help)
}

const fn flag(name: &'static str, help: &'static str) -> Word {
    word(name, Kind::Flag, help)
}

const fn value(name: &'static str, default: &'static str, help: &'static str) -> Word {
    word(name, Kind::Value(default), help)
}

const fn ignored(name: &'static str) -> Word {
    word(name, Kind::IgnoredFlag, "Accepted for rabbitmqctl's sake")
}

const fn ignored_value(name: &'static str) -> Word {
    word(name, Kind::IgnoredValue, "Accepted for rabbitmqctl's sake")
}

impl Word {
    const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }
}

/// Every command there is.
pub(crate) fn all() -> impl Iterator<Item = &'static Entry> {
    let tables: [&'static [Entry]; 13] = [
        node::COMMANDS,
        status::COMMANDS,
        lists::COMMANDS,
        access::COMMANDS,
        vhosts::COMMANDS,
        limits::COMMANDS,
        policies::COMMANDS,
        definitions::COMMANDS,
        queues::COMMANDS,
        connections::COMMANDS,
        checks::COMMANDS,
        cluster::COMMANDS,
        plugins::COMMANDS,
    ];
    tables.into_iter().flatten().chain(report::COMMANDS)
}

/// RabbitMQ's tools.
const TOOLS: [(&str, Tools); 5] = [
    ("rabbitmqctl", Tools::CTL),
    ("rabbitmq-diagnostics", Tools::DIAGNOSTICS),
    ("rabbitmq-queues", Tools::QUEUES),
    ("rabbitmq-plugins", Tools::PLUGINS),
    ("rabbitmq-upgrade", Tools::UPGRADE),
];

/// The command line of the tool of this name: what a link of that name to the program is.
pub fn tool(name: &str) -> Option<Command> {
    let (name, tools) = TOOLS.iter().find(|(known, _)| *known == name)?;
    Some(crate::args::tool(name, *tools))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are told apart by tool; `leveret ctl` has most of them in one.
    #[test]
    fn no_name_is_there_twice() {
        for tools in TOOLS.iter().map(|(_, tools)| *tools).chain([Tools::ALL]) {
            let of_tool = all().filter(|entry| entry.tools.meets(tools));
            let mut names: Vec<_> = of_tool.map(|entry| entry.name).collect();
            let before = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), before);
        }
    }

    /// A place in a template that no word fills would be shown empty.
    #[test]
    fn templates_name_their_words() {
        for entry in all() {
            for template in [entry.banner, entry.missing.1] {
                for place in template.split('{').skip(1) {
                    let name = place.split('}').next().unwrap_or_default();
                    let is_common = ["vhost", "node", "timeout"].contains(&name);
                    let is_word = entry.words.iter().any(|word| word.name == name);
                    assert!(is_common || is_word, "{}: {template}", entry.name);
                }
            }
        }
    }

    /// The manual names every command, and no tool's command goes without a word about it.
    #[test]
    fn the_manual_names_every_command() {
        let manual = include_str!("../../../../docs/command-line.md");
        for entry in all() {
            assert!(manual.contains(&format!("`{}", entry.name)), "{}", entry.name);
            assert!(!entry.about.is_empty(), "{}", entry.name);
        }
    }
}
