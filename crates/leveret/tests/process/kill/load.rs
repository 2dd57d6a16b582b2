//! The load: publishers and consumers, worked by one thread, so that what was sent before what is known.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use leveret_client::amqp::method::Method;
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, Consume, Error, Event, ExchangeDeclare, QueueDeclare};

use super::shadow::{Kind, Shadow};
use crate::broker::{Broker, PATIENCE};
use crate::messages::{Key, Random};

pub(super) const KINDS: &[Kind] = &[
    Kind { name: "plain", from_disk: true, in_order: true, dies: false },
    Kind { name: "shared", from_disk: false, in_order: false, dies: false },
    Kind { name: "priority", from_disk: true, in_order: false, dies: false },
    Kind { name: "fan-classic", from_disk: true, in_order: true, dies: false },
    Kind { name: "fan-quorum", from_disk: false, in_order: true, dies: false },
    Kind { name: "fan-first", from_disk: false, in_order: true, dies: false },
    Kind { name: "mortal", from_disk: false, in_order: false, dies: true },
    Kind { name: "mortal-safe", from_disk: false, in_order: false, dies: true },
];
const MORTAL: [usize; 2] = [6, 7];
/// Which queue each consumer takes from.
const CONSUMERS: [usize; 9] = [0, 1, 1, 2, 3, 4, 5, 6, 7];
const PUBLISHERS: u32 = 4;
const IN_FLIGHT: usize = 100;
const DEAD: &str = "dead";

fn text(text: &str) -> Value {
    Value::LongStr(text.as_bytes().to_vec())
}

/// Declares everything. It is there again after a kill, so this must agree with it.
pub(super) fn declare(broker: &Broker) {
    let (mut client, channel) = broker.channel();
    let durable = ExchangeDeclare { durable: true, ..ExchangeDeclare::default() };
    for exchange in ["fan", "graves"] {
        client.exchange_declare(channel, exchange, "fanout", &durable).unwrap();
    }
    let mut declare = |name: &str, arguments: &[(&str, Value)], exchange: Option<&str>| {
        let mut how = QueueDeclare { durable: true, ..QueueDeclare::default() };
        arguments.iter().for_each(|(key, value)| how.arguments.set(key, value.clone()));
        client.queue_declare(channel, name, &how).unwrap();
        if let Some(exchange) = exchange {
            client.queue_bind(channel, name, exchange, "", &Table::default()).unwrap();
        }
    };
    let on_disk = ("x-confirm-on", text("enqueue"));
    let quorum = ("x-queue-type", text("quorum"));
    let graves = ("x-dead-letter-exchange", text("graves"));
    let safe = ("x-dead-letter-strategy", text("at-least-once"));
    let overflow = ("x-overflow", text("reject-publish"));
    declare("plain", std::slice::from_ref(&on_disk), None);
    declare("shared", &[], None);
    declare("priority", &[on_disk.clone(), ("x-max-priority", Value::I32(5))], None);
    declare("fan-classic", &[on_disk], Some("fan"));
    declare("fan-quorum", std::slice::from_ref(&quorum), Some("fan"));
    declare("fan-first", &[], Some("fan"));
    declare("mortal", std::slice::from_ref(&graves), None);
    declare("mortal-safe", &[quorum, graves, safe, overflow], None);
    declare(DEAD, &[], Some("graves"));
    client.close().unwrap();
}

struct Publisher {
    id: u32,
    client: Connection,
    channel: u16,
    last_tag: u64,
    /// By tag.
    unconfirmed: BTreeMap<u64, Key>,
}

struct Consumer {
    queue: usize,
    client: Connection,
    channel: u16,
    unacked: Vec<(u64, Key, bool)>,
    /// Acks that no call has followed yet.
    acked: Vec<Key>,
}

/// The clients of one life of the broker.
pub(super) struct Clients {
    publishers: Vec<Publisher>,
    consumers: Vec<Consumer>,
}

/// What lives on over kills.
pub(super) struct Load {
    pub(super) random: Random,
    pub(super) shadow: Shadow,
    /// By publisher.
    numbers: Vec<u32>,
    /// Dead letters that were taken out, and acks of them known to be handled or not: it is the same.
    buried: HashSet<Key>,
}

