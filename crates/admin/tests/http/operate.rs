//! What only an operator asks for: paths below `/api/leveret`.

use serde_json::json;

use crate::node::Node;

#[test]
fn the_node_at_a_glance() {
    let node = Node::start();
    let status = node.get("/api/leveret/status");
    assert_eq!(status["totals"]["virtual_host_count"], 1);
    assert_eq!(status["is_under_maintenance"], false);
    assert_eq!(status["listeners"][0]["protocol"], "amqp");
    assert!(status["memory"]["total"]["rss"].as_u64() > Some(1_000_000));
}

#[test]
#[rustfmt::skip] // a table
fn watermarks_and_passwords() {
    let node = Node::start();
    let limit = || node.get("/api/leveret/status")["vm_memory_high_watermark_limit"].clone();
    let configured = limit();
    let check = |method: &str, path: &str, body: &str, want: u16| {
        assert_eq!(node.ask(method, &format!("/api/leveret/{path}"), body).status, want, "{path} {body}");
    };
    check("PUT",    "watermarks/memory", r#"{"absolute": 5000000000}"#,                 204);
    assert_eq!(limit(), json!(5_000_000_000_u64));
    check("PUT",    "watermarks/memory", r#"{"relative": 1.5}"#,                        400);
    check("PUT",    "watermarks/memory", r#"{"relative": 0.5, "absolute": 1}"#,         400);
    check("PUT",    "watermarks/memory", r#"{}"#,                                       400);
    check("DELETE", "watermarks/memory", "",                                            204);
    assert_eq!(limit(), configured);
    check("PUT",    "watermarks/disk",   r#"{"relative": 0.001}"#,                      204);
    check("DELETE", "watermarks/disk",   "",                                            204);
    check("POST",   "authenticate",      r#"{"username": "guest", "password": "guest"}"#, 204);
    check("POST",   "authenticate",      r#"{"username": "guest", "password": "no"}"#,  400);
    check("POST",   "authenticate",      r#"{"username": "guest"}"#,                    400);
    check("GET",    "log",               "",                                            404);
    check("POST",   "stop",              "",                                            401);
}

/// Who may see everything may change nothing.
#[test]
fn monitoring_is_no_administrator() {
    let node = Node::start();
    node.ask("PUT", "/api/users/m", r#"{"password": "m", "tags": "monitoring"}"#);
    let ask = |method, path: &str| {
        node.ask_as(Some("m:m"), method, &format!("/api/leveret/{path}"), &[], b"{}").status
    };
    assert_eq!(ask("GET", "status"), 200);
    for (method, path) in [
        ("PUT", "watermarks/memory"),
        ("PUT", "watermarks/disk"),
        ("POST", "listeners/suspend"),
        ("POST", "certificates/reload"),
        ("POST", "authenticate"),
        ("GET", "log"),
    ] {
        assert_eq!(ask(method, path), 401, "{path}");
    }
}
