//! `leveret migrate` between two nodes: what comes along, what is kept when it is killed, and what it says when
//! something is left.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};

use leveret_client::amqp::content::{Properties, RawProperties};
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, Consume, ExchangeDeclare, QueueDeclare, Uri};
use serde_json::Value as Json;

use crate::auth::web::Web;
use crate::broker::{Broker, PATIENCE, declare, leveret, wait_until};
use crate::restart::{durable, persistent, text};

/// Of a user who may do everything, with signs in it that a URI cannot have.
const PASSWORD: &str = "p@ss/w%rd:?#";
const ENCODED: &str = "p%40ss%2Fw%25rd%3A%3F%23";

/// The same with some words more, from `old` to the node with `new`'s data directory.
fn command(old: &Broker, new: &Broker, login: &str, words: &[&str]) -> Command {
    let mut command = leveret(&["migrate"]);
    command.args(["--from-api", &format!("http://{login}@{}", old.listens("http"))]);
    command.args(["--from", &format!("amqp://{login}@{}", old.address)]);
    command.args(words).env("LEVERET_DATA_DIR", new.dir.path());
    command
}

/// Runs it: status, standard output, standard error. No password is in either.
fn run(mut command: Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (told, errors) = (text(stdout), text(stderr));
    for secret in [PASSWORD, ENCODED] {
        assert!(!told.contains(secret) && !errors.contains(secret), "{told}{errors}");
    }
    (status.code().unwrap(), told, errors)
}

#[track_caller]
fn migrate(old: &Broker, new: &Broker, words: &[&str], want: i32) -> (String, String) {
    let (status, told, errors) = run(command(old, new, "guest:guest", words));
    assert_eq!(status, want, "{told}\n{errors}");
    (told, errors)
}

/// A client in a vhost.
fn channel_in(broker: &Broker, vhost: &str) -> (Connection, u16) {
    let mut client = broker.connect_as(&Uri { vhost: vhost.to_owned(), ..broker.uri() });
    let channel = client.open_channel().unwrap();
    (client, channel)
}

fn table(entries: &[(&str, Value)]) -> Table {
    entries.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
}

/// Takes everything out of a queue: routing key, properties, body.
fn emptied(client: &mut Connection, channel: u16, queue: &str) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    while let Some(got) = client.get(channel, queue, true).unwrap() {
        all.push((got.routing_key, got.properties, got.body));
    }
    all
}

fn ready(client: &mut Connection, channel: u16, queue: &str) -> u32 {
    let how = QueueDeclare { passive: true, ..QueueDeclare::default() };
    client.queue_declare(channel, queue, &how).unwrap().message_count
}

/// Every kind of header, and every property but the user.
fn all_kinds() -> Properties {
    let kinds = [
        ("bool", Value::Bool(true)),
        ("i8", Value::I8(-1)),
        ("u8", Value::U8(200)),
        ("i16", Value::I16(-300)),
        ("u16", Value::U16(60_000)),
        ("i32", Value::I32(-70_000)),
        ("u32", Value::U32(4_000_000_000)),
        ("i64", Value::I64(i64::MIN)),
        ("f32", Value::F32(1.5)),
        ("f64", Value::F64(-2.25)),
        ("decimal", Value::Decimal { scale: 2, value: 314 }),
        ("text", text("\u{e4}")),
        ("array", Value::Array(vec![Value::Void, Value::Bool(false), text("x")])),
        ("time", Value::Timestamp(1_700_000_000)),
        ("table", Value::Table(table(&[("inside", Value::I32(1))]))),
        ("void", Value::Void),
        ("bytes", Value::Bytes(vec![0, 255])),
        // Of the default exchange, these would be copies to other queues.
        ("CC", Value::Array(vec![text("small"), text("none")])),
    ];
    Properties {
        content_type: Some("text/plain".into()),
        content_encoding: Some("gzip".into()),
        headers: Some(table(&kinds)),
        delivery_mode: Some(2),
        priority: Some(3),
        correlation_id: Some("c".into()),
        reply_to: Some("r".into()),
        expiration: Some("86400000".into()),
        message_id: Some("m".into()),
        timestamp: Some(77),
        kind: Some("k".into()),
        app_id: Some("a".into()),
        ..Properties::default()
    }
}

