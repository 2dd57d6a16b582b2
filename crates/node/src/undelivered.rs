//! Letters to connections that ended.

use leveret_broker::message::{
    Attachment, ConnectionId, Outbox, Reply, Settle, Settlement, ToSession, ToShard,
};
use leveret_topology::GroupId;

/// What becomes of a letter whose connection is gone: letters to shards, and to sessions.
///
/// Messages in it were given out and never reached anybody: they go back to their queues. A question is
/// answered for the one that is gone; the answer is a letter that nothing becomes of. A shard in a new term hears that it has nothing,
/// behind what comes of the letters before. The rest means nothing any more.
///
/// The messages go back in the name of the connection that they were given to: a shard that [lost](leveret_broker::Shard::lose) the
/// end of its log has to know what it gave before that.
pub(crate) fn return_undelivered(from: ConnectionId, letter: ToSession, out: &mut Outbox) {
    let deliveries = match letter {
        ToSession::Deliver(deliveries) => deliveries,
        ToSession::Reply { reply: Reply::Got { delivery, .. }, .. } => vec![delivery],
        ToSession::Attach { group, term, .. } => {
            let (consumers, claims) = (Vec::new(), Vec::new());
            let attachment =
                Attachment { connection: from, term, behind: [0; 2], consumers, claims };
            return out.shard(group, ToShard::Attach(Box::new(attachment)));
        }
        ToSession::DirectReplyAsked { reply, .. } => return out.reply(reply, Reply::Gone),
        _ => return,
    };
    let mut homed: Vec<(GroupId, Vec<Settlement>)> = Vec::new();
    for delivery in deliveries {
        let Some(unacked) = delivery.unacked else { continue };
        let settlement = Settlement {
            queue: delivery.queue,
            unacked,
            offset: delivery.offset,
            how: Settle::Requeue { counts: false },
        };
        match homed.iter_mut().find(|(home, _)| *home == delivery.home) {
            Some((_, list)) => list.push(settlement),
            None => homed.push((delivery.home, vec![settlement])),
        }
    }
    out.shards.extend(
        homed.into_iter().map(|(home, settlements)| (home, ToShard::Settle { from, settlements })),
    );
}
