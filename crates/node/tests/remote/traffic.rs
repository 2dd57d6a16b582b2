//! What clients do, and what became of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leveret_amqp::method::{basic, exchange, queue};
use leveret_broker::message::{ConnectionId, Outbox};
use leveret_queue::Time;
use leveret_session::Settings;
use leveret_topology::{Destination, NodeId, Topology};

use crate::client::{COMMITS, Client, HeldTag, PLAIN, Seen, Transaction, Waits, number_of};
use crate::site::Site;

const CLIENTS: usize = 3;
pub(crate) const QUEUES: usize = 6;
/// The queue whose messages are confirmed by their acks, and given out before they are agreed upon.
pub(crate) const ACKED: usize = 3;
/// Another one that gives messages out before that.
pub(crate) const UNCOMMITTED: usize = 4;
/// The queue whose messages expire,
pub(crate) const EXPIRING: usize = 5;
/// and where they go then.
pub(crate) const DEAD_LETTERS: usize = 0;
/// Where a client waits for direct replies.
pub(crate) const DIRECT: usize = QUEUES;

/// A client's exclusive queue.
pub(crate) const EXCLUSIVE: usize = QUEUES + 1;
/// From here on: durable queues of one client each.
pub(crate) const OWN: usize = QUEUES + 2;
/// What exclusive queues are bound to, by their names.
pub(crate) const SHARED: &str = "amq.direct";
/// With this key it routes to [`UNCOMMITTED`] and to [`COPIED`],
pub(crate) const TO_BOTH: &str = "both";
pub(crate) const COPIED: [usize; 2] = [1, 2];
/// and with this one to [`ACKED`] and to a queue of its shard that wants an ack, too, and lets all expire before.
pub(crate) const TO_NOBODY: &str = "nobody";

pub(crate) type Random<'a> = &'a mut dyn FnMut(u64) -> u64;

pub(crate) fn queue_name(index: usize) -> String {
    if index == DIRECT { "amq.rabbitmq.reply-to".to_owned() } else { format!("q{index}") }
}

/// Whether a queue confirms what all members in contact have, and not a majority alone.
pub(crate) fn waits_for_all(queue: usize) -> bool {
    queue.is_multiple_of(2)
}

/// What became of a message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fate {
    pub(crate) confirmed: bool,
    /// Nobody waits for its confirm any more.
    pub(crate) is_given_up: bool,
    pub(crate) holder: Option<ConnectionId>,
    pub(crate) is_acked: bool,
    /// Another node's client may think that it has it, too.
    pub(crate) is_with_two: bool,
    /// Its ack may be lost, with the node that read it.
    pub(crate) may_come_back: bool,
    /// It was given out.
    pub(crate) was_seen: bool,
    /// It is transient, and nobody waits for a confirm: it is lost with the leader, or comes again, and takes no other one's place.
    pub(crate) is_transient: bool,
    /// An ack confirms it; who has it is asked nothing by a new leader if it was in the memory of the one before.
    pub(crate) waits_for_ack: bool,
    /// It is given out before it is agreed upon: it may be lost with the leader then, and comes again from its publisher's node.
    pub(crate) is_uncommitted: bool,
    /// It may become a dead letter: the next one is that.
    pub(crate) expires: bool,
    /// It is there if the one before has expired, and twice if the leader ends before that is let go.
    is_dead_letter: bool,
    /// It is confirmed when all members in contact have it.
    waits_for_all: bool,
    /// The next ones are the same message in other queues: by these.
    pub(crate) copies: &'static [usize],
    /// Its queue is being deleted, and goes with all that it has,
    may_go: bool,
    /// or is gone: nobody gets it any more, though there may be another queue with that name.
    is_gone: bool,
    /// It is acked in one of its queues alone, and never confirmed.
    pub(crate) is_refused: bool,
    /// Somebody acked it once,
    was_acked: bool,
    /// and not in a transaction of which nothing is known,
    was_acked_alone: bool,
    /// at this node.
    acked_at: Option<NodeId>,
    /// The channel that it was published on: what comes from there comes in the order of its numbers.
    by: Option<Line>,
}