impl Load {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            random: Random(seed),
            shadow: Shadow::new(KINDS),
            numbers: vec![0; PUBLISHERS as usize],
            buried: HashSet::new(),
        }
    }

    pub(super) fn connect(&mut self, broker: &Broker) -> Clients {
        let publisher = |id| {
            let (mut client, channel) = broker.channel();
            client.confirm_select(channel).unwrap();
            Publisher { id, client, channel, last_tag: 0, unconfirmed: BTreeMap::new() }
        };
        // Now and then one is missing, and its queue gets long.
        let mut present = CONSUMERS.to_vec();
        present.retain(|_| self.random.percent(70));
        let mut consumer = |queue: usize| {
            let (mut client, channel) = broker.channel();
            let prefetch = 1 + self.random.below(60) as u16;
            client.qos(channel, prefetch, false).unwrap();
            client.consume(channel, KINDS[queue].name, &Consume::default()).unwrap();
            Consumer { queue, client, channel, unacked: Vec::new(), acked: Vec::new() }
        };
        Clients {
            publishers: (0..PUBLISHERS).map(publisher).collect(),
            consumers: present.into_iter().map(&mut consumer).collect(),
        }
    }

    /// Works until `confirms` more messages are confirmed.
    pub(super) fn work(&mut self, clients: &mut Clients, confirms: u64) {
        let enough = self.shadow.totals.confirmed + confirms;
        let deadline = Instant::now() + PATIENCE;
        while self.shadow.totals.confirmed < enough {
            assert!(Instant::now() < deadline, "no confirms: {:?}", self.shadow.totals);
            for publisher in &mut clients.publishers {
                if self.random.percent(50) {
                    self.publish(publisher);
                }
            }
            let mut has_come = false;
            for publisher in &mut clients.publishers {
                has_come |= publisher.client.poll().unwrap();
                self.confirms(publisher).unwrap();
            }
            for consumer in &mut clients.consumers {
                has_come |= consumer.client.poll().unwrap();
                self.deliveries(consumer).unwrap();
                self.settle(consumer);
            }
            if !has_come {
                clients.publishers[0].client.wait(Duration::from_micros(200)).unwrap();
            }
        }
    }

    /// The broker was killed: takes in what it had sent before.
    pub(super) fn last_words(&mut self, mut clients: Clients) {
        for publisher in &mut clients.publishers {
            while self.confirms(publisher).is_ok() && publisher.client.wait(PATIENCE).is_ok() {}
        }
        for consumer in &mut clients.consumers {
            while self.deliveries(consumer).is_ok() && consumer.client.wait(PATIENCE).is_ok() {}
        }
        self.shadow.killed();
    }

    fn publish(&mut self, publisher: &mut Publisher) {
        for _ in 0..1 + self.random.below(12) {
            if publisher.unconfirmed.len() >= IN_FLIGHT {
                break;
            }
            let number = &mut self.numbers[publisher.id as usize];
            *number += 1;
            let key = Key { publisher: publisher.id, number: *number };
            let (exchange, targets): (&str, &[usize]) = match self.random.below(6) {
                0 => ("", &[0]),
                1 => ("", &[1]),
                2 => ("", &[2]),
                3 => ("fan", &[3, 4, 5]),
                4 => ("", &MORTAL[..1]),
                _ => ("", &MORTAL[1..]),
            };
            let route = if exchange.is_empty() { KINDS[targets[0]].name } else { "" };
            let expiration = KINDS[targets[0]].dies.then(|| 1 + self.random.below(1000));
            self.shadow.sent(key, targets);
            let (properties, body) = (key.properties(expiration), key.body());
            publisher.client.publish(publisher.channel, exchange, route, &properties, &body);
            publisher.last_tag += 1;
            publisher.unconfirmed.insert(publisher.last_tag, key);
        }
        publisher.client.flush().unwrap();
    }

    fn confirms(&mut self, publisher: &mut Publisher) -> Result<(), Error> {
        while let Some(event) = publisher.client.next_event()? {
            let Event::Method { method: Method::BasicAck(ack), .. } = event else {
                panic!("{event:?}");
            };
            let tag = ack.delivery_tag;
            let first = if ack.multiple { 0 } else { tag };
            let tags: Vec<u64> = publisher.unconfirmed.range(first..=tag).map(|it| *it.0).collect();
            assert!(!tags.is_empty(), "a confirm for nothing: {tag}");
            for tag in tags {
                self.shadow.confirmed(publisher.unconfirmed.remove(&tag).unwrap());
            }
        }
        Ok(())
    }

    fn deliveries(&mut self, consumer: &mut Consumer) -> Result<(), Error> {
        while let Some(event) = consumer.client.next_event()? {
            let Event::Content { method: Method::BasicDeliver(deliver), properties, body, .. } =
                event
            else {
                panic!("{event:?}");
            };
            let key = Key::of(properties, body);
            self.shadow.delivered(consumer.queue, key, deliver.redelivered);
            consumer.unacked.push((deliver.delivery_tag, key, deliver.redelivered));
        }
        Ok(())
    }

    /// Settles some of what a consumer has: mostly acks, in any order.
    fn settle(&mut self, consumer: &mut Consumer) {
        let Consumer { queue, client, channel, unacked, acked } = consumer;
        let count = match self.random.below(4) {
            0 => unacked.len(),
            1 => unacked.len() / 2,
            _ => unacked.len().min(1),
        };
        if count > 1 && self.random.percent(20) {
            client.ack(*channel, unacked[count - 1].0, true);
            for (_, key, _) in unacked.drain(..count) {
                self.shadow.ack_sent(*queue, key);
                acked.push(key);
            }
        }
        for _ in 0..count.min(unacked.len()) {
            let index = self.random.below(unacked.len() as u64) as usize;
            let (tag, key, redelivered) = unacked.remove(index);
            match self.random.below(10) {
                0 if !redelivered => client.nack(*channel, tag, false, true),
                1 | 2 if KINDS[*queue].dies => client.reject(*channel, tag, false),
                _ => {
                    client.ack(*channel, tag, false);
                    self.shadow.ack_sent(*queue, key);
                    acked.push(key);
                }
            }
        }
        client.flush().unwrap();
        if acked.len() > 20 && self.random.percent(30) {
            client.qos(*channel, 1 + self.random.below(60) as u16, false).unwrap();
            self.shadow.acks_handled(*queue, acked.drain(..));
        }
    }
}

