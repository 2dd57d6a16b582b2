//! `rabbitmq-streams`: queues of type stream are not there, so lists are empty and the rest is refused.

use super::{Command, Tools, Word, flag, ignored_value, many, one};
use crate::call::{Answer, Call};
use crate::columns;
use crate::fault::Fault;

const STREAM: Word = one("stream", "The stream");
const NODE: Word = one("member", "A node");
const LIST: &[Word] = &[many("columns", "Accepted"), flag("verbose", "Accepted")];
const PLURAL: Tools = Tools::CTL_AND_STREAMS;

fn none(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.say()?;
    Err(Fault::unavailable(
        "streams are not there: a queue of x-queue-type stream cannot be declared. Every message of a classic \
         or quorum queue can be looked at where it is, without taking it: see queue-operations in the manual",
    ))
}

/// A list of what there is none of. The node has to be there for that.
fn empty(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.get("/api/stream/connections")?;
    Ok(Answer::Rows(columns::all(&["stream"]), Vec::new()))
}

const fn refused(name: &'static str, tools: Tools) -> Command {
    Command::new(name, tools, "Not there: there are no streams", none)
}

const fn list(name: &'static str, tools: Tools) -> Command {
    Command::new(name, tools, "Always empty: there are no streams", empty).takes(LIST)
}

pub(super) const COMMANDS: &[Command] = &[
    refused("add_replica", Tools::STREAMS).takes(&[STREAM, NODE]),
    refused("delete_replica", Tools::STREAMS).takes(&[STREAM, NODE]),
    refused("coordinator_status", Tools::STREAMS_AND_DIAGNOSTICS),
    refused("restart_stream", Tools::STREAMS)
        .takes(&[STREAM, ignored_value("preferred-leader-node")]),
    refused("stream_status", Tools::QUEUES_STREAMS_AND_DIAGNOSTICS)
        .takes(&[STREAM, flag("tracking", "Accepted")]),
    refused("activate_stream_consumer", PLURAL).takes(&[
        ignored_value("stream"),
        ignored_value("reference"),
        many("words", "Accepted"),
    ]),
    refused("add_super_stream", Tools::STREAMS).takes(&[many("words", "Accepted")]),
    refused("delete_super_stream", Tools::STREAMS).takes(&[STREAM]),
    refused("reset_offset", Tools::STREAMS)
        .takes(&[ignored_value("stream"), ignored_value("reference")]),
    list("list_stream_connections", Tools::CTL_DIAGNOSTICS_AND_STREAMS),
    list("list_stream_consumer_groups", Tools::CTL_DIAGNOSTICS_AND_STREAMS),
    list("list_stream_consumers", Tools::CTL_DIAGNOSTICS_AND_STREAMS),
    list("list_stream_group_consumers", Tools::CTL_DIAGNOSTICS_AND_STREAMS),
    list("list_stream_publishers", Tools::CTL_DIAGNOSTICS_AND_STREAMS),
    list("list_stream_tracking", Tools::STREAMS),
];
