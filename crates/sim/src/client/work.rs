//! What a client does next: drawn at random from what its state allows.

use leveret_amqp::content::Properties;
use leveret_amqp::method::{basic, channel, confirm, connection, exchange, queue, tx};
use leveret_amqp::table::{RawTable, Table};

use super::channel::{Awaited, Consumer, Sent, Tx, Unconfirmed};
use super::{Channel, Client, ConnectionState, World, encode_table};
use crate::plan::{BINDINGS, EXCHANGES, HEAP, Kind, Pairs, QueueIndex, ROUTES};
use crate::shadow::{QueueFate, Settled, body_of};

/// Channels of one connection.
const CHANNELS_MAX: u16 = 4;

/// Unconfirmed messages of one channel above which it waits.
const UNCONFIRMED_MAX: usize = 60;

/// The name that stands for direct replies.
const REPLIES: &str = "amq.rabbitmq.reply-to";

/// What clients are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Anything.
    Storm,
    /// Settles what it holds, waits for its answers, and leaves.
    Leave,
    /// Consumes from every steady queue and acks all.
    Drain,
}

impl Client {
    /// Declares the plan, in order: for the first client, before the storm.
    pub(crate) fn declare_plan(&mut self, step: usize, world: &mut World<'_>) -> bool {
        if self.state != ConnectionState::Open || self.has_output() {
            return false;
        }
        if self.channels.is_empty() {
            self.open(1, world);
            return false;
        }
        if self.channels.values().any(Channel::is_asking) {
            return false;
        }
        let kinds = world.shadow.queues.len();
        if let Some(kind) = world.shadow.queues.get(step).cloned() {
            self.declare_queue(1, &kind, false);
        } else if let Some((name, kind)) = EXCHANGES.get(step - kinds) {
            self.declare_exchange(1, name, kind);
        } else if let Some(binding) = BINDINGS.get(step - kinds - EXCHANGES.len()) {
            self.bind(1, binding);
        }
        true
    }

    /// Commands that declare the plan.
    pub(crate) fn plan_len(kinds: usize) -> usize {
        kinds + EXCHANGES.len() + BINDINGS.len()
    }

    /// Does one thing, if there is one to do.
    pub(crate) fn act(&mut self, mood: Mood, world: &mut World<'_>) {
        if self.state != ConnectionState::Open {
            return;
        }
        if mood == Mood::Leave {
            return self.leave(world);
        }
        let free = (1..=CHANNELS_MAX).find(|&number| !self.has_channel(number));
        if let Some(free) = free
            && (self.channels.is_empty() || mood == Mood::Storm && world.random.one_in(20))
        {
            return self.open(free, world);
        }
        if mood == Mood::Storm && world.random.one_in(400) {
            return self.close();
        }
        let numbers: Vec<u16> = self.channels.keys().copied().collect();
        let Some(&number) = world.random.pick(&numbers) else { return };
        match mood {
            Mood::Drain => self.drain(number, world),
            _ => self.act_on(number, world),
        }
    }

    /// Whether [`act`](Self::act) may do something.
    pub(crate) fn wants_to_act(&self, mood: Mood) -> bool {
        match mood {
            Mood::Storm => true,
            Mood::Leave => !self.channels.values().any(Channel::is_busy),
            Mood::Drain => self.channels.values().all(|channel| {
                let all = crate::plan::queues().len();
                !channel.is_asking()
                    && (channel.consumers.len() < all || !channel.unacked.is_empty())
            }),
        }
    }

    fn act_on(&mut self, number: u16, world: &mut World<'_>) {
        let Some(channel) = self.channels.get(&number) else { return };
        if channel.is_ending() {
            return;
        }
        // What is held now may be taken back at any moment.
        let recovers = channel.asks(&Awaited::Recover) || channel.asks(&Awaited::Rollback);
        // Mostly one command at a time, sometimes several.
        let may_ask = !channel.is_asking() || channel.may_ask() && world.random.one_in(4);
        let has_unacked = !channel.unacked.is_empty();
        // Acks that are committed alone are answered first of all, if they do not wait for agreement.
        let acks_alone = world.shadow.is_agreed
            && channel.tx.as_ref().is_some_and(|tx| tx.published.is_empty())
            && has_unacked;
        match world.random.below(40) {
            0..=15 if !acks_alone => self.publish(number, world),
            16..=26 if has_unacked && !recovers => {
                let may_select = channel.tx.is_none() && channel.publisher % 3 == 0 && may_ask;
                if world.shadow.is_agreed && may_select {
                    self.select_tx(number);
                }
                self.settle(number, world);
                self.commit_acks(number, may_ask, world);
            }
            27..=38 if may_ask => self.ask(number, world),
            39 if may_ask && world.random.one_in(12) => self.close_channel(number),
            _ => {}
        }
    }

