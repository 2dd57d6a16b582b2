//! Every sequence of up to five commands of a small alphabet, against the model.

use leveret_queue::{Options, Overflow};

use crate::world::{Command, World};

const LONGEST: u32 = 5;

/// So many of the alphabet do something to a new queue.
const BEGINNINGS: u32 = 4;

fn alphabet() -> Vec<Command> {
    let publish = |expiration_ms, priority| Command::Publish {
        size: 10,
        priority,
        persistent: false,
        expiration_ms,
    };
    let consume = |no_ack, priority| Command::Consume {
        channel: 0,
        no_ack,
        exclusive: false,
        priority,
        prefetch: 1,
    };
    vec![
        publish(None, 0),
        publish(Some(0), 1),
        consume(false, 0),
        consume(true, 1),
        Command::Cancel(0),
        Command::Ack(0),
        Command::Reject(0),
        Command::Requeue { at: 0, counts: true },
        Command::Get { no_ack: false },
    ]
}

#[track_caller]
fn check(options: &Options) {
    let alphabet = alphabet();
    let letters = alphabet.len() as u32;
    // Every sequence of the full length: its beginnings are checked on the way.
    for mut number in 0..letters.pow(LONGEST) {
        // What begins with a command that does nothing yet is the beginning of another one.
        if number % letters >= BEGINNINGS {
            continue;
        }
        let mut world = World::new(options.clone());
        for _ in 0..LONGEST {
            world.apply(&alphabet[(number % letters) as usize]);
            number /= letters;
        }
        world.finish();
    }
}

#[test]
fn plain() {
    check(&Options::default());
}

#[test]
fn short_with_dead_letters_and_a_delivery_limit() {
    let (max_length, delivery_limit) = (Some(1), Some(0));
    check(&Options { max_length, delivery_limit, dead_letter: true, ..Options::default() });
}

#[test]
fn full_at_once() {
    check(&Options { max_length: Some(0), ..Options::default() });
}

#[test]
fn rejecting_at_least_once() {
    let overflow = Overflow::RejectPublish;
    check(&Options {
        max_length: Some(1),
        overflow,
        dead_letter: true,
        at_least_once: true,
        ..Options::default()
    });
}

#[test]
fn single_active_with_priorities() {
    check(&Options { single_active: true, max_priority: Some(5), ..Options::default() });
}
