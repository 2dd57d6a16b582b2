//! Seeded: broken input never hurts anybody else, and no message is lost or made up.

mod node;

use std::collections::BTreeMap;

use leveret_amqp::content::Properties;
use leveret_amqp::method::*;
use leveret_amqp::outbuf::OutBuf;
use node::{Node, publish_bytes};

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// A conversation as a client sends it after the handshake.
fn conversation() -> Vec<u8> {
    let mut out = OutBuf::new();
    out.put_method(1, &queue::Declare { queue: "fuzz", ..Default::default() });
    out.put_method(1, &confirm::Select { no_wait: false });
    out.put_method(2, &channel::Open::default());
    out.put_method(2, &basic::Qos { prefetch_count: 3, ..Default::default() });
    let consume = basic::Consume { queue: "fuzz", consumer_tag: "t", ..Default::default() };
    out.put_method(2, &consume);
    let mut bytes = out.take_rest();
    for body in [&b"one"[..], b"", &[7; 300]] {
        bytes.extend(publish_bytes(1, "", "fuzz", body, &Properties::default(), true));
    }
    out.put_method(2, &basic::Ack { delivery_tag: 1, multiple: false });
    out.put_method(2, &basic::Nack { delivery_tag: 3, multiple: true, requeue: true });
    let bind = queue::Bind { queue: "fuzz", exchange: "amq.topic", ..Default::default() };
    out.put_method(1, &bind);
    out.put_method(1, &tx::Select);
    out.put_method(2, &channel::Close::default());
    out.put_method(0, &connection::Close::default());
    bytes.extend(out.take_rest());
    bytes
}

#[test]
fn broken_input_hurts_nobody_else() {
    let good = conversation();
    for seed in 0..1500 {
        let mut random = Random(seed);
        let mut bytes = good.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len());
            match random.below(5) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = *random.pick(&[0, 1, 2, 3, 8, 0x7f, 0xce, 0xff]),
                2 => drop(bytes.drain(at..(at + 1 + random.below(9)).min(bytes.len()))),
                3 => {
                    let end = (at + random.below(60)).min(bytes.len());
                    let again = bytes[at..end].to_vec();
                    bytes.splice(at..at, again);
                }
                _ => bytes.insert(at, random.next() as u8),
            }
        }
        let mut node = Node::new();
        let other = node.client();
        let link = if seed % 8 == 0 {
            let link = node.accept(true);
            bytes.splice(0..0, *b"AMQP\x00\x00\x09\x01");
            link
        } else {
            node.client()
        };
        node.read_max = 1 + random.below(200);
        node.bytes(link, &bytes);
        node.later(200_000);
        node.drop_link(link);
        // Everything it held is free again.
        node.read(other);
        let link = node.client();
        let declare = queue::Declare { queue: "fuzz", passive: true, ..Default::default() };
        let said = node.say(link, 1, &declare);
        let is_gone = said.contains("404");
        assert!(is_gone || said.ends_with(" 0"), "seed {seed}: a consumer is left: {said}");
    }
}

#[test]
fn noise() {
    for seed in 0..500 {
        let mut random = Random(seed);
        let mut node = Node::new();
        let link = if seed % 2 == 0 { node.client() } else { node.accept(true) };
        let bytes: Vec<u8> = (0..500).map(|_| random.next() as u8).collect();
        node.bytes(link, &bytes);
        node.later(30_000);
        assert!(node.ended(link).is_some(), "seed {seed}");
    }
}

/// What one client of the workload knows of its channel.
#[derive(Default)]
struct Client {
    unacked: Vec<(u64, String)>,
    consumes: bool,
    published: u64,
    confirmed: Vec<bool>,
}

const QUEUES: [&str; 3] = ["a", "b", "c"];

