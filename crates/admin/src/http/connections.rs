//! Connections.

use std::borrow::Cow;
use std::ops::Bound;
use std::sync::Arc;

use leveret_broker::message::NodeId;
use leveret_server::cluster::sessions::seen::{AnyConnection, Wanted};
use leveret_session::{ChannelFacts, ConnectionFacts};
use leveret_topology::{Topology, table_to_json, weight};
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;
use super::listing::{Listed, Why};
use super::{channels, listing, stats};
use crate::ops::close;
use crate::ops::pages::{self, Slice};
use crate::stats::snapshot::ConnectionEntry;

/// A connection and what it tells of itself.
pub(super) type Seen = (AnyConnection, ConnectionFacts);

/// Bytes of what was seen for which room is taken at once.
const STEP: usize = 1 << 20;

/// The connections that are wanted and whose user lets this user see them, oldest first, and the nodes that did not show all of theirs.
/// They take room until the answer is sent.
pub(super) async fn seen(
    call: &mut Call,
    mut wanted: Wanted,
) -> Result<(Vec<Seen>, Vec<String>), Fault> {
    if !call.login.is_monitor() {
        let own = call.login.name.clone();
        if wanted.user.replace(own.clone()).is_some_and(|user| user != own) {
            return Ok((Vec::new(), Vec::new()));
        }
    }
    let (mut seen, mut held) = (Vec::new(), 0);
    let mut slice = Slice::begin();
    for connection in call.node().connections() {
        if wanted.has(&connection) {
            let facts = connection.facts();
            see(call, &mut seen, &mut held, (AnyConnection::Here(connection), facts)).await?;
        }
        slice.share().await;
    }
    let mut elsewhere = call.node().connections_elsewhere(&wanted);
    while let Some(some) = elsewhere.next().await {
        for connection in some {
            let Some(facts) = connection.facts() else { continue };
            see(call, &mut seen, &mut held, (connection, facts)).await?;
            slice.share().await;
        }
    }
    let silent = elsewhere.all_came().await.err().map_or_else(Vec::new, |it| it.0);
    call.hold(held).await?;
    pages::sort(&mut seen, |(a, _), (b, _)| a.id().cmp(&b.id())).await;
    Ok((seen, silent))
}

async fn see(
    call: &mut Call,
    seen: &mut Vec<Seen>,
    held: &mut usize,
    one: Seen,
) -> Result<(), Fault> {
    *held += weight_of(&one.1);
    seen.push(one);
    if *held >= STEP { call.hold(std::mem::take(held)).await } else { Ok(()) }
}

/// With a warning that names nodes which did not show all of their connections.
pub(super) fn lacks(answer: Answer, silent: Vec<String>) -> Answer {
    let told =
        |node| format!("connections of {node} are not all there: it does not answer in time");
    answer.with_warnings(silent.into_iter().map(told))
}

/// Bytes that it takes, about.
fn weight_of(facts: &ConnectionFacts) -> usize {
    let of_channel = |channel: &ChannelFacts| {
        size_of::<ChannelFacts>() + size_of_val(&*channel.exchanges) + size_of_val(&*channel.taken)
    };
    let properties = usize::try_from(weight::table(&facts.client_properties)).unwrap_or(usize::MAX);
    size_of::<Seen>() + properties + facts.channels.iter().map(of_channel).sum::<usize>()
}

/// Connections of other nodes that are counted with one hold of statistics.
const COUNTED: usize = 256;

