//! A broker with its management API: what the experiments on other people's patience need of it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use leveret_client::{Connection, Options, Stopper, Uri};
use leveret_ctl::Api;
use serde_json::Value;

use crate::broker::{Broker, BrokerChoice};
use crate::outcome::Facts;

/// Longest time for a call of a client: work of minutes has to end within it.
const CALL: Duration = Duration::from_secs(600);

/// A broker, and its API.
#[derive(Debug)]
pub(crate) struct Site {
    /// Where it speaks AMQP, with the vhost `/` or another.
    pub(crate) uri: String,
    /// Its management API.
    pub(crate) api: Api,
    /// Its process.
    pub(crate) pid: Option<u32>,
    /// Who it says it is.
    pub(crate) facts: Facts,
    /// The connections of a case, to be ended when it takes too long.
    stoppers: Mutex<Vec<Stopper>>,
    pub(crate) broker: Broker,
}

impl Site {
    /// Starts a broker with these settings, or connects to a running one.
    pub(crate) fn open(
        source: &BrokerChoice,
        api: Option<&str>,
        settings: &[&str],
    ) -> Result<Self> {
        let broker = Broker::open(source, settings)?;
        let api = match (broker.socket(), api) {
            (Some(socket), _) => Api::of_socket(socket, CALL),
            (None, api) => Api::at(
                &api.map_or_else(|| default_api(&broker.uri), |it| Ok(it.to_owned()))?,
                None,
                CALL,
            )?,
        };
        let facts = broker.facts()?;
        let (uri, pid) = (broker.uri.clone(), broker.pid);
        Ok(Self { uri, api, pid, facts, stoppers: Mutex::default(), broker })
    }

    /// The address with another vhost.
    pub(crate) fn uri_of(&self, vhost: &str) -> Result<Uri> {
        let mut uri: Uri = self.uri.parse()?;
        vhost.clone_into(&mut uri.vhost);
        Ok(uri)
    }

    /// A connection in this vhost, without heartbeats: those that load do not wait for anything else.
    pub(crate) fn connect(&self, vhost: &str) -> Result<Connection> {
        self.connect_as(&self.uri_of(vhost)?)
    }

    /// The same with another address.
    pub(crate) fn connect_as(&self, uri: &Uri) -> Result<Connection> {
        let options = Options { heartbeat_s: Some(0), timeout: CALL, ..Options::default() };
        let connection =
            Connection::open(uri, &options).with_context(|| format!("connecting as {uri}"))?;
        let mut stoppers = self.stoppers.lock().unwrap_or_else(PoisonError::into_inner);
        stoppers.push(connection.stopper()?);
        Ok(connection)
    }

    /// Ends every connection that was made by [`connect`](Self::connect).
    pub(crate) fn stop_all(&self) {
        let mut stoppers = self.stoppers.lock().unwrap_or_else(PoisonError::into_inner);
        stoppers.drain(..).for_each(|it| it.stop());
    }

    /// Asks the API; a status other than success is an error with what it said.
    pub(crate) fn ask(&self, method: &str, path: &str, body: &Value) -> Result<Vec<u8>> {
        let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let (status, answer) = self
            .api
            .request(method, path, body)
            .map_err(|fault| anyhow!("{method} {path}: {fault}"))?;
        if !(200..300).contains(&status) {
            let said = String::from_utf8_lossy(&answer).chars().take(300).collect::<String>();
            bail!("{method} {path}: {status} {said}");
        }
        Ok(answer)
    }
}

/// Where the API of a broker at this address is, if nobody says otherwise.
fn default_api(uri: &str) -> Result<String> {
    let Uri { host, user, password, .. } = uri.parse()?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Ok(format!("http://{user}:{password}@{host}:15672"))
}

/// A name as a part of a path.
pub(crate) fn encoded(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_paths() {
        assert_eq!(encoded("/"), "%2F");
        assert_eq!(encoded("a b.c-ä"), "a%20b.c-%C3%A4");
    }

    #[test]
    fn the_api_beside_a_broker() {
        assert_eq!(default_api("amqp://a:b@h:5673/%2F").unwrap(), "http://a:b@h:15672");
        assert_eq!(default_api("amqp://[::1]").unwrap(), "http://guest:guest@[::1]:15672");
    }
}
