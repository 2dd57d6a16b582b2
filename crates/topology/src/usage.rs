//! How many connections and channels there are, for the limits of vhosts, users and the node.
//!
//! A connection or a channel takes a [`CountedUse`] when it opens and drops it when it ends, however it ends:
//! so the count is exact without anybody telling it. Many threads take them while they only read the
//! topology; of two that race for the last one below a limit one gets it.
//!
//! Where several nodes have sessions each counts its own, and is told what the others counted ([`set_uses_elsewhere`]). What has a
//! limit is [watched](UseWatch), so that they hear of it soon; what has none costs nothing.
//!
//! [`set_uses_elsewhere`]: Topology::set_uses_elsewhere

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::AccessError;
use crate::id::VhostId;
use crate::topology::Topology;

/// Who has connections and channels that may be limited.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsedBy {
    /// A vhost.
    Vhost(VhostId),
    /// A user.
    User(Box<str>),
}

/// How many somebody has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Uses {
    /// Connections.
    pub connections: u64,
    /// Channels; of vhosts none are counted.
    pub channels: u64,
}

impl std::ops::AddAssign for Uses {
    fn add_assign(&mut self, other: Self) {
        self.connections = self.connections.saturating_add(other.connections);
        self.channels = self.channels.saturating_add(other.channels);
    }
}

/// Whose counts have changed, of those that have limits.
pub struct UseWatch {
    changed: Mutex<BTreeSet<UsedBy>>,
    /// Called when somebody is changed and nobody was. It waits for nothing.
    wake: Box<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for UseWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UseWatch").field("changed", &self.changed).finish_non_exhaustive()
    }
}

impl UseWatch {
    /// Of nobody yet; `wake` is called when there is something to [take](Self::take).
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { changed: Mutex::default(), wake: Box::new(wake) }
    }

    /// Somebody's count may be another one, or be of interest now.
    pub fn note(&self, by: &UsedBy) {
        {
            let mut changed = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
            if changed.contains(by) {
                return;
            }
            changed.insert(by.clone());
        }
        (self.wake)();
    }

    /// Those that were noted. What changes from now on is noted anew.
    pub fn take(&self) -> BTreeSet<UsedBy> {
        std::mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// How many there are of something.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    here: AtomicU64,
    /// At other nodes, as far as is known.
    elsewhere: AtomicU64,
    watched: OnceLock<(Arc<UseWatch>, UsedBy)>,
}

impl Counts {
    fn note(&self) {
        if let Some((watch, by)) = self.watched.get() {
            watch.note(by);
        }
    }
}

impl Count {
    /// One more, unless that is over the limit.
    fn take(&self, limit: Option<u64>) -> Option<CountedUse> {
        let elsewhere = self.0.elsewhere.load(Ordering::Relaxed);
        let is_below =
            |count: u64| limit.is_none_or(|limit| count.saturating_add(elsewhere) < limit);
        let add = |count| is_below(count).then_some(count + 1);
        let taken = self.0.here.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        taken.ok()?;
        self.0.note();
        Some(CountedUse(Arc::clone(&self.0)))
    }

    fn watch(&self, watch: &Arc<UseWatch>, by: &UsedBy) {
        self.0.watched.get_or_init(|| (Arc::clone(watch), by.clone()));
    }

    fn here(&self) -> u64 {
        self.0.here.load(Ordering::Relaxed)
    }

    fn set_elsewhere(&self, count: u64) {
        self.0.elsewhere.store(count, Ordering::Relaxed);
    }
}

/// One more in a count, for as long as this value is kept.
#[derive(Debug)]
pub struct CountedUse(Arc<Counts>);

impl Drop for CountedUse {
    fn drop(&mut self) {
        self.0.here.fetch_sub(1, Ordering::Relaxed);
        self.0.note();
    }
}

