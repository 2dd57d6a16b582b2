//! What a node keeps of the letters that it numbers for one group, until they are agreed upon.
//!
//! ```text
//!   agreed upon                first           cursor      end
//!   [ 4 ] [ 6 ]                  [ 7 ][ 8 ][ 9 ][ 10 ]
//!     `- a verdict is awaited                       `- to be sent
//! ```
//!
//! A letter is let go of when its number is agreed upon and each of its messages has its verdict. Those that are not agreed upon
//! fill the window. After a change of the
//! link or of the group's shard the cursor goes back, and what is kept is sent again in its order. A verdict is passed on
//! once for each message: it may come from the shard before a change and from the one after it, and `Confirms` of a session counts
//! answers. The shard says up to which letter this side has *heard* what became of all messages; it is told so with each letter, and has
//! nothing more to say of those.
//!
//! Bodies are kept by reference, until they are agreed upon. A message that waits for a consumer's ack (rules `ack` and `ack-lean`) may
//! be agreed upon and in the shard's memory alone: its body is kept until the shard says that the log has it, and the next shard is asked
//! to take it again. Where these become many, the shard is told to write them. See [`stream`](leveret_broker::stream) for the other side.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use leveret_broker::message::{
    Attached, ChannelId, ConnectionId, GivenBack, Message, NodeId, Outbox, Publish, Reply, ReplyTo,
    Settlement, Targets, ToSession, ToShard,
};
use leveret_broker::stream::{
    AskedMessage, Numbered, StreamClass, StreamEvent, StreamId, StreamNews, StreamPlace,
    Whereabouts,
};
use leveret_broker::transaction::TxId;
use leveret_queue::Offset;
use leveret_topology::GroupId;

use self::untold::{ConfirmKey, UntoldMessages, UntoldRun};
use crate::remote::detach;

mod untold;

const CLASSES: [StreamClass; 2] = StreamClass::BOTH;

/// Publishers pause with so many times the bytes of a window that are in the shard's memory alone. It is told to write them before.
const IN_MEMORY_WINDOWS: u64 = 4;

/// Messages of a letter that have their verdict are forgotten if they are so many more than the others.
const TOLD_KEPT: usize = 8;

/// How much is kept of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptMax {
    /// With so many letters it is full.
    pub letters: usize,
    /// With so many bytes it is full; the last letter may go beyond that.
    pub bytes: u64,
}

impl Default for KeptMax {
    fn default() -> Self {
        Self { letters: 16_384, bytes: 8 << 20 }
    }
}

/// The streams of a node to one group, and who waits for them.
#[derive(Debug)]
pub struct StreamSender {
    node: NodeId,
    start: u32,
    max: KeptMax,
    /// Of the group's shard, as far as is known.
    term: u64,
    bodies: Window,
    acks: Window,
    /// Messages that have no verdict of this group. A transaction has the number 0.
    untold: UntoldMessages,
    /// The letters of those transactions.
    undecided: BTreeSet<u64>,
    /// Letters without a number that are to be sent, each behind these numbers: of messages, and of settlements.
    commands: VecDeque<([u64; 2], ToShard)>,
    /// How many there were so far.
    unnumbered: u64,
    /// Questions without an answer. A session waits for the answer before it asks the next one.
    questions: BTreeMap<ConnectionId, ToShard>,
    /// Connections that have not attached in this term of the shard.
    awaited: BTreeSet<ConnectionId>,
    /// Where records of this term begin in the group.
    begins_at: Option<(GroupId, Offset)>,
    /// Letters with transactions, or with parts of them, of which one was told that they are refused. A shard in another term may know nothing of that.
    refused: BTreeSet<u64>,
}

/// The letters of a stream that are kept.
#[derive(Debug)]
struct Window {
    /// The number of the first letter that is not agreed upon.
    first: u64,
    /// Those that are not agreed upon: these fill it.
    letters: VecDeque<KeptLetter>,
    /// What those take.
    bytes: u64,
    /// Those that are, of which a verdict is awaited. It may be a consumer's ack, who may never come, or be one of those who would pause.
    /// So nothing is kept of the letters in between.
    waiting: BTreeMap<u64, KeptLetter>,
    /// What messages of these take that are in the shard's memory alone.
    in_memory: u64,
    /// What all of them took that ever were.
    ever_in_memory: u64,
    /// How much that was when the shard was told to write them.
    to_be_written: u64,
    /// The number that is sent next.
    cursor: u64,
    /// Those below were sent, if they had to be,
    sent_below: u64,
    /// and those below to the shard of an earlier term, or were to be.
    again_below: u64,
    /// The other side had those below when the link was new.
    has_below: u64,
    /// Of each message of those up to this one is known whether it was stored, or refused.
    heard: u64,
    /// All up to this one are agreed upon.
    agreed: u64,
    /// Who pauses, as there is no room here.
    paused: Vec<ConnectionId>,
}

