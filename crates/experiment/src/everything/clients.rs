//! Clients that come, declare, publish, consume, get, and go, or vanish; and those with large bodies.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leveret_client::amqp::method::Method;
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{
    Connection, Consume, Error, Event, ExchangeDeclare, Options, QueueDeclare, Uri,
};

use super::chance::Chance;
use super::heap;
use super::journal::{Journal, Outcome};
use super::operators::{EXCHANGES, QUEUES, VHOSTS, explains_close};
use crate::loads::PLAIN;

/// Reply codes of channels that are closed because of what others do to the same names: refused, gone, locked, otherwise, not
/// implemented for that kind.
const EXPLAINED: [u16; 5] = [403, 404, 405, 406, 540];

fn options(name: &str) -> Options {
    let name = Some(format!("leveret everything {name}"));
    Options { name, heartbeat_s: Some(10), read_bytes: 64 * 1024, ..Options::default() }
}

fn sorted(result: Result<(), Error>) -> (Outcome, bool) {
    match result {
        Ok(()) => (Outcome::Done, true),
        Err(error) => {
            let is_channel = matches!(
                &error,
                Error::ChannelClosed { reason, .. } if EXPLAINED.contains(&reason.code)
            );
            // A vhost that is gone, or that may not have more of something.
            let is_vhost = match &error {
                Error::ConnectionClosed(reason) => reason.code == 530,
                Error::LoginRefused(_) => true,
                _ => false,
            };
            let text = error.to_string();
            match is_channel || is_vhost || explains_close(&error) {
                true => (Outcome::Explained(text), is_channel),
                false => (Outcome::Unexplained(text), false),
            }
        }
    }
}

/// Comes and goes until it is told to stop.
pub(crate) fn come_and_go(uri: &Uri, mut chance: Chance, journal: &Journal, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        let mut uri = uri.clone();
        // Some are where whole vhosts go with thousands of names.
        uri.vhost = match chance.below(2 * VHOSTS + 1) {
            0 => heap::VHOST.to_owned(),
            number => format!("chaos-{}", number % VHOSTS),
        };
        let what = format!("connects to {}", uri.vhost);
        let mut connection = None;
        journal.act("client", what, || {
            let opened = Connection::open(&uri, &options("client")).map(|it| connection = Some(it));
            sorted(opened)
        });
        let Some(connection) = connection else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        visit(connection, &mut chance, journal, stop);
        std::thread::sleep(Duration::from_millis(chance.below(30)));
    }
}

fn visit(mut connection: Connection, chance: &mut Chance, journal: &Journal, stop: &AtomicBool) {
    let mut channel = None;
    for _ in 0..3 + chance.below(25) {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let deed = chance.of(DEEDS);
        let goes_on = journal.act("client", deed.0, || {
            let done = (|| {
                let number = match channel {
                    Some(number) => number,
                    None => *channel.insert(connection.open_channel()?),
                };
                (deed.1)(&mut connection, number, chance)?;
                take_in(&mut connection)
            })();
            if done.is_err() {
                channel = None;
            }
            let is_done = done.is_ok();
            let (outcome, is_channel) = sorted(done);
            (outcome, is_done || is_channel)
        });
        if !goes_on {
            return;
        }
    }
    if chance.once_in(3) {
        // Without a word, in the middle of whatever is under way.
        if let Ok(stopper) = connection.stopper() {
            stopper.stop();
        }
        return;
    }
    journal.act("client", "closes", || sorted(connection.close()));
}

/// Takes in what came: returned messages, the end of a consumer whose queue is gone.
fn take_in(connection: &mut Connection) -> Result<(), Error> {
    connection.flush()?;
    connection.poll()?;
    while connection.next_event()?.is_some() {}
    Ok(())
}

type Deed = fn(&mut Connection, u16, &mut Chance) -> Result<(), Error>;

