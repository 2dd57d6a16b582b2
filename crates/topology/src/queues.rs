//! Declaring and removing queues.

use std::borrow::Cow;
use std::sync::Arc;

use leveret_amqp::table::{Table, Value};

use crate::arguments::{QUEUE_TYPE, known_arguments, queue_arguments};
use crate::binding::Removed;
use crate::connection::ConnectionId;
use crate::error::{AdminError, DeclareError, Locked, NotFound, ResourceKind, ResourceRef};
use crate::id::{GroupId, QueueId, VhostId};
use crate::journal::EntityKey;
use crate::policy::{self, Policies};
use crate::queue::{Declared, Queue, QueueKind, QueueSpec};
use crate::topology::{Topology, strip};
use crate::value;
use crate::weight;

/// What a name made by the server begins with, unless `x-name-prefix` says otherwise.
const NAME_PREFIX: &str = "amq.gen";
/// What the names of the queues of traces begin with, for which no policy holds: none sends copies of everything elsewhere, or
/// makes them fewer. Nobody but the node has such a name.
pub const TRACE_QUEUES: &str = "amq.gen-trace";
/// The longest `x-name-prefix` in bytes.
const NAME_PREFIX_MAX: usize = 64;
const NAME_PREFIX_ARGUMENT: &str = "x-name-prefix";

