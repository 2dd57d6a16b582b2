//! Hot path. The connection between a node of sessions and the node that leads: letters there and back, all of them in order.
//!
//! ```text
//!   End::say  ->  Outgoing: one letter at a time  ->  socket  ->  Receiver  ->  all letters of one read  ->  End::hear
//! ```
//!
//! - *Order.* Frames of a link take turns by their group. Here a letter is put behind the one before when all of that is chosen, so
//!   they come in the order in which they were put.
//! - *Nobody waits for the other end's reading while it writes:* each end reads whether or not it can write. What is said waits with
//!   who says it, not here: what is encoded and not in the kernel is [`OUTPUT_MAX`] and one letter.
//! - *Who is gone.* An end that has nothing to say says a beat; one that says nothing, or takes nothing, for [`SILENCE`] is gone.
//! - *Checksums* as on links: where there is TLS, there are none. The node that leads may be given what was decrypted already, so the
//!   caller says by the first byte whether there are any.

use std::io::{self, IoSlice};
use std::time::Duration;

pub use leveret_link::frame::Letter;
use leveret_link::letters::{BEAT, beat};
pub use leveret_link::letters::{read_from_leader, write_to_leader};
use leveret_link::payload::Writer;
use leveret_link::receiver::{Limits, Receiver};
use leveret_link::sender::{OUTPUT_MAX, Sender};
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::cluster::links::{CLOSED, LinkSocket, ended};

/// What may come: a letter has messages of any length.
const LIMITS: Limits = Limits { letter: 1 << 30, unfinished: 1 << 30 };

/// An end that has nothing to say says so after this.
const BEAT_AFTER: Duration = Duration::from_secs(2);

/// An end that says nothing for so long is gone, whatever its machine answers.
const SILENCE: Duration = Duration::from_secs(10);

/// How long the other end has to close a connection on which nothing more is said.
const CLOSE: Duration = Duration::from_secs(1);

/// Slices of a vectored write.
const SLICES: usize = 64;

/// After so many bytes others of the thread have their turn, and what has come is read.
const TURN: usize = 32 << 10;

/// The same after so many writes, however short.
const WRITES: usize = 16;

/// What is encoded in one go, before the socket is asked.
const ENOUGH: usize = 256 << 10;

/// The first byte: frames have checksums, or none.
const CHECKSUMS: u8 = 1;
const NO_CHECKSUMS: u8 = 0;

/// Whoever has an end of a connection. Both are called by the connection's task, one at a time.
pub trait End {
    /// Says what waits, as long as [there is room](Outgoing::has_room). Called again whenever there is, or it was woken. What is not
    /// said waits.
    ///
    /// # Errors
    ///
    /// Why the connection is over, in words.
    fn say(&self, to: &mut Outgoing) -> Result<(), String>;

    /// Bytes have come, and no whole letter: more of one that was begun.
    fn more_of_a_letter(&self) {}

    /// Hears all that came with one read, in order, and leaves nothing.
    ///
    /// # Errors
    ///
    /// As [`say`](Self::say).
    fn hear(&self, letters: &mut Vec<Letter>) -> Result<(), String>;
}

/// How a connection is over.
#[derive(Debug)]
pub struct Over {
    /// Why, in words.
    pub why: String,
    /// The other end has closed it, or its process has ended.
    pub is_closed: bool,
}

impl Over {
    fn here(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_closed: false }
    }

    fn closed() -> Self {
        Self { why: CLOSED.to_owned(), is_closed: true }
    }

    fn of(error: &io::Error) -> Self {
        // What a machine says whose process has ended with bytes unread.
        let is_closed =
            matches!(error.kind(), io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe);
        Self { why: ended(error), is_closed }
    }
}

/// What is on its way to the socket.
#[derive(Debug)]
pub struct Outgoing {
    sender: Sender,
    writer: Writer,
    is_over: bool,
}

impl Outgoing {
    fn new(has_checksums: bool) -> Self {
        Self { sender: Sender::new(has_checksums), writer: Writer::default(), is_over: false }
    }

    /// Whether another letter may be put.
    pub fn has_room(&self) -> bool {
        !self.is_over && self.sender.waiting_len() == 0 && self.sender.output_len() < ENOUGH
    }

    /// Where the bytes of the next letter are put together.
    pub fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Puts a letter behind the one before.
    pub fn put(&mut self, letter: Letter) {
        debug_assert!(self.sender.waiting_len() == 0, "what was before is not chosen");
        self.sender.put(letter);
        self.sender.fill();
    }

    /// Nothing is said any more: the connection is closed when all has gone.
    pub fn ends(&mut self) {
        self.is_over = true;
    }

