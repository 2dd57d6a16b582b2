//! A vhost: names to ids, policies, parameters.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use serde_json::Value as Json;

use crate::id::{ExchangeId, QueueId, VhostId};
use crate::policy::Policy;
use crate::queue::QueueKind;
use crate::rate::Buckets;
use crate::usage::Count;
use crate::weight::Weigh;

/// A virtual host.
#[derive(Debug)]
pub struct Vhost {
    /// Never used twice.
    pub id: VhostId,
    /// Its name.
    pub name: Arc<str>,
    /// For people.
    pub description: String,
    /// For people.
    pub tags: Vec<String>,
    /// What a queue without `x-queue-type` is, where it can be.
    pub default_queue_type: Option<QueueKind>,
    /// It is not deleted.
    pub is_protected: bool,
    /// It is deleted, and what is in it goes one after the other: only who does that sees it.
    pub(crate) is_going: bool,
    /// The exchange named "".
    pub default_exchange: ExchangeId,
    pub(crate) queues: HashMap<Arc<str>, QueueId, FixedState>,
    pub(crate) exchanges: HashMap<Arc<str>, ExchangeId, FixedState>,
    pub(crate) policies: BTreeMap<Box<str>, Arc<Policy>>,
    pub(crate) operator_policies: BTreeMap<Box<str>, Arc<Policy>>,
    /// By component and name.
    pub(crate) parameters: BTreeMap<(Box<str>, Box<str>), Json>,
    pub(crate) limits: BTreeMap<String, i64>,
    /// Copies of its messages go to `amq.rabbitmq.trace`. Not kept over a restart, as in RabbitMQ.
    pub is_traced: bool,
    pub(crate) connections: Count,
    pub(crate) rates: Buckets,
}

impl Vhost {
    /// Bytes of its policies and parameters.
    pub(crate) fn settings_weight(&self) -> u64 {
        let policies = self.policies.values().chain(self.operator_policies.values());
        let parameters = self.parameters.values().map(Weigh::weight).sum::<u64>();
        policies.map(|policy| policy.weight()).sum::<u64>() + parameters
    }

    /// With nothing in it: the exchange named "" is still to be made.
    pub(crate) fn new(id: VhostId, name: Arc<str>) -> Self {
        Self {
            id,
            name,
            description: String::new(),
            tags: Vec::new(),
            default_queue_type: None,
            is_protected: false,
            is_going: false,
            default_exchange: ExchangeId::new(u64::MAX),
            queues: HashMap::default(),
            exchanges: HashMap::default(),
            policies: BTreeMap::new(),
            operator_policies: BTreeMap::new(),
            parameters: BTreeMap::new(),
            limits: BTreeMap::new(),
            is_traced: false,
            connections: Count::default(),
            rates: Buckets::default(),
        }
    }

    /// The queue of this name. Hot: the default exchange.
    #[inline]
    pub fn queue_id(&self, name: &str) -> Option<QueueId> {
        self.queues.get(name).copied()
    }

    /// The exchange of this name.
    pub fn exchange_id(&self, name: &str) -> Option<ExchangeId> {
        self.exchanges.get(name).copied()
    }

    /// How many queues it has.
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// `max-connections`, unless there is no limit.
    pub fn max_connections(&self) -> Option<u64> {
        self.limit("max-connections")
    }

    /// `max-queues`, unless there is no limit.
    pub fn max_queues(&self) -> Option<u64> {
        self.limit("max-queues")
    }

    /// Its limits by name; a negative one is none.
    pub fn limits(&self) -> &BTreeMap<String, i64> {
        &self.limits
    }

    fn limit(&self, name: &str) -> Option<u64> {
        self.limits.get(name).and_then(|&limit| u64::try_from(limit).ok())
    }

    /// Its policies by name.
    pub fn policies(&self) -> impl Iterator<Item = &Policy> {
        self.policies.values().map(AsRef::as_ref)
    }

    /// Its operator policies by name.
    pub fn operator_policies(&self) -> impl Iterator<Item = &Policy> {
        self.operator_policies.values().map(AsRef::as_ref)
    }

    /// Its parameters: component, name, value.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &str, &Json)> {
        self.parameters
            .iter()
            .map(|((component, name), value)| (component.as_ref(), name.as_ref(), value))
    }
}

/// What went away with a vhost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedVhost {
    /// Its id.
    pub id: VhostId,
    /// All its queues.
    pub queues: Vec<QueueId>,
    /// All its exchanges.
    pub exchanges: Vec<ExchangeId>,
}
