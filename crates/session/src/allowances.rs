//! What consumers may be given by shards that share no memory with their session: see
//! [`Allowance`] for what is said, and "Bounds" in `docs/decisions/0061-letters-over-links.md`.
//!
//! Of a limit (the connection's output, a channel's prefetch) each shard with consumers has a part. What it may still give out counts as
//! taken, so all parts together never exceed the limit, whoever has what, and whichever letters are on their way.
//!
//! ```text
//!   limit  |- held, or to be written -|- may come: shard 0 -|- shard 1 -|- free -|
//!                ^-- deliveries --------------'                            |
//!                '-- settled, or written: free -------------------------> who waits first
//! ```
//!
//! A part is filled up when half of it has come. A shard that waits is served first; when nothing is free the one that has most and
//! does not wait is called back, and the next one when that says nothing for a while.

use std::collections::BTreeMap;
use std::sync::Arc;

use leveret_broker::message::{
    AccountId, Allowance, AllowanceState, ConnectionId, Outbox, ToShard, UNLIMITED,
};
use leveret_queue::{ChannelLimit, OutputGauge};
use leveret_topology::GroupId;

/// All that a session allows.
#[derive(Debug)]
pub(crate) struct Allowances {
    output: Parts,
    /// Of channels that have consumers.
    channels: BTreeMap<u16, Parts>,
    /// Channels of which something has changed.
    changed: Vec<u16>,
}

/// What is limited.
#[derive(Debug)]
enum Limit {
    Output(Arc<OutputGauge>),
    Places(Arc<ChannelLimit>),
}

impl Limit {
    /// None for any number.
    fn max(&self) -> Option<u64> {
        match self {
            Self::Output(output) => Some(output.limit()),
            Self::Places(places) => places.limit(),
        }
    }

    fn taken(&self) -> u64 {
        match self {
            Self::Output(output) => output.queued(),
            Self::Places(places) => places.unacked(),
        }
    }

    fn take(&self, count: u64) {
        match self {
            Self::Output(output) => output.added(count),
            Self::Places(places) => places.added(count),
        }
    }

    /// What was taken has not come, and will not.
    fn put_back(&self, count: u64) {
        // No queue waits for these: who does is in the parts.
        let _ = match self {
            Self::Output(output) => output.released(count),
            Self::Places(places) => places.removed(count),
        };
    }

    /// What a shard has at most, of `count`, and the least that is worth a letter.
    fn part(&self, max: u64, count: usize) -> (u64, u64) {
        match self {
            Self::Output(_) => ((max / 4).max(1), (max / 16).max(1)),
            Self::Places(_) => (max.div_ceil(count.max(1) as u64), 1),
        }
    }
}

/// A limit, and what shards have of it.
#[derive(Debug)]
struct Parts {
    limit: Limit,
    parts: Vec<Part>,
    /// Who is looked at first.
    next: usize,
    /// It is among those that changed.
    is_changed: bool,
}

/// What one shard has.
#[derive(Debug)]
struct Part {
    group: GroupId,
    /// Consumers there, of a channel.
    consumers: u32,
    /// None until the shard has told of it, and again when the shard is in a new term.
    account: Option<AccountId>,
    version: u64,
    /// What may come, and what came, since the account was opened. All that came may.
    total: u64,
    received: u64,
    /// It may give out any number: then the total is what came.
    is_unlimited: bool,
    is_called_back: bool,
    /// It was called back a while ago.
    is_silent: bool,
    is_waiting: bool,
    /// Something came since it was called back.
    is_active: bool,
    /// The shard is to be told.
    is_untold: bool,
}

impl Part {
    fn new(group: GroupId) -> Self {
        Self {
            group,
            consumers: 0,
            account: None,
            version: 0,
            total: 0,
            received: 0,
            is_unlimited: false,
            is_called_back: false,
            is_silent: false,
            is_waiting: false,
            is_active: false,
            is_untold: false,
        }
    }

    /// What may come and has not.
    fn unused(&self) -> u64 {
        self.total - self.received
    }

    fn change(&mut self) {
        self.version += 1;
        self.is_untold = true;
    }

    fn call_back(&mut self) {
        (self.is_called_back, self.is_silent) = (true, false);
        self.change();
    }

    /// The account is another one, or none.
    fn begin(&mut self, account: Option<AccountId>) {
        let Self { group, consumers, .. } = *self;
        *self = Self { consumers, account, is_waiting: account.is_some(), ..Self::new(group) };
    }
}