/// A channel of a client.
type Line = (ConnectionId, u16);

impl Fate {
    fn transient() -> Self {
        Self {
            is_given_up: true,
            is_with_two: true,
            may_come_back: true,
            is_transient: true,
            ..Self::default()
        }
    }

    fn dead_letter() -> Self {
        Self { is_given_up: true, is_dead_letter: true, ..Self::default() }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) leaders: u64,
    pub(crate) confirmed: u64,
    pub(crate) acked: u64,
    pub(crate) answers: BTreeMap<&'static str, u64>,
    pub(crate) redelivered: u64,
    pub(crate) direct: u64,
    pub(crate) given_up: u64,
    /// Nacked: of these nobody knows whether they were acked.
    pub(crate) nacked: u64,
}

/// Bodies from here on are requests, which are not counted.
const REQUEST: u64 = 1 << 40;

impl Totals {
    pub(crate) fn add(&mut self, other: Self) {
        let Self { leaders, confirmed, acked, answers, redelivered, direct, given_up, nacked } =
            other;
        self.leaders += leaders;
        self.confirmed += confirmed;
        self.acked += acked;
        self.redelivered += redelivered;
        self.direct += direct;
        self.given_up += given_up;
        self.nacked += nacked;
        for (name, count) in answers {
            *self.answers.entry(name).or_default() += count;
        }
    }
}

/// All of it.
pub(crate) struct Traffic {
    pub(crate) settings: Arc<Settings>,
    pub(crate) messages: Vec<Fate>,
    /// Direct replies that came, by number of the request.
    replies: BTreeSet<u64>,
    requests: BTreeMap<u64, ConnectionId>,
    next_request: u64,
    /// Exclusive queues that were there once.
    exclusive: Vec<String>,
    /// And durable ones of one client each.
    own: Vec<String>,
    /// What was published together, and acked with that: all of it was done, or nothing.
    transactions: Vec<Transaction>,
    /// The last message that came to a client for the first time, by where it was published and by its queue.
    heights: BTreeMap<(Line, usize, ConnectionId), u64>,
    /// Confirmed just now, as all members in contact have them, and given to nobody.
    pub(crate) on_all: Vec<u64>,
    pub(crate) totals: Totals,
}

impl Default for Traffic {
    fn default() -> Self {
        let settings = Settings { allows_by_letters: true, heartbeat_s: 0, ..Settings::default() };
        Self {
            settings: Arc::new(settings),
            messages: Vec::new(),
            replies: BTreeSet::new(),
            requests: BTreeMap::new(),
            next_request: 0,
            exclusive: Vec::new(),
            own: Vec::new(),
            transactions: Vec::new(),
            heights: BTreeMap::new(),
            on_all: Vec::new(),
            totals: Totals::default(),
        }
    }
}

impl Traffic {
    /// A client is gone: what it published may be there or not, what it has comes back.
    pub(crate) fn gives_up(&mut self, client: &Client) {
        let published = client.unconfirmed.values().chain(&client.commits.published);
        for &number in published.filter(|number| **number < REQUEST) {
            self.all_copies(number).for_each(|fate| fate.is_given_up = true);
            self.totals.given_up += 1;
        }
        for &number in client.commits.acked.iter().filter(|number| **number < REQUEST) {
            let fate = &mut self.messages[number as usize];
            (fate.holder, fate.may_come_back) = (None, true);
        }
        for &number in client.held.values().filter(|number| **number < REQUEST) {
            self.messages[number as usize].holder = None;
        }
    }

