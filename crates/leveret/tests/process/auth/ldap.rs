//! A directory.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

use leveret_client::{ExchangeDeclare, QueueDeclare};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::directory::{Directory, Entry};
use super::{api, broker, login, next_error};
use crate::broker::{Broker, PATIENCE, wait_until};

const PEOPLE: &[Entry] = &[
    ("cn=bob,ou=people,dc=x", "s3cret", &[("uid", "bob"), ("mail", "b@x"), ("uid", "twin")]),
    ("cn=Eve\\, the other,ou=people,dc=x", "eves", &[("uid", "eve"), ("uid", "twin")]),
    ("cn=asks,dc=x", "asking", &[]),
    ("cn=users,ou=groups,dc=x", "", &[("member", "cn=bob,ou=people,dc=x")]),
    ("cn=ops,ou=groups,dc=x", "", &[("member", "cn=users,ou=groups,dc=x")]),
    ("ou=vhost,dc=x", "", &[]),
];

const TAGS: &str = r#"auth_ldap.queries.tags=[{administrator, {in_group_nested, "cn=ops,ou=groups,dc=x"}}, {monitoring, {in_group, "cn=ops,ou=groups,dc=x"}}]"#;

fn settings(directory: &Directory, more: &[&str]) -> Vec<String> {
    let mut all = vec![
        "auth_backends.1=ldap".to_owned(),
        format!("auth_ldap.servers.1={}", directory.address.ip()),
        format!("auth_ldap.port={}", directory.address.port()),
        "auth_ldap.user_dn_pattern=cn=${username},ou=people,dc=x".to_owned(),
        "auth_ldap.group_lookup_base=ou=groups,dc=x".to_owned(),
    ];
    all.extend(more.iter().map(ToString::to_string));
    all
}

fn asking(directory: &Directory, more: &[&str]) -> Broker {
    broker(&settings(directory, more))
}

fn basic(user: &str, password: &str) -> String {
    use base64::Engine as _;
    let pair = format!("{user}:{password}");
    format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(pair))
}

