//! What a message of an ordinary client costs the broker, in counts: calls of the system, and sleeps of its threads.
//!
//! Such a client sends each message and each ack in a write of its own. Here it either sends the next one when all has come of
//! the last one, so that nothing can be shared, or it sends many to a broker that is stopped meanwhile, as to one that is busy.
//! Both are the same on a slow machine: a budget is what a machine has at most that does nothing else. What cannot be less is
//! checked too, and that sleeps are counted: a call that the system does not count, or a thread of another name, would be within each budget.

use leveret_client::amqp::method::Method;
use leveret_client::{Connection, Consume, Event, QueueDeclare};
use rustix::process::Signal;

use crate::broker::{Broker, PATIENCE, declare, wait_for_ack, wait_until};

#[derive(Clone, Copy, Debug)]
struct Counts {
    /// Reads of sockets that brought something. Others cannot be told from what threads read of themselves by the clock.
    reads: f64,
    /// Calls of the whole process that write: to sockets, to files, and to wake a thread that waits for sockets. The system
    /// counts `write` and its family alone, no `sendmsg` and no `io_uring`.
    writes: f64,
    /// Of the threads that serve clients, which are known by their names.
    sleeps: f64,
}

impl Counts {
    /// So far, by the system's books and the broker's, which are asked outside of what the system counts between two of these.
    fn before(broker: &Broker) -> Self {
        let reads = reads(broker);
        Self { reads, ..Self::of_system(broker) }
    }

    fn after(broker: &Broker) -> Self {
        let of_system = Self::of_system(broker);
        Self { reads: reads(broker), ..of_system }
    }

    fn of_system(broker: &Broker) -> Self {
        let pid = broker.pid();
        let io = std::fs::read_to_string(format!("/proc/{pid}/io")).unwrap();
        let sleeps = |task: std::io::Result<std::fs::DirEntry>| {
            let status = std::fs::read_to_string(task.unwrap().path().join("status")).ok()?;
            let is_serving = status.starts_with("Name:\tleveret-");
            is_serving.then(|| number(&status, "voluntary_ctxt_switches:"))
        };
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        Self { reads: 0.0, writes: number(&io, "syscw:"), sleeps: tasks.filter_map(sleeps).sum() }
    }

    fn each(self, f: impl Fn(f64, f64) -> f64, other: Self) -> Self {
        Self {
            reads: f(self.reads, other.reads),
            writes: f(self.writes, other.writes),
            sleeps: f(self.sleeps, other.sleeps),
        }
    }

    fn is_within(self, most: Self) -> bool {
        let over = self.each(|it, most| it - most, most);
        over.reads <= 0.0 && over.writes <= 0.0 && over.sleeps <= 0.0
    }
}

/// Of all connections.
fn reads(broker: &Broker) -> f64 {
    let rows = broker.json(&["list_connections", "recv_cnt"]);
    rows.as_array().unwrap().iter().map(|row| row["recv_cnt"].as_f64().unwrap()).sum()
}

/// The number in the line of this name.
fn number(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().parse().unwrap()
}

/// Messages of a round, and rounds: one of them has little of anything else.
const MESSAGES: u32 = 100;
const ROUNDS: usize = 5;

/// What a message has at least that is read and answered alone. A thread need not sleep: on a busy machine it may find the
/// next message whenever it looks.
const LEAST_ALONE: Counts = Counts { reads: 1.0, writes: 1.0, sleeps: 0.0 };
/// What it has at least of a round's single read and answer.
const LEAST_SHARED: Counts = Counts { reads: 0.01, writes: 0.01, sleeps: 0.0 };

/// What a message costs in each round.
fn costs(broker: &Broker, mut round: impl FnMut()) -> Vec<Counts> {
    let before = Counts::of_system(broker).sleeps;
    round(); // Whatever is done once.
    let sleeps = || Counts::of_system(broker).sleeps > before;
    wait_until(PATIENCE, "sleeps of threads with nothing to do are counted", sleeps);
    let one = || {
        let before = Counts::before(broker);
        round();
        Counts::after(broker).each(|now, before| (now - before) / f64::from(MESSAGES), before)
    };
    std::iter::repeat_with(one).take(ROUNDS).collect()
}

/// That no round has less than can be, and one of them is within the budget with all that it has.
#[track_caller]
fn check(what: &str, rounds: &[Counts], least: Counts, budget: Counts) {
    eprintln!("{what}: {rounds:?}");
    let is_least = rounds.iter().all(|it| least.is_within(*it));
    assert!(is_least, "{what}: {rounds:?} per message, and no less than {least:?} can be");
    let is_within = rounds.iter().any(|it| it.is_within(budget));
    assert!(is_within, "{what}: {rounds:?} per message, and the budget is {budget:?}");
}

/// Two threads, whatever the machine has.
fn broker() -> Broker {
    Broker::with(&["threads=2"])
}

