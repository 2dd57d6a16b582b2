//! Gates for consumers whose sessions are elsewhere: accounts, which letters fill. See
//! [`allowance`](crate::message::Allowance) for what is said.
//!
//! A connection has an account for its output from its first consumer here until its end, and one for each channel as long as that has
//! consumers here. What was given out when an account was closed is never counted in the next one, whose opening is told behind it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use leveret_queue::{Calls, ChannelLimit, Gate, OutputGauge};
use leveret_topology::{GroupId, NodeId};

use crate::message::{
    AccountId, Allowance, AllowanceState, ChannelId, ConnectionId, Outbox, ReplyTo, ToSession,
};

/// Whose account: a channel's, or without one the output's of a connection.
type Name = (ConnectionId, Option<ChannelId>);

/// All accounts of a shard.
#[derive(Debug)]
pub(super) struct Allowances {
    accounts: Vec<Option<Account>>,
    free: Vec<u32>,
    by_name: BTreeMap<Name, u32>,
    /// Where gates say that a queue begins to wait.
    calls: Receiver<u32>,
    to_calls: Sender<u32>,
    /// Accounts whose state is to be told, waiting or not.
    untold: Vec<u32>,
    last_number: u64,
}

#[derive(Debug)]
struct Account {
    name: Name,
    number: u64,
    version: u64,
    total: u64,
    /// At the end of the turn what is not used is given up.
    is_called_back: bool,
    meter: Meter,
    /// Of a channel: how many it has here.
    consumers: u32,
}

/// What counts what was given out.
#[derive(Debug)]
enum Meter {
    Output(Arc<OutputGauge>),
    Places(Arc<ChannelLimit>),
}

impl Meter {
    fn used(&self) -> u64 {
        match self {
            Self::Output(output) => output.queued(),
            Self::Places(places) => places.unacked(),
        }
    }

    fn is_awaited(&self) -> bool {
        match self {
            Self::Output(output) => output.is_awaited(),
            Self::Places(places) => places.is_awaited(),
        }
    }

    /// True when a queue waited and may go on.
    fn allow(&self, total: u64) -> bool {
        match self {
            Self::Output(output) => output.allow(total),
            Self::Places(places) => places.allow(total),
        }
    }
}

impl Default for Allowances {
    fn default() -> Self {
        let (to_calls, calls) = channel();
        Self {
            accounts: Vec::new(),
            free: Vec::new(),
            by_name: BTreeMap::new(),
            calls,
            to_calls,
            untold: Vec::new(),
            last_number: 0,
        }
    }
}

impl Allowances {
    /// Whether no consumer here has a session elsewhere.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The gate of one more consumer of a channel, closed at first. To be [given back](Self::left) if the queue does not take it.
    #[cold]
    pub(super) fn gate(&mut self, of: ReplyTo) -> Gate {
        let ReplyTo { connection, channel } = of;
        let output = match self.account((connection, None)).meter {
            Meter::Output(ref output) => Arc::clone(output),
            Meter::Places(_) => unreachable!("the output has no places"),
        };
        let account = self.account((connection, Some(channel)));
        account.consumers += 1;
        match account.meter {
            Meter::Places(ref places) => Gate::new(output, Arc::clone(places)),
            Meter::Output(_) => unreachable!("a channel has places"),
        }
    }

    /// The account, opened now if there is none.
    fn account(&mut self, name: Name) -> &mut Account {
        let index = match self.by_name.get(&name) {
            Some(&index) => index,
            None => self.open(name),
        };
        self.accounts[index as usize].as_mut().expect("what has a name is there")
    }

    fn open(&mut self, name: Name) -> u32 {
        let index = self.free.pop().unwrap_or(self.accounts.len() as u32);
        self.last_number += 1;
        let calls = Calls::new(self.to_calls.clone(), index);
        let meter = match name.1 {
            None => Meter::Output(Arc::new(OutputGauge::closed(calls))),
            Some(_) => Meter::Places(Arc::new(ChannelLimit::closed(calls))),
        };
        let (number, consumers) = (self.last_number, 0);
        let (version, total, is_called_back) = (0, 0, false);
        let account = Account { name, number, version, total, is_called_back, meter, consumers };
        match self.accounts.get_mut(index as usize) {
            Some(place) => *place = Some(account),
            None => self.accounts.push(Some(account)),
        }
        self.by_name.insert(name, index);
        self.untold.push(index);
        index
    }

