//! Logins: hashes of passwords, what is slowed down, what is told and what is not.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use base64::Engine as _;
use leveret_client::amqp::method::connection;
use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, Error, Options, Uri};
use rustix::process::Signal;

use crate::auth::api;
use crate::auth::web::Web;
use crate::broker::{Broker, PATIENCE, wait_until};
use crate::raw::{Raw, hello, hello_as};

fn login(broker: &Broker, user: &str, password: &str) -> Result<Connection, Error> {
    let uri = Uri { user: user.into(), password: password.into(), ..broker.uri() };
    Connection::open(&uri, &Options { heartbeat_s: Some(0), ..Options::default() })
}

fn refused(broker: &Broker, user: &str, password: &str) -> String {
    login(broker, user, password).unwrap_err().to_string()
}

#[test]
fn argon2id_is_checked_beside_the_turns() {
    let settings = ["password_hashing_module=leveret_password_hashing_argon2id", "threads=1"];
    let broker = Broker::with(&settings);
    let mut there = broker.connect();
    broker.told(&["add_user", "u", "one"]);
    broker.told(&["set_permissions", "u", ".*", ".*", ".*"]);
    let definitions = broker.told(&["export_definitions", "-"]);
    assert_eq!(definitions.matches("$argon2id$").count(), 2, "{definitions}");
    for wrong in [("u", "two"), ("nobody", "one"), ("guest", "")] {
        let error = refused(&broker, wrong.0, wrong.1);
        assert!(error.contains("ACCESS_REFUSED"), "{error}");
    }
    // The second time it is remembered, and a changed password is not.
    login(&broker, "u", "one").unwrap().close().unwrap();
    login(&broker, "u", "one").unwrap().close().unwrap();
    broker.told(&["change_password", "u", "three"]);
    assert!(login(&broker, "u", "one").is_err());
    login(&broker, "u", "three").unwrap().close().unwrap();
    broker.told(&["authenticate_user", "u", "three"]);
    // Who is there goes on.
    there.open_channel().unwrap();
    let broker = broker.stop().start_again();
    login(&broker, "u", "three").unwrap().close().unwrap();
    broker.assert_quiet();
}

/// Slow hashes take turns by user where other sources are asked, too.
#[test]
fn argon2id_beside_another_source() {
    let (broker, _service) = with_slow_hashes_and_a_service();
    broker.told(&["add_user", "u", "one"]);
    broker.told(&["set_permissions", "u", ".*", ".*", ".*"]);
    let crowd = crowd(&broker, MANY);
    let before = refused_logins(&broker);
    login(&broker, "u", "one").unwrap().close().unwrap();
    let meanwhile = refused_logins(&broker) - before;
    assert!(meanwhile < few(), "it waited for {meanwhile} of {}", crowd.len());
}

/// Whoever has left costs no hash, though other sources would be asked after it.
#[test]
fn who_has_left_is_not_checked_beside_another_source() {
    let (broker, service) = with_slow_hashes_and_a_service();
    let crowd = crowd(&broker, MANY);
    let before = refused_logins(&broker);
    drop(crowd);
    // It is behind all of them.
    refused(&broker, "nobody", "nobody");
    let looked_at = refused_logins(&broker);
    let late = looked_at - before;
    assert!(late < few(), "{late} were looked at after they had left");
    let asked = service.seen("/user").len();
    assert!(asked <= looked_at + 1, "{asked} were asked about");
}

/// Logins that wait for a slow hash, many more than [`few`].
const MANY: usize = 200;

/// What the threads that hash may look at while something is done that takes hardly any time: some rounds of what they have in
/// hand.
fn few() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    10 * cores.div_ceil(2)
}

/// Refused logins take a quarter of a second of a thread from now on: a refusal costs what the slowest hash costs.
fn slow_down_refusals(broker: &Broker) {
    slow_down_refusals_by(broker, 16);
}

