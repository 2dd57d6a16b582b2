//! Brokers that stop in the middle of something: the client does not wait for ever.

use std::io::Write as _;
use std::net::TcpListener;

use super::*;

/// A broker that says this and nothing more, whatever it hears, and reads nothing.
fn silent(says: Vec<u8>) -> (Uri, std::thread::JoinHandle<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let uri = format!("amqp://127.0.0.1:{port}").parse().unwrap();
    let broker = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.write_all(&says).unwrap();
        socket
    });
    (uri, broker)
}

/// All that a broker says until the vhost is open.
fn opening() -> Vec<u8> {
    let mut output = Output::new(0);
    let start = connection::Start {
        version_major: 0,
        version_minor: 9,
        server_properties: RawTable::new(&[]).unwrap(),
        mechanisms: b"PLAIN",
        locales: b"en_US",
    };
    output.put_method(0, &start);
    let tune = connection::Tune { channel_max: 0, frame_max: 131_072, heartbeat: 0 };
    output.put_method(0, &tune);
    output.put_method(0, &connection::OpenOk { known_hosts: "" });
    output.bytes().to_vec()
}

fn options() -> Options {
    let short = Duration::from_millis(200);
    Options { timeout: short, write_timeout: Some(short), ..Options::default() }
}

#[test]
fn a_broker_that_falls_silent_while_it_is_logged_in_to() {
    let whole = opening();
    for len in (0..whole.len()).step_by(11) {
        let (uri, broker) = silent(whole[..len].to_vec());
        let opened = Connection::open(&uri, &options()).err().map(|error| error.to_string());
        assert!(opened.as_ref().is_some_and(|it| it.contains("in time")), "{len}: {opened:?}");
        drop(broker.join());
    }
}

#[test]
fn a_broker_that_reads_nothing() {
    let (uri, broker) = silent(opening());
    let mut connection = Connection::open(&uri, &options()).unwrap();
    let error = loop {
        connection.output().put_bytes(&[0; 1 << 20]);
        if let Err(error) = connection.flush() {
            break error;
        }
    };
    assert!(matches!(error, Error::NotTaken), "{error}");
    drop(broker.join());
}
