//! Hot path. Letters over one connection of a link, there and back.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use leveret_link::frame::HEAD;
use leveret_link::hello::{RaftId, Urgency};
use leveret_link::letters::{BEAT, NodeLetter, beat};
use leveret_link::payload::Writer;
use leveret_link::receiver::{Limits, Receiver};
use leveret_link::sender::Sender;
use leveret_replica::{RecordLetter, Refill};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::yield_now;
use tokio::time::timeout;

use super::{LinkNews, LinkSocket};

/// Bytes that wait for a connection at most, and one letter more: one that is longer finds its turn under traffic, too. The logs have windows of their own, for
/// each group: what is dropped here costs them a second.
const fn line_max(urgency: Urgency) -> usize {
    match urgency {
        Urgency::Urgent => 1 << 20,
        Urgency::Bulk | Urgency::Relay => 64 << 20,
    }
}

/// What may come. A batch has a message of any length.
const fn limits(urgency: Urgency) -> Limits {
    match urgency {
        Urgency::Urgent => Limits { letter: 1 << 20, unfinished: 4 << 20 },
        Urgency::Bulk | Urgency::Relay => Limits { letter: 1 << 30, unfinished: 1 << 30 },
    }
}

/// Who has nothing to say says so after this.
const BEAT_AFTER: Duration = Duration::from_secs(2);

/// A node that says nothing for so long is gone, whatever its machine answers.
const SILENCE: Duration = Duration::from_secs(10);

/// The usual end.
pub(in crate::cluster) const CLOSED: &str = "the other side closed it";

/// Slices of a vectored write.
const SLICES: usize = 64;

/// After so many bytes others of the thread have their turn.
const TURN: usize = 32 << 10;

/// What goes over a link, from the side of who sends.
#[derive(Debug)]
pub(super) struct LinkLines {
    urgent: LetterLine,
    bulk: LetterLine,
}

#[derive(Debug)]
struct LetterLine {
    letters: UnboundedSender<NodeLetter>,
    waiting: Arc<AtomicUsize>,
    max: usize,
    dropped: Arc<AtomicU64>,
}

/// The other end of a line.
#[derive(Debug)]
pub(super) struct LetterLineEnd {
    letters: UnboundedReceiver<NodeLetter>,
    /// Bytes of what was put into the line and is not in the kernel, about.
    waiting: Arc<AtomicUsize>,
}

impl LinkLines {
    /// Lines of a link, and their ends: the urgent one's first.
    pub(super) fn new(dropped: &Arc<AtomicU64>) -> (Self, [LetterLineEnd; 2]) {
        let line = |urgency| {
            let (sender, letters) = mpsc::unbounded_channel();
            let waiting = Arc::<AtomicUsize>::default();
            let end = LetterLineEnd { letters, waiting: Arc::clone(&waiting) };
            let dropped = Arc::clone(dropped);
            (LetterLine { letters: sender, waiting, max: line_max(urgency), dropped }, end)
        };
        let ((urgent, to_urgent), (bulk, to_bulk)) = (line(Urgency::Urgent), line(Urgency::Bulk));
        (Self { urgent, bulk }, [to_urgent, to_bulk])
    }

    /// Puts a letter in its line, if that has room; gives it back if not.
    #[must_use]
    pub(super) fn put(&self, letter: NodeLetter) -> Option<NodeLetter> {
        let line = match letter.urgency() {
            Urgency::Urgent => &self.urgent,
            Urgency::Bulk | Urgency::Relay => &self.bulk,
        };
        let len = len(&letter);
        let before = line.waiting.fetch_add(len, Ordering::Relaxed);
        let has_room = before < line.max;
        let refused = match has_room {
            true => line.letters.send(letter).err().map(|refused| refused.0),
            false => Some(letter),
        };
        if refused.is_some() {
            line.waiting.fetch_sub(len, Ordering::Relaxed);
            line.dropped.fetch_add(1, Ordering::Relaxed);
        }
        refused
    }
}

