//! What becomes of answers that waited for the log of names in vain.

use leveret_amqp::reply::ReplyCode;

use super::saved::SaveError;
use crate::held::{Span, take_out};
use crate::message::{Outbox, Reply, ToSession, ToShard};

/// Refuses parts of an outbox; the parts ascend.
pub(super) fn refuse(spans: &[Span], out: &mut Outbox, error: &SaveError) {
    let held = take_out(spans, out);
    refuse_all(held, out, error);
}

/// Tells everybody who would have been answered that it did not happen, but for commands with numbers.
pub(super) fn refuse_all(held: Outbox, out: &mut Outbox, error: &SaveError) {
    let refused = || Reply::Refused { code: ReplyCode::InternalError, text: error.to_string() };
    for (shard, letter) in held.shards {
        match letter {
            ToShard::Create { reply: Some(reply), .. } | ToShard::Count { reply, .. } => {
                out.reply(reply, refused());
            }
            // It is not decided, and will not be.
            ToShard::Decide { tx, .. } if matches!(error, SaveError::Append(_)) => {
                out.shard(shard, ToShard::Decide { tx, commit: false });
            }
            // The topology has changed all the same, and is written when there is room: shards are to be
            // like it. After a failed sync the process ends.
            other if matches!(error, SaveError::Append(_)) => out.shard(shard, other),
            _ => {}
        }
    }
    // As with what shards are told: it is so, if not yet on disk.
    if matches!(error, SaveError::Append(_)) {
        out.events.extend(held.events);
    }
    // A number hears nothing: it may have been done, and noted in what the disk or a majority has. So the next owner says it.
    drop(held.answers);
    for (connection, letter) in held.sessions {
        let letter = match letter {
            ToSession::Reply { reply: reply @ Reply::Refused { .. }, channel } => {
                ToSession::Reply { channel, reply }
            }
            ToSession::Reply { channel, .. } => ToSession::Reply { channel, reply: refused() },
            other => other,
        };
        out.session(connection, letter);
    }
}
