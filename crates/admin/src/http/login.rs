//! Who asks, and what they may see and do: RabbitMQ's tags.
//!
//! | tag | may |
//! |---|---|
//! | `management` | use the API in the vhosts it has permissions in; see and close its own connections |
//! | `policymaker` | that, and change policies and parameters of those vhosts |
//! | `monitoring` | that of `management`, and see all vhosts, connections and nodes |
//! | `administrator` | everything |
//!
//! A user with none of them may use nothing. Messages, queues and exchanges need AMQP's permissions
//! besides, whatever the tags.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leveret_broker::login::{Login as AskedLogin, Proof};
use leveret_broker::message::ConnectionId;
use leveret_server::login::Undecided;
use leveret_server::node::Node;
use leveret_topology::rights::{Admitted, Question, Rights};
use leveret_topology::{ExchangeId, ExchangeKind, Password, Permission, ResourceKind, Topology};
use zeroize::Zeroizing;

use super::App;
use super::answer::Fault;
use super::call::Peer;
use super::origin;

/// The operator's name in answers, as RabbitMQ has it for its own tool.
const OPERATOR: &str = "rmq-cli";

/// A user who has shown its password, or a token; or the operator.
#[derive(Clone, Debug)]
pub(crate) struct Login {
    pub(crate) name: String,
    pub(crate) tags: Vec<String>,
    /// What the node let in.
    pub(crate) admitted: Admitted,
    /// The vhosts that the user may open, if the names do not know.
    vhosts: Option<Vec<Box<str>>>,
    /// From where, for the audit log.
    peer: Peer,
}

impl Login {
    /// Who asks: the operator, or the user whose name and password or token the request brings, checked.
    pub(crate) async fn of(
        headers: &HeaderMap,
        node: &Arc<Node>,
        peer: Peer,
    ) -> Result<Self, Fault> {
        match peer {
            Peer::Network(peer) => Self::of_network(headers, node, peer).await,
            Peer::Local { .. } | Peer::OtherNode => {
                let admitted = Admitted::operator(OPERATOR);
                let (name, tags) = (admitted.user.to_string(), admitted.tags.clone());
                Ok(Self { name, tags, admitted, vhosts: None, peer })
            }
        }
    }

    /// The same for a request to the management API, which can be told to take tokens alone.
    pub(super) async fn of_request(
        headers: &HeaderMap,
        app: &App,
        peer: Peer,
    ) -> Result<Self, Fault> {
        let has_password =
            matches!(peer, Peer::Network(_)) && scheme(headers).is_some_and(is_basic);
        if app.options.disable_basic_auth && has_password {
            return Err(Fault::no_passwords());
        }
        Self::of(headers, &app.ops.node, peer).await
    }

    /// Whether it is whoever can open the control socket: no user of the broker, who needs no permissions.
    pub(crate) fn is_operator(&self) -> bool {
        self.admitted.is_operator
    }

    async fn of_network(
        headers: &HeaderMap,
        node: &Arc<Node>,
        peer: SocketAddr,
    ) -> Result<Self, Fault> {
        let (name, password) = credentials(headers).ok_or_else(Fault::login)?;
        let asked = AskedLogin {
            connection: ConnectionId::NOBODY,
            user: name.as_str().into(),
            proof: Proof::Password(password),
            peer: peer.to_string(),
            connection_name: None,
            mechanism: "Basic",
            protocol: "http",
            barred: None,
            // Every request brings name and password.
            is_repeated: true,
        };
        let decided = node.logins.check(node, asked).await;
        let admitted = decided.map_err(|why| match why {
            Undecided::Stopping => Fault::unavailable(why.to_string()),
            Undecided::Full => Fault::busy(why.to_string()),
        })?;
        let admitted = admitted.ok_or_else(Fault::wrong_password)?;
        let name = admitted.user.to_string();
        let mut tags = admitted.tags.clone();
        if admitted.rights.is_none() {
            let known = node.topology().user(&name).map(|user| user.tags.clone());
            tags.extend(known.ok_or_else(Fault::wrong_password)?);
        }
        let mut login = Self { name, tags, admitted, vhosts: None, peer: Peer::Network(peer) };
        let is_loopback =
            peer.ip().to_canonical().is_loopback() && !origin::may_be_rebound(headers);
        let is_barred = !is_loopback && node.settings.loopback_users.contains(&login.name);
        login.must(!is_barred, "User can only log in via localhost")?;
        let tags = ["administrator", "monitoring", "policymaker", "management"];
        login.must(login.has_any(&tags), "Not management user")?;
        login.find_vhosts(node).await;
        Ok(login)
    }

