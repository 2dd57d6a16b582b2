//! A connection to a directory (RFC 4511): one request at a time, each with its answer.

use std::io::Error;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use zeroize::Zeroizing;

use crate::source::told;

use super::Credentials;
use super::ber::{
    BOOLEAN, ENUMERATED, INTEGER, Malformed, OCTETS, Reader, SEQUENCE, element, header, holding,
    number,
};

/// Longest answer to one request, in bytes. What it takes in memory counts, too: a value can be shorter than that.
const ANSWER_MAX: usize = 4 << 20;
/// The name of StartTLS.
const START_TLS: &[u8] = b"1.3.6.1.4.1.1466.20037";
/// The name of the control for pages, and how many entries are in one: servers give 500 or 1,000 at most.
const PAGED: &[u8] = b"1.2.840.113556.1.4.319";
const PAGE: u32 = 500;
/// The tag of a message's controls.
const CONTROLS: u8 = 0xa0;
/// "No attributes" (RFC 4511 §4.5.1.8).
const NO_ATTRIBUTES: &str = "1.1";

mod result {
    pub(super) const SUCCESS: u32 = 0;
    pub(super) const SIZE_LIMIT_EXCEEDED: u32 = 4;
    pub(super) const NO_SUCH_OBJECT: u32 = 32;
    pub(super) const INVALID_DN: u32 = 34;
    pub(super) const INAPPROPRIATE_AUTHENTICATION: u32 = 48;
    pub(super) const INVALID_CREDENTIALS: u32 = 49;

