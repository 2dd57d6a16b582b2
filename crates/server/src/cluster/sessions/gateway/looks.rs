//! Management asks nodes of sessions what they show of their connections.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use leveret_broker::message::{ConnectionId, FromLeader};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use super::{Gateway, RemoteEnd, Sessions};
use crate::cluster::sessions::seen::{
    AnyConnection, Elsewheres, NotHeard, Part, Question, SampleTold, SampledElsewhere, Wanted,
    called,
};
use crate::cluster::view::ClusterView;

/// How long management waits for a part of what a node shows.
const LOOKING: Duration = Duration::from_secs(3);

/// The longest that a list waits for all that a node shows, and for the lists before it; and a page of one connection for its turn.
const LISTING: Duration = Duration::from_secs(10);

/// The same of a sample, the first of which is of all connections: nobody needs it at once.
const SAMPLING: Duration = Duration::from_secs(30);

impl Gateway {
    /// Connections of nodes of sessions, as they come.
    pub(crate) fn connections(&self, wanted: &Wanted) -> Elsewheres {
        let ends = self.here();
        let mut looks = Elsewheres::new();
        for end in ends {
            let wanted = wanted.clone();
            looks.of(|parts| async move { end.list(wanted, parts).await });
        }
        looks
    }

    /// The connection that [is called](AnyConnection::is_called) so, of any node of sessions. Nobody else is waited for once one has
    /// it.
    ///
    /// # Errors
    ///
    /// Those nodes that did not answer in time, if none of the others has it.
    pub(crate) async fn connection(&self, name: &str) -> Result<Option<AnyConnection>, NotHeard> {
        let (mut looks, node) = (JoinSet::new(), called(name).map(ConnectionId::node));
        let of_node = |it: &&Arc<RemoteEnd>| node.is_none() || it.node() == node;
        for end in self.here().iter().filter(of_node) {
            let (end, name) = (Arc::clone(end), name.to_owned());
            looks.spawn(async move { end.connection(name).await });
        }
        let mut silent = Vec::new();
        while let Some(found) = looks.join_next().await {
            match found {
                Ok(Ok(Some(found))) if found.is_called(name) => return Ok(Some(found)),
                Ok(Err(node)) => silent.push(node),
                // A panic aborts the process.
                Ok(Ok(_)) | Err(_) => {}
            }
        }
        NotHeard::none(silent).map(|()| None)
    }

    /// What statistics are made of: of each node that is here.
    pub(crate) async fn sample(&self) -> Vec<SampledElsewhere> {
        let mut looks = JoinSet::new();
        for end in self.here() {
            let who = end.sessions.lock().remote.as_ref().map(|it| (it.node(), it.start()));
            let Some((node, start)) = who else { continue };
            looks.spawn(async move { SampledElsewhere { node, start, told: end.sample().await } });
        }
        looks.join_all().await
    }
}

impl RemoteEnd {
    /// What lists call it.
    fn name(&self) -> String {
        self.name.get().cloned().unwrap_or_else(|| format!("the node at {}", self.from.ip()))
    }

    /// Asks for a part of what the node shows, and returns the number of the question with it. None: it is gone, or says nothing in
    /// time. Nobody waits for a node that is not [running](crate::cluster::view::NodeView::running).
    async fn ask(&self, question: &Question, until: Instant) -> Option<(u64, Part)> {
        tokio::select! {
            biased;
            () = self.falls_silent() => None,
            answer = self.answer(question, until) => answer,
        }
    }

    /// The node is shown as one that does not run.
    async fn falls_silent(&self) {
        let caller = self.sessions.lock().caller;
        if let (Some(caller), Some(mut views)) = (caller, self.views.clone()) {
            let is_silent = |view: &Arc<ClusterView>| {
                view.nodes.iter().any(|it| it.raft_id == Some(caller) && !it.running)
            };
            if views.wait_for(is_silent).await.is_ok() {
                return;
            }
        }
        // Nobody tells.
        std::future::pending().await
    }

