//! A directory (LDAP) of a few entries, which notes what it is asked.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use lber::common::TagClass;
use lber::structure::{PL, StructureTag};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Name, password, attributes.
pub(super) type Entry = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

/// Entries that an answer has at most. Who wants more has to ask for pages.
const AT_ONCE: usize = 2;
/// The name of the control for pages.
const PAGED: &str = "1.2.840.113556.1.4.319";

/// Runs until the test ends.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    entries: &'static [Entry],
    /// `bind NAME`, `search BASE SCOPE FILTER`, in their order.
    seen: Mutex<Vec<String>>,
    /// Ends each connection after its next answer.
    hangs_up: AtomicBool,
    tls: Option<Arc<ServerConfig>>,
}

impl Directory {
    pub(super) fn start(entries: &'static [Entry]) -> Self {
        Self::speaking(entries, None, false)
    }

    /// With TLS, from the beginning or when it is asked for.
    pub(super) fn speaking(
        entries: &'static [Entry],
        tls: Option<Arc<ServerConfig>>,
        at_once: bool,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (seen, hangs_up) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { entries, seen, hangs_up, tls });
        let ours = Arc::clone(&shared);
        std::thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&ours);
                std::thread::spawn(move || match &shared.tls {
                    Some(tls) if at_once => shared.serve(encrypted(tls, socket)),
                    _ => shared.begin(socket),
                });
            }
        });
        Self { address, shared }
    }

    /// What was asked so far that begins like this.
    pub(super) fn seen(&self, beginning: &str) -> Vec<String> {
        let seen = self.shared.seen.lock().unwrap();
        seen.iter().filter(|line| line.starts_with(beginning)).cloned().collect()
    }

    /// From now on each connection ends after its next answer.
    pub(super) fn hang_up(&self) {
        self.shared.hangs_up.store(true, Ordering::Relaxed);
    }
}

fn encrypted(tls: &Arc<ServerConfig>, socket: TcpStream) -> impl Read + Write + use<> {
    StreamOwned::new(ServerConnection::new(Arc::clone(tls)).unwrap(), socket)
}

impl Shared {
    /// Without TLS, until that is asked for.
    fn begin(&self, mut socket: TcpStream) {
        while let Some(request) = read(&mut socket) {
            if request.what.id == 23 {
                let tls = self.tls.as_ref().expect("TLS is asked for where there is none");
                let _ = socket.write_all(&message(&request.number, result(24, 0), None));
                return self.serve(encrypted(tls, socket));
            }
            if !self.answer(&mut socket, &request) {
                return;
            }
        }
    }

    fn serve(&self, mut stream: impl Read + Write) {
        while let Some(request) = read(&mut stream) {
            if !self.answer(&mut stream, &request) {
                return;
            }
        }
    }

    /// False when the connection ends.
    fn answer(&self, stream: &mut impl Write, request: &Request) -> bool {
        let Request { number, what, cookie } = request;
        let parts = inside(what);
        let (line, mut answers, mut next) = match what.id {
            0 => {
                let (line, code) = self.bind(parts);
                (line, vec![result(1, code)], None)
            }
            3 => {
                let (line, answers) = self.search(parts);
                (line, answers, cookie.as_deref().map(|_| String::new()))
            }
            _ => return false,
        };
        self.seen.lock().unwrap().push(line);
        let entries = answers.len() - 1;
        let from = cookie.as_deref().map_or(0, |cookie| cookie.parse().unwrap_or(0));
        if cookie.is_some() {
            let to = entries.min(from + AT_ONCE);
            next = next.map(|_| if to < entries { to.to_string() } else { String::new() });
            answers.drain(to..entries);
            answers.drain(..from);
        } else if entries > AT_ONCE {
            answers = vec![result(5, 4)];
        }
        let last = answers.len() - 1;
        let answers: Vec<u8> = (answers.into_iter().enumerate())
            .flat_map(|(at, answer)| {
                message(number, answer, next.as_deref().filter(|_| at == last))
            })
            .collect();
        let _ = stream.write_all(&answers);
        let _ = stream.flush();
        !self.hangs_up.load(Ordering::Relaxed)
    }

    fn bind(&self, parts: &[StructureTag]) -> (String, u8) {
        let (name, proof) = (text(&parts[1]), &parts[2]);
        if proof.id == 3 {
            // Whoever has no certificate does not come so far.
            let [mechanism, credentials] = inside(proof) else { return ("bind ?".to_owned(), 2) };
            let is_known = self.tls.is_some() && text(mechanism) == "EXTERNAL" && name.is_empty();
            let code = if is_known && bytes(credentials).is_empty() { 0 } else { 7 };
            return (format!("bind {}", text(mechanism)), code);
        }
        let password = text(proof);
        let known = self.entries.iter().any(|(own, secret, _)| {
            own.eq_ignore_ascii_case(&name) && *secret == password && !secret.is_empty()
        });
        let code = if known || name.is_empty() && password.is_empty() { 0 } else { 49 };
        (format!("bind {name}"), code)
    }

