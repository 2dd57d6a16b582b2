//! Letters with any fields, from a seed.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

use bytes::Bytes;
use leveret_amqp::reply::ReplyCode;
use leveret_amqp::table::{Table, Value};
use leveret_broker::command::{CommandStream, NumberedCommand};
use leveret_broker::message::{
    AccountId, Allowance, AllowanceState, Attached, AttachedConsumer, Attachment, Binding, Claim,
    ConnectionId, ConsumerFacts, ConsumerSlot, DeadLetterFrom, Delivery, GivenBack, Holding,
    Looked, Message, MoveTo, Moved, Named, Page, Publish, PutResult, QueueFacts, Refusal, Reply,
    ReplyTo, Settle, Settlement, ToMeta, ToSession, ToShard, UnackedDelivery,
};
use leveret_broker::numbers::{
    GoneQueues, HeadFacts, PagedOut, QueueNumbers, ShardNumbers, ShardRest, Usage,
};
use leveret_broker::record::{Head, join_names};
use leveret_broker::shard::{Confirmed, Counters, Nacked};
use leveret_broker::stream::{
    AskedMessage, Numbered, StreamClass, StreamEvent, StreamId, StreamNews, Whereabouts,
};
use leveret_broker::transaction::{TxId, Vote};
use leveret_queue::{ByReason, Counts, Look, LookAt, Offset, Time, Totals, UnackedId};
use leveret_topology::{
    By, ExchangeId, GroupId, Link, NodeId, Origin, QueueId, QueueKind, VhostId,
};