#[test]
fn who_can_bind_comes_in() {
    let directory = Directory::start(PEOPLE);
    let broker = asking(&directory, &[TAGS]);
    login(&broker, "bob", "s3cret").unwrap().close().unwrap();
    for (user, password) in [("bob", "wrong"), ("nobody", "s3cret"), ("bob", ""), ("", "s3cret")] {
        let error = login(&broker, user, password).unwrap_err().to_string();
        assert!(error.contains("ACCESS_REFUSED"), "{user} {password}: {error}");
    }
    assert!(login(&broker, "guest", "guest").is_err(), "the broker's own users are not asked");
    // What would be a bind as nobody is not even tried.
    assert_eq!(directory.seen("bind").len(), 4);
    let (status, whoami) = api(&broker, "/api/whoami", &basic("bob", "s3cret"));
    assert_eq!(status, 200, "{whoami}");
    assert!(whoami.contains(r#""tags":["administrator"]"#), "{whoami}");
    assert!(whoami.contains(r#""is_internal_user":false"#), "{whoami}");
    // A name is a name, not a piece of another one.
    assert!(login(&broker, "bob,ou=people,dc=x", "s3cret").is_err());
    login(&broker, "Eve, the other", "eves").unwrap();
    let binds = directory.seen("bind");
    assert!(
        binds.contains(&r"bind cn=bob\,ou\=people\,dc\=x,ou=people,dc=x".to_owned()),
        "{binds:?}"
    );
}

#[test]
fn queries_say_what_a_user_may_do() {
    let directory = Directory::start(PEOPLE);
    let resource = r#"auth_ldap.queries.resource_access={for, [
        {permission, configure, {match, "${name}", "^${username}-"}},
        {permission, write, {in_group, "cn=users,ou=groups,dc=x"}},
        {permission, read, {equals, "${name}", {attribute, "${user_dn}", "mail"}}}]}"#;
    let broker = asking(
        &directory,
        &[
            resource,
            r#"auth_ldap.queries.vhost_access={'or', [{equals, "${vhost}", "/"}, {exists, "ou=${vhost},dc=x"}]}"#,
            r#"auth_ldap.queries.topic_access={match, "${routing_key}", "^b\\."}"#,
        ],
    );
    broker.told(&["add_vhost", "vhost"]);
    broker.told(&["add_vhost", "other,dc=x"]);
    let mut bob = login(&broker, "bob", "s3cret").unwrap();
    let channel = bob.open_channel().unwrap();
    bob.queue_declare(channel, "bob-1", &QueueDeclare::default()).unwrap();
    let error =
        bob.queue_declare(channel, "bobs", &QueueDeclare::default()).unwrap_err().to_string();
    assert!(
        error.contains("configure access to queue 'bobs' in vhost '/' refused for user 'bob'"),
        "{error}"
    );
    let channel = bob.open_channel().unwrap();
    bob.exchange_declare(channel, "bob-x", "topic", &ExchangeDeclare::default()).unwrap();
    let error = bob.queue_bind(channel, "bob-1", "bob-x", "#", &Default::default()).unwrap_err();
    assert!(error.to_string().contains("read access to exchange 'bob-x'"), "{error}");
    // A vhost that a directory entry stands for, and one that does not.
    for (vhost, is_open) in [("vhost", true), ("other,dc=x", false)] {
        let uri = leveret_client::Uri {
            user: "bob".into(),
            password: "s3cret".into(),
            vhost: vhost.into(),
            ..broker.uri()
        };
        let opened = leveret_client::Connection::open(&uri, &Default::default());
        assert_eq!(opened.is_ok(), is_open, "{vhost}");
    }
    assert_eq!(directory.seen(r"search ou=other\,dc\=x,dc=x base").len(), 1);
    let channel = bob.open_channel().unwrap();
    bob.confirm_select(channel).unwrap();
    bob.publish(channel, "bob-x", "b.1", &[0, 0], b"x");
    bob.publish(channel, "bob-x", "c.1", &[0, 0], b"x");
    bob.flush().unwrap();
    let reason = next_error(&mut bob);
    assert!(reason.contains("write access to topic 'c.1' in exchange 'bob-x'"), "{reason}");
}

#[test]
fn names_are_looked_up() {
    let directory = Directory::start(PEOPLE);
    let lookup = [
        "auth_ldap.user_dn_pattern=${username}",
        "auth_ldap.dn_lookup_attribute=uid",
        "auth_ldap.dn_lookup_base=ou=people,dc=x",
        "auth_ldap.dn_lookup_bind.user_dn=cn=asks,dc=x",
        "auth_ldap.dn_lookup_bind.password=asking",
        "auth_ldap.other_bind.user_dn=cn=asks,dc=x",
        "auth_ldap.other_bind.password=asking",
        // Nobody waits for a connection with another one in hand.
        "auth_ldap.connection_pool_size=1",
        TAGS,
    ];
    let broker = asking(&directory, &lookup);
    login(&broker, "bob", "s3cret").unwrap();
    let searches = directory.seen("search ou=people,dc=x");
    assert_eq!(searches, ["search ou=people,dc=x sub uid=bob"]);
    let binds = directory.seen("bind");
    let want = ["bind cn=asks,dc=x", "bind cn=bob,ou=people,dc=x", "bind cn=asks,dc=x"];
    assert_eq!(binds[..3], want);
    login(&broker, "eve", "eves").unwrap();
    assert!(login(&broker, "eve", "s3cret").is_err());
    // A value is a value, whatever it looks like in a filter; two entries are nobody.
    for nobody in ["*", "b*", "bob)(uid=*", "twin"] {
        assert!(login(&broker, nobody, "s3cret").is_err(), "{nobody}");
    }
    assert_eq!(directory.seen("search ou=people,dc=x sub uid=bob)(uid=*").len(), 1);
    // Who is there to ask has another password now.
    let lost =
        asking(&directory, &[&lookup[..], &["auth_ldap.dn_lookup_bind.password=x"]].concat());
    assert!(login(&lost, "bob", "s3cret").is_err());
    lost.log.wait_for("it does not let in 'cn=asks,dc=x', as whom it is asked");
}

/// A member of more groups than the directory names in one answer.
#[test]
fn groups_come_in_pages() {
    const MEMBER: &[(&str, &str)] = &[("member", "cn=bob,ou=people,dc=x")];
    const PEOPLE: &[Entry] = &[
        ("cn=bob,ou=people,dc=x", "s3cret", &[]),
        ("cn=1,ou=groups,dc=x", "", MEMBER),
        ("cn=2,ou=groups,dc=x", "", MEMBER),
        ("cn=3,ou=groups,dc=x", "", MEMBER),
        ("cn=4,ou=groups,dc=x", "", MEMBER),
        ("cn=ops,ou=groups,dc=x", "", MEMBER),
    ];
    let directory = Directory::start(PEOPLE);
    let broker = asking(&directory, &[TAGS]);
    let (status, whoami) = api(&broker, "/api/whoami", &basic("bob", "s3cret"));
    assert!(whoami.contains(r#""tags":["administrator","monitoring"]"#), "{status} {whoami}");
    let asked = "search ou=groups,dc=x sub member=cn=bob,ou=people,dc=x";
    // Once without pages, which is too much, and three pages.
    assert_eq!(directory.seen(asked).len(), 4);
}

#[test]
fn connections_are_kept_and_come_back() {
    let directory = Directory::start(PEOPLE);
    let broker = asking(&directory, &[]);
    login(&broker, "bob", "s3cret").unwrap();
    directory.hang_up();
    // The first finds the connection of before, which ends after it; then it is one for each.
    for _ in 0..3 {
        login(&broker, "bob", "s3cret").unwrap();
    }
}

#[test]
fn a_directory_that_is_gone_holds_up_nobody_else() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let gone = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let told = |port: u16, why: &str| {
        let broker = broker(&[
            "auth_backends.1=ldap".to_owned(),
            "auth_backends.2=internal".to_owned(),
            "auth_ldap.servers.1=127.0.0.1".to_owned(),
            format!("auth_ldap.port={port}"),
            "auth_ldap.timeout=300".to_owned(),
        ]);
        assert!(login(&broker, "bob", "s3cret").is_err());
        // The source that comes after it says why bob is refused; that this one fails has a line of its own.
        let line = broker.log.wait_for("a source of users cannot be asked");
        assert!(line.contains(why), "{line}");
        login(&broker, "guest", "guest").unwrap();
    };
    told(gone, "the directory (LDAP): Connection refused");
    told(silent.local_addr().unwrap().port(), "the directory (LDAP): it takes too long");
}

#[test]
fn nonsense_is_no_answer() {
    let answers: [&[u8]; 6] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff],
        &[0x30, 0x80, 0, 0],
        &[0x30, 0x03, 0x02, 0x01, 0x02],
        // A success that belongs to no question, and one to a search.
        &[0x30, 12, 2, 1, 77, 0x61, 7, 10, 1, 0, 4, 0, 4, 0],
        &[0x30, 12, 2, 1, 2, 0x65, 7, 10, 1, 0, 4, 0, 4, 0],
    ];
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (at, socket) in listener.incoming().map_while(Result::ok).enumerate() {
            let mut socket = socket;
            let mut block = [0; 1000];
            let _ = socket.read(&mut block);
            let _ = socket.write_all(answers[at % answers.len()]);
        }
    });
    let broker = broker(&[
        "auth_backends.1=ldap".to_owned(),
        "auth_ldap.servers.1=127.0.0.1".to_owned(),
        format!("auth_ldap.port={port}"),
        "login_throttle.threshold=0".to_owned(),
    ]);
    for _ in 0..answers.len() {
        assert!(login(&broker, "bob", "s3cret").is_err());
    }
    wait_until(PATIENCE, "all are told", || {
        broker.log.with("login refused").len() == answers.len()
    });
}