/// How many connections and channels `is_wanted` by vhost and user: of this node now, of others as statistics know them.
pub(super) async fn counts(
    call: &Call,
    is_wanted: impl Fn(&str, &str) -> bool + Send + Sync,
) -> (usize, usize) {
    let (mut connections, mut channels) = (0, 0);
    let mut slice = Slice::begin();
    for connection in call.node().connections() {
        let facts = connection.facts();
        if is_wanted(&facts.vhost, &facts.user) {
            connections += 1;
            channels += facts.channels.len();
        }
        slice.share().await;
    }
    let mut last = *NodeId::ALONE.connections().end();
    loop {
        let some: Vec<_> = {
            let stats = call.stats();
            let some = stats.connections.range((Bound::Excluded(last), Bound::Unbounded));
            let some = some.take(COUNTED);
            some.map(|(id, it)| {
                (*id, it.connection.user(), it.numbers.vhost, it.numbers.channels.len())
            })
            .collect()
        };
        let Some((id, ..)) = some.last() else { return (connections, channels) };
        last = *id;
        let named = |topology: &Topology, (_, user, vhost, channels): (_, _, _, _)| {
            let vhost = topology.vhost_by_id(vhost).map(|it| Arc::clone(&it.name));
            Some((user, vhost, channels))
        };
        for (user, vhost, of_it) in pages::copied(call.node(), some, named).await {
            if is_wanted(vhost.as_deref().unwrap_or_default(), &user) {
                connections += 1;
                channels += of_it;
            }
        }
    }
}

/// A list of connections.
struct Connections;

impl Listed for Connections {
    type Item = Seen;

    fn name<'a>(&self, (connection, _): &'a Seen) -> Cow<'a, str> {
        connection.name().into()
    }

    async fn rows(&self, call: &Call, items: &[Seen], _: Why) -> Result<Vec<Value>, Fault> {
        let mut rows = Vec::with_capacity(items.len());
        let mut slice = Slice::begin();
        for seen in items {
            rows.push(row(call, seen));
            slice.share().await;
        }
        Ok(rows)
    }
}

/// `GET /api/connections`.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    listed(call, Wanted::default()).await
}

async fn listed(mut call: Call, wanted: Wanted) -> Result<Answer, Fault> {
    let (seen, silent) = seen(&mut call, wanted).await?;
    Ok(lacks(listing::list(call, Connections, seen).await?, silent))
}

/// `GET /api/vhosts/{vhost}/connections`.
pub(super) async fn list_of_vhost(call: Call) -> Result<Answer, Fault> {
    let vhost = Some(call.visible_vhost()?);
    listed(call, Wanted { vhost, ..Wanted::default() }).await
}

/// `GET /api/connections/username/{user}`.
pub(super) async fn list_of_user(call: Call) -> Result<Answer, Fault> {
    let user = Some(call.param("user").to_owned());
    listed(call, Wanted { user, ..Wanted::default() }).await
}

/// `DELETE /api/connections/username/{user}`.
pub(super) async fn close_of_user(call: Call) -> Result<Answer, Fault> {
    call.login.must_be(call.param("user"), true)?;
    let meant = Wanted { user: Some(call.param("user").to_owned()), ..Wanted::default() };
    let closed = close::close_all(call.node(), &reason(&call), &meant).await;
    let silent = closed.err().map_or_else(Vec::new, |it| it.0);
    let told =
        |node| format!("connections of {node} may be open still: it does not answer in time");
    Ok(Answer::Done.with_warnings(silent.into_iter().map(told)))
}

/// `GET /api/connections/{connection}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    let seen = find(&call, false).await?;
    let row = row(&call, &seen);
    Ok(listing::one(&call, row))
}

/// `GET /api/connections/{connection}/channels`.
pub(super) async fn list_channels(call: Call) -> Result<Answer, Fault> {
    let seen = find(&call, false).await?;
    channels::listed(call, vec![seen], Vec::new()).await
}

/// `GET /api/connections/{connection}/sessions`: AMQP 1.0 has them.
pub(super) async fn list_sessions(call: Call) -> Result<Answer, Fault> {
    find(&call, false).await?;
    Err(Fault::bad("connection does not use AMQP 1.0"))
}

/// `DELETE /api/connections/{connection}`, by name or by what lists call its `pid`, with the reason in the header `X-Reason`.
pub(super) async fn close(call: Call) -> Result<Answer, Fault> {
    let (connection, _) = find(&call, true).await?;
    connection.close(call.node(), reason(&call));
    Ok(Answer::Done)
}

fn reason(call: &Call) -> String {
    let given = call.headers.get("x-reason").and_then(|it| it.to_str().ok());
    given.filter(|it| !it.is_empty()).unwrap_or("Closed via management plugin").to_owned()
}

