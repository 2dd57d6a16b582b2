//! The operator who looks into queues and moves messages: from queues with dead letters to where these go, so
//! that what must hold of a dead letter must hold of what he moves; and who deletes some where messages
//! may vanish.

use leveret_broker::message::{ConnectionId, Looked, MoveTo, NodeId, Reply, ReplyTo, ToShard};
use leveret_broker::record::View;
use leveret_queue::{LookAt, Offset};
use leveret_topology::{GroupId, QueueId, Topology};

use crate::plan::{LOOKED_INTO, MOVED_TO};
use crate::random::Random;
use crate::shadow::Check;

/// Who asks for it: no connection.
pub(crate) const MOVER: ConnectionId = NodeId::ALONE.connection(0);

/// Messages of a page.
const PAGE: usize = 5;

/// What he does.
#[derive(Debug, Default)]
pub(crate) struct Mover {
    /// The queue that he waits for.
    queue: Option<QueueId>,
    /// Messages that were moved or deleted.
    pub(crate) done: u64,
}

impl Mover {
    /// Looks into a queue, unless he waits for an answer.
    pub(crate) fn look(
        &mut self,
        topology: &Topology,
        random: &mut Random,
    ) -> Option<(GroupId, ToShard)> {
        let name = LOOKED_INTO[random.below(LOOKED_INTO.len())];
        if self.queue.is_some() {
            return None;
        }
        let queue = topology.queue(topology.vhost("/")?.id, name)?.id;
        self.queue = Some(queue);
        let place = if random.one_in(4) { LookAt::Unacked } else { LookAt::Ready };
        let from = Offset::new(0);
        let letter = ToShard::Look { reply: reply(), queue, place, from, max: PAGE };
        Some((topology.home(queue), letter))
    }

    /// The answer came: what he does with what he sees.
    pub(crate) fn answered(
        &mut self,
        answer: &MoverAnswer,
        topology: &Topology,
    ) -> Check<Option<(GroupId, ToShard)>> {
        let queue = self.queue.take().ok_or_else(|| format!("nobody asked for {answer:?}"))?;
        let offsets = match answer {
            MoverAnswer::Page(offsets) if offsets.is_sorted() => offsets.clone(),
            MoverAnswer::Page(offsets) => return Err(format!("a page in disorder: {offsets:?}")),
            MoverAnswer::Done(count) => {
                self.done += count;
                return Ok(None);
            }
        };
        let named = topology.queue_by_id(queue);
        let to = topology.vhost("/").and_then(|vhost| topology.queue(vhost.id, MOVED_TO));
        let (Some(named), Some(to)) = (named, to) else { return Ok(None) };
        self.queue = Some(queue);
        let (reply, to) = (reply(), MoveTo::Queue(to.id));
        let letter = match named.dead_letter() {
            Some(_) => ToShard::Move { reply, queue, offsets, to },
            None => ToShard::Discard { reply, queue, offsets },
        };
        Ok(Some((topology.home(queue), letter)))
    }

    /// The broker is another one.
    pub(crate) fn restarted(&mut self) {
        self.queue = None;
    }
}

/// The broker's answer to the operator who moves messages.
#[derive(Debug)]
pub(crate) enum MoverAnswer {
    /// The offsets of a page, without those of messages that would expire where they are moved to: they
    /// keep their time to live, which begins anew there.
    Page(Vec<Offset>),
    /// How many were moved or deleted.
    Done(u64),
}

impl MoverAnswer {
    pub(crate) fn of(reply: &Reply) -> Check<Self> {
        match reply {
            Reply::Looked(page) => {
                let stays = |one: &&Looked| {
                    let view = one.record.as_ref().and_then(View::of);
                    view.is_some_and(|view| view.head.expiration_ms.is_none())
                };
                let stay = page.messages.iter().filter(stays);
                Ok(Self::Page(stay.map(|one| one.look.offset).collect()))
            }
            Reply::Moved(moved) => Ok(Self::Done(moved.moved)),
            Reply::Purged(count) => Ok(Self::Done(*count)),
            Reply::Refused { text, .. } if text.contains("the log was lost") => Ok(Self::Done(0)),
            other => Err(format!("the mover is told: {other:?}")),
        }
    }
}

fn reply() -> ReplyTo {
    ReplyTo { connection: MOVER, channel: 0 }
}
