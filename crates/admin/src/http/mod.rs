//! RabbitMQ's management API.
//!
//! - `serve`: sockets. `shell`: what every answer has: prefix, compression, ETag, CORS, headers.
//! - `routes`: the table of paths and methods. `call`: a request as handlers see it; `answer`: what they
//!   give back; `login`: who may what; `listing`: sorting, paging, columns.
//! - One file for each kind of object.
//!
//! - `stream`: answers that are sent while they are made. `pattern`: regular expressions of requests.
//!
//! A handler holds the read lock of the topology to copy a page of what it needs (see [`crate::ops::pages`]), and never
//! while it formats, sorts or waits. What takes long shares the thread.

mod answer;
mod bindings;
mod body;
mod browse;
mod call;
mod channels;
mod cluster;
mod connections;
mod consumers;
mod copied;
mod definitions;
mod events;
mod exchanges;
mod features;
mod handle;
mod health;
mod inspect;
mod limits;
mod listing;
mod login;
pub(crate) mod logs;
mod members;
mod messages;
mod moving;
mod nodes;
mod openapi;
mod operate;
mod origin;
mod overview;
mod parameters;
mod path;
pub(crate) mod pattern;
mod permissions;
mod policies;
mod queue_control;
mod queues;
mod requests;
mod routes;
mod serve;
mod shell;
mod stats;
pub(crate) mod stream;
mod top;
mod traces;
mod users;
mod vhosts;

use std::sync::Arc;

use leveret_config::options::ManagementOptions;

use crate::ops::Ops;
use crate::signin::SignIn;

pub(crate) use answer::{Answer, Fault};
pub(crate) use call::{Peer, parse_query};
pub(crate) use cluster::{environment_of, version_of};
pub(crate) use copied::{Copied, needs_only_names};
pub(crate) use login::Login;
pub(crate) use members::cluster_of;
pub(crate) use operate::{await_listeners, listeners as listeners_of};
pub(crate) use requests::Requests;
pub(crate) use serve::{Entrance, serve};

/// What handlers share.
#[derive(Debug)]
pub(crate) struct App {
    pub(crate) ops: Arc<Ops>,
    pub(crate) options: ManagementOptions,
    pub(crate) signin: SignIn,
    pub(crate) requests: Requests,
}
