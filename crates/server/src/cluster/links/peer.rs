//! The link to one configured node: called again and again, or waited for.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use leveret_link::hello::{Peer, RaftId, Urgency};
use rustix::net::RecvFlags;
use tokio::sync::mpsc::{self, Receiver};
use tokio::time::{Instant, sleep_until, timeout};

use super::connection::{self, CLOSED, LinkLines};
use super::{CLOSE, Inner, LinkNews, LinkSocket, shake, wall_ms};

/// A connection of a node that was let in.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) peer: Peer,
    pub(super) socket: LinkSocket,
}

/// Both connections of a link.
struct Pair {
    /// As the newer connection says it.
    peer: Peer,
    urgent: LinkSocket,
    bulk: LinkSocket,
}

/// Doublings of the time between two calls until it is the usual one.
const DOUBLINGS: u32 = 4;

/// How long after a call the next one is.
#[derive(Debug)]
struct Pace {
    usual: Duration,
    wait: Duration,
}

impl Pace {
    fn new(usual: Duration) -> Self {
        Self { usual, wait: usual / (1 << DOUBLINGS) }
    }

    /// A call brought a link that lasted so long, or none. One that ends at once will do so again, as who has no link is refused
    /// again: whatever is wrong, both sides pay for a handshake of two connections.
    fn after(&mut self, lasted: Duration) {
        self.wait = match lasted >= self.usual {
            true => Self::new(self.usual).wait,
            false => (2 * self.wait).min(self.usual),
        };
    }
}

/// Calls a node whose name is higher while there is no link: at once when one has ended, soon again, as a process that is started again
/// is there soon, and each second in the end. Where a node that is back is not linked with all others, it counts for none of them in a
/// majority with these.
pub(super) async fn call(inner: Arc<Inner>, at: usize) {
    let mut pace = Pace::new(inner.times.retry);
    loop {
        let next = Instant::now() + pace.wait;
        let pair = tokio::select! {
            pair = call_both(&inner, at) => pair,
            () = inner.closes() => return,
        };
        match pair {
            Ok(pair) => {
                let begun = Instant::now();
                run(&inner, at, pair, std::future::pending()).await;
                pace.after(begun.elapsed());
            }
            Err(why) => {
                inner.no_link(at, &why);
                pace.after(Duration::ZERO);
            }
        }
        tokio::select! {
            () = sleep_until(next) => {}
            () = inner.closes() => return,
        }
    }
}

async fn call_both(inner: &Inner, at: usize) -> Result<Pair, String> {
    // One after the other, so that the other side has them in this order.
    let of = |urgency| async move {
        shake::call(inner, at, urgency).await.map_err(|why| why.to_string())
    };
    let (_, urgent) = of(Urgency::Urgent).await?;
    let (peer, bulk) = of(Urgency::Bulk).await?;
    Ok(Pair { peer, urgent, bulk })
}

/// Waits for the calls of a node whose name is lower. A newer connection takes the place of an older one.
pub(super) async fn answer(inner: Arc<Inner>, at: usize, mut answered: Receiver<Answered>) {
    let mut first = None;
    loop {
        let next = match first.take() {
            Some(first) => Some(first),
            None => tokio::select! {
                next = answered.recv() => next,
                () = inner.closes() => return,
            },
        };
        let Some(one) = next else { return };
        let other = tokio::select! {
            other = answered.recv() => other,
            () = inner.closes() => return,
        };
        let Some(other) = other else { return };
        let pair = match pair(one, other) {
            Ok(pair) => pair,
            Err(newer) => {
                first = Some(newer);
                continue;
            }
        };
        let mut newer = None;
        let replaced = async {
            newer = answered.recv().await;
        };
        run(&inner, at, pair, replaced).await;
        first = newer;
    }
}

/// Two connections as a link. Else the newer one.
fn pair(one: Answered, other: Answered) -> Result<Pair, Answered> {
    let is_of_it = one.peer.node == other.peer.node && is_open(&one.socket).is_ok();
    match (one.peer.urgency, other.peer.urgency) {
        (Urgency::Urgent, Urgency::Bulk) if is_of_it => {
            Ok(Pair { peer: other.peer, urgent: one.socket, bulk: other.socket })
        }
        (Urgency::Bulk, Urgency::Urgent) if is_of_it => {
            Ok(Pair { peer: other.peer, urgent: other.socket, bulk: one.socket })
        }
        _ => Err(other),
    }
}