#[derive(Debug)]
struct KeptLetter {
    letter: StreamLetter,
    bytes: u64,
    /// Messages without a verdict.
    untold: usize,
    /// Messages that wait for a consumer, as was said before the letter was known to be agreed upon.
    waits: Vec<WaitsAt>,
    /// Messages that are confirmed, from here to there, though the letter is not agreed upon: no shard is to take these once more. They
    /// are acked, perhaps, and in no log.
    confirmed: Vec<(u32, u32)>,
}

/// Messages of a letter that wait for a consumer, from here to there, and where the first one is in the log.
#[derive(Clone, Copy, Debug)]
struct WaitsAt {
    first: u32,
    last: u32,
    at: Option<Offset>,
}

/// What is numbered.
#[derive(Debug)]
enum StreamLetter {
    Publish {
        from: ConnectionId,
        messages: Vec<Publish>,
    },
    /// Of such a letter that is agreed upon the messages without a verdict, by their places.
    Ask {
        from: ConnectionId,
        messages: Vec<AskedMessage>,
    },
    Settle {
        from: ConnectionId,
        settlements: Vec<Settlement>,
    },
    GiveBack {
        from: ConnectionId,
        unsettled: Arc<GivenBack>,
    },
    Commit {
        reply: ReplyTo,
        of: Option<(TxId, u32)>,
        messages: Vec<Publish>,
        settlements: Vec<Settlement>,
    },
}

impl StreamLetter {
    fn of(letter: ToShard) -> Self {
        match letter {
            ToShard::Publish { from, mut messages } => {
                // Its records are never those of other logs, too.
                messages.iter_mut().for_each(|message| message.shared = None);
                Self::Publish { from, messages }
            }
            ToShard::Settle { from, settlements } => Self::Settle { from, settlements },
            ToShard::GiveBack { from, unsettled } => Self::GiveBack { from, unsettled },
            ToShard::Commit { reply, mut messages, settlements } => {
                messages.iter_mut().for_each(|message| message.shared = None);
                Self::Commit { reply, of: None, messages, settlements }
            }
            ToShard::Prepare { reply, tx, parts, mut messages, settlements } => {
                messages.iter_mut().for_each(|message| message.shared = None);
                Self::Commit { reply, of: Some((tx, parts)), messages, settlements }
            }
            other => panic!("{} gets no number", other.kind()),
        }
    }

    fn from(&self) -> ConnectionId {
        match self {
            Self::Publish { from, .. }
            | Self::Ask { from, .. }
            | Self::Settle { from, .. }
            | Self::GiveBack { from, .. } => *from,
            Self::Commit { reply, .. } => reply.connection,
        }
    }

    /// Of a transaction that other groups have parts of.
    fn is_part(&self) -> bool {
        matches!(self, Self::Commit { of: Some(_), .. })
    }

    fn class(&self) -> StreamClass {
        match self {
            Self::Publish { .. } | Self::Ask { .. } | Self::Commit { .. } => StreamClass::Bodies,
            Self::Settle { .. } | Self::GiveBack { .. } => StreamClass::Acks,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Publish { messages, .. } => bytes_of(messages),
            Self::Ask { messages, .. } => messages.iter().map(bytes_in_memory).sum(),
            Self::Settle { settlements, .. } => size_of_val(&settlements[..]) as u64,
            Self::Commit { messages, settlements, .. } => {
                bytes_of(messages) + size_of_val(&settlements[..]) as u64
            }
            Self::GiveBack { unsettled, .. } => unsettled.share_of(unsettled.bytes()),
        }
    }

    /// Each shard to come has what it says, and is asked for verdicts alone: of those messages that have none. (A transaction that is
    /// not decided is done anew.)
    fn is_agreed(&mut self, waits: &[WaitsAt], is_untold: impl Fn(ConfirmKey) -> bool) {
        let Self::Publish { from, messages } = self else { return };
        let from = *from;
        let asked = |(place, mut message): (u32, Publish)| {
            let Publish { channel, confirm, .. } = message;
            let is_asked = confirm != 0 && is_untold((from, channel, confirm));
            is_asked.then(|| {
                // It may be one of few of its read that wait.
                detach(&mut message.message);
                let whereabouts = Whereabouts::Memory(message);
                AskedMessage { place, channel, confirm, whereabouts }
            })
        };
        let messages = (0..).zip(std::mem::take(messages)).filter_map(asked).collect();
        *self = Self::Ask { from, messages };
        waits.iter().for_each(|waits| _ = self.waits(*waits));
    }