impl Parts {
    fn new(limit: Limit) -> Self {
        Self { limit, parts: Vec::new(), next: 0, is_changed: false }
    }

    fn part(&mut self, group: GroupId) -> Option<&mut Part> {
        self.parts.iter_mut().find(|part| part.group == group)
    }

    /// The part of a shard that has a consumer.
    fn part_or_new(&mut self, group: GroupId) -> &mut Part {
        let at = self.parts.iter().position(|part| part.group == group);
        let at = at.unwrap_or_else(|| {
            self.parts.push(Part::new(group));
            self.parts.len() - 1
        });
        &mut self.parts[at]
    }

    /// The shard closes its account with the last one.
    fn consumer_left(&mut self, group: GroupId) {
        let Some(at) = self.parts.iter().position(|part| part.group == group) else { return };
        self.parts[at].consumers -= 1;
        if self.parts[at].consumers == 0 {
            let part = self.parts.swap_remove(at);
            self.limit.put_back(part.unused());
        }
    }

    /// So much came from a shard: what it had is taken by what came, and what it had not is taken now.
    fn came(&mut self, group: GroupId, count: u64) {
        let mut had = 0;
        if let Some(part) = self.part(group) {
            had = part.unused().min(count);
            part.received += count;
            part.total = part.total.max(part.received);
            part.is_active = true;
        }
        self.limit.take(count - had);
    }

    /// The shard is in a new term: what came is held still, and no more comes.
    fn begin_term(&mut self, group: GroupId) {
        let Some(part) = self.part(group) else { return };
        let unused = part.unused();
        part.begin(None);
        self.limit.put_back(unused);
    }

    fn hear(&mut self, group: GroupId, state: &AllowanceState) {
        let Some(part) = self.part(group) else { return };
        let mut back = 0;
        if part.account != Some(state.account) {
            if state.version > 0 {
                return;
            }
            back = part.unused();
            part.begin(Some(state.account));
        } else if state.version < part.version {
            part.is_untold = true;
        } else {
            if std::mem::take(&mut part.is_called_back) {
                let total = state.total.clamp(part.received, part.total);
                back = part.total - total;
                part.total = total;
                part.is_active = false;
            }
            part.is_waiting = state.is_waiting && !part.is_unlimited;
        }
        self.limit.put_back(back);
    }

    /// Gives what is free to who needs it, and sees to it that something gets free. True while a shard that was called back is waited for, though
    /// others could be.
    fn share_out(&mut self) -> bool {
        let Self { limit, parts, next, .. } = self;
        let Some(max) = limit.max() else {
            for part in parts.iter_mut().filter(|it| it.account.is_some() && !it.is_unlimited) {
                limit.put_back(part.unused());
                part.total = part.received;
                (part.is_unlimited, part.is_called_back, part.is_waiting) = (true, false, false);
                part.change();
            }
            return false;
        };
        for part in parts.iter_mut().filter(|part| part.is_unlimited) {
            part.is_unlimited = false;
            part.change();
        }
        let (most, least) = limit.part(max, parts.len());
        let count = parts.len();
        for waits in [true, false] {
            for at in 0..count {
                let part = &mut parts[(*next + at) % count];
                let free = max.saturating_sub(limit.taken());
                let more = most.saturating_sub(part.unused()).min(free);
                let needs = part.is_waiting || part.is_active && part.unused() <= most / 2;
                let may = part.account.is_some() && !part.is_called_back && more >= least;
                if may && needs && part.is_waiting == waits {
                    limit.take(more);
                    part.total += more;
                    part.is_waiting = false;
                    part.change();
                }
            }
        }
        *next = (*next + 1) % count.max(1);
        let may = |part: &&mut Part| part.unused() > 0 && !part.is_waiting && !part.is_called_back;
        if limit.taken() > max {
            parts.iter_mut().filter(may).for_each(Part::call_back);
            return false;
        }
        if !parts.iter().any(|part| part.is_waiting) {
            return false;
        }
        if !parts.iter().any(|part| part.is_called_back && !part.is_silent) {
            let most = parts.iter_mut().filter(may).max_by_key(|part| part.unused());
            most.into_iter().for_each(Part::call_back);
        }
        parts.iter_mut().any(|part| may(&part))
    }

    /// Who was called back had its time. False when there is nobody.
    fn call_on(&mut self) -> bool {
        let called = self.parts.iter_mut().filter(|part| part.is_called_back && !part.is_silent);
        called.map(|part| part.is_silent = true).count() > 0
    }