/// Whether the other side has not closed it while it waited for the second one.
fn is_open(socket: &LinkSocket) -> io::Result<()> {
    match rustix::net::recv(socket.tcp(), &mut [0; 1][..], RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((0, _)) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Runs a link to its end.
async fn run(inner: &Inner, at: usize, pair: Pair, replaced: impl Future<Output = ()>) {
    let Pair { peer, urgent, bulk } = pair;
    let encrypted = urgent.is_encrypted() && bulk.is_encrypted();
    let peer = Peer { encrypted, ..peer };
    let id = peer.node.raft_id;
    let task = &inner.peers[at];
    let (lines, [to_urgent, to_bulk]) = LinkLines::new(&task.dropped);
    // It may have begun on another thread.
    let here = match inner.encryption {
        Some(_) => urgent.here().and_then(|urgent| Ok((urgent, bulk.here()?))),
        None => Ok((urgent, bulk)),
    };
    let (urgent, bulk) = match here {
        Ok(here) => here,
        Err(error) => return inner.no_link(at, &error.to_string()),
    };
    let is_taken = inner.state.lock().links.contains_key(&id);
    if is_taken {
        return inner.no_link(at, &format!("another node that is linked has its Raft id {id}"));
    }
    {
        let mut state = inner.state.lock();
        // Closed meanwhile: nobody would end the lines.
        if *inner.closing.borrow() {
            return;
        }
        let now = &mut state.peers[at];
        let heard = if now.raft_id == Some(id) { now.start } else { 0 };
        now.raft_id = Some(id);
        now.start = heard.max(peer.node.start);
        now.linked_since_ms = Some(wall_ms());
        now.why_not = None;
        state.links.insert(id, lines);
    }
    let how = if encrypted { "with" } else { "without" };
    tracing::info!(peer = task.address, "node {} is linked, {how} TLS", task.name);
    let linked = inner.news.send(LinkNews::Linked(peer));
    let why = tokio::select! {
        why = async {
            let _ = linked.await;
            read_both(&urgent, &bulk, id, &inner.news).await
        } => why,
        why = connection::write(&urgent, to_urgent) => why,
        why = connection::write(&bulk, to_bulk) => why,
        () = replaced => "the other side has called anew".to_owned(),
    };
    // Before it is told, so that nothing is sent to a link of which nobody knows.
    {
        let mut state = inner.state.lock();
        state.links.remove(&id);
        state.peers[at].linked_since_ms = None;
        state.peers[at].why_not = Some(why.clone());
    }
    drop((urgent, bulk));
    if *inner.closing.borrow() {
        tracing::info!(peer = task.address, "the link with node {} has ended", task.name);
    } else {
        tracing::warn!(peer = task.address, "the link with node {} has ended: {why}", task.name);
    }
    let _ = inner.news.send(LinkNews::Unlinked(id)).await;
}

/// Reads both connections of a link until one is over. Where the other side has ended one, it ends the other, too: what it said there
/// before counts. Returns why, in words.
async fn read_both(
    urgent: &LinkSocket,
    bulk: &LinkSocket,
    from: RaftId,
    news: &mpsc::Sender<LinkNews>,
) -> String {
    let of_urgent = connection::read(urgent, Urgency::Urgent, from, news);
    let of_bulk = connection::read(bulk, Urgency::Bulk, from, news);
    tokio::pin!(of_urgent, of_bulk);
    let (first, is_urgent) = tokio::select! {
        ended = &mut of_urgent => (ended, true),
        ended = &mut of_bulk => (ended, false),
    };
    let second = async { if is_urgent { of_bulk.await } else { of_urgent.await } };
    let both = match first {
        Ok(()) => timeout(CLOSE, second).await.unwrap_or(Ok(())),
        failed => failed,
    };
    both.err().unwrap_or_else(|| CLOSED.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Soon at first, and after a link that lasted. Whatever fails at once does not do so sixteen times a second.
    #[test]
    fn who_is_linked_for_a_moment_is_not_called_sooner() {
        let mut pace = Pace::new(Duration::from_secs(1));
        let mut after = |lasted_ms| {
            pace.after(Duration::from_millis(lasted_ms));
            pace.wait.as_micros()
        };
        assert_eq!(
            [0, 1, 999, 0, 0].map(&mut after),
            [125_000, 250_000, 500_000, 1_000_000, 1_000_000]
        );
        assert_eq!([1_000, 0].map(after), [62_500, 125_000]);
    }
}