/// An open connection: its vhost and its user count it for as long as this value is kept.
#[derive(Debug, Default)]
pub struct CountedConnection {
    vhost: Option<CountedUse>,
    user: Option<CountedUse>,
}

/// An open channel: its user and the node count it for as long as this value is kept.
#[derive(Debug, Default)]
pub struct CountedChannel {
    user: Option<CountedUse>,
    node: Option<CountedUse>,
}

/// Where the channels of a node are counted that has several topologies.
#[derive(Clone, Debug, Default)]
pub struct ChannelsOfNode(Count);

/// Channels of the whole node.
#[derive(Debug, Default)]
pub(crate) struct NodeChannels {
    open: Count,
    limit: Option<u64>,
    /// The node's name, for who is refused.
    node: Box<str>,
}

impl Topology {
    /// Channels are counted there from now on, with those of another topology of the same node. To be called while nothing is counted
    /// here.
    pub fn count_channels_in(&mut self, count: ChannelsOfNode) {
        self.channels.open = count.0;
    }

    /// Sets how many channels the node may have open, `channel_max_per_node`; `None` is no limit. `node` is its name.
    pub fn limit_channels(&mut self, node: &str, limit: Option<u64>) {
        self.channels.limit = limit;
        self.channels.node = node.into();
    }

    /// Whose counts have limits is noted there from now on, when these change: once it [was watched](Self::watches).
    pub fn watch_uses(&mut self, watch: Arc<UseWatch>) {
        self.use_watch = Some(watch);
    }

    /// The counts of connections, and of channels, of somebody who exists; of vhosts no channels are counted.
    fn counts_of(&self, by: &UsedBy) -> Option<(&Count, Option<&Count>)> {
        match by {
            UsedBy::Vhost(id) => self.vhost_by_id(*id).map(|it| (&it.connections, None)),
            UsedBy::User(name) => self.user(name).map(|it| (&it.connections, Some(&it.channels))),
        }
    }

    fn has_limits(&self, by: &UsedBy) -> bool {
        match by {
            UsedBy::Vhost(id) => {
                self.vhost_by_id(*id).is_some_and(|it| it.max_connections().is_some())
            }
            UsedBy::User(name) => self.user(name).is_some_and(|user| {
                ["max-connections", "max-channels"].iter().any(|it| user.limit(it).is_some())
            }),
        }
    }

    /// Whether somebody's connections or channels have a limit; the counts are watched then, if there is a watch.
    pub fn watches(&self, by: &UsedBy) -> bool {
        if !self.has_limits(by) {
            return false;
        }
        if let (Some(watch), Some((connections, channels))) = (&self.use_watch, self.counts_of(by))
        {
            [Some(connections), channels].into_iter().flatten().for_each(|it| it.watch(watch, by));
        }
        true
    }

    /// All whose connections or channels have limits. Looks at all users and vhosts.
    pub fn limited(&self) -> Vec<UsedBy> {
        let vhosts = self.vhosts().map(|it| UsedBy::Vhost(it.id));
        let users = self.users.keys().map(|name| UsedBy::User(name.clone()));
        vhosts.chain(users).filter(|by| self.watches(by)).collect()
    }

    /// How many somebody has at this node; none of who does not exist.
    pub fn uses(&self, by: &UsedBy) -> Uses {
        self.counts_of(by).map_or_else(Uses::default, |(connections, channels)| Uses {
            connections: connections.here(),
            channels: channels.map_or(0, Count::here),
        })
    }

    /// How many somebody has at all other nodes, as far as is known: they count for limits.
    pub fn set_uses_elsewhere(&self, by: &UsedBy, uses: Uses) {
        if let Some((connections, channels)) = self.counts_of(by) {
            connections.set_elsewhere(uses.connections);
            channels.into_iter().for_each(|it| it.set_elsewhere(uses.channels));
        }
    }