    /// Where some of the messages wait is known. Bytes that need not be kept any more.
    fn waits(&mut self, WaitsAt { first, last, at }: WaitsAt) -> u64 {
        let Self::Ask { messages, .. } = self else { return 0 };
        let mut freed = 0;
        let from = messages.partition_point(|message| message.place < first);
        for message in messages[from..].iter_mut().take_while(|message| message.place <= last) {
            freed += bytes_in_memory(message);
            let place = message.place - first;
            message.whereabouts = match (at, &message.whereabouts) {
                (
                    Some(at),
                    Whereabouts::Memory(Publish { targets, .. }) | Whereabouts::Log(targets, _),
                ) => {
                    let at = Offset::new(at.get() + u64::from(place));
                    Whereabouts::Log(targets.clone(), at)
                }
                _ => Whereabouts::Nowhere,
            };
        }
        freed
    }

    /// Messages have their verdict, and are asked for no more. Bytes that need not be kept any more.
    fn are_told(&mut self, first: u32, last: u32) -> u64 {
        let Self::Ask { messages, .. } = self else { return 0 };
        let mut freed = 0;
        let from = messages.partition_point(|message| message.place < first);
        for message in messages[from..].iter_mut().take_while(|message| message.place <= last) {
            freed += bytes_in_memory(message);
            // It keeps its place, as others of the letter are many, perhaps.
            message.whereabouts = Whereabouts::Nowhere;
            message.confirm = 0;
        }
        freed
    }

    /// So many messages have no verdict. If these are few beside the others, they alone are kept.
    fn leave_told(&mut self, untold: usize) {
        if let Self::Ask { messages, .. } = self
            && messages.len() > 2 * untold + TOLD_KEPT
        {
            messages.retain(|message| message.confirm != 0);
            messages.shrink_to_fit();
        }
    }

    /// Messages of the group from this offset on are lost: settlements of those mean nothing. They keep their places, as a shard may have
    /// done a part of the letter.
    fn lose(&mut self, group: GroupId, begins_at: Offset) {
        match self {
            Self::Settle { settlements, .. } | Self::Commit { settlements, .. } => {
                settlements.iter_mut().for_each(|it| it.lose(begins_at));
            }
            Self::GiveBack { unsettled, .. } => {
                let is_lost = |it: Settlement| it.offset >= begins_at;
                if unsettled.of(group, 0, usize::MAX).any(is_lost) {
                    Arc::make_mut(unsettled).lose(group, begins_at);
                }
            }
            Self::Publish { .. } | Self::Ask { .. } => {}
        }
    }

    /// The letter once more, with the same bodies. Messages that are confirmed keep no more than their places.
    fn again(&self, confirmed: &[(u32, u32)]) -> ToShard {
        match self {
            Self::Publish { from, messages } => {
                let mut messages = messages.clone();
                for &(first, last) in confirmed {
                    let some = messages.get_mut(first as usize..=last as usize);
                    some.into_iter().flatten().for_each(|message| {
                        (message.confirm, message.targets) = (0, Targets::default());
                        message.message = Message::empty();
                    });
                }
                ToShard::Publish { from: *from, messages }
            }
            Self::Ask { from, messages } => {
                let untold = messages.iter().filter(|message| message.confirm != 0);
                ToShard::Ask { from: *from, messages: untold.cloned().collect() }
            }
            Self::Settle { from, settlements } => {
                ToShard::Settle { from: *from, settlements: settlements.clone() }
            }
            Self::GiveBack { from, unsettled } => {
                ToShard::GiveBack { from: *from, unsettled: Arc::clone(unsettled) }
            }
            Self::Commit { reply, of, messages, settlements } => {
                let (reply, messages, settlements) =
                    (*reply, messages.clone(), settlements.clone());
                match *of {
                    None => ToShard::Commit { reply, messages, settlements },
                    Some((tx, parts)) => {
                        ToShard::Prepare { reply, tx, parts, messages, settlements }
                    }
                }
            }
        }
    }
}

/// What a message takes that is kept as the shard has it in memory alone.
fn bytes_in_memory(message: &AskedMessage) -> u64 {
    match &message.whereabouts {
        Whereabouts::Memory(message) => bytes_of(std::slice::from_ref(message)),
        Whereabouts::Log(..) | Whereabouts::Nowhere => 0,
    }
}

/// The messages of a letter that are to have a verdict, in runs.
fn runs_of(messages: &[Publish], letter: u64) -> impl Iterator<Item = (ChannelId, UntoldRun)> {
    let mut all = (0..).zip(messages).filter(|(_, message)| message.confirm != 0).peekable();
    std::iter::from_fn(move || {
        let (place, &Publish { channel, confirm: first, .. }) = all.next()?;
        let mut last = first;
        let is_next = |(at, it): &(u32, &Publish), last| {
            let to_first = u64::from(at - place);
            it.channel == channel && it.confirm == last + 1 && it.confirm == first + to_first
        };
        while all.next_if(|next| is_next(next, last)).is_some() {
            last += 1;
        }
        Some((channel, UntoldRun { first, last, letter, place }))
    })
}

