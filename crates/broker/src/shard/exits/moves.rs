//! What operators move: how many of it are on their way.

use super::Exits;
use crate::message::{ConnectionId, Moved, ReplyTo};

/// Messages that are moved for somebody.
#[derive(Debug)]
pub(in super::super) struct Moving {
    pub(in super::super) reply: ReplyTo,
    /// Those that wait for their targets.
    pub(in super::super) under_way: usize,
    pub(in super::super) moved: Moved,
}

impl Exits {
    /// Messages are moved for somebody, who waits for nothing else here.
    pub(in super::super) fn begin_move(&mut self, moving: Moving) {
        self.moves.insert(moving.reply.connection, moving);
    }

    /// All targets of a message have answered.
    pub(in super::super) fn moved(&mut self, by: ConnectionId, is_taken: bool) {
        if let Some(moving) = self.moves.get_mut(&by) {
            moving.under_way -= 1;
            *if is_taken { &mut moving.moved.moved } else { &mut moving.moved.refused } += 1;
        }
    }

    /// What was moved for somebody, if none of it is on its way any more.
    pub(in super::super) fn end_move(&mut self, by: ConnectionId) -> Option<Moving> {
        let is_done = self.moves.get(&by).is_some_and(|moving| moving.under_way == 0);
        if is_done { self.moves.remove(&by) } else { None }
    }

    /// Nothing is moved any more. Who waits for it.
    pub(in super::super) fn give_up_moves(&mut self) -> impl Iterator<Item = ReplyTo> + use<> {
        std::mem::take(&mut self.moves).into_values().map(|moving| moving.reply)
    }

    /// The queue that somebody moves messages of is gone.
    pub(in super::super) fn give_up_move(&mut self, by: ConnectionId) -> Option<Moving> {
        self.moves.remove(&by)
    }
}
