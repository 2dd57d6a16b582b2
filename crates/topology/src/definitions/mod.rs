//! Definitions: everything but messages as JSON, in RabbitMQ's format.

mod check;
mod export;
mod import;
mod rabbitmq;

pub use import::{Import, ImportError, ImportReason, Imported};
pub use rabbitmq::for_rabbitmq;