    /// One command with an answer.
    fn ask(&mut self, number: u16, world: &mut World<'_>) {
        let Some(channel) = self.channels.get(&number) else { return };
        let consumers = channel.consumers.len();
        match world.random.below(25) {
            3 | 4 => self.set_prefetch(number, world),
            5..=8 if consumers < 5 => self.consume(number, world),
            9 | 10 if consumers > 0 => {
                let tags: Vec<String> = channel.consumers.keys().cloned().collect();
                let Some(tag) = world.random.pick(&tags) else { return };
                self.put_method(number, basic::Cancel { consumer_tag: tag, no_wait: false });
                self.await_answer(number, Awaited::Cancel { tag: tag.clone() });
            }
            11..=15 => self.get(number, world),
            16 => {
                let steady: Vec<Kind> =
                    world.shadow.queues.iter().filter(|kind| kind.is_steady).cloned().collect();
                let Some(kind) = world.random.pick(&steady) else { return };
                self.declare_queue(number, kind, world.random.one_in(2));
            }
            17 => self.declare_fleeting(number, world),
            23 if world.random.one_in(2) => self.declare_kept(number, world),
            24 => _ = self.delete_kept(number, world),
            0..=2 => self.end_tx(number, world),
            18 if channel.tx.is_none() && world.random.one_in(3) => {
                self.put_method(number, basic::Recover { requeue: true });
                self.await_answer(number, Awaited::Recover);
            }
            19 if world.random.one_in(2) => self.purge_or_delete(number, world),
            19 => self.purge_heap(number, world),
            20 if world.random.one_in(6) => self.blunder(number, world),
            22 if channel.replies.is_none() => self.consume_replies(number),
            21 => {
                let Some(binding) = world.random.pick(&BINDINGS) else { return };
                self.bind(number, binding);
            }
            _ => {}
        }
    }