fn bytes_of(messages: &[Publish]) -> u64 {
    let lens = messages.iter().map(|it| it.message.len() + 8 * it.targets.len() as u64);
    lens.sum::<u64>() + size_of_val(messages) as u64
}

impl Window {
    fn new() -> Self {
        Self {
            first: 1,
            letters: VecDeque::new(),
            bytes: 0,
            waiting: BTreeMap::new(),
            in_memory: 0,
            ever_in_memory: 0,
            to_be_written: 0,
            cursor: 1,
            sent_below: 1,
            again_below: 1,
            has_below: 0,
            heard: 0,
            agreed: 0,
            paused: Vec::new(),
        }
    }

    /// The number of the next letter.
    fn end(&self) -> u64 {
        self.first + self.letters.len() as u64
    }

    fn push(&mut self, kept: KeptLetter) -> u64 {
        let number = self.end();
        self.bytes += kept.bytes;
        self.letters.push_back(kept);
        number
    }

    /// The number of the first letter that is kept.
    fn first_kept(&self) -> u64 {
        self.waiting.first_key_value().map_or(self.first, |(number, _)| *number)
    }

    /// How many letters are kept.
    fn len(&self) -> usize {
        self.letters.len() + self.waiting.len()
    }

    fn kept(&mut self, number: u64) -> Option<&mut KeptLetter> {
        match number.checked_sub(self.first) {
            Some(index) => self.letters.get_mut(usize::try_from(index).ok()?),
            None => self.waiting.get_mut(&number),
        }
    }

    fn agreed(&mut self, low: u64, is_untold: impl Fn(ConfirmKey) -> bool) {
        let low = low.min(self.end() - 1);
        self.agreed = self.agreed.max(low);
        while self.first <= low
            && let Some(mut kept) = self.letters.pop_front()
        {
            self.bytes -= kept.bytes;
            if kept.untold > 0 {
                let waits = std::mem::take(&mut kept.waits);
                kept.letter.is_agreed(&waits, &is_untold);
                if matches!(kept.letter, StreamLetter::Ask { .. }) {
                    let bytes = kept.letter.bytes();
                    self.in_memory += bytes;
                    self.ever_in_memory += bytes;
                }
                self.waiting.insert(self.first, kept);
            }
            self.first += 1;
        }
        self.cursor = self.cursor.max(self.first_kept());
    }

    /// Messages of a letter wait for a consumer.
    fn waits(&mut self, number: u64, waits: WaitsAt) {
        let is_agreed = number < self.first;
        let Some(kept) = self.kept(number) else { return };
        if is_agreed {
            self.in_memory -= kept.letter.waits(waits);
        } else {
            kept.waits.push(waits);
        }
    }

    /// Messages of a letter have their verdict.
    fn are_told(&mut self, run: UntoldRun, is_confirmed: bool) {
        let (number, first) = (run.letter, run.place);
        let last = first + (run.len() - 1);
        let Some(kept) = self.kept(number) else { return };
        if is_confirmed && matches!(kept.letter, StreamLetter::Publish { .. }) {
            match kept.confirmed.last_mut() {
                Some((_, end)) if end.checked_add(1) == Some(first) => *end = last,
                _ => kept.confirmed.push((first, last)),
            }
        }
        kept.untold -= run.len() as usize;
        let (is_over, freed) = (kept.untold == 0, kept.letter.are_told(first, last));
        kept.letter.leave_told(kept.untold);
        self.in_memory -= freed;
        if is_over {
            self.waiting.remove(&number);
            self.cursor = self.cursor.max(self.first_kept());
        }
    }

    /// The shard is to write what it has in memory alone of the letters up to this one, if that is much, and more than when it was
    /// told so.
    fn is_to_write(&mut self, max: KeptMax) -> Option<u64> {
        let since = self.ever_in_memory - self.to_be_written;
        let wants = self.in_memory > max.bytes && since > max.bytes / 2;
        wants.then(|| {
            self.to_be_written = self.ever_in_memory;
            self.first - 1
        })
    }

    /// Verdicts of all up to this one came that came in this term. Those of letters of earlier terms are behind the question for
    /// them, which is before all that has come in this term alone.
    fn hears(&mut self, told: u64) {
        if told >= self.has_below {
            self.heard = self.heard.max(told.min(self.end() - 1));
        }
    }

    /// The next letter is this one, unless it is one before.
    fn go_back_to(&mut self, number: u64) {
        self.cursor = self.cursor.min(number).max(self.first_kept());
    }

