//! How many connections and channels there are, for the limits of vhosts, users and the node.
//!
//! A connection or a channel takes a [`CountedUse`] when it opens and drops it when it ends, however it ends:
//! so the count is exact without anybody telling it. Many threads take them while they only read the
//! topology; of two that race for the last one below a limit one gets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::AccessError;
use crate::topology::Topology;

/// How many there are of something.
#[derive(Clone, Debug, Default)]
pub(crate) struct Count(Arc<AtomicU64>);

impl Count {
    /// One more, unless that is over the limit.
    fn take(&self, limit: Option<u64>) -> Option<CountedUse> {
        let add = |count| limit.is_none_or(|limit| count < limit).then_some(count + 1);
        let taken = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        taken.is_ok().then(|| CountedUse(Arc::clone(&self.0)))
    }
}

/// One more in a count, for as long as this value is kept.
#[derive(Debug)]
pub struct CountedUse(Arc<AtomicU64>);

impl Drop for CountedUse {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
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

/// Channels of the whole node.
#[derive(Debug, Default)]
pub(crate) struct NodeChannels {
    open: Count,
    limit: Option<u64>,
    /// The node's name, for who is refused.
    node: Box<str>,
}

impl Topology {
    /// Sets how many channels the node may have open, `channel_max_per_node`; `None` is no limit. `node` is its name.
    pub fn limit_channels(&mut self, node: &str, limit: Option<u64>) {
        self.channels.limit = limit;
        self.channels.node = node.into();
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