    fn close(&mut self, name: Name) {
        if let Some(index) = self.by_name.remove(&name) {
            self.accounts[index as usize] = None;
            self.free.push(index);
        }
    }

    /// A consumer of a channel has gone. With the last one its account is closed.
    pub(super) fn left(&mut self, connection: ConnectionId, channel: ChannelId) {
        let name = (connection, Some(channel));
        let Some(&index) = self.by_name.get(&name) else { return };
        let Some(Some(account)) = self.accounts.get_mut(index as usize) else { return };
        account.consumers -= 1;
        if account.consumers == 0 {
            self.close(name);
        }
    }

    /// A connection has ended.
    pub(super) fn forget(&mut self, connection: ConnectionId) {
        let all = (connection, None)..=(connection, Some(ChannelId::MAX));
        let names: Vec<Name> = self.by_name.range(all).map(|(&name, _)| name).collect();
        names.into_iter().for_each(|name| self.close(name));
    }

    /// What a session allows in this term. True when a queue waited and may go on.
    #[must_use = "somebody may wait for a resume"]
    pub(super) fn hear(
        &mut self,
        connection: ConnectionId,
        allowances: &[Allowance],
        term: u64,
    ) -> bool {
        let mut resumes = false;
        for &Allowance { of, account: id, version, total, is_called_back } in allowances {
            let Some(&index) = self.by_name.get(&(connection, of)) else { continue };
            let Some(Some(account)) = self.accounts.get_mut(index as usize) else { continue };
            let is_it = id == AccountId { term, number: account.number };
            if !is_it || version < account.version {
                continue;
            }
            if version > account.version {
                account.version = version;
                account.total = total;
                account.is_called_back = is_called_back;
                resumes |= account.meter.allow(total);
            }
            if is_called_back || account.meter.is_awaited() {
                self.untold.push(index);
            }
        }
        resumes
    }

    /// The link to a node is new: what was told it may be lost, and what it allowed.
    pub(super) fn tell_again(&mut self, node: NodeId) {
        let of_node = self.by_name.iter().filter(|((connection, _), _)| connection.node() == node);
        self.untold.extend(of_node.map(|(_, &index)| index));
    }

    /// Tells states: of accounts that are new or were asked for, and of those for which a queue began to wait. To be called behind
    /// the deliveries of a turn.
    pub(super) fn tell(&mut self, group: GroupId, term: u64, out: &mut Outbox) {
        let Self { accounts, calls, untold, .. } = self;
        // Who waited and was allowed something has used it by now, though it was called back for others before he knew.
        for &index in &*untold {
            if let Some(Some(account)) = accounts.get_mut(index as usize)
                && std::mem::take(&mut account.is_called_back)
            {
                account.total = account.total.min(account.meter.used());
                let resumes = account.meter.allow(account.total);
                debug_assert!(!resumes, "all of it is used");
            }
        }
        let account = |index: u32| accounts.get(index as usize)?.as_ref();
        let is_awaited = |&index: &u32| account(index).is_some_and(|it| it.meter.is_awaited());
        untold.extend(calls.try_iter().filter(is_awaited));
        if untold.is_empty() {
            return;
        }
        let told = untold.drain(..).filter_map(|index| {
            let Account { name: (connection, of), number, version, total, meter, .. } =
                account(index)?;
            let state = AllowanceState {
                of: *of,
                account: AccountId { term, number: *number },
                version: *version,
                total: *total,
                is_waiting: meter.is_awaited(),
            };
            Some((*connection, state))
        });
        let mut told: Vec<(ConnectionId, AllowanceState)> = told.collect();
        told.sort_by_key(|(connection, state)| (*connection, state.of));
        told.dedup();
        for run in told.chunk_by(|(one, _), (other, _)| one == other) {
            let Some(&(connection, _)) = run.first() else { continue };
            let states = run.iter().map(|(_, state)| *state).collect();
            out.session(connection, ToSession::AllowanceStates { group, states });
        }
    }
}
