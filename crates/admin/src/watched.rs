//! A socket of HTTP whose client takes what is written to it, at a least rate.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use leveret_server::tls::HandshakeShare;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// How slowly a client may take what waits for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// How long it may take nothing.
    pub(crate) pause: Duration,
    /// Bytes a second, over any longer time: a client that takes a byte now and then keeps its answer, too.
    pub(crate) least_per_s: u32,
}

impl Pace {
    /// Of clients that show a password.
    pub(crate) const API: Self = Self { pause: Duration::from_secs(60), least_per_s: 16 << 10 };
    /// Of those that need none, and are near.
    pub(crate) const METRICS: Self =
        Self { pause: Duration::from_secs(30), least_per_s: 256 << 10 };

    fn time_for(self, bytes: usize) -> Duration {
        Duration::from_secs_f64(bytes as f64 / f64::from(self.least_per_s))
    }
}

/// The socket.
pub(crate) struct Watched<S> {
    socket: S,
    pace: Pace,
    /// How long it may still be full. Bytes that are taken bring it back, up to the pause.
    credit: Duration,
    /// Since when it is full, and what ends that.
    full: Option<(Instant, Pin<Box<Sleep>>)>,
    /// Of the room for handshakes, as long as one is under way.
    share: Option<HandshakeShare>,
}

impl<S> Watched<S> {
    pub(crate) fn new(socket: S, pace: Pace) -> Self {
        Self { socket, pace, credit: pace.pause, full: None, share: None }
    }

    /// What comes from now on takes room.
    pub(crate) fn counted(mut self, share: HandshakeShare) -> Self {
        self.share = Some(share);
        self
    }

    /// The handshake is over.
    pub(crate) fn counted_no_more(&mut self) {
        self.share = None;
    }

    /// A write that waits does so for a while, and no longer. `taken` tells how many bytes went.
    fn watch<T>(
        &mut self,
        cx: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
        taken: impl Fn(&T) -> usize,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(outcome) = outcome {
            if let Some((since, _)) = self.full.take() {
                self.credit = self.credit.saturating_sub(since.elapsed());
            }
            let earned =
                outcome.as_ref().map_or(Duration::ZERO, |it| self.pace.time_for(taken(it)));
            self.credit = (self.credit + earned).min(self.pace.pause);
            return Poll::Ready(outcome);
        }
        let credit = self.credit;
        let begin = || (Instant::now(), Box::pin(tokio::time::sleep(credit)));
        let (_, end) = self.full.get_or_insert_with(begin);
        match Future::poll(end.as_mut(), cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let outcome = Pin::new(&mut self.socket).poll_read(cx, buf);
        let bytes = buf.filled().len() - before;
        match self.share.as_mut().filter(|_| bytes > 0).map(|share| share.received(bytes)) {
            Some(Err(no_room)) => Poll::Ready(Err(io::Error::other(no_room))),
            _ => outcome,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write(cx, bytes);
        self.watch(cx, outcome, |&count| count)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.socket).poll_write_vectored(cx, pieces);
        self.watch(cx, outcome, |&count| count)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_flush(cx);
        self.watch(cx, outcome, |()| 0)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.socket).poll_shutdown(cx);
        self.watch(cx, outcome, |()| 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leveret_server::tls::HandshakeShares;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    const PACE: Pace = Pace { pause: Duration::from_millis(100), least_per_s: 100_000 };

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        runtime.expect("a runtime").block_on(test)
    }

    /// A handshake of 64 KiB counts while it is under way, and a flood of them is refused.
    #[test]
    fn long_handshakes_have_their_room() {
        run(async {
            const LONG: usize = 64 << 10;
            let shares = HandshakeShares::of_one();
            let begin = async || {
                let (ours, mut theirs) = tokio::io::duplex(LONG);
                theirs.write_all(&[22; LONG]).await?;
                let share = HandshakeShare::new(Arc::clone(&shares), [10, 0, 0, 1].into());
                let mut socket = Watched::new(ours, PACE).counted(share);
                socket.read_exact(&mut vec![0; LONG]).await?;
                io::Result::Ok(socket)
            };
            let mut held = Vec::new();
            while let Ok(socket) = begin().await {
                held.push(socket);
            }
            assert_eq!(held.len(), 146, "8 MiB of 56 KiB each");
            held.iter_mut().for_each(Watched::counted_no_more);
            assert!(begin().await.is_ok());
        });
    }

    /// A client that takes nothing is given up.
    #[test]
    fn a_client_that_takes_nothing() {
        run(async {
            let (ours, _theirs) = tokio::io::duplex(1000);
            let outcome = Watched::new(ours, PACE).write_all(&[7; 10_000]).await;
            assert_eq!(outcome.expect_err("nobody reads").kind(), io::ErrorKind::TimedOut);
        });
    }

    /// So is one that takes a byte now and then, long before it has the whole.
    #[test]
    fn a_client_that_takes_a_byte_now_and_then() {
        run(async {
            let (ours, mut theirs) = tokio::io::duplex(1000);
            let reader = async {
                for _ in 0..1000 {
                    theirs.read_u8().await?;
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                io::Result::Ok(())
            };
            let mut socket = Watched::new(ours, PACE);
            tokio::select! {
                outcome = socket.write_all(&[7; 10_000]) => {
                    assert_eq!(outcome.expect_err("it is too slow").kind(), io::ErrorKind::TimedOut);
                }
                outcome = reader => panic!("it kept its answer: {outcome:?}"),
            }
        });
    }

    /// One that keeps the pace has its answer, however long the whole takes.
    #[test]
    fn a_client_that_keeps_the_pace() {
        run(async {
            let (ours, mut theirs) = tokio::io::duplex(1000);
            let pace = Pace { least_per_s: 1000, ..PACE };
            let reader = async {
                let mut some = [0; 1000];
                for _ in 0..50 {
                    theirs.read_exact(&mut some).await?;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                io::Result::Ok(())
            };
            let mut socket = Watched::new(ours, pace);
            let (written, read) = tokio::join!(socket.write_all(&[7; 50_000]), reader);
            assert!(written.is_ok() && read.is_ok(), "{written:?} {read:?}");
        });
    }
}