#[test]
fn the_second_server_is_asked_when_the_first_is_gone() {
    let directory = Directory::start(PEOPLE);
    let first = "auth_ldap.servers.1=127.0.0.2";
    let second = format!("auth_ldap.servers.2={}", directory.address.ip());
    let broker = asking(&directory, &[first, &second]);
    login(&broker, "bob", "s3cret").unwrap();
    broker.log.wait_for("a directory cannot be reached");
}

#[test]
fn a_cache_asks_once() {
    let directory = Directory::start(PEOPLE);
    let cached = [
        "auth_backends.1=cache",
        "auth_cache.cached_backend=ldap",
        "auth_cache.cache_ttl=600000",
        r#"auth_ldap.queries.resource_access={in_group, "cn=users,ou=groups,dc=x"}"#,
    ];
    let broker = asking(&directory, &cached);
    for _ in 0..3 {
        let mut bob = login(&broker, "bob", "s3cret").unwrap();
        let channel = bob.open_channel().unwrap();
        bob.queue_declare(channel, "q", &QueueDeclare::default()).unwrap();
        assert!(login(&broker, "bob", "wrong").is_err());
    }
    assert_eq!(directory.seen("search").len(), 1);
    // One login, three refusals, and as the user for the one question about its rights.
    assert_eq!(directory.seen("bind").len(), 5);
}

