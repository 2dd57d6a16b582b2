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
        while let Some((number, request)) = read(&mut socket) {
            if request.id == 23 {
                let tls = self.tls.as_ref().expect("TLS is asked for where there is none");
                let _ = socket.write_all(&message(&number, result(24, 0)));
                return self.serve(encrypted(tls, socket));
            }
            if !self.answer(&mut socket, &number, &request) {
                return;
            }
        }
    }

    fn serve(&self, mut stream: impl Read + Write) {
        while let Some((number, request)) = read(&mut stream) {
            if !self.answer(&mut stream, &number, &request) {
                return;
            }
        }
    }

    /// False when the connection ends.
    fn answer(&self, stream: &mut impl Write, number: &[u8], request: &StructureTag) -> bool {
        let parts = inside(request);
        let (line, answers) = match request.id {
            0 => {
                let (name, password) = (text(&parts[1]), text(&parts[2]));
                let known = self.entries.iter().any(|(own, secret, _)| {
                    own.eq_ignore_ascii_case(&name) && *secret == password && !secret.is_empty()
                });
                let code = if known || name.is_empty() && password.is_empty() { 0 } else { 49 };
                (format!("bind {name}"), vec![result(1, code)])
            }
            3 => self.search(parts),
            _ => return false,
        };
        self.seen.lock().unwrap().push(line);
        let answers: Vec<u8> =
            answers.into_iter().flat_map(|answer| message(number, answer)).collect();
        let _ = stream.write_all(&answers);
        let _ = stream.flush();
        !self.hangs_up.load(Ordering::Relaxed)
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

/// Number and content of the next request.
fn read(stream: &mut impl Read) -> Option<(Vec<u8>, StructureTag)> {
    let mut bytes_read = Vec::new();
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        bytes_read.push(byte[0]);
        if let Ok((_, message)) = lber::parse::Parser::new().parse(&bytes_read) {
            let [number, request] = inside(&message) else { panic!("a request has two parts") };
            return Some((bytes(number).to_vec(), request.clone()));
        }
    }
}

fn message(number: &[u8], answer: StructureTag) -> Vec<u8> {
    let number = primitive(2, number);
    let mut bytes = bytes::BytesMut::new();
    let whole = holding(TagClass::Universal, 16, vec![number, answer]);
    lber::write::encode_into(&mut bytes, whole).unwrap();
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