impl Topology {
    /// What a name made by the server for a queue with these arguments begins with: `amq.gen`, or
    /// `x-name-prefix`. Only classic queues have such names.
    pub fn server_name_prefix(arguments: &Table) -> Result<Cow<'_, str>, DeclareError> {
        if arguments.get(QUEUE_TYPE).and_then(Value::as_str) == Some("quorum") {
            return Err(DeclareError::ServerNamed { queue_type: QueueKind::Quorum.module() });
        }
        match arguments.get(NAME_PREFIX_ARGUMENT).and_then(Value::as_str) {
            Some(prefix) if prefix.len() > NAME_PREFIX_MAX => {
                Err(DeclareError::PrefixTooLong { prefix: strip(prefix).into_owned() })
            }
            Some(prefix) if strip(prefix).starts_with(TRACE_QUEUES) => {
                let name = strip(prefix).into_owned();
                Err(DeclareError::ReservedName { kind: ResourceKind::Queue, name })
            }
            Some(prefix) if !prefix.is_empty() => Ok(strip(prefix)),
            _ => Ok(Cow::Borrowed(NAME_PREFIX)),
        }
    }

    /// `queue.declare`: creates it, or checks that it is the same.
    pub fn declare_queue(&mut self, spec: QueueSpec<'_>) -> Result<Declared, DeclareError> {
        let name = strip(spec.name);
        if !spec.server_named && name.starts_with("amq.") {
            let (kind, name) = (ResourceKind::Queue, name.into_owned());
            return Err(DeclareError::ReservedName { kind, name });
        }
        let Some(vhost) = self.vhost_by_id(spec.vhost) else {
            return Err(DeclareError::NoVhost(spec.vhost.to_string()));
        };
        let mut spec = QueueSpec { name: &name, ..spec };
        spec.durable &= spec.exclusive_owner.is_none();
        spec.arguments.remove(NAME_PREFIX_ARGUMENT);
        if let Some(kind) = vhost.default_queue_type
            && spec.arguments.get(QUEUE_TYPE).is_none()
        {
            let fits = kind == QueueKind::Classic
                || (spec.durable && !spec.auto_delete && !spec.server_named);
            let kind = if fits { kind } else { QueueKind::Classic };
            spec.arguments.set(QUEUE_TYPE, kind.name());
        }
        if let Some(queue) = self.queue(spec.vhost, &name) {
            self.queue_equivalent(queue, &spec)?;
            return Ok(Declared { id: queue.id, created: false });
        }
        let kind = queue_arguments(&spec, &vhost.name)?;
        if let Some(limit) = vhost.max_queues()
            && vhost.queue_count() as u64 >= limit
        {
            let vhost = vhost.name.as_ref().to_owned();
            return Err(DeclareError::QueueLimit { name: name.into_owned(), vhost, limit });
        }
        if let Some(limit) = self.defaults.queues_max
            && self.queue_count() as u64 >= limit
        {
            return Err(DeclareError::ClusterQueueLimit { name: name.into_owned(), limit });
        }
        self.check_room(weight::named(spec.name, &spec.arguments))?;
        Ok(Declared { id: self.create_queue(spec, kind), created: true })
    }

    /// Refuses a queue that does not exist or belongs to another connection: `queue.declare` with
    /// `passive`, and whatever else names a queue.
    pub fn existing_queue(
        &self,
        vhost: VhostId,
        name: &str,
        connection: ConnectionId,
    ) -> Result<&Queue, QueueAccessError> {
        let name = strip(name);
        let queue = self
            .queue(vhost, &name)
            .ok_or_else(|| NotFound(ResourceRef::queue(&name, self.vhost_name(vhost))))?;
        queue.check_exclusive(connection, self.vhost_name(vhost))?;
        Ok(queue)
    }

    /// The first difference in RabbitMQ's order: owner, durable, auto-delete, arguments.
    fn queue_equivalent(&self, queue: &Queue, spec: &QueueSpec<'_>) -> Result<(), DeclareError> {
        let resource = || ResourceRef::queue(&queue.name, self.vhost_name(queue.vhost));
        if queue.exclusive_owner != spec.exclusive_owner {
            return Err(Locked { queue: resource() }.into());
        }
        let different = |arg: &str, received: String, current: String| {
            Err(DeclareError::Inequivalent {
                resource: resource(),
                arg: arg.to_owned(),
                received,
                current,
            })
        };
        let flags = [
            ("durable", queue.durable, spec.durable),
            ("auto_delete", queue.auto_delete, spec.auto_delete),
        ];
        for (name, current, received) in flags {
            if current != received {
                return different(name, format!("'{received}'"), format!("'{current}'"));
            }
        }
        // Clients go on with the arguments they know after an operator changed them.
        let is_declared =
            |declared: &Table| difference(queue.kind, declared, &spec.arguments).is_none();
        if queue.declared.as_deref().is_some_and(is_declared) {
            return Ok(());
        }
        match difference(queue.kind, &queue.arguments, &spec.arguments) {
            Some((name, received, current)) => different(name, received, current),
            None => Ok(()),
        }
    }

    fn create_queue(&mut self, spec: QueueSpec<'_>, kind: QueueKind) -> QueueId {
        let id = QueueId::new(self.next_queue);
        self.next_queue += 1;
        self.journal.note_as(EntityKey::Queue(id), spec.durable);
        if !spec.durable {
            self.note_id_used();
        }
        self.insert_queue(id, self.homes.choose(id), spec, kind);
        self.tell_queue_created(id);
        id
    }

    /// The id and the name are free, the vhost exists.
    pub(crate) fn insert_queue(
        &mut self,
        id: QueueId,
        home: GroupId,
        spec: QueueSpec<'_>,
        kind: QueueKind,
    ) {
        let name: Arc<str> = spec.name.into();
        let mut policies = Policies::default();
        if let Some(vhost) = self.vhosts.get_mut(&spec.vhost) {
            let mut effort = vhost.effort();
            policies = policy::of_queue(vhost, &name, kind, &mut effort);
            vhost.queues.insert(Arc::clone(&name), id);
            self.matching.count(vhost, effort);
        }
        if let Some(owner) = spec.exclusive_owner {
            self.owned.entry(owner).or_default().insert(id);
        }
        let queue = Queue {
            id,
            home,
            vhost: spec.vhost,
            name,
            durable: spec.durable,
            auto_delete: spec.auto_delete,
            exclusive_owner: spec.exclusive_owner,
            kind,
            arguments: spec.arguments,
            declared: None,
            declared_by: Arc::default(),
            paused: false,
            is_going: false,
            policies,
            incoming: Vec::new(),
        };
        self.queues.insert(id, Box::new(queue));
        // The default exchange has a route that it did not have.
        self.generation += 1;
    }

    /// Notes who declared a queue, before anything else is made of it.
    pub fn queue_declared_by(&mut self, id: QueueId, user: &str) {
        let user = self.shared_user(user);
        if let Some(queue) = self.queues.get_mut(&id) {
            queue.declared_by = user;
            let is_durable = queue.durable;
            self.journal.note_as(EntityKey::Queue(id), is_durable);
        }
    }

    /// A user's name to keep. One user declares most queues, one after the other: they share it.
    pub(crate) fn shared_user(&mut self, user: &str) -> Arc<str> {
        if *self.last_declared_by != *user {
            self.last_declared_by = user.into();
        }
        Arc::clone(&self.last_declared_by)
    }

    /// Has a queue give nobody anything, or go on. The queue, if that is a change.
    pub fn pause_queue(
        &mut self,
        vhost: &str,
        name: &str,
        paused: bool,
    ) -> Result<Option<QueueId>, AdminError> {
        let queue = self.queue_mut(vhost, name)?;
        let (id, is_durable) = (queue.id, queue.durable);
        if std::mem::replace(&mut queue.paused, paused) == paused {
            return Ok(None);
        }
        self.journal.note_as(EntityKey::Queue(id), is_durable);
        Ok(Some(id))
    }

    /// Changes arguments of a queue as it is: `set` is set, `remove` is removed, and without `keeps` all
    /// others, too. They hold at once. A declaration may name them, or those that the queue was declared with.
    pub fn set_queue_arguments(
        &mut self,
        vhost: &str,
        name: &str,
        change: ArgumentsChange,
    ) -> Result<QueueId, ArgumentsError> {
        let queue = self.queue_mut(vhost, name)?;
        let mut arguments = if change.keeps { queue.arguments.clone() } else { Table::new() };
        if let Some(kind) = queue.arguments.get(QUEUE_TYPE) {
            arguments.set(QUEUE_TYPE, kind.clone());
        }
        change.remove.iter().for_each(|key| drop(arguments.remove(key)));
        change.set.iter().for_each(|(key, value)| arguments.set(key, value.clone()));
        let spec = QueueSpec {
            vhost: queue.vhost,
            name,
            server_named: false,
            durable: queue.durable,
            auto_delete: queue.auto_delete,
            exclusive_owner: queue.exclusive_owner,
            arguments,
        };
        let kind = queue_arguments(&spec, vhost)?;
        if kind != queue.kind {
            return Err(ArgumentsError::Kind { is: queue.kind });
        }
        let (id, is_durable) = (queue.id, queue.durable);
        self.queues.change(&id, |queue| {
            let before = std::mem::replace(&mut queue.arguments, spec.arguments);
            let declared = queue.declared.take().map_or(before, |declared| *declared);
            queue.declared = (declared != queue.arguments).then(|| Box::new(declared));
        });
        self.journal.note_as(EntityKey::Queue(id), is_durable);
        Ok(id)
    }

    fn queue_mut(&mut self, vhost: &str, name: &str) -> Result<&mut Queue, AdminError> {
        let found = self.vhost_by_id(self.vhost_id(vhost)?).and_then(|it| it.queue_id(name));
        let queue = found.and_then(|id| self.queues.get_mut(&id));
        queue
            .map(AsMut::as_mut)
            .ok_or_else(|| AdminError::NoQueue { queue: name.to_owned(), vhost: vhost.to_owned() })
    }

    /// Removes a queue, its bindings, and auto-delete exchanges that these were the last ones of. One that
    /// does not exist removes nothing.
    pub fn remove_queue(&mut self, id: QueueId) -> Removed {
        let mut removed = Removed::default();
        let Some(queue) = self.queues.remove(&id) else { return removed };
        self.drop_incoming(&queue.incoming, &queue.name, &mut removed);
        if let Some(vhost) = self.vhost_mut(queue.vhost) {
            vhost.queues.remove(&queue.name);
        }
        self.disown(queue.exclusive_owner, id);
        self.tell_queue_deleted(&queue);
        self.journal.note_as(EntityKey::Queue(id), queue.durable);
        self.generation += 1;
        removed
    }

    /// The exclusive queues of a connection, oldest first.
    pub fn queues_owned_by(&self, connection: ConnectionId) -> Vec<QueueId> {
        self.owned.get(&connection).into_iter().flatten().copied().collect()
    }
}