/// Bytes of a letter on its way, about.
fn len(letter: &NodeLetter) -> usize {
    let inside = match letter {
        NodeLetter::Replica { copies, .. } => {
            let bytes =
                |copy: &leveret_log::file::BatchCopy| copy.beginning.len() + copy.len() as usize;
            copies.iter().map(|copy| 64 + bytes(copy)).sum()
        }
        NodeLetter::Refill { refill, .. } => match refill {
            Refill::Piece(piece) => 64 + piece.bytes.len(),
            Refill::Manifest(manifest) => 64 + 64 * manifest.files.len(),
            Refill::WantPieces(names) => 32 * names.len(),
            Refill::WantManifest | Refill::Gone => 0,
        },
        NodeLetter::Found(founding) => {
            founding.members.iter().map(|(_, name)| 16 + name.len()).sum()
        }
        NodeLetter::Joining(joining) => {
            let named = joining.members.iter().chain(&joining.forgotten);
            8 * joining.founders.len() + named.map(|(_, name)| 16 + name.len()).sum::<usize>()
        }
        NodeLetter::Founded { .. } => 16,
        NodeLetter::Record { letter, .. } => match letter {
            RecordLetter::Found { bytes: Some(bytes), .. } => bytes.len(),
            RecordLetter::Found { bytes: None, .. } | RecordLetter::Wanted { .. } => 0,
        },
        NodeLetter::Told(told) => 48 * told.len(),
        NodeLetter::Status(status) => {
            256 + status.groups.iter().map(|group| 64 + 16 * group.matched.len()).sum::<usize>()
        }
    };
    HEAD + 64 + inside
}

/// Writes what comes out of a line: one vectored write a round. Where the line ends, it tells the other side that nothing follows, and
/// waits to be closed by it: a socket that is closed with bytes in it takes back what it has sent. Returns why the connection is over,
/// in words.
pub(super) async fn write(socket: &LinkSocket, line: LetterLineEnd) -> String {
    let LetterLineEnd { mut letters, waiting } = line;
    let (mut sender, mut writer) = (Sender::new(!socket.is_encrypted()), Writer::default());
    // Bytes of `waiting` that the sender has.
    let mut taken = 0;
    let mut put = |letter: NodeLetter, sender: &mut Sender| {
        sender.put(letter.write(&mut writer));
        len(&letter)
    };
    loop {
        if sender.waiting_len() + sender.output_len() == 0 && !socket.has_unsent() {
            match timeout(BEAT_AFTER, letters.recv()).await {
                Ok(Some(letter)) => taken += put(letter, &mut sender),
                Ok(None) => {
                    return match socket.shutdown().await {
                        Ok(()) => std::future::pending().await,
                        Err(error) => ended(&error),
                    };
                }
                Err(_) => sender.put(beat()),
            }
        }
        while let Ok(letter) = letters.try_recv() {
            taken += put(letter, &mut sender);
        }
        sender.fill();
        let mut slices = [IoSlice::new(&[]); SLICES];
        let count = sender.slices(&mut slices);
        match socket.try_write_vectored(slices.get(..count).unwrap_or_default()) {
            Ok(count) => {
                sender.advance(count);
                let left = sender.waiting_len() + sender.output_len();
                let gone = taken - taken.min(left);
                waiting.fetch_sub(gone, Ordering::Relaxed);
                taken -= gone;
                if count >= TURN {
                    yield_now().await;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if let Err(error) = socket.writable().await {
                    return ended(&error);
                }
            }
            Err(error) => return ended(&error),
        }
    }
}

/// Reads letters, until the other side has said that nothing follows.
///
/// # Errors
///
/// Why the connection is over otherwise, in words.
pub(super) async fn read(
    socket: &LinkSocket,
    urgency: Urgency,
    from: RaftId,
    news: &mpsc::Sender<LinkNews>,
) -> Result<(), String> {
    let mut receiver = Receiver::new(!socket.is_encrypted(), limits(urgency));
    loop {
        loop {
            let letter = match receiver.next() {
                Ok(Some(letter)) if letter.envelope.kind == BEAT => continue,
                Ok(Some(letter)) => NodeLetter::read(&letter),
                Ok(None) => break,
                Err(why) => return Err(why.to_string()),
            };
            match letter {
                // Who does not take it has no node any more.
                Ok(letter) => drop(news.send(LinkNews::Letter(from, letter)).await),
                Err(why) => return Err(why.to_string()),
            }
        }
        match timeout(SILENCE, socket.readable()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(ended(&error)),
            Err(_) => return Err(format!("nothing came for {} s", SILENCE.as_secs())),
        }
        match socket.try_read_buf(receiver.buffer()) {
            Ok(0) => return Ok(()),
            Ok(count) if count >= TURN => yield_now().await,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(ended(&error)),
        }
    }
}

/// What a socket's error means.
pub(in crate::cluster) fn ended(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => CLOSED.to_owned(),
        io::ErrorKind::TimedOut => "its machine does not answer".to_owned(),
        _ => error.to_string(),
    }
}