    fn search(&self, parts: &[StructureTag]) -> (String, Vec<StructureTag>) {
        let (base, scope) = (text(&parts[0]), ["base", "one", "sub"][bytes(&parts[1])[0] as usize]);
        let filter = &parts[6];
        let (wanted_name, wanted_value) = match filter.id {
            3 => (text(&inside(filter)[0]), Some(text(&inside(filter)[1]))),
            _ => (text(filter), None),
        };
        let wanted = text(&inside(&parts[7])[0]);
        let line = format!(
            "search {base} {scope} {wanted_name}={}",
            wanted_value.as_deref().unwrap_or("*")
        );
        let same = |one: &str, other: &str| one.eq_ignore_ascii_case(other);
        let is_below = |dn: &str| match scope {
            "base" => same(dn, &base),
            _ => dn.ends_with(&base),
        };
        if scope == "base" && !self.entries.iter().any(|(dn, ..)| same(dn, &base)) {
            return (line, vec![result(5, 32)]);
        }
        let found = self.entries.iter().filter(|(dn, _, attributes)| {
            is_below(dn)
                && wanted_value.as_ref().is_none_or(|value| {
                    attributes
                        .iter()
                        .any(|(name, own)| same(name, &wanted_name) && same(own, value))
                })
        });
        let mut answers: Vec<_> = found
            .map(|(dn, _, attributes)| {
                let values = attributes.iter().filter(|(name, _)| *name == wanted);
                let values = values.map(|(_, value)| octets(value)).collect();
                let attribute =
                    holding(TagClass::Universal, 16, vec![octets(&wanted), set_of(values)]);
                let attributes = holding(TagClass::Universal, 16, vec![attribute]);
                holding(TagClass::Application, 4, vec![octets(dn), attributes])
            })
            .collect();
        answers.push(result(5, 0));
        (line, answers)
    }
}

struct Request {
    number: Vec<u8>,
    what: StructureTag,
    /// Of the control for pages, if it came.
    cookie: Option<String>,
}

/// The next request.
fn read(stream: &mut impl Read) -> Option<Request> {
    let mut bytes_read = Vec::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        bytes_read.push(byte[0]);
        if let Ok((_, message)) = lber::parse::Parser::new().parse(&bytes_read) {
            let [number, what, controls @ ..] = inside(&message) else { panic!("no request") };
            let controls = controls.iter().flat_map(inside).map(inside);
            let mut cookie = controls.filter(|control| text(&control[0]) == PAGED).map(|control| {
                let (_, value) = lber::parse::Parser::new().parse(bytes(&control[1])).unwrap();
                text(&inside(&value)[1])
            });
            let (number, what) = (bytes(number).to_vec(), what.clone());
            return Some(Request { number, what, cookie: cookie.next_back() });
        }
    }
}

fn message(number: &[u8], answer: StructureTag, cookie: Option<&str>) -> Vec<u8> {
    let mut parts = vec![primitive(2, number), answer];
    if let Some(cookie) = cookie {
        let value = holding(TagClass::Universal, 16, vec![primitive(2, &[0]), octets(cookie)]);
        let value = primitive(4, &encoded(value));
        let control = holding(TagClass::Universal, 16, vec![octets(PAGED), value]);
        parts.push(holding(TagClass::Context, 0, vec![control]));
    }
    encoded(holding(TagClass::Universal, 16, parts))
}

fn encoded(tag: StructureTag) -> Vec<u8> {
    let mut bytes = bytes::BytesMut::new();
    lber::write::encode_into(&mut bytes, tag).unwrap();
    bytes.to_vec()
}

fn result(id: u64, code: u8) -> StructureTag {
    let parts = vec![primitive(10, &[code]), octets(""), octets("")];
    holding(TagClass::Application, id, parts)
}

fn holding(class: TagClass, id: u64, inner: Vec<StructureTag>) -> StructureTag {
    StructureTag { class, id, payload: PL::C(inner) }
}

fn set_of(values: Vec<StructureTag>) -> StructureTag {
    holding(TagClass::Universal, 17, values)
}

fn primitive(id: u64, bytes: &[u8]) -> StructureTag {
    StructureTag { class: TagClass::Universal, id, payload: PL::P(bytes.to_vec()) }
}

fn octets(text: &str) -> StructureTag {
    primitive(4, text.as_bytes())
}

fn inside(tag: &StructureTag) -> &[StructureTag] {
    match &tag.payload {
        PL::C(inner) => inner,
        PL::P(_) => &[],
    }
}

fn bytes(tag: &StructureTag) -> &[u8] {
    match &tag.payload {
        PL::P(bytes) => bytes,
        PL::C(_) => &[],
    }
}

fn text(tag: &StructureTag) -> String {
    String::from_utf8(bytes(tag).to_vec()).unwrap()
}
