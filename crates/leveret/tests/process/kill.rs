//! Nothing confirmed is lost when the process is killed, at any moment, again and again.
//!
//! A load of publishes and acks over all kinds of queues; SIGKILL in the middle of it; a start on the same
//! directory; then what the broker has is compared with what clients know (`shadow`).

mod load;
mod names;
mod shadow;
mod transactions;

use std::ops::Range;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use leveret_client::QueueDeclare;
use rustix::process::Signal;

use crate::broker::{Broker, Down, PATIENCE};
use crate::messages::Random;
use crate::restart::{durable, persistent, store, take_all};
use load::{Load, declare};

/// What happens between kills.
struct Lives {
    seed: u64,
    settings: &'static [&'static str],
    /// Messages that are confirmed in one life.
    confirms: Range<u64>,
}

/// Kills until that is enough, by the number of kills and of those at which a file was kept to be used again. Prints what
/// came of it.
fn kill_again_and_again(lives: &Lives, is_enough: impl Fn(u32, u32) -> bool) {
    let Lives { seed, settings, ref confirms } = *lives;
    eprintln!("seed {seed}");
    let began = Instant::now();
    let mut broker = Broker::with(settings);
    declare(&broker);
    let mut load = Load::new(seed);
    let (mut starting, mut slowest) = (Duration::ZERO, Duration::ZERO);
    let (mut kills, mut spares) = (0, 0);
    while !is_enough(kills, spares) {
        let mut clients = load.connect(&broker);
        let confirms = confirms.start + load.random.below(confirms.end - confirms.start);
        load.work(&mut clients, confirms);
        spin(&mut load.random);
        let down = broker.kill();
        spares += u32::from(down.dir.path().join("shards/0/spare").exists());
        load.last_words(clients);
        let start = Instant::now();
        broker = down.start_again();
        starting += start.elapsed();
        slowest = slowest.max(start.elapsed());
        load.count(&broker);
        if kills % 4 == 0 {
            load.look_through(&broker);
        }
        // Declared again as clients do: equal to what came back.
        declare(&broker);
        kills += 1;
    }
    load.look_through(&broker);
    load.bury(&broker);
    eprintln!(
        "{kills} kills, {spares} with a file to be used again, in {:?}, a start takes {:?}, at most {slowest:?}: {:?}",
        began.elapsed(),
        starting / kills,
        load.shadow.totals
    );
}

/// Lets some time pass, so that the moment of a kill is not one that the load chooses.
fn spin(random: &mut Random) {
    let moment = Instant::now() + Duration::from_micros(random.below(4000));
    while Instant::now() < moment {
        std::hint::spin_loop();
    }
}

/// Runs `work` until it fails because the broker is killed, which it is after the work has been heard of
/// some `beats` times.
fn killed_during(
    broker: Broker,
    random: &mut Random,
    beats: u64,
    work: impl FnOnce(&Broker, &Sender<()>) + Send,
) -> Down {
    let (beat, heard) = channel();
    std::thread::scope(|scope| {
        let node = &broker;
        let worker = scope.spawn(move || work(node, &beat));
        for _ in 0..beats {
            heard.recv_timeout(PATIENCE).expect("the work stopped by itself");
        }
        spin(random);
        node.signal(Signal::KILL);
        worker.join().unwrap();
    });
    broker.kill()
}

/// The seed and how many kills, unless the environment asks for others:
/// `LEVERET_KILLS=1000 LEVERET_SEED=7 cargo test -p leveret --test process -- --nocapture after_a_kill`
fn asked(kills: u32) -> (u64, u32) {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let kills = number("LEVERET_KILLS").map_or(kills, |kills| kills as u32);
    (number("LEVERET_SEED").unwrap_or(1), kills)
}

#[test]
fn what_was_confirmed_is_there_after_a_kill() {
    let (seed, kills) = asked(40);
    let lives = Lives { seed, settings: &["shards=2"], confirms: 1..401 };
    kill_again_and_again(&lives, |done, _| done >= kills);
}

/// The same where a message for several queues is stored by one of the shards for all.
#[test]
fn what_was_confirmed_is_there_after_a_kill_where_shards_share_messages() {
    let (seed, kills) = asked(20);
    let settings = &["shards=3", "queue_index_embed_msgs_below=1"];
    kill_again_and_again(&Lives { seed, settings, confirms: 1..401 }, |done, _| done >= kills);
}

/// The same where files of the log are used again: they are short, and lives are long enough for whole files to go.
#[test]
fn what_was_confirmed_is_there_after_a_kill_where_files_are_used_again() {
    let (seed, kills) = asked(8);
    let settings = &["shards=1", "storage.segment_size=1MiB"];
    let lives = Lives { seed, settings, confirms: 2000..4000 };
    kill_again_and_again(&lives, |done, spares| done >= kills && spares > 0);
}

/// Of a backlog that is longer than what a start brings at first the counts are told, and all of it is there in its order, behind
/// the first messages and before what came since; so is what nobody took before the next kill.
#[test]
fn a_long_backlog_is_there_after_a_kill() {
    const MESSAGES: u64 = 6_000;
    let broker = Broker::with(&["shards=1", "storage.segment_size=1MiB"]);
    let (mut client, channel) = broker.channel();
    for queue in ["long", "other"] {
        client.queue_declare(channel, queue, &durable(&[])).unwrap();
    }
    let body = |number: u64| format!("{number:<1000}");
    for first in (0..MESSAGES).step_by(500) {
        let bodies: Vec<String> = (first..first + 500).map(body).collect();
        store(&mut client, "long", bodies.iter().map(|body| (persistent(), body.as_str())));
        store(&mut client, "other", bodies[..2].iter().map(|body| (persistent(), body.as_str())));
    }
    drop(client);
    let mut broker = broker.kill().start_again();
    let mut next = 0;
    for taken in [1_500, 3_000] {
        let (mut client, channel) = broker.channel();
        let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
        let left = client.queue_declare(channel, "long", &passive).unwrap();
        assert_eq!(u64::from(left.message_count), MESSAGES - next);
        for _ in 0..taken {
            let got = client.get(channel, "long", false).unwrap().expect("all are there");
            assert_eq!(got.body, body(next).as_bytes());
            client.ack(channel, got.delivery_tag, false);
            next += 1;
        }
        let got = client.get(channel, "other", false).unwrap().expect("it is there");
        assert_eq!((got.body, got.message_count), (body(0).into_bytes(), 23));
        // That this is committed says that all before it is on the disk.
        store(&mut client, "other", [(persistent(), "since")]);
        broker = broker.kill().start_again();
        let (mut client, channel) = broker.channel();
        assert_eq!(client.queue_purge(channel, "other").unwrap(), 25);
        let bodies: Vec<String> = (0..24).map(body).collect();
        store(&mut client, "other", bodies.iter().map(|body| (persistent(), body.as_str())));
    }
    let (mut client, channel) = broker.channel();
    let all = take_all(&mut client, channel, "long");
    assert_eq!(all.len() as u64, MESSAGES - next);
    assert!((next..).zip(&all).all(|(number, (found, _))| *found == body(number)));
    broker.assert_quiet();
}
