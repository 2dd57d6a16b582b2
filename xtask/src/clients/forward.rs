//! Lends the usual ports, 5672 and 15672, to tests that know no others.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Context as _;

/// Where tests look for AMQP, and for the management API.
const AMQP: u16 = 5672;
const HTTP: u16 = 15672;
const HOSTS: [&str; 2] = ["127.0.0.1", "::1"];

/// Forwards a usual port to a broker until dropped. Does nothing when the broker is there itself.
#[derive(Debug)]
pub(super) struct Forward {
    usual: u16,
    stop: Option<Arc<AtomicBool>>,
}

impl Forward {
    /// Starts forwarding AMQP's port to `port`.
    pub(super) fn to(port: u16) -> anyhow::Result<Self> {
        Self::lend(AMQP, port)
    }

    /// Starts forwarding the management API's port to `port`.
    pub(super) fn http_to(port: u16) -> anyhow::Result<Self> {
        Self::lend(HTTP, port)
    }

    fn lend(usual: u16, port: u16) -> anyhow::Result<Self> {
        if port == usual {
            return Ok(Self { usual, stop: None });
        }
        let stop = Arc::new(AtomicBool::new(false));
        for host in HOSTS {
            let listener = match TcpListener::bind((host, usual)) {
                Ok(listener) => listener,
                // A machine without IPv6.
                Err(e) if e.kind() == io::ErrorKind::AddrNotAvailable => continue,
                Err(e) => {
                    return Err(e).with_context(|| format!("these tests know no port but {usual}"));
                }
            };
            let is_over = Arc::clone(&stop);
            thread::spawn(move || serve(&listener, port, &is_over));
        }
        Ok(Self { usual, stop: Some(stop) })
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        if let Some(stop) = &self.stop {
            stop.store(true, Ordering::Release);
            // Wakes the listeners, which then go.
            for host in HOSTS {
                let _ = TcpStream::connect((host, self.usual));
            }
        }
    }
}

fn serve(listener: &TcpListener, port: u16, is_over: &AtomicBool) {
    for client in listener.incoming() {
        if is_over.load(Ordering::Acquire) {
            return;
        }
        let Ok(client) = client else { continue };
        if let Ok(broker) = TcpStream::connect(("127.0.0.1", port)) {
            join(client, broker);
        }
    }
}

fn join(a: TcpStream, b: TcpStream) {
    let _ = (a.set_nodelay(true), b.set_nodelay(true));
    if let (Ok(a2), Ok(b2)) = (a.try_clone(), b.try_clone()) {
        thread::spawn(move || pump(a, b));
        thread::spawn(move || pump(b2, a2));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    let mut copy = || -> io::Result<()> {
        loop {
            let n = from.read(&mut buffer)?;
            if n == 0 {
                return Ok(());
            }
            to.write_all(&buffer[..n])?;
        }
    };
    if copy().is_err() {
        let _ = from.shutdown(Shutdown::Both);
    }
    let _ = to.shutdown(Shutdown::Write);
}
