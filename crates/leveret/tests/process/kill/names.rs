//! Durable names over kills: what was answered is there, what was deleted stays away, and a change that had
//! no answer was made or was not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;

use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, Error, ExchangeDeclare, QueueDeclare};

use super::killed_during;
use crate::broker::Broker;
use crate::messages::Random;

const KILLS: u64 = 12;
/// Names of each sort.
const NAMES: u64 = 8;

/// A durable thing; queues, exchanges and users have numbers for names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Queue(u64),
    Exchange(u64),
    Binding { exchange: u64, queue: u64, key: u64 },
    User(u64),
    Policy(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Is {
    There,
    Away,
    /// Its last change had no answer.
    Unknown,
}

#[derive(Default)]
struct Model {
    things: BTreeMap<Thing, Is>,
}

impl Model {
    fn is(&self, thing: Thing) -> Is {
        self.things.get(&thing).copied().unwrap_or(Is::Away)
    }

    /// Bindings go with their ends.
    fn set(&mut self, thing: Thing, is: Is) {
        self.things.insert(thing, is);
        if is == Is::There {
            return;
        }
        for (other, was) in &mut self.things {
            let hangs = match (*other, thing) {
                (Thing::Binding { queue, .. }, Thing::Queue(of)) => queue == of,
                (Thing::Binding { exchange, .. }, Thing::Exchange(of)) => exchange == of,
                _ => false,
            };
            if hangs && *was == Is::There {
                *was = is;
            }
        }
    }

    fn compare(&mut self, found: &BTreeSet<Thing>) {
        for &thing in found {
            assert_ne!(self.is(thing), Is::Away, "{thing:?} is back");
            if let Thing::Binding { exchange, queue, .. } = thing {
                let ends = [Thing::Exchange(exchange), Thing::Queue(queue)];
                assert!(ends.iter().all(|end| found.contains(end)), "{thing:?} hangs in the air");
            }
        }
        for (thing, is) in &mut self.things {
            let is_found = found.contains(thing);
            assert!(is_found || *is != Is::There, "{thing:?} is lost");
            // What it turned out to be, it stays.
            *is = if is_found { Is::There } else { Is::Away };
        }
    }
}

/// Draws a change, makes it, and notes what is known of it. Fails when the broker is gone.
fn change(
    broker: &Broker,
    client: &mut Connection,
    random: &mut Random,
    model: &mut Model,
) -> Result<(), Error> {
    let (a, b, key) = (random.below(NAMES), random.below(NAMES), random.below(3));
    let thing = match random.below(50) {
        0 => Thing::User(a),
        1 => Thing::Policy(a),
        2..15 => Thing::Queue(a),
        15..25 => Thing::Exchange(a),
        _ => Thing::Binding { exchange: a, queue: b, key },
    };
    if let Thing::Binding { exchange, queue, .. } = thing {
        let ends = [Thing::Exchange(exchange), Thing::Queue(queue)];
        if ends.iter().any(|end| model.is(*end) != Is::There) {
            return Ok(());
        }
    }
    let make = model.is(thing) == Is::Away;
    model.set(thing, Is::Unknown);
    apply(broker, client, thing, make)?;
    model.set(thing, if make { Is::There } else { Is::Away });
    Ok(())
}

fn apply(broker: &Broker, client: &mut Connection, thing: Thing, make: bool) -> Result<(), Error> {
    let none = Table::default();
    match (thing, make) {
        (Thing::Queue(n), true) => {
            let mut how = QueueDeclare { durable: true, ..QueueDeclare::default() };
            how.arguments.set("x-max-length", Value::I64(n as i64 + 1));
            client.queue_declare(1, &format!("q{n}"), &how).map(drop)
        }
        (Thing::Queue(n), false) => client.queue_delete(1, &format!("q{n}")).map(drop),
        (Thing::Exchange(n), true) => {
            let how = ExchangeDeclare { durable: true, ..ExchangeDeclare::default() };
            client.exchange_declare(1, &format!("e{n}"), "topic", &how)
        }
        (Thing::Exchange(n), false) => client.exchange_delete(1, &format!("e{n}"), false),
        (Thing::Binding { exchange, queue, key }, _) => {
            let (exchange, queue, key) =
                (format!("e{exchange}"), format!("q{queue}"), key.to_string());
            if make {
                client.queue_bind(1, &queue, &exchange, &key, &none)
            } else {
                client.queue_unbind(1, &queue, &exchange, &key, &none)
            }
        }
        (Thing::User(n), true) => told(broker, &["add_user", &format!("u{n}"), "secret"]),
        (Thing::User(n), false) => told(broker, &["delete_user", &format!("u{n}")]),
        (Thing::Policy(n), true) => {
            let definition = r#"{"max-length": 100}"#;
            told(broker, &["set_policy", &format!("p{n}"), "^nothing$", definition])
        }
        (Thing::Policy(n), false) => told(broker, &["clear_policy", &format!("p{n}")]),
    }
}

/// A control command: it succeeds, or the broker is gone.
fn told(broker: &Broker, words: &[&str]) -> Result<(), Error> {
    let output = broker.ctl(words);
    if output.status.success() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(69 | 74 | 75)), "{words:?}: {output:?} {errors}");
    Err(Error::TimedOut("ctl"))
}

/// Everything that is there, by what an export says.
fn found(broker: &Broker) -> BTreeSet<Thing> {
    let file = broker.dir.path().join("exported.json");
    broker.told(&["export_definitions", &file.display().to_string()]);
    let text = std::fs::read_to_string(file).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let list = |name: &str| all[name].as_array().cloned().unwrap_or_default();
    let number = |value: &serde_json::Value, start: char| {
        value.as_str()?.strip_prefix(start)?.parse::<u64>().ok()
    };
    let mut found = BTreeSet::new();
    for queue in list("queues") {
        let n = number(&queue["name"], 'q').unwrap();
        assert_eq!(queue["arguments"]["x-max-length"], n + 1);
        assert_eq!(queue["durable"], true);
        found.insert(Thing::Queue(n));
    }
    found.extend(
        list("exchanges").iter().filter_map(|it| number(&it["name"], 'e')).map(Thing::Exchange),
    );
    found.extend(list("users").iter().filter_map(|it| number(&it["name"], 'u')).map(Thing::User));
    found.extend(
        list("policies").iter().filter_map(|it| number(&it["name"], 'p')).map(Thing::Policy),
    );
    for binding in list("bindings") {
        let exchange = number(&binding["source"], 'e').unwrap();
        let queue = number(&binding["destination"], 'q').unwrap();
        let key = binding["routing_key"].as_str().unwrap().parse().unwrap();
        found.insert(Thing::Binding { exchange, queue, key });
    }
    found
}

#[test]
fn names_are_there_after_a_kill_and_deleted_ones_are_not() {
    let mut random = Random(11);
    let mut model = Model::default();
    let mut broker = Broker::start();
    for _ in 0..KILLS {
        let beats = 1 + random.below(120);
        let mut theirs = Random(random.next());
        let work = |broker: &Broker, beat: &Sender<()>| {
            let (mut client, channel) = broker.channel();
            assert_eq!(channel, 1);
            while change(broker, &mut client, &mut theirs, &mut model).is_ok() {
                let _ = beat.send(());
            }
        };
        let down = killed_during(broker, &mut random, beats, work);
        broker = down.start_again();
        model.compare(&found(&broker));
        broker.assert_quiet();
    }
}