    fn has_next_up_to(&self, last: u64) -> bool {
        self.cursor < self.end() && self.cursor <= last
    }

    /// What was sent so far was sent to another shard.
    fn is_of_another_term(&mut self) {
        self.again_below = self.sent_below;
    }

    /// The next letter is the first one, and the other side has those below `next`.
    fn begins(&mut self, next: u64) {
        (self.cursor, self.has_below) = (self.first_kept(), next);
    }

    /// The number of the next letter that is kept, and not above `last`. The ones before it count as sent.
    fn next_up_to(&mut self, last: u64) -> Option<u64> {
        if !self.has_next_up_to(last) {
            return None;
        }
        let waiting = self.waiting.range(self.cursor..).next();
        let number = match waiting {
            Some((number, _)) => *number,
            None => self.cursor.max(self.first),
        };
        let end = self.end().min(last.saturating_add(1));
        self.cursor = end.min(number + 1);
        self.sent_below = self.sent_below.max(self.cursor);
        (number < end).then_some(number)
    }

    fn is_over(&self, max: KeptMax, shift: u32) -> bool {
        let bytes = (max.bytes >> shift).max(1);
        self.letters.len() >= (max.letters >> shift).max(1)
            || self.bytes >= bytes
            || self.in_memory >= IN_MEMORY_WINDOWS * bytes
    }
}

impl StreamSender {
    /// Of a node at its `start`: nothing is numbered yet.
    pub fn new(node: NodeId, start: u32, max: KeptMax) -> Self {
        Self {
            node,
            start,
            max,
            term: 0,
            bodies: Window::new(),
            acks: Window::new(),
            untold: UntoldMessages::default(),
            undecided: BTreeSet::new(),
            commands: VecDeque::new(),
            unnumbered: 0,
            questions: BTreeMap::new(),
            awaited: BTreeSet::new(),
            begins_at: None,
            refused: BTreeSet::new(),
        }
    }

    fn window(&mut self, class: StreamClass) -> &mut Window {
        match class {
            StreamClass::Bodies => &mut self.bodies,
            StreamClass::Acks => &mut self.acks,
        }
    }

    /// The name of a stream.
    pub fn stream(&self, class: StreamClass) -> StreamId {
        StreamId { node: self.node, start: self.start, class }
    }

    /// Whether a letter is one of those that get a number.
    pub fn numbers(letter: &ToShard) -> bool {
        matches!(
            letter,
            ToShard::Publish { .. }
                | ToShard::Settle { .. }
                | ToShard::GiveBack { .. }
                | ToShard::Commit { .. }
                | ToShard::Prepare { .. }
        )
    }

    /// Keeps a letter that gets a [number](Self::numbers). If there is no room for more, whose letter it is pauses. What a session has
    /// from before the term is known to it only once it has attached.
    ///
    /// # Panics
    ///
    /// If it gets none.
    pub fn keep(&mut self, letter: ToShard, out: &mut Outbox) {
        let mut letter = StreamLetter::of(letter);
        let (class, from, bytes) = (letter.class(), letter.from(), letter.bytes());
        if self.awaited.contains(&from)
            && let Some((group, begins_at)) = self.begins_at
        {
            letter.lose(group, begins_at);
        }
        let number = self.window(class).end();
        let mut untold = 0;
        if let StreamLetter::Publish { messages, .. } = &letter {
            for (channel, run) in runs_of(messages, number) {
                self.untold.add(from, channel, run);
                untold += run.len() as usize;
            }
        }
        if let StreamLetter::Commit { reply, .. } = &letter {
            let run = UntoldRun { first: 0, last: 0, letter: number, place: 0 };
            self.untold.add(from, reply.channel, run);
            self.undecided.insert(number);
            untold = 1;
        }
        let max = self.max;
        let window = self.window(class);
        let (waits, confirmed) = Default::default();
        window.push(KeptLetter { letter, bytes, untold, waits, confirmed });
        if window.is_over(max, 0) && from != ConnectionId::NOBODY && !window.paused.contains(&from)
        {
            let pauses = self.pauses(from);
            self.window(class).paused.push(from);
            if !pauses {
                out.session(from, ToSession::Paused(true));
            }
        }
    }

    fn pauses(&self, who: ConnectionId) -> bool {
        self.bodies.paused.contains(&who) || self.acks.paused.contains(&who)
    }

    /// The next letter of a stream that is to be sent, if there is one.
    pub fn next(&mut self, class: StreamClass) -> Option<Numbered> {
        self.next_up_to(class, u64::MAX)
    }