    /// All clients of a node are gone, with acks of which nobody can tell any more what became.
    pub(crate) fn all_give_up(&mut self, node: NodeId, clients: &[Client]) {
        clients.iter().for_each(|client| self.gives_up(client));
        let acked = self.messages.iter_mut().filter(|it| it.acked_at == Some(node));
        acked.for_each(|fate| fate.may_come_back |= fate.is_acked);
    }

    /// A message of this queue; if it may expire, also what becomes of it then.
    fn add(&mut self, queue: usize, fate: Fate) {
        match queue {
            EXPIRING => {
                self.messages.extend([Fate { expires: true, ..fate }, Fate::dead_letter()]);
            }
            _ => self.messages.push(fate),
        }
    }

    /// A message in each of its queues.
    fn all_copies(&mut self, number: u64) -> impl Iterator<Item = &mut Fate> {
        let number = number as usize;
        let count = 1 + self.messages[number].copies.len();
        self.messages[number..].iter_mut().take(count)
    }

    /// The same in one of them.
    fn copy_in(&self, number: u64, queue: Option<usize>) -> u64 {
        if self.messages[number as usize].expires && queue == Some(DEAD_LETTERS) {
            return number + 1;
        }
        let mut copies = (1..).zip(self.messages[number as usize].copies);
        let copy = copies.find(|(_, it)| Some(**it) == queue);
        copy.map_or(number, |(index, _)| number + index)
    }

    /// Another node leads. What waits for an ack in the memory of the one before is given out again, whoever has it or has acked it. What was
    /// given out before others had it comes again if it is not confirmed.
    pub(crate) fn another_leads(&mut self) {
        let waits = |it: &&mut Fate| it.waits_for_ack && !it.confirmed;
        for fate in self.messages.iter_mut().filter(waits) {
            (fate.is_with_two, fate.may_come_back) = (true, true);
        }
        let comes = |it: &&mut Fate| it.is_uncommitted && !it.confirmed || it.is_dead_letter;
        for fate in self.messages.iter_mut().filter(comes) {
            fate.is_with_two = true;
            fate.may_come_back |= fate.is_acked;
        }
        self.totals.leaders += 1;
    }

    /// Clients are told nothing of it, but what they have is others' now: they are not listened to any more.
    pub(crate) fn loses(&mut self, node: NodeId, clients: &mut [Client]) {
        self.all_give_up(node, clients);
        for client in clients {
            // What they have sent and not heard of may be sent again to a leader that has forgotten it, and be stored twice.
            let all = client.held.values().chain(client.unconfirmed.values());
            let all = all.chain(&client.commits.published).chain(&client.commits.acked);
            for &number in all.filter(|number| **number < REQUEST) {
                self.all_copies(number).for_each(|fate| fate.is_with_two = true);
            }
            client.is_forgotten();
        }
    }

    /// Each message that was confirmed was settled in the end, and each publish has come to an end.
    pub(crate) fn check(&self) {
        let mut committed: BTreeSet<u64> = BTreeSet::new();
        for Transaction { published, acked } in &self.transactions {
            let was_seen = |number: &&u64| {
                let at = **number as usize;
                let dead = self.messages[at].expires.then(|| &self.messages[at + 1]);
                self.messages[at].was_seen || dead.is_some_and(|it| it.was_seen)
            };
            let seen = published.iter().filter(was_seen).count();
            assert!(seen == 0 || seen == published.len(), "{seen} of {published:?} are there");
            if seen > 0 {
                committed.extend(acked);
            }
        }
        for (number, fate) in (0..).zip(&self.messages) {
            assert!(fate.confirmed || fate.is_given_up, "{number}: {fate:?}");
            // An ack that may be lost may also have been heard, after the message came again to somebody else.
            let is_settled = |number: u64, fate: &Fate| {
                let was_acked = fate.was_acked_alone || committed.contains(&number);
                fate.is_acked || fate.may_come_back && was_acked
            };
            let is_dead =
                || fate.expires && is_settled(number + 1, &self.messages[number as usize + 1]);
            let is_there = fate.confirmed && !fate.may_go;
            let is_lost = is_there && !is_settled(number, fate) && !is_dead();
            assert!(!is_lost, "{number} is lost: {fate:?}");
            assert_eq!(fate.holder, None, "{number}: {fate:?}");
        }
    }

