//! What holds for every path: authentication, methods, compression, ETags, other sites, prefixes.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::node::{Node, PATIENCE};

#[test]
fn authentication() {
    let node = Node::start();
    let nobody = node.ask_as(None, "GET", "/api/overview", &[], b"");
    assert_eq!(nobody.status, 401);
    assert_eq!(nobody.header("www-authenticate"), "Basic realm=\"RabbitMQ Management\"");
    assert_eq!(nobody.json()["error"], "not_authorized");
    let wrong = node.ask_as(Some("guest:wrong"), "GET", "/api/overview", &[], b"");
    assert_eq!((wrong.status, wrong.header("www-authenticate")), (401, ""));
    assert_eq!(wrong.text(), r#"{"error":"not_authorized","reason":"Not_Authorized"}"#);
    let unknown = node.ask_as(Some("nobody:x"), "GET", "/api/overview", &[], b"");
    assert_eq!(unknown.text(), wrong.text());
    assert_eq!(node.get("/api/whoami")["name"], "guest");
    assert_eq!(node.get("/api/whoami")["tags"][0], "administrator");
    assert_eq!(node.get("/api/whoami")["is_internal_user"], true);
}

#[test]
fn guest_comes_from_this_machine_only() {
    let node = Node::with(&[("loopback_users.guest", "true"), ("management.tcp.ip", "0.0.0.0")]);
    assert_eq!(node.ask("GET", "/api/whoami", "").status, 200);
    let own = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    // An address of this machine that is not loopback, if it has one.
    let Ok(()) = own.connect("192.0.2.1:9") else { return };
    let ip = own.local_addr().unwrap().ip();
    if ip.is_loopback() {
        return;
    }
    let mut elsewhere = node;
    elsewhere.http.set_ip(ip);
    let got = elsewhere.ask("GET", "/api/whoami", "");
    assert_eq!(got.status, 401);
    assert_eq!(
        got.text(),
        r#"{"error":"not_authorised","reason":"User can only log in via localhost"}"#
    );
}

/// RFC 9112 section 3.2.
#[test]
fn requests_have_one_host() {
    let node = Node::start();
    for (hosts, status) in [("Host: x\r\n", 200), ("", 400), ("Host: x\r\nhost: y\r\n", 400)] {
        let mut socket = TcpStream::connect(node.http).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = format!("GET / HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).unwrap();
        let mut got = String::new();
        socket.read_to_string(&mut got).unwrap();
        assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{hosts}: {got}");
    }
}

#[test]
fn paths_and_methods() {
    let node = Node::start();
    let got = node.ask("GET", "/api/nonsense", "");
    assert_eq!(got.status, 404);
    assert_eq!(got.text(), r#"{"error":"Object Not Found","reason":"Not Found"}"#);
    let got = node.ask("POST", "/api/overview", "");
    assert_eq!((got.status, got.header("allow")), (405, "GET, HEAD, OPTIONS"));
    assert_eq!(got.json()["error"], "method_not_allowed");
    let got = node.ask("OPTIONS", "/api/queues/%2F/q", "");
    assert_eq!((got.status, got.header("allow")), (200, "GET, HEAD, PUT, DELETE, OPTIONS"));
    let got = node.ask("HEAD", "/api/overview", "");
    assert_eq!((got.status, got.body.len()), (200, 0));
    // A slash at the end changes nothing.
    assert_eq!(node.ask("GET", "/api/overview/", "").status, 200);
    let hidden = Node::with(&[("management.http.hide_allow_header", "true")]);
    assert_eq!(hidden.ask("POST", "/api/overview", "").header("allow"), "");
}

#[test]
fn compression_and_tags() {
    let node = Node::start();
    let plain = node.ask("GET", "/api/exchanges", "");
    assert_eq!(plain.header("content-type"), "application/json");
    assert_eq!(plain.header("cache-control"), "no-cache");
    assert_eq!(plain.header("x-content-type-options"), "nosniff");
    let guest = Some("guest:guest");
    let gzip = [("Accept-Encoding", "gzip, deflate")];
    let small = node.ask_as(guest, "GET", "/api/exchanges", &gzip, b"");
    assert_eq!(small.header("content-encoding"), "gzip");
    assert!(small.body.len() < plain.body.len() / 2, "{}", small.body.len());
    let mut text = String::new();
    flate2::read::GzDecoder::new(&small.body[..]).read_to_string(&mut text).unwrap();
    assert_eq!(text, plain.text());
    let tag = plain.header("etag");
    assert_eq!(small.header("etag"), tag);
    let same = node.ask_as(guest, "GET", "/api/exchanges", &[("If-None-Match", tag)], b"");
    assert_eq!((same.status, same.body.len()), (304, 0));
    node.must("PUT", "/api/exchanges/%2F/x", r#"{"type": "fanout"}"#, 201);
    let new = node.ask_as(guest, "GET", "/api/exchanges", &[("If-None-Match", tag)], b"");
    assert_eq!(new.status, 200);
}

#[test]
fn other_sites() {
    let key = "management.cors.allow_origins.1";
    let node = Node::with(&[(key, "https://good.example")]);
    let ask = |method, origin| {
        let headers = [("Origin", origin), ("Access-Control-Request-Headers", "authorization")];
        node.ask_as(Some("guest:guest"), method, "/api/overview", &headers, b"")
    };
    let good = ask("GET", "https://good.example");
    assert_eq!(good.header("access-control-allow-origin"), "https://good.example");
    assert_eq!(ask("GET", "https://bad.example").header("access-control-allow-origin"), "");
    let asked = ask("OPTIONS", "https://good.example");
    assert_eq!(asked.header("access-control-allow-methods"), "GET, HEAD, OPTIONS");
    assert_eq!(asked.header("access-control-allow-headers"), "authorization");
    assert_eq!(asked.header("access-control-max-age"), "1800");
}

#[test]
fn a_prefix_and_a_small_limit() {
    let settings =
        [("management.path_prefix", "/rabbit"), ("management.http.max_body_size", "100")];
    let node = Node::with(&settings);
    assert_eq!(node.get("/rabbit/api/overview")["contexts"][0]["path"], "/rabbit");
    assert_eq!(node.ask("GET", "/api/overview", "").status, 404);
    let body = format!(r#"{{"arguments": {{"x": "{}"}}}}"#, "y".repeat(100));
    let got = node.must("PUT", "/rabbit/api/queues/%2F/q", &body, 413);
    assert!(got.text().contains("management.http.max_body_size"), "{}", got.text());
}

/// What comes back until the connection ends, after all of this was sent.
#[track_caller]
fn answered(node: &Node, parts: &[&[u8]]) -> String {
    let mut socket = TcpStream::connect(node.http).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    parts.iter().for_each(|part| socket.write_all(part).unwrap());
    let mut all = String::new();
    socket.read_to_string(&mut all).unwrap();
    all
}

/// A client that sends all of its body before it reads gets an answer, and no broken connection.
#[test]
fn who_is_refused_in_the_middle_of_a_long_body_hears_why() {
    let node = Node::start();
    let body = vec![b' '; 30 << 20];
    let guest = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n";
    let foreign = "Origin: https://bad.example\r\n";
    #[rustfmt::skip] // a table
    let rows = [
        ("PUT /api/vhosts/v",   "",      401),
        ("PUT /api/vhosts/v",   foreign, 403),
        ("PUT /api/nowhere",    guest,   404),
        ("PATCH /api/vhosts/v", guest,   405),
        ("PUT /api/vhosts/v",   guest,   413),
    ];
    for (line, header, status) in rows {
        let len = body.len();
        let head = format!("{line} HTTP/1.1\r\nHost: x\r\n{header}Content-Length: {len}\r\n\r\n");
        let got = answered(&node, &[head.as_bytes(), &body]).to_lowercase();
        assert!(got.starts_with(&format!("http/1.1 {status} ")), "{line}: {got}");
        assert!(got.contains("\r\nconnection: close\r\n"), "{line}: {got}");
        let head =
            format!("{line} HTTP/1.1\r\nHost: x\r\n{header}Transfer-Encoding: chunked\r\n\r\n");
        let chunk = [format!("{len:x}\r\n").as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
        let got = answered(&node, &[head.as_bytes(), &chunk]);
        assert!(got.starts_with(&format!("HTTP/1.1 {status} ")), "{line}: {got}");
    }
}

/// After a short body the connection goes on, read or not; with one that is not sent before it is asked for it ends.
#[test]
fn a_refused_request_with_a_short_body_leaves_the_connection() {
    let node = Node::start();
    let refused = b"PUT /api/vhosts/v HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n";
    let body = vec![b' '; 60_000];
    let last = b"GET /api/nowhere HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let got = answered(&node, &[refused, &body, refused, &body, last]);
    let answers = got.split("HTTP/1.1 ").skip(1);
    let statuses: Vec<&str> = answers.map(|answer| &answer[..3]).collect();
    assert_eq!(statuses, ["401", "401", "404"], "{got}");
    let waits = b"PUT /api/vhosts/v HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n";
    let mut socket = TcpStream::connect(node.http).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.write_all(waits).unwrap();
    let mut got = String::new();
    while !got.contains("\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        got.push(byte[0].into());
    }
    assert!(got.starts_with("HTTP/1.1 401 ") && !got.contains("100 Continue"), "{got}");
    assert!(got.contains("connection: close\r\n"), "{got}");
}

/// Nonsense gets an answer, and the next one is served.
#[test]
fn nonsense() {
    let node = Node::start();
    #[rustfmt::skip] // a table
    let rows = [
        ("PUT",  "/api/queues/%2F/q",  "{",            400, "not_json"),
        ("PUT",  "/api/queues/%2F/q",  "[]",           400, "JSON object"),
        ("PUT",  "/api/queues/%2F/q",  "\"{}\"",       400, "doubly-JSON-encoded"),
        ("PUT",  "/api/queues/%2F/q",  r#"{"durable": 3}"#, 400, "'durable' must be true or false"),
        ("PUT",  "/api/queues/%2F/q",  r#"{"arguments": 3}"#, 400, "'arguments' must be an object"),
        ("GET",  "/api/queues?page=x", "",             400, "Pagination parameters are invalid"),
        ("GET",  "/api/queues?page=0", "",             400, "Invalid pagination parameters"),
        ("GET",  "/api/queues?page=1&page_size=501", "", 400, "page size 501"),
        ("GET",  "/api/queues?page=9", "",             400, "page_out_of_range"),
        ("GET",  "/api/queues?page=1&use_regex=true&name=%28", "", 400, "not a regular expression"),
        ("GET",  "/api/queues/%ff/q",  "",             400, "bad path"),
        ("GET",  "/api/queues/nowhere", "",            404, "Not Found"),
        // As milliseconds this step is 0 in 64 bits.
        ("GET",  "/api/overview?lengths_age=2305843009213693952&lengths_incr=2305843009213693952", "", 200, "node"),
        ("GET",  "/api/overview?lengths_age=60&lengths_incr=0", "", 200, "node"),
        ("GET",  "/api/overview?lengths_age=18446744073709551615&lengths_incr=1", "", 200, "node"),
        ("GET",  "/api/overview?lengths_age=-1&lengths_incr=x", "", 200, "node"),
    ];
    for (method, path, body, status, part) in rows {
        let got = node.must(method, path, body, status);
        assert!(got.text().contains(part), "{method} {path}: {}", got.text());
    }
}

/// What a browser sends for a page of another site changes nothing; what programs send does.
#[test]
fn pages_of_other_sites_change_nothing() {
    let node = Node::with(&[("management.cors.allow_origins.1", "https://good.example")]);
    let (json, form) = ("application/json", "application/x-www-form-urlencoded");
    let multipart = "multipart/form-data; boundary=X";
    let upload = "--X\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\n{}\r\n--X--\r\n";
    let bad = ("Origin", "https://bad.example");
    let good = ("Origin", "https://good.example");
    let (own, cross) = (("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "cross-site"));
    type Headers<'a> = &'a [(&'a str, &'a str)];
    #[rustfmt::skip] // a table
    let rows: &[(&str, &str, Headers<'_>, &str, u16)] = &[
        // Another site.
        ("POST",   "/api/definitions",          &[bad, ("Content-Type", multipart)],        upload, 403),
        ("POST",   "/api/definitions",          &[bad, ("Content-Type", "text/plain")],     "{}",   403),
        ("POST",   "/api/definitions",          &[bad, ("Content-Type", json)],             "{}",   403),
        ("POST",   "/api/definitions",          &[cross, ("Content-Type", form)],           "{}",   403),
        ("POST",   "/api/definitions",          &[("Origin", "null")],                      "{}",   403),
        ("POST",   "/api/definitions",          &[("Referer", "https://bad.example/x")],    "{}",   403),
        ("PUT",    "/api/queues/%2F/bad",       &[bad],                                     "",     403),
        ("DELETE", "/api/queues/%2F/q",         &[cross],                                   "",     403),
        ("GET",    "/api/aliveness-test/%2F",   &[cross],                                   "",     403),
        ("GET",    "/api/overview",             &[cross],                                   "",     200),
        // The page itself, and a site that may.
        ("POST",   "/api/definitions",          &[own, ("Content-Type", json)],             "{}",   204),
        ("POST",   "/api/definitions",          &[own, ("Content-Type", multipart)],        upload, 204),
        ("POST",   "/api/definitions",          &[("Origin", "http://x:80"), ("Content-Type", json)], "{}", 204),
        ("POST",   "/api/definitions",          &[good, cross, ("Content-Type", json)],     "{}",   204),
        ("PUT",    "/api/queues/%2F/q",         &[good],                                    "",     201),
        ("DELETE", "/api/queues/%2F/q",         &[own],                                     "",     204),
        // What a form can send.
        ("POST",   "/api/definitions",          &[good, ("Content-Type", "text/plain")],    "{}",   415),
        ("POST",   "/api/definitions",          &[own, ("Content-Type", form)],             "{}",   415),
        ("PUT",    "/api/queues/%2F/q",         &[good],                                    "{}",   415),
        ("PUT",    "/api/queues/%2F/q",         &[own, ("Content-Type", multipart)],        upload, 415),
        // Programs: curl, and who names no type.
        ("POST",   "/api/definitions",          &[("Content-Type", form)],                  "{}",   204),
        ("POST",   "/api/definitions",          &[("Content-Type", multipart)],             upload, 204),
        ("POST",   "/api/definitions",          &[("Content-Type", "text/plain")],          "{}",   204),
        ("PUT",    "/api/queues/%2F/q",         &[],                                        "{}",   201),
    ];
    for (method, path, headers, body, want) in rows {
        let got = node.ask_as(Some("guest:guest"), method, path, headers, body.as_bytes());
        assert_eq!(got.status, *want, "{method} {path} {headers:?}: {}", got.text());
    }
    assert_eq!(node.get("/api/queues").as_array().unwrap().len(), 1);
}

/// A name that leads to this machine makes a page of somebody else's one of the same site: the password that
/// everybody knows is not taken from it.
#[test]
fn guest_is_not_at_home_under_any_name() {
    let node = Node::start();
    let rebound = [("Host", "bad.example"), ("Accept-Language", "en")];
    let got = node.ask_as(Some("guest:guest"), "GET", "/api/overview", &rebound, b"");
    assert_eq!(got.status, 401, "{}", got.text());
    assert!(got.text().contains("User can only log in via localhost"), "{}", got.text());
    let body = r#"{"password": "p", "tags": "management"}"#;
    node.must("PUT", "/api/users/u", body, 201);
    assert_eq!(node.ask_as(Some("u:p"), "GET", "/api/overview", &rebound, b"").status, 200);
}