    /// What shards are to be told.
    fn tell(&mut self, of: Option<u16>, letters: &mut Vec<(GroupId, Allowance)>) {
        for part in &mut self.parts {
            if !std::mem::take(&mut part.is_untold) {
                continue;
            }
            let Some(account) = part.account else { continue };
            let Part { version, is_called_back, .. } = *part;
            let total = if part.is_unlimited { UNLIMITED } else { part.total };
            letters.push((part.group, Allowance { of, account, version, total, is_called_back }));
        }
    }
}

impl Allowances {
    pub(crate) fn new(output: Arc<OutputGauge>) -> Self {
        Self {
            output: Parts::new(Limit::Output(output)),
            channels: BTreeMap::new(),
            changed: Vec::new(),
        }
    }

    /// A channel has one more consumer at a shard.
    pub(crate) fn consumer_came(
        &mut self,
        channel: u16,
        limit: &Arc<ChannelLimit>,
        group: GroupId,
    ) {
        self.output.part_or_new(group);
        let new = || Parts::new(Limit::Places(Arc::clone(limit)));
        let places = self.channels.entry(channel).or_insert_with(new);
        places.part_or_new(group).consumers += 1;
    }

    /// A channel has one less. The account of the output stays as long as the connection.
    pub(crate) fn consumer_left(&mut self, channel: u16, group: GroupId) {
        let Some(parts) = self.channels.get_mut(&channel) else { return };
        parts.consumer_left(group);
        if parts.parts.is_empty() {
            self.channels.remove(&channel);
        } else {
            self.change(channel);
        }
    }

    /// A delivery came, for a consumer that is there, or for one that is gone.
    pub(crate) fn came(&mut self, group: GroupId, cost: u64, place_of: Option<u16>) {
        self.output.came(group, cost);
        if let Some(channel) = place_of
            && let Some(parts) = self.channels.get_mut(&channel)
        {
            parts.came(group, 1);
            self.change(channel);
        }
    }

    /// What a channel has, or may have, is another number.
    pub(crate) fn change(&mut self, channel: u16) {
        if let Some(parts) = self.channels.get_mut(&channel)
            && !std::mem::replace(&mut parts.is_changed, true)
        {
            self.changed.push(channel);
        }
    }

    /// The shard of a group is in a new term: it opens accounts anew.
    pub(crate) fn begin_term(&mut self, group: GroupId) {
        self.output.begin_term(group);
        let channels: Vec<u16> = self.channels.keys().copied().collect();
        for channel in channels {
            if let Some(parts) = self.channels.get_mut(&channel) {
                parts.begin_term(group);
            }
            self.change(channel);
        }
    }

    /// A shard tells of its accounts.
    pub(crate) fn hear(&mut self, group: GroupId, states: &[AllowanceState]) {
        for state in states {
            let Some(channel) = state.of else {
                self.output.hear(group, state);
                continue;
            };
            if let Some(parts) = self.channels.get_mut(&channel) {
                parts.hear(group, state);
                self.change(channel);
            }
        }
    }

    /// Those that were called back before are not waited for any more: others may be called back.
    #[cold]
    pub(crate) fn call_on(&mut self) {
        self.output.call_on();
        let silent =
            self.channels.iter_mut().filter_map(|(&it, parts)| parts.call_on().then_some(it));
        let silent: Vec<u16> = silent.collect();
        silent.into_iter().for_each(|channel| self.change(channel));
    }

    /// Tells shards what they may give out, if that is something else now. True when others are to be [called back](Self::call_on)
    /// in a while.
    pub(crate) fn tell(&mut self, connection: ConnectionId, out: &mut Outbox) -> bool {
        let mut letters = Vec::new();
        let mut is_short = self.output.share_out();
        self.output.tell(None, &mut letters);
        for channel in self.changed.drain(..) {
            if let Some(parts) = self.channels.get_mut(&channel) {
                parts.is_changed = false;
                is_short |= parts.share_out();
                parts.tell(Some(channel), &mut letters);
            }
        }
        letters.sort_by_key(|(group, _)| *group);
        for run in letters.chunk_by(|(one, _), (other, _)| one == other) {
            let Some(&(group, _)) = run.first() else { continue };
            let allowances = run.iter().map(|(_, allowance)| *allowance).collect();
            out.shard(group, ToShard::Allow { connection, allowances });
        }
        is_short
    }
}

#[cfg(test)]
mod tests;