/// And so many 64ths of a second.
fn slow_down_refusals_by(broker: &Broker, passes: u32) {
    let hash =
        format!("$argon2id$v=19$m=16384,t={passes},p=1$c2FsdHNhbHRzYWx0c2FsdA${}", "A".repeat(43));
    broker.told(&["add_user", "--pre-hashed-password", "slow", &hash]);
}

/// Slow hashes, and a second source that knows nobody.
fn with_slow_hashes_and_a_service() -> (Broker, Web) {
    let service = Web::start(None, |_| (200, "deny".to_owned()));
    let broker = Broker::with(&[
        "password_hashing_module=leveret_password_hashing_argon2id",
        "login_throttle.threshold=0",
        "auth_backends.1=internal",
        "auth_backends.2=http",
        &format!("auth_http.user_path=http://{}/user", service.address),
    ]);
    slow_down_refusals(&broker);
    (broker, service)
}

/// So many that wait for a slow hash; the first one has been looked at.
fn crowd(broker: &Broker, count: usize) -> Vec<Raw> {
    let steps = hello_as(0, "nobody");
    let come = |_| {
        let mut raw = Raw::connect(broker);
        steps.iter().take(2).for_each(|step| raw.send(step));
        raw
    };
    let crowd = (0..count).map(come).collect();
    wait_until(PATIENCE, "the first one is looked at", || refused_logins(broker) > 0);
    crowd
}

fn refused_logins(broker: &Broker) -> usize {
    broker.log.with("login refused").len()
}

/// Logins that wait for a slow hash do not hold up the end: requests are told that the node stops.
#[test]
fn a_stop_drops_logins_that_wait() {
    let mut broker = Broker::with(&[
        "password_hashing_module=leveret_password_hashing_argon2id",
        "login_throttle.threshold=0",
    ]);
    // One that is under way has two seconds at a stop, on a machine that does much else.
    slow_down_refusals_by(&broker, 4);
    let requests: Vec<_> = (0..400).map(|_| ask(&broker, "u")).collect();
    let crowd = crowd(&broker, MANY);
    broker.signal(Signal::TERM);
    assert_told_of_the_stop(&mut broker, requests);
    drop(crowd);
}

/// Nor do those that wait because of refused ones before them, where other sources are asked.
#[test]
fn a_stop_drops_logins_that_are_delayed() {
    let service = Web::start(None, |_| (200, "deny".to_owned()));
    let mut broker = Broker::with(&[
        "login_throttle.threshold=1",
        "login_throttle.delay_max=60000",
        "auth_backends.1=internal",
        "auth_backends.2=http",
        &format!("auth_http.user_path=http://{}/user", service.address),
    ]);
    // The delay of the next one is 16 s then.
    let refused: Vec<_> = (0..12).map(|_| ask(&broker, "u")).collect();
    wait_until(PATIENCE, "eight are refused", || refused_logins(&broker) >= 8);
    let requests: Vec<_> = (0..50).map(|_| ask(&broker, "u")).collect();
    // Who came before it has been heard.
    assert_eq!(api(&broker, "/api/whoami", "nothing").0, 401);
    broker.signal(Signal::TERM);
    assert_told_of_the_stop(&mut broker, requests);
    drop(refused);
}

/// A request of nobody with this password.
fn ask(broker: &Broker, password: &str) -> TcpStream {
    let pair = format!("nobody:{password}");
    let pair = base64::engine::general_purpose::STANDARD.encode(pair);
    let mut socket = TcpStream::connect(broker.listens("http")).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let head = "GET /api/whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    write!(socket, "{head}Authorization: Basic {pair}\r\n\r\n").unwrap();
    socket
}