/// Clients publish, consume, get, settle, close and break; at the end each message that was published is
/// in exactly one place: settled by somebody, or in its queue.
#[test]
fn no_message_is_lost_or_made_up() {
    for seed in 0..150 {
        let mut random = Random(seed);
        let mut node = Node::new();
        let setup = node.client();
        for queue in QUEUES {
            node.declare(setup, queue);
        }
        let mut clients: BTreeMap<usize, Client> = BTreeMap::new();
        // How often each body is still owed: by its queues, or to whoever holds it.
        let mut owed: BTreeMap<String, i64> = BTreeMap::new();
        let mut made = 0;
        for _ in 0..200 {
            if clients.len() < 3 {
                let link = node.client();
                node.say(link, 1, &confirm::Select { no_wait: false });
                clients.insert(link, Client::default());
            }
            let link = *random.pick(&clients.keys().copied().collect::<Vec<_>>());
            let queue = *random.pick(&QUEUES);
            let client = clients.get_mut(&link).expect("it is there");
            let mut said = String::new();
            match random.below(12) {
                0..4 => {
                    let count = 1 + random.below(5);
                    let mut bytes = Vec::new();
                    for _ in 0..count {
                        made += 1;
                        let body = format!("m{made}");
                        let p = Properties::default();
                        bytes.extend(publish_bytes(1, "", queue, body.as_bytes(), &p, false));
                        owed.insert(body, 1);
                        client.published += 1;
                        client.confirmed.push(false);
                    }
                    said = node.bytes(link, &bytes);
                }
                4 if !client.consumes => {
                    client.consumes = true;
                    let prefetch_count = random.below(4) as u16;
                    node.say(link, 1, &basic::Qos { prefetch_count, ..Default::default() });
                    let consume = basic::Consume { queue, consumer_tag: "c", ..Default::default() };
                    said = node.say(link, 1, &consume);
                }
                5 if client.consumes => {
                    client.consumes = false;
                    said = node.say(link, 1, &basic::Cancel { consumer_tag: "c", no_wait: false });
                }
                6 => said = node.say(link, 1, &basic::Get { queue, ..Default::default() }),
                7 | 8 if !client.unacked.is_empty() => {
                    let multiple = random.below(2) == 0;
                    let at = random.below(client.unacked.len());
                    let (delivery_tag, _) = client.unacked[at];
                    let settled: Vec<_> = if multiple {
                        client.unacked.drain(..=at).collect()
                    } else {
                        vec![client.unacked.remove(at)]
                    };
                    let requeue = random.below(2) == 0;
                    for (_, body) in settled.iter().filter(|_| !requeue) {
                        *owed.get_mut(body).expect("known") -= 1;
                    }
                    said = if requeue {
                        node.say(link, 1, &basic::Nack { delivery_tag, multiple, requeue })
                    } else {
                        node.say(link, 1, &basic::Ack { delivery_tag, multiple })
                    };
                }
                9 => {
                    client.unacked.clear();
                    said = node.say(link, 1, &basic::Recover { requeue: true });
                }
                10 => {
                    // What it was sent before goes back with it.
                    node.read(link);
                    clients.remove(&link);
                    match random.below(3) {
                        0 => node.drop_link(link),
                        1 => drop(node.say(link, 0, &connection::Close::default())),
                        _ => drop(node.say(link, 1, &channel::Close::default())),
                    }
                    for client in clients.keys().copied().collect::<Vec<_>>() {
                        let said = node.read(client);
                        note(&said, clients.get_mut(&client).expect("it is there"));
                    }
                    continue;
                }
                _ => {}
            }
            note(&said, clients.get_mut(&link).expect("it is there"));
            for (&link, client) in &mut clients {
                note(&node.read(link), client);
            }
        }
        for (link, client) in &clients {
            assert!(client.confirmed.iter().all(|&c| c), "seed {seed}: unconfirmed on {link}");
            let facts = node.links[*link].session.facts();
            assert_eq!(facts.channels[0].unacked, client.unacked.len(), "seed {seed}");
        }
        for link in clients.keys() {
            node.drop_link(*link);
        }
        for queue in QUEUES {
            loop {
                let get = basic::Get { queue, no_ack: true, ..Default::default() };
                let said = node.say(setup, 1, &get);
                let Some((_, body)) = said.split_once(" =") else { break };
                *owed.get_mut(body).expect("known") -= 1;
            }
        }
        let wrong: Vec<_> = owed.iter().filter(|(_, count)| **count != 0).collect();
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
    }
}

/// Reads what a client was sent.
fn note(said: &str, client: &mut Client) {
    for line in said.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words[1] {
            "basic.deliver" | "basic.get-ok" => {
                let at = if words[1] == "basic.deliver" { 3 } else { 2 };
                let (_, body) = line.split_once(" =").expect("a body");
                client.unacked.push((words[at].parse().expect("a tag"), body.to_owned()));
            }
            "basic.ack" => {
                let tag: usize = words[2].trim_end_matches('*').parse().expect("a tag");
                if words[2].ends_with('*') {
                    client.confirmed[..tag].fill(true);
                } else {
                    client.confirmed[tag - 1] = true;
                }
            }
            "basic.nack" | "channel.close" => panic!("{line}"),
            _ => {}
        }
    }
}
