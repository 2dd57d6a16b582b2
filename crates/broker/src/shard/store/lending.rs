//! Records that shards share: what their logs have to be told of each other.
//!
//! A persistent message for queues of several shards is written by one of them, see [`leveret_log::shared`]. Cold path:
//! there is something to say only of what had to be written.

use leveret_log::{Errand, HoldError, Holder, Log, LogNumber, Offset, ReadError};
use leveret_topology::{GroupId, Homes};

use super::Store;
use super::cold::Parked;
use crate::message::{Outbox, ToShard, log_of};

/// What one shard says to another of such records.
#[derive(Debug, Default)]
struct Mail {
    wakes: bool,
    freed: Vec<Offset>,
    wanted: Vec<(Offset, Offset)>,
}

impl<L: Log> Store<L> {
    /// Sends what the log has for others, a letter of each kind.
    pub(in super::super) fn send_errands(
        &mut self,
        group: GroupId,
        homes: Homes,
        out: &mut Outbox,
    ) {
        let mut mail: Vec<(LogNumber, Mail)> = Vec::new();
        let mut mail_to = |log: LogNumber, add: &mut dyn FnMut(&mut Mail)| {
            let index = mail.iter().position(|(to, _)| *to == log).unwrap_or_else(|| {
                mail.push((log, Mail::default()));
                mail.len() - 1
            });
            add(&mut mail[index].1);
        };
        self.log.errands(&mut |errand| match errand {
            Errand::Wake(log) => mail_to(log, &mut |mail| mail.wakes = true),
            Errand::Freed(place) => mail_to(place.log, &mut |mail| mail.freed.push(place.at)),
            Errand::Lend { of, at } => mail_to(of.log, &mut |mail| mail.wanted.push((of.at, at))),
        });
        for (log, Mail { wakes, freed, wanted }) in mail {
            let to = homes.group_at(log.index());
            if wakes {
                out.shard(to, ToShard::LogWoke);
            }
            if !freed.is_empty() {
                out.shard(to, ToShard::Freed { by: group, records: freed });
            }
            if !wanted.is_empty() {
                out.shard(to, ToShard::Lend { to: group, records: wanted });
            }
        }
    }

    /// Does what a letter says of the logs alone. Nothing, if it says something else.
    pub(in super::super) fn hear(&mut self, letter: ToShard, homes: Homes, out: &mut Outbox) {
        match letter {
            ToShard::Freed { by, records } => self.freed(by, homes, &records),
            ToShard::Lend { to, records } => self.lend(to, records, out),
            ToShard::Lent { records } => self.lent(records),
            _ => {}
        }
    }

    /// Another shard refers to these no more.
    pub(in super::super) fn freed(&mut self, by: GroupId, homes: Homes, records: &[Offset]) {
        // Logs of other nodes have no records of this one's.
        let Some(holder) = log_of(by, homes).map(Holder::of_log) else { return };
        for &at in records {
            match self.log.release(at, holder) {
                // It was lost with a file before this process began.
                Ok(()) | Err(HoldError::Released { .. }) => {}
                Err(error) => {
                    debug_assert!(false, "{error}");
                    tracing::error!(%error, "a message that another shard has released could not be let go");
                }
            }
        }
    }

    /// Another shard wants the bytes of these. What has to be read first is given when it is there.
    pub(in super::super) fn lend(
        &mut self,
        to: GroupId,
        records: Vec<(Offset, Offset)>,
        out: &mut Outbox,
    ) {
        let (mut lent, mut cold) = (Vec::new(), Vec::new());
        for (of, at) in records {
            match self.log.read(of) {
                Err(error) if error.is_to_come() => cold.push((of, at)),
                result => {
                    self.log.taken(of);
                    lent.push((at, result.map(|record| record.bytes)));
                }
            }
        }
        if !lent.is_empty() {
            out.shard(to, ToShard::Lent { records: lent });
        }
        if !cold.is_empty() {
            let wanted: Vec<_> = cold.iter().map(|&(of, _)| of).collect();
            self.log.fetch(&wanted);
            self.cold.park(Parked::Letter(ToShard::Lend { to, records: cold }));
        }
    }

    /// What was wanted of another shard is here, or cannot be had.
    pub(in super::super) fn lent(
        &mut self,
        records: Vec<(Offset, Result<bytes::Bytes, ReadError>)>,
    ) {
        for (at, bytes) in records {
            self.log.lent(at, bytes);
        }
    }
}
