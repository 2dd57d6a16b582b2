//! A request as handlers see it: who asks, what the path and the query name, the body.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use axum::body::{Body, HttpBody as _};
use axum::extract::{FromRequest, FromRequestParts as _, RawPathParams};
use axum::http::{HeaderMap, Request, StatusCode};
use bytes::Bytes;
use leveret_amqp::table::{MAX_DEPTH, SHORT_STR_MAX, Table};
use leveret_broker::message::ConnectionId;
use leveret_server::clock::{now, wall};
use leveret_server::cluster::sessions::seen::AnyConnection;
use leveret_server::cluster::view::ClusterView;
use leveret_server::locks::Guard;
use leveret_server::node::{Node, Recipient};
use leveret_topology::{By, Origin, TableError, checked_table_from_json};
use serde_json::{Map, Value};

use super::App;
use super::answer::Fault;
use super::body;
use super::login::Login;
use crate::places::ConnectionPlace;
use crate::room::Held;
use crate::stats::Snapshot;
use crate::stats::format::Ranges;

/// One request of a user who has shown its password.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) app: Arc<App>,
    pub(crate) login: Login,
    pub(crate) peer: Peer,
    pub(crate) headers: HeaderMap,
    params: Vec<(String, String)>,
    query: Vec<(String, String)>,
    pub(crate) body: Bytes,
    /// Room of the body with what is made of it, and of the answer while it is made and sent. One: two that a request waits for
    /// while it holds the other could wait for each other.
    held: Held,
    /// What of it is the body's.
    of_body: u64,
    /// The samples that the query asks for.
    pub(crate) ranges: Ranges,
}

/// Where a request comes from; put into every one when it comes in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Peer {
    /// Over the network.
    Network(SocketAddr),
    /// Over the control socket, from a process of this user of the system.
    Local {
        /// Its number; `None` where the system does not tell.
        uid: Option<u32>,
    },
    /// Over the control socket of another node of the cluster, which has relayed it.
    OtherNode,
}

impl Peer {
    /// Whether it is whoever could open a control socket, who needs no password.
    pub(crate) fn is_operator(self) -> bool {
        match self {
            Self::Network(_) => false,
            Self::Local { .. } | Self::OtherNode => true,
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::Local { uid: Some(uid) } => write!(f, "control socket, uid {uid}"),
            Self::Local { uid: None } => f.write_str("control socket"),
            Self::OtherNode => f.write_str("control socket of another node"),
        }
    }
}

/// Filled in with the name of the user who was let in, for the audit log.
#[derive(Clone, Debug, Default)]
pub(super) struct Who(pub(super) Arc<OnceLock<String>>);

impl FromRequest<Arc<App>> for Call {
    type Rejection = Fault;

    async fn from_request(request: Request<Body>, app: &Arc<App>) -> Result<Self, Fault> {
        let (mut parts, body) = request.into_parts();
        let peer: Peer =
            *parts.extensions.get().ok_or_else(|| Fault::bad("a request from nowhere"))?;
        let login = Login::of_request(&parts.headers, app, peer).await?;
        if let Some(Who(name)) = parts.extensions.get() {
            // Once per request.
            let _ = name.set(login.name.clone());
        }
        if let Some(place) = parts.extensions.get::<Arc<ConnectionPlace>>() {
            place.knows();
        }
        let params = RawPathParams::from_request_parts(&mut parts, app)
            .await
            .map_err(|error| Fault::bad(format!("bad path: {error}")))?;
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let params = params.iter().map(owned).collect();
        let query = parse_query(parts.uri.query().unwrap_or_default());
        let (body, held) = {
            // What has no body is answered whatever else its user sends.
            let has_body = !body.is_end_stream();
            let _one = has_body.then(|| app.requests.enter(&login.name)).transpose()?;
            let held = Held::nothing(&app.ops.node, &login.name);
            body::read(app, &parts.headers, body, held).await?
        };
        let (app, headers) = (Arc::clone(app), parts.headers);
        let of_body = held.bytes();
        let pairs = query.iter().map(|(name, value)| (&**name, &**value));
        let ranges = Ranges::of_query(pairs, wall(now()).ms());
        if ranges.are_fine() {
            app.ops.stats.look();
        }
        Ok(Self { app, login, peer, headers, params, query, body, held, of_body, ranges })
    }
}

/// Names and values of a query, decoded; `+` is a space.
pub(crate) fn parse_query(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| {
        let spaced = text.replace('+', " ");
        percent_encoding::percent_decode_str(&spaced).decode_utf8_lossy().into_owned()
    };
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(name), decode(value))
        })
        .collect()
}

/// Has another thread do what takes longer than others may wait for this one.
pub(crate) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| Fault::unavailable("the node stops"))
}

