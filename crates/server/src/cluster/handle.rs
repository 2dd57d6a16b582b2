//! How the rest of the process speaks with the cluster's thread.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use leveret_cluster::ForgetError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use crate::lease::Leading;
use crate::listener::ClientSuspension;
use crate::logging::{LAST_LINES, Logs};
use crate::storage::NodeLog;
use crate::tls::Tls;

use super::names::CopiedNames;
use super::numbers;
use super::standby::Totals;
use super::view::Views;

/// What the cluster's thread is asked.
#[derive(Debug)]
pub(super) enum Order {
    /// The logs, by group, each with its term: this node leads all.
    Lend(oneshot::Sender<Vec<(u64, NodeLog)>>),
    /// To end: another member is to lead, if that can be.
    Leave(oneshot::Sender<()>),
    /// To have another member lead, while this one goes on.
    HandOver,
    /// To have the cluster forget a node: answered when that is agreed upon, or why it is not.
    Forget(String, oneshot::Sender<Result<(), ForgetError>>),
}

/// How front ends have members changed, and who of them leads.
#[derive(Clone, Debug)]
pub struct MemberChanges(mpsc::UnboundedSender<Order>);

/// Why a change of members was not agreed upon.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// It is not to be.
    #[error(transparent)]
    Refused(#[from] ForgetError),
    /// It may be agreed upon later.
    #[error(
        "it is not agreed upon yet, and is tried as long as this node leads: see 'leveret ctl cluster_status'"
    )]
    Late,
    /// This node leads no more.
    #[error("this node leads no more: ask again")]
    Over,
}

/// So long a change of members is waited for.
const CHANGE_PATIENCE: Duration = Duration::from_secs(10);

impl MemberChanges {
    /// Has the cluster forget a node, and waits until that is agreed upon in all groups.
    pub async fn forget(&self, name: &str) -> Result<(), ChangeError> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Order::Forget(name.to_owned(), reply)).map_err(|_| ChangeError::Over)?;
        match tokio::time::timeout(CHANGE_PATIENCE, answer).await {
            Ok(Ok(answer)) => Ok(answer?),
            Ok(Err(_)) => Err(ChangeError::Over),
            Err(_) => Err(ChangeError::Late),
        }
    }

    /// Has another node lead in place of this one, if one takes over within some seconds. The process begins anew then.
    pub fn hand_over(&self) -> Result<(), ChangeError> {
        self.0.send(Order::HandOver).map_err(|_| ChangeError::Over)
    }
}

/// What the process has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    /// Stand by.
    StandBy,
    /// Run the broker: this node leads all groups.
    Lead,
    /// Begin anew: this node led, and what it has in memory may not stay.
    BeginAnew,
    /// End.
    End(String),
}

/// The state of the cluster, as far as this node knows, and who is to be asked.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    /// This node's Raft id, and the number of this start.
    pub(super) own: (u64, u64),
    pub(super) orders: mpsc::UnboundedSender<Order>,
    pub(super) duty: watch::Receiver<Duty>,
    pub(super) views: Views,
    /// What is relayed to the node that leads.
    pub(super) relayed: Arc<Totals>,
    /// How long it may give out what it has, while it leads.
    pub(super) leading: Arc<Leading>,
    /// The same for the sessions that are here before it leads: until then they need no lease.
    pub(super) sessions_leading: Arc<Leading>,
    /// A copy of the names, while this node does not lead.
    pub(super) names: Arc<CopiedNames>,
    /// Whether clients may not come in, whoever leads.
    pub(super) suspended: ClientSuspension,
}

impl Handle {
    /// Waits until the process has something else to do than this.
    pub(crate) async fn is_not(&mut self, duty: &Duty) -> Duty {
        match self.duty.wait_for(|now| now != duty).await {
            Ok(now) => now.clone(),
            Err(_) => Duty::End("the cluster's thread has ended".to_owned()),
        }
    }

