//! Transactions over kills: all of one or nothing.

use std::collections::BTreeSet;
use std::sync::mpsc::Sender;

use leveret_client::{Connection, Consume, Error, Event, QueueDeclare};

use super::killed_during;
use crate::broker::{Broker, PATIENCE};
use crate::messages::{Key, Random};

const KILLS: u64 = 12;

/// What is known of them. Transaction `n` takes message `n` out of `jobs` and puts it into `done` and `log`.
#[derive(Default)]
struct Known {
    committed: BTreeSet<u32>,
    /// Began, and had no answer.
    unknown: BTreeSet<u32>,
}

fn key(number: u32) -> Key {
    Key { publisher: 0, number }
}

/// Commits one transaction after another. Each takes a job that is there.
fn work(client: &mut Connection, known: &mut Known, beat: &Sender<()>) -> Result<(), Error> {
    client.tx_select(1)?;
    while let Some(got) = client.get(1, "jobs", false)? {
        let number = u32::from_be_bytes(got.body[4..8].try_into().unwrap());
        assert_eq!(got.body, key(number).body());
        assert!(!known.committed.contains(&number), "job {number} is back: it was committed");
        known.unknown.insert(number);
        for queue in ["done", "log"] {
            client.publish(1, "", queue, &key(number).properties(None), &got.body);
        }
        client.ack(1, got.delivery_tag, false);
        client.tx_commit(1)?;
        known.unknown.remove(&number);
        known.committed.insert(number);
        let _ = beat.send(());
    }
    panic!("no jobs are left");
}

fn declare(client: &mut Connection) {
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    for queue in ["jobs", "done", "log"] {
        client.queue_declare(1, queue, &durable).unwrap();
    }
}

fn numbers(broker: &Broker, queue: &str) -> BTreeSet<u32> {
    let (mut client, channel) = broker.channel();
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    let count = client.queue_declare(channel, queue, &passive).unwrap().message_count as usize;
    client.consume(channel, queue, &Consume::default()).unwrap();
    let mut found = BTreeSet::new();
    while found.len() < count {
        while let Some(event) = client.next_event().unwrap() {
            let Event::Content { properties, body, .. } = event else { panic!("{event:?}") };
            let number = Key::of(properties, body).number;
            assert!(found.insert(number), "{number} is in {queue} twice");
        }
        assert!(found.len() == count || client.wait(PATIENCE).unwrap(), "{queue}: {found:?}");
    }
    client.close().unwrap();
    found
}

#[test]
fn a_transaction_is_there_as_a_whole_or_not_at_all() {
    kills(Random(13), "shards=1");
}

/// Each queue in a shard of its own: the parts are decided on together.
#[test]
fn and_over_several_shards() {
    kills(Random(14), "shards=3");
}

fn kills(mut random: Random, shards: &str) {
    let mut broker = Broker::with(&[shards]);
    let (mut client, channel) = broker.channel();
    declare(&mut client);
    client.tx_select(channel).unwrap();
    let jobs = 20_000;
    for number in 0..jobs {
        client.publish(channel, "", "jobs", &key(number).properties(None), &key(number).body());
    }
    client.tx_commit(channel).unwrap();
    client.close().unwrap();
    let mut known = Known::default();
    for _ in 0..KILLS {
        let beats = 1 + random.below(60);
        let mine = &mut known;
        let down = killed_during(broker, &mut random, beats, |broker, beat| {
            let (mut client, _) = broker.channel();
            work(&mut client, mine, beat).unwrap_err();
        });
        broker = down.start_again();
        let [jobs_left, done, log] = ["jobs", "done", "log"].map(|queue| numbers(&broker, queue));
        assert_eq!(done, log, "a transaction published to both");
        assert!(jobs_left.is_disjoint(&done), "a transaction acks and publishes");
        assert_eq!(jobs_left.len() + done.len(), jobs as usize, "a job is in one of the two");
        assert!(known.committed.is_subset(&done), "what was answered is there");
        let more: BTreeSet<u32> = done.difference(&known.committed).copied().collect();
        assert!(more.is_subset(&known.unknown), "{more:?}");
        known.committed.extend(more);
        known.unknown.clear();
    }
}
