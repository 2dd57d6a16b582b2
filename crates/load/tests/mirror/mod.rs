//! A broker with one queue that is good for nothing but measuring its clients.
//!
//! Every publish goes to the consumer, whoever it is; every other method is answered as if it had
//! been done. Confirms and acks are counted, not checked.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use leveret_client::Output;
use leveret_client::amqp::content::ContentHeader;
use leveret_client::amqp::frame::{Decoder, Event};
use leveret_client::amqp::method::{
    Method, basic, channel, confirm, connection, exchange, queue, tx,
};

/// What has come.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) published: AtomicU64,
    pub(crate) acked: AtomicU64,
    pub(crate) persistent: AtomicU64,
    pub(crate) commits: AtomicU64,
}

/// Deliveries on their way to the consumer's socket.
#[derive(Debug, Default)]
struct Mailbox {
    bytes: Mutex<Vec<u8>>,
    filled: Condvar,
    tag: AtomicU64,
}

/// What the mirror does to every hundredth message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// It is not delivered.
    Lose,
    /// It is delivered twice.
    Double,
    /// It is delivered after the next one.
    Swap,
    /// Its last byte is another one.
    Damage,
    /// The first of them keeps everybody waiting.
    Stall(Duration),
}

/// Listens on a free port until the process ends.
pub(crate) fn start() -> (SocketAddr, Arc<Counts>) {
    start_with(Fault::None)
}

/// The same with a fault.
pub(crate) fn start_with(fault: Fault) -> (SocketAddr, Arc<Counts>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let counts = Arc::new(Counts::default());
    let (mailbox, shared) = (Arc::new(Mailbox::default()), counts.clone());
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let peer = Peer {
                socket: socket.unwrap(),
                mailbox: mailbox.clone(),
                counts: shared.clone(),
                output: Output::new(131_072),
                confirms: false,
                published: 0,
                fault,
                held: Vec::new(),
            };
            std::thread::spawn(move || peer.serve());
        }
    });
    (address, counts)
}

struct Peer {
    socket: TcpStream,
    mailbox: Arc<Mailbox>,
    counts: Arc<Counts>,
    output: Output,
    confirms: bool,
    published: u64,
    fault: Fault,
    /// A message that waits for the next one.
    held: Vec<u8>,
}

impl Peer {
    fn serve(mut self) {
        self.socket.set_nodelay(true).unwrap();
        let mut header = [0; 8];
        self.socket.read_exact(&mut header).unwrap();
        let start = connection::Start {
            version_major: 0,
            version_minor: 9,
            mechanisms: b"PLAIN AMQPLAIN",
            locales: b"en_US",
            ..Default::default()
        };
        self.output.put_method(0, &start);
        let mut decoder = Decoder::new(131_072);
        let mut buffer = vec![0; 1 << 20];
        let mut len = 0;
        let mut deliveries = Output::new(131_072);
        let mut message = Output::new(131_072);
        let mut size = 0;
        let mut body = Vec::new();
        loop {
            self.socket.write_all(self.output.bytes()).unwrap();
            self.output.clear();
            match self.socket.read(&mut buffer[len..]) {
                Ok(0) | Err(_) => return,
                Ok(count) => len += count,
            }
            let mut at = 0;
            let before = self.published;
            while let Some((event, used)) = decoder.next(&buffer[at..len]).unwrap() {
                at += used;
                match event {
                    Event::Method { channel, payload } => match Method::decode(payload).unwrap() {
                        Method::BasicPublish(publish) => {
                            let tag = self.mailbox.tag.fetch_add(1, Ordering::Relaxed);
                            let deliver = basic::Deliver {
                                consumer_tag: "mirror",
                                delivery_tag: tag + 1,
                                redelivered: false,
                                exchange: publish.exchange,
                                routing_key: publish.routing_key,
                            };
                            message.clear();
                            message.put_method(1, &deliver);
                        }
                        Method::BasicAck(ack) => {
                            self.counts.acked.store(ack.delivery_tag, Ordering::Relaxed);
                        }
                        method => self.answer(channel, &method),
                    },
                    Event::Header { payload, .. } => {
                        let header = ContentHeader::decode(payload).unwrap();
                        size = header.body_size as usize;
                        body.clear();
                        let properties = header.properties.as_bytes();
                        if properties == [0x10, 0, 2] {
                            self.counts.persistent.fetch_add(1, Ordering::Relaxed);
                        }
                        put_header(&mut message, size, properties);
                        if size == 0 {
                            self.pass_on(&message, &mut deliveries);
                        }
                    }
                    Event::Body { part, .. } => {
                        body.extend_from_slice(part);
                        if body.len() == size {
                            for part in body.chunks(131_064) {
                                put_frame(&mut message, 3, part);
                            }
                            self.pass_on(&message, &mut deliveries);
                        }
                    }
                    Event::Heartbeat => {}
                }
            }
            buffer.copy_within(at..len, 0);
            len -= at;
            self.hand_over(&mut deliveries, before);
        }
    }