/// The end of a broker with requests that wait for their logins: those that were not looked at are told why.
#[track_caller]
fn assert_told_of_the_stop(broker: &mut Broker, requests: Vec<TcpStream>) {
    assert!(broker.ended(PATIENCE).success());
    assert_eq!(broker.log.with("were cut off"), Vec::<String>::new());
    let answers = requests.into_iter().map(|mut socket| {
        let mut answer = String::new();
        socket.read_to_string(&mut answer).map(|_| answer)
    });
    // Those that it had not accepted have no answer.
    let answers: Vec<_> = answers.filter_map(Result::ok).filter(|it| !it.is_empty()).collect();
    let told = |text: &str| answers.iter().filter(|it| it.contains(text)).count();
    let (stopping, refused) = (told("503 Service Unavailable"), told("401 Unauthorized"));
    assert_eq!((stopping + refused, told("the node is stopping")), (answers.len(), stopping));
    assert!(stopping > 0, "{refused} were refused");
}

/// Where there is no room for more logins that wait, requests are told to come again: nobody looked at their passwords.
#[test]
fn a_request_without_room_to_wait_is_told_to_come_again() {
    let broker = Broker::with(&[
        "password_hashing_module=leveret_password_hashing_argon2id",
        "login_throttle.threshold=0",
    ]);
    slow_down_refusals(&broker);
    // An address has 4 MiB.
    let password = "p".repeat(20_000);
    let requests: Vec<_> = (0..400).map(|_| ask(&broker, &password)).collect();
    broker.log.wait_for("too many logins wait for an answer");
    let told = broker.log.with("too many logins wait for an answer");
    assert!(told[0].contains("protocol=\"http\""), "{told:?}");
    let mut is_told = false;
    wait_until(PATIENCE, "one is told", || {
        for socket in &requests {
            socket.set_nonblocking(true).unwrap();
            let mut answer = vec![0; 4096];
            let Ok(len) = (&mut &*socket).read(&mut answer) else { continue };
            let answer = String::from_utf8_lossy(&answer[..len]).to_lowercase();
            if answer.starts_with("http/1.1 503") {
                assert!(answer.contains("retry-after: 5\r\n"), "{answer}");
                assert!(answer.contains("too many logins wait for an answer"), "{answer}");
                is_told = true;
            }
        }
        is_told
    });
}

/// Who has connected and shown no login has no claim to a place, where others come.
#[test]
fn one_address_does_not_take_all_places() {
    let broker = Broker::with(&["connection_max=12"]);
    let own = broker.connect();
    let mut crowd: Vec<_> = (0..11).map(|_| Raw::connect(&broker)).collect();
    // All have a place: each is answered.
    crowd.iter_mut().for_each(|raw| drop(raw.server_properties()));
    let mut one_more = Raw::connect(&broker);
    assert_eq!(one_more.bytes(), b"", "of the same address");
    broker.log.wait_for("connection_max is reached");
    let come = |_| {
        let mut raw = Raw::connect_from(&broker, [127, 0, 0, 2]);
        hello(0).iter().for_each(|step| raw.send(step));
        raw.expect("channel.open-ok");
        raw
    };
    let others: Vec<_> = (0..6).map(come).collect();
    broker.log.wait_for("others need its place");
    let lost = crowd.drain(..6).map(|raw| raw.until_closed());
    assert_eq!(lost.count(), 6);
    drop((own, others, crowd));
}

#[test]
fn a_client_that_leaves_while_it_is_checked() {
    let broker = Broker::with(&["password_hashing_module=leveret_password_hashing_argon2id"]);
    for step in [2, 5] {
        let mut raw = Raw::connect(&broker);
        for bytes in hello(0).iter().take(step) {
            raw.send(bytes);
        }
    }
    broker.connect().close().unwrap();
}

#[test]
fn too_many_refused_logins_slow_the_next_ones() {
    let broker = Broker::with(&["login_throttle.threshold=3", "login_throttle.delay_max=600"]);
    for _ in 0..4 {
        refused(&broker, "guest", "wrong");
    }
    let began = Instant::now();
    login(&broker, "guest", "guest").unwrap().close().unwrap();
    assert!(began.elapsed() >= Duration::from_millis(240), "{:?}", began.elapsed());
    for _ in 0..3 {
        refused(&broker, "guest", "wrong");
    }
    let began = Instant::now();
    login(&broker, "guest", "guest").unwrap().close().unwrap();
    assert!(began.elapsed() >= Duration::from_millis(590), "{:?}", began.elapsed());
    // The control socket is nobody's address.
    broker.told(&["authenticate_user", "guest", "guest"]);
}

