//! What can be wrong with a configuration, with the place where it is wrong.

use std::fmt;

/// Where a setting came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Provenance {
    /// A line of a file, counted from 1.
    File {
        /// The file's name as the user gave it.
        name: String,
        /// The first line of the setting.
        line: u32,
    },
    /// An environment variable.
    Environment(String),
    /// A flag of the command line, with its dashes.
    Flag(String),
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { name, line } => write!(f, "{name}:{line}"),
            Self::Environment(name) => write!(f, "environment variable {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
        }
    }
}

/// One fault, and where it is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {}", short(&.problem.to_string()))]
pub struct ConfigError {
    /// Where.
    pub at: Provenance,
    /// What.
    pub problem: Problem,
}

/// What is wrong with one setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The line is neither a setting nor an include.
    #[error("{0}")]
    Syntax(String),

    /// Neither Leveret nor RabbitMQ knows the key.
    #[error("unknown key '{key}'{}", hint(.nearest.as_deref()))]
    UnknownKey {
        /// The key as written.
        key: String,
        /// A known key that differs by a letter or two.
        nearest: Option<String>,
    },

    /// The value cannot be read or is out of range.
    #[error("{key} = {value}: {why}")]
    BadValue {
        /// The key as written.
        key: String,
        /// The value as written, hidden if it is a secret.
        value: String,
        /// What was expected.
        why: String,
    },

    /// What the key asks for is not there, and to go on without it would be unsafe.
    #[error("{key} cannot be kept: {why}")]
    Refused {
        /// The key as written.
        key: String,
        /// What is missing, and what to do.
        why: &'static str,
    },

    /// An included file could not be read.
    #[error("cannot include '{path}': {why}")]
    Include {
        /// The path as written.
        path: String,
        /// The operating system's answer.
        why: String,
    },

    /// `$(NAME)` names neither a key set in the files nor an environment variable.
    #[error("{key}: $({name}) is neither a key that is set nor an environment variable")]
    UnknownReference {
        /// The key whose value holds the reference.
        key: String,
        /// What is between the parentheses.
        name: String,
    },
}

/// Most letters of a text of a fault: it may hold what the user wrote, whatever that is.
const LETTERS_MAX: usize = 1000;

/// The text, and of a very long one its beginning.
pub(crate) fn short(text: &str) -> std::borrow::Cow<'_, str> {
    match text.char_indices().nth(LETTERS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]).into(),
        None => text.into(),
    }
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |key| format!("; did you mean '{key}'?"))
}

/// Faults that are told at most: with so many the file is something else, and what follows from each would take long.
pub(crate) const FAULTS_MAX: usize = 100;

/// The faults of a configuration, in the order of files, environment, flags. Never empty; of very many the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            let newline = if at == 0 { "" } else { "\n" };
            write!(f, "{newline}{error}")?;
        }
        if self.0.len() >= FAULTS_MAX {
            write!(f, "\nthere may be more: the first {FAULTS_MAX} are told")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
