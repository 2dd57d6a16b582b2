//! Users who are kept elsewhere: one thread asks for all of them, and waits for many answers at once.
//!
//! It is there if something else than the names is configured. A source that does not answer holds up
//! nobody but those who asked it.

use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use leveret_auth::{Candidate, Denied, SourcePair};
use leveret_broker::login::{Asked, Login, Proof};
use leveret_broker::message::{ConnectionId, Outbox, ToSession};
use leveret_topology::rights::Admitted;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{oneshot, watch};

use super::{Answer, Asker, Logins, Undecided, Verdict, address, barred, bytes, from, is_wanted};
use crate::clock::now;
use crate::connection::Letter;
use crate::node::{Node, Recipient};
use crate::runner::run_alone;

/// Names of hosts that are looked up at once, each by a thread: one whose server says nothing takes some seconds.
const RESOLVING_MAX: usize = 8;

/// What is being asked.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    /// Of the thread; none before it runs.
    runtime: OnceLock<Handle>,
    /// No login is decided on any more.
    is_closed: watch::Sender<bool>,
}

impl Elsewhere {
    /// Drops all logins that wait, for their delay or for an answer: there is no decision on them.
    pub(super) fn close(&self) {
        self.is_closed.send_replace(true);
    }

    /// Comes to its end, but none if this is closed before.
    fn unless_closed<W: Future>(
        &self,
        work: W,
    ) -> impl Future<Output = Option<W::Output>> + use<W> {
        let mut is_closed = self.is_closed.subscribe();
        async move {
            let closed = async {
                // An error is the end of everything.
                let _ = is_closed.wait_for(|it| *it).await;
            };
            tokio::select! {
                biased;
                () = closed => None,
                done = work => Some(done),
            }
        }
    }
}

