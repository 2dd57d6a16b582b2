//! The form of a script: conversations, each a list of blocks of one action and what must follow.
//!
//! ```text
//! === a queue is declared twice          a conversation, with its name
//! > queue.declare q durable              sent on connection `a`, channel 1
//! < queue.declare-ok q 0 0               expected there
//! connect b user=limited pass=limited    another connection, logged in, channel 1 open
//! >b2 channel.open                       sent on connection `b`, channel 2
//! <b2 channel.open-ok
//! >> basic.publish "" q | x              sent in one write with the next line
//! > basic.publish "" q | y
//! < confirms 1..2                        acks for 1 and 2, `multiple` or not
//! <~ basic.deliver ...                   neighbours with `~` come in any order
//! <? ...                                 when recording: wait until something comes
//! 4.x< ...                               what RabbitMQ 4.x says instead of all the unmarked lines
//! 4.x,leveret< nothing                   ... or that it says nothing; `leveret` is this broker
//! poll > queue.declare q passive         repeated until the expected answer comes
//! repeat 3 >$i channel.open              three times, `$i` is 1, 2, 3
//! sync q                                 a round trip through the channel and queue q
//! tcp c                                  a bare stream: no login
//! >c protocol-header                     then `bytes`, `frame TYPE`, `method CLASS.ID`, `heartbeat`
//! <c eof                                 the broker closed the stream
//! hang c                                 the client closes the stream
//! manual                                 closes are answered by the script from here on
//! skip leveret: why                      not run there
//! ```
//!
//! A conversation that does not begin with `tcp a` or `connect a` has `a`, logged in, with channel 1.

use std::ops::Range;

use crate::bytes;
use crate::text::{Call, Term};

/// A file of conversations.
#[derive(Debug)]
pub struct Script {
    /// For messages.
    pub path: String,
    /// The text, by line.
    pub lines: Vec<String>,
    /// In order.
    pub conversations: Vec<Conversation>,
}

/// One conversation.
#[derive(Debug)]
pub struct Conversation {
    /// What it shows.
    pub name: String,
    /// Line of the name, counted from 0.
    pub line: usize,
    /// Dialects it does not apply to, with the reason.
    pub skips: Vec<(String, String)>,
    /// In order.
    pub blocks: Vec<Block>,
}

/// An action, and what is expected after it.
#[derive(Debug)]
pub struct Block {
    /// Line of the action, counted from 0.
    pub line: usize,
    /// What is done.
    pub action: Action,
    /// What must come.
    pub expects: Vec<Expect>,
}

/// What a script does.
#[derive(Debug)]
pub enum Action {
    /// Nothing: the conversation starts.
    Begin,
    /// Connect and log in.
    Connect(String, Call),
    /// Connect.
    Tcp(String),
    /// Close the stream.
    Hang(String),
    /// Answer closes by hand.
    Manual(String),
    /// A round trip on a channel, and through these queues.
    Sync(Target, Vec<String>),
    /// Send something.
    Send(Send),
}

/// Something sent.
#[derive(Debug)]
pub struct Send {
    /// Where.
    pub target: Target,
    /// What.
    pub what: What,
    /// In one write with the next.
    pub is_held: bool,
    /// How often.
    pub repeat: u64,
    /// Until the answer fits.
    pub is_poll: bool,
}

/// What is sent.
#[derive(Debug)]
pub enum What {
    /// A method.
    Call(Call),
    /// Bytes as they are.
    Bytes(Vec<u8>),
    /// A frame of this type.
    Frame(u8, Vec<u8>),
}

/// A connection and a channel.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name of the connection; empty is the only or first one.
    pub connection: String,
    /// `None`: channel 0 for `connection.*`, else 1.
    pub channel: Option<u16>,
    /// The channel is `$i`.
    pub is_counted: bool,
}

/// One expected line.
#[derive(Debug)]
pub struct Expect {
    /// Counted from 0.
    pub line: usize,
    /// Dialects it is for; none means all.
    pub dialects: Vec<String>,
    /// Where.
    pub target: Target,
    /// In any order with its neighbours.
    pub is_unordered: bool,
    /// `<?`: anything, to be recorded.
    pub is_open: bool,
    /// The pattern.
    pub call: Call,
    /// How often.
    pub repeat: u64,
}

