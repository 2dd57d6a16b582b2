//! Nothing confirmed is lost when the process is killed, at any moment, again and again.
//!
//! A load of publishes and acks over all kinds of queues; SIGKILL in the middle of it; a start on the same
//! directory; then what the broker has is compared with what clients know (`shadow`).

mod load;
mod names;
mod shadow;
mod transactions;

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::broker::{Broker, Down, PATIENCE};
use crate::messages::Random;
use load::{Load, declare};

/// Kills in an ordinary run of the tests.
const KILLS: u32 = 40;

/// Kills `kills` times and prints what came of it.
fn kill_again_and_again(seed: u64, kills: u32) {
    eprintln!("seed {seed}");
    let began = Instant::now();
    let mut broker = Broker::with(&["shards=2"]);
    declare(&broker);
    let mut load = Load::new(seed);
    let (mut starting, mut slowest) = (Duration::ZERO, Duration::ZERO);
    for round in 0..kills {
        let mut clients = load.connect(&broker);
        let confirms = 1 + load.random.below(400);
        load.work(&mut clients, confirms);
        spin(&mut load.random);
        let down = broker.kill();
        load.last_words(clients);
        let start = Instant::now();
        broker = down.start_again();
        starting += start.elapsed();
        slowest = slowest.max(start.elapsed());
        load.count(&broker);
        if round % 4 == 0 {
            load.look_through(&broker);
        }
        // Declared again as clients do: equal to what came back.
        declare(&broker);
    }
    load.look_through(&broker);
    load.bury(&broker);
    eprintln!(
        "{kills} kills in {:?}, a start takes {:?}, at most {slowest:?}: {:?}",
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

/// More of them, from another seed:
/// `LEVERET_KILLS=1000 LEVERET_SEED=7 cargo test -p leveret --test process -- --nocapture after_a_kill`
#[test]
fn what_was_confirmed_is_there_after_a_kill() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let kills = number("LEVERET_KILLS").map_or(KILLS, |kills: u64| kills as u32);
    kill_again_and_again(number("LEVERET_SEED").unwrap_or(1), kills);
}
