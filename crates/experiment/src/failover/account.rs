//! The account of one queue's messages: what was published, confirmed, delivered and acked, and what is wrong with that.
//!
//! ```text
//!   published --> confirmed --> delivered --> acked         nothing is wrong
//!                     \             \-- connection ends --> delivered again
//!                      \-- never delivered or acked, and the queue is empty: lost
//! ```
//!
//! A publisher never publishes a message twice, so each delivery after the first one needs a reason: the mark of a redelivery, or the end of the
//! connection that had the message before.

use std::collections::HashMap;

/// A connection of a consumer; no number is given twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Link(pub(crate) u32);

/// A message: who published it, and its number among those that this publisher sent to this queue. Numbers count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    /// The publisher.
    pub(crate) publisher: u16,
    /// Its number.
    pub(crate) number: u64,
}

/// What the broker said of a publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Fate {
    /// Nothing yet. It stays so if the connection ends: the message may be in the queue or not.
    #[default]
    Unknown,
    /// When, in ms since the beginning.
    Confirmed { at_ms: u32 },
    /// Nacked or returned.
    Refused,
}

#[derive(Clone, Copy, Debug, Default)]
struct Message {
    fate: Fate,
    deliveries: u16,
    /// When an ack for it was written last, in ms since the beginning.
    acked_ms: Option<u32>,
    /// The connection that had it last.
    last: Link,
}

impl Message {
    /// If the queue is empty.
    fn is_lost(&self) -> bool {
        matches!(self.fate, Fate::Confirmed { .. }) && self.acked_ms.is_none()
    }
}

/// Who sees the queue's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Audience {
    /// One consumer that gives nothing back: messages come to it first in the order in which they were published, whatever happens.
    One,
    /// Several, which also give messages back: on each connection those without the mark of a redelivery are in order.
    Several,
}

/// Delivered again without the mark of a redelivery, or after an ack, while the connection that had it had not ended as far as was known.
#[derive(Clone, Copy, Debug)]
struct Doubtful {
    id: Id,
    had_by: Link,
    /// Over which it came again. What a node sent before it was cut off may come late, after the same from another node.
    link: Link,
    at_ms: u32,
}

/// Came after a message of the same publisher with a higher number.
#[derive(Clone, Copy, Debug)]
struct Late {
    id: Id,
    height: u64,
    at_ms: u32,
}

/// What happened at a moment. A message that was lost counts when it was confirmed: nobody knows when it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    Confirmed,
    Lost,
    Duplicate,
    OutOfOrder,
}

/// A connection that has been given up by the broker ends for its client within so many ms: by its heartbeats at the latest.
const ENDS_WITHIN_MS: u32 = 20_000;

/// The account of one queue.
#[derive(Debug)]
pub(crate) struct Account {
    audience: Audience,
    /// By publisher and number.
    messages: Vec<Vec<Message>>,
    /// When connections of consumers ended without having been closed by the consumer, in ms since the beginning.
    ended_ms: HashMap<Link, u32>,
    /// The highest number that came first, by line and publisher.
    heights: HashMap<(Link, u16), u64>,
    doubtful: Vec<Doubtful>,
    /// When a message came twice beyond doubt, in ms since the beginning.
    twice_ms: Vec<u32>,
    /// Messages that came after one with a higher number.
    late: Vec<Late>,
    /// What was wrong beyond doubt when it came, the first of it.
    wrong: Vec<String>,
    sum: Sum,
}

/// Messages that are named.
const NAMED: usize = 20;

/// What an account comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Sum {
    pub(crate) published: u64,
    pub(crate) confirmed: u64,
    /// Nacked or returned.
    pub(crate) refused: u64,
    /// Without an answer: the connection ended.
    pub(crate) unknown: u64,
    /// Of those without an answer, delivered.
    pub(crate) unknown_delivered: u64,
    /// Messages that came, each counted once.
    pub(crate) delivered: u64,
    /// Came again with the mark of a redelivery.
    pub(crate) redelivered: u64,
    /// Came again without the mark, after the connection that had them ended.
    pub(crate) unmarked: u64,
    /// Came again after an ack was written for them: an ack has no answer, so it may be lost with its connection.
    pub(crate) again_after_ack: u64,
    /// Of those, the longest time between the ack and the end of its connection, in ms.
    pub(crate) oldest_lost_ack_ms: u64,
    /// Confirmed, and never acked, though the queue is empty.
    pub(crate) lost: u64,
    /// Came again without a reason.
    pub(crate) duplicates: u64,
    /// Came after a later one. Messages without an answer are not counted: what waits in a connection that has ended may be read after what
    /// came over the next one.
    pub(crate) out_of_order: u64,
    /// Came, and were never published, or not with these bytes.
    pub(crate) strange: u64,
}

