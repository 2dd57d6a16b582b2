//! Waiting for a socket, with the power to say "seen" before it is read.
//!
//! The one module with `unsafe` code. A connection's socket is read and written by whichever thread runs
//! its turn, while its own task waits for the next event. So an event is marked as seen when the task
//! wakes, not when a read finds nothing: tokio's `TcpStream` cannot do that, [`AsyncFd`] can.

#![allow(unsafe_code, reason = "registering a descriptor; see the comment there")]

use std::io;
use std::net::TcpStream;

use tokio::io::unix::AsyncFd;

/// Registers a non-blocking socket with the runtime of this thread.
pub(crate) fn register(socket: TcpStream) -> io::Result<AsyncFd<TcpStream>> {
    // SAFETY: the descriptor must stay the same, open and owned by the value as long as it is
    // registered. A `TcpStream` owns its descriptor, gives no other one, and closes it only when it is
    // dropped, which `AsyncFd` does after deregistering.
    let registered = unsafe { AsyncFd::register(socket) };
    registered.map_err(|error| error.into_parts().1)
}