/// In one write.
fn publish(client: &mut Connection, channel: u16, persistent: bool) {
    // Delivery mode 2, or no property.
    let properties: &[u8] = if persistent { &[0x10, 0, 2] } else { &[0, 0] };
    client.publish(channel, "", "q", properties, &[b'x'; 100]);
    client.flush().unwrap();
}

/// The tags of the messages that come, until there are so many.
fn take(client: &mut Connection, count: u32) -> Vec<u64> {
    let mut tags = Vec::new();
    while tags.len() < count as usize {
        match client.next_event().unwrap() {
            Some(Event::Content { method, .. }) => match method {
                Method::BasicDeliver(deliver) => {
                    tags.push(deliver.delivery_tag);
                }
                other => panic!("{other:?}"),
            },
            Some(other) => panic!("{other:?}"),
            None => assert!(client.wait(PATIENCE).unwrap(), "no message came"),
        }
    }
    tags
}

#[test]
fn a_message_and_its_confirm() {
    for (persistent, budget) in [
        // A read, a confirm, a sleep.
        (false, Counts { reads: 1.0, writes: 1.2, sleeps: 1.5 }),
        // Besides, what the disk's thread writes to files, and a wake-up or two.
        (true, Counts { reads: 1.0, writes: 5.0, sleeps: 3.0 }),
    ] {
        let broker = broker();
        let (mut client, channel) = broker.channel();
        let how = QueueDeclare { durable: persistent, ..QueueDeclare::default() };
        client.queue_declare(channel, "q", &how).unwrap();
        client.confirm_select(channel).unwrap();
        let costs = costs(&broker, || {
            for _ in 0..MESSAGES {
                publish(&mut client, channel, persistent);
                wait_for_ack(&mut client);
            }
        });
        check(
            &format!("publish and confirm, persistent {persistent}"),
            &costs,
            LEAST_ALONE,
            budget,
        );
    }
}

#[test]
fn a_message_and_its_delivery() {
    for (acks, budget) in [
        // A read, a delivery, a sleep.
        (false, Counts { reads: 1.0, writes: 1.2, sleeps: 1.5 }),
        // A read and a sleep more, of the ack. Seldom one of two threads has to wake the other one.
        (true, Counts { reads: 2.0, writes: 1.5, sleeps: 2.5 }),
    ] {
        let broker = broker();
        let (mut publisher, to) = broker.channel();
        declare(&mut publisher, to, "q");
        let (mut consumer, from) = broker.channel();
        // The next message comes when the ack of the last one was read.
        consumer.qos(from, 1, false).unwrap();
        let how = Consume { no_ack: !acks, ..Consume::default() };
        consumer.consume(from, "q", &how).unwrap();
        let costs = costs(&broker, || {
            for _ in 0..MESSAGES {
                publish(&mut publisher, to, false);
                let tags = take(&mut consumer, 1);
                if acks {
                    consumer.ack(from, tags[0], false);
                    consumer.flush().unwrap();
                }
            }
        });
        check(&format!("publish and deliver, acks {acks}"), &costs, LEAST_ALONE, budget);
    }
}

/// What came while the broker was busy is one read, and one write for each client that gets something of it.
#[test]
fn messages_that_wait_share_their_calls() {
    for (consumes, confirms, budget) in [
        // One read of all; one read and one answer of the declaration; each thread sleeps once because it is stopped.
        (false, false, Counts { reads: 0.03, writes: 0.03, sleeps: 0.1 }),
        // One write of a confirm for all.
        (false, true, Counts { reads: 0.03, writes: 0.04, sleeps: 0.1 }),
        // One write of all deliveries.
        (true, false, Counts { reads: 0.03, writes: 0.04, sleeps: 0.1 }),
    ] {
        let broker = broker();
        let (mut publisher, to) = broker.channel();
        declare(&mut publisher, to, "q");
        if confirms {
            publisher.confirm_select(to).unwrap();
        }
        let (mut consumer, from) = broker.channel();
        if consumes {
            let how = Consume { no_ack: true, ..Consume::default() };
            consumer.consume(from, "q", &how).unwrap();
        }
        let costs = costs(&broker, || {
            broker.signal(Signal::STOP);
            wait_until(PATIENCE, "it is stopped", || is_stopped(&broker));
            for _ in 0..MESSAGES {
                publish(&mut publisher, to, false);
            }
            broker.signal(Signal::CONT);
            if consumes {
                take(&mut consumer, MESSAGES);
            }
            // Answered when all before it was read.
            declare(&mut publisher, to, "q");
            publisher.poll().unwrap();
            while publisher.next_event().unwrap().is_some() {}
        });
        let what = format!("a burst, consumer {consumes}, confirms {confirms}");
        check(&what, &costs, LEAST_SHARED, budget);
    }
}

fn is_stopped(broker: &Broker) -> bool {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", broker.pid())).unwrap();
    let mut stats = tasks.map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")));
    stats.all(|stat| stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap().starts_with(" T")))
}