    /// What a code says, as RFC 4511 (appendix A) names it: many a directory adds no text. Empty for what is seldom met.
    pub(super) fn meaning(code: u32) -> &'static str {
        match code {
            3 => " (time limit exceeded)",
            SIZE_LIMIT_EXCEEDED => {
                " (size limit exceeded: who asks the queries must be allowed more entries, in OpenLDAP by size.prtotal=unlimited)"
            }
            8 => " (stronger authentication required)",
            10 => " (referral)",
            11 => " (administrative limit exceeded)",
            13 => " (confidentiality required: the directory wants TLS)",
            50 => " (insufficient access rights)",
            51 => " (busy)",
            52 => " (unavailable)",
            53 => " (unwilling to perform)",
            _ => "",
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The connection is gone, or was none.
    #[error("{0}")]
    Lost(#[from] Error),
    #[error("it takes too long")]
    Late,
    /// It was not asked: others, most often of the same address, are asked about first.
    #[error("too many logins wait for one of its connections (auth_ldap.connection_pool_size)")]
    Busy,
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// More than is taken into memory.
    #[error("its answer to one request takes more than {ANSWER_MAX} bytes")]
    TooLong,
    /// Who is there to ask may not.
    #[error("it does not let in '{0}', as whom it is asked")]
    Refused(String),
    /// A result that is neither a yes nor a no.
    #[error("result {code}{}{text}", result::meaning(*code))]
    Result { code: u32, text: String },
}

/// What entries have to be like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Filter {
    /// Any.
    Any,
    /// An attribute has a value.
    Equal { attribute: String, value: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Scope {
    Base,
    OneLevel,
    Subtree,
}

/// An entry of the directory that a search found.
#[derive(Debug)]
pub(super) struct SearchEntry {
    pub(super) dn: String,
    /// The values of the attribute that was asked for.
    pub(super) values: Vec<String>,
}

/// Where a server is, and how it is spoken to.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) tls: Tls,
}

#[derive(Clone, Debug)]
pub(crate) enum Tls {
    None,
    AtOnce(Arc<ClientConfig>),
    Asked(Arc<ClientConfig>),
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub(super) struct Link {
    stream: Box<dyn Stream>,
    read: Vec<u8>,
    /// Of the last request.
    number: u32,
    timeout: Duration,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("number", &self.number).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) async fn open(server: &Server, timeout: Duration) -> Result<Self, Fault> {
        let opening = async {
            let tcp = TcpStream::connect((server.host.as_str(), server.port)).await?;
            tcp.set_nodelay(true)?;
            match &server.tls {
                Tls::None => Ok(Self::over(Box::new(tcp), timeout)),
                Tls::AtOnce(tls) => encrypted(tcp, tls, server, timeout).await,
                Tls::Asked(tls) => {
                    let mut plain = PlainLink { tcp, read: Vec::new() };
                    plain.start_tls().await?;
                    encrypted(plain.tcp, tls, server, timeout).await
                }
            }
        };
        tokio::time::timeout(timeout, opening).await.unwrap_or(Err(Fault::Late))
    }

    fn over(stream: Box<dyn Stream>, timeout: Duration) -> Self {
        Self { stream, read: Vec::new(), number: 1, timeout }
    }

    /// Whether it lets somebody in.
    pub(super) async fn bind(&mut self, who: &Credentials) -> Result<bool, Fault> {
        let timeout = self.timeout;
        let version = number(INTEGER, 3);
        let (name, proof) = match who {
            Credentials::Simple(name, password) => {
                (name.as_str(), element(0x80, password.reveal().as_bytes()))
            }
            // The connection's own name is asked for by naming none (RFC 4513 §5.2.3).
            Credentials::Certificate => {
                ("", holding(0xa3, &[element(OCTETS, b"EXTERNAL"), element(OCTETS, b"")]))
            }
        };
        let (name, proof) = (element(OCTETS, name.as_bytes()), Zeroizing::new(proof));
        let body = Zeroizing::new([version.as_slice(), &name, &proof].concat());
        let answering = async {
            self.send(&Zeroizing::new(element(0x60, &body)), &[]).await?;
            let Answer { tag, content: answer, .. } = self.receive().await?;
            if tag != 0x61 {
                return Err(Malformed.into());
            }
            match outcome(&answer)? {
                (result::SUCCESS, _) => Ok(true),
                (
                    result::INVALID_CREDENTIALS
                    | result::NO_SUCH_OBJECT
                    | result::INVALID_DN
                    | result::INAPPROPRIATE_AUTHENTICATION,
                    _,
                ) => Ok(false),
                (code, text) => Err(Fault::Result { code, text }),
            }
        };
        tokio::time::timeout(timeout, answering).await.unwrap_or(Err(Fault::Late))
    }

    /// The entries that a filter fits, however many a server gives at once. There is nothing where nothing is.
    pub(super) async fn search(
        &mut self,
        base: &str,
        scope: Scope,
        filter: &Filter,
        attribute: Option<&str>,
    ) -> Result<Vec<SearchEntry>, Fault> {
        let timeout = self.timeout;
        let request = request(base, scope, filter, attribute);
        let answering = async {
            self.send(&request, &[]).await?;
            let (mut entries, mut room, mut is_paged) = (Vec::new(), ANSWER_MAX, false);
            loop {
                let Answer { tag, content: answer, controls } = self.receive().await?;
                take(&mut room, answer.len() + controls.len() + size_of::<SearchEntry>())?;
                match tag {
                    0x64 => entries.push(entry(&answer, &mut room)?),
                    // Where else one could look.
                    0x73 => {}
                    0x65 => match outcome(&answer)? {
                        (result::SUCCESS, _) => match cookie(&controls)? {
                            Some(cookie) => self.send(&request, &paged(cookie)).await?,
                            None => return Ok(entries),
                        },
                        // It has more than it names at once. Pages are asked for only then: a server that allows none
                        // (OpenLDAP's `size.prtotal=disabled`), or smaller ones, refuses a search that asks for them.
                        (result::SIZE_LIMIT_EXCEEDED, _) if !is_paged => {
                            (entries, room, is_paged) = (Vec::new(), ANSWER_MAX, true);
                            self.send(&request, &paged(b"")).await?;
                        }
                        (result::NO_SUCH_OBJECT, _) => return Ok(Vec::new()),
                        (code, text) => return Err(Fault::Result { code, text }),
                    },
                    _ => return Err(Malformed.into()),
                }
            }
        };
        tokio::time::timeout(timeout, answering).await.unwrap_or(Err(Fault::Late))
    }

    async fn send(&mut self, request: &[u8], controls: &[u8]) -> Result<(), Fault> {
        self.number += 1;
        let number = number(INTEGER, self.number);
        let body = Zeroizing::new([number.as_slice(), request, controls].concat());
        let message = Zeroizing::new(element(SEQUENCE, &body));
        self.stream.write_all(&message).await?;
        Ok(self.stream.flush().await?)
    }

    /// The next message, which belongs to the last request.
    async fn receive(&mut self) -> Result<Answer, Fault> {
        let message = message(&mut *self.stream, &mut self.read).await?;
        let mut reader = Reader(&message);
        let mut inside = reader.open(SEQUENCE)?;
        let number = inside.number(INTEGER)?;
        let (tag, content) = inside.next()?;
        let controls = if inside.is_empty() { &[] } else { inside.expect(CONTROLS)? };
        let (content, controls) = (content.to_vec(), controls.to_vec());
        match number {
            // What nobody asked for is a goodbye.
            0 => Err(Error::other("the directory ends the connection").into()),
            number if number == self.number => Ok(Answer { tag, content, controls }),
            _ => Err(Malformed.into()),
        }
    }
}

/// A message of the directory.
struct Answer {
    tag: u8,
    content: Vec<u8>,
    controls: Vec<u8>,
}

/// A connection before TLS.
struct PlainLink {
    tcp: TcpStream,
    read: Vec<u8>,
}

impl PlainLink {
    async fn start_tls(&mut self) -> Result<(), Fault> {
        let request = element(0x77, &element(0x80, START_TLS));
        let message = holding(SEQUENCE, &[number(INTEGER, 1), request]);
        self.tcp.write_all(&message).await?;
        let answer = self::message(&mut self.tcp, &mut self.read).await?;
        let mut reader = Reader(&answer);
        let mut inside = reader.open(SEQUENCE)?;
        inside.number(INTEGER)?;
        match outcome(inside.expect(0x78)?)? {
            // What comes before TLS may be anybody's.
            (result::SUCCESS, _) if self.read.is_empty() => Ok(()),
            (result::SUCCESS, _) => Err(Malformed.into()),
            (code, text) => Err(Fault::Result { code, text }),
        }
    }
}

async fn encrypted(
    tcp: TcpStream,
    tls: &Arc<ClientConfig>,
    server: &Server,
    timeout: Duration,
) -> Result<Link, Fault> {
    let name = ServerName::try_from(server.host.clone());
    let name = name.map_err(|_| Error::other("its name is none that a certificate could have"))?;
    let stream = TlsConnector::from(Arc::clone(tls)).connect(name, tcp).await?;
    Ok(Link::over(Box::new(stream), timeout))
}

/// The next whole message; `read` keeps what is behind it.
async fn message(
    stream: &mut (impl AsyncRead + Unpin + ?Sized),
    read: &mut Vec<u8>,
) -> Result<Vec<u8>, Fault> {
    loop {
        if let Some((_, length, head)) = header(read)? {
            if length > ANSWER_MAX {
                return Err(Fault::TooLong);
            }
            if read.len() >= head + length {
                let rest = read.split_off(head + length);
                return Ok(std::mem::replace(read, rest));
            }
        }
        let mut block = [0; 4096];
        match stream.read(&mut block).await? {
            0 => return Err(Error::other("the directory closed the connection").into()),
            count => read.extend(&block[..count]),
        }
    }
}

/// Code and what is said about it.
fn outcome(answer: &[u8]) -> Result<(u32, String), Malformed> {
    let mut reader = Reader(answer);
    let code = reader.number(ENUMERATED)?;
    reader.expect(OCTETS)?;
    let text = String::from_utf8_lossy(reader.expect(OCTETS)?);
    let text = told(&text);
    Ok((code, if text.is_empty() { String::new() } else { format!(": {text}") }))
}

fn request(base: &str, scope: Scope, filter: &Filter, attribute: Option<&str>) -> Vec<u8> {
    let scope = match scope {
        Scope::Base => 0,
        Scope::OneLevel => 1,
        Scope::Subtree => 2,
    };
    // Values are octets, not text that is parsed: there is nothing to be escaped.
    let filter = match filter {
        Filter::Any => element(0x87, b"objectClass"),
        Filter::Equal { attribute, value } => {
            let (attribute, value) = (attribute.as_bytes(), value.as_bytes());
            holding(0xa3, &[element(OCTETS, attribute), element(OCTETS, value)])
        }
    };
    let wanted = element(OCTETS, attribute.unwrap_or(NO_ATTRIBUTES).as_bytes());
    let parts = [
        element(OCTETS, base.as_bytes()),
        number(ENUMERATED, scope),
        // Aliases are followed, as by RabbitMQ.
        number(ENUMERATED, 3),
        // No limits of size and time: those are ours.
        number(INTEGER, 0),
        number(INTEGER, 0),
        element(BOOLEAN, &[0]),
        filter,
        element(SEQUENCE, &wanted),
    ];
    holding(0x63, &parts)
}

/// The control that asks for results in pages (RFC 2696), the one after `cookie`. A server that does not know it passes it over.
fn paged(cookie: &[u8]) -> Vec<u8> {
    let value = holding(SEQUENCE, &[number(INTEGER, PAGE), element(OCTETS, cookie)]);
    let control = holding(SEQUENCE, &[element(OCTETS, PAGED), element(OCTETS, &value)]);
    element(CONTROLS, &control)
}

/// What the next page is asked for by. None: this was the last one, or all there is.
fn cookie(controls: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let mut controls = Reader(controls);
    while !controls.is_empty() {
        let mut control = controls.open(SEQUENCE)?;
        if control.expect(OCTETS)? != PAGED {
            continue;
        }
        let value = match control.next()? {
            (BOOLEAN, _) => control.expect(OCTETS)?,
            (OCTETS, value) => value,
            _ => return Err(Malformed),
        };
        let mut value = Reader(value).open(SEQUENCE)?;
        // How many entries there may be in all.
        value.expect(INTEGER)?;
        return Ok(Some(value.expect(OCTETS)?).filter(|cookie| !cookie.is_empty()));
    }
    Ok(None)
}

/// Takes something of an answer's room.
fn take(room: &mut usize, bytes: usize) -> Result<(), Fault> {
    *room = room.checked_sub(bytes).ok_or(Fault::TooLong)?;
    Ok(())
}

/// An entry, whose values take room besides their bytes.
fn entry(answer: &[u8], room: &mut usize) -> Result<SearchEntry, Fault> {
    let mut reader = Reader(answer);
    let dn = reader.text()?;
    let mut attributes = reader.open(SEQUENCE)?;
    let mut values = Vec::new();
    while !attributes.is_empty() {
        let mut attribute = attributes.open(SEQUENCE)?;
        attribute.expect(OCTETS)?;
        let mut set = attribute.open(0x31)?;
        while !set.is_empty() {
            // What is no text is nothing that could be compared.
            let value = set.expect(OCTETS)?;
            take(room, size_of::<String>())?;
            if let Ok(text) = std::str::from_utf8(value) {
                values.push(text.to_owned());
            }
        }
    }
    Ok(SearchEntry { dn, values })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_take_more_than_their_bytes() {
        let values = |count: usize| {
            let set = element(0x31, &element(OCTETS, b"").repeat(count));
            let attribute = holding(SEQUENCE, &[element(OCTETS, b"a"), set]);
            [element(OCTETS, b"cn=x"), element(SEQUENCE, &attribute)].concat()
        };
        let read = |count| entry(&values(count), &mut { ANSWER_MAX });
        assert_eq!(read(100_000).unwrap().values.len(), 100_000);
        assert_eq!(read(1_000_000).unwrap_err().to_string(), TOO_LONG);
    }

    const TOO_LONG: &str = "its answer to one request takes more than 4194304 bytes";

    /// What is wrong with a message that begins so.
    #[test]
    fn a_long_answer_is_not_called_malformed() {
        let refused = |bytes: &[u8]| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let mut bytes = bytes;
            runtime.block_on(message(&mut bytes, &mut Vec::new())).unwrap_err().to_string()
        };
        let sequence = |bytes: usize| element(SEQUENCE, &vec![0; bytes]);
        assert_eq!(refused(&sequence(ANSWER_MAX + 1)[..8]), TOO_LONG);
        assert_eq!(refused(&sequence(ANSWER_MAX)[..8]), "the directory closed the connection");
        assert_eq!(refused(&[SEQUENCE, 0x80]), "what it says is no LDAP");
    }

    /// A directory that says very much about a refusal fills no log.
    #[test]
    fn a_long_text_is_told_in_short() {
        let text = "é".repeat(1 << 20);
        let answer =
            [number(ENUMERATED, 53), element(OCTETS, b""), element(OCTETS, text.as_bytes())];
        let (code, said) = outcome(&answer.concat()).unwrap();
        assert_eq!(code, 53);
        assert!(said.starts_with(": éé") && said.ends_with("...") && said.len() < 1100, "{said}");
    }

    /// Names of entries, a result and the cookie of a page.
    type Step = (&'static [&'static str], u32, Option<&'static str>);

    /// What a search finds where each request is answered by one step, and which requests ask for a page.
    fn searched(steps: &'static [Step]) -> (Result<Vec<String>, String>, Vec<bool>) {
        let (ours, mut theirs) = tokio::io::duplex(4096);
        let mut link = Link::over(Box::new(ours), Duration::from_secs(60));
        let searching = async move {
            let any = Filter::Any;
            let found = link.search("dc=x", Scope::Subtree, &any, None).await;
            let names =
                |entries: Vec<SearchEntry>| entries.into_iter().map(|entry| entry.dn).collect();
            found.map(names).map_err(|fault| fault.to_string())
        };
        let answering = async {
            let (mut read, mut pages) = (Vec::new(), Vec::new());
            for (names, code, cookie) in steps {
                let Ok(request) = message(&mut theirs, &mut read).await else { break };
                let mut inside = Reader(&request).open(SEQUENCE).unwrap();
                let asked = inside.number(INTEGER).unwrap();
                inside.expect(0x63).unwrap();
                pages.push(!inside.is_empty());
                let send = |content: Vec<u8>, controls: Vec<u8>| {
                    holding(SEQUENCE, &[number(INTEGER, asked), content, controls])
                };
                let mut bytes = Vec::new();
                for name in *names {
                    let parts = [element(OCTETS, name.as_bytes()), element(SEQUENCE, b"")];
                    bytes.extend(send(holding(0x64, &parts), Vec::new()));
                }
                let result =
                    [number(ENUMERATED, *code), element(OCTETS, b""), element(OCTETS, b"")];
                let controls = cookie.map(|cookie| paged(cookie.as_bytes())).unwrap_or_default();
                bytes.extend(send(holding(0x65, &result), controls));
                // Who finds an answer too long does not read the rest.
                if theirs.write_all(&bytes).await.is_err() {
                    break;
                }
            }
            pages
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::join!(searching, answering) })
    }