impl std::ops::AddAssign for Sum {
    fn add_assign(&mut self, other: Self) {
        self.published += other.published;
        self.confirmed += other.confirmed;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.unknown_delivered += other.unknown_delivered;
        self.delivered += other.delivered;
        self.redelivered += other.redelivered;
        self.unmarked += other.unmarked;
        self.again_after_ack += other.again_after_ack;
        self.oldest_lost_ack_ms = self.oldest_lost_ack_ms.max(other.oldest_lost_ack_ms);
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.out_of_order += other.out_of_order;
        self.strange += other.strange;
    }
}

impl Account {
    /// One of a queue with this audience and so many publishers.
    pub(crate) fn new(audience: Audience, publishers: usize) -> Self {
        Self {
            audience,
            messages: vec![Vec::new(); publishers],
            ended_ms: HashMap::new(),
            heights: HashMap::new(),
            doubtful: Vec::new(),
            twice_ms: Vec::new(),
            late: Vec::new(),
            wrong: Vec::new(),
            sum: Sum::default(),
        }
    }

    /// Takes note of one more message of this publisher: its id.
    pub(crate) fn publish(&mut self, publisher: u16) -> Id {
        let messages = &mut self.messages[usize::from(publisher)];
        messages.push(Message::default());
        Id { publisher, number: messages.len() as u64 - 1 }
    }

    fn message(&mut self, id: Id) -> Option<&mut Message> {
        self.messages.get_mut(usize::from(id.publisher))?.get_mut(id.number as usize)
    }

    /// The broker has it.
    pub(crate) fn confirm(&mut self, id: Id, at_ms: u32) {
        // A message that was returned is confirmed afterwards, and is in no queue.
        if let Some(message) = self.message(id).filter(|it| it.fate == Fate::Unknown) {
            message.fate = Fate::Confirmed { at_ms };
        }
    }

    /// The broker does not want it.
    pub(crate) fn refuse(&mut self, id: Id) {
        if let Some(message) = self.message(id) {
            message.fate = Fate::Refused;
        }
    }

    /// A delivery came; the text of what seems wrong with it. [`sum`](Self::sum) judges.
    pub(crate) fn deliver(
        &mut self,
        link: Link,
        id: Option<Id>,
        redelivered: bool,
        now_ms: u32,
    ) -> Option<String> {
        let Some((id, message)) = id.and_then(|id| Some((id, self.message(id)?))) else {
            self.sum.strange += 1;
            return Some(self.is_wrong("a message came that was never published".to_owned()));
        };
        let before = *message;
        message.deliveries = message.deliveries.saturating_add(1);
        message.last = link;
        if before.deliveries > 0 {
            return self.again((link, id, now_ms), redelivered, before);
        }
        let line = match self.audience {
            Audience::One => Link::default(),
            // Given back by another consumer, which had not seen it yet.
            Audience::Several if redelivered => return None,
            Audience::Several => link,
        };
        let height = self.heights.entry((line, id.publisher)).or_insert(id.number);
        if id.number < *height {
            let text = after(id, *height);
            self.late.push(Late { id, height: *height, at_ms: now_ms });
            return Some(text);
        }
        *height = id.number;
        None
    }

