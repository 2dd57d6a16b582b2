//! A client of bytes, for what a well-behaved one does not do.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use leveret_client::amqp::frame::ProtocolHeader;
use leveret_client::amqp::method::{Encode, Method, basic, channel, connection};
use leveret_client::amqp::table::Table;
use leveret_client::{Event, Input, Output};
use rustix::net::{self, AddressFamily, SocketType};

use crate::broker::{Broker, PATIENCE};

#[derive(Debug)]
pub(crate) struct Raw {
    pub(crate) socket: TcpStream,
    input: Input,
    pub(crate) output: Output,
}

impl Raw {
    /// A connection over which nothing went yet.
    pub(crate) fn connect(broker: &Broker) -> Self {
        Self::over(TcpStream::connect(broker.address).unwrap())
    }

    /// The same from another address of this machine.
    pub(crate) fn connect_from(broker: &Broker, address: [u8; 4]) -> Self {
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddr::from((address, 0))).unwrap();
        net::connect(&socket, &broker.address).unwrap();
        Self::over(socket.into())
    }

    fn over(socket: TcpStream) -> Self {
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self { socket, input: Input::new(64 * 1024, 131_072), output: Output::new(131_072) }
    }

    /// A connection that is logged in, with channel 1.
    pub(crate) fn login(broker: &Broker) -> Self {
        Self::login_with(broker, 0)
    }

    pub(crate) fn login_with(broker: &Broker, heartbeat: u16) -> Self {
        Self::login_as(broker, heartbeat, "guest")
    }

    /// As a user whose password is its name.
    pub(crate) fn login_as(broker: &Broker, heartbeat: u16, user: &str) -> Self {
        let mut raw = Self::connect(broker);
        for step in hello_as(heartbeat, user) {
            raw.send(&step);
        }
        raw.expect("channel.open-ok");
        raw
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub(crate) fn method(&mut self, channel: u16, method: &impl Encode) {
        self.send(&method_bytes(channel, method));
    }

    pub(crate) fn close_ok(&mut self) {
        self.method(0, &connection::CloseOk);
    }

    /// Reads until a method of this name comes.
    #[track_caller]
    pub(crate) fn expect(&mut self, name: &str) {
        let mut seen = Vec::new();
        loop {
            while let Some(event) = self.input.next_event().unwrap() {
                let (Event::Method { method, .. } | Event::Content { method, .. }) = event;
                if method.name() == name {
                    return;
                }
                seen.push(method.name());
            }
            match self.socket.read(self.input.room()) {
                Ok(0) => panic!("closed instead of {name}, after {seen:?}"),
                Ok(n) => self.input.filled(n),
                Err(error) => panic!("{error} instead of {name}, after {seen:?}"),
            }
        }
    }

    /// Reads until one of two methods comes; whether it is the first.
    #[track_caller]
    pub(crate) fn either(&mut self, first: &str, second: &str) -> bool {
        loop {
            while let Some(event) = self.input.next_event().unwrap() {
                let (Event::Method { method, .. } | Event::Content { method, .. }) = event;
                if method.name() == first || method.name() == second {
                    return method.name() == first;
                }
            }
            let n = self.socket.read(self.input.room()).unwrap();
            assert!(n > 0, "closed instead of {first}");
            self.input.filled(n);
        }
    }

    /// Channel 1 was closed: it is opened again.
    pub(crate) fn open_again(&mut self) {
        self.method(1, &channel::CloseOk);
        self.method(1, &channel::Open::default());
        self.expect("channel.open-ok");
    }

    /// Reads until `connection.close` comes, and gives its text.
    #[track_caller]
    pub(crate) fn close_text(&mut self) -> String {
        loop {
            while let Some(event) = self.input.next_event().unwrap() {
                if let Event::Method { method: Method::ConnectionClose(close), .. } = event {
                    return close.reply_text.to_owned();
                }
            }
            let n = self.socket.read(self.input.room()).unwrap();
            assert!(n > 0, "closed without a word");
            self.input.filled(n);
        }
    }

    /// Reads until the broker closes the socket; the methods that came before, and how long it took.
    #[track_caller]
    pub(crate) fn until_closed(mut self) -> (Vec<&'static str>, Duration) {
        let began = Instant::now();
        let mut seen = Vec::new();
        loop {
            while let Ok(Some(event)) = self.input.next_event() {
                let (Event::Method { method, .. } | Event::Content { method, .. }) = event;
                seen.push(method.name());
            }
            match self.socket.read(self.input.room()) {
                Ok(0) => return (seen, began.elapsed()),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return (seen, began.elapsed());
                }
                Ok(n) => self.input.filled(n),
                Err(error) => panic!("{error}, after {seen:?}"),
            }
        }
    }

    /// The next bytes, whatever they mean.
    #[track_caller]
    pub(crate) fn bytes(&mut self) -> Vec<u8> {
        let mut some = vec![0; 4096];
        let n = self.socket.read(&mut some).unwrap();
        some.truncate(n);
        some
    }

    /// The server properties of `connection.start`, the first thing the broker says.
    #[track_caller]
    pub(crate) fn server_properties(&mut self) -> Table {
        self.start(|start| start.server_properties.to_table().unwrap())
    }

    /// The mechanisms of `connection.start`.
    #[track_caller]
    pub(crate) fn mechanisms(&mut self) -> String {
        self.start(|start| String::from_utf8_lossy(start.mechanisms).into_owned())
    }

    #[track_caller]
    fn start<T>(&mut self, pick: impl Fn(&connection::Start<'_>) -> T) -> T {
        self.send(&ProtocolHeader::BYTES);
        loop {
            if let Some(event) = self.input.next_event().unwrap() {
                let Event::Method { method: Method::ConnectionStart(start), .. } = event else {
                    panic!("{event:?}");
                };
                return pick(&start);
            }
            let n = self.socket.read(self.input.room()).unwrap();
            assert!(n > 0, "closed");
            self.input.filled(n);
        }
    }
}

