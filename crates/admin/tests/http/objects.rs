//! What can be made, seen, changed and deleted: one table a kind of object.

use leveret_client::{Connection, Options, Uri};
use serde_json::{Value, json};

use crate::node::{Node, wait_until};

/// Requests in order: method, path, body, status, a part of the answer.
#[track_caller]
fn play(node: &Node, rows: &[(&str, &str, &str, u16, &str)]) {
    for (method, path, body, status, part) in rows {
        let got = node.ask(method, path, body);
        assert_eq!(got.status, *status, "{method} {path}: {}", got.text());
        assert!(got.text().contains(part), "{method} {path}: no {part} in {}", got.text());
    }
}

#[test]
#[rustfmt::skip] // a table
fn vhosts() {
    let node = Node::start();
    play(&node, &[
        ("GET",    "/api/vhosts",                 "",                           200, r#""name":"/""#),
        ("PUT",    "/api/vhosts/a%2Fb",           "",                           201, ""),
        ("PUT",    "/api/vhosts/a%2Fb",           r#"{"description": "d", "tags": "x, y"}"#, 204, ""),
        ("GET",    "/api/vhosts/a%2Fb",           "",                           200, r#""tags":["x","y"]"#),
        ("GET",    "/api/vhosts/a%2Fb",           "",                           200, r#""description":"d""#),
        ("PUT",    "/api/vhosts/a%2Fb",           r#"{"default_queue_type": "quorum"}"#, 204, ""),
        ("GET",    "/api/vhosts/a%2Fb",           "",                           200, r#""default_queue_type":"quorum""#),
        ("PUT",    "/api/vhosts/a%2Fb",           r#"{"default_queue_type": "x"}"#, 400, "x"),
        ("PUT",    "/api/vhosts/a%2Fb",           r#"{"tags": 7}"#,             400, "'tags' must be"),
        // Who makes one may use it.
        ("GET",    "/api/vhosts/a%2Fb/permissions", "",                         200, r#""user":"guest""#),
        ("GET",    "/api/vhosts/a%2Fb/topic-permissions", "",                   200, "[]"),
        ("GET",    "/api/vhosts/a%2Fb/connections", "",                         200, "[]"),
        ("GET",    "/api/vhosts/a%2Fb/channels",  "",                           200, "[]"),
        ("POST",   "/api/vhosts/a%2Fb/start/rabbit@test", "",                   204, ""),
        ("POST",   "/api/vhosts/a%2Fb/start/other", "",                         404, ""),
        ("POST",   "/api/vhosts/a%2Fb/deletion/protection", "",                 204, ""),
        ("GET",    "/api/vhosts/a%2Fb",           "",                           200, r#""protected_from_deletion":true"#),
        ("GET",    "/api/definitions",            "",                           200, r#""protected_from_deletion":true"#),
        ("DELETE", "/api/vhosts/a%2Fb",           "",                           412, "protected from deletion"),
        ("PUT",    "/api/vhosts/a%2Fb",           r#"{"tags": "x"}"#,           204, ""),
        ("DELETE", "/api/vhosts/a%2Fb",           "",                           412, "protected from deletion"),
        ("DELETE", "/api/vhosts/a%2Fb/deletion/protection", "",                 204, ""),
        ("GET",    "/api/vhosts/a%2Fb",           "",                           200, r#""protected_from_deletion":false"#),
        ("PUT",    "/api/vhosts/a%2Fb",           r#"{"protected_from_deletion": true}"#, 204, ""),
        ("DELETE", "/api/vhosts/a%2Fb",           "",                           412, "protected from deletion"),
        ("PUT",    "/api/vhosts/a%2Fb",           r#"{"protected_from_deletion": "x"}"#, 400, "protected_from_deletion"),
        ("PUT",    "/api/vhosts/a%2Fb",           r#"{"protected_from_deletion": false}"#, 204, ""),
        ("POST",   "/api/vhosts/nowhere/deletion/protection", "",               404, ""),
        ("DELETE", "/api/vhosts/a%2Fb",           "",                           204, ""),
        ("DELETE", "/api/vhosts/a%2Fb",           "",                           404, ""),
        ("GET",    "/api/vhosts/a%2Fb",           "",                           404, ""),
        ("GET",    "/api/vhosts/nowhere/permissions", "",                       404, ""),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn users_and_permissions() {
    let node = Node::start();
    play(&node, &[
        ("PUT",    "/api/users/u",                r#"{"password": "p", "tags": "management"}"#, 201, ""),
        ("PUT",    "/api/users/u",                r#"{"password": "q", "tags": ["management"]}"#, 204, ""),
        ("GET",    "/api/users/u",                "",                           200, r#""tags":["management"]"#),
        ("GET",    "/api/users",                  "",                           200, "rabbit_password_hashing_sha256"),
        ("PUT",    "/api/users/h",                r#"{"password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "tags": ""}"#, 201, ""),
        ("PUT",    "/api/users/h",                r#"{"password_hash": "?", "tags": ""}"#, 400, "not base 64"),
        ("PUT",    "/api/users/h",                r#"{"password_hash": "", "hashing_algorithm": "x", "tags": ""}"#, 400, "hashing_algorithm"),
        ("PUT",    "/api/users/n",                r#"{"tags": ""}"#,            201, ""),
        ("PUT",    "/api/users/m",                r#"{"password": "x"}"#,       400, "tags_not_present"),
        ("PUT",    "/api/users/m",                r#"{"password": "", "tags": ""}"#, 400, "empty"),
        ("PUT",    "/api/users/m",                r#"{"password": "a", "password_hash": "b", "tags": ""}"#, 400, "both_password_and_password_hash_are_provided"),
        ("GET",    "/api/users/m",                "",                           404, ""),
        ("GET",    "/api/users/without-permissions", "",                        200, r#""name":"u""#),
        ("PUT",    "/api/permissions/%2F/u",      r#"{"configure": "^a", "write": ".*", "read": ""}"#, 201, ""),
        ("PUT",    "/api/permissions/%2F/u",      r#"{"configure": "^b", "write": ".*", "read": ""}"#, 204, ""),
        ("PUT",    "/api/permissions/%2F/u",      r#"{"configure": "("}"#,      400, r#""[{key_missing,write},{key_missing,read}]""#),
        ("PUT",    "/api/permissions/%2F/u",      r#"{"configure": "(", "write": "", "read": ""}"#, 400, "("),
        ("PUT",    "/api/permissions/%2F/nobody", r#"{"configure": "", "write": "", "read": ""}"#, 400, "no user"),
        ("PUT",    "/api/permissions/no/u",       r#"{"configure": "", "write": "", "read": ""}"#, 400, "no vhost"),
        ("GET",    "/api/permissions/%2F/u",      "",                           200, r#""configure":"^b""#),
        ("GET",    "/api/permissions",            "",                           200, r#""user":"guest""#),
        ("GET",    "/api/users/u/permissions",    "",                           200, r#""vhost":"/""#),
        ("PUT",    "/api/topic-permissions/%2F/u", r#"{"exchange": "amq.topic", "write": "a", "read": "b"}"#, 201, ""),
        ("PUT",    "/api/topic-permissions/%2F/u", r#"{"exchange": "x", "write": "a", "read": "b"}"#, 204, ""),
        ("GET",    "/api/topic-permissions/%2F/u", "",                          200, r#""exchange":"amq.topic""#),
        ("GET",    "/api/topic-permissions",      "",                           200, r#""exchange":"x""#),
        ("GET",    "/api/users/u/topic-permissions", "",                        200, r#""exchange":"x""#),
        ("GET",    "/api/vhosts/%2F/topic-permissions", "",                     200, r#""exchange":"x""#),
        ("DELETE", "/api/topic-permissions/%2F/u/x", "",                        204, ""),
        ("GET",    "/api/topic-permissions/%2F/u/x", "",                        404, ""),
        ("DELETE", "/api/topic-permissions/%2F/u", "",                          204, ""),
        ("DELETE", "/api/topic-permissions/%2F/u", "",                          404, ""),
        ("DELETE", "/api/permissions/%2F/u",      "",                           204, ""),
        ("DELETE", "/api/permissions/%2F/u",      "",                           404, ""),
        ("GET",    "/api/permissions/%2F/u",      "",                           404, ""),
        ("PUT",    "/api/user-limits/u/max-channels", r#"{"value": 5}"#,        204, ""),
        ("GET",    "/api/user-limits",            "",                           200, r#"[{"user":"u","value":{"max-channels":5}}]"#),
        ("GET",    "/api/user-limits/u",          "",                           200, "max-channels"),
        ("PUT",    "/api/user-limits/u/max-x",    r#"{"value": 5}"#,            400, "unknown limit"),
        ("PUT",    "/api/user-limits/u/max-channels", r#"{"value": "x"}"#,      400, "whole number"),
        ("PUT",    "/api/user-limits/u/max-channels", "{}",                     400, r#""[{key_missing,value}]""#),
        ("PUT",    "/api/user-limits/no/max-channels", r#"{"value": 5}"#,       404, ""),
        ("DELETE", "/api/user-limits/u/max-channels", "",                       204, ""),
        ("GET",    "/api/user-limits/u",          "",                           200, "[]"),
        ("POST",   "/api/users/bulk-delete",      r#"{"users": ["h", "n", "gone"]}"#, 204, ""),
        ("POST",   "/api/users/bulk-delete",      r#"{"users": 7}"#,            400, "users"),
        ("GET",    "/api/users/h",                "",                           404, ""),
        ("DELETE", "/api/users/u",                "",                           204, ""),
        ("DELETE", "/api/users/u",                "",                           404, ""),
    ]);
    // The hash is of RabbitMQ's own documentation: its password is test12.
    node.must("PUT", "/api/users/d", r#"{"password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR", "tags": "management"}"#, 201);
    let got = node.ask_as(Some("d:test12"), "GET", "/api/whoami", &[], b"");
    assert_eq!(got.status, 200, "{}", got.text());
}

#[test]
#[rustfmt::skip] // a table
fn exchanges_queues_and_bindings() {
    let node = Node::start();
    play(&node, &[
        ("PUT",    "/api/exchanges/%2F/x",        r#"{"type": "topic", "durable": true}"#, 201, ""),
        ("PUT",    "/api/exchanges/%2F/x",        r#"{"type": "topic", "durable": true}"#, 204, ""),
        ("PUT",    "/api/exchanges/%2F/x",        r#"{"type": "fanout"}"#,      400, r#"reason":"inequivalent arg 'type' for exchange 'x' in vhost '/'"#),
        ("PUT",    "/api/exchanges/%2F/y",        r#"{"type": "nonsense"}"#,    400, "nonsense"),
        ("PUT",    "/api/exchanges/%2F/amq.mine", r#"{"type": "fanout"}"#,      401, "amq.mine"),
        ("GET",    "/api/exchanges/%2F/x",        "",                           200, r#""type":"topic""#),
        ("GET",    "/api/exchanges/%2F/amq.default", "",                        200, r#""name":"""#),
        ("GET",    "/api/exchanges/%2F/no",       "",                           404, "Object Not Found"),
        ("PUT",    "/api/queues/%2F/q%20%2F1",    r#"{"arguments": {"x-max-length": 5}}"#, 201, ""),
        ("PUT",    "/api/queues/%2F/q%20%2F1",    r#"{"arguments": {"x-max-length": 5}}"#, 204, ""),
        ("PUT",    "/api/queues/%2F/q%20%2F1",    "{}",                         400, r#"reason":"inequivalent arg 'x-max-length'"#),
        ("PUT",    "/api/queues/%2F/n",           r#"{"node": "rabbit@other"}"#, 400, "rabbit@other"),
        ("PUT",    "/api/queues/%2F/n",           r#"{"arguments": {"x-max-length": -1}}"#, 400, "x-max-length"),
        ("PUT",    "/api/queues/nowhere/n",       "",                           404, "vhost_not_found"),
        ("PUT",    "/api/exchanges/nowhere/n",    "",                           404, "vhost_not_found"),
        ("GET",    "/api/queues/%2F/q%20%2F1",    "",                           200, r#""x-max-length":5"#),
        ("POST",   "/api/bindings/%2F/e/x/q/q%20%2F1", r#"{"routing_key": "a.#"}"#, 201, ""),
        ("POST",   "/api/bindings/%2F/e/x/q/q%20%2F1", r#"{"routing_key": "b", "arguments": {"n": 1}}"#, 201, ""),
        ("POST",   "/api/bindings/%2F/e/x/q/q%20%2F1", "",                      201, ""),
        ("POST",   "/api/bindings/%2F/e/x/e/amq.fanout", r#"{"routing_key": "c"}"#, 201, ""),
        ("POST",   "/api/bindings/%2F/e/x/q/no",  "{}",                         404, r#""reason":"no queue 'no' in vhost '/'""#),
        ("POST",   "/api/bindings/%2F/e/x/z/no",  "{}",                         404, ""),
        ("GET",    "/api/bindings",               "",                           200, r#""routing_key":"c""#),
        ("GET",    "/api/bindings/%2F",           "",                           200, r#""properties_key":"a.%23""#),
        ("GET",    "/api/queues/%2F/q%20%2F1/bindings", "",                     200, r#""source":"""#),
        ("GET",    "/api/exchanges/%2F/x/bindings/source", "",                  200, r#""routing_key":"c""#),
        ("GET",    "/api/exchanges/%2F/amq.fanout/bindings/destination", "",    200, r#""source":"x""#),
        // What is not there has no bindings, but for the one that every queue has.
        ("GET",    "/api/queues/%2F/no/bindings", "",                           200, r#""properties_key":"no""#),
        ("GET",    "/api/queues/nowhere/no/bindings", "",                       404, ""),
        ("GET",    "/api/exchanges/%2F/no/bindings/source", "",                 200, "[]"),
        ("GET",    "/api/exchanges/%2F/no/bindings/destination", "",            200, "[]"),
        ("GET",    "/api/bindings/%2F/e/no/q/no", "",                           200, "[]"),
        ("GET",    "/api/bindings/%2F/e/amq.default/e/no", "",                  200, "[]"),
        ("GET",    "/api/bindings/%2F/e/amq.default/q/no", "",                  200, r#""properties_key":"no""#),
        ("GET",    "/api/bindings/%2F/e//q/no",   "",                           200, r#""properties_key":"no""#),
        ("GET",    "/api/bindings/%2F/e/amq.default/q/no/no", "",               404, ""),
        ("DELETE", "/api/bindings/%2F/e/amq.default/q/no/no", "",               404, ""),
        ("GET",    "/api/bindings/%2F/e/x/q/q%20%2F1", "",                      200, "a.#"),
        ("GET",    "/api/bindings/%2F/e/x/q/q%20%2F1/a.%2523", "",              200, "a.#"),
        ("GET",    "/api/bindings/%2F/e/x/q/q%20%2F1/a.%23", "",                200, "a.#"),
        ("GET",    "/api/bindings/%2F/e/x/q/q%20%2F1/~", "",                    200, r#""routing_key":"""#),
        ("GET",    "/api/bindings/%2F/e/x/q/q%20%2F1/none", "",                 404, ""),
        ("DELETE", "/api/bindings/%2F/e/x/q/q%20%2F1/a.%2523", "",              204, ""),
        ("DELETE", "/api/bindings/%2F/e/x/q/q%20%2F1/a.%2523", "",              404, ""),
        ("DELETE", "/api/bindings/%2F/e/x/e/amq.fanout/c", "",                  204, ""),
        ("DELETE", "/api/queues/%2F/q%20%2F1/contents", "",                     204, ""),
        ("DELETE", "/api/queues/%2F/no/contents", "",                           404, ""),
        ("POST",   "/api/queues/%2F/q%20%2F1/actions", r#"{"action": "sync"}"#, 204, ""),
        ("POST",   "/api/queues/%2F/q%20%2F1/actions", r#"{"action": "fly"}"#,  400, "fly"),
        ("GET",    "/api/queues/quorum/%2F/q%20%2F1/status", "",                400, "not a quorum queue"),
        ("DELETE", "/api/exchanges/%2F/x?if-unused=true", "",                   400, "in use"),
        ("DELETE", "/api/queues/%2F/q%20%2F1",    "",                           204, ""),
        ("DELETE", "/api/queues/%2F/q%20%2F1",    "",                           404, ""),
        ("DELETE", "/api/exchanges/%2F/x",        "",                           204, ""),
        ("DELETE", "/api/exchanges/%2F/x",        "",                           404, ""),
        ("DELETE", "/api/exchanges/%2F/amq.topic", "",                          401, "amq.topic"),
    ]);
    node.must("PUT", "/api/queues/%2F/q", "", 201);
    let got = node.must("POST", "/api/bindings/%2F/e/amq.direct/q/q", r#"{"routing_key": "a b"}"#, 201);
    assert_eq!(got.header("location"), "q/a%2Bb");
    node.must("DELETE", "/api/bindings/%2F/e/amq.direct/q/q/a%2Bb", "", 204);
}

#[test]
#[rustfmt::skip] // a table
fn policies_and_parameters() {
    let node = Node::start();
    play(&node, &[
        ("PUT",    "/api/queues/%2F/q",           "",                           201, ""),
        ("PUT",    "/api/policies/%2F/p",         r#"{"pattern": "^q", "definition": {"max-length": 3}, "apply-to": "queues"}"#, 201, ""),
        ("PUT",    "/api/policies/%2F/p",         r#"{"pattern": "^q", "definition": {"max-length": 4}, "priority": 2}"#, 204, ""),
        ("GET",    "/api/policies/%2F/p",         "",                           200, r#""priority":2"#),
        ("GET",    "/api/policies",               "",                           200, r#""max-length":4"#),
        ("GET",    "/api/queues/%2F/q",           "",                           200, r#""policy":"p""#),
        ("PUT",    "/api/policies/%2F/bad",       r#"{"pattern": "^q"}"#,       400, r#""[{key_missing,definition}]""#),
        ("PUT",    "/api/policies/%2F/bad",       r#"{"pattern": "(", "definition": {"max-length": 4}}"#, 400, "bad"),
        ("PUT",    "/api/policies/%2F/bad",       r#"{"pattern": "", "definition": {"nonsense": 4}}"#, 400, "nonsense"),
        ("PUT",    "/api/policies/%2F/bad",       r#"{"pattern": "", "definition": []}"#, 400, "definition"),
        ("PUT",    "/api/policies/%2F/bad",       r#"{"pattern": "", "definition": {"max-length": 1}, "priority": "x"}"#, 400, "priority"),
        ("PUT",    "/api/policies/%2F/bad",       r#"{"pattern": "", "definition": {"max-length": 1}, "apply-to": "x"}"#, 400, "apply-to"),
        ("PUT",    "/api/policies/%2F/bad",       r#"{"pattern": "\\w{150}", "definition": {"max-length": 1}}"#, 400, "too large: repeat less"),
        ("PUT",    "/api/parameters/policy/%2F/bad", r#"{"value": {"pattern": "\\w{150}", "definition": {"max-length": 1}}}"#, 400, "too large: repeat less"),
        ("PUT",    "/api/policies/%2F/bad",       r#"{"pattern": "^(a\\g<1>?)$", "definition": {"max-length": 1}}"#, 400, "a part of it calls itself"),
        ("PUT",    "/api/permissions/%2F/guest",  r#"{"configure": "", "write": "", "read": "^(a\\g<1>?)$"}"#, 400, "a part of it calls itself"),
        ("PUT",    "/api/parameters/policy/%2F/asp", r#"{"value": {"pattern": "^q", "definition": {"max-length": 9}}}"#, 201, ""),
        ("GET",    "/api/parameters/policy/%2F/asp", "",                        200, r#""max-length":9"#),
        ("GET",    "/api/parameters/policy",      "",                           200, r#""max-length":9"#),
        ("GET",    "/api/policies/%2F/asp",       "",                           200, r#""max-length":9"#),
        ("PUT",    "/api/parameters/policy/%2F/asp", r#"{"value": {"pattern": "^q", "definition": {"max-length": 8}}}"#, 204, ""),
        ("DELETE", "/api/parameters/policy/%2F/asp", "",                        204, ""),
        ("DELETE", "/api/parameters/policy/%2F/asp", "",                        404, ""),
        ("PUT",    "/api/policies/no/p",          r#"{"pattern": "", "definition": {"max-length": 1}}"#, 404, "vhost_not_found"),
        ("PUT",    "/api/operator-policies/%2F/o", r#"{"pattern": ".*", "definition": {"max-length": 2}, "apply-to": "queues"}"#, 201, ""),
        ("GET",    "/api/queues/%2F/q",           "",                           200, r#""effective_policy_definition":{"max-length":2}"#),
        ("GET",    "/api/operator-policies",      "",                           200, r#""name":"o""#),
        ("GET",    "/api/operator-policies/%2F/o", "",                          200, r#""name":"o""#),
        ("DELETE", "/api/operator-policies/%2F/o", "",                          204, ""),
        ("DELETE", "/api/operator-policies/%2F/o", "",                          404, ""),
        ("DELETE", "/api/policies/%2F/p",         "",                           204, ""),
        ("DELETE", "/api/policies/%2F/p",         "",                           404, ""),
        ("PUT",    "/api/policies/%2F/bad",       r#"{"pattern": "", "definition": {"replication-confirm": "one"}}"#, 400, "is not a valid replication-confirm value"),
        ("PUT",    "/api/policies/%2F/copies",    r#"{"pattern": "^q", "definition": {"replication-confirm": "all"}}"#, 201, ""),
        ("GET",    "/api/queues/%2F/q",           "",                           200, r#""left_out":[],"value":"all"}"#),
        ("DELETE", "/api/policies/%2F/copies",    "",                           204, ""),
        ("PUT",    "/api/policies/%2F/mirrors",   r#"{"pattern": "^q", "definition": {"ha-mode": "all"}}"#, 201, ""),
        ("DELETE", "/api/policies/%2F/mirrors",   "",                           204, ""),
        ("PUT",    "/api/policies/%2F/bad",       r#"{"pattern": "", "definition": {"federation-upstream-set": "all"}}"#, 400, "are not recognised policy settings"),
        ("PUT",    "/api/parameters/federation-upstream/%2F/f", "{}",           400, r#""[{key_missing,value}]""#),
        ("PUT",    "/api/parameters/federation-upstream/%2F/f", r#"{"value": {"uri": "amqp://"}}"#, 400, "component federation-upstream not found"),
        ("PUT",    "/api/parameters/shovel/%2F/s", r#"{"value": {"src-queue": "q"}}"#, 400, r"Validation failed\n\ncomponent shovel not found\n"),
        ("GET",    "/api/parameters/shovel",      "",                           200, "[]"),
        ("GET",    "/api/parameters",             "",                           200, "[]"),
        ("DELETE", "/api/parameters/federation-upstream/%2F/f", "",             404, ""),
        ("PUT",    "/api/global-parameters/g",    r#"{"value": [1]}"#,          201, ""),
        ("PUT",    "/api/global-parameters/g",    r#"{"value": [2]}"#,          204, ""),
        ("GET",    "/api/global-parameters/g",    "",                           200, r#"{"name":"g","value":[2]}"#),
        ("GET",    "/api/global-parameters",      "",                           200, r#""name":"g""#),
        ("DELETE", "/api/global-parameters/g",    "",                           204, ""),
        ("DELETE", "/api/global-parameters/g",    "",                           404, ""),
        ("PUT",    "/api/vhost-limits/%2F/max-queues", r#"{"value": 1}"#,       204, ""),
        ("PUT",    "/api/vhost-limits/%2F/max-connections", r#"{"value": 9}"#,  204, ""),
        ("GET",    "/api/vhost-limits",           "",                           200, r#"[{"value":{"max-connections":9,"max-queues":1},"vhost":"/"}]"#),
        ("PUT",    "/api/queues/%2F/more",        "",                           400, "limit"),
        ("DELETE", "/api/vhost-limits/%2F/max-queues", "",                      204, ""),
        ("GET",    "/api/vhost-limits/%2F",       "",                           200, r#"{"max-connections":9}"#),
        ("PUT",    "/api/vhost-limits/%2F/max-x", r#"{"value": 9}"#,            400, "unknown limit"),
        ("PUT",    "/api/cluster-name",           r#"{"name": "mine"}"#,        204, ""),
        ("GET",    "/api/cluster-name",           "",                           200, r#"{"name":"mine"}"#),
        ("PUT",    "/api/cluster-name",           r#"{"name": ""}"#,            400, "empty"),
        ("GET",    "/api/overview",               "",                           200, r#""cluster_name":"mine""#),
        ("GET",    "/api/overview",               "",                           200, r#""cluster_tags":{}"#),
        ("GET",    "/api/global-parameters/cluster_tags", "",                   200, r#"{"name":"cluster_tags","value":[]}"#),
        ("GET",    "/api/global-parameters",      "",                           200, r#"{"name":"cluster_tags","value":[]}"#),
        ("DELETE", "/api/global-parameters/cluster_tags", "",                   204, ""),
        ("PUT",    "/api/global-parameters/cluster_tags", r#"{"value": {"region": "eu"}}"#, 204, ""),
        ("GET",    "/api/global-parameters",      "",                           200, r#"{"name":"cluster_tags","value":{"region":"eu"}}"#),
        ("GET",    "/api/overview",               "",                           200, r#""cluster_tags":{"region":"eu"}"#),
        ("PUT",    "/api/global-parameters/cluster_tags", r#"{"value": []}"#,   204, ""),
        ("GET",    "/api/overview",               "",                           200, r#""cluster_tags":{}"#),
        ("DELETE", "/api/global-parameters/cluster_tags", "",                   204, ""),
        ("GET",    "/api/global-parameters/cluster_tags", "",                   200, r#"{"name":"cluster_tags","value":[]}"#),
    ]);
}

#[test]
fn operator_policies_can_be_kept_from_the_api() {
    let key = "management.restrictions.operator_policy_changes.disabled";
    let node = Node::with(&[(key, "true")]);
    let body = r#"{"pattern": ".*", "definition": {"max-length": 2}}"#;
    let got = node.must("PUT", "/api/operator-policies/%2F/o", body, 405);
    assert!(got.text().contains(key), "{}", got.text());
    assert_eq!(node.get("/api/overview")["is_op_policy_updating_enabled"], false);
}

#[test]
#[rustfmt::skip] // a table
fn the_node() {
    let node = Node::start();
    play(&node, &[
        ("GET",    "/api/version",                "",                           200, "rabbitmq_version"),
        ("GET",    "/api/extensions",             "",                           200, "javascript"),
        ("GET",    "/api/nodes/rabbit@test",      "",                           200, r#""running":true"#),
        ("GET",    "/api/nodes/rabbit%40test",    "",                           200, r#""type":"disc""#),
        ("GET",    "/api/nodes/other",            "",                           404, ""),
        ("GET",    "/api/nodes/rabbit@test/memory", "",                         200, "connection_readers"),
        ("GET",    "/api/nodes/rabbit@test/memory/relative", "",                200, r#""total":100"#),
        ("GET",    "/api/nodes/rabbit@test/memory/ets", "",                     200, ""),
        ("GET",    "/api/feature-flags",          "",                           200, r#""state":"enabled""#),
        ("PUT",    "/api/feature-flags/quorum_queue/enable", "",                204, ""),
        ("PUT",    "/api/feature-flags/khepri_db/enable", "",                   204, ""),
        ("PUT",    "/api/feature-flags/fly/enable", "",                         400, "fly"),
        ("GET",    "/api/deprecated-features?columns=name,state", "",           200, r#"[{"name":"classic_queue_mirroring","state":"denied"},{"name":"global_qos","state":"permitted"},{"name":"management_metrics_collection","state":"permitted"},{"name":"ram_node_type","state":"denied"},{"name":"transient_nonexcl_queues","state":"permitted"}]"#),
        ("GET",    "/api/deprecated-features",    "",                           200, r##""doc_url":"https://blog.rabbitmq.com/posts/2021/08/4.0-deprecation-announcements/#removal-of-global-qos""##),
        ("GET",    "/api/deprecated-features/used", "",                         200, "[]"),
        ("PUT",    "/api/policies/%2F/mirrored",  r#"{"pattern": "x", "definition": {"ha-mode": "all"}}"#, 201, ""),
        ("GET",    "/api/deprecated-features/used?columns=name", "",            200, r#"[{"name":"classic_queue_mirroring"}]"#),
        ("DELETE", "/api/policies/%2F/mirrored",  "",                           204, ""),
        ("GET",    "/api/deprecated-features/used", "",                         200, "[]"),
        ("GET",    "/api/auth",                   "",                           200, "oauth_enabled"),
        ("POST",   "/api/login",                  "",                           200, "guest"),
        ("GET",    "/api/auth/attempts/rabbit@test", "",                        200, r#""protocol":"http""#),
        ("GET",    "/api/auth/hash_password/secret", "",                        200, r#"{"ok":""#),
        ("GET",    "/api/config/effective",       "",                           200, "heartbeat"),
        ("POST",   "/api/rebalance/queues",       "",                           204, ""),
        ("PUT",    "/api/queues/%2F/qq",          r#"{"arguments": {"x-queue-type": "quorum"}}"#, 201, ""),
        ("GET",    "/api/queues/%2F/qq",          "",                           200, r#""delivery_limit":"unlimited""#),
        ("POST",   "/api/queues/quorum/%2F/qq/replicas/add", r#"{"node": "rabbit@test"}"#, 204, ""),
        ("POST",   "/api/queues/quorum/%2F/qq/replicas/add", r#"{"node": "other"}"#, 400, "the only one"),
        ("DELETE", "/api/queues/quorum/%2F/qq/replicas/delete", r#"{"node": "rabbit@test"}"#, 400, "the only one"),
        ("POST",   "/api/queues/quorum/replicas/on/rabbit@test/grow", "{}",     204, ""),
        ("POST",   "/api/queues/quorum/replicas/on/other/grow", "{}",           400, "the only one"),
        ("DELETE", "/api/queues/quorum/replicas/on/rabbit@test/shrink", "",     400, "the only one"),
        ("GET",    "/api/global-parameters/internal_cluster_id", "",            200, r#""value":"rabbit@test""#),
        ("DELETE", "/api/reset",                  "",                           204, ""),
        ("GET",    "/api/shovels",                "",                           200, "[]"),
        ("GET",    "/api/federation-links/%2F",   "",                           200, "[]"),
        ("GET",    "/api/federation-links/no",    "",                           404, ""),
    ]);
    let nodes = node.get("/api/nodes");
    for name in "name uptime run_queue processors os_pid fd_total proc_total mem_limit mem_alarm \
                 disk_free_limit disk_free_alarm rates_mode enabled_plugins being_drained".split_whitespace() {
        assert!(!nodes[0][name].is_null(), "{name}");
    }
    let overview = node.get("/api/overview");
    for name in "cluster_name node erlang_full_version erlang_version rabbitmq_version product_name \
                 product_version statistics_db_event_queue churn_rates queue_totals object_totals \
                 message_stats listeners contexts exchange_types".split_whitespace() {
        assert!(!overview[name].is_null(), "{name}");
    }
    assert_eq!(overview["listeners"][0]["port"], node.amqp.port());
    assert_eq!(overview["object_totals"]["exchanges"], 8);
}

#[test]
fn definitions() {
    let node = Node::start();
    node.must("PUT", "/api/vhosts/v", "", 201);
    node.must("PUT", "/api/queues/v/q", r#"{"arguments": {"x-max-length": 5}}"#, 201);
    node.must(
        "PUT",
        "/api/policies/v/p",
        r#"{"pattern": "", "definition": {"max-length": 9}}"#,
        201,
    );
    let all = node.get("/api/definitions");
    assert!(all["users"][0]["password_hash"].is_string());
    assert_eq!(all["queues"][0]["name"], "q");
    assert_eq!(node.get("/api/all-configuration"), all);
    // One version is told, wherever one is.
    let version = &node.get("/api/overview")["rabbitmq_version"];
    assert_eq!([&all["rabbit_version"], &all["rabbitmq_version"]], [version, version]);
    let got = node.must("GET", "/api/definitions?download=a.json", "", 200);
    assert_eq!(got.header("content-disposition"), "attachment; filename=a.json");
    node.must(
        "PUT",
        "/api/policies/v/ours",
        r#"{"pattern": "", "priority": -1, "definition": {"confirm-on": "ack"}}"#,
        201,
    );
    node.must("PUT", "/api/queues/v/transient", r#"{"durable": false}"#, 201);
    for path in ["/api/definitions", "/api/definitions/v"] {
        let theirs = node.get(&format!("{path}?for=rabbitmq"));
        let said = theirs["left_out"].as_array().unwrap().last().unwrap().as_str().unwrap();
        let want =
            "nothing of queue 'transient' in vhost 'v', but RabbitMQ 4.3 refuses transient queues";
        assert!(said.starts_with(want), "{said}");
        assert_eq!(theirs["policies"].as_array().unwrap().len(), 1, "{theirs}");
        assert!(theirs["left_out"][0].as_str().unwrap().starts_with("policy 'ours'"), "{theirs}");
        node.must("GET", &format!("{path}?for=others"), "", 400);
    }
    let four = node.get("/api/definitions?for=rabbitmq-4");
    let queues = four["queues"].as_array().unwrap();
    assert!(queues.iter().all(|queue| queue["durable"] == true), "{four}");
    let said = four["left_out"].as_array().unwrap().last().unwrap();
    let want =
        "nothing of queue 'transient' in vhost 'v', but transient queues are durable in this file";
    assert_eq!(said, want);
    node.must("DELETE", "/api/queues/v/transient", "", 204);
    node.must("DELETE", "/api/policies/v/ours", "", 204);
    let own = node.get("/api/definitions/v");
    assert_eq!(own["queues"][0].get("vhost"), None);
    assert_eq!(own.get("users"), None);
    assert_eq!((&own["description"], &own["metadata"]["tags"]), (&json!(""), &json!([])));

    let other = Node::start();
    other.must("POST", "/api/definitions", &all.to_string(), 204);
    assert_eq!(other.get("/api/queues/v/q")["policy"], "p");
    other.must("PUT", "/api/vhosts/w", "", 201);
    other.must("POST", "/api/definitions/w", &own.to_string(), 204);
    assert_eq!(other.get("/api/queues/w/q")["policy"], "p");
    let form = |content: &str| {
        format!(
            "--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"d.json\"\r\n\
                 Content-Type: application/json\r\n\r\n{content}\r\n--X--\r\n"
        )
    };
    let kind = [("Content-Type", "multipart/form-data; boundary=X")];
    let post = |body: &str| {
        other.ask_as(Some("guest:guest"), "POST", "/api/definitions", &kind, body.as_bytes())
    };
    let got = post(&form(r#"{"vhosts": [{"name": "z"}]}"#));
    assert_eq!(got.status, 204, "{}", got.text());
    assert_eq!(other.get("/api/vhosts/z")["name"], "z");
    assert_eq!(post("nonsense").status, 400);
    let got = other.must("POST", "/api/definitions", r#"{"queues": [{"name": 7}]}"#, 400);
    assert!(got.text().contains("queues[0]"), "{}", got.text());
    // What cannot be is told at once, refused whole, and left out by who asks for it.
    let much = json!({
        "vhosts": [{"name": "half"}],
        "parameters": [{"vhost": "/", "component": "shovel", "name": "s", "value": {}}],
        "policies": [{"vhost": "half", "name": "p", "pattern": "", "definition": {"ha-mode": "all"}}],
        "queues": [
            {"vhost": "half", "name": "log", "arguments": {"x-queue-type": "stream"}},
            {"vhost": "half", "name": "q"},
        ],
    })
    .to_string();
    let got = other.must("POST", "/api/definitions", &much, 400);
    assert_eq!(got.json()["error"], "bad_request");
    let reason = got.json()["reason"].as_str().unwrap().to_owned();
    let lines = [
        "parameters[0]: parameter 's' in vhost '/': component shovel not found",
        "queues[0]: queue type 'stream' of queue 'log' in vhost 'half' is not supported",
    ];
    assert!(reason.starts_with(&format!("{}\nNothing was imported", lines.join("\n"))), "{reason}");
    other.must("GET", "/api/vhosts/half", "", 404);
    let got = other.must("POST", "/api/definitions?skip_unsupported=true", &much, 200);
    assert_eq!(got.json(), json!({ "left_out": lines }));
    assert!(got.header("warning").contains("policy 'p': ha-mode has no effect here"));
    assert_eq!(other.get("/api/queues/half").as_array().unwrap().len(), 1);
    other.must("POST", "/api/definitions?skip_unsupported=true", &all.to_string(), 204);
    other.must("POST", "/api/definitions?skip_unsupported=yes", "{}", 400);
    other.must("POST", "/api/definitions", "{", 400);
    other.must("POST", "/api/definitions", "7", 400);
    other.must("POST", "/api/definitions/no", "{}", 404);
    other.must("GET", "/api/definitions/no", "", 400);
    let empty: Value = other.must("POST", "/api/definitions", "", 204).text().into();
    assert_eq!(empty, "");
}

/// What does not fit a frame is refused in words that say which limit it is.
#[test]
fn arguments_that_fit_no_frame() {
    let node = Node::start();
    node.must("PUT", "/api/queues/%2F/q", "", 201);
    let long = "a".repeat(140_000);
    let arguments = format!(r#"{{"arguments": {{"x": "{long}"}}}}"#);
    let exchange = format!(r#"{{"type": "direct", "arguments": {{"x": "{long}"}}}}"#);
    let message = format!(
        r#"{{"properties": {{"headers": {{"x": "{long}"}}}}, "routing_key": "q", "payload": "", "payload_encoding": "string"}}"#
    );
    for (method, path, body) in [
        ("PUT", "queues/%2F/large", &arguments),
        ("PUT", "exchanges/%2F/large", &exchange),
        ("POST", "bindings/%2F/e/amq.direct/q/q", &arguments),
        ("POST", "exchanges/%2F/amq.default/publish", &message),
    ] {
        let got = node.must(method, &format!("/api/{path}"), body, 413).json();
        assert_eq!(got["error"], "bad_request", "{path}");
        let reason = got["reason"].as_str().unwrap();
        assert!(
            reason.starts_with("arguments or properties are too large: a frame of 140")
                && reason.ends_with("bytes, and 131072 are the most (frame_max)"),
            "{path}: {reason}"
        );
    }
}

/// What no short string of AMQP holds was cut, and something else was made than was asked for.
#[test]
fn names_that_fit_no_short_string_are_refused() {
    let node = Node::start();
    let long = "n".repeat(256);
    let why = |what: &str| format!("{what} should be less than 255 bytes, actually was 256\\n");
    let refused = |method: &str, path: &str, body: &str, what: &str| {
        let answer = node.must(method, path, body, 400);
        assert!(answer.text().contains(&why(what)), "{}", answer.text());
    };
    refused("PUT", &format!("/api/queues/%2F/{long}"), "{}", "queue");
    refused("PUT", &format!("/api/exchanges/%2F/{long}"), "{}", "exchange");
    let key = format!(r#"{{"routing_key": "{long}"}}"#);
    node.must("PUT", "/api/queues/%2F/q", "{}", 201);
    refused("POST", "/api/bindings/%2F/e/amq.direct/q/q", &key, "routing_key");
    refused("POST", &format!("/api/bindings/%2F/e/amq.direct/q/{long}"), "{}", "destination");
    refused("POST", &format!("/api/bindings/%2F/e/{long}/q/q"), "{}", "source");
    let publish = format!(
        r#"{{"routing_key": "{long}", "properties": {{}}, "payload": "", "payload_encoding": "string"}}"#
    );
    refused("POST", "/api/exchanges/%2F/amq.direct/publish", &publish, "routing_key");
    // Nor are names in tables cut, at whatever depth.
    for table in [json!({&long: 1}), json!({"a": [{&long: 1}]})] {
        let named = |path: &str, method: &str, body: &Value| {
            let text = node.must(method, path, &body.to_string(), 400).text();
            assert!(text.contains("must have at most 255 bytes"), "{path}: {text}");
        };
        let arguments = json!({"arguments": table});
        named("/api/queues/%2F/r", "PUT", &arguments);
        named("/api/exchanges/%2F/x", "PUT", &arguments);
        named("/api/bindings/%2F/e/amq.headers/q/q", "POST", &arguments);
        let message = json!({"routing_key": "q", "properties": {"headers": table}, "payload": "", "payload_encoding": "string"});
        named("/api/exchanges/%2F/amq.default/publish", "POST", &message);
    }
    assert_eq!(node.get("/api/queues?columns=name"), json!([{"name": "q"}]));
}

/// As those of vhosts and users. RabbitMQ has no bound for policies, and 255 characters for global parameters.
#[test]
fn names_of_settings_have_a_bound() {
    let node = Node::start();
    let (fits, long) = ("n".repeat(255), "n".repeat(256));
    let policy = r#"{"pattern": "^q", "definition": {"max-length": 5}}"#;
    for (path, body, what) in [
        ("policies/%2F", policy, "policy"),
        ("operator-policies/%2F", policy, "operator policy"),
        ("global-parameters", r#"{"value": 1}"#, "global parameter"),
    ] {
        node.must("PUT", &format!("/api/{path}/{fits}"), body, 201);
        let got = node.must("PUT", &format!("/api/{path}/{long}"), body, 400).json();
        let reason = format!("{what} name must be at most 255 bytes long, not 256");
        assert_eq!(got, json!({"error": "bad_request", "reason": reason}), "{path}");
        node.must("GET", &format!("/api/{path}/{long}"), "", 404);
        node.must("DELETE", &format!("/api/{path}/{fits}"), "", 204);
    }
    let topics = json!({"exchange": long, "write": "", "read": ""}).to_string();
    let got = node.must("PUT", "/api/topic-permissions/%2F/guest", &topics, 400).text();
    assert!(got.contains("exchange name must be at most 255 bytes long, not 256"), "{got}");
}

/// A slash at the end of a path stands for an empty name where imports once took one, to delete it, and for nothing elsewhere.
#[test]
fn what_has_no_name_can_be_deleted() {
    let node = Node::start();
    let refused = |path: &str| {
        assert_eq!(node.ask("DELETE", path, "").status, 404, "{path}");
        let stranger = node.ask_as(None, "DELETE", path, &[], b"");
        assert_eq!(stranger.status, 401, "{path}: a request of the API, and not what is nowhere");
    };
    for path in ["users", "policies/%2F", "operator-policies/%2F", "global-parameters"] {
        refused(&format!("/api/{path}/"));
        assert!(node.get(&format!("/api/{path}/")).is_array(), "{path}: the list");
        node.must("DELETE", &format!("/api/{path}"), "", 405);
    }
    refused("/api/parameters/shovel/%2F/");
    node.must("PUT", "/api/global-parameters/p", r#"{"value": 1}"#, 201);
    node.must("DELETE", "/api/global-parameters/p/", "", 204);
    // The default exchange has none either.
    let topics = r#"{"exchange": "", "write": "", "read": ""}"#;
    node.must("PUT", "/api/topic-permissions/%2F/guest", topics, 201);
    node.must("PUT", "/api/topic-permissions/%2F/guest", &topics.replace("\"\",", "\"x\","), 204);
    node.must("DELETE", "/api/topic-permissions/%2F/guest/amq.default", "", 204);
    let left = node.get("/api/topic-permissions/%2F/guest");
    assert_eq!((left.as_array().unwrap().len(), &left[0]["exchange"]), (1, &json!("x")));
}

/// Vhosts and users have names that connections can name.
#[test]
fn names_of_vhosts_and_users_have_a_bound() {
    let node = Node::start();
    let (fits, long) = ("n".repeat(255), "n".repeat(256));
    let user = r#"{"password": "p", "tags": ""}"#;
    for (path, body, what) in [("vhosts", "{}", "virtual host"), ("users", user, "user")] {
        node.must("PUT", &format!("/api/{path}/{fits}"), body, 201);
        let got = node.must("PUT", &format!("/api/{path}/{long}"), body, 400).json();
        let reason = format!("{what} name must be at most 255 bytes long, not 256");
        assert_eq!(got, json!({"error": "bad_request", "reason": reason}), "{path}");
        let entry = json!({"name": long, "password_hash": ""});
        let got = node.must("POST", "/api/definitions", &json!({path: [entry]}).to_string(), 400);
        assert!(got.text().contains(&reason), "{path}: {}", got.text());
        node.must("GET", &format!("/api/{path}/{long}"), "", 404);
    }
}

/// As RabbitMQ's top plugin: the list, and each of its rows alone.
#[test]
fn processes_are_shown_alone() {
    let node = Node::start();
    node.must("PUT", "/api/queues/%2F/q", "{}", 201);
    let uri = Uri { host: node.amqp.ip().to_string(), port: node.amqp.port(), ..Uri::default() };
    let mut client = Connection::open(&uri, &Options::default()).unwrap();
    client.open_channel().unwrap();
    let name = node.get("/api/overview")["node"].as_str().unwrap().to_owned();
    let all = || node.get(&format!("/api/top/{name}?row_count=500"))["processes"].clone();
    let kinds = |all: &Value| -> Vec<String> {
        let rows = all.as_array().unwrap().iter();
        let kind = |row: &Value| match row["name"]["supertype"].as_str() {
            Some(kind) => kind.to_owned(),
            None => row["name"]["type"].as_str().unwrap().to_owned(),
        };
        rows.map(kind).collect()
    };
    wait_until("all kinds are told", || {
        let kinds = kinds(&all());
        ["shard", "queue", "connection", "channel"]
            .iter()
            .all(|kind| kinds.contains(&(*kind).to_owned()))
    });
    for row in all().as_array().unwrap() {
        let pid = row["pid"].as_str().unwrap();
        let path = format!("/api/process/{}", pid.replace('<', "%3C").replace('>', "%3E"));
        let one = node.get(&path);
        assert_eq!((&one["pid"], &one["name"]), (&row["pid"], &row["name"]));
        for key in
            ["memory", "reductions", "reduction_delta", "message_queue_len", "buffer_len", "status"]
        {
            assert!(!one[key].is_null(), "{key}: {one}");
        }
        for key in ["links", "monitors", "monitored_by"] {
            assert!(one[key].is_array(), "{key}: {one}");
        }
        match row["name"]["supertype"].as_str() {
            Some("connection") => assert_eq!(one["links"][0], pid.replace('>', ".1>")),
            Some("channel") => assert_eq!(one["links"][0], pid.replace(".1>", ">")),
            _ => assert_eq!(one["links"], json!([])),
        }
    }
    for gone in ["%3Cqueue.99999%3E", "%3Cconnection.1.x%3E", "%3C0.1.0%3E", "q", "%3Cshard.9%3E"] {
        node.must("GET", &format!("/api/process/{gone}"), "", 404);
    }
    node.must("GET", "/api/top/rabbit@other", "", 404);
    node.must("GET", "/api/top/ets/rabbit@other", "", 404);
    assert_eq!(node.get(&format!("/api/top/ets/{name}"))["ets_tables"], json!([]));
    client.close().unwrap();
}
