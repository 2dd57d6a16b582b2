//! A connection: the socket, the handshake, heartbeats, and the way of every byte.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use leveret_amqp::content::RawProperties;
use leveret_amqp::frame::ProtocolHeader;
use leveret_amqp::method::{Encode, Method, MethodError, channel, connection};
use leveret_amqp::table::{RawTable, Table, Value};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use crate::error::{CloseReason, Error};
use crate::input::{Event, Input};
use crate::output::{Output, PublishBatch};
use crate::uri::Uri;
use crate::wire::Wire;

/// Shorter waits are made with poll(2), whose clock is finer than that of a receive timeout.
const FINE: Duration = Duration::from_millis(50);

/// How to connect, beside the address.
#[derive(Clone, Debug)]
pub struct Options {
    /// `connection_name` among the client properties, shown by the broker's tools.
    pub name: Option<String>,
    /// Channels to ask for; 0 takes the broker's limit.
    pub channel_max: u16,
    /// Largest frame to ask for, in bytes; 0 takes the broker's limit.
    pub frame_max: u32,
    /// Heartbeat in seconds instead of the URI's or the broker's; 0 is none.
    pub heartbeat_s: Option<u16>,
    /// Bytes that one read may bring.
    pub read_bytes: usize,
    /// How long connecting and each call may take.
    pub timeout: Duration,
    /// How long the broker may take nothing of what is written to it; any time if none. A broker that is short of memory or disk
    /// reads nothing for as long as that lasts.
    pub write_timeout: Option<Duration>,
    /// Send buffer of the socket, if not the system's.
    pub send_buffer: Option<usize>,
    /// Receive buffer of the socket, if not the system's.
    pub receive_buffer: Option<usize>,
    /// Small packets leave at once.
    pub no_delay: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: None,
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat_s: None,
            read_bytes: 256 * 1024,
            timeout: Duration::from_secs(30),
            write_timeout: None,
            send_buffer: None,
            receive_buffer: None,
            no_delay: true,
        }
    }
}

/// A connection to a broker, used from one thread.
///
/// Reading goes in two steps: [`wait`](Self::wait) or [`poll`](Self::poll) bring bytes,
/// [`next_event`](Self::next_event) gives out the events in them until there is `None`. Writing goes in two
/// steps as well: calls such as [`publish`](Self::publish) and [`ack`](Self::ack) encode,
/// [`flush`](Self::flush) writes.
#[derive(Debug)]
pub struct Connection {
    wire: Wire,
    pub(crate) input: Input,
    pub(crate) output: Output,
    /// Events that came while a call waited for its answer, oldest first.
    kept: VecDeque<OwnedEvent>,
    /// The one of them that was given out last.
    given: Option<OwnedEvent>,
    /// Receive timeout that the socket has; `None` is not known yet.
    socket_timeout: Option<Duration>,
    timeout: Duration,
    heartbeat: Option<Duration>,
    last_sent: Instant,
    last_received: Instant,
    channel_max: u16,
    last_channel: u16,
    free_channels: Vec<u16>,
    server_properties: Table,
    blocked: bool,
    /// Those that were not taken.
    writes: u64,
}

/// An event that owns its bytes.
#[derive(Debug)]
struct OwnedEvent {
    channel: u16,
    method: Vec<u8>,
    /// Properties and body.
    content: Option<(Vec<u8>, Vec<u8>)>,
}

impl OwnedEvent {
    fn new(event: &Event<'_>) -> Self {
        let mut bytes = Vec::new();
        match event {
            Event::Method { channel, method } => {
                method.encode(&mut bytes);
                Self { channel: *channel, method: bytes, content: None }
            }
            Event::Content { channel, method, properties, body } => {
                method.encode(&mut bytes);
                let content = Some((properties.as_bytes().to_vec(), body.to_vec()));
                Self { channel: *channel, method: bytes, content }
            }
        }
    }

    fn event(&self) -> Result<Event<'_>, MethodError> {
        let method = Method::decode(&self.method)?;
        Ok(match &self.content {
            None => Event::Method { channel: self.channel, method },
            Some((properties, body)) => Event::Content {
                channel: self.channel,
                method,
                properties: RawProperties::new(properties),
                body,
            },
        })
    }
}

/// Stops a connection from another thread: whatever blocks on it fails.
#[derive(Debug)]
pub struct Stopper(TcpStream);