    /// A message came that had come before.
    fn again(
        &mut self,
        (link, id, at_ms): (Link, Id, u32),
        redelivered: bool,
        before: Message,
    ) -> Option<String> {
        let had_by = before.last;
        let ended_ms = self.ended_ms.get(&had_by).copied();
        if let Some(acked_ms) = before.acked_ms {
            self.sum.again_after_ack += 1;
            let age_ms = ended_ms.map_or(0, |it| u64::from(it.saturating_sub(acked_ms)));
            self.sum.oldest_lost_ack_ms = self.sum.oldest_lost_ack_ms.max(age_ms);
        }
        let is_same = had_by == link;
        let Id { publisher, number } = id;
        match (redelivered, ended_ms) {
            // A message that was acked belongs to nobody: only the end of the connection can have undone that.
            (true, _) if before.acked_ms.is_none() => self.sum.redelivered += 1,
            (true, Some(_)) => self.sum.redelivered += 1,
            (false, Some(_)) => self.sum.unmarked += 1,
            _ if is_same => {
                self.sum.duplicates += 1;
                self.twice_ms.push(at_ms);
                return Some(self.is_wrong(format!(
                    "message {number} of publisher {publisher} came twice on one connection"
                )));
            }
            // The consumer may learn of the end of its connection later than the broker does.
            (true | false, None) => {
                self.doubtful.push(Doubtful { id, had_by, link, at_ms });
                let (Link(first), Link(second)) = (had_by, link);
                return Some(format!(
                    "message {number} of publisher {publisher} came over connection {second}, redelivered {redelivered}, though {first} had it"
                ));
            }
        }
        None
    }

    fn is_wrong(&mut self, text: String) -> String {
        if self.wrong.len() < NAMED {
            self.wrong.push(text.clone());
        }
        text
    }

    /// An ack for it was written.
    pub(crate) fn ack(&mut self, id: Id, now_ms: u32) {
        if let Some(message) = self.message(id) {
            message.acked_ms = Some(now_ms);
        }
    }

    /// A consumer's connection has ended without its doing: what it had may come again, and acks may be lost.
    pub(crate) fn end(&mut self, link: Link, now_ms: u32) {
        self.ended_ms.insert(link, now_ms);
    }

    fn is_unknown(&self, id: Id) -> bool {
        let messages = &self.messages[usize::from(id.publisher)];
        messages.get(id.number as usize).is_some_and(|it| it.fate == Fate::Unknown)
    }

    /// What it all comes to, if the queue is empty; and the first messages that something is wrong with.
    pub(crate) fn sum(&self) -> (Sum, Vec<String>) {
        let (mut sum, mut lines) = (self.sum, self.wrong.clone());
        let mut name = |text: String| {
            if lines.len() < NAMED {
                lines.push(text);
            }
        };
        for (publisher, messages) in self.messages.iter().enumerate() {
            for (number, message) in messages.iter().enumerate() {
                sum.published += 1;
                sum.delivered += u64::from(message.deliveries > 0);
                match message.fate {
                    Fate::Confirmed { .. } => sum.confirmed += 1,
                    Fate::Refused => sum.refused += 1,
                    Fate::Unknown => {
                        sum.unknown += 1;
                        sum.unknown_delivered += u64::from(message.deliveries > 0);
                    }
                }
                if message.is_lost() {
                    sum.lost += 1;
                    let deliveries = message.deliveries;
                    name(format!(
                        "message {number} of publisher {publisher} is lost: confirmed, delivered {deliveries} times, never acked"
                    ));
                }
            }
        }
        for doubtful in &self.doubtful {
            if self.is_explained(doubtful) {
                sum.unmarked += 1;
            } else {
                sum.duplicates += 1;
                let Id { publisher, number } = doubtful.id;
                name(format!(
                    "message {number} of publisher {publisher} came twice, and neither connection had ended"
                ));
            }
        }
        for late in self.late.iter().filter(|it| !self.is_unknown(it.id)) {
            sum.out_of_order += 1;
            name(after(late.id, late.height));
        }
        (sum, lines)
    }

    /// Whether a connection that had it ended, though it was known later.
    fn is_explained(&self, Doubtful { had_by, link, at_ms, .. }: &Doubtful) -> bool {
        [had_by, link].into_iter().any(|link| {
            let ended_ms = self.ended_ms.get(link);
            ended_ms.is_some_and(|it| *it <= at_ms.saturating_add(ENDS_WITHIN_MS))
        })
    }

