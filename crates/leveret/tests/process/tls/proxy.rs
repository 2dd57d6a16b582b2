//! The PROXY protocol.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::json;

use super::{Certificates, broker};
use crate::broker::{Broker, PATIENCE, wait_until};
use crate::raw::hello;

/// Begins with `header`, in pieces, and logs in behind it.
fn login_behind(header: &[u8], broker: &Broker) -> TcpStream {
    let mut socket = TcpStream::connect(broker.address).unwrap();
    socket.set_nodelay(true).unwrap();
    let (first, rest) = header.split_at(header.len() / 2);
    socket.write_all(first).unwrap();
    // What follows comes in one piece with the header's end.
    let mut rest = rest.to_vec();
    for step in hello(0) {
        rest.extend(step);
    }
    socket.write_all(&rest).unwrap();
    socket
}

#[test]
fn the_address_is_the_header_s() {
    let broker = Broker::with(&["proxy_protocol=true", "loopback_users=none"]);
    let mut v2 = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
    v2.extend([192, 0, 2, 7, 192, 0, 2, 8, 0x12, 0x34, 0x16, 0x28]);
    let headers: [(&[u8], _); 3] = [
        (b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 5672\r\n", "192.0.2.1:56324 -> 192.0.2.2:5672"),
        (b"PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n", "[2001:db8::1]:1 -> [2001:db8::2]:2"),
        (&v2, "192.0.2.7:4660 -> 192.0.2.8:5672"),
    ];
    for (header, want) in headers {
        let socket = login_behind(header, &broker);
        wait_until(PATIENCE, "the client is there", || {
            broker.json(&["list_connections", "name", "state"])
                == json!([{ "name": want, "state": "running" }])
        });
        drop(socket);
        wait_until(PATIENCE, "the client is gone", || {
            broker.json(&["list_connections"]) == json!([])
        });
    }
}

/// A proxy makes nobody local.
#[test]
fn a_proxied_guest_is_not_local() {
    let broker = Broker::with(&["proxy_protocol=true"]);
    let _socket = login_behind(b"PROXY TCP4 192.0.2.1 127.0.0.1 56324 5672\r\n", &broker);
    let told = broker.log.wait_for("can only connect via localhost");
    assert!(told.contains("loopback_users"), "{told}");
}

#[test]
fn without_a_header_nothing_is_read() {
    let broker = Broker::with(&["proxy_protocol=true", "ssl_handshake_timeout=300"]);
    for (bytes, why) in [
        (&b"AMQP\0\0\x09\x01"[..], "it begins with no PROXY header"),
        (b"PROXY TCP4 x\r\n", "expected two addresses"),
        (b"PROXY TCP4 192.0.2.1 ", "no PROXY header came in time"),
    ] {
        let mut socket = TcpStream::connect(broker.address).unwrap();
        socket.write_all(bytes).unwrap();
        broker.log.wait_for(why);
        // A reset is an end, too.
        let mut rest = Vec::new();
        let _ = socket.read_to_end(&mut rest);
        assert_eq!(rest, b"", "{why}");
    }
}

#[test]
fn a_header_before_the_handshake() {
    let certificates = Certificates::new();
    let broker = broker(&certificates, &["proxy_protocol=true"]);
    let mut socket = TcpStream::connect(broker.listens("amqps")).unwrap();
    socket.write_all(b"PROXY TCP4 192.0.2.9 192.0.2.2 1 5671\r\nAMQP\0\0\x09\x01").unwrap();
    let told = broker.log.wait_for("the client does not speak TLS");
    assert!(told.contains("192.0.2.9"), "{told}");
}