/// Everything a client sends to log in as guest and open channel 1, frame by frame.
pub(crate) fn hello(heartbeat: u16) -> Vec<Vec<u8>> {
    hello_as(heartbeat, "guest")
}

/// The same as a user whose password is its name.
pub(crate) fn hello_as(heartbeat: u16, user: &str) -> Vec<Vec<u8>> {
    let response = format!("\0{user}\0{user}");
    let start = connection::StartOk {
        mechanism: "PLAIN",
        response: response.as_bytes(),
        locale: "en_US",
        ..Default::default()
    };
    let tune = connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat };
    let open = connection::Open { virtual_host: "/", ..Default::default() };
    vec![
        ProtocolHeader::BYTES.to_vec(),
        method_bytes(0, &start),
        method_bytes(0, &tune),
        method_bytes(0, &open),
        method_bytes(1, &channel::Open::default()),
    ]
}

pub(crate) fn method_bytes(channel: u16, method: &impl Encode) -> Vec<u8> {
    let mut output = Output::new(131_072);
    output.put_method(channel, method);
    output.bytes().to_vec()
}

/// A transient message of so many bytes, on channel 1.
pub(crate) fn publish_bytes(exchange: &str, routing_key: &str, size: usize) -> Vec<u8> {
    let publish = basic::Publish { exchange, routing_key, ..Default::default() };
    let mut bytes = method_bytes(1, &publish);
    bytes.extend_from_slice(b"\x02\0\x01\0\0\0\x0e\0\x3c\0\0");
    bytes.extend_from_slice(&(size as u64).to_be_bytes());
    bytes.extend_from_slice(b"\0\0\xce");
    for part in vec![7; size].chunks(131_064) {
        bytes.extend_from_slice(b"\x03\0\x01");
        bytes.extend_from_slice(&(part.len() as u32).to_be_bytes());
        bytes.extend_from_slice(part);
        bytes.push(0xce);
    }
    bytes
}
