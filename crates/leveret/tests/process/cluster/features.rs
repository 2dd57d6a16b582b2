//! What queues do beside giving out what they get, while the node that leads is killed.

use leveret_client::amqp::content::Properties;
use leveret_client::amqp::method::Method;
use leveret_client::{Consume, Event, Got};

use super::*;
use crate::restart::{durable, headers, persistent, text};

/// A client at a node that follows.
struct Client {
    connection: Connection,
    channel: u16,
    published: u64,
}

/// What a consumer was given.
#[derive(Debug)]
struct Given {
    tag: u64,
    redelivered: bool,
    body: String,
}

/// A publisher was told of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ack(u64),
    Nack(u64),
}

impl Client {
    fn new(at: SocketAddr) -> Self {
        let (mut connection, channel) = connect(at);
        connection.confirm_select(channel).unwrap();
        Self { connection, channel, published: 0 }
    }

    fn declare(&mut self, queue: &str, arguments: &[(&str, Value)]) {
        self.connection.queue_declare(self.channel, queue, &durable(arguments)).unwrap();
    }

    /// Publishes a message, and waits for nothing.
    fn send(&mut self, queue: &str, properties: Properties, body: &str) -> u64 {
        let properties = properties.to_bytes();
        self.connection.publish(self.channel, "", queue, &properties, body.as_bytes());
        self.connection.flush().unwrap();
        self.published += 1;
        self.published
    }

    /// Publishes a persistent message, which is confirmed.
    #[track_caller]
    fn publish(&mut self, queue: &str, properties: Properties, body: &str) {
        let number = self.send(queue, properties, body);
        assert_eq!(self.verdict(), Verdict::Ack(number));
    }

    /// What it is told next.
    #[track_caller]
    fn verdict(&mut self) -> Verdict {
        self.next(|event| match event {
            Event::Method { method: Method::BasicAck(it), .. } => Verdict::Ack(it.delivery_tag),
            Event::Method { method: Method::BasicNack(it), .. } => Verdict::Nack(it.delivery_tag),
            event => panic!("{event:?}"),
        })
    }

