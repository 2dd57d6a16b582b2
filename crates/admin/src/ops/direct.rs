//! A connection inside the node: what is asked over HTTP goes through the rules, the permissions and the
//! words of AMQP, because it goes through a session.
//!
//! The client's codec speaks to the session; letters come as to any other connection. Nothing is
//! authenticated here: the caller knows who the user is.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use leveret_amqp::method::{Encode, Method, basic, channel};
use leveret_amqp::outbuf::OutBuf;
use leveret_broker::message::{ConnectionId, Delivery, Outbox, ToSession};
use leveret_client::{Event, Input, Output};
use leveret_server::clock::{now, now_with_us, wall};
use leveret_server::node::{Node, Recipient};
use leveret_server::runner::with_runner;
use leveret_session::{ConnectionNumbers, Context, Peer, Session};
use leveret_topology::rights::Admitted;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Why the session closed the channel, or could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// As a client would be told.
    #[error("{text}")]
    Told {
        /// AMQP's code: 404, 403, 406, ...
        code: u16,
        /// With the code's name in front.
        text: String,
    },
    /// What was to be said takes a frame of so many bytes, and none may be longer than that.
    #[error(
        "arguments or properties are too large: a frame of {bytes} bytes, and {max} are the most (frame_max)"
    )]
    TooLarge {
        /// Of the frame.
        bytes: usize,
        /// What is negotiated by those who do not ask for less.
        max: usize,
    },
    /// There is no such vhost.
    #[error("no such vhost")]
    NoVhost,
    /// What was consumed from.
    #[error("the queue is gone")]
    QueueGone,
    /// Nobody answers any more.
    #[error("the node is stopping")]
    Stopping,
}

/// The one channel that is used.
const CHANNEL: u16 = 1;

/// There is no socket, and so no end of ours.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

/// Bytes of a header frame without the properties.
const HEADER_FRAME: usize = 20;

/// What a turn is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Anything: what the session says is read.
    Any,
    /// It is time for what the session does by itself.
    Due,
    /// Messages that were taken from the letter: what the session says of them is not read.
    Deliveries,
}

/// Bytes of input taken at once.
const ROOM: usize = 16 << 10;

/// A connection with one open channel. Ends when it is dropped; what it has not settled goes back.
#[derive(Debug)]
pub struct Direct {
    node: Arc<Node>,
    id: ConnectionId,
    session: Session,
    letters: mpsc::UnboundedReceiver<ToSession>,
    /// What we say, as far as the session has not read it.
    said: Bytes,
    output: Output,
    /// What the longest frame takes that holds anything but a body.
    longest: usize,
    /// What it says.
    out: OutBuf,
    input: Input,
}

impl Direct {
    /// Opens a connection and its channel. The operator may do everything on it.
    pub async fn open(
        node: &Arc<Node>,
        user: Admitted,
        vhost: &str,
        peer: String,
    ) -> Result<Self, Closed> {
        let id = node.new_id();
        let settings = Arc::clone(&node.settings);
        let frame_max = settings.frame_max;
        let peer = Peer { address: peer, local: NOWHERE, is_loopback: true, tls: None };
        let session = {
            let topology = node.topology();
            let vhost = topology.vhost(vhost).ok_or(Closed::NoVhost)?;
            Session::inside(id, settings, peer, (user, vhost), now())
        };
        let (sender, letters) = mpsc::unbounded_channel();
        node.register(id, Recipient::Request(sender));
        let mut direct = Self {
            node: Arc::clone(node),
            id,
            session,
            letters,
            said: Bytes::new(),
            output: Output::new(frame_max),
            longest: 0,
            out: OutBuf::new(),
            input: Input::new(ROOM, frame_max),
        };
        let opened = |event: &Event<'_>| is(event, |it| matches!(it, Method::ChannelOpenOk(_)));
        direct.call(&channel::Open::default(), opened).await?;
        Ok(direct)
    }

    /// Says something that needs no answer.
    pub fn say(&mut self, method: &impl Encode) {
        let before = self.output.bytes().len();
        self.output.put_method(CHANNEL, method);
        self.longest = self.longest.max(self.output.bytes().len() - before);
    }

    /// Publishes a message.
    pub fn publish(&mut self, publish: &basic::Publish<'_>, properties: &[u8], body: &[u8]) {
        self.output.put_publish(CHANNEL, publish, properties, body);
        self.longest = self.longest.max(HEADER_FRAME + properties.len());
    }