/// The first argument in which two declarations differ, as received and as it is.
fn difference(
    kind: QueueKind,
    current: &Table,
    received: &Table,
) -> Option<(&'static str, String, String)> {
    known_arguments(kind).iter().find_map(|name| {
        let (received, current) = value::difference(name, current.get(name), received.get(name))?;
        Some((*name, received, current))
    })
}

/// A change of a queue's arguments.
#[derive(Clone, Debug)]
pub struct ArgumentsChange {
    /// Those that are not named stay.
    pub keeps: bool,
    /// These are as follows.
    pub set: Table,
    /// These go.
    pub remove: Vec<String>,
}

/// Why a queue's arguments were not changed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ArgumentsError {
    /// There is no such queue.
    #[error(transparent)]
    NotFound(#[from] AdminError),
    /// A declaration with them would be refused.
    #[error(transparent)]
    Invalid(#[from] DeclareError),
    /// A queue's type stays.
    #[error("the type of a queue cannot be changed while it is there: it is {is}")]
    Kind {
        /// Its type.
        is: QueueKind,
    },
}

/// Why a queue cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueAccessError {
    /// There is none.
    #[error(transparent)]
    NotFound(#[from] NotFound),
    /// It belongs to another connection.
    #[error(transparent)]
    Locked(#[from] Locked),
}

impl QueueAccessError {
    /// How the channel is closed.
    pub fn reply_code(&self) -> leveret_amqp::reply::ReplyCode {
        match self {
            Self::NotFound(error) => error.reply_code(),
            Self::Locked(error) => error.reply_code(),
        }
    }
}
