//! Which permissions each method asks for: every method of AMQP, with every set of permissions.
//!
//! The methods are those of the generated code: one that has no row here fails the test.

mod node;

use std::collections::BTreeSet;

use leveret_amqp::content::Properties;
use leveret_amqp::method::*;
use leveret_amqp::table::{RawTable, Table, Value};
use node::{Node, publish_bytes};

/// Where the methods are named.
const METHODS: &str = include_str!("../../amqp/src/method/all.rs");

/// What a method asks for, of those who may open the vhost.
#[derive(Clone, Copy, Debug)]
enum Asks {
    /// All of these: `c`, `w`, `r`.
    All(&'static str),
    /// One of the three.
    Any,
    /// Only a server sends it, or it comes before a vhost is open.
    Never,
}

use Asks::{All, Any, Never};

/// RabbitMQ's rules (`rabbit_channel.erl`). The same method in two forms has two rows.
#[rustfmt::skip] // a table
const ROWS: &[(&str, &str, Asks)] = &[
    ("connection.start",            "", Never),
    ("connection.start-ok",         "", Never),
    ("connection.secure",           "", Never),
    ("connection.secure-ok",        "", Never),
    ("connection.tune",             "", Never),
    ("connection.tune-ok",          "", Never),
    ("connection.open",             "", Never),
    ("connection.open-ok",          "", Never),
    ("connection.close",            "", All("")),
    ("connection.close-ok",         "", Never),
    ("connection.blocked",          "", Never),
    ("connection.unblocked",        "", Never),
    ("connection.update-secret",    "", Never),
    ("connection.update-secret-ok", "", Never),
    ("channel.open",                "", All("")),
    ("channel.open-ok",             "", Never),
    ("channel.flow",                "", All("")),
    ("channel.flow-ok",             "", Never),
    ("channel.close",               "", All("")),
    ("channel.close-ok",            "", Never),
    ("access.request",              "", All("")),
    ("access.request-ok",           "", Never),
    ("exchange.declare",            "", All("c")),
    ("exchange.declare",            "passive", Any),
    ("exchange.declare",            "alternate", All("cwr")),
    ("exchange.declare",            "existing", All("c")),
    ("exchange.declare-ok",         "", Never),
    ("exchange.delete",             "", All("c")),
    ("exchange.delete-ok",          "", Never),
    ("exchange.bind",               "", All("wr")),
    ("exchange.bind-ok",            "", Never),
    ("exchange.unbind",             "", All("wr")),
    ("exchange.unbind-ok",          "", Never),
    ("queue.declare",               "", All("c")),
    ("queue.declare",               "passive", Any),
    ("queue.declare",               "dead letters", All("cwr")),
    ("queue.declare",               "existing", All("c")),
    ("queue.declare-ok",            "", Never),
    ("queue.bind",                  "", All("wr")),
    ("queue.bind-ok",               "", Never),
    ("queue.purge",                 "", All("r")),
    ("queue.purge-ok",              "", Never),
    ("queue.delete",                "", All("c")),
    ("queue.delete-ok",             "", Never),
    ("queue.unbind",                "", All("wr")),
    ("queue.unbind-ok",             "", Never),
    ("basic.qos",                   "", All("")),
    ("basic.qos-ok",                "", Never),
    ("basic.consume",               "", All("r")),
    ("basic.consume-ok",            "", Never),
    ("basic.cancel",                "", All("")),
    ("basic.cancel-ok",             "", Never),
    ("basic.publish",               "", All("w")),
    ("basic.publish",               "to nothing", All("w")),
    ("basic.return",                "", Never),
    ("basic.deliver",               "", Never),
    ("basic.get",                   "", All("r")),
    ("basic.get-ok",                "", Never),
    ("basic.get-empty",             "", Never),
    ("basic.ack",                   "", All("")),
    ("basic.reject",                "", All("")),
    ("basic.recover-async",         "", All("")),
    ("basic.recover",               "", All("")),
    ("basic.recover-ok",            "", Never),
    ("basic.nack",                  "", All("")),
    ("confirm.select",              "", All("")),
    ("confirm.select-ok",           "", Never),
    ("tx.select",                   "", All("")),
    ("tx.select-ok",                "", Never),
    ("tx.commit",                   "", All("")),
    ("tx.commit-ok",                "", Never),
    ("tx.rollback",                 "", All("")),
    ("tx.rollback-ok",              "", Never),
];

#[test]
fn every_method_has_a_row() {
    let named = METHODS.lines().filter_map(|line| line.split_once("(_) => \""));
    let methods: BTreeSet<_> = named.filter_map(|(_, rest)| rest.strip_suffix("\",")).collect();
    let rows: BTreeSet<_> = ROWS.iter().map(|(method, ..)| *method).collect();
    assert!(methods.len() > 60, "{methods:?}");
    assert_eq!(rows, methods);
}

/// A node with a queue and an exchange `o`, where user `u` has what `has` says for names that begin so.
fn node(has: &str, tags: &[&str]) -> Node {
    let mut node = Node::new();
    let hash = leveret_topology::PasswordHash::new("p", [0; 4]);
    node.topology.add_user("u", hash, tags).unwrap();
    let [configure, write, read] =
        ["c", "w", "r"].map(|one| if has.contains(one) { "^o" } else { "" });
    node.topology.set_permissions("u", "/", configure, write, read).unwrap();
    let admin = node.client();
    node.declare(admin, "o");
    let declare = exchange::Declare { exchange: "o", kind: "topic", ..Default::default() };
    assert_eq!(node.say(admin, 1, &declare), "1 exchange.declare-ok");
    node
}

/// The client says it; what it is answered.
fn say(node: &mut Node, link: usize, method: &str, form: &str) -> String {
    let mut table = Table::default();
    match form {
        "dead letters" => table.push("x-dead-letter-exchange", Value::LongStr(b"o.dead".to_vec())),
        "alternate" => table.push("alternate-exchange", Value::LongStr(b"o.other".to_vec())),
        _ => {}
    }
    let table = table.to_bytes();
    let arguments = RawTable::unchecked(&table);
    let passive = form == "passive";
    let name = if passive || form == "existing" { "o" } else { "o.new" };
    match method {
        "connection.close" => node.say(
            link,
            0,
            &connection::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 },
        ),
        "channel.open" => node.say(link, 2, &channel::Open { out_of_band: "" }),
        "channel.flow" => node.say(link, 1, &channel::Flow { active: true }),
        "channel.close" => node.say(
            link,
            1,
            &channel::Close { reply_code: 200, reply_text: "", class_id: 0, method_id: 0 },
        ),
        "access.request" => node.say(link, 1, &access::Request::default()),
        "exchange.declare" => {
            let kind = "topic";
            node.say(
                link,
                1,
                &exchange::Declare {
                    exchange: name,
                    kind,
                    passive,
                    arguments,
                    ..Default::default()
                },
            )
        }
        "exchange.delete" => {
            node.say(link, 1, &exchange::Delete { exchange: "o", ..Default::default() })
        }
        "exchange.bind" => node.say(
            link,
            1,
            &exchange::Bind { source: "o", destination: "o", ..Default::default() },
        ),
        "exchange.unbind" => node.say(
            link,
            1,
            &exchange::Unbind { source: "o", destination: "o", ..Default::default() },
        ),
        "queue.declare" => node.say(
            link,
            1,
            &queue::Declare { queue: name, passive, arguments, ..Default::default() },
        ),
        "queue.bind" => {
            node.say(link, 1, &queue::Bind { queue: "o", exchange: "o", ..Default::default() })
        }
        "queue.unbind" => {
            node.say(link, 1, &queue::Unbind { queue: "o", exchange: "o", ..Default::default() })
        }
        "queue.purge" => node.say(link, 1, &queue::Purge { queue: "o", ..Default::default() }),
        "queue.delete" => node.say(link, 1, &queue::Delete { queue: "o", ..Default::default() }),
        "basic.qos" => {
            node.say(link, 1, &basic::Qos { prefetch_size: 0, prefetch_count: 1, global: false })
        }
        "basic.consume" => node.say(link, 1, &basic::Consume { queue: "o", ..Default::default() }),
        "basic.cancel" => node.say(link, 1, &basic::Cancel { consumer_tag: "t", no_wait: false }),
        "basic.publish" => {
            let exchange = if form.is_empty() { "o" } else { "o.none" };
            let bytes = publish_bytes(1, exchange, "k", b"x", &Properties::default(), false);
            node.bytes(link, &bytes)
        }
        "basic.get" => node.say(link, 1, &basic::Get { queue: "o", ..Default::default() }),
        "basic.ack" => node.say(link, 1, &basic::Ack { delivery_tag: 1, multiple: false }),
        "basic.reject" => node.say(link, 1, &basic::Reject { delivery_tag: 1, requeue: true }),
        "basic.nack" => {
            node.say(link, 1, &basic::Nack { delivery_tag: 1, multiple: false, requeue: true })
        }
        "basic.recover" => node.say(link, 1, &basic::Recover { requeue: true }),
        "basic.recover-async" => node.say(link, 1, &basic::RecoverAsync { requeue: true }),
        "confirm.select" => node.say(link, 1, &confirm::Select { no_wait: false }),
        "tx.select" => node.say(link, 1, &tx::Select),
        "tx.commit" => node.say(link, 1, &tx::Commit),
        "tx.rollback" => node.say(link, 1, &tx::Rollback),
        other => panic!("{other} is not said"),
    }
}

