//! Definitions: everything but messages as JSON, in RabbitMQ's format.

mod check;
mod export;
mod import;
mod rabbitmq;

pub use check::Lines;
pub use import::{Import, ImportError, ImportReason, Imported};
pub use rabbitmq::{Reader, for_rabbitmq, loose_topic};
