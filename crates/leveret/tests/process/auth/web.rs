//! A web server of a few lines: one request per connection, each answered by a function.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// What was asked for: the target with its query, and the body.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) body: String,
}

/// Runs until the test ends.
#[derive(Debug)]
pub(crate) struct Web {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Web {
    /// Answers with status and body what `answer` says.
    pub(crate) fn start(
        tls: Option<Arc<ServerConfig>>,
        answer: impl Fn(&Request) -> (u16, String) + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (ours, answer) = (Arc::clone(&seen), Arc::new(answer));
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let (seen, answer, tls) = (Arc::clone(&ours), Arc::clone(&answer), tls.clone());
                std::thread::spawn(move || {
                    let served = |request: &Request| {
                        seen.lock().unwrap().push(request.clone());
                        answer(request)
                    };
                    match tls {
                        None => serve(socket, served),
                        Some(tls) => {
                            let connection = ServerConnection::new(tls).unwrap();
                            serve(StreamOwned::new(connection, socket), served);
                        }
                    }
                });
            }
        });
        Self { address, seen }
    }

    /// The requests so far whose target has `part` in it.
    pub(crate) fn seen(&self, part: &str) -> Vec<Request> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|request| request.target.contains(part)).cloned().collect()
    }
}

/// A client that goes away is of no interest.
fn serve(mut stream: impl Read + Write, answer: impl Fn(&Request) -> (u16, String)) {
    let mut read = Vec::new();
    let head = loop {
        let mut byte = [0];
        match stream.read(&mut byte) {
            Ok(1) => read.push(byte[0]),
            _ => return,
        }
        if read.ends_with(b"\r\n\r\n") {
            break String::from_utf8(std::mem::take(&mut read)).unwrap();
        }
    };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
    });
    let mut body = vec![0; length.unwrap_or(0)];
    if stream.read_exact(&mut body).is_err() {
        return;
    }
    let mut words = head.split_whitespace().map(str::to_owned);
    let request = Request {
        method: words.next().unwrap(),
        target: words.next().unwrap(),
        body: String::from_utf8(body).unwrap(),
    };
    let (status, text) = answer(&request);
    let length = text.len();
    let head =
        format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    let _ = stream.write_all(format!("{head}{text}").as_bytes());
    let _ = stream.flush();
}