    /// Tells when everything that counts for a fault happened, in ms since the beginning; as [`sum`](Self::sum) judges.
    pub(crate) fn moments(&self, mut tell: impl FnMut(Deed, u32)) {
        for message in self.messages.iter().flatten() {
            if let Fate::Confirmed { at_ms } = message.fate {
                tell(Deed::Confirmed, at_ms);
                if message.is_lost() {
                    tell(Deed::Lost, at_ms);
                }
            }
        }
        self.twice_ms.iter().for_each(|at_ms| tell(Deed::Duplicate, *at_ms));
        let twice = self.doubtful.iter().filter(|it| !self.is_explained(it));
        twice.for_each(|it| tell(Deed::Duplicate, it.at_ms));
        let late = self.late.iter().filter(|it| !self.is_unknown(it.id));
        late.for_each(|it| tell(Deed::OutOfOrder, it.at_ms));
    }
}

fn after(Id { publisher, number }: Id, height: u64) -> String {
    format!("message {number} of publisher {publisher} came after message {height}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: &str = "";

    /// Histories of one publisher's messages on connections 1 and 2, a letter for what happens and the message's number:
    /// `p`ublished, `c`onfirmed, `n`acked, `a`cked; `d` delivered on connection 1, `D` on 2, each with `r` if it has the mark; `e` connection 1 ends,
    /// `w` a minute passes.
    #[test]
    #[rustfmt::skip] // a table
    fn histories() {
        use Audience::{One, Several};
        // In order, each once.
        check(One,     "p0 p1 c0 c1 d0 d1 a0 a1",                   NOTHING);
        check(Several, "p0 p1 c0 c1 d0 D1 a0 a1",                   NOTHING);
        // Lost: confirmed and never delivered; delivered and never acked; only a delivery that was undone.
        check(One,     "p0 p1 c0 c1 d0 a0",                         "lost 1");
        check(One,     "p0 p1 c0 c1 d0 d1 a0",                      "lost 1");
        check(One,     "p0 c0 d0 e",                                "lost 1");
        check(One,     "p0 p1 p2 c0 c1 c2 d0 a0 e D2 a2",           "lost 1");
        // Nothing is promised of these.
        check(One,     "p0 p1 c0 d0 a0",                            NOTHING);
        check(One,     "p0 p1 c0 n1 d0 a0",                         NOTHING);
        check(One,     "p0 p1 c0 d0 d1 a0 a1",                      NOTHING);
        check(One,     "p0 n0 c0",                                  NOTHING);
        // Again: for a reason.
        check(One,     "p0 c0 d0 e D0 a0",                          "unmarked 1");
        check(One,     "p0 c0 d0 e D0r a0",                         "redelivered 1");
        check(One,     "p0 c0 d0 a0 e D0r a0",                      "redelivered 1, after ack 1");
        check(One,     "p0 c0 d0 a0 e D0 a0",                       "unmarked 1, after ack 1");
        check(Several, "p0 c0 d0 d0r a0",                           "redelivered 1");
        check(Several, "p0 c0 d0 D0r a0",                           "redelivered 1");
        // The broker knows of the end first.
        check(Several, "p0 c0 d0 D0 a0 e",                          "unmarked 1");
        check(Several, "p0 c0 d0 a0 D0r a0 e",                      "unmarked 1, after ack 1");
        // A node sent it before it was cut off, and it came after what the next leader sent.
        check(Several, "p0 c0 D0 d0 a0 e",                          "unmarked 1");
        check(Several, "p0 c0 D0 a0 d0 a0 e",                       "unmarked 1, after ack 1");
        // Again: for none.
        check(Several, "p0 c0 d0 D0 a0 w e",                        "duplicates 1");
        check(Several, "p0 c0 d0 a0 D0r a0 w e",                    "duplicates 1, after ack 1");
        check(Several, "p0 c0 d0 D0 a0",                            "duplicates 1");
        check(One,     "p0 c0 d0 d0 a0",                            "duplicates 1");
        check(One,     "p0 c0 d0 a0 d0 a0",                         "duplicates 1, after ack 1");
        check(One,     "p0 c0 d0 a0 d0r a0",                        "duplicates 1, after ack 1");
        check(Several, "p0 c0 d0 a0 D0r a0",                        "duplicates 1, after ack 1");
        check(Several, "p0 d0 D0 a0",                               "duplicates 1");
        // The order.
        check(One,     "p0 p1 c0 c1 d1 d0 a0 a1",                   "order 1");
        check(Several, "p0 p1 c0 c1 d1 d0 a0 a1",                   "order 1");
        check(One,     "p0 p1 c1 d1 d0 a0 a1",                      NOTHING); // its confirm never came
        check(One,     "p0 p1 d1 d0 a0 a1 c0 c1",                   "order 1");
        check(Several, "p0 p1 c0 c1 D1 d0 a0 a1",                   NOTHING);
        check(Several, "p0 p1 c0 c1 d1 d0r a0 a1",                  NOTHING); // another had it, and never saw it
        check(One,     "p0 p1 c0 c1 d1 d0r a0 a1",                  "order 1");
        check(One,     "p0 p1 p2 c0 c1 c2 d0 d1 e D0r D1r D2 a0 a1 a2", "redelivered 2");
        check(One,     "p0 p1 p2 c0 c1 c2 d0 d2 e D1r D2r a0 a1 a2",    "redelivered 1, order 1");
        // Never published.
        check(One,     "p0 c0 d0 a0 d7",                            "strange 1");
    }

    #[track_caller]
    fn check(audience: Audience, history: &str, want: &str) {
        let mut account = Account::new(audience, 1);
        let mut now_ms = 0;
        for word in history.split(' ') {
            let marked = word.ends_with('r');
            let digits = word[1..].trim_end_matches('r');
            let id = Id { publisher: 0, number: digits.parse().unwrap_or(0) };
            match &word[..1] {
                "p" => assert_eq!(account.publish(0), id, "{history}"),
                "c" => account.confirm(id, now_ms),
                "n" => account.refuse(id),
                "a" => account.ack(id, now_ms),
                "d" => drop(account.deliver(Link(1), Some(id), marked, now_ms)),
                "D" => drop(account.deliver(Link(2), Some(id), marked, now_ms)),
                "e" => account.end(Link(1), now_ms),
                "w" => now_ms += 60_000,
                other => panic!("{other}"),
            }
        }
        let (sum, lines) = account.sum();
        let mut counts = [0; 4];
        account.moments(|deed, _| counts[deed as usize] += 1);
        assert_eq!(
            counts,
            [sum.confirmed, sum.lost, sum.duplicates, sum.out_of_order],
            "{history}"
        );
        let told = [
            ("lost", sum.lost),
            ("duplicates", sum.duplicates),
            ("redelivered", sum.redelivered),
            ("unmarked", sum.unmarked),
            ("after ack", sum.again_after_ack),
            ("order", sum.out_of_order),
            ("strange", sum.strange),
        ];
        let told: Vec<_> = told
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        assert_eq!(told.join(", "), want, "{history}: {lines:?}");
    }

    #[test]
    fn sums() {
        let mut account = Account::new(Audience::One, 2);
        let ids: Vec<_> = [0, 1, 1, 1].into_iter().map(|it| account.publish(it)).collect();
        ids[..2].iter().for_each(|id| account.confirm(*id, 30));
        account.refuse(ids[3]);
        ids[..3].iter().for_each(|id| drop(account.deliver(Link(1), Some(*id), false, 0)));
        ids[..2].iter().for_each(|id| account.ack(*id, 100));
        account.end(Link(1), 140);
        assert_eq!(account.deliver(Link(2), Some(ids[1]), true, 200), None);
        assert!(account.deliver(Link(2), None, false, 200).unwrap().contains("never published"));
        let want = Sum {
            published: 4,
            confirmed: 2,
            refused: 1,
            unknown: 1,
            unknown_delivered: 1,
            delivered: 3,
            redelivered: 1,
            again_after_ack: 1,
            oldest_lost_ack_ms: 40,
            strange: 1,
            ..Sum::default()
        };
        assert_eq!(account.sum().0, want);
        let mut twice = want;
        twice += want;
        assert_eq!((twice.published, twice.oldest_lost_ack_ms), (8, 40));
    }
}
