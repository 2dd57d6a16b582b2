//! Bytes there and back between a client of this node and the node that leads.
//!
//! Hot path of a node that follows: one copy into the thread's block and one out of it. There is no allocation and no lock per block
//! without TLS; with it, its [lock](LinkSocket), for which nobody waits, and what rustls allocates. Who takes no bytes is sent none:
//! the other side is read no further, so one direction holds [`BLOCK_BYTES`] at most, and what waits for TLS. A connection that rests
//! holds nothing of this.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tokio::net::{TcpStream, UnixStream};

use super::links::LinkSocket;

/// Bytes that are read at once.
const BLOCK_BYTES: usize = 64 << 10;

/// Blocks that one direction moves before others of its thread have their turn.
const TURN_BLOCKS: usize = 8;

thread_local! {
    static BLOCK: RefCell<Box<[u8]>> = RefCell::new(vec![0; BLOCK_BYTES].into());
}

/// Bytes that were relayed.
#[derive(Debug, Default)]
pub(super) struct Moved {
    /// From clients.
    pub(super) up: AtomicU64,
    /// To clients.
    pub(super) down: AtomicU64,
}

/// One side of what is relayed.
pub(super) trait Side: Sync {
    /// Waits until something can be read.
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send;
    /// Reads what is there; 0 is the end.
    fn try_read(&self, into: &mut [u8]) -> io::Result<usize>;
    /// Waits until something can be written.
    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send;
    /// Writes what is taken.
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize>;
    /// Waits until what was taken has gone.
    fn flush(&self) -> impl Future<Output = io::Result<()>> + Send;
    /// Tells it that nothing more comes.
    fn shutdown(&self) -> impl Future<Output = io::Result<()>> + Send;
}

macro_rules! plain_side {
    ($($socket:ident),+) => {$(
        impl Side for $socket {
            fn readable(&self) -> impl Future<Output = io::Result<()>> + Send {
                $socket::readable(self)
            }

            fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
                $socket::try_read(self, into)
            }

            fn writable(&self) -> impl Future<Output = io::Result<()>> + Send {
                $socket::writable(self)
            }

            fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
                $socket::try_write(self, bytes)
            }

            async fn flush(&self) -> io::Result<()> {
                Ok(())
            }

            async fn shutdown(&self) -> io::Result<()> {
                Ok(shutdown(self, Shutdown::Write)?)
            }
        }
    )+};
}

plain_side!(TcpStream, UnixStream);

impl Side for LinkSocket {
    fn readable(&self) -> impl Future<Output = io::Result<()>> + Send {
        Self::readable(self)
    }

    fn try_read(&self, into: &mut [u8]) -> io::Result<usize> {
        Self::try_read(self, into)
    }

    fn writable(&self) -> impl Future<Output = io::Result<()>> + Send {
        Self::writable(self)
    }

    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        Self::try_write(self, bytes)
    }

    fn flush(&self) -> impl Future<Output = io::Result<()>> + Send {
        Self::flush(self)
    }

    fn shutdown(&self) -> impl Future<Output = io::Result<()>> + Send {
        Self::shutdown(self)
    }
}

/// Relays until both sides have ended, or one of them is gone. A client that has said all hears the rest of the answer. The other way
/// round it has no longer than `farewell`: nobody listens to it, and one that is gone without a word would stay for ever.
pub(super) async fn relay(
    client: &impl Side,
    leader: &impl Side,
    moved: &Moved,
    farewell: Duration,
) -> io::Result<()> {
    let mut up = pin!(pump(client, leader, &moved.up));
    let mut down = pin!(pump(leader, client, &moved.down));
    tokio::select! {
        ended = &mut up => {
            ended?;
            down.await
        }
        ended = &mut down => {
            ended?;
            tokio::time::timeout(farewell, up).await.unwrap_or(Ok(()))
        }
    }
}

/// What came of a block.
enum Block {
    /// It is where it belongs.
    Moved,
    /// The other side has taken none of this yet.
    Left(Vec<u8>),
    /// There are no more.
    End,
}

async fn pump(from: &impl Side, to: &impl Side, moved: &AtomicU64) -> io::Result<()> {
    let mut blocks = 0;
    loop {
        from.readable().await?;
        match block(from, to, moved) {
            Ok(Block::Moved) => {}
            Ok(Block::Left(rest)) => write(to, &rest, moved).await?,
            Ok(Block::End) => break,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        to.flush().await?;
        blocks += 1;
        if blocks % TURN_BLOCKS == 0 {
            tokio::task::yield_now().await;
        }
    }
    match to.shutdown().await {
        // It is gone already.
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        ended => ended,
    }
}

/// Moves what is there, one block at most. An error of this kind, `WouldBlock`, means that there is nothing.
fn block(from: &impl Side, to: &impl Side, moved: &AtomicU64) -> io::Result<Block> {
    BLOCK.with_borrow_mut(|block| {
        let read = from.try_read(block)?;
        let bytes = &block[..read];
        if bytes.is_empty() {
            return Ok(Block::End);
        }
        let written = match to.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            written => written?,
        };
        moved.fetch_add(written as u64, Ordering::Relaxed);
        let rest = &bytes[written..];
        Ok(if rest.is_empty() { Block::Moved } else { Block::Left(rest.to_vec()) })
    })
}

async fn write(to: &impl Side, mut rest: &[u8], moved: &AtomicU64) -> io::Result<()> {
    while !rest.is_empty() {
        to.writable().await?;
        match to.try_write(rest) {
            Ok(written) => {
                moved.fetch_add(written as u64, Ordering::Relaxed);
                rest = &rest[written..];
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