    /// What was answered about what is a client's own is so in these names.
    pub(crate) fn is_so(topology: &Topology, name: &str, own: &str) {
        let vhost = topology.vhost("/").expect("there").id;
        let has_exchange = topology.exchange(vhost, own).is_some();
        let has_queue = topology.queue(vhost, own).is_some();
        let exclusive = own.replace("own", "exclusive");
        let to = Destination::Queue(&exclusive);
        let has_binding =
            || topology.bound(vhost, SHARED, to, &exclusive, Default::default()).is_some();
        match name {
            "declare exclusive" => {
                assert!(topology.queue(vhost, &exclusive).is_some(), "{exclusive} is nowhere")
            }
            "bind" => assert!(has_binding(), "{exclusive} is bound nowhere"),
            "unbind" => assert!(!has_binding(), "{exclusive} is bound"),
            "declare exchange" => assert!(has_exchange, "{own} is nowhere"),
            "delete exchange" => assert!(!has_exchange, "{own} is there"),
            "declare queue" => assert!(has_queue, "{own} is nowhere"),
            "delete queue" => assert!(!has_queue, "{own} is there"),
            _ => {}
        }
    }

    /// Whether an answer is about an exclusive queue: a leader knows of it once the node of its connection is there.
    pub(crate) fn is_brought(name: &str) -> bool {
        matches!(name, "declare exclusive" | "bind" | "unbind")
    }

    /// Clients have what they made and have not taken away, whoever leads.
    pub(crate) fn have_their_own(topology: &Topology, clients: &[Client]) {
        for client in clients.iter().filter(|it| it.is_free()) {
            let own = format!("own{}", client.id.bits());
            let is_so = |is_there, [made, gone]: [&str; 2]| {
                Self::is_so(topology, if is_there { made } else { gone }, &own);
            };
            is_so(client.has_exchange, ["declare exchange", "delete exchange"]);
            is_so(client.has_queue, ["declare queue", "delete queue"]);
            if client.has_exclusive {
                Self::is_so(topology, "declare exclusive", &own);
                is_so(client.is_bound, ["bind", "unbind"]);
            }
        }
    }

