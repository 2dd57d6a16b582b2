//! The control socket.