/// Numbers that follow from a seed.
#[derive(Clone)]
pub(crate) struct Seeded {
    state: u64,
    /// No body is long; no list is empty, and nothing is left out.
    is_brief: bool,
}

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, is_brief: false }
    }

    /// For what people may have to look at.
    pub(crate) fn brief(seed: u64) -> Self {
        Self { is_brief: true, ..Self::new(seed) }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A number of any length.
    pub(crate) fn word(&mut self) -> u64 {
        let bits = self.below(65) as u32;
        self.next().checked_shr(64 - bits).unwrap_or(0)
    }

    pub(crate) fn half(&mut self) -> u32 {
        self.word() as u32
    }

    pub(crate) fn is(&mut self) -> bool {
        self.below(2) == 1
    }

    pub(crate) fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.is() || self.is_brief).then(|| make(self))
    }

    pub(crate) fn some<T>(&mut self, below: usize, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.below(below).max(usize::from(self.is_brief));
        (0..count).map(|_| make(self)).collect()
    }

    pub(crate) fn text(&mut self) -> String {
        let letters = ["a", "k", ".", "\u{e9}", "\u{1f407}", "\0"];
        (0..self.below(20)).map(|_| letters[self.below(letters.len())]).collect()
    }

    pub(crate) fn connection(&mut self) -> ConnectionId {
        ConnectionId::from_bits(self.next())
    }

    fn reply(&mut self) -> ReplyTo {
        ReplyTo { connection: self.connection(), channel: self.half() as u16 }
    }

    pub(crate) fn queue(&mut self) -> QueueId {
        QueueId::new(self.word())
    }

    pub(crate) fn offset(&mut self) -> Offset {
        Offset::new(self.word())
    }

    fn slot(&mut self) -> ConsumerSlot {
        ConsumerSlot(self.half())
    }

    pub(crate) fn group(&mut self) -> GroupId {
        GroupId::new(self.half() & 0xffff)
    }

    fn unacked(&mut self) -> UnackedId {
        UnackedId::new(self.half())
    }

    fn table(&mut self) -> Table {
        let entries = self.some(4, |any| {
            let value = match any.below(4) {
                0 => Value::I32(any.half() as i32),
                1 => Value::LongStr(any.text().into()),
                2 => Value::Bool(any.is()),
                _ => Value::Array(vec![Value::Void, Value::Timestamp(any.word())]),
            };
            (any.text(), value)
        });
        entries.into_iter().collect()
    }

    pub(crate) fn body(&mut self) -> Vec<u8> {
        let len = [0, 3, 20, 200, 2047, 2048, 9_000][self.below(if self.is_brief { 3 } else { 7 })];
        (0..len).map(|_| self.next() as u8).collect()
    }

    fn message(&mut self) -> Message {
        let (exchange, key) = (self.text(), self.text());
        // No property, or a priority.
        let properties = [&[0, 0][..], &[0x08, 0, 7]][self.below(2)];
        Message::from_parts(&join_names(&exchange, &key), properties, &self.body())
    }

    pub(crate) fn publish(&mut self) -> Publish {
        let targets = [0, 1, 2, 3, 50][self.below(if self.is_brief { 4 } else { 5 })];
        Publish {
            channel: self.half() as u16,
            confirm: self.word(),
            targets: (0..targets).map(|_| self.queue()).collect(),
            persistent: self.is(),
            priority: self.half() as u8,
            expiration_ms: self.maybe(Self::word),
            message: self.message(),
            shared: None,
        }
    }

    /// Some of them for the queues of the one before.
    fn publishes(&mut self) -> Vec<Publish> {
        let mut list = self.some(6, Self::publish);
        for at in 1..list.len() {
            if self.is() {
                list[at].targets = list[at - 1].targets.clone();
            }
        }
        list
    }

    fn how(&mut self) -> Settle {
        match self.below(4) {
            0 => Settle::Ack,
            1 => Settle::Reject,
            counts => Settle::Requeue { counts: counts == 2 },
        }
    }

    fn settlements(&mut self) -> Vec<Settlement> {
        let mut queue = self.queue();
        self.some(20, |any| {
            queue = if any.is() { any.queue() } else { queue };
            Settlement { queue, unacked: any.unacked(), offset: any.offset(), how: any.how() }
        })
    }

    fn record(&mut self) -> Bytes {
        let publish = self.publish();
        let mut head = Head::of(&publish, self.word());
        head.expiration_ms = None;
        publish.message.into_record(&head).record().expect("it lies so").clone()
    }

    pub(crate) fn delivery(&mut self) -> Delivery {
        Delivery {
            slot: self.slot(),
            queue: self.queue(),
            home: self.group(),
            unacked: self.maybe(Self::unacked),
            offset: self.offset(),
            redelivered: self.is(),
            delivery_count: self.half(),
            record: self.record(),
        }
    }

    fn deliveries(&mut self) -> Vec<Delivery> {
        let mut list = self.some(6, Self::delivery);
        for at in 1..list.len() {
            if self.is() {
                (list[at].queue, list[at].home) = (list[at - 1].queue, list[at - 1].home);
            }
        }
        list
    }

    fn address(&mut self) -> SocketAddr {
        let port = self.half() as u16;
        match self.is() {
            true => SocketAddr::new(IpAddr::from(self.half().to_le_bytes()), port),
            false => {
                let ip = (u128::from(self.next()) << 64 | u128::from(self.next())).into();
                SocketAddr::V6(SocketAddrV6::new(ip, port, self.half(), self.half()))
            }
        }
    }

    fn by(&mut self) -> Box<By> {
        let origin = self.maybe(|any| Origin {
            peer: any.address(),
            connection: any.maybe(|any| Link { id: any.connection(), local: any.address() }),
        });
        Box::new(By { user: self.text().into(), origin })
    }

    fn refusal(&mut self) -> Box<Refusal> {
        Box::new(Refusal { code: self.code(), text: self.text() })
    }

    fn code(&mut self) -> ReplyCode {
        [ReplyCode::NotFound, ReplyCode::PreconditionFailed, ReplyCode::InternalError]
            [self.below(3)]
    }

    fn dead_letter_from(&mut self) -> DeadLetterFrom {
        DeadLetterFrom { group: self.group(), queue: self.queue(), offset: self.offset() }
    }

    fn binding(&mut self) -> Box<Binding> {
        Box::new(Binding {
            by: self.by(),
            reply: self.reply(),
            vhost: VhostId::new(self.half()),
            source: self.text().into(),
            destination: self.text().into(),
            to_queue: self.is(),
            key: self.text().into(),
            arguments: self.table(),
        })
    }

    fn page(&mut self) -> Box<Page> {
        let messages = self.some(4, |any| Looked {
            look: Look {
                offset: any.offset(),
                size: any.half(),
                redelivered: any.is(),
                delivery_count: any.half(),
                expires_at: any.maybe(|any| Time::from_ms(any.word())),
                consumer_key: any.maybe(Self::word),
            },
            holder: any.maybe(Self::holding),
            record: any.maybe(Self::record),
        });
        Box::new(Page { messages, next: self.maybe(Self::offset), end: self.offset() })
    }

    fn reasons(&mut self) -> ByReason {
        ByReason::from_counts(std::array::from_fn(|_| self.word()))
    }

    fn totals(&mut self) -> Totals {
        Totals {
            enqueued: self.word(),
            enqueued_bytes: self.word(),
            restored: self.word(),
            refused: self.word(),
            delivered: self.word(),
            delivered_no_ack: self.word(),
            delivered_bytes: self.word(),
            got: self.word(),
            got_no_ack: self.word(),
            get_empty: self.word(),
            redelivered: self.word(),
            acked: self.word(),
            requeued: self.word(),
            dropped: self.reasons(),
            dead_lettered: self.reasons(),
            dead_letters_confirmed: self.word(),
            purged: self.word(),
            moved: self.word(),
        }
    }

    fn kind(&mut self) -> QueueKind {
        if self.is() { QueueKind::Classic } else { QueueKind::Quorum }
    }

    fn queue_numbers(&mut self) -> QueueNumbers {
        QueueNumbers {
            queue: self.queue(),
            kind: self.kind(),
            at_least_once: self.is(),
            counts: Counts {
                ready: self.word(),
                unacked: self.word(),
                ready_bytes: self.word(),
                unacked_bytes: self.word(),
                persistent: self.word(),
                persistent_bytes: self.word(),
                packed: self.word(),
                held: self.word(),
                held_bytes: self.word(),
                early: self.word(),
                consumers: self.half(),
            },
            paged_out: PagedOut {
                records: self.word(),
                bytes: self.word(),
                volatile: self.word(),
                volatile_bytes: self.word(),
            },
            totals: self.totals(),
            head: self.maybe(|any| HeadFacts {
                published_ms: any.word(),
                timestamp_s: any.maybe(Self::word),
            }),
            used: Time::from_ms(self.word()),
            waited_ms: self.word(),
            is_in_flow: self.is(),
            memory_bytes: self.word(),
        }
    }

    fn holding(&mut self) -> Holding {
        let (connection, channel) = (self.connection(), self.half() as u16);
        Holding { connection, channel, tag: self.text().into() }
    }

    fn queue_facts(&mut self) -> QueueFacts {
        let consumers = self.some(3, |any| ConsumerFacts {
            connection: any.connection(),
            channel: any.half() as u16,
            tag: any.text().into(),
            ack_required: any.is(),
            prefetch: any.half() as u16,
            active: any.is(),
            exclusive: any.is(),
            priority: any.half() as i32,
            unacked: any.half(),
            is_blocked: any.is(),
            prefetch_full_since: any.maybe(|any| Time::from_ms(any.word())),
            arguments: Arc::new(any.table()),
        });
        QueueFacts {
            queue: self.queue(),
            numbers: self.queue_numbers(),
            active_consumers: self.half(),
            single_active: self.maybe(Self::holding),
            exclusive: self.maybe(Self::holding),
            consumers,
        }
    }

    fn rest(&mut self) -> ShardRest {
        ShardRest {
            gone: self.some(3, |any| GoneQueues {
                kind: any.kind(),
                at_least_once: any.is(),
                totals: any.totals(),
            }),
            counters: Counters {
                enqueued: self.word(),
                delivered: self.word(),
                acked: self.word(),
                dead_lettered: self.word(),
                dropped: self.word(),
                moved: self.word(),
                refused: self.word(),
                unstored: self.word(),
                unreadable: self.word(),
                copies_left_out: self.word(),
            },
            confirmed: Confirmed {
                at_once: self.word(),
                durable: self.word(),
                acked: self.word(),
                nacked: self.word(),
            },
            nacked: Nacked::from_counts(std::array::from_fn(|_| self.word())),
            log: Usage {
                live_bytes: self.word(),
                held_bytes: self.word(),
                records: self.word(),
                blocks: self.word(),
                unwritten_bytes: self.word(),
                disk_bytes: self.word(),
                lent: self.word(),
            },
            queue_bytes: self.word(),
            unresolved_bytes: self.word(),
            held_bytes: self.word(),
        }
    }

    /// What channels of two groups had not settled, which are back in the order of their lists.
    pub(crate) fn given_back(&mut self) -> GivenBack {
        let lists = self.some(4, |any| {
            let list = any.some(30, |any| UnackedDelivery {
                tag: any.word(),
                offset: any.offset(),
                queue: any.queue(),
                home: GroupId::new(any.below(2) as u32),
                unacked: any.unacked(),
                slot: if any.below(4) == 0 { UnackedDelivery::HOLE } else { any.half() >> 1 },
                delivered_s: any.half(),
            });
            VecDeque::from(list)
        });
        GivenBack::new(lists, 2)
    }

    /// All letters to a shard that travel, with any fields.
    pub(crate) fn for_shards(&mut self) -> Vec<ToShard> {
        let publish = ToShard::Publish { from: self.connection(), messages: self.publishes() };
        let settle = ToShard::Settle { from: self.connection(), settlements: self.settlements() };
        vec![
            self.numbered(publish),
            self.numbered(settle),
            ToShard::Publish { from: self.connection(), messages: self.publishes() },
            ToShard::Settle { from: self.connection(), settlements: self.settlements() },
            ToShard::Commit {
                reply: self.reply(),
                messages: self.publishes(),
                settlements: self.settlements(),
            },
            ToShard::Prepare {
                reply: self.reply(),
                tx: TxId::new(self.next()),
                parts: self.half(),
                messages: self.publishes(),
                settlements: self.settlements(),
            },
            ToShard::Decide { tx: TxId::new(self.next()), commit: self.is() },
            ToShard::Consume {
                user: self.text().into(),
                reply: self.reply(),
                queue: self.queue(),
                slot: self.slot(),
                tag: self.text().into(),
                no_ack: self.is(),
                exclusive: self.is(),
                priority: self.half() as i32,
                prefetch: self.half() as u16,
                gate: None,
                arguments: self.table().into(),
            },
            ToShard::Cancel {
                user: self.text().into(),
                reply: self.maybe(Self::reply),
                connection: self.connection(),
                queue: self.queue(),
                slot: self.slot(),
            },
            ToShard::Get { reply: self.reply(), queue: self.queue(), no_ack: self.is() },
            ToShard::Count { reply: self.reply(), queue: self.queue() },
            ToShard::Purge { reply: self.reply(), queue: self.queue(), max: self.word() },
            ToShard::Look {
                reply: self.reply(),
                queue: self.queue(),
                place: if self.is() { LookAt::Ready } else { LookAt::Unacked },
                from: self.offset(),
                max: self.word() as usize,
            },
            ToShard::Discard {
                reply: self.reply(),
                queue: self.queue(),
                offsets: self.some(9, Self::offset),
            },
            ToShard::Move {
                reply: self.reply(),
                queue: self.queue(),
                offsets: self.some(9, Self::offset),
                to: match self.below(3) {
                    0 => MoveTo::Queue(self.queue()),
                    1 => MoveTo::Exchange {
                        exchange: ExchangeId::new(self.word()),
                        key: self.maybe(|any| any.text().into()),
                    },
                    _ => MoveTo::Front,
                },
            },
            ToShard::Delete {
                by: self.by(),
                reply: self.maybe(Self::reply),
                queue: self.queue(),
                if_unused: self.is(),
                if_empty: self.is(),
            },
            ToShard::DeadLetter {
                from: self.maybe(Self::dead_letter_from),
                message: self.publish(),
            },
            ToShard::DeadLettered {
                from: self.dead_letter_from(),
                target: self.queue(),
                taken: [PutResult::Yes, PutResult::Refused, PutResult::NotStored][self.below(3)],
            },
            ToShard::Remember {
                from: self.connection(),
                exchange: ExchangeId::new(self.word()),
                limit: self.half(),
                message: self.publish(),
            },
            ToShard::Disconnected { connection: self.connection(), reply: self.maybe(Self::reply) },
            ToShard::IsWell { reply: self.reply() },
            ToShard::List {
                reply: self.reply(),
                queues: self.some(9, Self::queue).into(),
                consumers: match self.below(3) {
                    0 => Named::None,
                    1 => Named::All,
                    _ => Named::OfChannel(self.connection(), self.half() as u16),
                },
            },
            ToShard::Sample { reply: self.reply(), begins: self.is() },
        ]
    }

    /// All letters to the owner of the names that travel, with any fields.
    pub(crate) fn for_meta(&mut self) -> Vec<ToMeta> {
        vec![
            ToMeta::DeclareExchange {
                by: self.by(),
                reply: self.reply(),
                vhost: VhostId::new(self.half()),
                name: self.text().into(),
                kind: self.text().into(),
                durable: self.is(),
                auto_delete: self.is(),
                internal: self.is(),
                arguments: self.table(),
                forbidden: self.maybe(Self::refusal),
            },
            ToMeta::DeleteExchange {
                by: self.by(),
                reply: self.reply(),
                vhost: VhostId::new(self.half()),
                name: self.text().into(),
                if_unused: self.is(),
            },
            ToMeta::DeclareQueue {
                by: self.by(),
                reply: self.reply(),
                vhost: VhostId::new(self.half()),
                name: self.text().into(),
                server_named: self.is(),
                durable: self.is(),
                exclusive: self.is(),
                auto_delete: self.is(),
                arguments: self.table(),
                forbidden: self.maybe(Self::refusal),
            },
            ToMeta::Bind(self.binding()),
            ToMeta::Unbind(self.binding()),
            ToMeta::QueueGone {
                by: self.by(),
                queue: self.queue(),
                reply: self.maybe(|any| (any.reply(), any.word())),
                consumers: self.some(5, |any| (any.connection(), any.slot())),
                more: self.is(),
            },
            ToMeta::Disconnected { connection: self.connection(), reply: self.maybe(Self::reply) },
            ToMeta::Prepared {
                from: self.connection(),
                tx: TxId::new(self.next()),
                group: self.group(),
                parts: self.half(),
                vote: match self.is() {
                    true => Vote::No,
                    false => Vote::Yes {
                        is_kept: self.is(),
                        acked: self.some(9, |any| (any.queue(), any.offset())),
                    },
                },
            },
            ToMeta::Applied { tx: TxId::new(self.next()), group: self.group() },
            ToMeta::IsWell { reply: self.reply() },
        ]
    }

    /// All letters to a session that travel, and all answers, with any fields.
    pub(crate) fn for_sessions(&mut self) -> Vec<ToSession> {
        let replies = vec![
            Reply::Done,
            Reply::Declared { queue: self.queue(), messages: self.word(), consumers: self.word() },
            Reply::Gone,
            Reply::Consuming { number: 300 },
            Reply::Cancelled { slot: self.slot() },
            Reply::Got { delivery: self.delivery(), remaining: self.word() },
            Reply::GotNothing,
            Reply::Purged(self.word()),
            Reply::Moved(Moved {
                moved: self.word(),
                refused: self.word(),
                unrouted: self.word(),
                cold: self.some(5, Self::offset),
            }),
            Reply::Looked(self.page()),
            Reply::Deleted(self.word()),
            Reply::Committed,
            Reply::Refused { code: self.code(), text: self.text() },
            Reply::Queues(self.some(3, Self::queue_facts)),
            Reply::Sampled(Box::new(ShardNumbers {
                group: self.group(),
                queues: self.some(3, Self::queue_numbers),
                rest: self.maybe(Self::rest),
            })),
        ];
        let channel = self.half() as u16;
        let mut letters: Vec<_> =
            replies.into_iter().map(|reply| ToSession::Reply { channel, reply }).collect();
        letters.extend([
            ToSession::Deliver(self.deliveries()),
            ToSession::Confirm { channel, first: self.word(), last: self.word(), ok: self.is() },
            ToSession::ConfirmTimeout { channel, first: self.word(), last: self.word() },
            ToSession::ConsumerGone { slot: self.slot() },
            ToSession::DirectReply { channel, token: self.word(), message: self.message() },
            ToSession::DirectReplyAsked { reply: self.reply(), channel, token: self.word() },
        ]);
        letters
    }

    pub(crate) fn stream(&mut self, class: StreamClass) -> StreamId {
        let node = NodeId::new(1 + self.half() % 0xff_ffff).expect("24 bits, and not 0");
        StreamId { node, start: self.half(), class }
    }

    pub(crate) fn numbered(&mut self, letter: ToShard) -> ToShard {
        let class = match letter {
            ToShard::Settle { .. } | ToShard::GiveBack { .. } => StreamClass::Acks,
            _ => StreamClass::Bodies,
        };
        let stream = self.stream(class);
        let number = self.word().max(1);
        let heard_below = self.word();
        let (term, undecided_from) = (heard_below / 5, heard_below / 3);
        let is_again = !heard_below.is_multiple_of(2);
        let numbered =
            Numbered { stream, number, term, heard_below, undecided_from, is_again, letter };
        ToShard::Numbered(Box::new(numbered))
    }

    /// What a shard in a new term is told, and transactions with numbers.
    pub(crate) fn attaching(&mut self) -> Vec<ToShard> {
        let consumers = self.some(3, |any| AttachedConsumer {
            number: any.word(),
            channel: any.half() as u16,
            queue: any.queue(),
            slot: any.slot(),
            tag: any.text().into(),
            no_ack: any.is(),
            exclusive: any.is(),
            priority: any.half() as i32,
            prefetch: any.half() as u16,
            is_going: any.is(),
            gate: None,
            arguments: any.table().into(),
        });
        let claims = self.some(4, |any| Claim {
            queue: any.queue(),
            offset: any.offset(),
            slot: any.maybe(Self::slot),
        });
        let connection = self.connection();
        let (term, behind) = (self.word(), [self.word(), self.word()]);
        let attachment = Attachment { connection, term, behind, consumers, claims };
        let last = [self.word(), self.word()];
        let (node, start) = (NodeId::ALONE, self.half());
        let (term, undecided_from) = (self.word(), last[0]);
        let attached = Attached { node, start, term, last, undecided_from };
        let commit = ToShard::Commit {
            reply: self.reply(),
            messages: self.publishes(),
            settlements: self.settlements(),
        };
        let prepare = ToShard::Prepare {
            reply: self.reply(),
            tx: TxId::new(self.next()),
            parts: self.half(),
            messages: self.publishes(),
            settlements: self.settlements(),
        };
        let numbered = [commit, prepare].map(|letter| self.numbered(letter));
        let others = [ToShard::Attach(Box::new(attachment)), ToShard::Attached(attached)];
        others.into_iter().chain(numbered).collect()
    }

    /// What a shard may give out, and what it says of that.
    pub(crate) fn allowing(&mut self, group: GroupId) -> (ToShard, ToSession) {
        let account = |any: &mut Self| AccountId { term: any.word(), number: any.word() };
        let connection = self.connection();
        let allowances = self.some(4, |any| Allowance {
            of: any.maybe(|any| any.half() as u16),
            account: account(any),
            version: any.word(),
            total: any.word(),
            is_called_back: any.is(),
        });
        let states = self.some(4, |any| AllowanceState {
            of: any.maybe(|any| any.half() as u16),
            account: account(any),
            version: any.word(),
            total: any.word(),
            is_waiting: any.is(),
        });
        let states = ToSession::AllowanceStates { group, states };
        (ToShard::Allow { connection, allowances }, states)
    }

    pub(crate) fn news(&mut self) -> Vec<StreamNews> {
        let news = |any: &mut Self, what| {
            let class = if any.is() { StreamClass::Bodies } else { StreamClass::Acks };
            StreamNews { stream: any.stream(class), term: any.word(), what }
        };
        let low = self.word();
        let agreed = StreamEvent::Agreed { low, told: low / 3 };
        let all = [agreed, StreamEvent::Lacks(self.word())];
        all.map(|what| news(self, what)).to_vec()
    }

    /// What is asked and said of messages that wait for a consumer.
    pub(crate) fn waiting(&mut self) -> (Vec<ToShard>, Vec<StreamNews>) {
        let asked = self.some(6, |any| AskedMessage {
            place: any.half(),
            channel: any.half() as u16,
            confirm: any.word(),
            whereabouts: match any.below(3) {
                0 => Whereabouts::Memory(any.publish()),
                1 => {
                    let targets = any.some(3, Self::queue).into_iter().collect();
                    Whereabouts::Log(targets, any.offset())
                }
                _ => Whereabouts::Nowhere,
            },
        });
        let ask = ToShard::Ask { from: self.connection(), messages: asked };
        let store =
            ToShard::StoreWaiting { stream: self.stream(StreamClass::Bodies), up_to: self.word() };
        let letters = vec![self.numbered(ask.clone()), ask, store];
        let news = [true, false].map(|is_in_log| {
            let (number, first) = (self.word(), self.half() / 2);
            let (last, at) = (first + self.half() / 2, is_in_log.then(|| self.offset()));
            let what = StreamEvent::Waits { number, first, last, at };
            StreamNews { stream: self.stream(StreamClass::Bodies), term: self.word(), what }
        });
        (letters, news.to_vec())
    }

    /// A letter to a shard that gives back what channels had.
    pub(crate) fn give_back(&mut self) -> ToShard {
        ToShard::GiveBack { from: self.connection(), unsettled: Arc::new(self.given_back()) }
    }

    /// What the node that leads says to sessions of other nodes, and no shard does.
    pub(crate) fn for_other_nodes(&mut self) -> Vec<ToSession> {
        vec![
            ToSession::Paused(self.is()),
            ToSession::Close { code: self.code(), text: self.text() },
            ToSession::Stopped,
        ]
    }

    /// Commands with numbers; one that is a number alone.
    pub(crate) fn commands(&mut self) -> Vec<ToMeta> {
        let gets_one = |letter: &ToMeta| letter.numbered_asker().is_some();
        let commands = self.for_meta().into_iter().filter(gets_one).map(Some);
        let commands: Vec<_> = commands.chain([None]).collect();
        let numbered = commands.into_iter().map(|command| {
            let StreamId { node, start, .. } = self.stream(StreamClass::Acks);
            ToMeta::Numbered(Box::new(NumberedCommand {
                stream: CommandStream { node, start },
                term: self.word(),
                number: self.word().max(1),
                kept_from: self.word(),
                command,
            }))
        });
        numbered.collect()
    }
}
