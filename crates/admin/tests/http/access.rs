//! Who may see and do what, by tag.

use crate::node::Node;

/// A node with a vhost `v` and a user for each tag; `policy` and `manage` may use `v` alone.
fn node() -> Node {
    let node = Node::start();
    node.must("PUT", "/api/vhosts/v", "", 201);
    for (name, tag) in [
        ("monitor", "monitoring"),
        ("policy", "policymaker"),
        ("manage", "management"),
        ("nobody", ""),
        ("other", "impersonator"),
    ] {
        let body = format!(r#"{{"password": "p", "tags": "{tag}"}}"#);
        node.must("PUT", &format!("/api/users/{name}"), &body, 201);
    }
    let all = r#"{"configure": ".*", "write": ".*", "read": ".*"}"#;
    for name in ["policy", "manage", "nobody"] {
        node.must("PUT", &format!("/api/permissions/v/{name}"), all, 201);
    }
    node.must("PUT", "/api/queues/%2F/root", "", 201);
    node.must("PUT", "/api/queues/v/own", "", 201);
    node
}

#[test]
#[rustfmt::skip] // a table
fn tags() {
    let node = node();
    let policy = r#"{"pattern": "x", "definition": {"max-length": 1}}"#;
    let limit = r#"{"value": 1}"#;
    let parameter = r#"{"value": {}}"#;
    let of_policy = r#"{"value": {"pattern": "x", "definition": {"max-length": 1}}}"#;
    //                                                             monitor policy manage
    check(&node, "GET",    "/api/overview",                   "",        [200, 200, 200]);
    check(&node, "GET",    "/api/whoami",                     "",        [200, 200, 200]);
    check(&node, "GET",    "/api/nodes",                      "",        [200, 401, 401]);
    check(&node, "GET",    "/api/nodes/rabbit@test",          "",        [200, 401, 401]);
    check(&node, "GET",    "/api/vhosts",                     "",        [200, 200, 200]);
    check(&node, "GET",    "/api/vhosts/%2F",                 "",        [200, 401, 401]);
    check(&node, "GET",    "/api/vhosts/v",                   "",        [200, 200, 200]);
    check(&node, "PUT",    "/api/vhosts/new",                 "",        [401, 401, 401]);
    check(&node, "DELETE", "/api/vhosts/v",                   "",        [401, 401, 401]);
    check(&node, "GET",    "/api/users",                      "",        [401, 401, 401]);
    check(&node, "GET",    "/api/users/guest/queues",         "",        [200, 200, 200]);
    check(&node, "PUT",    "/api/users/x",                    "{}",      [401, 401, 401]);
    check(&node, "GET",    "/api/permissions",                "",        [401, 401, 401]);
    check(&node, "GET",    "/api/queues/v",                   "",        [200, 200, 200]);
    check(&node, "GET",    "/api/queues/%2F",                 "",        [200, 401, 401]);
    check(&node, "GET",    "/api/queues/%2F/root",            "",        [200, 401, 401]);
    check(&node, "PUT",    "/api/queues/v/q",                 "",        [401, 201, 204]);
    check(&node, "PUT",    "/api/queues/%2F/q",               "",        [401, 401, 401]);
    check(&node, "PUT",    "/api/policies/v/p",               policy,    [401, 201, 401]);
    check(&node, "PUT",    "/api/policies/%2F/p",             policy,    [401, 401, 401]);
    check(&node, "GET",    "/api/policies/v/p",               "",        [200, 200, 200]);
    check(&node, "PUT",    "/api/operator-policies/v/p",      policy,    [401, 401, 401]);
    check(&node, "PUT",    "/api/parameters/policy/v/q",      of_policy, [401, 201, 401]);
    check(&node, "GET",    "/api/parameters",                 "",        [401, 200, 401]);
    check(&node, "PUT",    "/api/global-parameters/g",        parameter, [401, 201, 401]);
    check(&node, "PUT",    "/api/vhost-limits/v/max-queues",  limit,     [401, 401, 401]);
    check(&node, "PUT",    "/api/cluster-name",               r#"{"name": "x"}"#, [401, 401, 401]);
    check(&node, "GET",    "/api/definitions",                "",        [401, 401, 401]);
    check(&node, "POST",   "/api/definitions",                "{}",      [401, 401, 401]);
    check(&node, "GET",    "/api/health/checks/alarms",       "",        [200, 200, 200]);
    check(&node, "GET",    "/api/feature-flags",              "",        [200, 401, 401]);
    check(&node, "GET",    "/api/config/effective",           "",        [401, 401, 401]);
}

#[test]
fn queues_of_a_user() {
    let node = node();
    let got = node.ask_as(Some("manage:p"), "PUT", "/api/queues/v/theirs", &[], b"");
    assert_eq!(got.status, 201);
    let rows: [(_, _, &[_]); 4] = [
        ("guest:guest", "guest", &["root", "own"]),
        ("guest:guest", "manage", &["theirs"]),
        ("guest:guest", "nobody", &[]),
        // Those that may be seen.
        ("policy:p", "guest", &["own"]),
    ];
    for (asks, user, want) in rows {
        let got = node.ask_as(Some(asks), "GET", &format!("/api/users/{user}/queues"), &[], b"");
        let rows: Vec<serde_json::Value> = serde_json::from_str(&got.text()).unwrap();
        let names: Vec<_> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
        assert_eq!(names, want, "{asks} about {user}");
    }
}

#[track_caller]
fn check(node: &Node, method: &str, path: &str, body: &str, want: [u16; 3]) {
    for (name, want) in ["monitor", "policy", "manage"].into_iter().zip(want) {
        let user = format!("{name}:p");
        let got = node.ask_as(Some(&user), method, path, &[], body.as_bytes());
        assert_eq!(got.status, want, "{name} {method} {path}: {}", got.text());
    }
}

/// Requests with a name and a password are refused, whoever's they are, and the control socket is as it was.
#[test]
fn passwords_can_be_disabled() {
    let node = Node::changed(&[("management.disable_basic_auth", "true")], |_| {});
    for path in ["/api/whoami", "/api/overview"] {
        let got = node.ask_as(Some("guest:guest"), "GET", path, &[], b"");
        assert_eq!(got.status, 401, "{path}");
        assert!(got.text().contains("management.disable_basic_auth is set"), "{}", got.text());
    }
    let got = node.ask_as(None, "GET", "/api/health/checks/is-in-service", &[], b"");
    assert_eq!(got.status, 200, "it needs no login");
}

#[test]
fn without_a_tag_nobody_gets_in() {
    let node = node();
    for user in ["nobody:p", "other:p"] {
        let got = node.ask_as(Some(user), "GET", "/api/overview", &[], b"");
        assert_eq!(got.status, 401);
        assert_eq!(got.text(), r#"{"error":"not_authorised","reason":"Not management user"}"#);
    }
}

#[test]
fn lists_show_what_one_may_see() {
    let node = node();
    let names = |user: &str, path: &str| {
        let rows = node.ask_as(Some(user), "GET", path, &[], b"").json();
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| row["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names("guest:guest", "/api/queues"), "root own");
    assert_eq!(names("manage:p", "/api/queues"), "own");
    assert_eq!(names("guest:guest", "/api/vhosts"), "/ v");
    assert_eq!(names("monitor:p", "/api/vhosts"), "/ v");
    assert_eq!(names("manage:p", "/api/vhosts"), "v");
    let (_client, _) = node.client();
    let count = |user: &str, path: &str| {
        node.ask_as(Some(user), "GET", path, &[], b"").json().as_array().unwrap().len()
    };
    assert_eq!(count("monitor:p", "/api/connections"), 1);
    assert_eq!(count("manage:p", "/api/connections"), 0);
    assert_eq!(count("manage:p", "/api/channels"), 0);
    let overview = node.ask_as(Some("manage:p"), "GET", "/api/overview", &[], b"").json();
    assert_eq!(overview["object_totals"]["queues"], 1);
    let whole = node.ask_as(Some("monitor:p"), "GET", "/api/overview", &[], b"").json();
    assert_eq!(whole["object_totals"]["queues"], 2);
    assert_eq!(overview.get("listeners"), None);
}

/// A monitor sees every vhost, but parameters are for who may set them there.
#[test]
fn parameters_of_other_vhosts() {
    let node = node();
    let body = r#"{"password": "p", "tags": "policymaker,monitoring"}"#;
    node.must("PUT", "/api/users/both", body, 201);
    let value = r#"{"value": {"pattern": "x", "definition": {"max-length": 1}}}"#;
    node.must("PUT", "/api/parameters/policy/%2F/s", value, 201);
    let ask = |path: &str| node.ask_as(Some("both:p"), "GET", path, &[], b"");
    assert_eq!(ask("/api/parameters").json(), serde_json::json!([]));
    assert_eq!(ask("/api/parameters/policy/%2F").status, 401);
    assert_eq!(ask("/api/parameters/policy/%2F/s").status, 401);
    let got = node.ask_as(Some("both:p"), "GET", "/api/parameters", &[("x-vhost", "/")], b"");
    assert_eq!(got.status, 401, "{}", got.text());
}

/// What administrators have limited no policymaker frees.
#[test]
fn limits_are_no_parameters_of_policymakers() {
    let node = node();
    node.must("PUT", "/api/vhost-limits/v/max-queues", r#"{"value": 3}"#, 204);
    let path = "/api/parameters/vhost-limits/v/limits";
    for (method, body) in [("PUT", r#"{"value": {"max-queues": -1}}"#), ("DELETE", "")] {
        let got = node.ask_as(Some("policy:p"), method, path, &[], body.as_bytes());
        assert_eq!(got.status, 401, "{method}: {}", got.text());
    }
    assert_eq!(node.get("/api/vhost-limits/v")[0]["value"]["max-queues"], 3);
    node.must("DELETE", path, "", 204);
}

/// Whoever has shown nothing yet gives names that are kept: for the log, the audit, who waits.
#[test]
fn a_name_that_is_too_long_is_nobodys() {
    let node = Node::start();
    let long = "\u{e4}".repeat(20_000);
    let got = node.ask_as(Some(&format!("{long}:guest")), "GET", "/api/whoami", &[], b"");
    assert_eq!(got.status, 401);
    let sources = node.get("/api/auth/attempts/rabbit@test/source");
    let names = sources.as_array().unwrap().iter().map(|it| it["username"].as_str().unwrap());
    let longest = names.map(str::len).max();
    assert_eq!(longest, Some(254), "whole characters within 255 bytes");
}
