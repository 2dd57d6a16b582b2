//! Handshakes that do not end, by clients that have shown nothing; and connections that do nothing.

use std::io::Write as _;
use std::net::TcpStream;

use super::certificates::Certificates;
use super::{assert_ended, broker, open, uri};
use crate::broker::{PATIENCE, wait_until};

/// Bytes of the message, without its last one.
const LONG: usize = 65_000;

/// A ClientHello that is as long as one may be, in records of 16 KiB, all but its end.
fn long_hello() -> Vec<u8> {
    let mut message = vec![b'x'; LONG];
    message[..4].copy_from_slice(&[1, 0, (LONG >> 8) as u8, LONG as u8]);
    message[4..6].copy_from_slice(&[3, 3]);
    let mut records = Vec::new();
    for piece in message[..LONG - 1].chunks(1 << 14) {
        records.extend([22, 3, 1, (piece.len() >> 8) as u8, piece.len() as u8]);
        records.extend(piece);
    }
    records
}

/// One address has room for 8 MiB of them, and no long handshake of others waits for its end.
#[test]
fn long_ones_have_a_bound() {
    let certificates = Certificates::new();
    let broker = broker(&certificates, &["ssl_handshake_timeout=20000"]);
    let (address, hello) = (broker.listens("amqps"), long_hello());
    let mut all: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    for socket in &mut all {
        // The one for which there is no room may be closed before all is written.
        let _ = socket.write_all(&hello);
    }
    let line = broker.log.wait_for("there is no room for more long ones");
    assert!(line.contains("WARN TLS handshake failed: it is long"), "{line}");
    // Not the first one, and the last one.
    assert_ended(all.pop().unwrap());
    open(&uri(&broker, certificates.trust())).unwrap().close().unwrap();
}

/// A crowd of them is seen by what is compared with the watermark, and what it took comes back.
#[test]
fn idle_ones_are_counted() {
    const COUNT: u64 = 200;
    let certificates = Certificates::new();
    let broker = broker(&certificates, &[]);
    let uri = uri(&broker, certificates.trust());
    let counted = || broker.json(&["status"])["message_bytes"].as_u64().unwrap();
    let none = counted();
    let before = broker.own_memory();
    let all: Vec<_> = (0..COUNT).map(|_| open(&uri).unwrap()).collect();
    let each = broker.own_memory().saturating_sub(before) / COUNT;
    assert!(each < 40 << 10, "{each} bytes for a connection");
    assert!(counted() - none >= COUNT * (16 << 10), "{} bytes are counted", counted() - none);
    drop(all);
    wait_until(PATIENCE, "nothing is counted any more", || counted() <= none);
}