    async fn answer(&self, question: &Question, until: Instant) -> Option<(u64, Part)> {
        let mut last = timeout_at(until, self.asking.lock()).await.ok()?;
        *last += 1;
        let number = *last;
        let (answers, answer) = oneshot::channel();
        let question = serde_json::to_vec(question).unwrap_or_default();
        let node = {
            let mut sessions = self.sessions.lock();
            let Sessions { remote, asked, .. } = &mut *sessions;
            let remote = remote.as_mut().filter(|it| it.is_heard())?;
            remote.tell(FromLeader::Look(number, question.into()));
            *asked = Some((number, answers));
            remote.node()
        };
        self.woken.notify_one();
        let seen = timeout_at(until.min(Instant::now() + LOOKING), answer).await.ok()?.ok()?;
        match serde_json::from_slice::<Part>(&seen) {
            Ok(part) => match part.stranger_to(node) {
                None => {
                    if !part.node.is_empty() {
                        // Once.
                        let _ = self.name.set(part.node.clone());
                    }
                    Some((number, part))
                }
                Some(id) => {
                    self.cut(format!("{id}, which it shows, is no session of node {node}"));
                    None
                }
            },
            Err(error) => {
                tracing::warn!(peer = %self.from, %error, "what a node shows of its connections is not understood");
                None
            }
        }
    }

    /// Says once that the node does not answer, and once that it does again.
    fn is_heard(&self, is_heard: bool) {
        let answers = {
            let sessions = self.sessions.lock();
            sessions.remote.as_ref().is_some_and(|it| it.is_heard())
        };
        if !answers || self.is_silent.swap(!is_heard, Ordering::Relaxed) != is_heard {
            return;
        }
        match is_heard {
            true => {
                tracing::info!(peer = %self.from, "a node with sessions shows its connections again")
            }
            false => tracing::warn!(
                peer = %self.from,
                "a node with sessions does not show its connections in time: lists lack them, and statistics have what it told last"
            ),
        }
    }

    /// The connection of this name.
    ///
    /// # Errors
    ///
    /// The node's name: it does not answer in time.
    async fn connection(&self, name: String) -> Result<Option<AnyConnection>, String> {
        let part = self.ask(&Question::One { name }, Instant::now() + LISTING).await;
        self.is_heard(part.is_some());
        let (_, mut part) = part.ok_or_else(|| self.name())?;
        let found = part.take_connections().next();
        Ok(found.map(|it| AnyConnection::Elsewhere(Arc::new(it))))
    }

    /// Passes on what the node lists. What came of one that shows no more is shown.
    ///
    /// # Errors
    ///
    /// The node's name: it did not show all in time.
    async fn list(
        &self,
        wanted: Wanted,
        parts: mpsc::Sender<Vec<AnyConnection>>,
    ) -> Result<(), String> {
        let mut until = Instant::now() + LISTING;
        let _one = timeout_at(until, self.listing.lock()).await.map_err(|_| self.name())?;
        let mut question = Question::List(wanted);
        let is_all = loop {
            let Some((_, mut part)) = self.ask(&question, until).await else { break false };
            let connections = part.take_connections().map(Arc::new);
            let connections = connections.map(AnyConnection::Elsewhere).collect();
            let came = Instant::now();
            if parts.send(connections).await.is_err() {
                // Nobody wants it any more.
                return Ok(());
            }
            // Who reads may wait for room, which is no fault of the node.
            until += came.elapsed();
            if !part.goes_on {
                break true;
            }
            question = Question::More;
        };
        self.is_heard(is_all);
        if is_all { Ok(()) } else { Err(self.name()) }
    }

    /// Whoever asks takes the answer in: only what changes is told the next time.
    async fn sample(&self) -> Option<SampleTold> {
        let until = Instant::now() + SAMPLING;
        let Ok(mut last) = timeout_at(until, self.sampling.lock()).await else {
            self.is_heard(false);
            return None;
        };
        let mut sampled = SampleTold::default();
        let mut question = Question::Sample { since: last.take() };
        let mut first = None;
        let is_all = loop {
            let Some((number, part)) = self.ask(&question, until).await else { break false };
            first.get_or_insert(number);
            let goes_on = part.goes_on;
            sampled.add(part);
            if !goes_on {
                break true;
            }
            question = Question::MoreOfSample;
        };
        self.is_heard(is_all);
        *last = first.filter(|_| is_all);
        is_all.then_some(sampled)
    }
}