/// Declares everything there is, and fills the queues.
fn fill(old: &Broker) {
    old.told(&["add_vhost", "v w/%"]);
    old.told(&["set_permissions", "-p", "v w/%", "guest", ".*", ".*", ".*"]);
    old.told(&["add_user", "mover", PASSWORD]);
    old.told(&["set_user_tags", "mover", "administrator", "impersonator"]);
    for vhost in ["/", "v w/%"] {
        old.told(&["set_permissions", "-p", vhost, "mover", ".*", ".*", ".*"]);
    }
    old.told(&["set_policy", "long", "^small$", r#"{"max-length":1000000}"#]);
    let (mut client, channel) = old.channel();
    let how = ExchangeDeclare { durable: true, ..ExchangeDeclare::default() };
    client.exchange_declare(channel, "orders", "topic", &how).unwrap();
    let how = durable(&[("x-max-priority", Value::U8(5))]);
    client.queue_declare(channel, "by priority", &how).unwrap();
    client.queue_declare(channel, "small", &durable(&[])).unwrap();
    client.queue_declare(channel, "kinds", &durable(&[])).unwrap();
    client.queue_declare(channel, "dead", &durable(&[])).unwrap();
    let to_dead = [("x-dead-letter-exchange", text("orders")), ("x-max-length", Value::I32(1))];
    client.queue_declare(channel, "short", &durable(&to_dead)).unwrap();
    client.queue_bind(channel, "kinds", "orders", "order.#", &Table::default()).unwrap();
    client.queue_bind(channel, "dead", "orders", "short", &Table::default()).unwrap();
    client.queue_bind(channel, "short", "orders", "short", &Table::default()).unwrap();
    let going = QueueDeclare { auto_delete: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "going", &going).unwrap();
    client.confirm_select(channel).unwrap();
    for priority in [1, 5, 3] {
        let properties = Properties { priority: Some(priority), ..persistent() };
        client.publish(channel, "", "by priority", &properties.to_bytes(), &[priority]);
    }
    client.publish(channel, "orders", "order.eu", &all_kinds().to_bytes(), b"");
    let someone = Properties { user_id: Some("guest".into()), ..Properties::default() };
    client.publish(channel, "", "kinds", &someone.to_bytes(), &[7; 1 << 20]);
    // The second makes the first one dead, with a history.
    for body in [b"1", b"2"] {
        client.publish(channel, "", "short", &[0, 0], body);
    }
    for body in 0..250_u32 {
        client.publish(channel, "", "going", &[0, 0], &body.to_be_bytes());
    }
    for body in 0..10_000_u32 {
        client.publish(channel, "", "small", &persistent().to_bytes(), &body.to_be_bytes());
    }
    client.flush().unwrap();
    wait_until(PATIENCE, "all are there", || ready(&mut client, channel, "small") == 10_000);
    let (mut client, channel) = channel_in(old, "v w/%");
    client.queue_declare(channel, "\u{e4} b", &durable(&[])).unwrap();
    client.publish(channel, "", "\u{e4} b", &[0, 0], b"there");
    client.flush().unwrap();
    wait_until(PATIENCE, "it is there", || ready(&mut client, channel, "\u{e4} b") == 1);
}

/// Definitions without what is a node's own.
fn definitions(broker: &Broker) -> Json {
    let mut all: Json = serde_json::from_str(&broker.told(&["export_definitions", "-"])).unwrap();
    all["global_parameters"] = Json::Null;
    all["original_cluster_name"] = Json::Null;
    for list in ["users", "permissions", "bindings"] {
        let entries = all[list].as_array_mut().unwrap();
        entries.sort_by_key(ToString::to_string);
    }
    all
}

#[test]
fn everything_comes_along() {
    let (old, new) = (Broker::start(), Broker::start());
    fill(&old);
    let login = format!("mover:{ENCODED}");
    // Looking changes nothing.
    let (status, told, _) = run(command(&old, &new, &login, &["--dry-run"]));
    assert_eq!(status, 0, "{told}");
    assert!(told.contains("10258 messages ready; nothing was moved"), "{told}");
    assert_eq!(new.told(&["list_queues"]), "");

    let (status, told, errors) = run(command(&old, &new, &login, &[]));
    assert_eq!(status, 0, "{told}\n{errors}");
    assert!(told.contains("7 queues, 10258 messages moved"), "{told}");
    assert_eq!(definitions(&new), definitions(&old));
    assert!(new.told(&["authenticate_user", "mover", PASSWORD]).contains("Success"));

    let (mut client, channel) = new.channel();
    let by_priority = emptied(&mut client, channel, "by priority");
    let bodies: Vec<_> = by_priority.iter().map(|(_, _, body)| body.as_slice()).collect();
    assert_eq!(bodies, [[5], [3], [1]]);
    let properties = Properties { priority: Some(5), ..persistent() };
    assert_eq!(by_priority[0].1, properties.to_bytes());
    let kinds = emptied(&mut client, channel, "kinds");
    assert_eq!(kinds[0], ("order.eu".to_owned(), all_kinds().to_bytes(), Vec::new()));
    let someone = Properties { user_id: Some("guest".into()), ..Properties::default() };
    assert_eq!(kinds[1], ("kinds".to_owned(), someone.to_bytes(), vec![7; 1 << 20]));
    assert_eq!(kinds.len(), 2);
    let small = emptied(&mut client, channel, "small");
    assert_eq!(small.len(), 10_000);
    for (at, (_, properties, body)) in small.iter().enumerate() {
        assert_eq!(
            (properties, body),
            (&persistent().to_bytes(), &(at as u32).to_be_bytes().to_vec())
        );
    }
    assert_eq!(emptied(&mut client, channel, "going").len(), 250);
    let dead = emptied(&mut client, channel, "dead");
    let properties = RawProperties::new(&dead[0].1).to_owned().unwrap();
    let headers = properties.headers.unwrap();
    assert_eq!(headers.get("x-first-death-reason"), Some(&text("maxlen")));
    let Some(Value::Array(deaths)) = headers.get("x-death") else { panic!("{headers:?}") };
    assert_eq!(deaths.len(), 1);
    assert_eq!(dead[0].2, b"1");
    let (mut client, channel) = channel_in(&new, "v w/%");
    assert_eq!(emptied(&mut client, channel, "\u{e4} b")[0].2, b"there");

    // Nothing is there any more, and what was made on the way is gone.
    for line in old.told(&["-s", "list_queues", "messages"]).lines() {
        assert_eq!(line, "0");
    }
    assert!(!new.told(&["list_exchanges"]).contains("leveret.migrate"));
    // One that a run left when it was killed goes with the next, though nothing is left in its queue.
    let (mut client, channel) = new.channel();
    let how = ExchangeDeclare::default();
    client.exchange_declare(channel, "leveret.migrate.small", "fanout", &how).unwrap();
    let (told, _) = migrate(&old, &new, &["--messages-only"], 0);
    assert!(told.contains("7 queues, 0 messages moved"), "{told}");
    assert!(!new.told(&["list_exchanges"]).contains("leveret.migrate"));
}

/// A queue `q` on both nodes, with numbers as messages on the old one; a client of each.
fn numbered(old: &Broker, new: &Broker, count: u32) -> ((Connection, u16), (Connection, u16)) {
    let [mut ours, mut theirs] = [old, new].map(Broker::channel);
    for (client, channel) in [&mut ours, &mut theirs] {
        client.queue_declare(*channel, "q", &durable(&[])).unwrap();
    }
    let (client, channel) = (&mut ours.0, ours.1);
    for body in 0..count {
        client.publish(channel, "", "q", &persistent().to_bytes(), &body.to_be_bytes());
    }
    client.flush().unwrap();
    wait_until(PATIENCE, "all are there", || ready(client, channel, "q") == count);
    (ours, theirs)
}

/// What a quorum queue adds to a message that it delivers again does not become the message's own.
#[test]
fn delivery_counts_stay_behind() {
    let (old, new) = (Broker::start(), Broker::start());
    let (mut client, channel) = old.channel();
    let quorum = durable(&[("x-queue-type", text("quorum"))]);
    client.queue_declare(channel, "q", &quorum).unwrap();
    let headed = |name: &str, value: i64| {
        let mut headers = Table::default();
        headers.push(name, Value::I64(value));
        Properties { headers: Some(headers), ..persistent() }
    };
    for properties in [persistent(), headed("mine", 7), headed("x-delivery-count", 5)] {
        client.publish(channel, "", "q", &properties.to_bytes(), b"");
    }
    client.flush().unwrap();
    wait_until(PATIENCE, "all are there", || ready(&mut client, channel, "q") == 3);
    let got = [(); 2].map(|()| client.get(channel, "q", false).unwrap().unwrap());
    got.iter().for_each(|got| client.nack(channel, got.delivery_tag, false, true));
    client.flush().unwrap();
    wait_until(PATIENCE, "they came back", || ready(&mut client, channel, "q") == 3);

    migrate(&old, &new, &[], 0);
    let (mut client, channel) = new.channel();
    let moved = emptied(&mut client, channel, "q");
    let mut found: Vec<_> = moved.into_iter().map(|(_, properties, _)| properties).collect();
    // The third was never delivered before: what it has is its publisher's.
    let mut expected =
        [persistent(), headed("mine", 7), headed("x-delivery-count", 5)].map(|it| it.to_bytes());
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

/// Killed in the middle, and run again: everything is there, at most a window of it twice, and in order.
#[test]
fn a_kill_loses_nothing() {
    const COUNT: u32 = 5000;
    const WINDOW: usize = 50;
    let (old, new) = (Broker::start(), Broker::start());
    let ((mut client, channel), (mut there, channel_there)) = numbered(&old, &new, COUNT);

    let window = WINDOW.to_string();
    let words = ["--messages-only", "--prefetch", &window];
    let mut kills = 0;
    for part in 1..4 {
        let mut child = command(&old, &new, "guest:guest", &words)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until(PATIENCE, "some were moved", || {
            ready(&mut there, channel_there, "q") >= part * COUNT / 8
        });
        child.kill().unwrap();
        let by_itself = child.wait().unwrap().success();
        kills += usize::from(!by_itself);
    }
    assert!(kills > 0, "it was always faster than its end");
    migrate(&old, &new, &words, 0);
    assert_eq!(ready(&mut client, channel, "q"), 0);

    let moved = emptied(&mut there, channel_there, "q");
    let mut copies = BTreeMap::new();
    let mut order = Vec::new();
    for (_, _, body) in &moved {
        let number = u32::from_be_bytes(body.as_slice().try_into().unwrap());
        let count: &mut usize = copies.entry(number).or_default();
        *count += 1;
        if *count == 1 {
            order.push(number);
        }
    }
    assert_eq!(order, (0..COUNT).collect::<Vec<_>>());
    assert!(moved.len() - COUNT as usize <= kills * WINDOW, "{} of {COUNT}", moved.len());
}

/// What cannot be moved is told with its reason, stays where it is, and makes the status 75.
#[test]
fn what_is_left_is_told() {
    let (old, new) = (Broker::start(), Broker::start());
    let (mut client, channel) = old.channel();
    for queue in ["absent", "fine", "full", "held"] {
        declare(&mut client, channel, queue);
        for body in [b"1", b"2", b"3"] {
            client.publish(channel, "", queue, &[0, 0], body);
        }
    }
    let single = durable(&[("x-single-active-consumer", Value::Bool(true))]);
    client.queue_declare(channel, "single", &single).unwrap();
    for body in [b"1", b"2", b"3"] {
        client.publish(channel, "", "single", &[0, 0], body);
    }
    client.flush().unwrap();
    wait_until(PATIENCE, "all are there", || ready(&mut client, channel, "single") == 3);
    let own = QueueDeclare { exclusive: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "own", &own).unwrap();
    client.publish(channel, "", "own", &[0, 0], b"x");
    client.qos(channel, 2, false).unwrap();
    for queue in ["held", "single"] {
        client.consume(channel, queue, &Consume::default()).unwrap();
    }
    let (mut there, channel_there) = new.channel();
    for queue in ["fine", "held", "single"] {
        declare(&mut there, channel_there, queue);
    }
    let full = [("x-max-length", Value::I32(1)), ("x-overflow", text("reject-publish"))];
    there.queue_declare(channel_there, "full", &durable(&full)).unwrap();

    let (told, errors) = migrate(&old, &new, &["--messages-only"], 75);
    let line = |queue: &str| {
        let found = told.lines().find(|line| line.starts_with(&format!("/      {queue} ")));
        found.unwrap_or_else(|| panic!("{queue}: {told}")).to_owned()
    };
    let counts = |queue: &str| -> Vec<u64> {
        line(queue).split_whitespace().skip(2).take(3).map(|count| count.parse().unwrap()).collect()
    };
    assert_eq!(counts("absent"), [0, 3, 0]);
    assert!(line("absent").contains("no queue 'absent' in vhost '/': declare it there"), "{told}");
    assert_eq!(counts("fine"), [3, 0, 0]);
    assert_eq!(counts("full"), [1, 2, 0]);
    assert!(line("full").contains("it is full (max-length with reject-publish)"), "{told}");
    assert_eq!(counts("held"), [1, 0, 2]);
    assert!(line("held").contains("2 are with consumers that have not acked them"), "{told}");
    assert_eq!(counts("single"), [0, 1, 2]);
    assert!(line("single").contains("1 messages ready and does not deliver them"), "{told}");
    assert!(line("own").contains("it belongs to one connection"), "{told}");
    assert!(
        errors.contains("Error: not everything was moved: see the lines of 4 queues"),
        "{errors}"
    );
    assert_eq!(ready(&mut client, channel, "absent"), 3);
    assert_eq!(ready(&mut client, channel, "full"), 2);
    assert!(!new.told(&["list_exchanges"]).contains("leveret.migrate"));

    // With the reasons gone, the rest comes.
    drop(client);
    for queue in ["absent", "full"] {
        if queue == "full" {
            there.queue_delete(channel_there, queue).unwrap();
        }
        declare(&mut there, channel_there, queue);
    }
    let (mut client, channel) = old.channel();
    wait_until(PATIENCE, "what was held is back", || ready(&mut client, channel, "held") == 2);
    let (told, _) = migrate(&old, &new, &["--messages-only", "--queue", "^(absent|full)$"], 0);
    assert!(told.contains("2 queues, 5 messages moved"), "{told}");
    migrate(&old, &new, &["--messages-only"], 0);
    assert_eq!(ready(&mut there, channel_there, "held"), 3);
    // The queue was made anew when the first one had come.
    assert_eq!(ready(&mut there, channel_there, "full"), 2);
}

/// Whatever keeps it from beginning is told in words, and nothing is moved.
#[test]
fn what_keeps_it_from_beginning_is_told() {
    let (old, new) = (Broker::start(), Broker::start());
    old.told(&["add_vhost", "none"]);
    old.told(&["set_permissions", "-p", "none", "guest", ".*", ".*", ".*"]);
    old.told(&["add_user", "mover", PASSWORD]);
    let (mut client, channel) = old.channel();
    declare(&mut client, channel, "q");
    client.publish(channel, "", "q", &[0, 0], b"1");
    client.flush().unwrap();
    wait_until(PATIENCE, "it is there", || ready(&mut client, channel, "q") == 1);
    let check = |login: &str, words: &[&str], want: i32, part: &str| {
        let (status, told, errors) = run(command(&old, &new, login, words));
        assert_eq!(status, want, "{words:?}: {told} {errors}");
        assert!(errors.contains(part) || told.contains(part), "{words:?}: {told} {errors}");
    };
    check("guest:wrong", &[], 77, "the old broker (--from-api): ");
    check(&format!("mover:{ENCODED}"), &[], 77, "It takes a user with the tag administrator");
    check("guest:guest", &["--vhost", "nowhere"], 65, "no virtual host 'nowhere'");
    let nowhere = ["--messages-only", "--vhost", "nowhere"];
    check("guest:guest", &nowhere, 65, "no virtual host 'nowhere'");
    check("guest:guest", &["--queue", "("], 64, "--queue (");
    check("guest:guest", &["--to", "amqp://h"], 64, "name its API with --to-api");
    check("guest:guest", &["--to", "amqp://h/v", "--messages-only"], 64, "--vhost v");
    check(
        "guest:guest",
        &["--to-api", "http://127.0.0.1:1"],
        69,
        "the new broker (--to-api): cannot reach the node by the management API at 127.0.0.1:1: ",
    );
    let nobody = ["--messages-only", "--to", "amqp://127.0.0.1:1"];
    check("guest:guest", &nobody, 69, "the new broker (--to): connecting to 127.0.0.1:1");
    let same = format!("amqp://guest:guest@{}", old.address);
    check("guest:guest", &["--messages-only", "--to", &same], 64, "are the same broker");
    let mut elsewhere = format!("amqp://mover:{ENCODED}@{}", new.address);
    check(
        "guest:guest",
        &["--messages-only", "--to", &elsewhere],
        77,
        "refuses the login of user 'mover'",
    );
    elsewhere = elsewhere.replace("amqp://mover:p%40", "amqp://mover:p%4");
    check(
        "guest:guest",
        &["--messages-only", "--to", &elsewhere],
        64,
        "percent-encoding in 'the password'",
    );
    // Of a wrong login nothing is begun, definitions neither.
    let mut wrong = leveret(&["migrate", "--from-api"]);
    wrong.arg(format!("http://guest:guest@{}", old.listens("http")));
    wrong.args(["--from", &format!("amqp://mover:wrong@{}", old.address)]);
    wrong.env("LEVERET_DATA_DIR", new.dir.path());
    let (status, told, errors) = run(wrong);
    assert_eq!(status, 77, "{told} {errors}");
    assert!(errors.contains("(--from) refuses the login of user 'mover'"), "{errors}");
    assert!(!errors.contains("..") && told.is_empty(), "{told} {errors}");
    assert_eq!(new.told(&["list_vhosts"]).trim_end(), "name\n/");
    assert_eq!(ready(&mut client, channel, "q"), 1);
    // No queue has such a name: maybe they have gone.
    check(
        "guest:guest",
        &["--dry-run", "--queue", "^r$"],
        0,
        "note: no queue matches --queue ^r$\n",
    );

    // Who may not read a vhost moves the others.
    let (mut other, channel_of_other) = channel_in(&old, "none");
    declare(&mut other, channel_of_other, "hidden");
    old.told(&["clear_permissions", "-p", "none", "guest"]);
    let (told, _) = migrate(&old, &new, &[], 75);
    assert!(told.contains("2 queues, 1 messages moved"), "{told}");
    assert!(told.contains("refused for user 'guest': give its user permission"), "{told}");

    // The vhost is not there: permissions would not help.
    old.told(&["set_permissions", "-p", "none", "guest", ".*", ".*", ".*"]);
    new.told(&["delete_vhost", "none"]);
    let (told, _) = migrate(&old, &new, &["--messages-only"], 75);
    let hint = "vhost none not found: leave out --messages-only, or add it there";
    assert!(told.contains(hint), "{told}");
}

/// An old broker's API that answers with these queues, for what is said of them.
fn told_of(old: &Broker, new: &Broker, queues: &str, words: &[&str]) -> (i32, String) {
    let queues = queues.to_owned();
    let web = Web::start(None, move |_| (200, queues.clone()));
    let mut command = leveret(&["migrate", "--messages-only"]);
    command.args(["--from-api", &format!("http://guest:guest@{}", web.address)]);
    command.args(["--from", &format!("amqp://guest:guest@{}", old.address)]);
    command.args(words).env("LEVERET_DATA_DIR", new.dir.path());
    let (status, told, errors) = run(command);
    (status, told + &errors)
}

/// What is no list of queues is not "no queues", and a queue that the broker cannot get at is not empty: nobody is told
/// that all was moved.
#[test]
fn an_old_broker_that_does_not_know_is_not_empty() {
    let (old, new) = (Broker::start(), Broker::start());
    let (mut client, channel) = old.channel();
    declare(&mut client, channel, "q");
    let check = |queues: &str, words: &[&str], want: i32, part: &str| {
        let (status, told) = told_of(&old, &new, queues, words);
        assert_eq!(status, want, "{queues}: {told}");
        assert!(told.contains(part), "{queues}: {told}");
        assert!(want == 0 || !told.contains("0 messages moved\n") || want == 75, "{told}");
    };
    for no_list in ["", "null", "{}", r#"{"items":[]}"#] {
        check(no_list, &[], 65, "the old broker (--from-api): its answer is no list.");
    }
    check("<html>", &[], 70, "the node's answer is not understood");
    check(r#"[{"name":"q"}]"#, &[], 65, "it lists a queue without a name");
    let queue = |rest: &str| format!(r#"[{{"vhost":"/","name":"q","type":"quorum",{rest}}}]"#);
    let state = "its state is 'minority': start the nodes that have it";
    check(&queue(r#""state":"minority""#), &[], 75, state);
    check(
        &queue(r#""state":"running","messages_ready":7"#),
        &[],
        75,
        "over AMQP the queue has none",
    );
    check(&queue(r#""state":"running","messages_ready":0"#), &[], 0, "1 queues, 0 messages moved");
    let long = format!(r#"[{{"vhost":"/","name":"{}"}}]"#, "a".repeat(60));
    check(&long, &["--queue", r"^(.|.)+\1!$"], 64, "--queue ^(.|.)+");
}

/// What happens while messages are on their way is told, and what was not moved is there for the next run.
#[test]
fn a_broker_that_goes_is_told() {
    let (old, new) = (Broker::start(), Broker::start());
    let ((mut client, channel), there) = numbered(&old, &new, 5000);
    let child = slowly(&old, &new);
    let (mut there, channel_there) = there;
    wait_until(PATIENCE, "some were moved", || ready(&mut there, channel_there, "q") > 100);
    drop(there);
    let down = new.kill();
    let told = left(child);
    assert!(told.contains("the new broker: ") && told.contains("; run it again"), "{told}");
    let new = down.start_again();
    migrate(&old, &new, &["--messages-only"], 0);
    let (mut there, channel_there) = new.channel();
    assert!(ready(&mut there, channel_there, "q") >= 5000);
    assert_eq!(ready(&mut client, channel, "q"), 0);
}

/// Messages that nobody takes any more come back, and stay where they were.
#[test]
fn a_queue_that_goes_is_told() {
    let (old, new) = (Broker::start(), Broker::start());
    let ((mut client, channel), (mut there, channel_there)) = numbered(&old, &new, 5000);
    let child = slowly(&old, &new);
    wait_until(PATIENCE, "some were moved", || ready(&mut there, channel_there, "q") > 100);
    let gone = there.queue_delete(channel_there, "q").unwrap();
    let told = left(child);
    assert!(told.contains("the new broker returned a message (NO_ROUTE)"), "{told}");
    let stays = ready(&mut client, channel, "q");
    // What was on its way to the queue when that was deleted went with it, and is confirmed like what was in it.
    assert!(gone + stays >= 5000 - SLOWLY, "{gone} were moved, {stays} stay");
    assert!(told.contains(&format!("  {stays}  ")), "{told}");
    assert!(!new.told(&["list_exchanges"]).contains("leveret.migrate"));
}

/// How many messages [`slowly`] moves at once.
const SLOWLY: u32 = 10;

/// A run of few messages at once.
fn slowly(old: &Broker, new: &Broker) -> Child {
    let few = SLOWLY.to_string();
    let mut command = command(old, new, "guest:guest", &["--messages-only", "--prefetch", &few]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// What is printed by a run that leaves something.
#[track_caller]
fn left(child: Child) -> String {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let told = String::from_utf8(stdout).unwrap();
    assert_eq!(status.code(), Some(75), "{told} {}", String::from_utf8_lossy(&stderr));
    told
}

/// An import changes nothing that is there: messages that were durable may come to a queue that is not, and that is told.
#[test]
fn what_is_there_already_is_told() {
    let (old, new) = (Broker::start(), Broker::start());
    numbered(&old, &new, 1);
    let (mut client, channel) = new.channel();
    client.queue_delete(channel, "q").unwrap();
    client.queue_declare(channel, "q", &QueueDeclare::default()).unwrap();
    let note = "note: queue 'q' in vhost '/' is there already, and stays as it is: durable false, not true\n";
    for words in [&["--dry-run"][..], &[]] {
        let (_, errors) = migrate(&old, &new, words, 0);
        assert!(errors.contains(note), "{errors}");
    }
    client.queue_delete(channel, "q").unwrap();
    for _ in 0..2 {
        let (_, errors) = migrate(&old, &new, &["--definitions-only"], 0);
        assert!(!errors.contains("note: "), "{errors}");
    }
}

/// A queue that drops what does not fit confirms all the same.
#[test]
fn what_the_new_queue_would_drop_stays() {
    let (old, new) = (Broker::start(), Broker::start());
    let ((mut client, channel), (mut there, to)) = numbered(&old, &new, 50);
    let mut counts = || (ready(&mut client, channel, "q"), ready(&mut there, to, "q"));
    // An API without statistics: what the queues say counts.
    let unknown = r#"[{"vhost":"/","name":"q","type":"classic","state":"running"}]"#;
    new.told(&["set_policy", "short", "^q$", r#"{"max-length":40}"#]);
    let (told, errors) = migrate(&old, &new, &[], 75);
    assert!(told.contains("room for 40 messages"), "{told}{errors}");
    let (told, _) = migrate(&old, &new, &["--dry-run"], 0);
    assert!(told.contains("room for 40 messages"), "{told}");
    let (status, told) = told_of(&old, &new, unknown, &[]);
    assert_eq!(status, 75, "{told}");
    assert!(told.contains("room for 40 messages"), "{told}");
    let to_uri = format!("amqp://guest:guest@{}", new.address);
    let api = format!("http://guest:guest@{}", new.listens("http"));
    let words = ["--messages-only", "--to", &to_uri, "--to-api", &api];
    let (told, errors) = migrate(&old, &new, &words, 75);
    assert!(told.contains("room for 40 messages"), "{told}{errors}");
    assert_eq!(counts(), (50, 0));

    new.told(&["set_policy", "short", "^q$", r#"{"max-length-bytes":160}"#]);
    wait_until(PATIENCE, "the old API has counted", || {
        migrate(&old, &new, &[], 75).0.contains("room for 160 bytes")
    });
    assert_eq!(counts(), (50, 0));
    // Bytes are not told over AMQP: those that fit are moved.
    let (status, told) = told_of(&old, &new, unknown, &[]);
    assert_eq!(status, 75, "{told}");
    assert!(told.contains("room for 0 bytes"), "{told}");
    assert_eq!(counts(), (10, 40));

    // Nobody is asked what the limits are, and that is told.
    new.told(&["set_policy", "short", "^q$", r#"{"max-length":45}"#]);
    let (told, errors) = migrate(&old, &new, &words[..3], 0);
    assert!(errors.contains("note: without --to-api "), "{told}{errors}");
    assert!(told.contains("5 of the moved messages are not in the new queue"), "{told}{errors}");
    assert!(told.contains("or a limit of the queue dropped them"), "{told}{errors}");
    assert_eq!(counts(), (0, 45));
}

/// What expires on the new broker is moved all the same, with a limit or without, and is told.
#[test]
fn what_expires_there_is_moved() {
    for policy in [r#"{"message-ttl":1}"#, r#"{"message-ttl":1,"max-length":3000}"#] {
        let (old, new) = (Broker::start(), Broker::start());
        let ((mut client, channel), _there) = numbered(&old, &new, 3000);
        new.told(&["set_policy", "brief", "^q$", policy]);
        let (told, errors) = migrate(&old, &new, &["--messages-only"], 0);
        assert!(told.contains("1 queues, 3000 messages moved"), "{told}{errors}");
        assert!(told.contains("of the moved messages are not in the new queue"), "{told}{errors}");
        assert!(!told.contains("dropped"), "{told}{errors}");
        assert_eq!(ready(&mut client, channel, "q"), 0);
    }
}

/// Passes on what a broker and its clients say, but for the tags of deliveries. Its address.
fn with_other_tags(broker: &Broker) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let (address, broker) = (listener.local_addr().unwrap(), broker.address);
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let there = TcpStream::connect(broker).unwrap();
            let (mut asks, mut asked) = (client.try_clone().unwrap(), there.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut asks, &mut asked);
                let _ = asked.shutdown(std::net::Shutdown::Both);
            });
            std::thread::spawn(move || while pass_frame(&there, &client).is_ok() {});
        }
    });
    address
}

/// One frame; the tag of a `basic.deliver` (60, 60) is behind the consumer's.
fn pass_frame(mut from: &TcpStream, mut to: &TcpStream) -> std::io::Result<()> {
    let mut frame = vec![0; 7];
    from.read_exact(&mut frame)?;
    let length = u32::from_be_bytes(frame[3..7].try_into().unwrap()) as usize;
    frame.resize(7 + length + 1, 0);
    from.read_exact(&mut frame[7..])?;
    if frame[0] == 1 && frame[7..11] == [0, 60, 0, 60] {
        let tag = 12 + usize::from(frame[11]);
        frame[tag] = 1;
    }
    to.write_all(&frame)
}

/// What was stored is acked by the number of its delivery: with other numbers, something else would be.
#[test]
fn a_broker_that_numbers_otherwise_is_not_believed() {
    let (old, new) = (Broker::start(), Broker::start());
    for broker in [&old, &new] {
        let (mut client, channel) = broker.channel();
        client.queue_declare(channel, "q", &durable(&[])).unwrap();
    }
    let (mut client, channel) = old.channel();
    client.publish(channel, "", "q", &persistent().to_bytes(), b"x");
    client.flush().unwrap();
    wait_until(PATIENCE, "it is there", || ready(&mut client, channel, "q") == 1);
    let mut command = leveret(&["migrate", "--messages-only"]);
    command.args(["--from-api", &format!("http://guest:guest@{}", old.listens("http"))]);
    command.args(["--from", &format!("amqp://guest:guest@{}", with_other_tags(&old))]);
    command.env("LEVERET_DATA_DIR", new.dir.path());
    let (status, told, errors) = run(command);
    assert_eq!(status, 75, "{told}{errors}");
    assert!(told.contains("gives delivery 1 the tag 72057594037927937"), "{told}{errors}");
    assert_eq!(ready(&mut client, channel, "q"), 1);
}
