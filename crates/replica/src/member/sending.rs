//! Batches on their way to other members: their bytes may have to be read first, and may be more than memory has room for.
//!
//! The engine names batches, as many as it likes. They are sent in order, some bytes at a time, and only so many of them as the
//! other one has not acknowledged. What gets lost the engine finds out by what is refused, and names it again.

use std::collections::{BTreeMap, VecDeque};

use leveret_log::BatchName;
use leveret_log::file::BatchCopy;

use crate::batches::{Batch, NoBytes};
use crate::group_log::GIVEN_BYTES;
use crate::members::MemberId;
use crate::message::{Body, Message};

/// Bytes on their way to one member that are not known to be there, unless one batch has more.
const UNDER_WAY: u64 = 16 << 20;

/// What waits for its bytes, for each member.
#[derive(Debug, Default)]
pub(super) struct Sending {
    to: BTreeMap<MemberId, Sent>,
}

#[derive(Debug, Default)]
struct Sent {
    waiting: VecDeque<Append>,
    /// What was sent and is not known to be there: the last batch of each message, and its bytes.
    under_way: VecDeque<(u64, u64)>,
    bytes: u64,
    /// When the other one was seen to have more, last.
    moved_ms: u64,
}

#[derive(Debug)]
struct Append {
    term: u64,
    before: BatchName,
    batches: VecDeque<Batch>,
    agreed: u64,
}

/// A message with the bytes of its batches.
pub(super) type Letter = (MemberId, Message, Vec<BatchCopy>);

impl Sent {
    fn clear(&mut self) {
        self.waiting.clear();
        self.under_way.clear();
        self.bytes = 0;
    }

    /// The last batch that was named.
    fn last(&self) -> Option<u64> {
        let waiting = self.waiting.back().and_then(|it| it.batches.back());
        waiting.map(|it| it.name.number).or_else(|| self.under_way.back().map(|it| it.0))
    }

    /// The other one has all up to this batch.
    fn has(&mut self, matched: u64, now_ms: u64) {
        while let Some((_, bytes)) = self.under_way.pop_front_if(|it| it.0 <= matched) {
            self.bytes -= bytes;
            self.moved_ms = now_ms;
        }
    }
}

impl Sending {
    /// Takes a message. Gives it back if nothing of it has to be waited for.
    pub(super) fn take(&mut self, to: MemberId, message: Message) -> Option<Message> {
        let Message { term, body } = message;
        let Body::Append { before, batches, agreed } = body else {
            return Some(Message { term, body });
        };
        let sent = self.to.entry(to).or_default();
        let Some(first) = batches.first().map(|it| it.name.number) else {
            // What it says of the agreement the next ones say, too; and what is before is not there yet.
            let is_free = sent.waiting.is_empty();
            let body = Body::Append { before, batches, agreed };
            return is_free.then_some(Message { term, body });
        };
        if sent.last().is_some_and(|last| first <= last) {
            // The other one lacks what was sent.
            sent.clear();
        }
        sent.waiting.push_back(Append { term, before, batches: batches.into(), agreed });
        None
    }

    /// What can be sent now in this term. `copy` gives the bytes of a batch, and is told the number of the last one that is
    /// wanted behind it.
    pub(super) fn go_on(
        &mut self,
        term: u64,
        now_ms: u64,
        matched: impl Fn(MemberId) -> Option<u64>,
        mut copy: impl FnMut(BatchName, u64) -> Result<BatchCopy, NoBytes>,
        letters: &mut Vec<Letter>,
    ) {
        for (&to, sent) in &mut self.to {
            sent.has(matched(to).unwrap_or(0), now_ms);
            while let Some(append) = sent.waiting.front_mut() {
                let Some(last) = append.batches.back().filter(|_| append.term == term) else {
                    sent.waiting.pop_front();
                    continue;
                };
                if sent.bytes >= UNDER_WAY {
                    break;
                }
                let last = last.name.number;
                let (mut copies, mut bytes, mut is_gone) = (Vec::new(), 0, false);
                while let Some(batch) = append.batches.get(copies.len()) {
                    match copy(batch.name, last) {
                        Ok(found) if bytes > 0 && bytes + found.len() > GIVEN_BYTES => break,
                        Ok(found) => {
                            bytes += found.len();
                            copies.push(found);
                        }
                        Err(error) => {
                            is_gone = error == NoBytes::Gone;
                            break;
                        }
                    }
                }
                if copies.is_empty() {
                    if is_gone {
                        // The engine asks again, and learns that it is gone.
                        sent.waiting.clear();
                    }
                    break;
                }
                let batches: Vec<_> = append.batches.drain(..copies.len()).collect();
                let name = batches.last().map_or(append.before, |it| it.name);
                let before = std::mem::replace(&mut append.before, name);
                if sent.under_way.is_empty() {
                    sent.moved_ms = now_ms;
                }
                sent.under_way.push_back((name.number, bytes));
                sent.bytes += bytes;
                let body = Body::Append { before, batches, agreed: append.agreed };
                letters.push((to, Message { term, body }, copies));
            }
        }
    }

    /// What was under way for so long is taken for lost.
    pub(super) fn give_up(&mut self, now_ms: u64, after_ms: u64) {
        for sent in self.to.values_mut() {
            if !sent.under_way.is_empty() && now_ms.saturating_sub(sent.moved_ms) > after_ms {
                sent.clear();
            }
        }
    }

    /// Whether this batch waits to be sent to anybody.
    pub(super) fn wants(&self, number: u64) -> bool {
        let mut all = self.to.values().flat_map(|sent| &sent.waiting);
        all.any(|append| {
            let first = append.batches.front().map_or(u64::MAX, |it| it.name.number);
            let last = append.batches.back().map_or(0, |it| it.name.number);
            (first..=last).contains(&number)
        })
    }

    /// Whether anything waits.
    pub(super) fn is_empty(&self) -> bool {
        self.to.values().all(|sent| sent.waiting.is_empty())
    }
}
