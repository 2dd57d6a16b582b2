//! `queue.declare` and `exchange.declare`: what is accepted, and RabbitMQ's texts for what is not.

use crate::common::{OTHER, OWNER, World, table, text};
use leveret_amqp::reply::ReplyCode;
use leveret_amqp::table::{Table, Value};
use leveret_queue::{Options, Overflow};
use leveret_topology::{
    ArgumentsChange, BindError, DeclareError, Destination, ExchangeSpec, QueueKind, QueueSpec,
    Topology,
};

/// Declares a queue `q` with these arguments in a fresh vhost `/`.
#[track_caller]
fn refused(arguments: impl IntoIterator<Item = (&'static str, Value)>, want: &str) {
    let error = World::new().queue_with("q", table(arguments)).unwrap_err();
    assert_eq!(error.to_string(), want);
    assert_eq!(error.reply_code(), ReplyCode::PreconditionFailed);
}

#[test]
#[rustfmt::skip] // a table
fn bad_arguments() {
    refused([("x-message-ttl", text("5"))],
        r#"invalid arg 'x-message-ttl' for queue 'q' in vhost '/': "expected integer, got longstr""#);
    refused([("x-message-ttl", Value::I32(-1))],
        "invalid arg 'x-message-ttl' for queue 'q' in vhost '/': {value_negative,-1}");
    refused([("x-message-ttl", Value::I64(315_360_000_001))],
        "invalid arg 'x-message-ttl' for queue 'q' in vhost '/': {value_too_large,315360000001}");
    refused([("x-expires", Value::I32(0))],
        "invalid arg 'x-expires' for queue 'q' in vhost '/': {value_zero,0}");
    refused([("x-max-length", Value::I32(-5))],
        "invalid arg 'x-max-length' for queue 'q' in vhost '/': {value_negative,-5}");
    refused([("x-max-length-bytes", Value::Bool(true))],
        r#"invalid arg 'x-max-length-bytes' for queue 'q' in vhost '/': "expected integer, got bool""#);
    refused([("x-max-priority", Value::I32(256))],
        "invalid arg 'x-max-priority' for queue 'q' in vhost '/': {max_value_exceeded,256}");
    refused([("x-overflow", text("drop-tail"))],
        "invalid arg 'x-overflow' for queue 'q' in vhost '/': invalid_overflow");
    refused([("x-overflow", Value::I32(1))],
        "invalid arg 'x-overflow' for queue 'q' in vhost '/': {unacceptable_type,signedint}");
    refused([("x-replication-confirm", text("both"))],
        r#"invalid arg 'x-replication-confirm' for queue 'q' in vhost '/': "replication-confirm 'both' is none of 'majority', 'all'""#);
    refused([("x-deliver-before-commit", text("true"))],
        "invalid arg 'x-deliver-before-commit' for queue 'q' in vhost '/': {unacceptable_type,longstr}");
    refused([("x-replication-confirm", Value::Bool(true))],
        "invalid arg 'x-replication-confirm' for queue 'q' in vhost '/': {unacceptable_type,bool}");
    refused([("x-single-active-consumer", text("yes"))],
        "invalid arg 'x-single-active-consumer' for queue 'q' in vhost '/': {unacceptable_type,longstr}");
    refused([("x-dead-letter-exchange", Value::I32(1))],
        "invalid type 'signedint' for arg 'x-dead-letter-exchange' in queue 'q' in vhost '/'");
    refused([("x-dead-letter-routing-key", text("k"))],
        "invalid arg 'x-dead-letter-routing-key' for queue 'q' in vhost '/': routing_key_but_no_dlx_defined");
    refused([("x-queue-type", text("fifo"))],
        r#"invalid arg 'x-queue-type' for queue 'q' in vhost '/': "unsupported queue type 'fifo'""#);
    refused([("x-queue-type", text("stream"))],
        "queue type 'stream' of queue 'q' in vhost '/' is not supported by this broker yet");
    refused([("x-queue-mode", text("eager"))],
        r#"invalid arg 'x-queue-mode' for queue 'q' in vhost '/': "unsupported queue mode 'eager'""#);
    refused([("x-queue-version", Value::I32(3))],
        r#"invalid arg 'x-queue-version' for queue 'q' in vhost '/': "unsupported queue version '3'""#);
    refused([("x-delivery-limit", Value::I32(3))],
        "invalid arg 'x-delivery-limit' for queue 'q' in vhost '/' of queue type rabbit_classic_queue");
    refused([("x-max-age", text("1h"))],
        "invalid arg 'x-max-age' for queue 'q' in vhost '/' of queue type rabbit_classic_queue");
    refused([("x-queue-type", text("quorum")), ("x-max-priority", Value::I32(3))],
        "invalid arg 'x-max-priority' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue");
    refused([("x-queue-type", text("quorum"))],
        "invalid property 'non-durable' for queue 'q' in vhost '/'");
    refused([("x-queue-leader-locator", text("nearest"))],
        "invalid arg 'x-queue-leader-locator' for queue 'q' in vhost '/': invalid_queue_locator_arg");
}

#[test]
fn good_arguments() {
    let mut world = World::new();
    let accepted = [
        ("x-message-ttl", Value::I32(0)),
        ("x-message-ttl", Value::I64(315_360_000_000)),
        ("x-message-ttl", Value::U8(1)),
        ("x-expires", Value::I16(1)),
        ("x-max-length", Value::I32(0)),
        ("x-max-priority", Value::I8(10)),
        ("x-overflow", text("reject-publish-dlx")),
        ("x-queue-mode", text("lazy")),
        ("x-queue-version", Value::I32(1)),
        ("x-queue-master-locator", text("min-masters")),
        ("x-consumer-timeout", Value::I32(60_000)),
        ("x-queue-type", text("classic")),
        ("x-dead-letter-exchange", text("not there")),
        ("x-whatever", Value::Void),
        ("ha-mode", text("all")),
    ];
    for (number, (name, value)) in accepted.into_iter().enumerate() {
        let declared = world.queue_with(&number.to_string(), table([(name, value)]));
        assert!(declared.unwrap().created, "{name}");
    }
    world.topology.assert_invariants();
}

/// Declares `q` with the first arguments, then with the second.
#[track_caller]
fn again(first: Table, second: Table, want: Option<&str>) {
    let mut world = World::new();
    world.queue_with("q", first).unwrap();
    match (world.queue_with("q", second), want) {
        (Ok(declared), None) => assert!(!declared.created),
        (Err(error), Some(want)) => {
            assert_eq!(error.to_string(), format!("inequivalent arg {want}"));
            assert_eq!(error.reply_code(), ReplyCode::PreconditionFailed);
        }
        (got, want) => panic!("got {got:?}, wanted {want:?}"),
    }
}

#[test]
#[rustfmt::skip] // a table
fn arguments_of_an_existing_queue() {
    let ttl = |value| table([("x-message-ttl", value)]);
    let kind = |name| table([("x-queue-type", text(name))]);
    let none = Table::new;
    again(ttl(Value::I32(5)), ttl(Value::I32(5)), None);
    again(ttl(Value::I32(5)), ttl(Value::I64(5)), None); // all integers are of one class
    again(ttl(Value::I32(5)), ttl(Value::U8(5)), None);
    again(ttl(Value::I32(5)), ttl(Value::I32(6)),
        Some("'x-message-ttl' for queue 'q' in vhost '/': received '6' but current is '5'"));
    again(ttl(Value::I32(5)), ttl(text("5")),
        Some("'x-message-ttl' for queue 'q' in vhost '/': received '5' but current is '5'"));
    again(ttl(Value::I32(5)), none(),
        Some("'x-message-ttl' for queue 'q' in vhost '/': received none but current is the value '5' of type 'signedint'"));
    again(none(), ttl(Value::I64(5)),
        Some("'x-message-ttl' for queue 'q' in vhost '/': received the value '5' of type 'long' but current is none"));
    again(none(), table([("x-dead-letter-exchange", text("dlx"))]),
        Some("'x-dead-letter-exchange' for queue 'q' in vhost '/': received the value 'dlx' of type 'longstr' but current is none"));
    again(none(), kind("classic"), None);
    again(kind("classic"), none(), None);
    again(none(), kind("quorum"),
        Some("'x-queue-type' for queue 'q' in vhost '/': received the value 'quorum' of type 'longstr' but current is none"));
    again(kind("classic"), kind("stream"),
        Some("'x-queue-type' for queue 'q' in vhost '/': received 'stream' but current is 'classic'"));
    again(none(), table([("x-mine", Value::Void)]), None); // only RabbitMQ's own arguments are compared
    again(none(), table([("x-delivery-limit", Value::I32(1))]), None); // not an argument of this type
}

#[test]
fn properties_of_an_existing_queue() {
    let mut world = World::new();
    let spec = world.queue_spec("q");
    let declare = |world: &mut World, spec: QueueSpec<'_>| {
        world.topology.declare_queue(spec).map_err(|error| (error.to_string(), error.reply_code()))
    };
    declare(&mut world, spec.clone()).unwrap();
    let (error, code) =
        declare(&mut world, QueueSpec { durable: true, ..spec.clone() }).unwrap_err();
    let want = "inequivalent arg 'durable' for queue 'q' in vhost '/': \
                received 'true' but current is 'false'";
    assert_eq!((error.as_str(), code), (want, ReplyCode::PreconditionFailed));
    let (error, _) =
        declare(&mut world, QueueSpec { auto_delete: true, ..spec.clone() }).unwrap_err();
    let want = "inequivalent arg 'auto_delete' for queue 'q' in vhost '/': \
                received 'true' but current is 'false'";
    assert_eq!(error, want);
    // The owner is compared first.
    let locked = "cannot obtain exclusive access to locked queue 'q' in vhost '/'. It could be \
                  originally declared on another connection or the exclusive property value does \
                  not match that of the original declaration.";
    let exclusive = QueueSpec { exclusive_owner: Some(OWNER), durable: true, ..spec.clone() };
    let (error, code) = declare(&mut world, exclusive.clone()).unwrap_err();
    assert_eq!((error.as_str(), code), (locked, ReplyCode::ResourceLocked));

    // An exclusive queue: its owner may declare it again, nobody else, and never as durable.
    let exclusive = QueueSpec { name: "e", ..exclusive };
    let id = declare(&mut world, exclusive.clone()).unwrap().id;
    assert!(!declare(&mut world, exclusive.clone()).unwrap().created);
    for owner in [None, Some(OTHER)] {
        let spec = QueueSpec { exclusive_owner: owner, ..exclusive.clone() };
        assert_eq!(declare(&mut world, spec).unwrap_err().0, locked.replace("'q'", "'e'"));
    }
    assert!(!world.topology.queue_by_id(id).unwrap().durable);
    assert!(world.topology.existing_queue(world.vhost, "e", OWNER).is_ok());
    let error = world.topology.existing_queue(world.vhost, "e", OTHER).unwrap_err();
    assert_eq!(error.to_string(), locked.replace("'q'", "'e'"));
    let error = world.topology.existing_queue(world.vhost, "f", OTHER).unwrap_err();
    assert_eq!(error.to_string(), "no queue 'f' in vhost '/'");
    assert_eq!(error.reply_code(), ReplyCode::NotFound);
    assert_eq!(world.topology.queues_owned_by(OWNER), [id]);
    world.topology.assert_invariants();
    world.topology.remove_queue(id);
    assert_eq!(world.topology.queues_owned_by(OWNER), []);
    world.topology.assert_invariants();
}

#[test]
fn queue_names() {
    let mut world = World::new();
    let spec = world.queue_spec("amq.mine");
    let error = world.topology.declare_queue(spec.clone()).unwrap_err();
    assert_eq!(error.to_string(), "queue name 'amq.mine' contains reserved prefix 'amq.*'");
    assert_eq!(error.reply_code(), ReplyCode::AccessRefused);
    let named = QueueSpec { server_named: true, name: "amq.gen-1", ..spec };
    assert!(world.topology.declare_queue(named).unwrap().created);
    // Line ends are dropped from names.
    let id = world.queue("a\r\nb\n");
    assert_eq!(&*world.topology.queue(world.vhost, "ab").unwrap().name, "ab");
    assert_eq!(world.queue("ab"), id);

    let prefix = |arguments: Table| {
        Topology::server_name_prefix(&arguments).map(|prefix| prefix.into_owned())
    };
    assert_eq!(prefix(Table::new()).unwrap(), "amq.gen");
    assert_eq!(prefix(table([("x-name-prefix", text("mine"))])).unwrap(), "mine");
    assert_eq!(
        prefix(table([("x-queue-type", text("quorum"))])).unwrap_err().to_string(),
        "Cannot declare a server-named queue for type rabbit_quorum_queue"
    );
    let long = "p".repeat(65);
    assert_eq!(
        prefix(table([("x-name-prefix", text(&long))])).unwrap_err().to_string(),
        format!("Queue name prefix '{long}' exceeds the 64-byte limit")
    );
    // It is not kept as an argument.
    let id = world.queue_with("n", table([("x-name-prefix", text("mine"))])).unwrap().id;
    assert!(world.topology.queue_by_id(id).unwrap().arguments.is_empty());
}

#[test]
fn quorum_queues() {
    let mut world = World::new();
    let arguments = table([("x-queue-type", text("quorum")), ("x-delivery-limit", Value::I32(3))]);
    let spec = QueueSpec { durable: true, arguments, ..world.queue_spec("q") };
    let id = world.topology.declare_queue(spec.clone()).unwrap().id;
    let queue = world.topology.queue_by_id(id).unwrap();
    assert_eq!((queue.kind, queue.options().delivery_limit), (QueueKind::Quorum, Some(3)));
    assert!(queue.options().counts_deliveries);
    let exclusive = QueueSpec { name: "e", exclusive_owner: Some(OWNER), ..spec.clone() };
    let error = world.topology.declare_queue(exclusive).unwrap_err();
    assert_eq!(error.to_string(), "invalid property 'exclusive-owner' for queue 'e' in vhost '/'");
    // Without a limit of its own none, as in RabbitMQ 3.13; negative: none.
    let mut arguments = table([("x-queue-type", text("quorum"))]);
    let spec = QueueSpec { name: "d", arguments: arguments.clone(), ..spec };
    let id = world.topology.declare_queue(spec.clone()).unwrap().id;
    let limit =
        |world: &World, id| world.topology.queue_by_id(id).unwrap().options().delivery_limit;
    assert_eq!(limit(&world, id), None);
    arguments.set("x-delivery-limit", -1);
    let id = world.topology.declare_queue(QueueSpec { name: "u", arguments, ..spec }).unwrap().id;
    assert_eq!(limit(&world, id), None);
}

#[test]
fn options_from_arguments() {
    let mut world = World::new();
    let arguments = table([
        ("x-max-length", Value::I32(10)),
        ("x-max-length-bytes", Value::I64(1 << 40)),
        ("x-overflow", text("reject-publish")),
        ("x-message-ttl", Value::I32(0)),
        ("x-expires", Value::I32(1000)),
        ("x-max-priority", Value::I32(9)),
        ("x-single-active-consumer", Value::Bool(true)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text("dead")),
    ]);
    let id = world.queue_with("q", arguments).unwrap().id;
    let queue = world.topology.queue_by_id(id).unwrap();
    let want = Options {
        max_length: Some(10),
        max_length_bytes: Some(1 << 40),
        overflow: Overflow::RejectPublish,
        message_ttl_ms: Some(0),
        expires_ms: Some(1000),
        max_priority: Some(9),
        single_active: true,
        dead_letter: true,
        ..Options::default()
    };
    assert_eq!(queue.options(), want);
    assert_eq!(queue.dead_letter(), Some(("", Some("dead"))));
    let id = world.queue("plain");
    let queue = world.topology.queue_by_id(id).unwrap();
    assert_eq!(queue.options(), Options::default());
    assert_eq!(queue.dead_letter(), None);
}

#[track_caller]
fn exchange_refused(spec: ExchangeSpec<'_>, world: &mut World, want: &str, code: ReplyCode) {
    let error = world.topology.declare_exchange(spec).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.reply_code()), (want, code));
}

#[test]
fn exchanges() {
    use ReplyCode::{AccessRefused, PreconditionFailed};
    let mut world = World::new();
    let spec = world.exchange_spec("x", "direct");
    let id = world.topology.declare_exchange(spec.clone()).unwrap();
    assert_eq!(world.topology.declare_exchange(spec.clone()).unwrap(), id);
    let different = |arg: &str, received: &str, current: &str| {
        format!(
            "inequivalent arg '{arg}' for exchange 'x' in vhost '/': received '{received}' but \
             current is '{current}'"
        )
    };
    let with = |change: fn(&mut ExchangeSpec<'_>)| {
        let mut spec = spec.clone();
        change(&mut spec);
        spec
    };
    for (change, want) in [
        (with(|x| x.kind = "topic"), different("type", "topic", "direct")),
        (with(|x| x.durable = true), different("durable", "true", "false")),
        (with(|x| x.auto_delete = true), different("auto_delete", "true", "false")),
        (with(|x| x.internal = true), different("internal", "true", "false")),
        (
            with(|x| x.arguments.set("alternate-exchange", "ae")),
            "inequivalent arg 'alternate-exchange' for exchange 'x' in vhost '/': received the \
             value 'ae' of type 'longstr' but current is none"
                .to_owned(),
        ),
        (with(|x| x.kind = "queue"), "unknown exchange type 'queue'".to_owned()),
    ] {
        assert!(world.topology.check_exchange_equivalent(&change).is_err());
        exchange_refused(change, &mut world, &want, PreconditionFailed);
    }
    // Other arguments are not compared.
    let other = with(|x| x.arguments.set("whatever", 1));
    assert_eq!(world.topology.declare_exchange(other).unwrap(), id);

    let spec = world.exchange_spec("", "direct");
    let want = "operation not permitted on the default exchange";
    exchange_refused(spec, &mut world, want, AccessRefused);
    let spec = world.exchange_spec("amq.x", "direct");
    let want = "exchange name 'amq.x' contains reserved prefix 'amq.*'";
    exchange_refused(spec, &mut world, want, AccessRefused);
    // One that exists is not refused for its name.
    let spec = ExchangeSpec { durable: true, ..world.exchange_spec("amq.direct", "direct") };
    assert_eq!(world.topology.declare_exchange(spec).unwrap(), world.exchange_id("amq.direct"));

    let want = "invalid type 'signedint' for arg 'alternate-exchange' in exchange 'y' in vhost '/'";
    let arguments = table([("alternate-exchange", Value::I32(1))]);
    let spec = ExchangeSpec { arguments, ..world.exchange_spec("y", "direct") };
    exchange_refused(spec, &mut world, want, PreconditionFailed);
    let arguments = table([("hash-header", text("a")), ("hash-property", text("message_id"))]);
    let spec = ExchangeSpec { arguments, ..world.exchange_spec("y", "x-consistent-hash") };
    let want = "hash-header and hash-property are mutually exclusive";
    exchange_refused(spec, &mut world, want, PreconditionFailed);
    let arguments = table([("hash-property", text("app_id"))]);
    let spec = ExchangeSpec { arguments, ..world.exchange_spec("y", "x-consistent-hash") };
    exchange_refused(spec, &mut world, "Unsupported property: app_id", PreconditionFailed);
    let arguments = table([("x-recent-history-length", Value::I32(0))]);
    let spec = ExchangeSpec { arguments, ..world.exchange_spec("y", "x-recent-history") };
    let want = "Invalid argument 0, 'x-recent-history-length' must be a positive integer";
    exchange_refused(spec, &mut world, want, PreconditionFailed);
    let error = world.topology.existing_exchange(world.vhost, "y").unwrap_err();
    assert_eq!(error.to_string(), "no exchange 'y' in vhost '/'");
}

#[test]
fn deleting_exchanges() {
    let mut world = World::new();
    world.exchange("x", "direct");
    world.queue("q");
    world.bind("x", "q", "k");
    let vhost = world.vhost;
    let mut delete = |name: &str, if_unused| {
        let result = world.topology.delete_exchange(vhost, name, if_unused);
        world.topology.assert_invariants();
        result
            .map(|removed| (removed.exchanges.len(), removed.bindings.len()))
            .map_err(|error| (error.to_string(), error.reply_code()))
    };
    let refused = |text: &str| Err((text.to_owned(), ReplyCode::AccessRefused));
    assert_eq!(delete("", false), refused("operation not permitted on the default exchange"));
    let want = "deletion of system exchange 'amq.topic' in vhost '/' not allowed";
    assert_eq!(delete("amq.topic", false), refused(want));
    let want = ("exchange 'x' in vhost '/' in use".to_owned(), ReplyCode::PreconditionFailed);
    assert_eq!(delete("x", true), Err(want));
    assert_eq!(delete("x", false), Ok((1, 1)));
    assert_eq!(delete("x", false), Ok((0, 0)));
}

/// An error for what the binding asks, in the order in which RabbitMQ looks.
#[test]
fn bad_bindings() {
    let mut world = World::new();
    world.queue("q");
    world.exchange("hash", "x-consistent-hash");
    world.exchange("local", "x-local-random");
    let quorum = table([("x-queue-type", text("quorum"))]);
    let spec = QueueSpec { durable: true, arguments: quorum, ..world.queue_spec("quorum") };
    world.topology.declare_queue(spec).unwrap();
    let own = QueueSpec { exclusive_owner: Some(OWNER), ..world.queue_spec("own") };
    world.topology.declare_queue(own).unwrap();

    let (q, x) = (Destination::Queue("q"), Destination::Exchange("hash"));
    let none = Table::new;
    let x_match = |value| table([("x-match", value)]);
    #[rustfmt::skip] // a table
    let rows = [
        ("none", q, "", none(), "no exchange 'none' in vhost '/'"),
        ("amq.direct", Destination::Queue("none"), "", none(), "no queue 'none' in vhost '/'"),
        ("amq.direct", Destination::Exchange("none"), "", none(), "no exchange 'none' in vhost '/'"),
        ("", q, "", none(), "operation not permitted on the default exchange"),
        ("amq.direct", Destination::Exchange(""), "", none(), "operation not permitted on the default exchange"),
        ("hash", q, "a", none(), "The binding key must be an integer: <<\"a\">>"),
        ("hash", q, "0", none(), "The binding key must be greater than 0"),
        ("hash", q, "10001", none(), "The binding key must not exceed 10000"),
        ("local", q, "k", none(), "Non empty binding 'k' key not permitted"),
        ("local", x, "", none(), "Destination not found"),
        ("local", Destination::Queue("quorum"), "", none(), "Queue type rabbit_quorum_queue not valid for this exchange type"),
        ("amq.headers", q, "", x_match(text("some")), "Invalid x-match field value <<\"some\">>; expected all, any, all-with-x, or any-with-x"),
        ("amq.headers", q, "", x_match(Value::I32(1)), "Invalid x-match field type signedint (value 1); expected longstr"),
    ];
    for (source, to, key, arguments, want) in rows {
        let error = world.try_bind(source, to, key, arguments).unwrap_err();
        assert_eq!(error.to_string(), want);
    }
    let own = Destination::Queue("own");
    let bind = |world: &mut World, connection| {
        let vhost = world.vhost;
        world.topology.bind(vhost, "amq.direct", own, "", Table::new(), connection)
    };
    let error = bind(&mut world, Some(OTHER)).unwrap_err();
    assert_eq!(error.reply_code(), ReplyCode::ResourceLocked);
    assert!(error.to_string().starts_with("cannot obtain exclusive access to locked queue 'own'"));
    assert!(bind(&mut world, Some(OWNER)).unwrap().created);
    assert!(!bind(&mut world, None).unwrap().created);
    // What the binding asks for comes first; one that is not there is nobody's to remove.
    let vhost = world.vhost;
    let error =
        world.topology.bind(vhost, "hash", own, "x", Table::new(), Some(OTHER)).unwrap_err();
    assert!(matches!(error, BindError::WeightNotNumber(_)));
    let mut unbind =
        |key| world.topology.unbind(vhost, "amq.direct", own, key, Table::new(), Some(OTHER));
    assert!(unbind("never bound").unwrap().bindings.is_empty());
    assert!(matches!(unbind("").unwrap_err(), BindError::Locked(_)));
    assert_eq!(world.topology.binding_count(), 1);
    world.topology.assert_invariants();
}

#[test]
fn queue_limit_of_a_vhost() {
    let mut world = World::new();
    let limits = serde_json::json!({ "max-queues": 1 });
    world.topology.set_parameter("/", "vhost-limits", "limits", limits).unwrap();
    world.queue("q");
    world.queue("q");
    let error = world.queue_with("r", Table::new()).unwrap_err();
    let want = "cannot declare queue 'r': queue limit in vhost '/' (1) is reached";
    assert_eq!(error.to_string(), want);
    assert!(matches!(error, DeclareError::QueueLimit { limit: 1, .. }));
    world.topology.clear_parameter("/", "vhost-limits", "limits").unwrap();
    world.queue("r");
}

#[test]
fn default_queue_type_of_a_vhost() {
    let mut world = World::new();
    world.topology.set_default_queue_type("/", Some(QueueKind::Quorum)).unwrap();
    let kind = |world: &World, name: &str| {
        let queue = world.topology.queue(world.vhost, name).unwrap();
        (queue.kind, queue.arguments.get("x-queue-type").and_then(Value::as_str) == Some("quorum"))
    };
    let durable = QueueSpec { durable: true, ..world.queue_spec("durable") };
    world.topology.declare_queue(durable.clone()).unwrap();
    world.topology.declare_queue(durable.clone()).unwrap();
    assert_eq!(kind(&world, "durable"), (QueueKind::Quorum, true));
    // Where it cannot be a quorum queue, it is not.
    world.queue("transient");
    assert_eq!(kind(&world, "transient"), (QueueKind::Classic, false));
    let named = QueueSpec { name: "amq.gen-1", server_named: true, ..durable.clone() };
    world.topology.declare_queue(named).unwrap();
    assert_eq!(kind(&world, "amq.gen-1"), (QueueKind::Classic, false));
    // What a queue says itself goes before it.
    let arguments = table([("x-queue-type", text("classic"))]);
    let classic = QueueSpec { name: "classic", arguments, ..durable };
    world.topology.declare_queue(classic).unwrap();
    assert_eq!(kind(&world, "classic"), (QueueKind::Classic, false));
}

/// Clients that know nothing of an operator's change go on as they did.
#[test]
fn declarations_after_arguments_were_changed() {
    let mut world = World::new();
    let limited = |limit: i32| table([("x-max-length", Value::I32(limit))]);
    let both = || table([("x-max-length", Value::I32(9)), ("x-expires", Value::I32(1000))]);
    let change = |world: &mut World, set: Table, remove: &[&str]| {
        let remove = remove.iter().map(ToString::to_string).collect();
        let change = ArgumentsChange { keeps: true, set, remove };
        world.topology.set_queue_arguments("/", "q", change).unwrap();
    };
    world.queue_with("q", limited(5)).unwrap();
    change(&mut world, both(), &[]);
    world.queue_with("q", limited(5)).unwrap();
    world.queue_with("q", both()).unwrap();
    // What was neither declared nor set is refused; the text has what holds.
    let refused =
        |world: &mut World, arguments| world.queue_with("q", arguments).unwrap_err().to_string();
    let told = refused(&mut world, table([("x-max-length", Value::I32(9))]));
    assert!(
        told.contains("'x-expires'") && told.contains("received none but current is"),
        "{told}"
    );
    refused(&mut world, Table::new());
    // Changed again: what was declared counts, not what was between.
    change(&mut world, limited(11), &["x-expires"]);
    world.queue_with("q", limited(5)).unwrap();
    world.queue_with("q", limited(11)).unwrap();
    refused(&mut world, both());
    // A queue that is declared anew has only that.
    let id = world.topology.queue(world.vhost, "q").unwrap().id;
    world.topology.remove_queue(id);
    world.queue_with("q", limited(11)).unwrap();
    refused(&mut world, limited(5));
}

/// What is small is made for longer than what is large, and everything can be deleted.
#[test]
fn names_have_room() {
    let mut world = World::new();
    let note = |bytes| {
        let mut arguments = Table::new();
        arguments.set("x-note", Value::LongStr(vec![b'a'; bytes]));
        arguments
    };
    let before = world.topology.weight();
    world.topology.set_weight_max(before + 100_000);
    let full = |error| matches!(error, DeclareError::NamesFull(_));
    let mut large = 0;
    while world.queue_with(&format!("large-{large}"), note(2000)).is_ok() {
        large += 1;
    }
    assert!(world.topology.weight() > (before + 100_000) / 2);
    assert!(full(world.queue_with("large", note(2000)).unwrap_err()));
    // One that is there is declared again, and small ones are made until they take all.
    world.queue_with("large-0", note(2000)).unwrap();
    let error = (0..1000).find_map(|it| world.queue_with(&format!("s-{it}"), Table::new()).err());
    assert!(full(error.unwrap()));
    let vhost = world.vhost;
    let bound = world.topology.bind(
        vhost,
        "amq.topic",
        Destination::Queue("large-0"),
        "a.b",
        Table::new(),
        None,
    );
    assert!(matches!(bound.unwrap_err(), BindError::NamesFull(_)));
    world.topology.set_weight_max(2 * before + 1_000_000);
    world.queue("another");
    world.topology.assert_invariants();
}
