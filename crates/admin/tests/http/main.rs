//! The management API of a real node, over real sockets: requests, and what is answered.

mod access;
mod cluster;
mod events;
mod fields;
mod health;
mod lists;
mod locks;
mod messages;
mod metrics;
mod node;
mod objects;
mod operate;
mod protocol;
mod queue_control;
mod rabbitmqadmin;
mod rates;
mod rights;
mod sessions;
mod traces;
