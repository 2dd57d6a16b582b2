//! The console: standard output or error, which another program reads, or does not.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::output::Sink;

/// Standard output or error.
#[derive(Debug)]
pub(super) struct Console(OwnedFd);

impl Console {
    pub(super) fn new(to: impl AsFd) -> io::Result<Self> {
        Ok(Self(to.as_fd().try_clone_to_owned()?))
    }
}

impl Sink for Console {
    /// Waits for a reader as long as there is one. Whoever started the process may have made it not wait (`O_NONBLOCK`).
    fn put(&mut self, line: &[u8]) -> io::Result<()> {
        let mut rest = line;
        while !rest.is_empty() {
            match rustix::io::write(&self.0, rest) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    // An error is found by the next write.
                    let _ = poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// More than a pipe holds, to one that never waits by itself.
    #[test]
    fn a_line_waits_for_its_reader() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        rustix::io::ioctl_fionbio(&writer, true).expect("a pipe does not wait");
        let line = vec![b'x'; 200_000];
        let mut console = Console::new(&writer).expect("a copy");
        std::thread::scope(|scope| {
            let wants = &line;
            scope.spawn(move || console.put(wants).expect("written"));
            let mut got = vec![0; line.len()];
            reader.read_exact(&mut got).expect("what was written");
            assert!(got == line);
        });
        drop(reader);
        let mut console = Console::new(&writer).expect("a copy");
        console.put(b"x").expect_err("nobody reads");
    }
}