/// The broker shows the directory a certificate, and has no password.
#[test]
fn a_certificate_says_who_asks() {
    let named = |name: &str| {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (params.self_signed(&key).unwrap(), key)
    };
    let ((theirs, their_key), (ours, our_key)) = (named("127.0.0.1"), named("broker"));
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut known = RootCertStore::empty();
    known.add(ours.der().clone()).unwrap();
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(known), provider.clone());
    let tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(builder.build().unwrap())
        .with_single_cert(
            vec![theirs.der().clone()],
            PrivateKeyDer::try_from(their_key.serialize_der()).unwrap(),
        )
        .unwrap();
    let directory = Directory::speaking(PEOPLE, Some(Arc::new(tls)), true);
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let authority = file("ca.pem", theirs.pem());
    let (certificate, key) =
        (file("own.pem", ours.pem()), file("own.key", our_key.serialize_pem()));
    let options = [
        "auth_ldap.use_ssl=true",
        &format!("auth_ldap.ssl_options.cacertfile={authority}"),
        &format!("auth_ldap.ssl_options.certfile={certificate}"),
        &format!("auth_ldap.ssl_options.keyfile={key}"),
        "auth_ldap.user_dn_pattern=${username}",
        "auth_ldap.dn_lookup_attribute=uid",
        "auth_ldap.dn_lookup_base=ou=people,dc=x",
        "auth_ldap.dn_lookup_bind=external",
        "auth_ldap.other_bind=external",
        TAGS,
    ];
    let broker = asking(&directory, &options);
    let (status, whoami) = api(&broker, "/api/whoami", &basic("bob", "s3cret"));
    assert!(whoami.contains(r#""tags":["administrator"]"#), "{status} {whoami}");
    let binds = directory.seen("bind");
    assert_eq!(binds[..3], ["bind EXTERNAL", "bind cn=bob,ou=people,dc=x", "bind EXTERNAL"]);
}

#[test]
fn it_is_spoken_to_by_tls() {
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
    let der = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], der)
        .unwrap();
    let tls = Arc::new(tls);
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ca.pem");
    std::fs::write(&file, certificate.pem()).unwrap();
    let authority = format!("auth_ldap.ssl_options.cacertfile={}", file.display());
    for (at_once, option) in
        [(true, "auth_ldap.use_ssl=true"), (false, "auth_ldap.use_starttls=true")]
    {
        let directory = Directory::speaking(PEOPLE, Some(Arc::clone(&tls)), at_once);
        login(&asking(&directory, &[option, &authority]), "bob", "s3cret").unwrap();
        // The authorities of this machine did not sign it: the password does not leave.
        let strict = asking(&directory, &[option]);
        assert!(login(&strict, "bob", "s3cret").is_err());
        assert_eq!(directory.seen("bind").len(), 1);
        strict.log.wait_for("invalid peer certificate");
        let lax = asking(&directory, &[option, "auth_ldap.ssl_options.verify=verify_none"]);
        login(&lax, "bob", "s3cret").unwrap();
    }
}

#[test]
fn passwords_are_in_no_log() {
    let directory = Directory::start(PEOPLE);
    let loud = ["log.level=debug", "log.console.level=debug", TAGS];
    let broker = asking(&directory, &loud);
    login(&broker, "bob", "s3cret").unwrap();
    assert!(login(&broker, "bob", "s3cret-wrong").is_err());
    // The connection ends between the bind and the question about a tag.
    directory.hang_up();
    assert!(login(&broker, "bob", "s3cret").is_err());
    broker.log.wait_for("tag administrator: ");
    let environment = broker.told(&["environment"]);
    assert!(!environment.contains("s3cret"), "{environment}");
    let log = broker.stop_with_log();
    let shown: Vec<_> = log.iter().filter(|line| line.contains("s3cret")).collect();
    assert!(shown.is_empty(), "{shown:#?}");
}
