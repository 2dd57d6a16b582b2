//! The management API of a node, for what is no command of `ctl`.

use std::path::PathBuf;
use std::time::Duration;

use hyper::Method;
use serde_json::Value;

use crate::client::Client;
use crate::fault::Fault;
use crate::target::{Address, Target};

/// The management API of a node: one of ours or RabbitMQ's. Each request has a connection of its own, so there
/// may be hours between two.
#[derive(Clone, Debug)]
pub struct Api {
    target: Target,
    timeout: Duration,
}

impl Api {
    /// The one at `http[s]://[USER[:PASSWORD]@]HOST[:PORT][/PREFIX]`. With https the authorities of `cacertfile` are
    /// trusted, else the system's. An answer may take as long as `timeout`; zero is any time.
    ///
    /// # Errors
    ///
    /// When this is no such address.
    pub fn at(uri: &str, cacertfile: Option<PathBuf>, timeout: Duration) -> Result<Self, Fault> {
        Ok(Self { target: Target::Network(Address::parse(uri, cacertfile)?), timeout })
    }

    /// The one behind a control socket.
    pub fn of_socket(path: PathBuf, timeout: Duration) -> Self {
        Self { target: Target::Socket(path), timeout }
    }

    /// The host, unless it is behind a socket of this machine.
    pub fn host(&self) -> Option<&str> {
        match &self.target {
            Target::Network(address) => Some(&address.host),
            Target::Socket(_) => None,
        }
    }

    /// The document at `path`, of which everything is percent-encoded that has to be.
    ///
    /// # Errors
    ///
    /// When the node is not reached, refuses, or answers what is no JSON.
    pub fn get(&self, path: &str) -> Result<Value, Fault> {
        self.ask(Method::GET, path, Vec::new())
    }

    /// Sends a document to `path`.
    ///
    /// # Errors
    ///
    /// When the node is not reached, or refuses.
    pub fn post(&self, path: &str, document: &Value) -> Result<Value, Fault> {
        self.ask(Method::POST, path, document.to_string().into_bytes())
    }

    /// Sends any request, and gives its status and body, whatever they are.
    ///
    /// # Errors
    ///
    /// When the node is not reached, or does not answer in time.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(u16, Vec<u8>), Fault> {
        let method = Method::from_bytes(method.as_bytes())
            .map_err(|_| Fault::usage(format!("{method} is no method of HTTP")))?;
        let reply = Client::connect(&self.target, self.timeout)?.ask(method, path, &[], body)?;
        Ok((reply.status.as_u16(), reply.body.to_vec()))
    }

    fn ask(&self, method: Method, path: &str, body: Vec<u8>) -> Result<Value, Fault> {
        let reply = Client::connect(&self.target, self.timeout)?.ask(method, path, &[], body)?;
        if reply.status.is_success() { reply.document() } else { Err(reply.fault()) }
    }
}