/// AMQP and the HTTP API count together, and both are in the audit log.
#[test]
fn refused_requests_count_as_logins() {
    let broker = Broker::with(&["login_throttle.threshold=3", "login_throttle.delay_max=600"]);
    broker.told(&["add_user", "plain", "s3cret-plain"]);
    let whoami = |pair: &str| {
        let pair = base64::engine::general_purpose::STANDARD.encode(pair);
        api(&broker, "/api/whoami", &format!("Basic {pair}")).0
    };
    assert_eq!(whoami("plain:s3cret-plain"), 401, "it has no tag");
    let told = broker.log.wait_for("audit: HTTP access denied");
    assert!(told.contains("user=\"plain\"") && told.contains("Not management user"), "{told}");
    assert!(told.contains("peer=\"127.0.0.1:"), "{told}");
    for _ in 0..4 {
        assert_eq!(whoami("guest:s3cret-wrong"), 401);
    }
    let told = broker.log.wait_for("audit: login refused");
    assert!(told.contains("protocol=\"http\"") && told.contains("mechanism=\"Basic\""), "{told}");
    let began = Instant::now();
    login(&broker, "guest", "guest").unwrap().close().unwrap();
    assert!(began.elapsed() >= Duration::from_millis(240), "{:?}", began.elapsed());
    assert_eq!(broker.log.with("s3cret"), Vec::<String>::new());
}

#[test]
fn every_attempt_is_told() {
    let broker = Broker::start();
    let login_of_app = |user: &str| {
        let uri = Uri { user: user.into(), ..broker.uri() };
        let options = Options { name: Some("a\npp".to_owned()), ..Options::default() };
        Connection::open(&uri, &options)
    };
    login_of_app("guest").unwrap().close().unwrap();
    let told = broker.log.wait_for("audit: login accepted");
    for part in ["peer=\"127.0.0.1:", "user=\"guest\"", "mechanism=\"PLAIN\"", "amqp091"] {
        assert!(told.contains(part), "{told}");
    }
    let connection = format!(" -> {} - a\\npp\"", broker.address);
    assert!(told.contains("connection=\"127.0.0.1:") && told.contains(&connection), "{told}");
    login_of_app("x\ny").unwrap_err();
    let told = broker.log.wait_for("audit: login refused");
    assert!(told.contains("connection=\"127.0.0.1:") && told.contains(&connection), "{told}");
    // What a client sends does not begin a line of its own.
    assert!(told.contains("user=\"x\\ny\"") && told.contains("invalid credentials"), "{told}");
    let quiet = Broker::with(&["log.audit.level=none"]);
    login(&quiet, "guest", "guest").unwrap().close().unwrap();
    assert_eq!(quiet.log.with("audit:"), Vec::<String>::new());
}