    /// The same, if its number is not above `last`.
    fn next_up_to(&mut self, class: StreamClass, last: u64) -> Option<Numbered> {
        let stream = self.stream(class);
        let undecided_from = match class {
            StreamClass::Bodies => self.undecided_from(),
            // No settlement is a transaction.
            StreamClass::Acks => self.acks.end(),
        };
        let term = self.term;
        let window = self.window(class);
        while let Some(number) = window.next_up_to(last) {
            let has_below = window.has_below;
            if let Some(kept) = window.kept(number)
                && (kept.untold > 0 || number >= has_below)
            {
                let letter = kept.letter.again(&kept.confirmed);
                let heard_below = window.first_kept().max(window.heard + 1);
                return Some(Numbered {
                    stream,
                    number,
                    term,
                    heard_below,
                    undecided_from,
                    is_again: number < window.again_below,
                    letter,
                });
            }
        }
        None
    }

    /// No answer is awaited to a transaction in the letters of messages below.
    fn undecided_from(&self) -> u64 {
        self.undecided.first().copied().unwrap_or_else(|| self.bodies.end())
    }

    /// Whether [`next`](Self::next) has something.
    pub fn has_next(&self, class: StreamClass) -> bool {
        let window = match class {
            StreamClass::Bodies => &self.bodies,
            StreamClass::Acks => &self.acks,
        };
        window.has_next_up_to(u64::MAX)
    }

    /// All up to these numbers have been sent, as far as they have to be: of messages, and of settlements.
    pub fn sent(&self) -> [u64; 2] {
        [&self.bodies, &self.acks].map(|window| window.cursor - 1)
    }

    /// The number of the last letter.
    pub fn last(&self, class: StreamClass) -> u64 {
        match class {
            StreamClass::Bodies => self.bodies.end() - 1,
            StreamClass::Acks => self.acks.end() - 1,
        }
    }

    /// How far it is, for reading.
    pub fn describe(&self) -> String {
        let window = |it: &Window| {
            format!("{}..{} agreed {} cursor {}", it.first_kept(), it.end(), it.agreed, it.cursor)
        };
        let (bodies, acks) = (window(&self.bodies), window(&self.acks));
        let paused = self.bodies.paused.len() + self.acks.paused.len();
        let untold = self.untold.len();
        format!("bodies {bodies}, acks {acks}, {untold} untold, {paused} pause")
    }

    /// Letters that are kept.
    pub fn kept(&self) -> usize {
        self.bodies.len() + self.acks.len()
    }

    /// The link is new, or the shard: it is so far with messages, and with settlements. All that is kept is sent again, but for
    /// letters that the shard has and of which nobody waits for a verdict. What the shard has from before this term it tells
    /// again. What is agreed upon is let go of: the news of that may have been lost.
    pub fn begins(&mut self, bodies: StreamPlace, acks: StreamPlace, out: &mut Outbox) {
        if bodies.term > self.term {
            self.term = bodies.term;
            self.bodies.is_of_another_term();
            self.acks.is_of_another_term();
            self.take_back();
        }
        let untold = &self.untold;
        for (window, place) in [(&mut self.bodies, bodies), (&mut self.acks, acks)] {
            window.agreed(place.agreed, |told| untold.letter_of(told).is_some());
            window.begins(place.next);
        }
        // What the shard of before was told to write may be in its memory again.
        self.bodies.to_be_written = 0;
        self.resume(out);
    }

    /// What was refused is not to be, whatever the shard of this term has of it: nothing of it is sent again but its number.
    fn take_back(&mut self) {
        for number in std::mem::take(&mut self.refused) {
            if let Some(kept) = self.bodies.kept(number)
                && let StreamLetter::Commit { of, messages, settlements, .. } = &mut kept.letter
            {
                (*messages, *settlements) = Default::default();
                *of = of.map(|(tx, _)| (tx, 0));
            }
        }
    }

    /// A shard has refused what a connection's channel commits: a part of that which is for this group is not to be either. As long
    /// as the shard lives it hears that from the owner of the names.
    pub fn other_is_refused(&mut self, connection: ConnectionId, channel: ChannelId) {
        if let Some(number) = self.untold.letter_of((connection, channel, 0)) {
            self.is_refused(number);
        }
    }

    fn is_refused(&mut self, number: u64) {
        // Those that were let go of are asked for by nobody.
        self.refused = self.refused.split_off(&self.bodies.first_kept());
        self.refused.insert(number);
    }