    /// A client does something.
    pub(crate) fn act(&mut self, site: &mut Site, now: Time, random: Random<'_>) {
        if !site.remote.is_open() {
            return;
        }
        if site.clients.len() < CLIENTS {
            return site.connect(&self.settings, now);
        }
        let index = random(CLIENTS as u64) as usize;
        let client = &mut site.clients[index];
        if !client.is_free() {
            return;
        }
        let queue = random(QUEUES as u64) as usize;
        let name = queue_name(queue);
        let own = format!("own{}", client.id.bits());
        let by = Some((client.id, PLAIN));
        match random(31) {
            29 | 30 => {
                let number = self.messages.len() as u64;
                let (key, fate) = match random(2) {
                    0 => {
                        let (copies, is_uncommitted) = (&COPIED[..], true);
                        (TO_BOTH, Fate { copies, is_uncommitted, by, ..Fate::default() })
                    }
                    _ => {
                        let (is_refused, waits_for_ack) = (true, true);
                        (TO_NOBODY, Fate { is_refused, waits_for_ack, ..Fate::default() })
                    }
                };
                let copies = fate.copies.iter().map(|_| Fate { by, ..Fate::default() });
                self.messages.extend([fate].into_iter().chain(copies));
                client.publish((SHARED, key), number, None, true);
            }
            26 => self.transact(&mut site.clients[index], random),
            27 | 28 if [ACKED, UNCOMMITTED].contains(&queue) && !client.consumes_to_commit => {
                client.consume_to_commit(queue);
            }
            27 | 28 => client.get(queue, true),
            0..=5 => {
                let number = self.messages.len() as u64;
                if random(4) == 0 {
                    self.messages.push(Fate::transient());
                    client.publish_transient(("", &name), number);
                } else {
                    let waits_for_ack = queue == ACKED;
                    let is_uncommitted = queue == UNCOMMITTED;
                    let waits_for_all = waits_for_all(queue) && !is_uncommitted;
                    let fate = Fate {
                        waits_for_ack,
                        waits_for_all,
                        is_uncommitted,
                        by,
                        ..Fate::default()
                    };
                    self.add(queue, fate);
                    client.publish(("", &name), number, None, true);
                }
            }
            6..=10 => self.settle(site, index, random),
            11 | 12 if !client.consumes.contains(&queue) => {
                client.consume(queue, &name);
            }
            13 if !client.consumes.contains(&DIRECT) => {
                let name = queue_name(DIRECT);
                let method = basic::Consume {
                    queue: &name,
                    consumer_tag: "direct",
                    no_ack: true,
                    ..Default::default()
                };
                client.say(1, &method);
                client.waits = Waits::Consume(DIRECT);
            }
            14 if client.consumes.contains(&queue) => {
                let consumer_tag = &*format!("c{queue}");
                client.say(1, &basic::Cancel { consumer_tag, no_wait: false });
                client.waits = Waits::Cancel(queue);
            }
            15 | 16 => client.get(queue, false),
            17 => {
                let (prefetch_count, global) = (random(4) as u16, random(2) == 0);
                client.say(1, &basic::Qos { prefetch_size: 0, prefetch_count, global });
                client.waits = Waits::Qos;
            }
            18 | 19 if client.has_exchange => {
                let method = exchange::Delete { exchange: &own, ..Default::default() };
                client.say(1, &method);
                client.waits = Waits::DeleteExchange;
            }
            18 | 19 => {
                let method = exchange::Declare {
                    exchange: &own,
                    kind: "fanout",
                    durable: true,
                    ..Default::default()
                };
                client.say(1, &method);
                client.waits = Waits::DeclareExchange;
            }
            20 if client.has_queue && random(2) == 0 => {
                let number = self.messages.len() as u64;
                self.messages.push(Fate { by, ..Fate::default() });
                client.in_queue.push(number);
                client.publish(("", &own), number, None, true);
            }
            20 if client.has_queue && random(3) == 0 => client.get_of(&own),
            20 if client.has_queue => {
                for number in &client.in_queue {
                    self.messages[*number as usize].may_go = true;
                }
                client.say(1, &queue::Delete { queue: &own, ..Default::default() });
                client.waits = Waits::DeleteQueue;
            }
            20 => {
                let method = queue::Declare { queue: &own, durable: true, ..Default::default() };
                client.say(1, &method);
                client.waits = Waits::DeclareQueue;
                if !self.own.contains(&own) {
                    self.own.push(own);
                }
            }
            // A dead letter is another message to who gets it: the request would be answered twice.
            21 if client.consumes.contains(&DIRECT) && queue != EXPIRING => {
                let number = REQUEST + self.next_request;
                self.next_request += 1;
                self.requests.insert(number, client.id);
                client.publish(("", &name), number, Some(&queue_name(DIRECT)), false);
            }
            23 if random(2) == 0 && !self.exclusive.is_empty() => {
                let name = &self.exclusive[random(self.exclusive.len() as u64) as usize];
                let number = self.messages.len() as u64;
                self.messages.push(Fate::transient());
                let exchange = if random(2) == 0 { SHARED } else { "" };
                client.publish_transient((exchange, name), number);
            }
            23 if random(8) == 0 && !self.exclusive.is_empty() => {
                // Somebody else's, mostly: that is refused if it is there.
                let queue = &*self.exclusive[random(self.exclusive.len() as u64) as usize];
                if *queue != format!("exclusive{}", client.id.bits()) {
                    let (exchange, routing_key) = (SHARED, queue);
                    let unbind =
                        queue::Unbind { queue, exchange, routing_key, ..Default::default() };
                    client.say(1, &unbind);
                    client.waits = Waits::UnbindOther;
                }
            }
            23.. => {
                let queue = &*format!("exclusive{}", client.id.bits());
                let (exchange, routing_key) = (SHARED, queue);
                if !client.has_exclusive {
                    client.say(1, &queue::Declare { queue, exclusive: true, ..Default::default() });
                    client.waits = Waits::DeclareExclusive;
                    self.exclusive.push(queue.to_owned());
                } else if !client.consumes.contains(&EXCLUSIVE) && random(2) == 0 {
                    client.consume(EXCLUSIVE, queue);
                } else if client.is_bound {
                    let unbind =
                        queue::Unbind { queue, exchange, routing_key, ..Default::default() };
                    client.say(1, &unbind);
                    client.waits = Waits::Unbind;
                } else {
                    let bind = queue::Bind { queue, exchange, routing_key, ..Default::default() };
                    client.say(1, &bind);
                    client.waits = Waits::Bind;
                }
            }
            22 if random(4) == 0 && client.sent.is_empty() => self.leave(site, index, now),
            _ => {}
        }
    }