impl Script {
    /// Reads a script.
    pub fn parse(path: &str, text: &str) -> Result<Self, String> {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut conversations: Vec<Conversation> = Vec::new();
        for (at, line) in lines.iter().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let fail = |e: String| format!("{path}:{}: {e}", at + 1);
            if let Some(name) = line.strip_prefix("===") {
                let begin = Block { line: at, action: Action::Begin, expects: Vec::new() };
                conversations.push(Conversation {
                    name: name.trim().to_owned(),
                    line: at,
                    skips: Vec::new(),
                    blocks: vec![begin],
                });
                continue;
            }
            let conversation = conversations
                .last_mut()
                .ok_or_else(|| fail("a script starts with === and a name".to_owned()))?;
            if let Some(rest) = line.strip_prefix("skip ") {
                let (dialect, why) =
                    rest.split_once(':').ok_or_else(|| fail("skip DIALECT: reason".to_owned()))?;
                conversation.skips.push((dialect.trim().to_owned(), why.trim().to_owned()));
            } else if let Some(expect) = Expect::parse(at, line).map_err(fail)? {
                if let Some(block) = conversation.blocks.last_mut() {
                    block.expects.push(expect);
                }
            } else {
                let action = Action::parse(line).map_err(fail)?;
                // A login of its own replaces the one given.
                conversation.blocks.push(Block { line: at, action, expects: Vec::new() });
            }
        }
        Ok(Self { path: path.to_owned(), lines, conversations })
    }
}

impl Conversation {
    /// Why it is not run for these dialects, if so.
    pub fn skipped(&self, dialects: &[String]) -> Option<&str> {
        let first = dialects.first()?;
        self.skips.iter().find(|(d, _)| d == first).map(|(_, why)| why.as_str())
    }

    /// It opens its own first connection.
    pub fn is_bare(&self) -> bool {
        match self.blocks.get(1).map(|b| &b.action) {
            Some(Action::Tcp(name) | Action::Connect(name, _)) => name == "a",
            _ => false,
        }
    }

    /// Queues and exchanges that it may leave behind: (is a queue, name).
    pub fn declares(&self) -> Vec<(bool, String)> {
        let mut names = Vec::new();
        for block in &self.blocks {
            if let Action::Send(Send { what: What::Call(call), repeat, .. }) = &block.action {
                let is_queue = call.name == "queue.declare";
                if !is_queue && call.name != "exchange.declare" {
                    continue;
                }
                let name = match call.args.first() {
                    Some(Term::Text(name)) => String::from_utf8_lossy(name).into_owned(),
                    Some(Term::Number(n)) => n.to_string(),
                    _ => continue,
                };
                if !name.is_empty()
                    && !name.starts_with("amq.")
                    && *repeat == 1
                    && !names.contains(&(is_queue, name.clone()))
                {
                    names.push((is_queue, name));
                }
            }
        }
        names
    }
}

impl Block {
    /// The expected lines that count: those marked for the first of `dialects` that has any in this
    /// block, or the unmarked ones.
    pub fn expects_for(&self, dialects: &[String]) -> Vec<&Expect> {
        let marked = dialects.iter().find_map(|dialect| {
            let own: Vec<&Expect> =
                self.expects.iter().filter(|e| e.dialects.contains(dialect)).collect();
            (!own.is_empty()).then_some(own)
        });
        let mut out = marked
            .unwrap_or_else(|| self.expects.iter().filter(|e| e.dialects.is_empty()).collect());
        out.retain(|e| e.is_open || e.call.name != "nothing");
        out
    }
}

/// Splits `repeat N ` off a line.
fn repeated(line: &str) -> Result<(u64, &str), String> {
    let Some(rest) = line.strip_prefix("repeat ") else { return Ok((1, line)) };
    let (count, rest) = rest.trim().split_once(' ').ok_or("repeat N LINE")?;
    Ok((count.parse().map_err(|e| format!("repeat {count}: {e}"))?, rest.trim()))
}

impl Action {
    fn parse(line: &str) -> Result<Self, String> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let name = || rest.split_whitespace().next().unwrap_or("a").to_owned();
        Ok(match word {
            "connect" => Self::Connect(name(), Call::parse(&format!("connect {rest}"))?),
            "tcp" => Self::Tcp(name()),
            "hang" => Self::Hang(name()),
            "manual" => Self::Manual(rest.trim().to_owned()),
            "sync" => {
                let mut words = rest.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
                let target = match words.first().and_then(|w| w.strip_prefix('@')) {
                    Some(word) => {
                        let target = Target::parse(word)?;
                        words.remove(0);
                        target
                    }
                    None => Target::parse("")?,
                };
                Self::Sync(target, words)
            }
            _ => Self::Send(Send::parse(line)?),
        })
    }
}