impl Stopper {
    /// Ends the connection without a word to the broker.
    pub fn stop(&self) {
        // Already ended is as good.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }
}

impl Connection {
    /// Connects, logs in with PLAIN and opens the vhost.
    pub fn open(uri: &Uri, options: &Options) -> Result<Self, Error> {
        let socket = connect(uri, options)?;
        let wire = Wire::new(socket, uri, options.timeout)
            .map_err(Error::io(format!("speaking TLS to {}:{}", uri.host, uri.port)))?;
        let now = Instant::now();
        let mut connection = Self {
            wire,
            input: Input::new(options.read_bytes, options.frame_max),
            output: Output::new(options.frame_max),
            kept: VecDeque::new(),
            given: None,
            socket_timeout: None,
            timeout: options.timeout,
            heartbeat: None,
            last_sent: now,
            last_received: now,
            channel_max: options.channel_max,
            last_channel: 0,
            free_channels: Vec::new(),
            server_properties: Table::default(),
            blocked: false,
            writes: 0,
        };
        connection.start(uri, options)?;
        connection.login(uri, options)?;
        let open = connection::Open { virtual_host: &uri.vhost, ..Default::default() };
        connection.call(0, &open, "connection.open", |method| {
            matches!(method, Method::ConnectionOpenOk(_)).then_some(())
        })?;
        Ok(connection)
    }

    /// Sends the protocol header and reads `connection.start`.
    fn start(&mut self, uri: &Uri, options: &Options) -> Result<(), Error> {
        self.output.put_bytes(&ProtocolHeader::BYTES);
        self.flush()?;
        let deadline = Instant::now() + self.timeout;
        // The answer may be the peer's own header, which is no frame.
        while self.input.waiting().len() < ProtocolHeader::LEN {
            if !self.wait_until(deadline)? {
                return Err(Error::TimedOut("the protocol header"));
            }
        }
        if let Some(header) = self.input.waiting().first_chunk::<8>()
            && header.starts_with(b"AMQP")
        {
            return Err(Error::OtherProtocol(*header));
        }
        let (mechanisms, properties) =
            self.answer(0, "the protocol header", |method| match method {
                Method::ConnectionStart(start) => Some((
                    String::from_utf8_lossy(start.mechanisms).into_owned(),
                    start.server_properties.to_table(),
                )),
                _ => None,
            })?;
        let is_external = uri.tls.as_ref().is_some_and(|tls| tls.is_external);
        let mechanism = if is_external { "EXTERNAL" } else { "PLAIN" };
        if !mechanisms.split(' ').any(|offered| offered == mechanism) {
            return Err(Error::LoginRefused(format!("the broker offers only {mechanisms}")));
        }
        self.server_properties = properties.unwrap_or_default();
        let table = client_properties(options).to_bytes();
        let response = match is_external {
            true => String::new(),
            false => format!("\0{}\0{}", uri.user, uri.password),
        };
        self.output.put_method(
            0,
            &connection::StartOk {
                client_properties: RawTable::new(&table).map_err(MethodError::from)?,
                mechanism,
                response: response.as_bytes(),
                locale: "en_US",
            },
        );
        Ok(())
    }

    /// Waits for `connection.tune` and agrees on the smaller of both wishes.
    fn login(&mut self, uri: &Uri, options: &Options) -> Result<(), Error> {
        self.flush()?;
        let tune = self.answer(0, "the login", |method| match method {
            Method::ConnectionTune(tune) => Some(*tune),
            _ => None,
        });
        let tune = match tune {
            // Before RabbitMQ's `authentication_failure_close`, a closed socket is all one gets.
            Err(Error::Io { error, .. }) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(Error::LoginRefused("the broker closed the connection".into()));
            }
            Err(Error::ConnectionClosed(reason)) if reason.code == 403 => {
                return Err(Error::LoginRefused(reason.to_string()));
            }
            tune => tune?,
        };
        let heartbeat_s = options.heartbeat_s.or(uri.heartbeat_s).unwrap_or(tune.heartbeat);
        let frame_max = smaller_limit(options.frame_max, tune.frame_max);
        self.channel_max =
            smaller_limit(u32::from(options.channel_max), u32::from(tune.channel_max)) as u16;
        if self.channel_max == 0 {
            self.channel_max = u16::MAX;
        }
        self.output.put_method(
            0,
            &connection::TuneOk {
                channel_max: self.channel_max,
                frame_max,
                heartbeat: heartbeat_s,
            },
        );
        self.output.set_frame_max(frame_max);
        self.input.set_frame_max(frame_max);
        self.heartbeat = (heartbeat_s > 0).then(|| Duration::from_secs(u64::from(heartbeat_s)));
        Ok(())
    }

