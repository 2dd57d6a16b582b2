//! The configuration of the broker: RabbitMQ's `rabbitmq.conf`, the environment and flags.
//!
//! An option is declared once, in [`options`]; from there come the field that holds its value, its
//! file key, environment names and flags, the help, the manual and `docs/configuration.md`.
//!
//! ```text
//!  files --parse--> settings --+
//!  environment ----------------+--load--> Config, notices   or every fault with its place
//!  flags ----------------------+
//! ```
//!
//! Invariant: [`Config::load`] is pure; only [`files`] touches the disk.

pub mod auth;
mod classic;
pub mod cluster;
pub mod encrypted;
mod error;
pub mod files;
pub mod flags;
mod known;
pub mod ldap;
mod load;
mod nearest;
pub mod oauth2;
mod option;
pub mod options;
pub mod page;
mod parse;
pub mod plugins;
pub mod seeds;
mod setting;
pub mod signin;
pub mod tls;
mod value;

pub use error::{ConfigError, ConfigErrors, Problem, Provenance};
pub use flags::Flags;
pub use load::{Config, File, FlagSetting, Include, Inputs, Loaded, Notice};
pub use option::Spec;
pub use setting::{
    CategoryLevels, LOG_CATEGORIES, ListenAddress, Listeners, LogFile, MECHANISMS, Mechanisms,
    NameSet, NamedValues, Texts, Threshold,
};
pub use value::{
    ByteSize, DamagedFiles, Fraction, Level, Limit, LogFormat, Millis, PasswordHashing, Product,
    QueueType, Seconds, Secret, Stream, Value,
};

/// Largest body on the control socket: definitions of some hundred thousand objects.
pub const DEFINITIONS_MAX: ByteSize = ByteSize::mib(256);

/// Why a node that answers is not ready, as the management API and the tools tell it.
pub const FILLING: &str = "the node is starting: its queues are being filled";