    fn is_empty(&self) -> bool {
        self.sender.waiting_len() + self.sender.output_len() == 0
    }
}

const _: () = assert!(ENOUGH <= OUTPUT_MAX);

/// Has letters go over a connection that this node has called, until its end. `woken` is rung, by any thread, when `end` has something
/// to say.
pub async fn call(socket: &LinkSocket, end: &impl End, woken: &Notify) -> Over {
    let has_checksums = !socket.is_encrypted();
    let first = [if has_checksums { CHECKSUMS } else { NO_CHECKSUMS }];
    loop {
        match socket.try_write(&first) {
            Ok(0) => return Over::closed(),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Err(error) = socket.writable().await {
                    return Over::of(&error);
                }
            }
            Err(error) => return Over::of(&error),
        }
    }
    run(socket, has_checksums, end, woken).await
}

/// The same over one that another node has called.
pub async fn answer(socket: &LinkSocket, end: &impl End, woken: &Notify) -> Over {
    let mut first = [0];
    loop {
        match socket.try_read(&mut first) {
            Ok(0) => return Over::closed(),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match timeout(SILENCE, socket.readable()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return Over::of(&error),
                    Err(_) => return silent(),
                }
            }
            Err(error) => return Over::of(&error),
        }
    }
    match first {
        [CHECKSUMS] => run(socket, true, end, woken).await,
        [NO_CHECKSUMS] => run(socket, false, end, woken).await,
        [other] => Over::here(format!("its first byte is {other}, which means nothing")),
    }
}

async fn run(socket: &LinkSocket, has_checksums: bool, end: &impl End, woken: &Notify) -> Over {
    tokio::select! {
        over = read(socket, has_checksums, end) => over,
        over = write(socket, has_checksums, end, woken) => over,
    }
}

async fn write(socket: &LinkSocket, has_checksums: bool, end: &impl End, woken: &Notify) -> Over {
    let mut outgoing = Outgoing::new(has_checksums);
    let (mut bytes, mut writes) = (0, 0);
    loop {
        if outgoing.has_room()
            && let Err(why) = end.say(&mut outgoing)
        {
            return Over::here(why);
        }
        // The rest of a long letter.
        outgoing.sender.fill();
        if outgoing.is_empty() && !socket.has_unsent() {
            if outgoing.is_over {
                if let Err(error) = socket.shutdown().await {
                    return Over::of(&error);
                }
                // A socket that is closed with bytes in it takes back what it has sent: the other end has all, and closes.
                tokio::time::sleep(CLOSE).await;
                return Over::here("it was told to go, and did not");
            }
            match timeout(BEAT_AFTER, woken.notified()).await {
                Ok(()) => continue,
                Err(_) => outgoing.put(beat()),
            }
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = outgoing.sender.slices(&mut slices);
        match socket.try_write_vectored(slices.get(..count).unwrap_or_default()) {
            Ok(count) => {
                outgoing.sender.advance(count);
                (bytes, writes) = (bytes + count, writes + 1);
                if bytes >= TURN || writes >= WRITES {
                    (bytes, writes) = (0, 0);
                    yield_now().await;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match timeout(SILENCE, socket.writable()).await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => return Over::of(&error),
                    Err(_) => {
                        return Over::here(format!("it took nothing for {} s", SILENCE.as_secs()));
                    }
                }
            }
            Err(error) => return Over::of(&error),
        }
    }
}

async fn read(socket: &LinkSocket, has_checksums: bool, end: &impl End) -> Over {
    let mut receiver = Receiver::new(has_checksums, LIMITS);
    let (mut letters, mut has_come) = (Vec::new(), false);
    loop {
        loop {
            match receiver.next() {
                Ok(Some(letter)) if letter.envelope.kind == BEAT => {}
                Ok(Some(letter)) => letters.push(letter),
                Ok(None) => break,
                Err(why) => return Over::here(why.to_string()),
            }
        }
        if !letters.is_empty() {
            if let Err(why) = end.hear(&mut letters) {
                return Over::here(why);
            }
            debug_assert!(letters.is_empty(), "letters were left");
        } else if has_come && receiver.unfinished_len() > 0 {
            end.more_of_a_letter();
        }
        has_come = false;
        match timeout(SILENCE, socket.readable()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Over::of(&error),
            Err(_) => return silent(),
        }
        match socket.try_read_buf(receiver.buffer()) {
            Ok(0) => return Over::closed(),
            Ok(count) => {
                has_come = true;
                if count >= TURN {
                    yield_now().await;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Over::of(&error),
        }
    }
}

fn silent() -> Over {
    Over::here(format!("nothing came for {} s", SILENCE.as_secs()))
}

#[cfg(test)]
mod tests;