    async fn ask<T>(&self, order: impl FnOnce(oneshot::Sender<T>) -> Order) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.orders.send(order(reply)).ok()?;
        answer.await.ok()
    }

    /// For front ends.
    pub(super) fn changes(&self) -> MemberChanges {
        MemberChanges(self.orders.clone())
    }

    /// The logs of all groups, by number, each with the term in which this node leads it. None if this node leads no more.
    pub(super) async fn lend(&self) -> Option<Vec<(u64, NodeLog)>> {
        self.ask(Order::Lend).await
    }

    /// What a node that led has in memory is in part not agreed upon, and may not stay. So it does what it would do after a crash, only
    /// sooner: the same program begins anew, in the same process, with the same words. Returns only what kept it from that.
    pub(super) fn begin_anew(&self, logs: &Logs, why: &str) -> anyhow::Result<()> {
        tracing::warn!("{why}: it begins anew, as one that follows");
        logs.flush(LAST_LINES);
        let words: Vec<OsString> = std::env::args_os().collect();
        let (name, words) =
            words.split_first().map_or((None, &[][..]), |(it, rest)| (Some(it), rest));
        let mut command = Command::new("/proc/self/exe");
        if let Some(name) = name {
            command.arg0(name);
        }
        command.envs(numbers::to_be_told());
        match self.suspended.is_set() {
            true => command.env(SUSPENDED, "1"),
            false => command.env_remove(SUSPENDED),
        };
        // Descriptors are closed by it, locks of the data directory with them, and all other threads end.
        let error = command.args(words).exec();
        Err(anyhow::Error::new(error).context("the process cannot begin anew: start it again"))
    }
}

/// Under this name a process that begins anew has it in its environment that clients may not come in.
const SUSPENDED: &str = "LEVERET_CLIENTS_SUSPENDED";

/// As the process before left it, if this one took its place.
pub(super) fn suspended_before() -> ClientSuspension {
    let suspended = ClientSuspension::default();
    suspended.set(std::env::var_os(SUSPENDED).is_some());
    suspended
}

/// The thread of the cluster.
#[derive(Debug)]
pub(super) struct ClusterThread(pub(super) JoinHandle<()>);

/// How long another member has to take over from one that stops.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);

/// This node leads all groups: the broker runs here.
#[derive(Debug)]
pub(crate) struct Led {
    pub(super) handle: Handle,
    pub(super) thread: ClusterThread,
    /// TLS of its links, if they have that.
    pub(super) link_tls: Option<Arc<Tls>>,
    /// Tells the service manager that the node goes on, until the broker does.
    pub(crate) telling: Option<AbortHandle>,
}

impl Led {
    /// Waits until it leads no more: what is to be done then.
    pub(crate) async fn ends(&mut self) -> Duty {
        self.handle.is_not(&Duty::Lead).await
    }

    /// How long it may give out what it has.
    pub(crate) fn leading(&self) -> Arc<Leading> {
        Arc::clone(&self.handle.leading)
    }

    /// Whether clients may not come in by this node's listeners.
    pub(crate) fn suspended(&self) -> ClientSuspension {
        self.handle.suspended.clone()
    }

    /// TLS of its links, if they have that.
    pub(crate) fn link_tls(&self) -> Option<Arc<Tls>> {
        self.link_tls.clone()
    }

    /// Whether it leads still.
    pub(crate) fn leads(&self) -> bool {
        *self.handle.duty.borrow() == Duty::Lead
    }

    /// The broker has stopped: another member is to lead, if all is written.
    pub(crate) async fn leave(self, is_whole: bool) {
        if is_whole {
            leave(&self.handle, self.thread).await;
        }
    }

    /// Replaces the process by one that knows what is on the disk, and nothing else. Returns only what kept it from that.
    pub(crate) fn begin_anew(&self, logs: &Logs) -> anyhow::Result<()> {
        self.handle.begin_anew(logs, LEADS_NO_MORE)
    }
}

/// Has the cluster's thread end in good order.
pub(super) async fn leave(handle: &Handle, thread: ClusterThread) {
    match tokio::time::timeout(LEAVE_PATIENCE, handle.ask(Order::Leave)).await {
        // It closes its links, which is short.
        Ok(_) => drop(thread.0.join()),
        Err(_) => tracing::warn!("no other node took over in time: the others elect one"),
    }
}

/// Why most nodes begin anew.
pub(super) const LEADS_NO_MORE: &str = "this node leads the cluster no more";
