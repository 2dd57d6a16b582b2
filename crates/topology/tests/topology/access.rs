//! Users, passwords and permissions.

use leveret_amqp::reply::ReplyCode;
use leveret_topology::{
    ApplyTo, Bootstrap, Hashing, Named, PasswordHash, Permission, PolicySpec, ResourceKind,
    Topology, VhostId,
};
use serde_json::json;

use crate::common::World;

const SALT: [u8; 4] = [1, 2, 3, 4];

fn broker() -> (Topology, VhostId) {
    let mut topology = Topology::new();
    let bootstrap = Bootstrap {
        user: "guest",
        password: PasswordHash::new("secret", SALT),
        tags: &["administrator"],
        vhost: "/",
        permissions: [".*", ".*", ".*"],
    };
    let vhost = topology.bootstrap(&bootstrap).unwrap();
    assert_eq!(topology.bootstrap(&bootstrap).unwrap(), vhost);
    topology.assert_invariants();
    (topology, vhost)
}

#[test]
fn bootstrap() {
    let (topology, vhost) = broker();
    let names: Vec<_> = topology.exchanges(vhost).iter().map(|x| x.name.to_string()).collect();
    let want = [
        "",
        "amq.direct",
        "amq.fanout",
        "amq.headers",
        "amq.match",
        "amq.rabbitmq.trace",
        "amq.topic",
    ];
    assert_eq!(names, want);
    assert!(topology.exchange(vhost, "amq.rabbitmq.trace").unwrap().internal);
    let guest = topology.authenticate("guest", "secret").unwrap();
    assert!(guest.is_administrator() && !guest.has_tag("impersonator"));
    assert_eq!(topology.check_vhost_access("guest", "/").unwrap(), vhost);
}

#[test]
fn passwords() {
    let (mut topology, _) = broker();
    let refused = |topology: &Topology, user: &str, password: &str| {
        topology.authenticate(user, password).unwrap_err().to_string()
    };
    assert_eq!(refused(&topology, "guest", "Secret"), "user 'guest' - invalid credentials");
    assert_eq!(refused(&topology, "nobody", "secret"), "user 'nobody' - invalid credentials");
    assert_eq!(
        refused(&topology, "guest", ""),
        "user 'guest' attempted to log in with a blank password, which is prohibited"
    );
    // The digests of other algorithms, computed by RabbitMQ's rule: salt, then digest(salt + password).
    #[rustfmt::skip] // a table
    let hashes = [
        (Hashing::Sha256, "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"),
        (Hashing::Md5, ""),
    ];
    let (hashing, hash) = hashes[0];
    // RabbitMQ's documentation: the hash of "test12" with salt 908DC60A.
    topology
        .add_user("doc", PasswordHash::from_base64("doc", hash, hashing).unwrap(), &[])
        .unwrap();
    assert!(topology.authenticate("doc", "test12").is_ok());
    // No hash at all: no password.
    let (hashing, hash) = hashes[1];
    topology
        .change_password("doc", PasswordHash::from_base64("doc", hash, hashing).unwrap())
        .unwrap();
    assert!(topology.authenticate("doc", "test12").is_err());
    for bad in ["AQID", "not base 64!"] {
        assert!(PasswordHash::from_base64("doc", bad, Hashing::Sha512).is_err());
    }
    let hash = PasswordHash::new("p", SALT);
    assert_eq!(PasswordHash::from_base64("doc", &hash.to_base64(), hash.hashing()).unwrap(), hash);
    assert!(!format!("{hash:?}").contains(&hash.to_base64()));
}