    /// Counts a connection of a user to a vhost. Where they do not exist nothing is counted: to refuse
    /// such is the business of [`check_vhost_access`](Self::check_vhost_access).
    ///
    /// # Errors
    ///
    /// `max-connections` of the vhost, then of the user.
    pub fn count_connection(
        &self,
        user: &str,
        vhost: &str,
    ) -> Result<CountedConnection, AccessError> {
        let mut counted = CountedConnection::default();
        if let Some(vhost) = self.vhost(vhost) {
            let limit = vhost.max_connections();
            let taken = vhost.connections.take(limit);
            counted.vhost = Some(taken.ok_or_else(|| AccessError::VhostConnections {
                vhost: vhost.name.as_ref().to_owned(),
                user: user.to_owned(),
                limit: limit.unwrap_or_default(),
            })?);
        }
        if let Some(user) = self.user(user) {
            let limit = user.limit("max-connections");
            let taken = user.connections.take(limit);
            counted.user = Some(taken.ok_or_else(|| AccessError::UserConnections {
                user: user.name.as_ref().to_owned(),
                limit: limit.unwrap_or_default(),
            })?);
        }
        Ok(counted)
    }

    /// Counts a channel of a user, who may have been deleted meanwhile.
    ///
    /// # Errors
    ///
    /// `max-channels` of the user, then `channel_max_per_node`.
    pub fn count_channel(&self, user: &str) -> Result<CountedChannel, AccessError> {
        let mut counted = CountedChannel::default();
        if let Some(user) = self.user(user) {
            let limit = user.limit("max-channels");
            let taken = user.channels.take(limit);
            counted.user = Some(taken.ok_or_else(|| AccessError::UserChannels {
                user: user.name.as_ref().to_owned(),
                limit: limit.unwrap_or_default(),
            })?);
        }
        let NodeChannels { open, limit, node } = &self.channels;
        counted.node = Some(open.take(*limit).ok_or_else(|| AccessError::NodeChannels {
            node: node.as_ref().to_owned(),
            limit: limit.unwrap_or_default(),
        })?);
        Ok(counted)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    /// A user's own limit comes first; who is refused by the node's takes no place of the user's.
    #[test]
    fn channels_of_the_node() {
        let mut topology = Topology::new();
        topology.add_user("u", PasswordHash::new("p", [0; 4]), &[]).unwrap();
        topology.limit_channels("rabbit@here", Some(2));
        let open =
            |topology: &Topology, user| topology.count_channel(user).map_err(|it| it.to_string());
        let mut counted = vec![open(&topology, "u").unwrap(), open(&topology, "gone").unwrap()];
        let over = "number of channels opened on node 'rabbit@here' has reached the maximum allowed limit of 2";
        assert_eq!(open(&topology, "u").unwrap_err(), over);
        let limits = BTreeMap::from([("max-channels".to_owned(), 1)]);
        topology.set_user_limits("u", limits).unwrap();
        assert!(open(&topology, "u").unwrap_err().contains("for user 'u'"));
        counted.remove(0);
        assert!(open(&topology, "u").is_ok(), "the place of who was refused was given back");
    }

    use super::*;
    use crate::user::PasswordHash;

    /// Two topologies of one node have one count, and each its limit.
    #[test]
    fn channels_of_two_topologies_count_together() {
        let [mut one, mut other] = [Topology::new(), Topology::new()];
        let count = ChannelsOfNode::default();
        for it in [&mut one, &mut other] {
            it.count_channels_in(count.clone());
            it.limit_channels("rabbit@here", Some(2));
        }
        let held = one.count_channel("u").unwrap();
        let more = other.count_channel("u").unwrap();
        assert!(one.count_channel("u").is_err() && other.count_channel("u").is_err());
        drop(held);
        let again = other.count_channel("u").unwrap();
        assert!(one.count_channel("u").is_err());
        drop((more, again));
        assert!(one.count_channel("u").is_ok());
    }

    /// What others have counts for limits, and is counted by nobody here. Only what has a limit is noted.
    #[test]
    fn others_count_for_limits() {
        let mut topology = Topology::new();
        let id = topology.add_vhost("/").unwrap();
        topology.add_user("u", PasswordHash::new("p", [0; 4]), &[]).unwrap();
        let woken = Arc::new(AtomicU64::new(0));
        let wakes = Arc::clone(&woken);
        let watch = Arc::new(UseWatch::new(move || _ = wakes.fetch_add(1, Ordering::Relaxed)));
        topology.watch_uses(Arc::clone(&watch));
        let first = topology.count_connection("u", "/").unwrap();
        assert!(watch.take().is_empty() && topology.limited().is_empty());
        let limits = [("max-connections", 4), ("max-channels", 2)];
        let limits = limits.map(|(name, limit)| (name.to_owned(), limit));
        topology.set_user_limits("u", limits.into()).unwrap();
        let (user, vhost) = (UsedBy::User("u".into()), UsedBy::Vhost(id));
        assert_eq!(topology.limited(), std::slice::from_ref(&user));
        assert!(topology.watches(&user) && !topology.watches(&vhost));
        topology.set_uses_elsewhere(&user, Uses { connections: 2, channels: 1 });
        topology.set_uses_elsewhere(&vhost, Uses { connections: 9, channels: 0 });
        let second = topology.count_connection("u", "/").unwrap();
        assert_eq!(watch.take(), BTreeSet::from([user.clone()]));
        assert_eq!(topology.uses(&user), Uses { connections: 2, channels: 0 });
        assert_eq!(topology.uses(&vhost), Uses { connections: 2, channels: 0 });
        let refused = topology.count_connection("u", "/").unwrap_err().to_string();
        assert_eq!(
            refused,
            "connection refused for user 'u': user connection limit (4) is reached"
        );
        let channel = topology.count_channel("u").unwrap();
        assert!(topology.count_channel("u").is_err());
        topology.set_uses_elsewhere(&user, Uses { connections: 1, channels: 0 });
        drop(topology.count_connection("u", "/").unwrap());
        drop(topology.count_channel("u").unwrap());
        drop((first, second, channel));
        assert_eq!(watch.take(), BTreeSet::from([user.clone()]));
        assert_eq!(topology.uses(&user), Uses::default());
        assert_eq!(woken.load(Ordering::Relaxed), 2, "once until it was taken");
    }

    /// Of many that race for three places, three get one; who ends makes room for one more.
    #[test]
    fn the_count_is_exact() {
        let mut topology = Topology::new();
        topology.add_vhost("/").unwrap();
        topology.add_user("u", PasswordHash::new("p", [0; 4]), &[]).unwrap();
        let limits = BTreeMap::from([("max-connections".to_owned(), 3)]);
        topology.set_user_limits("u", limits).unwrap();
        let topology = &topology;
        let mut counted: Vec<CountedConnection> = std::thread::scope(|scope| {
            let open = || (0..8).filter_map(|_| topology.count_connection("u", "/").ok());
            let all: Vec<_> = (0..4).map(|_| scope.spawn(move || open().collect())).collect();
            all.into_iter().flat_map(|one| -> Vec<_> { one.join().unwrap() }).collect()
        });
        assert_eq!(counted.len(), 3);
        let refused = topology.count_connection("u", "/").unwrap_err().to_string();
        let want = "connection refused for user 'u': user connection limit (3) is reached";
        assert_eq!(refused, want);
        counted.pop();
        assert!(topology.count_connection("u", "/").is_ok(), "and it ended at once");
        counted.push(topology.count_connection("u", "/").unwrap());
        assert!(topology.count_connection("u", "/").is_err());
        // Those that were refused by the user's limit do not count for the vhost.
        let vhost = topology.vhost("/").unwrap();
        assert!(
            vhost.connections.take(Some(4)).is_some() && vhost.connections.take(Some(3)).is_none()
        );
    }
}