    /// The client leaves without a word.
    pub(crate) fn leave(&mut self, site: &mut Site, index: usize, now: Time) {
        let mut out = Outbox::default();
        let client = &mut site.clients[index];
        self.gives_up(client);
        client.leaves(&site.topology, now, &mut out);
        site.post(out);
        site.bury();
    }

    /// Messages are published together, and acked with that.
    fn transact(&mut self, client: &mut Client, random: Random<'_>) {
        let mut messages = Vec::new();
        for _ in 0..1 + random(3) {
            let any = random(QUEUES as u64) as usize;
            let queue = if random(2) == 0 { UNCOMMITTED } else { any };
            messages.push((queue_name(queue), self.messages.len() as u64));
            self.add(queue, Fate { by: Some((client.id, COMMITS)), ..Fate::default() });
        }
        let published = messages.iter().map(|it| it.1).collect();
        let acks = client.held.keys().copied().filter(|it| Client::is_to_commit(*it));
        let acks: Vec<_> = acks.collect();
        let acked = acks.iter().map(|tag| client.held[tag]);
        let acked = acked.filter(|number| *number < REQUEST).collect();
        self.transactions.push(Transaction { published, acked });
        self.commits(client, &messages, &acks);
    }

    /// What is acked may be so before its client hears of it.
    fn commits(&mut self, client: &mut Client, messages: &[(String, u64)], acks: &[HeldTag]) {
        for number in acks.iter().filter_map(|tag| client.held.get(tag)) {
            if let Some(fate) = self.messages.get_mut(*number as usize) {
                fate.was_acked = true;
                fate.was_acked_alone |= messages.is_empty();
            }
        }
        client.commit(messages, acks);
    }

    /// One of the messages that a client has is acked, or goes back.
    pub(crate) fn settle(&mut self, site: &mut Site, index: usize, random: Random<'_>) {
        let client = &mut site.clients[index];
        let count = client.held.len() as u64;
        let Some((&tag, &number)) = client.held.iter().nth(random(count.max(1)) as usize) else {
            return;
        };
        if Client::is_to_commit(tag) {
            if client.is_free() {
                self.commits(client, &[], &[tag]);
            }
            return;
        }
        client.held.remove(&tag);
        let (_, delivery_tag) = tag;
        if number >= REQUEST {
            client.say(1, &basic::Ack { delivery_tag, multiple: false });
            return;
        }
        if random(4) == 0 {
            self.messages[number as usize].holder = None;
            client.say(1, &basic::Nack { delivery_tag, multiple: false, requeue: true });
        } else {
            self.ack(client, tag, number);
        }
    }