async fn find(call: &Call, closes: bool) -> Result<Seen, Fault> {
    let name = call.param("connection");
    let (connection, facts) = called(call, name).await?;
    call.login.must_be(&facts.user, closes)?;
    Ok((connection, facts))
}

/// The connection of this name, whoever may see it.
pub(super) async fn called(call: &Call, name: &str) -> Result<Seen, Fault> {
    let found = call.node().connection_called(name).await;
    let found = found.map_err(|it| {
        Fault::unavailable(format!("whether there is such a connection is not known: {it}"))
    })?;
    let connection = found.ok_or_else(Fault::not_found)?;
    let facts = connection.facts().ok_or_else(Fault::not_found)?;
    Ok((connection, facts))
}

/// What lists of other things say of a connection.
pub(super) fn details(connection: &AnyConnection) -> Value {
    json!({
        "name": connection.name(),
        "peer_host": connection.peer().ip().to_canonical().to_string(),
        "peer_port": connection.peer().port(),
    })
}

/// The node that the client is connected to.
pub(super) fn node_name<'a>(call: &'a Call, connection: &'a AnyConnection) -> &'a str {
    connection.node().unwrap_or_else(|| call.node_name())
}

fn row(call: &Call, (connection, facts): &Seen) -> Value {
    let (peer, local) = (connection.peer(), connection.local());
    let properties = table_to_json(&facts.client_properties);
    let tls = facts.tls.as_deref();
    let certificate = tls.and_then(|tls| tls.certificate.as_ref());
    let mut row = json!({
        "name": connection.name(),
        "node": node_name(call, connection),
        "pid": connection.id().pid(),
        "type": "network",
        "state": facts.state,
        "user": facts.user,
        "user_who_performed_action": facts.user,
        "vhost": facts.vhost,
        "protocol": "AMQP 0-9-1",
        "auth_mechanism": facts.mechanism,
        "host": local.ip().to_canonical().to_string(),
        "port": local.port(),
        "peer_host": peer.ip().to_canonical().to_string(),
        "peer_port": peer.port(),
        "ssl": tls.is_some(),
        "ssl_protocol": tls.map(|tls| &tls.protocol),
        "ssl_key_exchange": tls.map(|tls| &tls.key_exchange),
        "ssl_cipher": tls.map(|tls| &tls.cipher),
        "ssl_hash": tls.map(|tls| &tls.hash),
        "peer_cert_subject": certificate.map(|it| &it.subject),
        "peer_cert_issuer": certificate.map(|it| &it.issuer),
        "peer_cert_serial_number": certificate.map(|it| &it.serial_number),
        "peer_cert_validity": certificate.map(|it| &it.validity),
        "frame_max": facts.frame_max,
        "channel_max": facts.channel_max,
        "channels": facts.channels.len(),
        "connected_at": facts.connected.ms(),
        "client_properties": properties,
        "garbage_collection": stats::garbage_collection(),
        "reductions": 0,
        "reductions_details": {"rate": 0.0},
        "timeout": facts.heartbeat_s,
    });
    if let Some(sampled) = connection.sample() {
        let io = sampled.io;
        let counts = [
            ("recv_oct", io.recv_oct),
            ("recv_cnt", io.recv_cnt),
            ("send_oct", io.send_oct),
            ("send_cnt", io.send_cnt),
        ];
        for (name, count) in counts {
            row[name] = json!(count);
            row[format!("{name}_details")] = json!({"rate": 0.0});
        }
        row["send_pend"] = json!(io.send_pend);
        row["waits_for"] = json!(sampled.session.waits_for);
    }
    let stats = call.stats();
    if let Value::Object(row) = &mut row {
        let entry = stats.connections.get(&connection.id()).map(AsRef::as_ref);
        ConnectionEntry::put_rates(entry, row, &call.ranges);
    }
    drop(stats);
    if let Some(name) = properties.get("connection_name") {
        row["user_provided_name"] = name.clone();
    }
    row
}