    /// Has who keeps the user say which vhosts it may open.
    async fn find_vhosts(&mut self, node: &Node) {
        let Some(rights) = &self.admitted.rights else { return };
        let all: Vec<Box<str>> = node.topology().vhosts().map(|it| (*it.name).into()).collect();
        let mut open = Vec::new();
        for vhost in all {
            let question = Question::Vhost(vhost.clone());
            // Administrators see all of them anyway.
            if rights.decide(&question).is_none() && self.is_admin() {
                continue;
            }
            if is_allowed(&**rights, &question).await {
                open.push(vhost);
            }
        }
        self.vhosts = Some(open);
    }

    /// Whether the user may open a vhost.
    pub(crate) fn enters(&self, topology: &Topology, vhost: &str) -> bool {
        match &self.vhosts {
            None => topology.check_vhost_access(&self.name, vhost).is_ok(),
            Some(open) => open.iter().any(|own| **own == *vhost),
        }
    }

    fn has_any(&self, tags: &[&str]) -> bool {
        self.tags.iter().any(|own| tags.contains(&own.as_str()))
    }

    pub(crate) fn is_admin(&self) -> bool {
        self.has_any(&["administrator"])
    }

    pub(crate) fn is_monitor(&self) -> bool {
        self.has_any(&["administrator", "monitoring"])
    }

    pub(crate) fn is_policymaker(&self) -> bool {
        self.has_any(&["administrator", "policymaker"])
    }

    /// Refuses all but administrators.
    pub(crate) fn must_admin(&self) -> Result<(), Fault> {
        self.must(self.is_admin(), "Not administrator user")
    }

    /// Refuses who may not see the whole node.
    pub(crate) fn must_monitor(&self) -> Result<(), Fault> {
        self.must(self.is_monitor(), "Not monitor user")
    }

    /// Refuses who may not change what concerns all vhosts.
    pub(crate) fn must_policymaker(&self) -> Result<(), Fault> {
        self.must(self.is_policymaker(), "User not authorised to access object")
    }

    fn must(&self, may: bool, reason: &str) -> Result<(), Fault> {
        if may {
            return Ok(());
        }
        let (user, peer) = (self.name.as_str(), self.peer.to_string());
        tracing::warn!(target: "audit", user, peer, why = reason, "audit: HTTP access denied");
        Err(Fault::forbidden(reason))
    }

    /// Refuses who has no permissions in a vhost. One that does not exist is everybody's: 404 follows.
    ///
    /// Like the others it tells the audit log when the names are not held: writing a line may take long.
    pub(crate) fn must_enter(&self, node: &Node, vhost: &str) -> Result<(), Fault> {
        let may = {
            let topology = node.topology();
            self.is_admin() || topology.vhost(vhost).is_none() || self.enters(&topology, vhost)
        };
        self.must(may, "User not authorised to access virtual host")
    }

    /// As [`must_enter`](Self::must_enter), but monitoring users see every vhost.
    pub(crate) fn must_see(&self, node: &Node, vhost: &str) -> Result<(), Fault> {
        if self.is_monitor() { Ok(()) } else { self.must_enter(node, vhost) }
    }

    /// Refuses who may not change policies and parameters of a vhost.
    pub(crate) fn must_set_policies(&self, node: &Node, vhost: &str) -> Result<(), Fault> {
        let enters = {
            let topology = node.topology();
            topology.vhost(vhost).is_none() || self.enters(&topology, vhost)
        };
        let may = self.is_admin() || self.is_policymaker() && enters;
        self.must(may, "User not authorised to access object")
    }

