//! How long a start takes after a kill: a queue with a million messages, and 100,000 queues.
//!
//! The files are still in the kernel's memory, so this is the broker's own work and not the disk's.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use leveret_client::{Connection, Options, QueueDeclare, Uri};

use super::Workload;
use super::measure::{Bench, BrokerAt, Busy, Figures, named};
use super::stored::owned;
use super::target::Target;

/// Messages that are stored.
const MESSAGES: u32 = 1_000_000;
/// Queues that are declared, by so many connections, so that they share the disk's syncs.
const QUEUES: usize = 100_000;
const DECLARERS: usize = 50;

/// Ready is when a queue answers, and with all its messages.
pub(crate) fn starts(
    bench: &mut Bench,
    target: &mut Target,
    place: &BrokerAt<'_>,
) -> Result<Figures> {
    bench.describe(
        Workload::Recovery,
        "leveret perf -x 1 -y 0 -e '' -u recovery -ad false -f persistent -s 1000 -c 1000 \
         -C 1000000 -h URI; kill -9 PID; leveret serve",
    );
    fill(bench, place)?;
    let (messages, messages_others) = ready(target, "recovery", MESSAGES)?;
    let (uri, _) = target.fresh()?;
    declare(&uri)?;
    let (queues, queues_others) = ready(target, &queue(QUEUES - 1), 0)?;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(named([
        ("1 million messages of 1 KB: ms to ready", ms(messages)),
        ("others' CPU during that start, %", messages_others),
        ("100,000 durable queues: ms to ready", ms(queues)),
        ("others' CPU during this start, %", queues_others),
    ]))
}

fn fill(bench: &mut Bench, place: &BrokerAt<'_>) -> Result<()> {
    let count = MESSAGES.to_string();
    let mut flags = vec!["-x", "1", "-y", "0", "-e", "", "-u", "recovery", "-ad", "false"];
    flags.extend(["-f", "persistent", "-s", "1000", "-c", "1000", "-C", &count]);
    bench.perf(Workload::Recovery, place, &owned(&flags))?;
    Ok(())
}

fn declare(uri: &str) -> Result<()> {
    let uri: Uri = uri.parse()?;
    let some = |first: usize| -> Result<()> {
        let mut connection = Connection::open(&uri, &Options::default())?;
        let channel = connection.open_channel()?;
        let how = QueueDeclare { durable: true, ..QueueDeclare::default() };
        for number in (first..QUEUES).step_by(DECLARERS) {
            connection.queue_declare(channel, &queue(number), &how)?;
        }
        Ok(connection.close()?)
    };
    let some = &some;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..DECLARERS).map(|first| scope.spawn(move || some(first))).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result.context("declaring queues"),
            Err(_) => bail!("a thread that declares queues has died"),
        })
    })
}

fn queue(number: usize) -> String {
    format!("recovery-{number}")
}

/// Time from the start of a killed broker until `queue` is there with so many messages, and the
/// share of the machine that others used.
fn ready(target: &mut Target, queue: &str, messages: u32) -> Result<(Duration, f64)> {
    let busy = Busy::start();
    let (uri, pid) = target.restart()?;
    let answered = Instant::now();
    let uri: Uri = uri.parse()?;
    let mut connection = Connection::open(&uri, &Options::default())?;
    let channel = connection.open_channel()?;
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    let found = connection.queue_declare(channel, queue, &passive)?.message_count;
    let ready = target.start_time().unwrap_or_default() + answered.elapsed();
    if found != messages {
        bail!("{queue} has {found} messages after the start, not {messages}");
    }
    let own_s = leveret_load::process::tree(pid).map_or(0.0, |usage| usage.cpu_s);
    connection.close()?;
    Ok((ready, busy.others(own_s)))
}
