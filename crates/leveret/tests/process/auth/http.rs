//! The web service.

use std::sync::mpsc;
use std::sync::{Arc, Mutex};

use leveret_client::{ExchangeDeclare, QueueDeclare};

use super::web::{Request, Web};
use super::{api, broker, login, next_error, request};
use crate::broker::{Broker, wait_until};

/// What a parameter of a request is, encoded; the last one if it is there twice.
fn value<'a>(request: &'a Request, name: &str) -> &'a str {
    let query = request.target.split_once('?').map_or(request.body.as_str(), |(_, query)| query);
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.filter(|(own, _)| *own == name).map(|(_, value)| value).next_back().unwrap_or_default()
}

/// Bob may do everything with names that begin with `b`, and use routing keys that begin with `b`.
fn answer(request: &Request) -> (u16, String) {
    let is_b = |name| value(request, name).starts_with('b');
    let says = match request.target.split('?').next().unwrap() {
        "/user" if value(request, "password") == "s3cret" => "allow management x",
        "/vhost" if value(request, "vhost") == "%2F" => "allow",
        "/resource" if value(request, "name") == "broken" => return (500, "allow".to_owned()),
        "/resource" if is_b("name") => "allow",
        "/topic" if is_b("routing_key") => "ALLOW\n",
        _ => "deny not today",
    };
    (200, says.to_owned())
}

fn settings(web: &Web, more: &[&str]) -> Vec<String> {
    let paths = ["user", "vhost", "resource", "topic"];
    let paths = paths.map(|path| format!("auth_http.{path}_path=http://{}/{path}", web.address));
    let more = more.iter().map(ToString::to_string);
    paths.into_iter().chain(more).collect()
}

fn asking(web: &Web, more: &[&str]) -> Broker {
    let mut all = settings(web, &["auth_backends.1=http"]);
    all.extend(more.iter().map(ToString::to_string));
    broker(&all)
}

#[test]
fn the_service_says_who_may_do_what() {
    let web = Web::start(None, answer);
    let broker = asking(&web, &[]);
    let error = login(&broker, "bob", "wrong").unwrap_err().to_string();
    assert!(error.contains("ACCESS_REFUSED"), "{error}");
    assert!(login(&broker, "guest", "guest").is_err(), "the broker's own users are not asked");
    // The operator asks who would come in.
    let (proven, refused) = ["s3cret", "wrong"]
        .map(|password| broker.ctl(&["authenticate_user", "bob", password]).status.success())
        .into();
    assert!(proven && !refused);
    let mut bob = login(&broker, "bob", "s3cret").unwrap();
    // Operators ask the same sources as logins.
    broker.told(&["authenticate_user", "bob", "s3cret"]);
    broker.refused(&["authenticate_user", "bob", "wrong"], 65);
    broker.refused(&["authenticate_user", "guest", "guest"], 65);
    let channel = bob.open_channel().unwrap();
    bob.queue_declare(channel, "bq", &QueueDeclare::default()).unwrap();
    let asked = web.seen("name=bq").pop().unwrap();
    assert_eq!(asked.method, "GET");
    let want = "/resource?username=bob&vhost=%2F&resource=queue&name=bq&permission=configure\
                &tags=management+x";
    assert_eq!(asked.target, want);
    let error = bob.queue_declare(channel, "q", &QueueDeclare::default()).unwrap_err().to_string();
    assert!(
        error.contains("configure access to queue 'q' in vhost '/' refused for user 'bob'"),
        "{error}"
    );
    assert!(!error.contains("not today"), "{error}");
    // A server-named queue has one name, however often it is looked at.
    let channel = bob.open_channel().unwrap();
    let error = bob.queue_declare(channel, "", &QueueDeclare::default()).unwrap_err().to_string();
    assert!(error.contains("amq.gen-"), "{error}");
    assert_eq!(web.seen("name=amq.gen").len(), 1);
    // What cannot be answered is refused, with the reason.
    let channel = bob.open_channel().unwrap();
    let error =
        bob.queue_declare(channel, "broken", &QueueDeclare::default()).unwrap_err().to_string();
    assert!(
        error.contains("backend rabbit_auth_backend_http returned an error: status 500"),
        "{error}"
    );
}