/// What clients do.
const DEEDS: &[(&str, Deed)] = &[
    ("declares a queue", declare_queue),
    ("declares a queue", declare_queue),
    ("declares an exchange", declare_exchange),
    ("binds", bind),
    ("unbinds", unbind),
    ("publishes", publish),
    ("publishes", publish),
    ("publishes with confirms", publish_confirmed),
    ("gets", get),
    ("consumes", consume),
    ("consumes", consume),
    ("purges", |it, channel, chance| it.queue_purge(channel, &queue(chance)).map(drop)),
    ("deletes a queue", |it, channel, chance| it.queue_delete(channel, &queue(chance)).map(drop)),
    ("deletes an exchange", |it, channel, chance| {
        it.exchange_delete(channel, &exchange(chance), false)
    }),
    ("commits", commit),
    ("recovers", |it, channel, _| it.recover(channel, true)),
    ("sets its prefetch", |it, channel, chance| {
        let (count, global) = (chance.below(50) as u16, chance.once_in(4));
        it.qos(channel, count, global)
    }),
    ("declares an exclusive queue", |it, channel, _| {
        let how = QueueDeclare { exclusive: true, ..QueueDeclare::default() };
        it.queue_declare(channel, "", &how).map(drop)
    }),
];

fn queue(chance: &mut Chance) -> String {
    format!("q-{}", chance.below(QUEUES))
}

fn exchange(chance: &mut Chance) -> String {
    format!("x-{}", chance.below(EXCHANGES))
}

fn key(chance: &mut Chance) -> String {
    format!("{}.{}", chance.of(&["a", "b", "c"]), chance.below(10))
}

fn text(text: &str) -> Value {
    Value::LongStr(text.as_bytes().to_vec())
}

fn declare_queue(it: &mut Connection, channel: u16, chance: &mut Chance) -> Result<(), Error> {
    let queue = queue(chance);
    let mut arguments = Table::default();
    // By the name, so that most of those who declare it agree.
    match queue.len() as u64 + queue.bytes().map(u64::from).sum::<u64>() % 7 {
        4 => arguments.set("x-max-length", Value::I64(1000)),
        5 => arguments.set("x-message-ttl", Value::I64(2000)),
        6 => arguments.set("x-max-priority", Value::I64(5)),
        7 => {
            arguments.set("x-dead-letter-exchange", text("x-0"));
            arguments.set("x-message-ttl", Value::I64(1000));
        }
        8 => arguments.set("x-expires", Value::I64(30_000)),
        9 => arguments.set("x-confirm-on", text("ack")),
        _ => {}
    }
    let how = QueueDeclare { durable: true, arguments, ..QueueDeclare::default() };
    it.queue_declare(channel, &queue, &how).map(drop)
}

fn declare_exchange(it: &mut Connection, channel: u16, chance: &mut Chance) -> Result<(), Error> {
    let number = chance.below(EXCHANGES);
    let kind = ["direct", "fanout", "topic", "headers"][number as usize % 4];
    let how = ExchangeDeclare { durable: true, ..ExchangeDeclare::default() };
    it.exchange_declare(channel, &format!("x-{number}"), kind, &how)
}

fn bind(it: &mut Connection, channel: u16, chance: &mut Chance) -> Result<(), Error> {
    let (queue, exchange, key) = (queue(chance), exchange(chance), key(chance));
    it.queue_bind(channel, &queue, &exchange, &key, &Table::default())
}

fn unbind(it: &mut Connection, channel: u16, chance: &mut Chance) -> Result<(), Error> {
    let (queue, exchange, key) = (queue(chance), exchange(chance), key(chance));
    it.queue_unbind(channel, &queue, &exchange, &key, &Table::default())
}

fn put_some(it: &mut Connection, channel: u16, chance: &mut Chance) -> u64 {
    let count = 1 + chance.below(200);
    let body = vec![7; chance.of(&[0, 16, 1000, 20_000])];
    let persistent = [0x10, 0x00, 2];
    for _ in 0..count {
        let properties: &[u8] = if chance.once_in(2) { &persistent } else { &PLAIN };
        if chance.once_in(2) {
            it.publish(channel, "", &queue(chance), properties, &body);
        } else {
            it.publish(channel, "amq.topic", &key(chance), properties, &body);
        }
    }
    count
}

fn publish(it: &mut Connection, channel: u16, chance: &mut Chance) -> Result<(), Error> {
    put_some(it, channel, chance);
    it.flush()
}

fn publish_confirmed(it: &mut Connection, _: u16, chance: &mut Chance) -> Result<(), Error> {
    // A queue of the rule `ack` confirms when somebody consumes, which may be never.
    const PATIENCE: Duration = Duration::from_millis(500);
    let channel = it.open_channel()?;
    it.confirm_select(channel)?;
    put_some(it, channel, chance);
    it.flush()?;
    it.wait(PATIENCE)?;
    while it.next_event()?.is_some() {}
    it.close_channel(channel)
}