/// With everything logged there is, no password is.
#[test]
fn passwords_are_nowhere() {
    let settings = ["log.level=debug", "log.console.level=debug", "default_pass=s3cret-default"];
    let broker = Broker::with(&settings);
    login(&broker, "guest", "s3cret-default").unwrap().close().unwrap();
    refused(&broker, "guest", "s3cret-wrong");
    broker.told(&["add_user", "u", "s3cret-ctl"]);
    broker.told(&["change_password", "u", "s3cret-changed"]);
    broker.told(&["authenticate_user", "u", "s3cret-changed"]);
    broker.ctl(&["authenticate_user", "u", "s3cret-not-u"]);
    // The other mechanism, and responses that make no sense.
    let mut table = Table::default();
    table.set("LOGIN", Value::LongStr(b"u".to_vec()));
    table.set("PASSWORD", Value::LongStr(b"s3cret-table".to_vec()));
    let (table, properties) = (table.to_bytes(), Table::default().to_bytes());
    // A table in a response has no length before it.
    let amqplain = &table[4..];
    let responses: [(&str, &[u8]); 4] = [
        ("AMQPLAIN", amqplain),
        ("AMQPLAIN", &amqplain[..amqplain.len() - 3]),
        ("PLAIN", b"s3cret-bare"),
        ("NONE", b"\0u\0s3cret-none"),
    ];
    for (mechanism, response) in responses {
        let mut raw = Raw::connect(&broker);
        raw.server_properties();
        let client_properties = leveret_client::amqp::table::RawTable::new(&properties).unwrap();
        let start = connection::StartOk { client_properties, mechanism, response, locale: "en_US" };
        raw.method(0, &start);
        raw.until_closed();
    }
    let environment = broker.told(&["environment"]);
    assert!(!environment.contains("s3cret"), "{environment}");
    assert_eq!(broker.told(&["list_users"]).matches("s3cret").count(), 0);
    let down = broker.stop_with_log();
    assert!(!down.is_empty());
    let shown: Vec<_> = down.iter().filter(|line| line.contains("s3cret")).collect();
    assert!(shown.is_empty(), "{shown:#?}");
}

/// What a client has shown as its password is nowhere in the broker's memory.
#[test]
fn passwords_are_wiped() {
    let broker = Broker::start();
    for _ in 0..3 {
        refused(&broker, "guest", "s3cret-not-kept");
    }
    assert_eq!(broker.occurrences("s3cret-not-kept"), 0);
    assert_ne!(broker.occurrences("guest"), 0, "the memory is looked at");
}

/// No core file has the memory of the process in it.
#[test]
fn core_files_are_empty() {
    let filter = |settings: &[&str]| {
        let broker = Broker::with(settings);
        let file = format!("/proc/{}/coredump_filter", broker.pid());
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", broker.pid())).unwrap();
        let core = limits.lines().find(|it| it.starts_with("Max core file size")).unwrap();
        let soft = core.split_whitespace().nth(4).unwrap().to_owned();
        (std::fs::read_to_string(file).unwrap().trim().trim_start_matches('0').to_owned(), soft)
    };
    assert_eq!(filter(&[]), (String::new(), "0".to_owned()));
    assert_ne!(filter(&["core_dumps=true"]).0, "");
}

/// A core file of the broker after secrets of every kind have come in by every way but TLS.
#[test]
fn no_core_file_has_a_secret() {
    let secrets_in = |settings: &[&str]| {
        let broker = Broker::with(settings);
        broker.told(&["add_user", "u", "s3cret-ctl"]);
        login(&broker, "u", "s3cret-ctl").unwrap_err();
        refused(&broker, "guest", "s3cret-plain");
        for way in ["Basic Z3Vlc3Q6czNjcmV0LWJhc2lj", "Bearer s3cret-token"] {
            assert_eq!(api(&broker, "/api/whoami", way).0, 401);
        }
        // What stays in memory for sure.
        let (mut client, channel) = broker.channel();
        client.queue_declare(channel, "q", &Default::default()).unwrap();
        client.publish(channel, "", "q", &[0, 0], b"s3cret-message");
        client.flush().unwrap();
        wait_until(PATIENCE, "the message is there", || {
            broker.told(&["list_queues", "messages"]).contains('1')
        });
        assert_ne!(broker.occurrences("s3cret-message"), 0);
        broker.core_file().map(|core| memchr::memmem::find_iter(&core, "s3cret").count())
    };
    let by_default = secrets_in(&[]);
    assert!(by_default.is_none_or(|count| count == 0), "{by_default:?}");
    let asked_for = secrets_in(&["core_dumps=true"]);
    assert!(asked_for.is_none_or(|count| count > 0), "the file is looked at");
}