    /// The shard says something of a stream.
    pub fn hear(&mut self, news: &StreamNews, out: &mut Outbox) {
        let StreamNews { stream, term, what } = *news;
        if stream != self.stream(stream.class) {
            return;
        }
        match what {
            StreamEvent::Agreed { low, told } => {
                let Self { bodies, acks, untold, .. } = self;
                let window = match stream.class {
                    StreamClass::Bodies => bodies,
                    StreamClass::Acks => acks,
                };
                window.agreed(low, |told| untold.letter_of(told).is_some());
                if term == self.term {
                    window.hears(told);
                }
                self.have_written();
                self.resume(out);
            }
            StreamEvent::Waits { number, first, last, at } if term == self.term => {
                self.window(stream.class).waits(number, WaitsAt { first, last, at });
                self.resume(out);
            }
            // It may be in a log's end that was lost.
            StreamEvent::Waits { .. } => {}
            // Of a later term, it comes before the news that the shard is another one.
            StreamEvent::Lacks(next) if term == self.term => {
                self.window(stream.class).go_back_to(next);
            }
            StreamEvent::Lacks(_) => {}
        }
    }

    /// What the shard tells a session: a verdict is passed on if it is the first one of the message, all other letters are.
    pub fn tell(&mut self, to: ConnectionId, letter: ToSession, out: &mut Outbox) {
        let (channel, first, last) = match letter {
            ToSession::Confirm { channel, first, last, .. }
            | ToSession::ConfirmTimeout { channel, first, last } => (channel, first, last),
            ToSession::Reply { channel, reply } => return self.answer(to, channel, reply, out),
            other => return out.session(to, other),
        };
        let is_confirmed = matches!(letter, ToSession::Confirm { ok: true, .. });
        let mut say = |(first, last)| {
            let verdict = match letter {
                ToSession::Confirm { ok, .. } => ToSession::Confirm { channel, first, last, ok },
                _ => ToSession::ConfirmTimeout { channel, first, last },
            };
            out.session(to, verdict);
        };
        // Messages in a row are told in one, though they are of several letters.
        let mut row: Option<(u64, u64)> = None;
        while let Some(run) = self.untold.take_first(to, channel, first, last) {
            self.bodies.are_told(run, is_confirmed);
            if let Some((_, last)) = &mut row
                && *last + 1 == run.first
            {
                *last = run.last;
            } else if let Some(before) = row.replace((run.first, run.last)) {
                say(before);
            }
        }
        if let Some(row) = row {
            say(row);
        }
        self.resume(out);
    }

    /// Has the shard write what it has in memory alone, if that is much.
    fn have_written(&mut self) {
        if let Some(up_to) = self.bodies.is_to_write(self.max) {
            let stream = self.stream(StreamClass::Bodies);
            self.push(ToShard::StoreWaiting { stream, up_to });
        }
    }

    /// An answer of the shard. A transaction may be answered twice: by the shard before a change, and by the one after it.
    fn answer(&mut self, to: ConnectionId, channel: ChannelId, reply: Reply, out: &mut Outbox) {
        match self.untold.take_first(to, channel, 0, 0) {
            Some(run) => {
                self.undecided.remove(&run.letter);
                if matches!(reply, Reply::Refused { .. }) {
                    self.is_refused(run.letter);
                }
                self.bodies.are_told(run, false);
            }
            None if matches!(reply, Reply::Committed) => return,
            None => _ = self.questions.remove(&to),
        }
        out.session(to, ToSession::Reply { channel, reply });
        self.resume(out);
    }

    /// The owner of the names has told a session that a queue is deleted.
    pub fn is_deleted(&mut self, asked: ConnectionId) {
        if matches!(self.questions.get(&asked), Some(ToShard::Delete { .. })) {
            self.questions.remove(&asked);
        }
    }

    /// A letter that gets no number. It is sent behind what has a number by now; a question is asked again in a new term until
    /// it is answered.
    pub fn send(&mut self, mut letter: ToShard) {
        match &mut letter {
            ToShard::Attach(attachment) => {
                if attachment.term != self.term || !self.awaited.remove(&attachment.connection) {
                    return;
                }
                attachment.behind = CLASSES.map(|class| self.last(class));
                self.push(letter);
                self.has_attached();
                return;
            }
            ToShard::Disconnected { connection, .. } => _ = self.questions.remove(connection),
            _ => {}
        }
        if let Some(asker) = asker(&letter) {
            self.questions.insert(asker, letter.clone());
        }
        self.push(letter);
    }

    fn push(&mut self, letter: ToShard) {
        let behind = CLASSES.map(|class| self.last(class));
        self.commands.push_back((behind, letter));
        self.unnumbered += 1;
    }

    /// How many letters without a number it was given, and how many of them are not to be sent any more.
    pub fn unnumbered(&self) -> [u64; 2] {
        [self.unnumbered, self.unnumbered - self.commands.len() as u64]
    }

    /// Whether there is a letter without a number that may be sent, as all up to these numbers have been.
    pub fn has_command(&self, came: [u64; 2]) -> bool {
        let Some((behind, _)) = self.commands.front() else { return false };
        behind.iter().zip(came).all(|(it, at)| *it <= at)
    }