#[test]
fn publishes_ask_once() {
    let web = Web::start(None, answer);
    let broker = asking(
        &web,
        &["auth_http.http_method=post", "auth_http.authorization_failure_disclosure=true"],
    );
    let mut bob = login(&broker, "bob", "s3cret").unwrap();
    let channel = bob.open_channel().unwrap();
    bob.queue_declare(channel, "bq", &QueueDeclare::default()).unwrap();
    bob.exchange_declare(channel, "bx", "topic", &ExchangeDeclare::default()).unwrap();
    bob.queue_bind(channel, "bq", "bx", "b.#", &Default::default()).unwrap();
    bob.confirm_select(channel).unwrap();
    // Both in one read and in many.
    for size in [0, 10, 300_000] {
        for _ in 0..3 {
            bob.publish(channel, "bx", "b.1", &[0, 0], &vec![b'x'; size]);
            bob.publish(channel, "bx", "b.2", &[0, 0], &vec![b'x'; size]);
        }
    }
    bob.flush().unwrap();
    wait_until(crate::broker::PATIENCE, "all are there", || {
        let rows = broker.json(&["list_queues", "name", "messages"]);
        rows[0]["messages"] == 18
    });
    let writes = |path: &str| {
        let seen = web.seen(path);
        seen.iter().filter(|request| value(request, "permission") == "write").count()
    };
    assert_eq!(writes("/topic"), 2);
    // Of the queue that is bound, and of the exchange that is published to.
    assert_eq!(writes("/resource"), 2);
    let topic = web.seen("/topic").pop().unwrap();
    assert!(topic.body.contains("resource=topic&name=bx&permission=write"), "{topic:?}");
    assert_eq!(value(&topic, "variable_map.vhost"), "%2F");
    bob.publish(channel, "bx", "c", &[0, 0], b"x");
    bob.flush().unwrap();
    let error = next_error(&mut bob);
    assert!(error.contains("write access to topic 'c' in exchange 'bx'"), "{error}");
    assert!(error.contains("by backend rabbit_auth_backend_http: not today"), "{error}");
}

#[test]
fn a_service_that_does_not_answer_holds_up_nobody_else() {
    let (sender, waits) = mpsc::channel::<()>();
    let waits = Arc::new(Mutex::new(waits));
    let web = Web::start(None, move |request| {
        if value(request, "username") == "slow" {
            // Until the test lets go.
            let _ = waits.lock().unwrap().recv();
        }
        answer(request)
    });
    let broker = asking(&web, &["threads=1", "auth_backends.2=internal"]);
    let uri = broker.address;
    let slow = std::thread::spawn(move || {
        let uri = leveret_client::Uri {
            host: uri.ip().to_string(),
            port: uri.port(),
            user: "slow".into(),
            password: "s3cret".into(),
            ..Default::default()
        };
        leveret_client::Connection::open(&uri, &Default::default()).map(drop)
    });
    wait_until(crate::broker::PATIENCE, "the service is asked", || !web.seen("slow").is_empty());
    let mut bob = login(&broker, "bob", "s3cret").unwrap();
    let channel = bob.open_channel().unwrap();
    bob.queue_declare(channel, "bq", &QueueDeclare::default()).unwrap();
    // The second source lets in whom the first does not.
    login(&broker, "guest", "guest").unwrap().close().unwrap();
    drop(sender);
    slow.join().unwrap().unwrap();
}

#[test]
fn who_it_is_and_what_it_may_do_are_said_by_two() {
    let web = Web::start(None, answer);
    let settings =
        settings(&web, &["auth_backends.1.authn=http", "auth_backends.1.authz=internal"]);
    let broker = broker(&settings);
    assert!(login(&broker, "bob", "s3cret").is_err(), "the names do not know bob");
    broker.told(&["add_user", "bob", "another"]);
    broker.told(&["set_permissions", "bob", "^own", "", ""]);
    let mut bob = login(&broker, "bob", "s3cret").unwrap();
    let channel = bob.open_channel().unwrap();
    bob.queue_declare(channel, "own", &QueueDeclare::default()).unwrap();
    assert!(bob.queue_declare(channel, "bq", &QueueDeclare::default()).is_err());
    assert!(login(&broker, "bob", "another").is_err());
    assert!(web.seen("/resource").is_empty());
}

