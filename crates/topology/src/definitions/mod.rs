//! Definitions: everything but messages as JSON, in RabbitMQ's format.

mod export;
mod import;

pub use import::{ImportError, ImportReason, Imported};
