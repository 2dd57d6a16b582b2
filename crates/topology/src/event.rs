//! What happens to a node, told as RabbitMQ's event exchange tells it.
//!
//! An event is a routing key and facts, which become the headers of a message. Changes of names are noted
//! here where they happen, so that an import, a cascade and a single command tell the same; sessions, shards
//! and the server add theirs. Nothing is noted while nobody [wants](Topology::wants_events) events.

use std::borrow::Cow;

use leveret_amqp::table::{Table, Value};
use serde::{Deserialize, Serialize};

use crate::binding::{Binding, Target};
use crate::connection::ConnectionId;
use crate::exchange::{Exchange, ExchangeKind, ExchangeSpec};
use crate::id::{ExchangeId, QueueId, VhostId};
use crate::policy::Policy;
use crate::queue::Queue;
use crate::topology::Topology;
use crate::value::{table_bytes, table_from_json};

/// Where events are published, in one vhost of the node.
pub const EVENT_EXCHANGE: &str = "amq.rabbitmq.event";

/// Who did it when it was the broker itself.
const INTERNAL_USER: &str = "rmq-internal";

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// The routing key: `queue.created`, ...
    pub name: Cow<'static, str>,
    /// What is to be known of it.
    #[serde(with = "table_bytes")]
    pub facts: Table,
}

impl Event {
    /// With no facts yet.
    pub const fn new(name: &'static str) -> Self {
        Self { name: Cow::Borrowed(name), facts: Table::new() }
    }

    /// With one more fact.
    #[must_use]
    pub fn with(mut self, fact: &str, value: impl Into<Value>) -> Self {
        self.facts.push(fact, value);
        self
    }

    /// Done by this user; by the broker itself when the name is empty.
    #[must_use]
    pub fn by(self, user: &str) -> Self {
        self.with("user_who_performed_action", acting_user(user))
    }
}

/// Who wants events, and those that no turn has taken yet.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// The name of the exchange's vhost, which need not be there.
    vhost: Box<str>,
    exchange: Option<ExchangeId>,
    /// Somebody keeps them all.
    are_kept: bool,
    node: Box<str>,
    noted: Vec<Event>,
}

impl Topology {
    /// From now on events are told to whoever binds to the event exchange of `vhost`. It is made if it is not there: now, or
    /// with its vhost, as definitions may bind to it. `node` is the node's name.
    pub fn open_events(&mut self, node: &str, vhost: &str) {
        (self.events.node, self.events.vhost) = (node.into(), vhost.into());
        if let Some(id) = self.vhost(vhost).map(|vhost| vhost.id) {
            self.event_exchange_for(id, vhost);
        }
    }

    /// Events go to an exchange in this vhost, if it is the one for them.
    pub(crate) fn event_exchange_for(&mut self, vhost: VhostId, name: &str) {
        if *self.events.vhost == *name {
            let found = self.exchange(vhost, EVENT_EXCHANGE).map(|exchange| exchange.id);
            self.events.exchange = Some(found.unwrap_or_else(|| self.create_event_exchange(vhost)));
        }
    }

    /// Whether this is the name of the event exchange, which its vhost has from the beginning.
    pub(crate) fn is_event_exchange(&self, vhost: &str, name: &str) -> bool {
        *self.events.vhost == *vhost && name == EVENT_EXCHANGE
    }

    /// Somebody keeps all events from now on.
    pub fn keep_events(&mut self) {
        self.events.are_kept = true;
    }

    /// All events are told to somebody who keeps and publishes them: this is a copy of the names, at this node.
    pub fn pass_events_on(&mut self, node: &str) {
        self.events.node = node.into();
        self.keep_events();
    }

    fn create_event_exchange(&mut self, vhost: VhostId) -> ExchangeId {
        let spec = ExchangeSpec {
            vhost,
            name: EVENT_EXCHANGE,
            kind: ExchangeKind::Topic.name(),
            durable: true,
            auto_delete: false,
            internal: true,
            arguments: Table::new(),
        };
        self.create_exchange(spec, ExchangeKind::Topic)
    }

    /// The event exchange, if something is bound to it.
    pub fn event_exchange(&self) -> Option<&Exchange> {
        self.exchange_by_id(self.events.exchange?).filter(|exchange| exchange.is_used())
    }

    /// Whether somebody keeps all events.
    pub fn keeps_events(&self) -> bool {
        self.events.are_kept
    }

    /// Whether an event is told to anybody.
    #[inline]
    pub fn wants_events(&self) -> bool {
        self.events.are_kept || self.event_exchange().is_some()
    }

    /// The node's name, as events have it.
    pub fn event_node(&self) -> &str {
        &self.events.node
    }