    #[track_caller]
    fn next<T>(&mut self, pick: impl FnMut(&Event<'_>) -> T) -> T {
        sessions::next(&mut self.connection, pick).unwrap()
    }

    fn consume(&mut self, queue: &str, priority: i32) {
        let mut how = Consume::default();
        how.arguments.set("x-priority", Value::I32(priority));
        self.connection.consume(self.channel, queue, &how).unwrap();
    }

    #[track_caller]
    fn given(&mut self) -> Given {
        self.next(|event| match event {
            Event::Content { method: Method::BasicDeliver(it), body, .. } => Given {
                tag: it.delivery_tag,
                redelivered: it.redelivered,
                body: String::from_utf8(body.to_vec()).unwrap(),
            },
            event => panic!("{event:?}"),
        })
    }

    /// The next message, which has this body.
    #[track_caller]
    fn is_given(&mut self, body: &str, redelivered: bool) -> u64 {
        let given = self.given();
        assert_eq!((&*given.body, given.redelivered), (body, redelivered), "{given:?}");
        given.tag
    }

    fn get(&mut self, queue: &str, no_ack: bool) -> Option<Got> {
        self.connection.get(self.channel, queue, no_ack).unwrap()
    }

    /// Takes a message as soon as there is one.
    #[track_caller]
    fn take(&mut self, queue: &str) -> Got {
        let mut got = None;
        wait_until(PATIENCE, queue, || {
            got = self.get(queue, true);
            got.is_some()
        });
        got.unwrap()
    }

    /// What is ready in the queue.
    fn ready(&mut self, queue: &str) -> u32 {
        let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
        self.connection.queue_declare(self.channel, queue, &passive).unwrap().message_count
    }
}

/// Why a message died first, and how often.
#[track_caller]
fn death(got: &Got) -> (String, i64) {
    let headers = headers(got);
    let Some(Value::Array(deaths)) = headers.get("x-death") else { panic!("{headers:?}") };
    let [Value::Table(death)] = &deaths[..] else { panic!("{deaths:?}") };
    let reason = death.get("reason").and_then(Value::as_str).unwrap();
    (reason.to_owned(), death.get("count").and_then(Value::as_i64).unwrap())
}

fn bodies(all: &[Got]) -> Vec<&str> {
    all.iter().map(|it| std::str::from_utf8(&it.body).unwrap()).collect()
}

fn dead_letters_to(queue: &str) -> [(&'static str, Value); 2] {
    [("x-dead-letter-exchange", text("")), ("x-dead-letter-routing-key", text(queue))]
}

/// Times, priorities, limits, turns of consumers, counts of deliveries, dead letters and rules of confirms: clients of the other nodes
/// find all of it as it was.
#[test]
fn what_queues_promise_outlives_the_one_that_leads() {
    let ttl = Duration::from_secs(4);
    let mut members = three_with("LEVERET_SHARDS", "2");
    let (old, _) = leader(&members, &[0, 1, 2]);
    let others = [1, 2].map(|it| (old + it) % 3);
    let [one, two] = others.map(|it| members[it].relays());
    let mut feeds = Client::new(one);

    let ranked = |priority| Properties { priority: Some(priority), ..persistent() };
    feeds.declare("ranked", &[("x-max-priority", Value::I32(9))]);
    for (priority, body) in [(1, "last"), (5, "second"), (3, "third"), (3, "fourth")] {
        feeds.publish("ranked", ranked(priority), body);
    }

    let [exchange, key] = dead_letters_to("dead of limited");
    let quorum = ("x-queue-type", text("quorum"));
    feeds.declare("dead of limited", &[]);
    feeds.declare("limited", &[quorum.clone(), ("x-delivery-limit", Value::I32(2)), exchange, key]);
    feeds.publish("limited", persistent(), "poison");
    let got = feeds.get("limited", false).unwrap();
    feeds.connection.nack(feeds.channel, got.delivery_tag, false, true);

    feeds.declare(
        "bounded",
        &[("x-max-length", Value::I32(2)), ("x-overflow", text("reject-publish"))],
    );
    feeds.publish("bounded", persistent(), "one");
    feeds.publish("bounded", persistent(), "two");

    // Of consumers on both nodes one is active, and the other one is preferred.
    feeds.declare("single", &[("x-single-active-consumer", Value::Bool(true))]);
    feeds.declare("preferred", &[]);
    let mut active = Client::new(two);
    active.consume("single", 0);
    active.consume("preferred", 0);
    let mut waits = Client::new(one);
    waits.consume("single", 0);
    waits.consume("preferred", 5);
    feeds.publish("single", persistent(), "to the active one");
    feeds.publish("preferred", persistent(), "to the preferred one");
    let held = active.is_given("to the active one", false);
    let preferred = waits.is_given("to the preferred one", false);

    // The publisher is told when the consumer has acked, which it does at the next leader. One of these messages is in no log, so its
    // node sends it again; the other one was written, as what was committed behind it, and is its consumer's still.
    let mut asks = Client::new(two);
    let mut acks = Client::new(one);
    let mut commits = connect(two);
    commits.0.tx_select(commits.1).unwrap();
    for (queue, defer) in [("in memory", 60_000), ("written", 0)] {
        let defer = ("x-confirm-defer", Value::I32(defer));
        feeds.declare(queue, &[("x-confirm-on", text("ack")), defer]);
        acks.consume(queue, 0);
    }
    let in_memory = asks.send("in memory", persistent(), "an order");
    acks.is_given("an order", false);
    let written = asks.send("written", persistent(), "a payment");
    let payment = acks.is_given("a payment", false);
    commits.0.publish(commits.1, "", "written", &PERSISTENT, b"another");
    commits.0.tx_commit(commits.1).unwrap();
    acks.is_given("another", false);

    // Given out before it is agreed upon: it is by now, and its consumer's still.
    feeds.declare("ticks", &[("x-deliver-before-commit", Value::Bool(true))]);
    acks.consume("ticks", 0);
    let number = asks.send("ticks", persistent(), "a tick");
    let tick = acks.is_given("a tick", false);
    assert_eq!(asks.verdict(), Verdict::Ack(number));

    let [exchange, key] = dead_letters_to("dead of timed");
    feeds.declare("dead of timed", &[]);
    let expires = ("x-message-ttl", Value::I32(ttl.as_millis() as i32));
    feeds.declare("timed", &[expires, exchange, key]);
    let published = Instant::now();
    feeds.publish("timed", persistent(), "for a while");

    // Some before the leader ends, some after, and none is waited for.
    let [exchange, key] = dead_letters_to("dead of rejected");
    let strategy = ("x-dead-letter-strategy", text("at-least-once"));
    let overflow = ("x-overflow", text("reject-publish"));
    feeds.declare("dead of rejected", std::slice::from_ref(&quorum));
    feeds.declare("rejected", &[quorum, strategy, overflow, exchange, key]);
    let numbers: Vec<_> = (0..200).map(|it| it.to_string()).collect();
    let mut rejects = Client::new(two);
    numbers.iter().for_each(|it| feeds.publish("rejected", persistent(), it));
    let all: Vec<_> = numbers.iter().map(|_| rejects.get("rejected", false).unwrap()).collect();
    assert_eq!(bodies(&all), numbers);
    let mut reject = |some: &[Got]| {
        for got in some {
            rejects.connection.reject(rejects.channel, got.delivery_tag, false);
        }
        rejects.connection.flush().unwrap();
    };
    let (before, after) = all.split_at(100);
    reject(before);
    members[old].child.kill().unwrap();
    reject(after);

    let got: Vec<_> = numbers.iter().map(|_| feeds.take("dead of rejected")).collect();
    assert_eq!(bodies(&got), numbers);
    assert!(got.iter().all(|it| death(it) == ("rejected".to_owned(), 1)));

    feeds.publish("ranked", ranked(7), "first");
    let ready: Vec<_> = std::iter::from_fn(|| feeds.get("ranked", true)).collect();
    assert_eq!(bodies(&ready), ["first", "second", "third", "fourth", "last"]);

    let refused = feeds.send("bounded", persistent(), "three");
    assert_eq!(feeds.verdict(), Verdict::Nack(refused));
    assert_eq!((feeds.take("bounded").body, feeds.ready("bounded")), (b"one".to_vec(), 1));
    feeds.publish("bounded", persistent(), "four");

    feeds.publish("single", persistent(), "to the same one");
    feeds.publish("preferred", persistent(), "to the preferred one, too");
    let more = active.is_given("to the same one", false);
    waits.is_given("to the preferred one, too", false);
    waits.connection.ack(waits.channel, preferred, false);
    active.connection.ack(active.channel, held, false);
    assert!(held < more);
    active.connection.close().unwrap();
    waits.is_given("to the same one", true);

    let order = acks.is_given("an order", true);
    for (tag, number) in [(order, in_memory), (payment, written)] {
        acks.connection.ack(acks.channel, tag, false);
        acks.connection.flush().unwrap();
        assert_eq!(asks.verdict(), Verdict::Ack(number));
    }
    acks.connection.ack(acks.channel, tick, false);
    feeds.publish("ticks", persistent(), "another tick");
    let tick = acks.is_given("another tick", false);
    acks.connection.nack(acks.channel, tick, false, true);
    acks.is_given("another tick", true);

    for count in 1..=2 {
        let got = feeds.get("limited", false).unwrap();
        let counted = headers(&got).get("x-delivery-count").and_then(Value::as_i64);
        assert_eq!((got.redelivered, counted), (true, Some(count)));
        feeds.connection.nack(feeds.channel, got.delivery_tag, false, true);
    }
    assert_eq!(death(&feeds.take("dead of limited")), ("delivery_limit".to_owned(), 1));
    assert_eq!(feeds.ready("limited"), 0);

    assert_eq!(death(&feeds.take("dead of timed")), ("expired".to_owned(), 1));
    assert!(published.elapsed() >= ttl, "{:?}", published.elapsed());
    for client in [feeds, asks, acks, rejects, waits] {
        client.connection.close().unwrap();
    }
}