    fn await_answer(&mut self, number: u16, answer: Awaited) {
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.awaits(answer);
        }
    }

    fn open(&mut self, number: u16, world: &mut World<'_>) {
        *world.next_publisher += 1;
        self.channels
            .insert(number, Channel::new(*world.next_publisher, self.connection, world.now));
        self.put_method(number, channel::Open { out_of_band: "" });
    }

    fn close_channel(&mut self, number: u16) {
        let close =
            channel::Close { reply_code: 200, reply_text: "bye", class_id: 0, method_id: 0 };
        self.put_method(number, close);
        self.await_answer(number, Awaited::Close);
    }

    /// Closes the connection, which closes its channels. All that is still to be sent goes first.
    pub(crate) fn close(&mut self) {
        if self.has_output() {
            return; // channels are mixed: what is queued on others would come too late
        }
        self.state = ConnectionState::Closing;
        let close =
            connection::Close { reply_code: 200, reply_text: "bye", class_id: 0, method_id: 0 };
        self.put_method(0, close);
    }

    fn leave(&mut self, world: &mut World<'_>) {
        if self.channels.values().any(Channel::is_busy) {
            return;
        }
        let holds = self.channels.iter().find(|(_, channel)| !channel.unacked.is_empty());
        match holds.map(|(&number, _)| number) {
            Some(number) if !world.random.one_in(4) => self.settle(number, world),
            _ => self.close(),
        }
    }

    fn select_tx(&mut self, number: u16) {
        self.put_method(number, tx::Select {});
        self.await_answer(number, Awaited::TxSelect);
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.tx = Some(Tx::default());
        }
    }

    fn publish(&mut self, number: u16, world: &mut World<'_>) {
        let Some(channel) = self.channels.get(&number) else { return };
        if self.is_blocked || channel.unconfirmed.len() >= UNCONFIRMED_MAX {
            return;
        }
        // Two publishers in three want confirms, from their first message on.
        if !channel.is_confirming && channel.publisher % 3 != 0 {
            self.put_method(number, confirm::Select { no_wait: false });
            self.await_answer(number, Awaited::Select);
            if let Some(channel) = self.channels.get_mut(&number) {
                channel.is_confirming = true;
            }
        }
        // Of the others, one in three has transactions, or all where what they commit is agreed upon.
        let has_none = |it: &Channel| it.tx.is_none() && !it.is_confirming;
        let is_agreed = world.shadow.is_agreed && self.channels.get(&number).is_some_and(has_none);
        let is_to = is_agreed || channel_tx(self.channels.get(&number)) == Some(false);
        if is_to {
            self.select_tx(number);
        }
        for _ in 0..=world.random.below(4) {
            self.publish_one(number, world);
        }
    }

    fn publish_one(&mut self, number: u16, world: &mut World<'_>) {
        let random = &mut *world.random;
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let answer = if random.one_in(3) { channel.to_answer.pop() } else { None };
        let asks = channel.replies.is_some() && random.one_in(3);
        let request = answer.as_ref().map(|&(_, request)| request);
        let mut headers: Pairs = &[];
        let (exchange, key, targets) = if let Some((address, _)) = answer {
            ("", address, Vec::new())
        } else if random.one_in(3) {
            let Some(&(exchange, key, pairs, targets)) = random.pick(&ROUTES) else { return };
            let targets = targets.iter().filter_map(|name| world.shadow.queue(name)).collect();
            headers = pairs;
            (exchange, key.to_owned(), targets)
        } else {
            // The dead-letter queue is for dead letters; newer queues are likelier to live.
            let count = world.shadow.queues.len();
            let to =
                if random.one_in(4) { count - 1 - random.below(4) } else { random.below(count) };
            let to = to.max(1);
            ("", world.shadow.queues[to].name.clone(), vec![to])
        };
        let size = match random.below(40) {
            _ if request.is_some() => random.below(60),
            0 => 4000 + random.below(10_000),
            1..=4 => 0,
            5..=12 => random.below(600),
            _ => random.below(60),
        };
        let mandatory = request.is_none() && random.one_in(5);
        let priority = random.one_in(3).then(|| random.below(8) as u8);
        let is_persistent = random.below(2) == 1;
        // What expires is found again where its queue has dead letters go.
        let expires = matches!(&targets[..], [one] if world.shadow.queues[*one].dead_letters);
        let expires = expires && random.one_in(3);
        let expiration = expires.then(|| random.below(60).to_string());
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let (is_confirming, is_held) = (channel.is_confirming, channel.tx.is_some());
        let publisher = channel.publisher;
        let by = (publisher, self.connection);
        let message =
            world.shadow.publish(by, size, targets, is_persistent, is_confirming, is_held);
        if let Some(request) = request {
            world.shadow.answers(message, request);
        }
        match &mut channel.tx {
            Some(tx) => tx.published.push(message),
            None => channel.sent.push(Sent::Publish(message)),
        }
        if channel.is_confirming {
            channel.unconfirmed.insert(channel.next_confirm, Unconfirmed { message, mandatory });
        }
        channel.next_confirm += 1;
        let properties = Properties {
            message_id: Some(message.to_string()),
            headers: (!headers.is_empty()).then(|| table(headers)),
            priority,
            delivery_mode: Some(1 + u8::from(is_persistent)),
            expiration,
            reply_to: asks.then(|| REPLIES.to_owned()),
            ..Properties::default()
        };
        let mut raw = Vec::new();
        properties.encode(&mut raw);
        self.put_method(
            number,
            basic::Publish { ticket: 0, exchange, routing_key: &key, mandatory, immediate: false },
        );
        self.put_content(number, &raw, &body_of(message, size));
    }

    fn settle(&mut self, number: u16, world: &mut World<'_>) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let tags: Vec<u64> = channel.unacked.keys().copied().collect();
        // Mostly the oldest, sometimes any.
        let tag = if world.random.one_in(3) { world.random.pick(&tags) } else { tags.first() };
        let Some(&tag) = tag else { return };
        let multiple = world.random.one_in(4);
        let (how, is_reject) = match world.random.below(12) {
            0 => (Settled::Reject, world.random.one_in(2)),
            1 | 2 => (Settled::Requeue, world.random.one_in(2)),
            _ => (Settled::Ack, false),
        };
        let multiple = multiple && !is_reject;
        let upto = if multiple { 0 } else { tag };
        for tag in tags.into_iter().filter(|&other| upto <= other && other <= tag) {
            channel.settle(tag, how, world.shadow);
        }
        let requeue = how == Settled::Requeue;
        match (how, is_reject) {
            (Settled::Ack, _) => {
                self.put_method(number, basic::Ack { delivery_tag: tag, multiple });
            }
            (_, true) => self.put_method(number, basic::Reject { delivery_tag: tag, requeue }),
            _ => self.put_method(number, basic::Nack { delivery_tag: tag, multiple, requeue }),
        }
    }

    /// Commits acks alone now and then: these have their answer before all others, if it does not wait for agreement.
    fn commit_acks(&mut self, number: u16, may_ask: bool, world: &mut World<'_>) {
        let channel = self.channels.get(&number);
        let has_acks_alone =
            channel.is_some_and(|channel| channel.tx.as_ref().is_some_and(Tx::has_acks_alone));
        if world.shadow.is_agreed && may_ask && has_acks_alone {
            self.end_tx(number, world);
        }
    }

    /// Commits, or rolls back.
    fn end_tx(&mut self, number: u16, world: &mut World<'_>) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if channel.tx.as_ref().is_none_or(Tx::is_empty) {
            return;
        }
        if world.random.one_in(4) {
            channel.roll_back();
            self.put_method(number, tx::Rollback {});
            self.await_answer(number, Awaited::Rollback);
        } else {
            channel.commit(world.shadow);
            self.put_method(number, tx::Commit {});
            self.await_answer(number, Awaited::Commit);
        }
    }

    fn set_prefetch(&mut self, number: u16, world: &mut World<'_>) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let prefetch_count = world.random.below(8) as u16;
        // A limit that is set while messages are out would not hold for these.
        let global = channel.consumers.is_empty() && world.random.one_in(3);
        if global {
            channel.global_prefetch = prefetch_count;
        } else {
            // As in RabbitMQ, a limit for consumers to come ends that of the channel.
            (channel.prefetch, channel.global_prefetch) = (prefetch_count, 0);
        }
        self.put_method(number, basic::Qos { prefetch_size: 0, prefetch_count, global });
        self.await_answer(number, Awaited::Qos);
    }

    fn consume(&mut self, number: u16, world: &mut World<'_>) {
        let Some(mut queue) = self.reachable_queue(world) else { return };
        if world.random.one_in(6)
            && let Some(contended) = world.shadow.queue("contended")
        {
            queue = contended;
        }
        self.consume_from(number, queue, world.random.one_in(5), world);
    }

    fn consume_from(
        &mut self,
        number: u16,
        queue: QueueIndex,
        no_ack: bool,
        world: &mut World<'_>,
    ) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        if channel.global_prefetch > 0 && world.shadow.queues[queue].is_quorum() {
            return;
        }
        let tag = format!("c{}-{}", channel.publisher, world.random.next());
        let prefetch = channel.prefetch;
        channel.consumers.insert(tag.clone(), Consumer { queue, no_ack, prefetch, unacked: 0 });
        let Kind { ref name, is_contended, .. } = world.shadow.queues[queue];
        let name = name.clone();
        let exclusive = is_contended && !world.shadow.is_calm && world.random.one_in(4);
        let mut arguments = Table::new();
        if world.random.one_in(4) {
            arguments.set("x-priority", world.random.below(3) as i32);
        }
        let arguments = encode_table(&arguments);
        // A refusal is only understood as the answer to this command.
        let no_wait = !is_contended && world.random.one_in(6);
        self.put_method(
            number,
            basic::Consume {
                ticket: 0,
                queue: &name,
                consumer_tag: &tag,
                no_local: false,
                no_ack,
                exclusive,
                no_wait,
                arguments: RawTable::unchecked(&arguments),
            },
        );
        if !no_wait {
            let answer = Awaited::Consume { tag, may_be_refused: is_contended };
            self.await_answer(number, answer);
        }
    }

    /// Direct replies go past all queues.
    fn consume_replies(&mut self, number: u16) {
        let Some(channel) = self.channels.get_mut(&number) else { return };
        let tag = format!("r{}", channel.publisher);
        channel.replies = Some(tag.clone());
        let consume = basic::Consume {
            queue: REPLIES,
            consumer_tag: &tag,
            no_ack: true,
            ..basic::Consume::default()
        };
        self.put_method(number, consume);
        self.await_answer(number, Awaited::Consume { tag, may_be_refused: false });
    }

    /// A steady queue but the [`HEAP`], or one of its own: others' may vanish, and asking for them is a mistake.
    fn reachable_queue(&self, world: &mut World<'_>) -> Option<QueueIndex> {
        let queues = &world.shadow.queues;
        let reachable: Vec<QueueIndex> = (0..queues.len())
            .filter(|&queue| queues[queue].is_steady || self.fleeting.contains(&queue))
            .filter(|&queue| queues[queue].name != HEAP)
            .collect();
        world.random.pick(&reachable).copied()
    }

    fn get(&mut self, number: u16, world: &mut World<'_>) {
        let Some(queue) = self.reachable_queue(world) else { return };
        let no_ack = world.random.one_in(3);
        let name = world.shadow.queues[queue].name.clone();
        self.put_method(number, basic::Get { ticket: 0, queue: &name, no_ack });
        self.await_answer(number, Awaited::Get { queue, no_ack });
    }

    fn declare_queue(&mut self, number: u16, kind: &Kind, passive: bool) {
        let arguments = encode_table(&kind.arguments);
        self.put_method(
            number,
            queue::Declare {
                ticket: 0,
                queue: &kind.name,
                passive,
                durable: kind.is_durable,
                exclusive: kind.is_exclusive,
                auto_delete: kind.is_auto_delete,
                no_wait: false,
                arguments: RawTable::unchecked(&arguments),
            },
        );
        self.await_answer(number, Awaited::DeclareQueue { name: kind.name.clone() });
    }

    /// A queue that others may publish to, and that stays until somebody deletes it.
    fn declare_kept(&mut self, number: u16, world: &mut World<'_>) {
        let kind = Kind::kept(format!("kept-{}", world.shadow.queues.len()));
        self.declare_queue(number, &kind, false);
        let queue = world.shadow.add_queue(kind);
        world.shadow.kept.insert(queue, QueueFate::Asked);
    }

    /// True when there was one to delete.
    fn delete_kept(&mut self, number: u16, world: &mut World<'_>) -> bool {
        let there = world.shadow.kept.iter().filter(|&(_, &kept)| kept == QueueFate::There);
        let there: Vec<QueueIndex> = there.map(|(&queue, _)| queue).collect();
        let Some(&queue) = world.random.pick(&there) else { return false };
        world.shadow.keep(queue, QueueFate::There, QueueFate::Going);
        let name = world.shadow.name(queue).to_owned();
        self.put_method(number, queue::Delete { queue: &name, ..queue::Delete::default() });
        self.await_answer(number, Awaited::Delete { kept: Some(queue) });
        true
    }

    fn declare_exchange(&mut self, number: u16, name: &str, kind: &str) {
        self.put_method(
            number,
            exchange::Declare {
                ticket: 0,
                exchange: name,
                kind,
                passive: false,
                durable: true,
                auto_delete: false,
                internal: false,
                no_wait: false,
                arguments: RawTable::unchecked(&[]),
            },
        );
        self.await_answer(number, Awaited::DeclareExchange);
    }

    fn bind(&mut self, number: u16, binding: &(&str, &str, &str, Pairs)) {
        let (exchange, routing_key, queue, arguments) = *binding;
        let arguments = encode_table(&table(arguments));
        self.put_method(
            number,
            queue::Bind {
                ticket: 0,
                queue,
                exchange,
                routing_key,
                no_wait: false,
                arguments: RawTable::unchecked(&arguments),
            },
        );
        self.await_answer(number, Awaited::Bind);
    }

    /// An exclusive queue; or an auto-delete one and its only consumer, since it could go while any
    /// other command for it is under way.
    fn declare_fleeting(&mut self, number: u16, world: &mut World<'_>) {
        if world.random.one_in(2) {
            let kind = Kind::fleeting(format!("fleeting-{}", world.shadow.queues.len()), false);
            self.declare_queue(number, &kind, false);
            let queue = world.shadow.add_queue(kind);
            return self.consume_from(number, queue, world.random.one_in(3), world);
        }
        if self.fleeting.len() >= 3 {
            return;
        }
        let mut kind = Kind::fleeting(format!("fleeting-{}", world.shadow.queues.len()), true);
        // It goes with its connection all the same.
        kind.is_durable = world.random.one_in(2);
        self.declare_queue(number, &kind, false);
        world.shadow.add_queue(kind);
    }

    fn purge_or_delete(&mut self, number: u16, world: &mut World<'_>) {
        let Some(&queue) = world.random.pick(&self.fleeting) else { return };
        let name = world.shadow.queues[queue].name.clone();
        // Other channels may have commands for it under way.
        if world.random.one_in(2) || self.channels.len() > 1 {
            self.put_method(number, queue::Purge { ticket: 0, queue: &name, no_wait: false });
            self.await_answer(number, Awaited::Purge { gone: Vec::new() });
        } else {
            self.fleeting.retain(|&other| other != queue);
            self.put_method(
                number,
                queue::Delete {
                    ticket: 0,
                    queue: &name,
                    if_unused: false,
                    if_empty: false,
                    no_wait: false,
                },
            );
            self.await_answer(number, Awaited::Delete { kept: None });
        }
    }

    /// Purges a queue of which is known what is in it.
    fn purge_heap(&mut self, number: u16, world: &mut World<'_>) {
        let Some(queue) = world.shadow.queue(HEAP) else { return };
        let gone = world.shadow.confirmed_in(queue);
        self.put_method(number, queue::Purge { ticket: 0, queue: HEAP, no_wait: false });
        self.await_answer(number, Awaited::Purge { gone });
    }

    /// A mistake that costs the channel.
    fn blunder(&mut self, number: u16, world: &mut World<'_>) {
        let code = match world.random.below(3) {
            0 => {
                let mut kind = Kind::fleeting("nowhere".to_owned(), false);
                kind.is_auto_delete = false;
                self.declare_queue(number, &kind, true);
                404
            }
            1 => {
                self.put_method(number, basic::Ack { delivery_tag: 1 << 40, multiple: false });
                406
            }
            _ => {
                let Some(mut kind) = world.shadow.queues.get(1).cloned() else { return };
                kind.arguments = Table::new();
                kind.arguments.set("x-max-length", 7);
                self.declare_queue(number, &kind, false);
                406
            }
        };
        if let Some(channel) = self.channels.get_mut(&number) {
            channel.expects_close = Some(code);
            channel.awaits(Awaited::Doom);
        }
    }

    /// Takes from every steady queue and acks all.
    fn drain(&mut self, number: u16, world: &mut World<'_>) {
        let Some(channel) = self.channels.get(&number) else { return };
        if channel.is_asking() {
            return;
        }
        if self.delete_kept(number, world) {
            return;
        }
        let Some(channel) = self.channels.get(&number) else { return };
        let next = (0..world.shadow.queues.len())
            .filter(|&queue| world.shadow.queues[queue].is_steady)
            .find(|&queue| channel.consumers.values().all(|consumer| consumer.queue != queue));
        if let Some(queue) = next {
            return self.consume_from(number, queue, false, world);
        }
        if let Some(&tag) = channel.unacked.keys().next_back() {
            let Some(channel) = self.channels.get_mut(&number) else { return };
            let tags: Vec<u64> = channel.unacked.keys().copied().collect();
            tags.into_iter().for_each(|tag| channel.settle(tag, Settled::Ack, world.shadow));
            self.put_method(number, basic::Ack { delivery_tag: tag, multiple: true });
        }
    }
}

/// Whether a channel that is to have transactions has them; none for other channels.
fn channel_tx(channel: Option<&Channel>) -> Option<bool> {
    let channel = channel.filter(|channel| channel.publisher % 9 == 0)?;
    Some(channel.tx.is_some())
}

fn table(pairs: Pairs) -> Table {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.into())).collect()
}