    /// A client reads what is there. What was answered is so on all nodes: the answers' names, each with what is the client's own.
    pub(crate) fn read(
        &mut self,
        site: &mut Site,
        index: usize,
        now: Time,
        random: Random<'_>,
    ) -> Vec<(&'static str, String)> {
        let mut answers = Vec::new();
        let client = &mut site.clients[index];
        if client.is_gone || !client.has_output() {
            return answers;
        }
        let id = client.id;
        for seen in client.read() {
            match seen {
                Seen::In => {}
                Seen::Closed => {
                    self.leave(site, index, now);
                    return answers;
                }
                Seen::Confirmed(u64::MAX) | Seen::Refused(u64::MAX) => {}
                Seen::Confirmed(number) => {
                    for fate in self.all_copies(number) {
                        assert!(!std::mem::replace(&mut fate.confirmed, true), "{number} twice");
                        assert!(!fate.waits_for_ack || fate.was_acked, "{number}: {fate:?}");
                        assert!(!fate.is_refused, "{number}: {fate:?}");
                    }
                    let fate = &self.messages[number as usize];
                    let is_on_all = fate.waits_for_all && fate.copies.is_empty() && !fate.was_seen;
                    self.on_all.extend(is_on_all.then_some(number));
                    self.totals.confirmed += 1;
                }
                Seen::Committed(Transaction { published, acked }) => {
                    for number in published {
                        self.messages[number as usize].confirmed = true;
                        self.totals.confirmed += 1;
                    }
                    for number in acked.into_iter().filter(|number| *number < REQUEST) {
                        self.acked(number, id.node());
                    }
                }
                Seen::Refused(number) => {
                    let fate = &mut self.messages[number as usize];
                    let may_be = fate.waits_for_ack || fate.is_refused;
                    assert!(may_be && !fate.confirmed, "{number}: {fate:?}");
                    assert!(!std::mem::replace(&mut fate.is_given_up, true), "{number} twice");
                    self.totals.nacked += u64::from(!fate.is_refused);
                }
                Seen::Given { body, is_direct: true, .. } => {
                    let number = number_of(body);
                    assert_eq!(self.requests.get(&number), Some(&id), "of another one");
                    assert!(self.replies.insert(number), "reply {number} comes twice");
                    self.totals.direct += 1;
                }
                Seen::Given { tag, queue, body, redelivered, reply_to, .. } => {
                    let number = number_of(body);
                    self.given(
                        &mut site.clients[index],
                        (tag, queue),
                        number,
                        redelivered,
                        reply_to,
                        random,
                    );
                }
                Seen::Answer(name) => {
                    if name == "delete queue" {
                        for number in std::mem::take(&mut site.clients[index].in_queue) {
                            self.messages[number as usize].is_gone = true;
                        }
                    }
                    *self.totals.answers.entry(name).or_default() += 1;
                    answers.push((name, format!("own{}", id.bits())));
                }
            }
        }
        answers
    }

