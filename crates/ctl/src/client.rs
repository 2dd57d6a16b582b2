//! HTTP to a node, over its control socket or over the network.

use std::future::Future;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Body;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, WARNING};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use leveret_config::files::{self, LOCK_NAME};
use rustix::fs::{major, minor};
use rustix::process::Pid;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::runtime::Runtime;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::fault::{Code, Fault};
use crate::target::{Address, Target};

/// The longest answer, in bytes: definitions with several million queues.
const ANSWER_MAX: usize = 1 << 30;

/// A connection to a node.
pub(crate) struct Client {
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
    target: Target,
    timeout: Duration,
    /// The node's process, if it is of this machine.
    pub(crate) process: Option<Pid>,
}

/// What the node answered.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    /// What is to be said about it that is no fault.
    pub(crate) warning: Option<String>,
}

impl Reply {
    /// The document that it is; nothing is null.
    pub(crate) fn document(&self) -> Result<Value, Fault> {
        if self.body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&self.body).map_err(|error| {
            Fault::software(format!("the node's answer is not understood: {error}"))
        })
    }

    /// Why it is no success.
    pub(crate) fn fault(&self) -> Fault {
        let told: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let reason = told.get("reason").and_then(Value::as_str);
        let reason = reason.map_or_else(|| self.status.to_string(), str::to_owned);
        // What RabbitMQ's API says; its tools say why.
        let reason = reason.strip_prefix("credential_validation_failed: ").unwrap_or(&reason);
        let code = match self.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Code::NoPermission,
            // RabbitMQ's tools call the service unavailable.
            _ if INVALID.iter().any(|begin| reason.starts_with(begin)) => Code::Unavailable,
            StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND => Code::Data,
            StatusCode::SERVICE_UNAVAILABLE => Code::Unavailable,
            _ => Code::Software,
        };
        Fault::new(code, reason)
    }
}

/// Beginnings of answers about a definition or a pattern that is not valid.
const INVALID: [&str; 2] = ["Validation failed", "invalid regular expression"];

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

type Opened = (Box<dyn Io>, Option<Pid>);

impl Client {
    /// Connects; each answer may take as long as `timeout`, or any time when that is zero.
    pub(crate) fn connect(target: &Target, timeout: Duration) -> Result<Self, Fault> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Fault::software(error.to_string()))?;
        let begin = async {
            let (stream, process) = match target {
                Target::Socket(path) => open_socket(path).await?,
                Target::Network(address) => (open_network(address).await?, None),
            };
            let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(lost)?;
            // What goes wrong is told to those who wait for an answer.
            tokio::spawn(async move { drop(connection.await) });
            Ok((sender, process))
        };
        let begun = runtime.block_on(within(timeout, begin));
        let (sender, process) = begun.map_err(|fault| unreached(target, fault))?;
        Ok(Self { runtime, sender, target: target.clone(), timeout, process })
    }

    /// Asks and waits for the answer.
    pub(crate) fn ask(
        &mut self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> Result<Reply, Fault> {
        let (prefix, host) = match &self.target {
            Target::Socket(_) => ("", "localhost".to_owned()),
            Target::Network(address) => (&*address.prefix, address.authority()),
        };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{prefix}{path}"))
            .header(HOST, host)
            .header(CONTENT_TYPE, "application/json");
        if let Target::Network(Address { authorization: Some(login), .. }) = &self.target {
            request = request.header(AUTHORIZATION, login);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| Fault::data(format!("this cannot be asked of the node: {error}")))?;
        let sender = &mut self.sender;
        let answered = self.runtime.block_on(within(self.timeout, async {
            sender.ready().await.map_err(lost)?;
            let response = sender.send_request(request).await.map_err(lost)?;
            let status = response.status();
            let warning = response.headers().get(WARNING).and_then(|it| it.to_str().ok());
            let warning = warning.and_then(|it| it.split('"').nth(1)).map(str::to_owned);
            let body = whole(response.into_body(), ANSWER_MAX).await?;
            Ok(Reply { status, body, warning })
        }));
        answered.map_err(|fault| unreached(&self.target, fault))
    }
}

/// Whatever went wrong on the way, the socket or the address that was tried is named, in one form.
fn unreached(target: &Target, fault: Fault) -> Fault {
    let is_about_the_way = !matches!(fault.code, Code::Usage | Code::Data);
    match is_about_the_way {
        true => {
            Fault::new(fault.code, format!("cannot reach the node by {target}: {}", fault.text))
        }
        false => fault,
    }
}

async fn within<T>(
    timeout: Duration,
    work: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    if timeout.is_zero() {
        return work.await;
    }
    let late = |_| Fault::new(Code::TempFail, "there was no answer in time");
    tokio::time::timeout(timeout, work).await.map_err(late)?
}

