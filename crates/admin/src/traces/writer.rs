//! The thread that writes a trace's file. It may wait for the disk as long as that takes: nobody waits for it but the trace's
//! own messages.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use leveret_server::alarms::free_bytes;
use leveret_server::clock::{now, wall};
use leveret_server::node::Node;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::error::TryRecvError;

use super::text::{CopiedMessage, Format, lost};

/// Bytes that are gathered for one write.
const BUFFER: usize = 256 << 10;

/// Messages after which they are written even if more are there.
const MESSAGES: u64 = 1024;

/// Bytes after which free space is looked at again.
const LOOK_BYTES: u64 = 4 << 20;

/// Free space beyond the node's own limit that traces leave: the node's alarm is not to be raised by them.
const RESERVE: u64 = 64 << 20;

/// What the thread gets.
#[derive(Debug)]
pub(super) enum Batch {
    /// Records of copied messages, and the room that they take until they are written.
    Messages(Vec<Bytes>, OwnedSemaphorePermit),
    /// So many messages are missing here.
    Lost(u64),
}

/// How far it is. Read by whoever asks.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// Messages that are in the file.
    pub(super) written: AtomicU64,
    /// The file's size, with what is gathered to be written.
    pub(super) bytes: AtomicU64,
    /// Messages that are not.
    pub(super) lost: AtomicU64,
    /// Messages on their way to the file.
    pub(super) under_way: AtomicU64,
    /// Why no more is written.
    pub(super) why: OnceLock<String>,
}

impl Progress {
    /// So many of those under way are in the file.
    fn wrote(&self, count: u64) {
        self.written.fetch_add(count, Ordering::Relaxed);
        self.under_way.fetch_sub(count, Ordering::Relaxed);
    }

    /// So many of those under way will not be in the file.
    fn dropped(&self, count: u64) {
        self.lost.fetch_add(count, Ordering::Relaxed);
        self.under_way.fetch_sub(count, Ordering::Relaxed);
    }
}

/// A file being written.
#[derive(Debug)]
pub(super) struct Writer {
    node: Arc<Node>,
    dir: PathBuf,
    format: Format,
    payload_max: Option<u64>,
    file_max: u64,
    out: BufWriter<File>,
    progress: Arc<Progress>,
    /// Messages that are gathered, or written in part.
    gathered: u64,
    /// The file's size when all that was gathered was last written.
    whole: u64,
    /// A record may be written in part.
    is_torn: bool,
    /// Bytes that may be written before free space is looked at.
    looked: u64,
}

impl Writer {
    pub(super) fn new(
        node: Arc<Node>,
        dir: PathBuf,
        file: File,
        (format, payload_max, file_max): (Format, Option<u64>, u64),
        progress: Arc<Progress>,
    ) -> Self {
        let out = BufWriter::with_capacity(BUFFER, file);
        let whole = progress.bytes.load(Ordering::Relaxed);
        let (gathered, is_torn, looked) = (0, false, 0);
        Self {
            node,
            dir,
            format,
            payload_max,
            file_max,
            out,
            progress,
            gathered,
            whole,
            is_torn,
            looked,
        }
    }

    /// Writes what comes until nothing more does, or cannot be written.
    pub(super) fn run(mut self, mut batches: UnboundedReceiver<Batch>) {
        let ended = self.write_all(&mut batches);
        // What was gathered before a limit was met is written.
        let flushed = self.flush();
        if let Err(why) = ended.and(flushed) {
            self.progress.dropped(self.gathered);
            // Once.
            let _ = self.progress.why.set(why);
            // Nothing more comes from here on.
            batches.close();
            while let Ok(batch) = batches.try_recv() {
                if let Batch::Messages(records, _) = batch {
                    self.progress.dropped(records.len() as u64);
                }
            }
            // What is in the buffer is not tried again when that is dropped.
            let (file, _) = self.out.into_parts();
            if self.is_torn {
                // The disk may not let it.
                let _ = file.set_len(self.whole);
                self.progress.bytes.store(self.whole, Ordering::Relaxed);
            }
        }
    }

    fn write_all(&mut self, batches: &mut UnboundedReceiver<Batch>) -> Result<(), String> {
        loop {
            let batch = match batches.try_recv() {
                Ok(batch) => batch,
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => {
                    self.flush()?;
                    match batches.blocking_recv() {
                        Some(batch) => batch,
                        None => return Ok(()),
                    }
                }
            };
            match batch {
                Batch::Messages(records, _room) => self.messages(&records)?,
                Batch::Lost(count) => self.lost(count)?,
            }
        }
    }

    fn messages(&mut self, records: &[Bytes]) -> Result<(), String> {
        let now_ms = wall(now()).ms();
        for (at, record) in records.iter().enumerate() {
            let written = match CopiedMessage::of(record, self.format, self.payload_max, now_ms) {
                Some(entry) => self.has_room(entry.len()).and_then(|()| {
                    let written = entry.write(&mut self.out);
                    written.map_err(|error| self.torn(&error))?;
                    self.count(entry.len());
                    Ok(())
                }),
                None => {
                    self.progress.dropped(1);
                    continue;
                }
            };
            if let Err(why) = written {
                let left = records.len() - at;
                self.progress.dropped(left as u64);
                return Err(why);
            }
            self.gathered += 1;
        }
        if self.gathered < MESSAGES { Ok(()) } else { self.flush() }
    }

    /// Tells in the file that messages are missing. They are counted already.
    fn lost(&mut self, count: u64) -> Result<(), String> {
        let line = lost(count, self.format, wall(now()).ms());
        self.has_room(line.len() as u64)?;
        let written = self.out.write_all(line.as_bytes());
        written.map_err(|error| self.torn(&error))?;
        self.count(line.len() as u64);
        Ok(())
    }

    fn count(&mut self, bytes: u64) {
        self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.looked = self.looked.saturating_sub(bytes);
    }

    /// Whether so much more may be written.
    fn has_room(&mut self, bytes: u64) -> Result<(), String> {
        let size = self.progress.bytes.load(Ordering::Relaxed);
        if size.saturating_add(bytes) > self.file_max {
            let max = self.file_max;
            return Err(format!(
                "the file would be larger than tracing.max_file_size, {max} bytes"
            ));
        }
        if self.looked < bytes {
            self.looked = bytes.max(LOOK_BYTES);
            let least = self.node.alarms.disk_limit().saturating_add(RESERVE);
            let free = free_bytes(&self.dir).unwrap_or(u64::MAX);
            if free < least.saturating_add(self.looked) {
                return Err(format!(
                    "the disk has {free} bytes free: traces leave {least}, disk_free_limit and {} MiB",
                    RESERVE >> 20
                ));
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), String> {
        // What a disk has refused is not tried again.
        if self.is_torn {
            return Ok(());
        }
        let flushed = self.out.flush();
        flushed.map_err(|error| self.torn(&error))?;
        self.whole = self.progress.bytes.load(Ordering::Relaxed);
        self.progress.wrote(std::mem::take(&mut self.gathered));
        Ok(())
    }

    fn torn(&mut self, error: &io::Error) -> String {
        self.is_torn = true;
        format!("the file cannot be written: {error}")
    }
}
