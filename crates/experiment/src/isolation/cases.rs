//! The large things that somebody does while the probe goes on: a row each.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use leveret_client::amqp::table::{Table, Value as Field};
use leveret_client::{Consume, ExchangeDeclare, QueueDeclare};
use serde_json::{Value, json};

use super::stage::Stage;
use crate::loads::{Message, PLAIN, Until, at_once, consume, publish, publishers, receive};
use crate::site::encoded;

/// A large thing.
#[derive(Debug)]
pub(crate) struct Case {
    /// The word it is called by.
    pub(crate) name: &'static str,
    /// What is done; `{n}` is how large it is.
    pub(crate) title: &'static str,
    /// How large it is in the documents.
    pub(crate) size: u64,
    /// It is not made smaller than that, or it would be another thing.
    pub(crate) least: u64,
    /// What is counted in a second.
    pub(crate) unit: &'static str,
    /// Prepares, says [`Stage::begin`], does it, and gives how much was done.
    pub(crate) run: fn(&Stage<'_>) -> Result<u64>,
}

#[rustfmt::skip] // a table
pub(crate) const ALL: &[Case] = &[
    Case { name: CONTROL,            title: "control: {n} threads compute, the broker has nothing else to do", size: 4, least: 4, unit: "threads", run: control },
    Case { name: "fanout",           title: "4 publishers to {n} queues at once",                   size: 1_000,      least: 10, unit: "placements", run: fanout },
    Case { name: "fanout-blind",     title: "the same without confirms",                            size: 1_000,      least: 10, unit: "placements", run: fanout_blind },
    Case { name: "fanout-consumers", title: "the same with confirms and {n} consumers",             size: 1_000,      least: 10, unit: "deliveries", run: fanout_consumers },
    Case { name: "topic-all",        title: "4 publishers, {n} queues all match on a topic exchange", size: 10_000,   least: 10, unit: "placements", run: topic_all },
    Case { name: "headers",          title: "4 publishers to a headers exchange of {n} bindings",   size: 20_000,     least: 10, unit: "messages", run: headers },
    Case { name: "list",             title: "list of {n} queues",                                   size: 50_000,     least: 10, unit: "rows",     run: list },
    Case { name: "lists-by-ten",     title: "ten clients ask for every list each second, {n} queues", size: 10_000,   least: 10, unit: "lists",    run: lists_by_ten },
    Case { name: "import-bindings",  title: "import of {n} topic bindings",                         size: 100_000,    least: 10, unit: "bindings", run: import_bindings },
    Case { name: "import-queues",    title: "import of {n} queues",                                 size: 50_000,     least: 10, unit: "queues",   run: import_queues },
    Case { name: "import-more",      title: "import of {n} queues",                                 size: 200_000,    least: 10, unit: "queues",   run: import_queues },
    Case { name: "export",           title: "export of the definitions of {n} queues",              size: 50_000,     least: 10, unit: "queues",   run: export },
    Case { name: "policy",           title: "policy over {n} queues",                               size: 50_000,     least: 10, unit: "queues",   run: policy },
    Case { name: "delete-exchange",  title: "delete of an exchange with {n} bindings",              size: 100_000,    least: 10, unit: "bindings", run: delete_exchange },
    Case { name: "delete-vhost",     title: "delete of a vhost of {n} queues",                      size: 50_000,     least: 10, unit: "queues",   run: delete_vhost },
    Case { name: "exclusive",        title: "end of a connection with {n} exclusive queues",        size: 50_000,     least: 10, unit: "queues",   run: exclusive },
    Case { name: "delete",           title: "delete of a queue of {n} messages",                    size: 3_000_000,  least: 100, unit: "messages", run: delete },
    Case { name: "purge",            title: "purge of {n} messages",                                size: 3_000_000,  least: 100, unit: "messages", run: purge },
    Case { name: "transaction",      title: "transaction of {n} messages",                          size: 150_000,    least: 10, unit: "messages", run: transaction },
    Case { name: "channels",         title: "end of a connection with {n} channels",                size: 2_000,      least: 10, unit: "channels", run: channels },
    Case { name: "prefetch-0",       title: "prefetch 0 on {n} messages, and their return",         size: 1_000_000,  least: 100, unit: "messages", run: prefetch },
    Case { name: "logins",           title: "{n} connections at once, slow password hashes",        size: 2_000,      least: 10, unit: "logins",   run: logins },
    Case { name: "large-body",       title: "a body of {n} bytes to ten consumers",                 size: 128 << 20,  least: 1 << 20, unit: "bytes", run: large_body },
    Case { name: "firehose",         title: "{n} messages through a vhost with its firehose on",    size: 500_000,    least: 100, unit: "messages", run: firehose },
    Case { name: "ten-delete",       title: "delete of a queue of {n} messages",                    size: 10_000_000, least: 100, unit: "messages", run: delete },
    Case { name: "ten-expire",       title: "{n} messages expire at once",                          size: 10_000_000, least: 100, unit: "messages", run: expire },
    Case { name: "ten-cut",          title: "a policy cuts a queue of {n} messages to one",         size: 10_000_000, least: 100, unit: "messages", run: cut },
    Case { name: "ten-move",         title: "{n} messages are moved to another queue",              size: 10_000_000, least: 100, unit: "messages", run: move_all },
];

/// What others feel of the machine alone. It has no goals.
pub(crate) const CONTROL: &str = "control";

/// Publishers of a case.
const PUBLISHERS: usize = 4;
/// Messages that each of them has under way.
const WINDOW: usize = 100;
/// Time of a call that waits for a state.
const LOOK: Duration = Duration::from_millis(20);
/// How long the first copy of a firehose may take, on a machine that does much else.
const FIRST_COPY: Duration = Duration::from_secs(10);

/// As many threads as others have publishers do nothing but compute: how long the probe waits for a processor.
fn control(stage: &Stage<'_>) -> Result<u64> {
    stage.begin();
    let end = Instant::now() + stage.seconds;
    at_once(stage.size as usize, |_| {
        let mut number = 0_u64;
        while Instant::now() < end {
            for _ in 0..1 << 20 {
                number = std::hint::black_box(number.wrapping_mul(31) + 1);
            }
        }
        Ok(1)
    })
}

fn queue(number: u64) -> String {
    format!("q-{number}")
}

fn queues(count: u64) -> Vec<Value> {
    let row = |number| json!({"name": queue(number), "durable": true, "auto_delete": false, "arguments": {}});
    (0..count).map(row).collect()
}

fn exchange(kind: &str) -> Value {
    json!({"name": "x", "type": kind, "durable": true, "auto_delete": false, "internal": false, "arguments": {}})
}

fn binding(queue: &str, key: &str, arguments: Value) -> Value {
    json!({
        "source": "x", "destination": queue, "destination_type": "queue", "routing_key": key,
        "arguments": arguments,
    })
}

/// Definitions, in pieces that any broker takes.
fn make(
    stage: &Stage<'_>,
    exchanges: &[Value],
    queues: &[Value],
    bindings: &[Value],
) -> Result<()> {
    const PIECE: usize = 10_000;
    import(stage, &json!({"exchanges": exchanges}))?;
    for piece in queues.chunks(PIECE) {
        import(stage, &json!({"queues": piece}))?;
    }
    for piece in bindings.chunks(PIECE) {
        import(stage, &json!({"bindings": piece}))?;
    }
    Ok(())
}

fn import(stage: &Stage<'_>, definitions: &Value) -> Result<()> {
    let path = format!("/api/definitions/{}", encoded(stage.vhost));
    stage.site.ask("POST", &path, definitions).map(drop)
}

/// A durable queue with so many transient messages of 16 bytes.
fn fill(stage: &Stage<'_>, count: u64) -> Result<()> {
    let mut connection = stage.site.connect(stage.vhost)?;
    let channel = connection.open_channel()?;
    let how = QueueDeclare { durable: true, ..QueueDeclare::default() };
    connection.queue_declare(channel, "full", &how)?;
    let message = Message { exchange: "", key: "full", properties: &PLAIN, body: &[7; 16] };
    publish(&mut connection, &message, 4096, Until::Count(count))?;
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    let there = connection.queue_declare(channel, "full", &passive)?.message_count;
    ensure!(u64::from(there) == count, "{there} messages of {count} are in the queue");
    connection.close()?;
    stage.takes(count * 64);
    Ok(())
}

/// Waits until the queue has at most so many messages.
fn await_messages(stage: &Stage<'_>, most: u32) -> Result<()> {
    let mut connection = stage.site.connect(stage.vhost)?;
    let channel = connection.open_channel()?;
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    while connection.queue_declare(channel, "full", &passive)?.message_count > most {
        stage.check_time()?;
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn make_fanout(stage: &Stage<'_>, kind: &str, key: &str) -> Result<()> {
    let bindings: Vec<_> =
        (0..stage.size).map(|number| binding(&queue(number), key, json!({}))).collect();
    make(stage, &[exchange(kind)], &queues(stage.size), &bindings)
}

fn publish_to_all(stage: &Stage<'_>, window: usize) -> Result<u64> {
    let message = Message { exchange: "x", key: "a.b", properties: &PLAIN, body: &[7; 16] };
    stage.begin();
    let until = Until::Moment(Instant::now() + stage.seconds);
    let count = publishers(stage.site, stage.vhost, PUBLISHERS, &message, window, until)?;
    // An entry of a queue, and what it grows by.
    stage.takes(count * stage.size * 48);
    Ok(count * stage.size)
}

fn fanout(stage: &Stage<'_>) -> Result<u64> {
    make_fanout(stage, "fanout", "")?;
    publish_to_all(stage, WINDOW)
}

fn fanout_blind(stage: &Stage<'_>) -> Result<u64> {
    make_fanout(stage, "fanout", "")?;
    publish_to_all(stage, 0)
}

fn topic_all(stage: &Stage<'_>) -> Result<u64> {
    make_fanout(stage, "topic", "#")?;
    publish_to_all(stage, WINDOW)
}

fn fanout_consumers(stage: &Stage<'_>) -> Result<u64> {
    const CONNECTIONS: usize = 10;
    make_fanout(stage, "fanout", "")?;
    let names: Vec<_> = (0..stage.size).map(queue).collect();
    let (stop, came) = (AtomicBool::new(false), AtomicU64::new(0));
    let each = names.len().div_ceil(CONNECTIONS);
    std::thread::scope(|scope| {
        let consumers: Vec<_> = names
            .chunks(each)
            .map(|names| {
                let (stop, came) = (&stop, &came);
                scope.spawn(move || {
                    let mut connection = stage.site.connect(stage.vhost)?;
                    consume(&mut connection, names, true, stop, came)
                })
            })
            .collect();
        let published = publish_to_all(stage, WINDOW);
        stop.store(true, Ordering::Release);
        for consumer in consumers {
            consumer.join().map_err(|_| anyhow::anyhow!("a consumer panicked"))??;
        }
        published.map(|_| came.load(Ordering::Relaxed))
    })
}

fn headers(stage: &Stage<'_>) -> Result<u64> {
    let bind = |number: u64| {
        let arguments = json!({"x-match": "all", "shop": "s", "number": number, "kind": "order"});
        binding(&queue(number % 100), "", arguments)
    };
    let bindings: Vec<_> = (0..stage.size).map(bind).collect();
    make(stage, &[exchange("headers")], &queues(100), &bindings)?;
    let mut table = Table::default();
    table.set("shop", Field::LongStr(b"s".to_vec()));
    table.set("number", Field::I64(0));
    table.set("kind", Field::LongStr(b"order".to_vec()));
    // The flag of the headers, and the table with its length.
    let mut properties = vec![0x20, 0x00];
    let table = table.to_bytes();
    properties.extend_from_slice(&(table.len() as u32).to_be_bytes());
    properties.extend_from_slice(&table);
    let message = Message { exchange: "x", key: "", properties: &properties, body: &[7; 16] };
    stage.begin();
    let until = Until::Moment(Instant::now() + stage.seconds);
    let count = publishers(stage.site, stage.vhost, PUBLISHERS, &message, WINDOW, until)?;
    // All are in the one queue that they match, with their headers.
    stage.takes(count * (64 + properties.len() as u64));
    Ok(count)
}

/// Asks again and again, and gives how often.
fn ask_for_a_while(stage: &Stage<'_>, paths: &[String], every: Duration) -> Result<u64> {
    let (end, mut times) = (Instant::now() + stage.seconds, 0);
    loop {
        let next = Instant::now() + every;
        for path in paths {
            stage.site.ask("GET", path, &Value::Null)?;
            times += 1;
            if Instant::now() >= end {
                return Ok(times);
            }
        }
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn list(stage: &Stage<'_>) -> Result<u64> {
    make(stage, &[], &queues(stage.size), &[])?;
    let path = format!("/api/queues/{}", encoded(stage.vhost));
    stage.begin();
    Ok(ask_for_a_while(stage, &[path], Duration::ZERO)? * stage.size)
}

fn lists_by_ten(stage: &Stage<'_>) -> Result<u64> {
    make_fanout(stage, "topic", "a")?;
    let lists = [
        "queues",
        "exchanges",
        "bindings",
        "connections",
        "channels",
        "consumers",
        "overview",
        "users",
    ];
    let paths = lists.map(|it| format!("/api/{it}"));
    stage.begin();
    at_once(10, |_| ask_for_a_while(stage, &paths, Duration::from_secs(1)))
}

fn import_bindings(stage: &Stage<'_>) -> Result<u64> {
    make(stage, &[exchange("topic")], &queues(100), &[])?;
    let bindings: Vec<_> = topic_bindings(stage.size);
    stage.begin();
    import(stage, &json!({"bindings": bindings}))?;
    Ok(stage.size)
}

fn topic_bindings(count: u64) -> Vec<Value> {
    let row = |number| binding(&queue(number % 100), &format!("a.{number}.*.b"), json!({}));
    (0..count).map(row).collect()
}

fn import_queues(stage: &Stage<'_>) -> Result<u64> {
    let definitions = json!({"queues": queues(stage.size)});
    stage.stays();
    stage.begin();
    import(stage, &definitions)?;
    Ok(stage.size)
}

fn export(stage: &Stage<'_>) -> Result<u64> {
    make(stage, &[], &queues(stage.size), &[])?;
    stage.begin();
    Ok(ask_for_a_while(stage, &["/api/definitions".to_owned()], Duration::ZERO)? * stage.size)
}

fn put_policy(stage: &Stage<'_>, pattern: &str, definition: Value) -> Result<()> {
    let path = format!("/api/policies/{}/p", encoded(stage.vhost));
    let policy =
        json!({"pattern": pattern, "apply-to": "queues", "priority": 1, "definition": definition});
    stage.site.ask("PUT", &path, &policy).map(drop)
}

fn policy(stage: &Stage<'_>) -> Result<u64> {
    make(stage, &[], &queues(stage.size), &[])?;
    stage.begin();
    put_policy(stage, "^q", json!({"max-length": 1000}))?;
    Ok(stage.size)
}

fn delete_exchange(stage: &Stage<'_>) -> Result<u64> {
    make(stage, &[exchange("topic")], &queues(100), &topic_bindings(stage.size))?;
    let mut connection = stage.site.connect(stage.vhost)?;
    let channel = connection.open_channel()?;
    stage.begin();
    connection.exchange_delete(channel, "x", false)?;
    Ok(stage.size)
}

fn delete_vhost(stage: &Stage<'_>) -> Result<u64> {
    make(stage, &[], &queues(stage.size), &[])?;
    stage.begin();
    stage.site.ask("DELETE", &format!("/api/vhosts/{}", encoded(stage.vhost)), &Value::Null)?;
    Ok(stage.size)
}

fn exclusive(stage: &Stage<'_>) -> Result<u64> {
    let mut connection = stage.site.connect(stage.vhost)?;
    let channel = connection.open_channel()?;
    let how = QueueDeclare { exclusive: true, ..QueueDeclare::default() };
    for number in 0..stage.size {
        connection.queue_declare(channel, &queue(number), &how)?;
    }
    stage.begin();
    // It is answered when the last queue is gone.
    connection.close()?;
    Ok(stage.size)
}

fn delete(stage: &Stage<'_>) -> Result<u64> {
    fill(stage, stage.size)?;
    let mut connection = stage.site.connect(stage.vhost)?;
    let channel = connection.open_channel()?;
    stage.begin();
    Ok(connection.queue_delete(channel, "full")?.into())
}

fn purge(stage: &Stage<'_>) -> Result<u64> {
    fill(stage, stage.size)?;
    let mut connection = stage.site.connect(stage.vhost)?;
    let channel = connection.open_channel()?;
    stage.begin();
    Ok(connection.queue_purge(channel, "full")?.into())
}

/// They expire as soon as the one before them is gone, which does not expire.
fn expire(stage: &Stage<'_>) -> Result<u64> {
    /// The flag of `expiration`, and `1`.
    const AT_ONCE: [u8; 4] = [0x01, 0x00, 1, b'1'];
    let mut connection = stage.site.connect(stage.vhost)?;
    let channel = connection.open_channel()?;
    let how = QueueDeclare { durable: true, ..QueueDeclare::default() };
    connection.queue_declare(channel, "full", &how)?;
    let stays = Message { exchange: "", key: "full", properties: &PLAIN, body: &[7; 16] };
    publish(&mut connection, &stays, 1, Until::Count(1))?;
    let goes = Message { properties: &AT_ONCE, ..stays };
    publish(&mut connection, &goes, 4096, Until::Count(stage.size))?;
    stage.takes(stage.size * 64);
    stage.begin();
    connection.get(channel, "full", true)?;
    await_messages(stage, 0)?;
    Ok(stage.size)
}

fn cut(stage: &Stage<'_>) -> Result<u64> {
    fill(stage, stage.size)?;
    stage.begin();
    put_policy(stage, "^full", json!({"max-length": 1}))?;
    await_messages(stage, 1)?;
    Ok(stage.size)
}

fn move_all(stage: &Stage<'_>) -> Result<u64> {
    fill(stage, stage.size)?;
    make(stage, &[], &queues(1), &[])?;
    let path = format!("/api/queues/{}/full/move", encoded(stage.vhost));
    stage.takes(stage.size * 64);
    stage.begin();
    let answer = stage.site.ask("POST", &path, &json!({"to_queue": queue(0)}))?;
    let moved = serde_json::from_slice::<Value>(&answer)?["moved"].as_u64().unwrap_or(0);
    ensure!(moved == stage.size, "{moved} messages of {} were moved", stage.size);
    Ok(moved)
}

fn transaction(stage: &Stage<'_>) -> Result<u64> {
    make(stage, &[], &queues(1), &[])?;
    let mut connection = stage.site.connect(stage.vhost)?;
    let channel = connection.open_channel()?;
    connection.tx_select(channel)?;
    stage.takes(stage.size * 256);
    stage.begin();
    for _ in 0..stage.size {
        connection.publish(channel, "", &queue(0), &PLAIN, &[7; 16]);
    }
    connection.tx_commit(channel)?;
    Ok(stage.size)
}

fn channels(stage: &Stage<'_>) -> Result<u64> {
    const UNACKED: u64 = 10;
    fill(stage, stage.size * UNACKED)?;
    let mut connection = stage.site.connect(stage.vhost)?;
    for _ in 0..stage.size {
        let channel = connection.open_channel()?;
        connection.qos(channel, UNACKED as u16, false)?;
        connection.consume(channel, "full", &Consume::default())?;
    }
    let mut watcher = stage.site.connect(stage.vhost)?;
    let channel = watcher.open_channel()?;
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    stage.begin();
    connection.stopper()?.stop();
    while watcher.queue_declare(channel, "full", &passive)?.consumer_count > 0 {
        stage.check_time()?;
        std::thread::sleep(LOOK);
    }
    Ok(stage.size)
}

fn prefetch(stage: &Stage<'_>) -> Result<u64> {
    fill(stage, stage.size)?;
    let mut connection = stage.site.connect(stage.vhost)?;
    let channel = connection.open_channel()?;
    stage.begin();
    connection.consume(channel, "full", &Consume::default())?;
    let mut came = 0;
    while came < stage.size {
        stage.check_time()?;
        connection.wait(LOOK)?;
        while connection.next_event()?.is_some() {
            came += 1;
        }
    }
    connection.close()?;
    let mut connection = stage.site.connect(stage.vhost)?;
    let channel = connection.open_channel()?;
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    while u64::from(connection.queue_declare(channel, "full", &passive)?.message_count) < stage.size
    {
        stage.check_time()?;
        std::thread::sleep(LOOK);
    }
    stage.takes(stage.size * 128);
    Ok(stage.size)
}

fn logins(stage: &Stage<'_>) -> Result<u64> {
    const AT_ONCE: u64 = 200;
    let user = "leveret-isolation";
    stage.site.ask(
        "PUT",
        &format!("/api/users/{user}"),
        &json!({"password": "secret", "tags": ""}),
    )?;
    let path = format!("/api/permissions/{}/{user}", encoded(stage.vhost));
    let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
    stage.site.ask("PUT", &path, &all)?;
    let mut uri = stage.site.uri_of(stage.vhost)?;
    (uri.user, uri.password) = (user.to_owned(), "secret".to_owned());
    let threads = stage.size.min(AT_ONCE);
    stage.begin();
    let done = at_once(threads as usize, |thread| {
        let mut open = Vec::new();
        for _ in (thread as u64..stage.size).step_by(threads as usize) {
            open.push(stage.site.connect_as(&uri)?);
        }
        Ok(open.len() as u64)
    });
    stage.site.ask("DELETE", &format!("/api/users/{user}"), &Value::Null)?;
    done
}

fn large_body(stage: &Stage<'_>) -> Result<u64> {
    const CONSUMERS: u64 = 10;
    let bindings: Vec<_> =
        (0..CONSUMERS).map(|number| binding(&queue(number), "", json!({}))).collect();
    make(stage, &[exchange("fanout")], &queues(CONSUMERS), &bindings)?;
    let body = vec![7_u8; stage.size as usize];
    // Once for the log, once for its way in; deliveries share it.
    stage.takes(2 * stage.size);
    let (stop, came) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let consumers: Vec<_> = (0..CONSUMERS)
            .map(|number| {
                let (stop, came) = (&stop, &came);
                scope.spawn(move || {
                    let mut connection = stage.site.connect(stage.vhost)?;
                    consume(&mut connection, &[queue(number)], true, stop, came)
                })
            })
            .collect();
        stage.begin();
        let send = || {
            let mut connection = stage.site.connect(stage.vhost)?;
            let message = Message { exchange: "x", key: "", properties: &PLAIN, body: &body };
            publish(&mut connection, &message, 1, Until::Count(1))?;
            while came.load(Ordering::Relaxed) < CONSUMERS {
                stage.check_time()?;
                std::thread::sleep(LOOK);
            }
            Ok(CONSUMERS * stage.size)
        };
        let sent = send();
        stop.store(true, Ordering::Release);
        for consumer in consumers {
            // Why nothing was sent says more than what became of those who waited for it.
            let _ = consumer.join();
        }
        sent
    })
}

fn firehose(stage: &Stage<'_>) -> Result<u64> {
    make(stage, &[], &queues(1), &[])?;
    let mut tap = stage.site.connect(stage.vhost)?;
    let channel = tap.open_channel()?;
    tap.exchange_declare(
        channel,
        "amq.rabbitmq.trace",
        "topic",
        &ExchangeDeclare { passive: true, ..ExchangeDeclare::default() },
    )?;
    tap.queue_declare(
        channel,
        "tap",
        &QueueDeclare { exclusive: true, ..QueueDeclare::default() },
    )?;
    tap.queue_bind(channel, "tap", "amq.rabbitmq.trace", "#", &Table::default())?;
    stage.site.ask(
        "PUT",
        &format!("/api/vhosts/{}", encoded(stage.vhost)),
        &json!({"tracing": true}),
    )?;
    tap.consume(channel, "tap", &Consume { no_ack: true, ..Consume::default() })?;
    let (stop, copies, came) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let tapping = scope.spawn(|| receive(&mut tap, &stop, &copies));
        let consuming = scope.spawn(|| {
            let mut connection = stage.site.connect(stage.vhost)?;
            consume(&mut connection, &[queue(0)], true, &stop, &came)
        });
        let message = Message { exchange: "", key: &queue(0), properties: &PLAIN, body: &[7; 64] };
        stage.begin();
        let until = Until::Count(stage.size / PUBLISHERS as u64);
        let sent = publishers(stage.site, stage.vhost, PUBLISHERS, &message, WINDOW, until);
        // A few messages are confirmed before the first copy is read. None at all is a fault.
        let given = Instant::now() + FIRST_COPY;
        while sent.is_ok() && copies.load(Ordering::Relaxed) == 0 && Instant::now() < given {
            std::thread::sleep(LOOK);
        }
        stop.store(true, Ordering::Release);
        for thread in [tapping, consuming] {
            if thread.join().map_err(|_| anyhow::anyhow!("a consumer panicked"))?.is_err()
                && sent.is_ok()
            {
                bail!("a consumer was ended");
            }
        }
        if copies.load(Ordering::Relaxed) == 0 {
            bail!("the firehose gave nothing");
        }
        sent
    })
}