impl Call {
    /// Who changes names by it, and from where.
    pub(crate) fn by(&self) -> Box<By> {
        let origin = match self.peer {
            Peer::Network(peer) => Some(Origin { peer, connection: None }),
            Peer::Local { .. } | Peer::OtherNode => None,
        };
        Box::new(By { user: self.login.name.as_str().into(), origin })
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.app.ops.node
    }

    /// The connection of this id; of one of another node what statistics know.
    pub(crate) fn connection(&self, id: ConnectionId) -> Option<AnyConnection> {
        match self.node().recipient(id) {
            Some(Recipient::Connection(connection)) => Some(AnyConnection::Here(connection)),
            Some(Recipient::Request(_)) => None,
            None => Some(self.stats().connections.get(&id)?.connection.clone()),
        }
    }

    /// Takes room for so many bytes of the answer, in its turn. Whoever is on the control socket needs none.
    pub(crate) async fn hold(&mut self, bytes: usize) -> Result<(), Fault> {
        if self.login.is_operator() || self.held.take(bytes as u64).await {
            return Ok(());
        }
        Err(Fault::unavailable(
            "too many bytes of requests, answers and messages are under way; try again later",
        ))
    }

    /// The answer so far takes no more than this.
    pub(crate) fn keep(&mut self, bytes: usize) {
        self.held.keep(self.of_body.saturating_add(bytes as u64));
    }