    /// What was noted since it was last taken.
    pub fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events.noted)
    }

    /// Notes an event, if somebody wants it.
    pub(crate) fn tell(&mut self, event: impl FnOnce(&Self) -> Event) {
        if self.wants_events() {
            let event = event(self);
            self.events.noted.push(event);
        }
    }

    /// How many events nobody has taken.
    pub(crate) fn events_told(&self) -> usize {
        self.events.noted.len()
    }

    /// Nobody is told of those behind so many.
    pub(crate) fn forget_events_from(&mut self, count: usize) {
        self.events.noted.truncate(count);
    }

    pub(crate) fn tell_queue_created(&mut self, id: QueueId) {
        self.tell(|all| {
            let Some(queue) = all.queue_by_id(id) else { return Event::new("queue.created") };
            let node = all.event_node();
            let owner = queue.exclusive_owner.map(ConnectionId::pid).unwrap_or_default();
            all.about_queue("queue.created", queue)
                .with("durable", queue.durable)
                .with("auto_delete", queue.auto_delete)
                .with("exclusive", queue.exclusive_owner.is_some())
                .with("owner_pid", &*owner)
                .with("arguments", queue.arguments.clone())
                .with("leader", node)
                .with("members", Value::Array(vec![node.into()]))
        });
    }

    pub(crate) fn tell_queue_deleted(&mut self, queue: &Queue) {
        self.tell(|all| all.about_queue("queue.deleted", queue));
    }

    fn about_queue(&self, name: &'static str, queue: &Queue) -> Event {
        Event::new(name)
            .with("name", &*queue.name)
            .with("vhost", self.vhost_name(queue.vhost))
            .with("type", queue.kind.module())
    }

    pub(crate) fn tell_exchange_created(&mut self, id: ExchangeId) {
        self.tell(|all| {
            let Some(exchange) = all.exchange_by_id(id) else {
                return Event::new("exchange.created");
            };
            Event::new("exchange.created")
                .with("name", &*exchange.name)
                .with("vhost", all.vhost_name(exchange.vhost))
                .with("type", exchange.kind.name())
                .with("durable", exchange.durable)
                .with("auto_delete", exchange.auto_delete)
                .with("internal", exchange.internal)
                .with("arguments", exchange.arguments.clone())
                .with("policy", exchange.policy().unwrap_or_default())
        });
    }

    pub(crate) fn tell_exchange_deleted(&mut self, exchange: &Exchange) {
        self.tell(|all| {
            Event::new("exchange.deleted")
                .with("name", &*exchange.name)
                .with("vhost", all.vhost_name(exchange.vhost))
        });
    }

    /// `taken` is the name of an end that was taken out of its table already.
    pub(crate) fn tell_binding(
        &mut self,
        name: &'static str,
        binding: &Binding,
        taken: Option<&str>,
    ) {
        self.tell(|all| {
            let source = all.exchanges.get(&binding.source);
            let (kind, target) = match binding.target {
                Target::Queue(id) => {
                    ("queue", all.queues.get(&id).map(|queue| (&*queue.name, queue.vhost)))
                }
                Target::Exchange(id) => {
                    ("exchange", all.exchanges.get(&id).map(|it| (&*it.name, it.vhost)))
                }
            };
            let source = source.map(|exchange| (&*exchange.name, exchange.vhost));
            let name_of = |end: Option<(&'_ str, VhostId)>| match end {
                Some((name, _)) => Value::from(name),
                None => taken.unwrap_or_default().into(),
            };
            let vhost = source.or(target).map_or("", |(_, vhost)| all.vhost_name(vhost));
            Event::new(name)
                .with("source_name", name_of(source))
                .with("source_kind", "exchange")
                .with("destination_name", name_of(target))
                .with("destination_kind", kind)
                .with("routing_key", &*binding.key)
                .with("arguments", binding.arguments.clone())
                .with("vhost", vhost)
        });
    }

    /// `vhost.created` or `vhost.updated`.
    pub(crate) fn tell_vhost(&mut self, name: &'static str, id: VhostId) {
        self.tell(|all| {
            let Some(vhost) = all.vhost_by_id(id) else { return Event::new(name) };
            let kind = vhost.default_queue_type.map_or("classic", |kind| kind.name());
            let mut state = Table::new();
            state.push(all.event_node(), "running");
            let mut metadata = Table::new();
            metadata.push("description", &*vhost.description);
            metadata.push("tags", texts(&vhost.tags));
            Event::new(name)
                .with("name", &*vhost.name)
                .with("description", &*vhost.description)
                .with("tags", texts(&vhost.tags))
                .with("metadata", metadata)
                .with("default_queue_type", kind)
                .with("cluster_state", state)
                .with("tracing", vhost.is_traced)
        });
    }

    /// The vhost went, after all that was in it.
    pub(crate) fn tell_vhost_gone(&mut self, name: &str) {
        self.tell(|_| Event::new("vhost.deleted").with("name", name));
    }

    /// The vhost is about to go, and all that is in it.
    pub(crate) fn tell_vhost_deleted(&mut self, name: &str) {
        let Some(vhost) = self.vhost(name).filter(|_| self.wants_events()) else { return };
        let queues = self.queues(vhost.id).into_iter();
        let queues = queues.map(|queue| self.about_queue("queue.deleted", queue));
        let exchanges = self.exchanges(vhost.id).into_iter();
        let exchanges = exchanges.map(|it| named("exchange.deleted", &it.name, name));
        let gone = [Event::new("vhost.deleted").with("name", name)];
        let events: Vec<_> = queues.chain(exchanges).chain(gone).collect();
        self.events.noted.extend(events);
    }

    /// What a policy that was set, or cleared, means for queues.
    pub(crate) fn tell_policy_of_queues(&mut self, set: Option<&Policy>, queues: &[QueueId]) {
        match set {
            Some(policy) => {
                self.tell_of_queues("queue.policy.updated", queues, |it| about_policy(policy, it));
            }
            None => self.tell_of_queues("queue.policy.cleared", queues, |event| event),
        }
    }

    /// `policy.set`.
    pub(crate) fn tell_policy_set(&mut self, vhost: VhostId, policy: &Policy) {
        let event = |all: &Self| named("policy.set", &policy.name, all.vhost_name(vhost));
        self.tell(|all| about_policy(policy, event(all)));
    }

    /// `policy.cleared` or `operator.policy.cleared`.
    pub(crate) fn tell_policy_cleared(&mut self, event: &'static str, vhost: VhostId, name: &str) {
        self.tell(|all| named(event, name, all.vhost_name(vhost)));
    }

    fn tell_of_queues(
        &mut self,
        name: &'static str,
        queues: &[QueueId],
        about: impl Fn(Event) -> Event,
    ) {
        if !self.wants_events() {
            return;
        }
        for &id in queues {
            let queue = self.queue_by_id(id);
            let event = queue.map(|queue| about(self.about_queue(name, queue)));
            self.events.noted.extend(event);
        }
    }

    /// A parameter of a vhost, or of the whole cluster, was set or cleared. Its value is not told: the API shows it to those alone
    /// who may set it, and events are for whoever may read from their exchange.
    pub(crate) fn tell_parameter(
        &mut self,
        event: &'static str,
        vhost: Option<VhostId>,
        component: &str,
        name: &str,
    ) {
        self.tell(|all| {
            let event = Event::new(event).with("component", component).with("name", name);
            match vhost {
                Some(vhost) => event.with("vhost", all.vhost_name(vhost)),
                None => event,
            }
        });
    }

    pub(crate) fn tell_tags(&mut self, user: &str, tags: &[impl AsRef<str>]) {
        self.tell(|_| Event::new("user.tags.set").with("name", user).with("tags", texts(tags)));
    }

    /// Limits of a vhost or a user were set; `about` names it.
    pub(crate) fn tell_limits(
        &mut self,
        (set, cleared): (&'static str, &'static str),
        (about, whose): (&str, &str),
        limits: &std::collections::BTreeMap<String, i64>,
    ) {
        self.tell(|_| {
            let name = if limits.is_empty() { cleared } else { set };
            let event = Event::new(name).with("name", "limits").with(about, whose);
            limits.iter().fold(event, |event, (name, &limit)| event.with(name, limit))
        });
    }
}

fn about_policy(policy: &Policy, event: Event) -> Event {
    event
        .with("pattern", policy.pattern.text())
        .with("definition", table_from_json(&policy.definition))
        .with("priority", policy.priority)
        .with("apply-to", policy.apply_to.name())
}

/// A user as those are named who do something: the broker itself has an empty name.
pub(crate) fn acting_user(user: &str) -> &str {
    if user.is_empty() { INTERNAL_USER } else { user }
}

/// Something in a vhost.
fn named(event: &'static str, name: &str, vhost: &str) -> Event {
    Event::new(event).with("name", name).with("vhost", vhost)
}

/// What a user may do in a vhost.
pub(crate) fn about_permission(event: &'static str, user: &str, vhost: &str) -> Event {
    Event::new(event).with("user", user).with("vhost", vhost)
}

fn texts<T: AsRef<str>>(all: &[T]) -> Value {
    Value::Array(all.iter().map(|text| text.as_ref().into()).collect())
}