    /// Refuses who has not the permission that AMQP asks for, with its words.
    pub(crate) async fn must_have(
        &self,
        node: &Node,
        vhost: &str,
        permission: Permission,
        kind: ResourceKind,
        name: &str,
    ) -> Result<(), Fault> {
        if self.is_operator() {
            return Ok(());
        }
        let refused = match &self.admitted.rights {
            None => {
                let topology = node.topology();
                let vhost = topology.vhost(vhost).ok_or_else(Fault::not_found)?.id;
                topology.check_access(&self.name, vhost, permission, kind, name).err()
            }
            Some(rights) => {
                let question = Question::resource(vhost, kind, name, permission);
                (!is_allowed(&**rights, &question).await).then(|| question.refusal(&self.name))
            }
        };
        refused.map_or(Ok(()), |refused| self.must(false, &refused.to_string()))
    }

    /// Whether it may write to or read from an exchange with this key. One that is gone is everybody's.
    pub(crate) async fn may_use_key(
        &self,
        node: &Node,
        exchange: ExchangeId,
        permission: Permission,
        key: &str,
    ) -> bool {
        let (rights, question) = {
            let topology = node.topology();
            let Some(exchange) = topology.exchange_by_id(exchange) else { return true };
            match &self.admitted.rights {
                None => {
                    return topology.check_topic_permission(&self.name, exchange, permission, key);
                }
                Some(_) if exchange.kind != ExchangeKind::Topic => return true,
                Some(rights) => {
                    let vhost =
                        topology.vhost_by_id(exchange.vhost).map_or("", |vhost| &*vhost.name);
                    (rights, Question::topic(vhost, &exchange.name, permission, key))
                }
            }
        };
        is_allowed(&**rights, &question).await
    }

    /// Refuses who may not see something of `owner`'s.
    pub(crate) fn must_be(&self, owner: &str, closes: bool) -> Result<(), Fault> {
        let may = if closes { self.is_admin() } else { self.is_monitor() };
        self.must(may || self.name == owner, "User not authorised to access object")
    }

    /// Whether lists show what is in a vhost: administrators' all, others' where they have permissions.
    pub(crate) fn lists(&self, topology: &Topology, vhost: &str) -> bool {
        self.is_admin() || self.enters(topology, vhost)
    }
}

/// Whether a user who is kept elsewhere may. Who cannot be asked has refused.
pub(super) async fn is_allowed(rights: &dyn Rights, question: &Question) -> bool {
    let decision = match rights.decide(question) {
        Some(decision) => decision,
        None => rights.ask(question).await,
    };
    decision.is_allowed()
}

/// The scheme of the credentials, and the credentials.
fn scheme(headers: &HeaderMap) -> Option<(&str, &str)> {
    headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')
}

fn is_basic((scheme, _): (&str, &str)) -> bool {
    scheme.eq_ignore_ascii_case("basic")
}

/// Name and password, or a token, which says itself whose it is.
fn credentials(headers: &HeaderMap) -> Option<(String, Password)> {
    let (scheme, rest) = scheme(headers)?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some((String::new(), Password::new(rest.trim())));
    }
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = Zeroizing::new(STANDARD.decode(rest.trim()).ok()?);
    let (name, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((name.to_owned(), Password::new(password)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn headers() {
        check("Basic Z3Vlc3Q6Z3Vlc3Q=",     Some(("guest", "guest")));
        check("basic Z3Vlc3Q6Z3Vlc3Q=",     Some(("guest", "guest")));
        check("Basic YTpiOmM=",             Some(("a", "b:c")));
        check("Basic Z3Vlc3Q=",             None);
        check("Basic ***",                  None);
        check("Basic",                      None);
        check("Bearer abc",                 Some(("", "abc")));
        check("Digest abc",                 None);
        check("",                           None);
    }

    #[track_caller]
    fn check(text: &str, want: Option<(&str, &str)>) {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, text.parse().unwrap());
        let want = want.map(|(name, password)| (name.to_owned(), Password::new(password)));
        assert_eq!(credentials(&headers), want, "{text}");
    }
}