impl Send {
    /// The broker answers it, one way or another.
    pub fn has_answer(&self) -> bool {
        let What::Call(call) = &self.what else { return true };
        let is_quiet = matches!(
            call.name.as_str(),
            "basic.publish"
                | "basic.ack"
                | "basic.nack"
                | "basic.reject"
                | "channel.close-ok"
                | "connection.close-ok"
                | "connection.tune-ok"
                | "basic.recover-async"
        );
        !is_quiet && !call.args.contains(&Term::Text(b"no-wait".to_vec()))
    }

    fn parse(line: &str) -> Result<Self, String> {
        let (is_poll, line) = match line.strip_prefix("poll ") {
            Some(rest) => (true, rest.trim()),
            None => (false, line),
        };
        let (repeat, line) = repeated(line)?;
        let (is_held, rest) = match (line.strip_prefix(">>"), line.strip_prefix('>')) {
            (Some(rest), _) => (true, rest),
            (None, Some(rest)) => (false, rest),
            _ => return Err(format!("what is {line:?}?")),
        };
        let (target, rest) = rest.split_once(' ').ok_or("what is sent?")?;
        let mut target = Target::parse(target)?;
        let rest = rest.trim();
        let (word, tail) = rest.split_once(' ').unwrap_or((rest, ""));
        let what = match word {
            "protocol-header" if tail.is_empty() => What::Bytes(b"AMQP\0\0\x09\x01".to_vec()),
            "protocol-header" | "bytes" => What::Bytes(bytes::parse(tail)?),
            "frame" => {
                let (kind, tail) = tail.split_once(' ').unwrap_or((tail, ""));
                let kind = kind.parse().map_err(|e| format!("frame type {kind}: {e}"))?;
                What::Frame(kind, bytes::parse(tail)?)
            }
            "method" => {
                let (id, tail) = tail.split_once(' ').unwrap_or((tail, ""));
                let (class, method) = id.split_once('.').ok_or("method CLASS.ID bytes")?;
                if class == "10" {
                    target.channel = target.channel.or(Some(0));
                }
                What::Frame(1, bytes::parse(&format!("u16:{class} u16:{method} {tail}"))?)
            }
            "heartbeat" => {
                target.channel = target.channel.or(Some(0));
                What::Frame(8, bytes::parse(tail)?)
            }
            _ => What::Call(crate::wire::with_ids(&Call::parse(rest)?)),
        };
        if let What::Call(call) = &what
            && call.name.starts_with("connection.")
        {
            target.channel = target.channel.or(Some(0));
        }
        Ok(Self { target, what, is_held, repeat, is_poll })
    }
}

impl Target {
    fn parse(word: &str) -> Result<Self, String> {
        if let Some(connection) = word.strip_suffix("$i") {
            let connection = connection.to_owned();
            return Ok(Self { connection, channel: None, is_counted: true });
        }
        let digits = word.find(|c: char| c.is_ascii_digit()).unwrap_or(word.len());
        let (connection, channel) = word.split_at(digits);
        if !connection.chars().all(|c| c.is_ascii_lowercase()) {
            return Err(format!("no connection or channel is called {word:?}"));
        }
        let channel = match channel {
            "" => None,
            digits => Some(digits.parse().map_err(|e| format!("channel {digits}: {e}"))?),
        };
        Ok(Self { connection: connection.to_owned(), channel, is_counted: false })
    }
}

impl Expect {
    fn parse(at: usize, line: &str) -> Result<Option<Self>, String> {
        let (repeat, line) = repeated(line)?;
        let Some((tags, rest)) = line.split_once('<') else { return Ok(None) };
        let is_tag = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == ',';
        if !tags.chars().all(is_tag) {
            return Ok(None);
        }
        let dialects: Vec<String> =
            tags.split(',').filter(|t| !t.is_empty()).map(str::to_owned).collect();
        let mut rest = rest;
        let mut take = |c: char| match rest.strip_prefix(c) {
            Some(after) => {
                rest = after;
                true
            }
            None => false,
        };
        let is_unordered = take('~');
        let is_open = take('?');
        let Range { end, .. } = 0..rest.find(' ').unwrap_or(rest.len());
        let (word, text) = rest.split_at(end);
        let mut target = Target::parse(word)?;
        let text = text.trim();
        let call = if text.is_empty() { Call::parse("nothing")? } else { Call::parse(text)? };
        let is_zero = call.name.starts_with("connection.")
            || matches!(call.name.as_str(), "eof" | "heartbeat" | "protocol-header" | "violation");
        if is_zero {
            target.channel = target.channel.or(Some(0));
        }
        Ok(Some(Self { line: at, dialects, target, is_unordered, is_open, call, repeat }))
    }
}