#[test]
fn each_method_asks_for_its_permissions() {
    let sets = ["", "c", "w", "r", "cw", "cr", "wr", "cwr"];
    for (method, form, asks) in ROWS {
        let may = |has: &str| match asks {
            Never => None,
            Any => Some(!has.is_empty()),
            All(asked) => Some(asked.chars().all(|one| has.contains(one))),
        };
        // No tag stands for a permission.
        for tags in [&[][..], &["administrator", "monitoring", "policymaker", "management"]] {
            for has in sets {
                let Some(may) = may(has) else { continue };
                let mut node = node(has, tags);
                let link = node.connect_with(&[], "\0u\0p", "/");
                node.open(link, 1);
                let said = say(&mut node, link, method, form);
                let is_refused = said.contains("ACCESS_REFUSED");
                assert_eq!(!is_refused, may, "{method} {form} with '{has}' {tags:?}: {said}");
            }
        }
    }
}

/// Without permissions in a vhost, be they empty ones, no tag opens it.
#[test]
fn a_vhost_is_opened_with_permissions_alone() {
    for tags in [&[][..], &["administrator"], &["monitoring", "management"]] {
        let mut node = Node::new();
        let hash = leveret_topology::PasswordHash::new("p", [0; 4]);
        node.topology.add_vhost("v").unwrap();
        node.topology.add_user("u", hash, tags).unwrap();
        let opened = |node: &mut Node| {
            let link = node.connect_with(&[], "\0u\0p", "/");
            node.open(link, 1);
        };
        node.topology.set_permissions("u", "/", "", "", "").unwrap();
        opened(&mut node);
        node.topology.clear_permissions("u", "/").unwrap();
        let refused = node.topology.check_vhost_access("u", "/");
        assert!(refused.is_err() && node.topology.check_vhost_access("u", "v").is_err());
    }
}

/// Keys of topic exchanges: what is published with, bound and unbound.
#[test]
fn topics_are_asked_for_by_key() {
    #[rustfmt::skip] // a table
    let rows = [
        ("basic.publish", ("^k$", ""),   true),
        ("basic.publish", ("^a$", ".*"), false),
        ("queue.bind",    ("", "^$"),    true),
        ("queue.bind",    (".*", "^a$"), false),
        ("queue.unbind",  ("", "^$"),    true),
        ("queue.unbind",  (".*", "^a$"), false),
        ("exchange.bind", (".*", "^a$"), false),
        ("exchange.unbind", (".*", "^a$"), false),
    ];
    for (method, (write, read), may) in rows {
        let mut node = node("cwr", &["administrator"]);
        node.topology.set_topic_permissions("u", "/", "o", write, read).unwrap();
        let link = node.connect_with(&[], "\0u\0p", "/");
        node.open(link, 1);
        let said = say(&mut node, link, method, "");
        assert_eq!(!said.contains("ACCESS_REFUSED"), may, "{method} {write} {read}: {said}");
    }
}