async fn open_socket(path: &Path) -> Result<Opened, Fault> {
    let stream = UnixStream::connect(path).await.map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => nobody(path),
        ErrorKind::PermissionDenied => {
            Fault::unavailable("no permission to use it: run as the user that runs the node")
        }
        _ => Fault::unavailable(error.to_string()),
    })?;
    let process = stream.peer_cred().ok().and_then(|of_peer| Pid::from_raw(of_peer.pid()?));
    Ok((Box::new(stream), process))
}

/// Why nobody listens at this socket.
fn nobody(socket: &Path) -> Fault {
    let lock = socket.with_file_name(LOCK_NAME);
    if let Some(process) = holder(&lock) {
        return Fault::new(
            Code::NotReady,
            format!(
                "the node is starting or stopping: process {process} has its data directory, and nobody listens \
                 there now\n\
                 With much in its queues that takes a while, and its log says how far it is. 'leveret ctl \
                 await_startup' waits for the end of a start."
            ),
        );
    }
    Fault::unavailable(
        "no node is running: nobody listens there\n\
         Start one with 'leveret serve', or name its socket with --socket PATH \
         (or its data directory with LEVERET_DATA_DIR), or a node elsewhere with --uri. \
         The socket of a service is root's and its user's to see.",
    )
}

/// The process that holds the lock on this file, after the system's table: whoever tries the lock has it for a moment, in
/// which a node that starts would be refused.
///
/// ```text
/// 1: FLOCK  ADVISORY  WRITE 11449 fe:00:9986132 0 EOF
/// ```
fn holder(lock: &Path) -> Option<u32> {
    let file = std::fs::metadata(lock).ok()?;
    let (device, inode) = (file.dev(), file.ino());
    let place = format!("{:02x}:{:02x}:{inode}", major(device), minor(device));
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    table.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip(4);
        let process = words.next()?.parse().ok()?;
        (words.next()? == place).then_some(process)
    })
}

async fn open_network(address: &Address) -> Result<Box<dyn Io>, Fault> {
    let (host, port) = (&*address.host, address.port);
    let mut found = tokio::net::lookup_host((host, port))
        .await
        .map_err(|error| Fault::new(Code::NoHost, format!("no such host: {error}")))?;
    let mut failure = None;
    let stream = loop {
        let Some(one) = found.next() else {
            let why = failure.map_or_else(|| "it has no address".to_owned(), |it| format!("{it}"));
            return Err(Fault::unavailable(why));
        };
        match TcpStream::connect(one).await {
            Ok(stream) => break stream,
            Err(error) => failure = Some(error),
        }
    };
    // A request is one write.
    let _ = stream.set_nodelay(true);
    if !address.is_tls {
        return Ok(Box::new(stream));
    }
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| Fault::usage(format!("{host} is no name that a certificate could have")))?;
    let connector = TlsConnector::from(Arc::new(tls(address)?));
    let stream = connector
        .connect(name, stream)
        .await
        .map_err(|error| Fault::unavailable(format!("no TLS: {error}")))?;
    Ok(Box::new(stream))
}

/// Trusts the authorities that are named, else the system's.
fn tls(address: &Address) -> Result<ClientConfig, Fault> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &address.cacertfile {
        let shown = path.display();
        let bad = |why: String| Fault::data(format!("no certificates in {shown}: {why}"));
        let pem =
            files::read_bytes(path, files::BYTES_MAX).map_err(|error| bad(error.to_string()))?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|error| bad(error.to_string()))?;
            roots.add(certificate).map_err(|error| bad(error.to_string()))?;
        }
    } else {
        // One that is not understood is of no use, and no hindrance either.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    Ok(ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}

/// All of an answer, of which the node may send as much as it likes.
async fn whole<B>(body: B, most: usize) -> Result<Bytes, Fault>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let all = Limited::new(body, most).collect().await;
    all.map(|all| all.to_bytes()).map_err(|error| match error.downcast::<hyper::Error>() {
        Ok(error) => lost(*error),
        Err(_) => Fault::software(format!("the node's answer is longer than {} MiB", most >> 20)),
    })
}

fn lost(error: hyper::Error) -> Fault {
    Fault::unavailable(format!("the connection is lost: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_not_endless() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let read = |bytes: usize| {
            let body = Full::new(Bytes::from(vec![b' '; bytes]));
            runtime.block_on(whole(body, 1 << 20)).map(|all| all.len()).map_err(|it| it.text)
        };
        assert_eq!(read(1 << 20), Ok(1 << 20));
        let why = "the node's answer is longer than 1 MiB".to_owned();
        assert_eq!(read((1 << 20) + 1), Err(why));
    }
}