    fn pass_on(&mut self, message: &Output, deliveries: &mut Output) {
        self.published += 1;
        let bytes = message.bytes();
        match self.fault {
            fault if fault == Fault::None || !self.published.is_multiple_of(100) => {
                deliveries.put_bytes(bytes)
            }
            Fault::Lose => {}
            Fault::Swap => {
                self.held = bytes.to_vec();
                return;
            }
            Fault::Damage => {
                // Before the end of the last frame.
                let (rest, last) = bytes.split_at(bytes.len() - 2);
                deliveries.put_bytes(rest);
                deliveries.put_bytes(&[last[0] ^ 1, last[1]]);
            }
            Fault::Stall(time) => {
                if self.published == 100 {
                    // Nobody ends it before its time.
                    let (still, never) = (Mutex::new(()), Condvar::new());
                    drop(never.wait_timeout_while(still.lock().unwrap(), time, |_| true).unwrap());
                }
                deliveries.put_bytes(bytes);
            }
            Fault::None | Fault::Double => {
                deliveries.put_bytes(bytes);
                deliveries.put_bytes(bytes);
            }
        }
        deliveries.put_bytes(&std::mem::take(&mut self.held));
    }

    fn hand_over(&mut self, deliveries: &mut Output, before: u64) {
        if self.published == before {
            return;
        }
        self.counts.published.fetch_add(self.published - before, Ordering::Relaxed);
        let mut bytes = self.mailbox.bytes.lock().unwrap();
        while bytes.len() > 1 << 20 {
            bytes = self.mailbox.filled.wait(bytes).unwrap();
        }
        bytes.extend_from_slice(deliveries.bytes());
        drop(bytes);
        self.mailbox.filled.notify_all();
        deliveries.clear();
        if self.confirms {
            let ack = basic::Ack { delivery_tag: self.published, multiple: true };
            self.output.put_method(1, &ack);
        }
    }

    fn answer(&mut self, channel: u16, method: &Method<'_>) {
        let output = &mut self.output;
        match method {
            Method::ConnectionStartOk(_) => {
                let tune = connection::Tune { channel_max: 0, frame_max: 131_072, heartbeat: 60 };
                output.put_method(0, &tune);
            }
            Method::ConnectionTuneOk(_) => {}
            Method::ConnectionOpen(_) => output.put_method(0, &connection::OpenOk::default()),
            Method::ConnectionClose(_) => output.put_method(0, &connection::CloseOk),
            Method::ChannelOpen(_) => output.put_method(channel, &channel::OpenOk::default()),
            Method::ConfirmSelect(_) => {
                self.confirms = true;
                output.put_method(channel, &confirm::SelectOk);
            }
            Method::ExchangeDeclare(_) => output.put_method(channel, &exchange::DeclareOk),
            Method::QueueBind(_) => output.put_method(channel, &queue::BindOk),
            Method::QueueDeclare(declare) => {
                let ok = queue::DeclareOk { queue: declare.queue, ..Default::default() };
                output.put_method(channel, &ok);
            }
            Method::QueueDelete(_) => output.put_method(channel, &queue::DeleteOk::default()),
            Method::ChannelClose(_) => output.put_method(channel, &channel::CloseOk),
            Method::TxSelect(_) => output.put_method(channel, &tx::SelectOk),
            Method::TxCommit(_) => {
                self.counts.commits.fetch_add(1, Ordering::Relaxed);
                output.put_method(channel, &tx::CommitOk);
            }
            Method::BasicQos(_) => output.put_method(channel, &basic::QosOk),
            Method::BasicConsume(_) => {
                output.put_method(channel, &basic::ConsumeOk { consumer_tag: "mirror" });
                let mut socket = self.socket.try_clone().unwrap();
                socket.write_all(output.bytes()).unwrap();
                output.clear();
                let mailbox = self.mailbox.clone();
                std::thread::spawn(move || deliver(&mut socket, &mailbox));
            }
            other => panic!("{} is not for a mirror", other.name()),
        }
    }
}

fn deliver(socket: &mut TcpStream, mailbox: &Mailbox) {
    let mut out = Vec::new();
    loop {
        let mut bytes = mailbox.bytes.lock().unwrap();
        while bytes.is_empty() {
            bytes = mailbox.filled.wait(bytes).unwrap();
        }
        std::mem::swap(&mut *bytes, &mut out);
        drop(bytes);
        mailbox.filled.notify_all();
        if socket.write_all(&out).is_err() {
            return;
        }
        out.clear();
    }
}

fn put_header(output: &mut Output, size: usize, properties: &[u8]) {
    let mut payload = vec![0, 60, 0, 0];
    payload.extend_from_slice(&(size as u64).to_be_bytes());
    payload.extend_from_slice(properties);
    put_frame(output, 2, &payload);
}

fn put_frame(output: &mut Output, kind: u8, payload: &[u8]) {
    output.put_bytes(&[kind, 0, 1]);
    output.put_bytes(&(payload.len() as u32).to_be_bytes());
    output.put_bytes(payload);
    output.put_bytes(&[0xCE]);
}
