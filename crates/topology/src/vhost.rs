//! A vhost: names to ids, policies, parameters.

use std::collections::BTreeMap;
use std::sync::Arc;

use hashbrown::HashMap;
use serde_json::Value as Json;

use crate::binding::RemovedExchange;
use crate::hash::Keyed;
use crate::id::{ExchangeId, GroupId, QueueId, VhostId};
use crate::pattern::Effort;
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
    pub(crate) queues: HashMap<Arc<str>, QueueId, Keyed>,
    pub(crate) exchanges: HashMap<Arc<str>, ExchangeId, Keyed>,
    pub(crate) policies: BTreeMap<Box<str>, Arc<Policy>>,
    pub(crate) operator_policies: BTreeMap<Box<str>, Arc<Policy>>,
    /// By component and name.
    pub(crate) parameters: BTreeMap<(Box<str>, Box<str>), Json>,
    pub(crate) limits: BTreeMap<String, i64>,
    /// Copies of its messages go to `amq.rabbitmq.trace`. Not kept over a restart, as in RabbitMQ, but from one leader of a
    /// cluster to the next.
    pub is_traced: bool,
    pub(crate) connections: Count,
    pub(crate) rates: Buckets,
    /// Names that came and took a policy's pattern long, since such a pattern was last set or cleared.
    pub(crate) dear_names: u32,
    /// Of those that came after too many, names that were not matched to the end.
    pub(crate) unmatched_names: u32,
}

/// Names of a vhost, as they come, for which patterns may take many steps back. A restart matches all of them in one go.
const DEAR_NAMES_MAX: u32 = 256;

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
            dear_names: 0,
            unmatched_names: 0,
        }
    }

    /// What a name that comes may cost to match.
    pub(crate) fn effort(&self) -> Effort {
        Effort::new(self.dear_names < DEAR_NAMES_MAX)
    }

    /// How many names were not matched to the end with patterns that need backtracking, because too many before them had
    /// taken such a pattern long.
    pub fn unmatched_names(&self) -> u32 {
        self.unmatched_names
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

    /// Whether it has a policy, or an operator policy, of this name.
    pub(crate) fn has_policy(&self, name: &str, operator: bool) -> bool {
        let all = if operator { &self.operator_policies } else { &self.policies };
        all.contains_key(name)
    }

    /// Its parameters: component, name, value.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, &str, &Json)> {
        self.parameters
            .iter()
            .map(|((component, name), value)| (component.as_ref(), name.as_ref(), value))
    }
}

/// What matching new names with policies has cost.
#[derive(Debug, Default)]
pub(crate) struct Matching {
    /// In units of about a microsecond, since it was last asked.
    pub(crate) units: u64,
    /// A vhost in which too many names took too long, until somebody tells of it.
    pub(crate) exhausted: Option<Arc<str>>,
}

impl Matching {
    /// One name more was matched with all policies of a vhost.
    pub(crate) fn count(&mut self, vhost: &mut Vhost, effort: Effort) {
        self.units += effort.units;
        if effort.dear == 0 {
            return;
        }
        let could = vhost.effort().may_try();
        vhost.dear_names = vhost.dear_names.saturating_add(1);
        vhost.unmatched_names =
            vhost.unmatched_names.saturating_add(u32::from(!could && effort.gave_up));
        if could && !vhost.effort().may_try() {
            self.exhausted = Some(Arc::clone(&vhost.name));
        }
    }
}

/// What went away with a vhost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeletedVhost {
    /// Its id.
    pub id: VhostId,
    /// All its queues, with their homes.
    pub queues: Vec<(QueueId, GroupId)>,
    /// All its exchanges.
    pub exchanges: Vec<RemovedExchange>,
}