    fn given(
        &mut self,
        client: &mut Client,
        (tag, queue): (HeldTag, Option<usize>),
        number: u64,
        redelivered: bool,
        reply_to: Option<String>,
        random: Random<'_>,
    ) {
        let number = if number < REQUEST { self.copy_in(number, queue) } else { number };
        client.held.insert(tag, number);
        if number >= REQUEST {
            let Some(reply_to) = reply_to else { panic!("a request without an address") };
            // One that came before is answered by who had it.
            if !redelivered {
                client.publish(("", &reply_to), number, None, false);
            } else if client.is_free() && random(2) == 0 {
                let method =
                    queue::Declare { queue: &reply_to, passive: true, ..Default::default() };
                client.say(1, &method);
                client.waits = Waits::Asks;
            }
            return;
        }
        let id = client.id;
        let fate = &self.messages[number as usize];
        if fate.is_dead_letter {
            let expired = &self.messages[number as usize - 1];
            let was_had = expired.is_acked && !expired.may_come_back;
            assert!(expired.holder.is_none() && !was_had, "{number} expires: {expired:?}");
        }
        let fate = &mut self.messages[number as usize];
        assert!(!fate.is_gone, "{number} was in a queue that is deleted: {fate:?}");
        assert!(
            !fate.is_acked || fate.may_come_back || fate.is_with_two,
            "{number} comes again, and was acked"
        );
        assert!(fate.holder.is_none() || fate.is_with_two, "{number} is given to {id}: {fate:?}");
        let may_be_new = !fate.was_seen || fate.is_transient || fate.is_dead_letter;
        assert!(redelivered || may_be_new, "{number} was given out before: {fate:?}");
        // What a leader may have given out that others know nothing of is given out anew.
        let is_first = !redelivered && !fate.was_seen && !fate.is_with_two && !fate.may_come_back;
        if let Some(by) = fate.by.filter(|_| is_first) {
            // Of its own queues a client has one at a time.
            let queue = queue.filter(|it| *it < QUEUES).unwrap_or(OWN);
            let height = self.heights.entry((by, queue, id)).or_insert(number);
            assert!(number >= *height, "{number} comes to {id} behind {height}: {fate:?}");
            *height = number;
        }
        self.totals.redelivered += u64::from(redelivered);
        (fate.holder, fate.was_seen, fate.is_acked) = (Some(id), true, false);
        // One that waits may be about to leave.
        let is_prompt = client.is_free() && random(8) > 0;
        if [ACKED, UNCOMMITTED].map(Some).contains(&queue) && is_prompt {
            // Before it is agreed upon, if it can be.
            match Client::is_to_commit(tag) {
                true => self.transact(client, random),
                false => self.ack(client, tag, number),
            }
        }
    }

    fn ack(&mut self, client: &mut Client, tag: HeldTag, number: u64) {
        client.held.remove(&tag);
        self.acked(number, client.id.node());
        client.say(1, &basic::Ack { delivery_tag: tag.1, multiple: false });
    }

    fn acked(&mut self, number: u64, at: NodeId) {
        let fate = &mut self.messages[number as usize];
        (fate.holder, fate.is_acked, fate.acked_at) = (None, true, Some(at));
        (fate.was_acked, fate.was_acked_alone) = (true, true);
        self.totals.acked += 1;
    }

    /// A queue of one client, which may have left, that this one does not consume from.
    fn next_own(&self, topology: &Topology, client: &Client) -> Option<usize> {
        let vhost = topology.vhost("/")?.id;
        let is_next = |at: &usize| {
            let is_there = topology.queue(vhost, &self.own[*at]).is_some();
            is_there && !client.consumes.contains(&(OWN + at))
        };
        (0..self.own.len()).find(is_next)
    }

    /// Clients that are free consume from all queues, and settle what they have.
    pub(crate) fn drain(&mut self, site: &mut Site, now: Time, random: Random<'_>) {
        if site.remote.is_open() && site.clients.is_empty() {
            site.connect(&self.settings, now);
        }
        for index in 0..site.clients.len() {
            let client = &mut site.clients[index];
            if !client.is_free() {
                continue;
            }
            let wanted = (0..QUEUES).find(|queue| !client.consumes.contains(queue));
            if let Some(queue) = wanted {
                client.consume(queue, &queue_name(queue));
            } else if client.has_exclusive && !client.consumes.contains(&EXCLUSIVE) {
                let queue = &*format!("exclusive{}", client.id.bits());
                client.consume(EXCLUSIVE, queue);
            } else if let Some(own) = self.next_own(&site.topology, client) {
                client.consume(OWN + own, &self.own[own]);
            }
            while !site.clients[index].held.is_empty() && site.clients[index].is_free() {
                self.settle(site, index, random);
            }
        }
    }
}
