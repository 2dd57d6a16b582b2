//! Users who are kept elsewhere: a web service, a directory, tokens, and a cache before them.

mod directory;
mod http;
mod ldap;
mod oauth2;
pub(crate) mod web;

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use leveret_client::{Connection, Error, Options, Uri};

use crate::broker::{Broker, PATIENCE};

fn login(broker: &Broker, user: &str, password: &str) -> Result<Connection, Error> {
    let uri = Uri { user: user.into(), password: password.into(), ..broker.uri() };
    Connection::open(&uri, &Options { heartbeat_s: Some(0), ..Options::default() })
}

/// A node with these `key=value` settings.
fn broker(settings: &[String]) -> Broker {
    Broker::with(&settings.iter().map(String::as_str).collect::<Vec<_>>())
}

/// What the broker finds fault with, as soon as it says so.
fn next_error(client: &mut Connection) -> String {
    loop {
        match client.next_event() {
            Err(error) => return error.to_string(),
            Ok(Some(_)) => {}
            Ok(None) => assert!(client.wait(PATIENCE).unwrap(), "no fault was found"),
        }
    }
}

/// Status and body of an answer of the management API.
pub(crate) fn api(broker: &Broker, path: &str, authorization: &str) -> (u16, String) {
    request(broker, "GET", path, authorization, "")
}

/// The same of any request.
pub(crate) fn request(
    broker: &Broker,
    method: &str,
    path: &str,
    authorization: &str,
    body: &str,
) -> (u16, String) {
    let answer = raw_api(broker, method, path, authorization, body);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split_whitespace().nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The whole answer.
fn raw_api(broker: &Broker, method: &str, path: &str, authorization: &str, body: &str) -> String {
    let mut socket = TcpStream::connect(("127.0.0.1", broker.listens("http").port())).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let len = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: {authorization}\r\nConnection: close\r\n\
         Content-Length: {len}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}