    /// Pages are asked for where an answer is too long without, and nowhere else: servers refuse them.
    #[test]
    fn pages_are_for_long_answers() {
        let names = |names: &[&str]| Ok(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(searched(&[(&["a"], 0, None)]), (names(&["a"]), vec![false]));
        assert_eq!(searched(&[(&[], 32, None)]), (names(&[]), vec![false]));
        // What an answer named before it was too long is named again.
        let steps: &[Step] = &[(&["a"], 4, None), (&["a"], 0, Some("1")), (&["b"], 0, Some(""))];
        assert_eq!(searched(steps), (names(&["a", "b"]), vec![false, true, true]));
        let total: &[Step] = &[(&["a"], 4, None), (&["a"], 0, Some("1")), (&[], 4, None)];
        let more = "result 4 (size limit exceeded: who asks the queries must be allowed more entries, in OpenLDAP by size.prtotal=unlimited)";
        assert_eq!(searched(total), (Err(more.to_owned()), vec![false, true, true]));
        let first: &[Step] = &[(&["a"], 4, None), (&["a"], 4, None)];
        assert_eq!(searched(first), (Err(more.to_owned()), vec![false, true]));
        let none: &[Step] = &[(&["a"], 4, None), (&[], 11, None)];
        assert_eq!(
            searched(none),
            (Err("result 11 (administrative limit exceeded)".to_owned()), vec![false, true])
        );
        // The bound is of all pages together.
        let long: &[Step] =
            &[(&["a"; 40_000], 4, None), (&["a"; 40_000], 0, Some("1")), (&["a"; 60_000], 0, None)];
        assert_eq!(searched(long), (Err(TOO_LONG.to_owned()), vec![false, true, true]));
    }
}