    /// The next letter without a number, as all up to these numbers have been sent.
    pub fn next_command(&mut self, came: [u64; 2]) -> Option<ToShard> {
        if !self.has_command(came) {
            return None;
        }
        self.commands.pop_front().map(|(_, letter)| letter)
    }

    /// The next letter of any kind, for a link that keeps all in order: none overtakes a letter without a number that was written
    /// before it. Of the two streams `first` has its letter first, if both have one.
    pub fn next_in_order(&mut self, first: StreamClass) -> Option<ToShard> {
        let last = self.commands.front().map_or([u64::MAX; 2], |(behind, _)| *behind);
        let mut classes = [(CLASSES[0], last[0]), (CLASSES[1], last[1])];
        if first == CLASSES[1] {
            classes.reverse();
        }
        for (class, last) in classes {
            if let Some(numbered) = self.next_up_to(class, last) {
                return Some(ToShard::Numbered(Box::new(numbered)));
            }
        }
        self.next_command(self.sent())
    }

    /// Whether [`next_in_order`](Self::next_in_order) may have something.
    pub fn has_next_in_order(&self) -> bool {
        !self.commands.is_empty() || CLASSES.iter().any(|&class| self.has_next(class))
    }

    /// Letters without a number that are to be sent.
    pub fn commands(&self) -> impl Iterator<Item = &([u64; 2], ToShard)> {
        self.commands.iter()
    }

    /// The shard of the group is in a new term, of which [`begins`](Self::begins) has told, and its records begin at this offset: these
    /// connections are asked what they have there. What they wrote to the shard of before, and what is answered by their attachments,
    /// is not sent. What is kept says nothing any more of messages that were lost with the term before: shards of later ones may
    /// have others there.
    pub fn attach(
        &mut self,
        group: GroupId,
        begins_at: Offset,
        connections: impl IntoIterator<Item = ConnectionId>,
    ) {
        self.begins_at = Some((group, begins_at));
        for window in [&mut self.bodies, &mut self.acks] {
            let kept = window.letters.iter_mut().chain(window.waiting.values_mut());
            kept.for_each(|kept| kept.letter.lose(group, begins_at));
        }
        self.commands.clear();
        self.awaited = connections.into_iter().collect();
        let again: Vec<ToShard> = self.questions.values().cloned().collect();
        again.into_iter().for_each(|letter| self.push(letter));
        // Those who pause for it send nothing that would bring news.
        self.have_written();
        self.has_attached();
    }

    fn has_attached(&mut self) {
        if self.awaited.is_empty() {
            let last = CLASSES.map(|class| self.last(class));
            let undecided_from = self.undecided_from();
            let Self { node, start, term, .. } = *self;
            self.push(ToShard::Attached(Attached { node, start, term, last, undecided_from }));
        }
    }

    /// The connection ended: nobody is told of its messages any more. They are to be done all the same. A part of a transaction is kept
    /// until it is answered: shards may wait for it that have other parts.
    pub fn ended(&mut self, connection: ConnectionId, out: &mut Outbox) {
        self.bodies.paused.retain(|other| *other != connection);
        self.acks.paused.retain(|other| *other != connection);
        let Self { untold, bodies, .. } = self;
        let mut is_part =
            |number: u64| bodies.kept(number).is_some_and(|kept| kept.letter.is_part());
        let over = untold.take_of(connection, |run| run.first != 0 || !is_part(run.letter));
        for run in over {
            if run.first == 0 {
                self.undecided.remove(&run.letter);
            }
            self.bodies.are_told(run, false);
        }
        self.resume(out);
    }

    /// Who pauses goes on if there is room where he filled it: half of it, so that he does not pause again at once. Messages may
    /// wait for the very acks of who pauses, so room for acks is enough for these.
    fn resume(&mut self, out: &mut Outbox) {
        let mut freed = Vec::new();
        for window in [&mut self.bodies, &mut self.acks] {
            if !window.is_over(self.max, 1) {
                freed.append(&mut window.paused);
            }
        }
        freed.sort_unstable();
        freed.dedup();
        for who in freed {
            if !self.pauses(who) {
                out.session(who, ToSession::Paused(false));
            }
        }
    }
}

/// Who asks. None if it is no question, or is for whoever drives the shard.
fn asker(letter: &ToShard) -> Option<ConnectionId> {
    match letter {
        ToShard::Consume { reply, .. }
        | ToShard::Cancel { reply: Some(reply), .. }
        | ToShard::Get { reply, .. }
        | ToShard::Count { reply, .. }
        | ToShard::Create { reply: Some(reply), .. }
        | ToShard::Purge { reply, .. }
        | ToShard::Delete { reply: Some(reply), .. } => Some(reply.connection),
        ToShard::Disconnected { connection, reply: Some(_) } => Some(*connection),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