    /// Statistics as they are now: for a row, not for a list. The guard is a lock.
    pub(crate) fn stats(&self) -> Guard<'_, Snapshot> {
        self.app.ops.stats.now()
    }

    /// What the path has in the place called `name`; empty if there is no such place.
    pub(crate) fn param(&self, name: &str) -> &str {
        self.optional(name).unwrap_or_default()
    }

    /// What the path has in the place called `name`, if the route has one.
    pub(crate) fn optional(&self, name: &str) -> Option<&str> {
        self.params.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// An exchange's name: `amq.default` in a path means the one without a name.
    pub(crate) fn exchange_param(&self, name: &str) -> &str {
        match self.param(name) {
            "amq.default" => "",
            name => name,
        }
    }

    /// The value of a name of the query.
    pub(crate) fn query(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Names and values of the query.
    pub(crate) fn queries(&self) -> impl Iterator<Item = (&str, &str)> {
        self.query.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// A whole number of the query, if it is there.
    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Fault> {
        let Some(text) = self.query(name) else { return Ok(None) };
        let bad = |_| Fault::bad(format!("'{name}' must be a whole number, got '{text}'"));
        text.parse().map(Some).map_err(bad)
    }

    /// Whether the query says `name=true`.
    pub(crate) fn is_asked(&self, name: &str) -> bool {
        self.query(name) == Some("true")
    }

    /// The vhost that the path names, or the header `x-vhost`: the user may be there, and it exists.
    pub(crate) fn vhost(&self) -> Result<String, Fault> {
        let vhost = self.named_vhost().unwrap_or_default().to_owned();
        self.login.must_enter(self.node(), &vhost)?;
        self.node().topology().vhost(&vhost).ok_or_else(Fault::not_found)?;
        Ok(vhost)
    }

    /// As [`vhost`](Self::vhost), for what is to be made in it: then RabbitMQ says which object is not there.
    pub(crate) fn vhost_to_fill(&self) -> Result<String, Fault> {
        let missing = |fault: Fault| match fault.status {
            StatusCode::NOT_FOUND => Fault::missing("vhost_not_found"),
            _ => fault,
        };
        self.vhost().map_err(missing)
    }

    /// As [`vhost`](Self::vhost), for what monitoring users may see everywhere.
    pub(crate) fn visible_vhost(&self) -> Result<String, Fault> {
        let vhost = self.named_vhost().unwrap_or_default().to_owned();
        self.login.must_see(self.node(), &vhost)?;
        self.node().topology().vhost(&vhost).ok_or_else(Fault::not_found)?;
        Ok(vhost)
    }

    /// The vhosts a list is about: the one that is named, or all that the user sees. By name.
    pub(crate) fn vhosts(&self) -> Result<Vec<String>, Fault> {
        if let Some(vhost) = self.named_vhost() {
            self.login.must_see(self.node(), vhost)?;
            self.node().topology().vhost(vhost).ok_or_else(Fault::not_found)?;
            return Ok(vec![vhost.to_owned()]);
        }
        let topology = self.node().topology();
        let seen = topology.vhosts().filter(|vhost| self.login.lists(&topology, &vhost.name));
        let mut names: Vec<_> = seen.map(|vhost| vhost.name.to_string()).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// The vhost that the path names, or the header `x-vhost`.
    pub(crate) fn named_vhost(&self) -> Option<&str> {
        let of_header = || self.headers.get("x-vhost")?.to_str().ok().filter(|it| !it.is_empty());
        self.optional("vhost").or_else(of_header)
    }

    /// The body as a JSON object; none at all is an empty one.
    pub(crate) fn object(&self) -> Result<Map<String, Value>, Fault> {
        match &*self.body {
            b"" | b"null" | b"undefined" => return Ok(Map::new()),
            _ => {}
        }
        match serde_json::from_slice(&self.body) {
            Ok(Value::Object(map)) => Ok(map),
            Ok(Value::String(_)) => Err(Fault::bad(
                "invalid payload: the request body JSON-decoded to a string. Is the input \
                 doubly-JSON-encoded?",
            )),
            Ok(_) => Err(Fault::bad("the body must be a JSON object")),
            Err(error) => Err(Fault::bad(format!("not_json: {error}"))),
        }
    }

    /// What the node knows of its cluster now; none if it is alone.
    pub(crate) fn view(&self) -> Option<Arc<ClusterView>> {
        self.app.ops.views.as_ref().map(|views| Arc::clone(&views.borrow()))
    }

    /// The node's name.
    pub(crate) fn node_name(&self) -> &str {
        &self.app.ops.about.node_name
    }

    /// Refuses a path that names another node.
    pub(crate) fn must_name_this_node(&self) -> Result<(), Fault> {
        if self.param("node") == self.node_name() { Ok(()) } else { Err(Fault::not_found()) }
    }
}

/// Reads values out of a body, with words for what is wrong.
pub(crate) trait Fields {
    /// A string that must be there.
    fn text(&self, key: &str) -> Result<String, Fault>;
    /// A string that may be missing.
    fn optional_text(&self, key: &str) -> Result<Option<String>, Fault>;
    /// A truth that may be missing; RabbitMQ takes strings, too.
    fn flag(&self, key: &str, default: bool) -> Result<bool, Fault>;
    /// An object that may be missing.
    fn object(&self, key: &str) -> Result<Map<String, Value>, Fault>;
    /// Refuses a body in which one of `keys` is missing, naming all of those.
    fn must_have(&self, keys: &[&str]) -> Result<(), Fault>;
}

impl Fields for Map<String, Value> {
    fn text(&self, key: &str) -> Result<String, Fault> {
        self.must_have(&[key])?;
        self.optional_text(key)?.ok_or_else(|| Fault::keys_missing(&[key]))
    }

    fn optional_text(&self, key: &str) -> Result<Option<String>, Fault> {
        match self.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(other) => Err(Fault::bad(format!("'{key}' must be a string, got {other}"))),
        }
    }

    fn flag(&self, key: &str, default: bool) -> Result<bool, Fault> {
        match self.get(key) {
            None | Some(Value::Null) => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(Value::String(text)) if text == "true" => Ok(true),
            Some(Value::String(text)) if text == "false" => Ok(false),
            Some(other) => Err(Fault::bad(format!("'{key}' must be true or false, got {other}"))),
        }
    }

    fn object(&self, key: &str) -> Result<Self, Fault> {
        match self.get(key) {
            None | Some(Value::Null) => Ok(Self::new()),
            Some(Value::Object(map)) => Ok(map.clone()),
            // What some languages make of an empty table.
            Some(Value::Array(list)) if list.is_empty() => Ok(Self::new()),
            Some(other) => Err(Fault::bad(format!("'{key}' must be an object, got {other}"))),
        }
    }

    fn must_have(&self, keys: &[&str]) -> Result<(), Fault> {
        let missing = keys.iter().copied().filter(|key| !self.contains_key(*key));
        let missing: Vec<_> = missing.collect();
        if missing.is_empty() { Ok(()) } else { Err(Fault::keys_missing(&missing)) }
    }
}

/// Arguments or headers as they come over HTTP.
pub(crate) fn table(what: &str, map: &Map<String, Value>) -> Result<Table, Fault> {
    checked_table_from_json(map).map_err(|why| {
        Fault::bad(match why {
            TableError::LongName => {
                format!("names in '{what}' must have at most {SHORT_STR_MAX} bytes")
            }
            TableError::Deep => format!("'{what}' must be at most {MAX_DEPTH} levels deep"),
        })
    })
}

/// A name as it comes over HTTP, which would be cut to what a short string of AMQP holds.
pub(crate) fn short<'a>(what: &str, name: &'a str) -> Result<&'a str, Fault> {
    match name.len() {
        ..=SHORT_STR_MAX => Ok(name),
        // RabbitMQ's words, which it has for names of queues.
        len => {
            Err(Fault::bad(format!("{what} should be less than 255 bytes, actually was {len}\n")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let got = parse_query("a=b%2Fc&d=e+f&g&=h&&i=%zz");
        let got: Vec<_> = got.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(got, ["a=b/c", "d=e f", "g=", "=h", "i=%zz"]);
    }
}