    /// What the broker says about itself.
    pub fn server_properties(&self) -> &Table {
        &self.server_properties
    }

    /// Leveret's version, if the broker is one: it may call itself RabbitMQ.
    pub fn leveret_version(&self) -> Option<&str> {
        self.server_properties.get("leveret_version").and_then(Value::as_str)
    }

    /// Whether `connection.blocked` holds: publishing waits until the broker has memory again.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// The buffer of what is to be written, for methods this type has no call for.
    pub fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    /// A handle that ends this connection from another thread.
    pub fn stopper(&self) -> Result<Stopper, Error> {
        self.wire.socket.try_clone().map(Stopper).map_err(Error::io("duplicating the socket"))
    }

    /// How often the socket was written to since the last call of this.
    pub fn take_writes(&mut self) -> u64 {
        std::mem::take(&mut self.writes)
    }

    /// Writes all that was encoded. Blocks while the broker does not read.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.output.bytes().is_empty() {
            return Ok(());
        }
        let written = self.wire.write_all(self.output.bytes());
        self.output.clear();
        self.wrote(written)
    }

    /// Writes all that was encoded, then `count` messages of a batch from message `start` on.
    pub fn publish_batch(
        &mut self,
        batch: &PublishBatch,
        start: usize,
        count: usize,
    ) -> Result<(), Error> {
        self.flush()?;
        let written = self.wire.write_all(batch.part(start, count));
        self.wrote(written)
    }

    fn wrote(&mut self, written: io::Result<()>) -> Result<(), Error> {
        match written {
            Ok(()) => {
                self.writes += 1;
                self.last_sent = Instant::now();
                Ok(())
            }
            Err(error) if is_timeout(&error) => Err(Error::NotTaken),
            Err(error) => Err(self.last_words(error)),
        }
    }

    /// Writing failed: the reason may be waiting to be read.
    fn last_words(&mut self, error: io::Error) -> Error {
        let deadline = Instant::now() + Duration::from_millis(500);
        while let Ok(true) = self.read_once(deadline) {
            loop {
                match self.next_event() {
                    Ok(Some(_)) => {}
                    Ok(None) => break,
                    Err(reason) => return reason,
                }
            }
        }
        Error::io("writing")(error)
    }

    /// Takes what has come without waiting. `false`: nothing was there.
    pub fn poll(&mut self) -> Result<bool, Error> {
        let room = self.input.room();
        match self.wire.read(room, true) {
            Ok(count) if count > 0 => {
                self.input.filled(count);
                self.last_received = Instant::now();
                Ok(true)
            }
            Ok(_) => Err(ended()),
            Err(error) if is_timeout(&error) => Ok(false),
            Err(error) => Err(Error::io("reading")(error)),
        }
    }

    /// Waits until bytes have come; `false` when `timeout` has passed before. Sends heartbeats.
    pub fn wait(&mut self, timeout: Duration) -> Result<bool, Error> {
        self.wait_until(Instant::now() + timeout)
    }

    fn wait_until(&mut self, deadline: Instant) -> Result<bool, Error> {
        loop {
            if self.read_once(deadline)? {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }

    /// One read that ends at the latest when a heartbeat is due.
    fn read_once(&mut self, deadline: Instant) -> Result<bool, Error> {
        let mut now = Instant::now();
        let mut patience = deadline.saturating_duration_since(now);
        if let Some(heartbeat) = self.heartbeat {
            patience = patience.min(heartbeat / 2);
        }
        let read = if patience < FINE {
            self.read_finely(patience)
        } else {
            self.set_socket_timeout(patience)?;
            self.wire.read(self.input.room(), false)
        };
        now = Instant::now();
        let came = match read {
            Ok(0) => return Err(ended()),
            Ok(count) => {
                self.input.filled(count);
                self.last_received = now;
                true
            }
            Err(error) if is_timeout(&error) => false,
            Err(error) => return Err(Error::io("reading")(error)),
        };
        if let Some(heartbeat) = self.heartbeat
            && now.saturating_duration_since(self.last_received) > heartbeat * 2
        {
            return Err(Error::HeartbeatMissed(heartbeat.as_secs() * 2));
        }
        self.beat(now)?;
        Ok(came)
    }

    /// Sends a heartbeat if one is due: for those who neither write nor wait for a while.
    pub fn keep_alive(&mut self) -> Result<(), Error> {
        self.beat(Instant::now())
    }

    fn beat(&mut self, now: Instant) -> Result<(), Error> {
        match self.heartbeat {
            Some(beat) if now.saturating_duration_since(self.last_sent) >= beat / 2 => {
                self.output.put_heartbeat();
                self.flush()
            }
            _ => Ok(()),
        }
    }

    /// As a read with a receive timeout, which knows only the kernel's ticks, but exact.
    fn read_finely(&mut self, timeout: Duration) -> io::Result<usize> {
        let timeout = Timespec { tv_sec: 0, tv_nsec: timeout.subsec_nanos().into() };
        let mut waits = [PollFd::new(&self.wire.socket, PollFlags::IN)];
        if !self.wire.has_some() && poll(&mut waits, Some(&timeout))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // There may be part of a record only, which is no reason to wait.
        self.wire.read(self.input.room(), true)
    }

    /// Sets the receive timeout unless the socket has about the same: that is a system call.
    fn set_socket_timeout(&mut self, timeout: Duration) -> Result<(), Error> {
        // The kernel counts in ticks of some milliseconds, and zero would mean "for ever".
        let rounded = Duration::from_millis(timeout.as_millis().clamp(1, 3_600_000) as u64);
        if self.socket_timeout != Some(rounded) {
            let set = self.wire.socket.set_read_timeout(Some(rounded));
            set.map_err(Error::io("setting the receive timeout"))?;
            self.socket_timeout = Some(rounded);
        }
        Ok(())
    }

    /// The next event in the bytes at hand; `None` when there is no whole one.
    ///
    /// Closes are answered and come as errors: after [`Error::ChannelClosed`] go on, after any
    /// other the connection is over. `channel.flow` is answered and given out as well.
    pub fn next_event(&mut self) -> Result<Option<Event<'_>>, Error> {
        if let Some(kept) = self.kept.pop_front() {
            return Ok(Some(self.given.insert(kept).event()?));
        }
        self.fresh()
    }

    /// The next event that no call has looked at.
    fn fresh(&mut self) -> Result<Option<Event<'_>>, Error> {
        let Some(event) = self.input.next_event()? else { return Ok(None) };
        let Event::Method { channel, method } = &event else { return Ok(Some(event)) };
        match method {
            Method::ConnectionClose(close) => {
                let reason = CloseReason {
                    code: close.reply_code,
                    text: close.reply_text.into(),
                    method: (close.class_id, close.method_id),
                };
                self.output.clear();
                self.output.put_method(0, &connection::CloseOk);
                // The peer may be gone already; its reason is what matters.
                let _ = self.wire.write_all(self.output.bytes());
                self.output.clear();
                return Err(Error::ConnectionClosed(reason));
            }
            Method::ChannelClose(close) => {
                let reason = CloseReason {
                    code: close.reply_code,
                    text: close.reply_text.into(),
                    method: (close.class_id, close.method_id),
                };
                let channel = *channel;
                self.output.put_method(channel, &channel::CloseOk);
                self.free_channels.push(channel);
                return Err(Error::ChannelClosed { channel, reason });
            }
            Method::ChannelFlow(flow) => {
                self.output.put_method(*channel, &channel::FlowOk { active: flow.active });
            }
            Method::ConnectionBlocked(_) => self.blocked = true,
            Method::ConnectionUnblocked(_) => self.blocked = false,
            _ => {}
        }
        Ok(Some(event))
    }

    /// Sends `request`, with all that was encoded before it, and waits for the answer that `pick`
    /// accepts.
    pub(crate) fn call<T>(
        &mut self,
        channel: u16,
        request: &impl Encode,
        name: &'static str,
        pick: impl FnMut(&Method<'_>) -> Option<T>,
    ) -> Result<T, Error> {
        self.output.put_method(channel, request);
        self.flush()?;
        self.answer(channel, name, pick)
    }

    fn answer<T>(
        &mut self,
        channel: u16,
        name: &'static str,
        mut pick: impl FnMut(&Method<'_>) -> Option<T>,
    ) -> Result<T, Error> {
        self.answer_event(name, |event| match event {
            Event::Method { channel: of, method } if *of == channel => pick(method),
            _ => None,
        })
    }

    /// Waits for the event that `pick` accepts; the others are given out later.
    pub(crate) fn answer_event<T>(
        &mut self,
        name: &'static str,
        mut pick: impl FnMut(&Event<'_>) -> Option<T>,
    ) -> Result<T, Error> {
        let deadline = Instant::now() + self.timeout;
        loop {
            while let Some(event) = self.fresh()? {
                if let Some(answer) = pick(&event) {
                    return Ok(answer);
                }
                let kept = OwnedEvent::new(&event);
                self.kept.push_back(kept);
            }
            if !self.wait_until(deadline)? {
                return Err(Error::TimedOut(name));
            }
        }
    }

    /// A channel number that is free.
    pub(crate) fn free_channel(&mut self) -> Result<u16, Error> {
        if let Some(channel) = self.free_channels.pop() {
            return Ok(channel);
        }
        if self.last_channel >= self.channel_max {
            return Err(Error::NoChannelLeft(self.channel_max));
        }
        self.last_channel += 1;
        Ok(self.last_channel)
    }

    pub(crate) fn give_back_channel(&mut self, channel: u16) {
        self.free_channels.push(channel);
    }

    /// Says goodbye and waits for the answer. What comes before it is dropped.
    pub fn close(mut self) -> Result<(), Error> {
        let close =
            connection::Close { reply_code: 200, reply_text: "Goodbye", ..Default::default() };
        match self.call(0, &close, "connection.close", |method| {
            matches!(method, Method::ConnectionCloseOk(_)).then_some(())
        }) {
            // Both sides closed at once.
            Err(Error::ConnectionClosed(_)) => Ok(()),
            result => result,
        }
    }
}

fn connect(uri: &Uri, options: &Options) -> Result<TcpStream, Error> {
    let doing = || format!("connecting to {}:{}", uri.host, uri.port);
    let addresses = (&*uri.host, uri.port).to_socket_addrs().map_err(Error::io(doing()))?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in addresses {
        match open(address, options) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(Error::io(doing())(last))
}

fn open(address: SocketAddr, options: &Options) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.ip().is_loopback() {
        // Sending by BBR, as some systems do, costs both sides more than small messages do. The broker does
        // without on such connections, too. Where there is nothing else, only the cost stays.
        let _ = socket.set_tcp_congestion(b"cubic");
    }
    // Before connecting: the window that is offered depends on it.
    if let Some(bytes) = options.send_buffer {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.receive_buffer {
        socket.set_recv_buffer_size(bytes)?;
    }
    socket.connect_timeout(&address.into(), options.timeout)?;
    socket.set_tcp_nodelay(options.no_delay)?;
    socket.set_write_timeout(options.write_timeout)?;
    Ok(socket.into())
}

/// Zero means "no limit" on both sides.
fn smaller_limit(ours: u32, theirs: u32) -> u32 {
    if ours == 0 || theirs == 0 { ours.max(theirs) } else { ours.min(theirs) }
}

fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

fn ended() -> Error {
    Error::io("reading")(io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the broker closed the connection without a word",
    ))
}

fn client_properties(options: &Options) -> Table {
    let mut capabilities = Table::default();
    for name in [
        "authentication_failure_close",
        "basic.nack",
        "connection.blocked",
        "consumer_cancel_notify",
        "exchange_exchange_bindings",
        "publisher_confirms",
    ] {
        capabilities.set(name, Value::Bool(true));
    }
    let text = |text: &str| Value::LongStr(text.as_bytes().to_vec());
    let mut table = Table::default();
    table.set("product", text("Leveret client"));
    table.set("version", text(env!("CARGO_PKG_VERSION")));
    table.set("platform", text("Rust"));
    if let Some(name) = &options.name {
        table.set("connection_name", text(name));
    }
    table.set("capabilities", Value::Table(capabilities));
    table
}

#[cfg(test)]
mod tests;