    /// Says something and waits for its answer.
    pub async fn call<T>(
        &mut self,
        method: &impl Encode,
        answer: impl FnMut(&Event<'_>) -> Option<T>,
    ) -> Result<T, Closed> {
        self.say(method);
        self.wait_for(answer).await
    }

    /// Waits for the first event that `answer` makes something of.
    pub async fn wait_for<T>(
        &mut self,
        mut answer: impl FnMut(&Event<'_>) -> Option<T>,
    ) -> Result<T, Closed> {
        let max = self.node.settings.frame_max as usize;
        if max > 0 && self.longest > max {
            return Err(Closed::TooLarge { bytes: self.longest, max });
        }
        let mut letter = None;
        loop {
            self.turn(letter.take(), At::Any);
            while let Some(event) = self.input.next_event().map_err(|_| Closed::Stopping)? {
                if let Some(closed) = closed(&event) {
                    return Err(closed);
                }
                if let Some(answer) = answer(&event) {
                    return Ok(answer);
                }
            }
            if self.session.end().is_some() {
                return Err(Closed::Stopping);
            }
            letter = Some(self.letters.recv().await.ok_or(Closed::Stopping)?);
        }
    }

    /// Waits for messages for its consumers: their records, which nothing is copied of. What comes after them waits in their
    /// queues until it is asked for.
    pub async fn deliveries(&mut self) -> Result<Vec<Bytes>, Closed> {
        loop {
            if self.session.end().is_some() {
                return Err(Closed::Stopping);
            }
            let letter = self.letter().await?;
            if let Some(ToSession::Deliver(deliveries)) = &letter {
                let records = records(deliveries);
                self.turn(letter, At::Deliveries);
                return Ok(records);
            }
            let is_gone = matches!(letter, Some(ToSession::ConsumerGone { .. }));
            let at = if letter.is_some() { At::Any } else { At::Due };
            self.turn(letter, at);
            while let Some(event) = self.input.next_event().map_err(|_| Closed::Stopping)? {
                if let Some(closed) = closed(&event) {
                    return Err(closed);
                }
            }
            if is_gone {
                return Err(Closed::QueueGone);
            }
        }
    }

    /// Ends a consumer. Messages that were on their way are taken.
    pub async fn cancel(
        &mut self,
        tag: &str,
        mut taken: impl FnMut(Vec<Bytes>),
    ) -> Result<(), Closed> {
        self.say(&basic::Cancel { consumer_tag: tag, ..basic::Cancel::default() });
        let mut letter = None;
        loop {
            let mut at = At::Any;
            if let Some(ToSession::Deliver(deliveries)) = &letter {
                taken(records(deliveries));
                at = At::Deliveries;
            }
            self.turn(letter.take(), at);
            while let Some(event) = self.input.next_event().map_err(|_| Closed::Stopping)? {
                if let Some(closed) = closed(&event) {
                    return Err(closed);
                }
                if is(&event, |it| matches!(it, Method::BasicCancelOk(_))).is_some() {
                    return Ok(());
                }
            }
            if self.session.end().is_some() {
                return Err(Closed::Stopping);
            }
            letter = Some(self.letters.recv().await.ok_or(Closed::Stopping)?);
        }
    }

    /// The next letter; none when it is time for what the session does by itself: a user whose consumers are limited to a
    /// rate gets nothing until then.
    async fn letter(&mut self) -> Result<Option<ToSession>, Closed> {
        let letter = match self.session.next_timeout() {
            None => self.letters.recv().await,
            Some(due) => {
                let wait = Duration::from_millis(due.ms().saturating_sub(now().ms()));
                match timeout(wait, self.letters.recv()).await {
                    Ok(letter) => letter,
                    Err(_) => return Ok(None),
                }
            }
        };
        letter.map(Some).ok_or(Closed::Stopping)
    }

    /// Lets the session take a letter and what was said, and takes what it says.
    fn turn(&mut self, letter: Option<ToSession>, at: At) {
        if !self.output.bytes().is_empty() {
            self.said = [&self.said, self.output.bytes()].concat().into();
            self.output.clear();
        }
        let mut outbox = Outbox::default();
        {
            let topology = self.node.topology();
            let (out, outbox, (now, now_us)) = (&mut self.out, &mut outbox, now_with_us());
            let mut cx = Context { topology: &topology, now, now_us, wall: wall(now), out, outbox };
            if let Some(letter) = letter {
                self.session.receive(letter, &mut cx);
            }
            if at == At::Due {
                self.session.timeout(&mut cx);
            }
            if !self.said.is_empty() && self.session.wants_input() {
                self.session.input(&mut self.said, &mut cx);
            }
            if at != At::Deliveries {
                self.input.feed(&cx.out.take_rest());
            }
            cx.out.clear();
            self.session.flushed(0, true, &mut cx);
        }
        with_runner(&self.node, |runner| runner.run_outbox(outbox));
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        self.node.forget(self.id);
        let mut outbox = Outbox::default();
        {
            let topology = self.node.topology();
            let (out, outbox, (now, now_us)) = (&mut self.out, &mut outbox, now_with_us());
            let mut cx = Context { topology: &topology, now, now_us, wall: wall(now), out, outbox };
            self.session.disconnected(&mut cx);
            while let Ok(letter) = self.letters.try_recv() {
                self.session.receive(letter, &mut cx);
            }
        }
        let ConnectionNumbers { vhost, totals, passed, .. } = self.session.numbers();
        self.node.ended.keep_messages(vhost, &totals, &passed);
        with_runner(&self.node, |runner| runner.run_outbox(outbox));
    }
}

/// What was delivered, without a copy.
fn records(deliveries: &[Delivery]) -> Vec<Bytes> {
    deliveries.iter().map(|it| it.record.clone()).collect()
}

/// Some when the event is a method that `wanted` likes.
pub fn is(event: &Event<'_>, wanted: impl FnOnce(&Method<'_>) -> bool) -> Option<()> {
    match event {
        Event::Method { method, .. } if wanted(method) => Some(()),
        _ => None,
    }
}

fn closed(event: &Event<'_>) -> Option<Closed> {
    let (code, text) = match event {
        Event::Method { method: Method::ChannelClose(close), .. } => {
            (close.reply_code, close.reply_text)
        }
        Event::Method { method: Method::ConnectionClose(close), .. } => {
            (close.reply_code, close.reply_text)
        }
        _ => return None,
    };
    Some(Closed::Told { code, text: text.to_owned() })
}
