//! What a member knows of its log while a shard has it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use leveret_log::BatchName;
use leveret_log::file::{BatchCopy, NoBatch};

use crate::batches::NoBytes;
use crate::desk::{Desk, Hold, Orders};

/// A log that a shard has.
#[derive(Debug)]
pub(super) struct LentLog {
    desk: Arc<Desk>,
    /// What [`Replica::cuts`](crate::Replica::cuts) was when it was lent: nothing was cut since.
    pub(super) cuts: u64,
    /// Batches that it made and the replica has not heard of.
    pub(super) made: VecDeque<BatchName>,
    /// The last one that its disk has, and up to where the replica knows.
    pub(super) stored: BatchName,
    pub(super) stored_told: u64,
    /// The pause in which it says that it makes no batches.
    pub(super) paused: Option<u64>,
    /// The number of the last one that it made.
    last: u64,
    /// The newest batches, without a gap. They are the log's own bytes.
    newest: VecDeque<(BatchName, BatchCopy)>,
    newest_bytes: u64,
    newest_max: u64,
    /// What was asked for and came, or why it did not; and what is to come.
    read: BTreeMap<u64, Result<BatchCopy, NoBatch>>,
    asked: BTreeSet<u64>,
    orders: Sent,
}

/// What the log was told.
#[derive(Debug)]
struct Sent {
    agreed: BatchName,
    on_all: u64,
    let_go_of: u64,
    hold: Hold,
    pause: Option<u64>,
    pauses: u64,
}

impl LentLog {
    /// All agree upon `agreed` by now, and `last` is the number of the log's last batch. So many bytes of batches are kept here.
    pub(super) fn new(
        desk: Arc<Desk>,
        (agreed, last): (BatchName, u64),
        cuts: u64,
        newest_max: u64,
    ) -> Self {
        let hold = Hold::default();
        let orders = Sent { agreed, on_all: 0, let_go_of: 0, hold, pause: None, pauses: 0 };
        let (made, newest, read, asked) = Default::default();
        Self {
            desk,
            cuts,
            made,
            stored: BatchName::NONE,
            stored_told: 0,
            paused: None,
            last,
            newest,
            newest_bytes: 0,
            newest_max,
            read,
            asked,
            orders,
        }
    }

    pub(super) fn desk(&self) -> &Desk {
        &self.desk
    }

    /// What the log was told that all members in contact have.
    pub(super) fn on_all(&self) -> u64 {
        self.orders.on_all
    }

    /// The log made a batch.
    pub(super) fn take(&mut self, name: BatchName, batch: BatchCopy) {
        self.last = name.number;
        self.newest_bytes += batch.len();
        self.newest.push_back((name, batch));
        while self.newest_bytes > self.newest_max && self.newest.len() > 1 {
            self.drop_first();
        }
    }

    fn drop_first(&mut self) {
        let dropped = self.newest.pop_front();
        self.newest_bytes -= dropped.map_or(0, |(_, batch)| batch.len());
    }

    /// The log gives a batch that was asked for, or says why it cannot. Gives that back.
    pub(super) fn take_read(
        &mut self,
        number: u64,
        batch: Result<BatchCopy, NoBatch>,
    ) -> Option<NoBatch> {
        self.asked.remove(&number);
        let error = batch.as_ref().err().cloned();
        self.read.insert(number, batch);
        error
    }

    /// The bytes of a batch of the log, which has all up to `last`. What is not here is asked for, and `calls` is set.
    pub(super) fn copy(
        &mut self,
        name: BatchName,
        last: u64,
        calls: &mut bool,
    ) -> Result<BatchCopy, NoBytes> {
        let BatchName { number, .. } = name;
        let first = self.newest.front().map_or(u64::MAX, |(it, _)| it.number);
        let newest = number.checked_sub(first).and_then(|at| self.newest.get(at as usize));
        if let Some((found, batch)) = newest {
            return if *found == name { Ok(batch.clone()) } else { Err(NoBytes::Gone) };
        }
        match self.read.get(&number) {
            Some(Ok(batch)) if batch.name() == Some(name) => return Ok(batch.clone()),
            Some(_) => return Err(NoBytes::Gone),
            None => {}
        }
        // A change of members is made when the log hears of it.
        if number <= self.last && self.asked.insert(number) {
            self.desk.order(|orders| orders.wanted.push(number..=last));
            *calls = true;
        }
        Err(NoBytes::ToCome)
    }

    /// Forgets what was read and nobody wants.
    pub(super) fn forget_read(&mut self, is_wanted: impl Fn(u64) -> bool) {
        self.read.retain(|number, batch| batch.is_ok() && is_wanted(*number));
    }

    /// All agree so far. True if that is new to the log.
    pub(super) fn agree(&mut self, agreed: BatchName) -> bool {
        let is_new = agreed.number > self.orders.agreed.number;
        if is_new {
            self.orders.agreed = agreed;
            self.desk.order(|orders| orders.agreed = agreed);
        }
        is_new
    }

    /// All members in contact have the batches up to this one. True if that is new to the log, and somebody waits for it.
    pub(super) fn reach_all(&mut self, number: u64) -> bool {
        let is_new = number > self.orders.on_all;
        if is_new {
            self.orders.on_all = number;
        }
        is_new && self.desk.reach_all(number)
    }

    /// Others have all below `have`, and these batches stay.
    pub(super) fn hold(&mut self, have: u64, hold: Hold) {
        while self.newest.front().is_some_and(|(name, _)| name.number < have) {
            self.drop_first();
        }
        if (have, hold) != (self.orders.let_go_of, self.orders.hold) {
            (self.orders.let_go_of, self.orders.hold) = (have, hold);
            // The log looks when it has its next turn.
            self.desk.order(|orders| (orders.let_go_of, orders.hold) = (have, hold));
        }
    }

    /// No batch is to be made of what the shard does, or from now on again. True if that is new to the log.
    pub(super) fn pause(&mut self, is_paused: bool) -> bool {
        let is_new = is_paused != self.orders.pause.is_some();
        if is_new {
            self.orders.pauses += u64::from(is_paused);
            let pause = Some(self.orders.pauses).filter(|_| is_paused);
            self.orders.pause = pause;
            self.desk.order(|orders| orders.pause = pause);
        }
        is_new
    }

    /// Whether it makes no batches, and said so.
    pub(super) fn is_still(&self) -> bool {
        self.paused.is_some() && self.paused == self.orders.pause
    }

    /// A change of members is to be written.
    pub(super) fn make(&self, bytes: Vec<u8>) {
        self.desk.order(|Orders { members, .. }| members.push(bytes));
    }
}