#[test]
fn argon2id() {
    let hash = PasswordHash::with(Hashing::Argon2id, "s3cret", [7; 16]);
    let text = hash.to_base64();
    assert!(text.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{text}");
    assert!(hash.is_slow() && hash.accepts("s3cret") && !hash.accepts("S3cret"));
    assert!(!format!("{hash:?}").contains("argon2id$"));
    let again = |text: &str| PasswordHash::from_base64("u", text, Hashing::Argon2id);
    assert_eq!(again(&text).unwrap(), hash);
    let (mut topology, _) = broker();
    topology.add_user("u", hash, &[]).unwrap();
    assert!(topology.authenticate("u", "s3cret").is_ok());
    assert!(topology.authenticate("u", "wrong").is_err());
    let exported = topology.export_definitions();
    assert!(exported.contains("leveret_password_hashing_argon2id"), "{exported}");
    let mut other = Topology::default();
    other.import_definitions(&exported).unwrap();
    assert!(other.authenticate("u", "s3cret").is_ok());
    // None of them lets anybody in, whatever it takes for a password.
    let dummy = PasswordHash::dummy(Hashing::Argon2id);
    assert_eq!(again(&dummy.to_base64()).unwrap(), dummy, "it is checked in earnest");
    assert!(!dummy.accepts("") && !again("").unwrap().accepts(""));
    #[rustfmt::skip] // a table
    let bad = [
        ("s3cret",                                                        "not a PHC string"),
        ("$argon2i$v=19$m=16,t=2,p=1$AAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA",  "not a PHC string of argon2id with salt and hash"),
        ("$argon2id$v=19$m=16,t=2,p=1$AAAAAAAAAAA",                       "not a PHC string of argon2id with salt and hash"),
        ("$argon2id$v=19$m=4194304,t=2,p=1$AAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAA", "too costly: at most m=262144, t=64, p=16"),
    ];
    for (text, why) in bad {
        let error = again(text).unwrap_err().to_string();
        assert!(error.contains(why), "{text}: {error}");
    }
}

/// A password is in no text but the one that it is revealed as.
#[test]
fn passwords_are_not_shown() {
    let password = leveret_topology::Password::new("s3cret");
    assert_eq!((format!("{password:?}").as_str(), password.reveal()), ("Password(...)", "s3cret"));
}

/// A vhost whose name no `connection.open` holds was of no use, and each of its clients was told that there is no such vhost.
#[test]
#[rustfmt::skip] // a table
fn new_names_fit_a_short_string() {
    let mut topology = Topology::new();
    topology.add_vhost("/").unwrap();
    topology.add_user("u", PasswordHash::new("p", [0; 4]), &[]).unwrap();
    let definition = serde_json::Map::from_iter([("max-length".to_owned(), json!(5))]);
    let mut check = |of: Named, name: &str, want: &str| {
        let before = topology.export_definitions();
        let spec = PolicySpec { name, pattern: "^q", apply_to: ApplyTo::All, priority: 0, definition: definition.clone() };
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let made = match of {
            Named::Vhost => topology.add_vhost(name).map(drop).map_err(|it| told(&it)),
            Named::User => topology.add_user(name, PasswordHash::new("p", [0; 4]), &[]).map_err(|it| told(&it)),
            Named::Policy => topology.set_policy("/", spec).map(drop).map_err(|it| told(&it)),
            Named::OperatorPolicy => topology.set_operator_policy("/", spec).map(drop).map_err(|it| told(&it)),
            Named::GlobalParameter => topology.set_global_parameter(name, json!({})).map_err(|it| told(&it)),
            Named::Queue => unreachable!("a queue is imported: see definitions.rs"),
            Named::Exchange => topology.set_topic_permissions("u", "/", name, "", "").map_err(|it| told(&it)),
        };
        assert_eq!(made, if want.is_empty() { Ok(()) } else { Err(want.to_owned()) });
        assert_eq!(topology.export_definitions() != before, want.is_empty(), "{of} {name}");
        topology.assert_invariants();
    };
    let (fits, long, wide) = ("n".repeat(255), "n".repeat(256), "\u{e9}".repeat(128));
    check(Named::Vhost, &fits, "");
    check(Named::User,  &fits, "");
    check(Named::Vhost, &long, "virtual host name must be at most 255 bytes long, not 256");
    check(Named::User,  &long, "user name must be at most 255 bytes long, not 256");
    check(Named::Vhost, &wide, "virtual host name must be at most 255 bytes long, not 256");
    check(Named::Vhost, "",    "virtual host name must not be empty");
    check(Named::User,  "",    "user name must not be empty");
    for of in [Named::Policy, Named::OperatorPolicy, Named::GlobalParameter] {
        check(of, &fits, "");
        check(of, &long, &format!("{of} name must be at most 255 bytes long, not 256"));
        check(of, "",    &format!("{of} name must not be empty"));
    }
    check(Named::Exchange, &fits, "");
    check(Named::Exchange, &long, "exchange name must be at most 255 bytes long, not 256");
    // The default exchange.
    check(Named::Exchange, "", "");
}

#[test]
fn vhost_access() {
    let (mut topology, _) = broker();
    topology.add_vhost("other").unwrap();
    for vhost in ["other", "none"] {
        let error = topology.check_vhost_access("guest", vhost).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("access to vhost '{vhost}' refused for user 'guest'")
        );
        assert_eq!(error.reply_code(), ReplyCode::NotAllowed);
    }
    let before = topology.access_generation();
    topology.set_permissions("guest", "other", "", "", "").unwrap();
    assert_ne!(topology.access_generation(), before);
    assert!(topology.check_vhost_access("guest", "other").is_ok());
    topology.clear_permissions("guest", "other").unwrap();
    assert!(topology.check_vhost_access("guest", "other").is_err());
    topology.set_permissions("guest", "other", "", "", "").unwrap();
    topology.delete_vhost("other").unwrap();
    topology.add_vhost("other").unwrap();
    assert!(topology.check_vhost_access("guest", "other").is_err(), "another vhost of that name");
    topology.delete_user("guest").unwrap();
    assert!(topology.check_vhost_access("guest", "/").is_err());
    assert_eq!(
        topology.delete_user("guest").unwrap_err().to_string(),
        "user 'guest' does not exist"
    );
}