/// Looks through queues without taking anything.
impl Load {
    /// Whether each queue has as many messages as it can have.
    pub(super) fn count(&self, broker: &Broker) {
        let (mut client, channel) = broker.channel();
        for (queue, kind) in KINDS.iter().enumerate() {
            let (low, high) = self.shadow.bounds(queue);
            let found = message_count(&mut client, channel, kind.name);
            assert!((low..=high).contains(&found), "{}: {low} <= {found} <= {high}", kind.name);
        }
    }

    /// Each message of the queues from which none goes by itself.
    pub(super) fn look_through(&mut self, broker: &Broker) {
        for (queue, kind) in KINDS.iter().enumerate().filter(|(_, kind)| !kind.dies) {
            let (mut client, channel) = broker.channel();
            let count = message_count(&mut client, channel, kind.name) as usize;
            client.consume(channel, kind.name, &Consume::default()).unwrap();
            let mut found = HashSet::new();
            while found.len() < count {
                take(&mut client, |key, redelivered, _| {
                    self.shadow.delivered(queue, key, redelivered);
                    assert!(found.insert(key), "{key:?} is in {} twice", kind.name);
                });
                if found.len() < count {
                    let has_come = client.wait(PATIENCE).unwrap();
                    assert!(has_come, "{}: {} of {count}", kind.name, found.len());
                }
            }
            self.shadow.looked_through(queue, &found);
            // Its messages go back.
            client.close().unwrap();
        }
    }

    /// Takes dead letters out until those are there that must be; in the end that is all of them.
    pub(super) fn bury(&mut self, broker: &Broker) {
        let (mut client, channel) = broker.channel();
        client.consume(channel, DEAD, &Consume::default()).unwrap();
        let must = MORTAL.map(|queue| (KINDS[queue].name, self.shadow.must_be_dead(queue)));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let missing = must.each_ref().map(|(name, keys)| (*name, keys - &self.buried));
            if missing.iter().all(|(_, keys)| keys.is_empty()) {
                break;
            }
            assert!(Instant::now() < deadline, "lost, and not among the dead: {missing:?}");
            let mut last = 0;
            take(&mut client, |key, _, tag| {
                self.shadow.dead(key);
                self.buried.insert(key);
                last = tag;
            });
            if last > 0 {
                client.ack(channel, last, true);
                client.flush().unwrap();
            }
            client.wait(Duration::from_millis(100)).unwrap();
        }
        client.close().unwrap();
    }
}

fn message_count(client: &mut Connection, channel: u16, queue: &str) -> u32 {
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    client.queue_declare(channel, queue, &passive).unwrap().message_count
}

fn take(client: &mut Connection, mut each: impl FnMut(Key, bool, u64)) {
    while let Some(event) = client.next_event().unwrap() {
        let Event::Content { method: Method::BasicDeliver(deliver), properties, body, .. } = event
        else {
            panic!("{event:?}");
        };
        each(Key::of(properties, body), deliver.redelivered, deliver.delivery_tag);
    }
}
