//! What a command is: its name, its words, what it says and does; and the tools that have it.

use crate::call::{Answer, Call};
use crate::fault::{Code, Fault};

/// A command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
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

/// The function that does what a command says.
pub(crate) type Run = fn(&mut Call<'_>) -> Result<Answer, Fault>;

impl Command {
    pub(super) const fn new(
        name: &'static str,
        tools: Tools,
        about: &'static str,
        run: Run,
    ) -> Self {
        let missing = (Code::Data, "Virtual host '{vhost}' does not exist");
        Self { name, tools, about, words: &[], banner: "", missing, run }
    }

    pub(super) const fn takes(self, words: &'static [Word]) -> Self {
        Self { words, ..self }
    }

    pub(super) const fn says(self, banner: &'static str) -> Self {
        Self { banner, ..self }
    }

    pub(super) const fn or_missing(self, code: Code, text: &'static str) -> Self {
        Self { missing: (code, text), ..self }
    }
}

/// A set of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tools(u8);

impl Tools {
    pub(super) const CTL: Self = Self(1);
    pub(super) const DIAGNOSTICS: Self = Self(2);
    pub(super) const QUEUES: Self = Self(4);
    pub(super) const PLUGINS: Self = Self(8);
    pub(super) const UPGRADE: Self = Self(16);
    pub(super) const STREAMS: Self = Self(32);
    pub(super) const CTL_AND_DIAGNOSTICS: Self = Self(1 | 2);
    pub(super) const CTL_AND_STREAMS: Self = Self(1 | 32);
    pub(super) const CTL_DIAGNOSTICS_AND_STREAMS: Self = Self(1 | 2 | 32);
    pub(super) const CTL_DIAGNOSTICS_AND_UPGRADE: Self = Self(1 | 2 | 16);
    pub(super) const QUEUES_AND_DIAGNOSTICS: Self = Self(4 | 2);
    pub(super) const QUEUES_AND_STREAMS: Self = Self(4 | 32);
    pub(super) const QUEUES_STREAMS_AND_DIAGNOSTICS: Self = Self(4 | 32 | 2);
    pub(super) const STREAMS_AND_DIAGNOSTICS: Self = Self(32 | 2);
    pub(super) const EVERY: Self = Self(63);
    /// What `leveret ctl` has: all but the plugins', whose names (`list`, `set`) mean nothing by themselves.
    pub(crate) const ALL: Self = Self(1 | 2 | 4 | 16 | 32);

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

pub(super) const fn one(name: &'static str, help: &'static str) -> Word {
    word(name, Kind::One, help)
}

pub(super) const fn maybe(name: &'static str, help: &'static str) -> Word {
    word(name, Kind::Maybe, help)
}

pub(super) const fn many(name: &'static str, help: &'static str) -> Word {
    word(name, Kind::Many, help)
}

pub(super) const fn flag(name: &'static str, help: &'static str) -> Word {
    word(name, Kind::Flag, help)
}

pub(super) const fn value(name: &'static str, default: &'static str, help: &'static str) -> Word {
    word(name, Kind::Value(default), help)
}

pub(super) const fn ignored(name: &'static str) -> Word {
    word(name, Kind::IgnoredFlag, "Accepted for rabbitmqctl's sake")
}

pub(super) const fn ignored_value(name: &'static str) -> Word {
    word(name, Kind::IgnoredValue, "Accepted for rabbitmqctl's sake")
}

impl Word {
    pub(super) const fn short(self, short: char) -> Self {
        Self { short: Some(short), ..self }
    }
}