/// The service is asked about what is done over the management API as about what is done over AMQP.
#[test]
fn messages_are_looked_at_and_moved() {
    let web = Web::start(None, answer);
    let broker = asking(&web, &["auth_backends.2=internal"]);
    let mut guest = login(&broker, "guest", "guest").unwrap();
    let guests = guest.open_channel().unwrap();
    guest.queue_declare(guests, "z", &QueueDeclare::default()).unwrap();
    let mut bob = login(&broker, "bob", "s3cret").unwrap();
    let channel = bob.open_channel().unwrap();
    for queue in ["bq", "bz"] {
        bob.queue_declare(channel, queue, &QueueDeclare::default()).unwrap();
    }
    bob.exchange_declare(channel, "bx", "topic", &ExchangeDeclare::default()).unwrap();
    bob.queue_bind(channel, "bz", "bx", "b.#", &Default::default()).unwrap();
    for _ in 0..3 {
        guest.publish(guests, "", "bq", &[0, 0], b"x");
    }
    guest.flush().unwrap();
    wait_until(crate::broker::PATIENCE, "all are there", || {
        let rows = broker.json(&["list_queues", "name", "messages"]);
        rows.as_array().unwrap().iter().any(|row| row["messages"] == 3)
    });
    let bearer = "Basic Ym9iOnMzY3JldA==";
    let (status, body) = api(&broker, "/api/queues/%2F/bq/messages", bearer);
    assert!(status == 200 && body.contains("payload"), "{status} {body}");
    let (status, body) = api(&broker, "/api/queues/%2F/z/messages", bearer);
    assert_eq!(status, 401, "{body}");
    assert!(
        body.contains("read access to queue 'z' in vhost '/' refused for user 'bob'"),
        "{body}"
    );
    let moved = |to: &str| request(&broker, "POST", "/api/queues/%2F/bq/move", bearer, to);
    let told =
        |answer: (u16, String)| -> serde_json::Value { serde_json::from_str(&answer.1).unwrap() };
    let (status, body) = moved(r#"{"to_queue": "z"}"#);
    assert_eq!(status, 401, "{body}");
    assert_eq!(told(moved(r#"{"to_queue": "bz", "count": 1}"#))["moved"], 1);
    let refused = told(moved(r#"{"to_exchange": "bx", "routing_key": "c", "count": 2}"#));
    assert_eq!((&refused["moved"], &refused["refused"]), (&0.into(), &2.into()));
    assert_eq!(told(moved(r#"{"to_exchange": "bx", "routing_key": "b.1"}"#))["moved"], 2);
    assert_eq!(web.seen("/topic").len(), 3, "once for the binding, once for each key");
}

#[test]
fn a_cache_asks_once() {
    let web = Web::start(None, answer);
    let settings = settings(
        &web,
        &["auth_backends.1=cache", "auth_cache.cached_backend=http", "auth_cache.cache_ttl=600000"],
    );
    let broker = broker(&settings);
    for _ in 0..3 {
        let mut bob = login(&broker, "bob", "s3cret").unwrap();
        let channel = bob.open_channel().unwrap();
        bob.queue_declare(channel, "bq", &QueueDeclare::default()).unwrap();
        assert!(login(&broker, "bob", "wrong").is_err());
        let (status, _) = api(&broker, "/api/whoami", "Basic Ym9iOnMzY3JldA==");
        assert_eq!(status, 200);
    }
    assert_eq!(web.seen("password=s3cret").len(), 1);
    assert_eq!(web.seen("password=wrong").len(), 3, "refusals are not kept");
    assert_eq!(web.seen("/vhost").len(), 1);
    assert_eq!(web.seen("/resource").len(), 1);
}

/// With everything logged there is, no password is, though it is in the address that is asked.
#[test]
fn passwords_are_in_no_log() {
    let web = Web::start(None, answer);
    let broker = asking(&web, &["log.level=debug", "log.console.level=debug"]);
    login(&broker, "bob", "s3cret").unwrap().close().unwrap();
    assert!(login(&broker, "bob", "s3cret-wrong").is_err());
    // Nobody listens there any more, or never did.
    let nobody = self::broker(&[
        "auth_backends.1=http".to_owned(),
        "auth_http.user_path=http://127.0.0.1:9/user".to_owned(),
        "log.console.level=debug".to_owned(),
    ]);
    assert!(login(&nobody, "bob", "s3cret").is_err());
    nobody.log.wait_for("the backing HTTP service: ");
    for log in [broker.stop_with_log(), nobody.stop_with_log()] {
        let shown: Vec<_> = log.iter().filter(|line| line.contains("s3cret")).collect();
        assert!(shown.is_empty(), "{shown:#?}");
    }
}

#[test]
fn a_cache_of_nothing_does_not_start() {
    let told = |settings: &[&str]| {
        let mut words = vec!["serve", "--listen", "127.0.0.1:0"];
        words.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        let dir = tempfile::tempdir().unwrap();
        crate::broker::run(crate::broker::leveret(&words), dir.path(), 70).1
    };
    let error = told(&["auth_backends.1=cache"]);
    assert!(error.contains("auth_cache.cached_backend is not set"), "{error}");
    let error = told(&["auth_backends.1=http", "auth_http.user_path=nowhere"]);
    assert!(error.contains("auth_http.user_path = nowhere"), "{error}");
}