fn get(it: &mut Connection, channel: u16, chance: &mut Chance) -> Result<(), Error> {
    for _ in 0..1 + chance.below(20) {
        let no_ack = chance.once_in(2);
        let Some(got) = it.get(channel, &queue(chance), no_ack)? else { continue };
        match chance.below(3) {
            _ if no_ack => {}
            0 => it.ack(channel, got.delivery_tag, false),
            1 => it.reject(channel, got.delivery_tag, chance.once_in(2)),
            // It comes back with the end of the channel.
            _ => {}
        }
    }
    it.flush()
}

fn consume(it: &mut Connection, _: u16, chance: &mut Chance) -> Result<(), Error> {
    let channel = it.open_channel()?;
    it.qos(channel, 1 + chance.below(100) as u16, false)?;
    let no_ack = chance.once_in(3);
    it.consume(channel, &queue(chance), &Consume { no_ack, ..Consume::default() })?;
    let end = Instant::now() + Duration::from_millis(chance.below(200));
    while Instant::now() < end {
        it.wait(Duration::from_millis(20))?;
        let mut tags = Vec::new();
        while let Some(event) = it.next_event()? {
            if let Event::Content { channel: of, method: Method::BasicDeliver(deliver), .. } = event
                && of == channel
            {
                tags.push(deliver.delivery_tag);
            }
        }
        for tag in tags.into_iter().filter(|_| !no_ack) {
            match chance.below(5) {
                0 => it.nack(channel, tag, false, true),
                1 => it.reject(channel, tag, false),
                _ => it.ack(channel, tag, false),
            }
        }
        it.flush()?;
    }
    it.close_channel(channel)
}

fn commit(it: &mut Connection, _: u16, chance: &mut Chance) -> Result<(), Error> {
    let channel = it.open_channel()?;
    it.tx_select(channel)?;
    put_some(it, channel, chance);
    if chance.once_in(3) {
        it.tx_rollback(channel)?
    } else {
        it.tx_commit(channel)?
    }
    it.close_channel(channel)
}

/// Publishes large bodies until the broker wants no more, then takes them all back.
pub(crate) fn fill_memory(uri: &Uri, mut chance: Chance, journal: &Journal, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        let body = vec![7; (1 + chance.below(8) as usize) << 20];
        journal.act("large", format!("bodies of {} MiB", body.len() >> 20), || {
            sorted(fill_once(uri, &body, stop))
        });
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end && !stop.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn fill_once(uri: &Uri, body: &[u8], stop: &AtomicBool) -> Result<(), Error> {
    /// The most that is published, in bytes: more than the watermark.
    const MOST: usize = 400 << 20;
    /// Without a confirm for so long, the broker wants no more.
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut taking = Connection::open(uri, &options("large taker"))?;
    let taker = taking.open_channel()?;
    taking.queue_declare(
        taker,
        "large",
        &QueueDeclare { durable: true, ..QueueDeclare::default() },
    )?;
    let mut giving = Connection::open(uri, &options("large giver"))?;
    let giver = giving.open_channel()?;
    giving.confirm_select(giver)?;
    let mut taken = 0;
    for number in 1..=MOST / body.len() {
        giving.publish(giver, "", "large", &PLAIN, body);
        // The broker may read no further in the middle of it: the rest goes when something was taken.
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                giving.flush()?;
                let end = Instant::now() + Duration::from_secs(60);
                loop {
                    while let Some(event) = giving.next_event()? {
                        if matches!(event, Event::Method { method: Method::BasicAck(_), .. }) {
                            return Ok(());
                        }
                    }
                    if Instant::now() > end {
                        return Err(Error::TimedOut(
                            "the confirm of a large body, though all others were taken",
                        ));
                    }
                    giving.wait(Duration::from_millis(100))?;
                }
            });
            let end = Instant::now() + PATIENCE;
            while !sending.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            while !sending.is_finished() {
                taken += usize::from(taking.get(taker, "large", true)?.is_some());
                std::thread::sleep(Duration::from_millis(5));
            }
            sending.join().unwrap_or(Ok(()))
        })?;
        if taken > 0 || stop.load(Ordering::Acquire) || number == MOST / body.len() {
            break;
        }
    }
    while taking.get(taker, "large", true)?.is_some() {}
    giving.close()?;
    taking.close()
}