impl Logins {
    /// Starts the thread, if anybody is to be asked. It runs until what it gives is dropped.
    pub(super) fn ask_elsewhere(
        &self,
        node: &Node,
        joins: &mut Vec<JoinHandle<()>>,
    ) -> std::io::Result<Option<oneshot::Sender<()>>> {
        if self.options.sources.are_internal() {
            return Ok(None);
        }
        let runtime = Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(RESOLVING_MAX)
            .build()?;
        let _ = self.elsewhere.runtime.set(runtime.handle().clone());
        node.watched.ask_sources(runtime.handle().clone());
        let (sender, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("asking".to_owned());
        joins.push(thread.spawn(move || {
            // An error is what the sender's end is told by.
            let _ = runtime.block_on(stopped);
            runtime.shutdown_background();
        })?);
        Ok(Some(sender))
    }

    /// Has all sources asked, after a delay. The login has its room.
    pub(super) fn send_away(&self, node: &Arc<Node>, login: Login, answer: Answer, delay_ms: u64) {
        // The thread runs before anybody can come in.
        let Some(runtime) = self.elsewhere.runtime.get() else { return };
        let node = Arc::clone(node);
        let login = Arc::new(login);
        runtime.spawn(self.elsewhere.unless_closed(async move {
            if delay_ms > 0 {
                tokio::time::sleep(Duration::from_millis(delay_ms)).await;
            }
            let logins = &node.logins;
            let verdict = logins.in_order(&node, &login, Some(&answer)).await;
            logins.jobs.lock().room.give_back(from(&login), bytes(&login));
            let Some(verdict) = verdict else { return };
            let mut out = Outbox::default();
            let admitted = logins.decided(&node, &login, verdict, &mut out);
            answer.give(&node, admitted, out);
        }));
    }

    /// A session asks what a user may do who is kept elsewhere.
    pub(crate) fn ask_rights(&self, node: &Arc<Node>, asked: Asked) {
        let Asked { connection, rights, question } = asked;
        let node = Arc::clone(node);
        let deciding = async move {
            let decision = rights.ask(&question).await;
            deliver(&node, connection, ToSession::Decided(Box::new((question, decision))));
        };
        if let Some(runtime) = self.elsewhere.runtime.get() {
            runtime.spawn(deciding);
        }
    }

    /// The verdict of all sources on a login that nobody waits for.
    pub(super) async fn proven(&self, node: &Arc<Node>, login: Arc<Login>) -> Verdict {
        let Some(runtime) = self.elsewhere.runtime.get() else {
            return self.by_names(node, &login, None).await.unwrap_or_else(stopping);
        };
        let node = Arc::clone(node);
        let asking = async move { node.logins.in_order(&node, &login, None).await };
        let asking = self.elsewhere.unless_closed(asking);
        runtime.spawn(asking).await.ok().flatten().flatten().unwrap_or_else(stopping)
    }

    /// The first source that lets the client in; else what the last one said. None if the client has gone, who costs nobody a
    /// question, or the node stops.
    async fn in_order(
        &self,
        node: &Arc<Node>,
        login: &Arc<Login>,
        answer: Option<&Answer>,
    ) -> Option<Verdict> {
        let mut verdict = Err("there is no source of users".to_owned());
        for entry in self.options.sources.entries() {
            if !is_wanted(node, answer) {
                return None;
            }
            let from = address(login).map(|from| from.to_string()).unwrap_or_default();
            let password = match &login.proof {
                Proof::Password(password) => Some(password.reveal()),
                Proof::Certificate => None,
            };
            let candidate = Candidate { user: &login.user, password, address: &from };
            let first = match &entry.authn {
                None => self.by_names(node, login, answer).await?,
                Some(source) => {
                    source.authenticate(candidate).await.map_err(|denied| told(denied, login))
                }
            };
            verdict = match first {
                Ok(first) => authorized(node, login, entry, candidate, first).await,
                Err(why) => Err(why),
            };
            if verdict.is_ok() {
                return Some(verdict.and_then(|admitted| barred(login).map(|_| admitted)));
            }
        }
        Some(verdict)
    }

    /// By the names, whose hash may be a slow one. That is for the threads of logins: they take turns, and no name of a
    /// host keeps them waiting.
    async fn by_names(
        &self,
        node: &Arc<Node>,
        login: &Arc<Login>,
        answer: Option<&Answer>,
    ) -> Option<Verdict> {
        if let Some(verdict) = self.quick(node, login) {
            return Some(verdict);
        }
        let (sender, verdict) = oneshot::channel();
        {
            let mut jobs = self.jobs.lock();
            if jobs.is_closed {
                return None;
            }
            let asker = Asker::Source(sender, answer.cloned());
            jobs.push(now().ms(), Arc::clone(login), asker);
        }
        self.changed.notify_one();
        // An error means that the client has gone, or the node stops.
        verdict.await.ok()
    }
}

/// What an entry says of a client of whom it said who it is.
async fn authorized(
    node: &Node,
    login: &Login,
    entry: &SourcePair,
    candidate: Candidate<'_>,
    first: Admitted,
) -> Verdict {
    if entry.is_one {
        return Ok(first);
    }
    let known = node.topology().user(&first.user).map(|user| user.tags.clone());
    let Some(source) = &entry.authz else {
        // Who it is was said elsewhere; what it may do is in the names.
        known.ok_or_else(|| format!("there is no user '{}' here", first.user))?;
        return Ok(Admitted { rights: None, expires: None, ..first });
    };
    let again = Candidate { user: &first.user, ..candidate };
    let second = source.authenticate(again).await.map_err(|denied| told(denied, login))?;
    let tags = match &entry.authn {
        None => known.unwrap_or_default(),
        Some(_) => first.tags,
    };
    let (rights, expires) = (second.rights, second.expires);
    Ok(Admitted { user: first.user, tags, rights, expires, is_operator: false })
}

/// Why a source does not let the client in. That it cannot be asked is told by itself: the next one may
/// know the client.
fn told(denied: Denied, login: &Login) -> String {
    let user = &*login.user;
    match &denied {
        Denied::Refused(_) => {}
        Denied::Failed(why) => tracing::error!(user, why, "a source of users cannot be asked"),
        Denied::Busy(why) => tracing::warn!(user, why, "a source of users is not asked"),
    }
    denied.to_string()
}

fn stopping() -> Verdict {
    Err(Undecided::Stopping.to_string())
}

/// Gives a letter to who waits for it, and lets it go on.
pub(super) fn deliver(node: &Arc<Node>, id: ConnectionId, letter: ToSession) {
    match node.recipient(id) {
        Some(Recipient::Connection(connection)) => {
            let letter = Letter::Session(letter);
            run_alone(node, |runner| runner.run_connection(&connection, letter));
        }
        // Who gave up waiting does not want its answer.
        Some(Recipient::Request(sender)) => drop(sender.send(letter)),
        None => {}
    }
}