#[test]
#[rustfmt::skip] // a table
fn patterns() {
    use Permission::{Configure, Read, Write};
    let (mut topology, vhost) = broker();
    topology.set_permissions("guest", "/", "^mine-", "", r"^(?!secret).*|amq\.default").unwrap();
    let may = |permission, name: &str| topology.check_permission("guest", vhost, permission, name);
    assert!( may(Configure, "mine-1"));
    assert!(!may(Configure, "not-mine-1"));
    assert!(!may(Write,     "mine-1")); // an empty pattern allows nothing
    assert!( may(Read,      "public"));
    assert!(!may(Read,      "secret-plan"));
    assert!(!may(Write,     ""));
    assert!( may(Read,      "")); // the default exchange is called amq.default
    assert!(!topology.check_permission("nobody", vhost, Read, "public"));

    let refused = |permission, kind, name: &str| {
        let error = topology.check_access("guest", vhost, permission, kind, name).unwrap_err();
        assert_eq!(error.reply_code(), ReplyCode::AccessRefused);
        error.to_string()
    };
    assert_eq!(refused(Configure, ResourceKind::Queue, "q"),
        "configure access to queue 'q' in vhost '/' refused for user 'guest'");
    assert_eq!(refused(Write, ResourceKind::Exchange, ""),
        "write access to exchange 'amq.default' in vhost '/' refused for user 'guest'");
    assert!(topology.check_access("guest", vhost, Read, ResourceKind::Queue, "q").is_ok());

    let error = topology.set_permissions("guest", "/", "(", "", "").unwrap_err().to_string();
    assert!(error.starts_with("invalid regular expression '('"), "{error}");
    assert!(topology.set_permissions("guest", "none", "", "", "").is_err());
    assert!(topology.set_permissions("none", "/", "", "", "").is_err());
}

/// A pattern that backtracks without end must not match, nor take for ever.
#[test]
fn hostile_patterns_end() {
    let (mut topology, vhost) = broker();
    topology.set_permissions("guest", "/", r"^(a+)+\1$", ".*", ".*").unwrap();
    let name = "a".repeat(200) + "!";
    assert!(!topology.check_permission("guest", vhost, Permission::Configure, &name));
}

#[test]
fn topic_permissions() {
    use Permission::{Read, Write};
    let mut world = World::new();
    let topology = &mut world.topology;
    topology.add_user("a.b", PasswordHash::new("p", SALT), &["impersonator"]).unwrap();
    assert!(topology.user("a.b").unwrap().has_tag("impersonator"));
    topology.set_topic_permissions("a.b", "/", "amq.topic", "^{username}-{vhost}", "").unwrap();
    let may = |topology: &Topology, exchange: &str, permission, key: &str| {
        let exchange = topology.exchange(world.vhost, exchange).unwrap();
        topology.check_topic_permission("a.b", exchange, permission, key)
    };
    assert!(may(topology, "amq.topic", Write, "a.b-/.x"));
    assert!(!may(topology, "amq.topic", Write, "axb-/")); // the name is not a pattern
    assert!(!may(topology, "amq.topic", Read, "a.b-/"));
    assert!(may(topology, "amq.rabbitmq.trace", Write, "x"), "a topic exchange without limits");
    topology.set_topic_permissions("a.b", "/", "amq.direct", "^$", "^$").unwrap();
    assert!(may(topology, "amq.direct", Write, "x"), "only topic exchanges ask");
    let exchange = topology.exchange(world.vhost, "amq.topic").unwrap();
    let error = topology.check_topic_access("a.b", exchange, Write, "k").unwrap_err();
    let want =
        "write access to topic 'k' in exchange 'amq.topic' in vhost '/' refused for user 'a.b'";
    assert_eq!((error.to_string().as_str(), error.reply_code()), (want, ReplyCode::AccessRefused));
    // As in RabbitMQ, the exchange may come later.
    topology.set_topic_permissions("a.b", "/", "none", "", "").unwrap();
    topology.clear_topic_permissions("a.b", "/", Some("amq.direct")).unwrap();
    assert!(!may(topology, "amq.topic", Write, "k"));
    topology.clear_topic_permissions("a.b", "/", None).unwrap();
    assert!(may(topology, "amq.topic", Write, "k"));
}

/// Clearing the limits is as good as setting others: rates begin anew, and sessions look again.
#[test]
fn cleared_limits_are_told() {
    let mut topology = Topology::new();
    topology.add_vhost("/").unwrap();
    let limits = serde_json::json!({ "max-publish-rate": 1, "max-queues": 1 });
    topology.set_parameter("/", "vhost-limits", "limits", limits).unwrap();
    let before = topology.access_generation();
    topology.clear_parameter("/", "vhost-limits", "limits").unwrap();
    assert!(topology.access_generation() > before, "sessions keep to the rate");
    assert!(topology.vhost("/").unwrap().limits().is_empty());
}
