//! The tool's side of the control socket.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::protocol::{Code, Fault, LINE_BYTES_MAX, Request, Response};

/// A connection to a node.
pub(crate) struct Client {
    socket: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the node that listens at `path`; each answer may take as long as `timeout`.
    pub(crate) fn connect(path: &Path, timeout: Duration) -> Result<Self, Fault> {
        let shown = path.display();
        let socket = UnixStream::connect(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::ConnectionRefused => Fault::new(
                Code::Unavailable,
                format!(
                    "no node is running: nobody listens at {shown}\n\
                     Start one with 'leveret serve', or name its socket with --socket PATH \
                     (or its data directory with LEVERET_DATA_DIR)."
                ),
            ),
            ErrorKind::PermissionDenied => Fault::new(
                Code::Unavailable,
                format!("no permission to use {shown}: run as the user that runs the node"),
            ),
            _ => Fault::new(Code::Unavailable, format!("cannot connect to {shown}: {error}")),
        })?;
        let timeout = (!timeout.is_zero()).then_some(timeout);
        socket.set_read_timeout(timeout).and_then(|()| socket.set_write_timeout(timeout)).map_err(
            |error| Fault::new(Code::Software, format!("cannot set the timeout: {error}")),
        )?;
        Ok(Self { socket: BufReader::new(socket) })
    }

    /// Asks and waits for the answer.
    pub(crate) fn call(&mut self, request: &Request) -> Result<Value, Fault> {
        self.socket.get_mut().write_all(&request.to_line()).map_err(lost)?;
        let mut line = Vec::new();
        let mut input = self.socket.by_ref().take(LINE_BYTES_MAX as u64);
        input.read_until(b'\n', &mut line).map_err(lost)?;
        if !line.ends_with(b"\n") {
            return Err(Fault::new(Code::Unavailable, "the node closed the connection"));
        }
        match Response::from_line(&line)? {
            Response::Ok(value) => Ok(value),
            Response::Error(fault) => Err(fault),
        }
    }

    /// Waits until the node has closed the connection.
    pub(crate) fn wait_for_end(mut self) -> Result<(), Fault> {
        let mut rest = Vec::new();
        match self.socket.read_to_end(&mut rest) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok(()),
            Err(error) => Err(lost(error)),
        }
    }
}

fn lost(error: std::io::Error) -> Fault {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            Fault::new(Code::TempFail, "the node did not answer in time")
        }
        _ => Fault::new(Code::Unavailable, format!("the connection to the node is lost: {error}")),
    }
}
