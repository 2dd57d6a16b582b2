//! The PROXY protocol, versions 1 and 2: who the client behind a proxy is.
//!
//! ```text
//!   version 1   PROXY TCP4 192.0.2.1 192.0.2.2 56324 5671\r\n            at most 107 bytes
//!   version 2   \r\n\r\n\0\r\nQUIT\n | version, command | family | length (2) | addresses | more
//! ```
//!
//! The header is looked at before it is taken from the socket, so that not a byte of what follows is lost.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Longest header of version 1, in bytes.
const V1_MAX: usize = 107;
/// Longest header of version 2 that is taken, in bytes: addresses, and what a proxy has to say of TLS.
const V2_MAX: usize = 4096;
const V2_SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of a header of version 2 before its addresses.
pub(crate) const V2_HEAD: usize = 16;

/// Both ends as the proxy knows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The client.
    pub source: SocketAddr,
    /// Where it connected to.
    pub destination: SocketAddr,
}

impl Ends {
    /// Both by the names that RabbitMQ has for them, see [`plain`].
    pub fn new(source: SocketAddr, destination: SocketAddr) -> Self {
        Self { source: plain(source), destination: plain(destination) }
    }
}

/// An address of IPv4 as such, also if it came by a socket of IPv6: `127.0.0.1:5`, not `[::ffff:127.0.0.1]:5`.
pub fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A header, and how long it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// In bytes.
    pub len: usize,
    /// `None` where the proxy speaks for itself, or for a client of an unknown kind.
    pub ends: Option<Ends>,
}

/// Why a connection is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Nothing of the kind.
    #[error("it begins with no PROXY header; does the client connect without the proxy?")]
    NotProxy,
    /// More than a header can have.
    #[error("its PROXY header is too long")]
    TooLong,
    /// A header with something wrong in it.
    #[error("its PROXY header is malformed: {0}")]
    Bad(&'static str),
}

/// Reads the header at the front of `bytes`; `None` when it is not whole yet.
pub fn parse(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    let shared = bytes.len().min(V2_SIGNATURE.len());
    if bytes[..shared] == V2_SIGNATURE[..shared] {
        return if bytes.len() < V2_HEAD { Ok(None) } else { version_2(bytes) };
    }
    let shared = bytes.len().min(6);
    if bytes[..shared] != b"PROXY "[..shared] {
        return Err(Malformed::NotProxy);
    }
    let line = &bytes[..bytes.len().min(V1_MAX)];
    let Some(end) = line.windows(2).position(|it| it == b"\r\n") else {
        return if bytes.len() >= V1_MAX { Err(Malformed::TooLong) } else { Ok(None) };
    };
    let text = std::str::from_utf8(&line[..end]).map_err(|_| Malformed::Bad("not ASCII"))?;
    Ok(Some(Header { len: end + 2, ends: version_1(text)? }))
}

fn version_1(line: &str) -> Result<Option<Ends>, Malformed> {
    let mut words = line.split(' ').skip(1);
    let family = words.next().unwrap_or_default();
    if family == "UNKNOWN" {
        return Ok(None);
    }
    let is_v4 = match family {
        "TCP4" => true,
        "TCP6" => false,
        _ => return Err(Malformed::Bad("expected TCP4, TCP6 or UNKNOWN")),
    };
    let mut address = || -> Option<IpAddr> {
        let address: IpAddr = words.next()?.parse().ok()?;
        (address.is_ipv4() == is_v4).then_some(address)
    };
    let addresses = address().zip(address());
    let (source, destination) = addresses.ok_or(Malformed::Bad("expected two addresses"))?;
    let mut port = || -> Option<u16> {
        let word = words.next()?;
        // `parse` would take a plus.
        word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?
    };
    let ports = port().zip(port()).ok_or(Malformed::Bad("expected two ports"))?;
    if words.next().is_some() {
        return Err(Malformed::Bad("there is more in the line"));
    }
    let ends = Ends::new(SocketAddr::new(source, ports.0), SocketAddr::new(destination, ports.1));
    Ok(Some(ends))
}

/// How long a header of version 2 is, of which the first [`V2_HEAD`] bytes are there.
pub(crate) fn len_of(head: &[u8]) -> Result<usize, Malformed> {
    let len = V2_HEAD + usize::from(u16::from_be_bytes([head[14], head[15]]));
    if len > V2_MAX { Err(Malformed::TooLong) } else { Ok(len) }
}

fn version_2(bytes: &[u8]) -> Result<Option<Header>, Malformed> {
    let (version, command, family) = (bytes[12] >> 4, bytes[12] & 15, bytes[13]);
    if version != 2 {
        return Err(Malformed::Bad("its version is not 2"));
    }
    let len = len_of(bytes)?;
    let Some(rest) = bytes.get(V2_HEAD..len) else { return Ok(None) };
    let ends = match (command, family) {
        // LOCAL: the proxy itself, to see whether we live.
        (0, _) => None,
        (1, 0x11) => {
            let [a, b, c, d, e, f, g, h, p, q, r, s, ..] = *rest else {
                return Err(Malformed::Bad("its addresses are cut off"));
            };
            Some(Ends::new(
                (Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([p, q])).into(),
                (Ipv4Addr::new(e, f, g, h), u16::from_be_bytes([r, s])).into(),
            ))
        }
        (1, 0x21) => {
            let address = |at: usize| -> Option<Ipv6Addr> {
                let bytes: [u8; 16] = rest.get(at..at + 16)?.try_into().ok()?;
                Some(bytes.into())
            };
            let ports = rest.get(32..36).ok_or(Malformed::Bad("its addresses are cut off"))?;
            let addresses = address(0).zip(address(16));
            let (source, destination) =
                addresses.ok_or(Malformed::Bad("its addresses are cut off"))?;
            Some(Ends::new(
                (source, u16::from_be_bytes([ports[0], ports[1]])).into(),
                (destination, u16::from_be_bytes([ports[2], ports[3]])).into(),
            ))
        }
        // Datagrams, Unix sockets, what nobody knows: the socket's own addresses count.
        (1, _) => None,
        _ => return Err(Malformed::Bad("its command is neither LOCAL nor PROXY")),
    };
    Ok(Some(Header { len, ends }))
}

/// A header of version 2 with both ends.
pub fn header(ends: &Ends) -> Vec<u8> {
    let mut header = V2_SIGNATURE.to_vec();
    let (family, addresses) = match (ends.source.ip(), ends.destination.ip()) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            (0x11, [source.octets(), destination.octets()].concat())
        }
        (source, destination) => {
            let octets = |ip| match ip {
                IpAddr::V4(ip) => Ipv4Addr::to_ipv6_mapped(&ip).octets(),
                IpAddr::V6(ip) => ip.octets(),
            };
            (0x21, [octets(source), octets(destination)].concat())
        }
    };
    header.extend([0x21, family]);
    header.extend((addresses.len() as u16 + 4).to_be_bytes());
    header.extend(addresses);
    header.extend(ends.source.port().to_be_bytes());
    header.extend(ends.destination.port().to_be_bytes());
    header
}

/// Takes the header from the front of a socket. Takes as long as the client does: the caller limits it.
pub async fn take_header(socket: &TcpStream) -> io::Result<Option<Ends>> {
    let mut seen = vec![0; V2_MAX];
    let mut before = 0;
    let header = socket
        .async_io(Interest::READABLE, || {
            let (read, _) = rustix::net::recv(socket, &mut seen[..], RecvFlags::PEEK)?;
            // It was said that there is something new: the end.
            if read == before {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            before = read;
            match parse(&seen[..read]) {
                Ok(Some(header)) => Ok(header),
                // As if there were nothing: the next event brings more.
                Ok(None) => Err(io::ErrorKind::WouldBlock.into()),
                Err(error) => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        })
        .await?;
    let mut left = header.len;
    while left > 0 {
        // They are there: they were seen.
        let read = socket.try_read(&mut seen[..left])?;
        if read == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        left -= read;
    }
    Ok(header.ends)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn version_1_headers() {
        good("PROXY TCP4 192.0.2.1 192.0.2.2 56324 5672\r\nAMQP", 43, "192.0.2.1:56324 192.0.2.2:5672");
        good("PROXY TCP6 ::1 2001:db8::2 1 2\r\n",               32, "[::1]:1 [2001:db8::2]:2");
        good("PROXY UNKNOWN\r\n",                                15, "none");
        good("PROXY UNKNOWN ff:: ff:: 1 2\r\nAMQP",              29, "none");
        bad("AMQP\0\0\x09\x01",                                  Malformed::NotProxy);
        bad("PROXX",                                             Malformed::NotProxy);
        bad("PROXY UDP4 1.1.1.1 1.1.1.1 1 1\r\n",                Malformed::Bad("expected TCP4, TCP6 or UNKNOWN"));
        bad("PROXY TCP4 ::1 ::1 1 1\r\n",                        Malformed::Bad("expected two addresses"));
        bad("PROXY TCP4 1.1.1.1\r\n",                            Malformed::Bad("expected two addresses"));
        bad("PROXY TCP4 1.1.1.1 1.1.1.1 +1 1\r\n",               Malformed::Bad("expected two ports"));
        bad("PROXY TCP4 1.1.1.1 1.1.1.1 1 65536\r\n",            Malformed::Bad("expected two ports"));
        bad("PROXY TCP4 1.1.1.1 1.1.1.1 1 1 x\r\n",              Malformed::Bad("there is more in the line"));
        bad(&format!("PROXY TCP4 {}", "1".repeat(200)),          Malformed::TooLong);
        for part in 0..40 {
            assert_eq!(parse(&b"PROXY TCP4 192.0.2.1 192.0.2.2 56324 5672\r\n"[..part]), Ok(None));
        }
    }

    fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let mut bytes = V2_SIGNATURE.to_vec();
        bytes.extend([0x20 | command, family]);
        bytes.extend((rest.len() as u16).to_be_bytes());
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn version_2_headers() {
        let v4 = [192, 0, 2, 1, 192, 0, 2, 2, 0xdc, 4, 0x16, 0x28, 0xff, 0, 0];
        let want = "192.0.2.1:56324 192.0.2.2:5672";
        assert_eq!(shown(parse(&v2(1, 0x11, &v4))), format!("31 {want}"));
        let mut v6 = [0; 36];
        (v6[15], v6[31], v6[33], v6[35]) = (1, 2, 3, 4);
        assert_eq!(shown(parse(&v2(1, 0x21, &v6))), "52 [::1]:3 [::2]:4");
        assert_eq!(shown(parse(&v2(0, 0, &[]))), "16 none");
        assert_eq!(shown(parse(&v2(1, 0x31, &[0; 216]))), "232 none");
        let cut = Err(Malformed::Bad("its addresses are cut off"));
        assert_eq!(parse(&v2(1, 0x11, &v4[..11])), cut);
        assert_eq!(parse(&v2(1, 0x21, &v6[..35])), cut);
        assert_eq!(parse(&v2(1, 0x11, &[0; 5000])), Err(Malformed::TooLong));
        assert!(parse(&v2(2, 0x11, &v4)).is_err());
        let whole = v2(1, 0x11, &v4);
        for part in 0..whole.len() {
            assert_eq!(parse(&whole[..part]), Ok(None), "{part}");
        }
    }

    /// What is written is read again, and nothing of what follows.
    #[test]
    fn headers_that_are_written() {
        for (source, destination) in [
            ("192.0.2.1:56324", "192.0.2.2:5672"),
            ("[2001:db8::1]:1", "[::1]:65535"),
            ("192.0.2.1:7", "[2001:db8::2]:8"),
        ] {
            let ends = Ends::new(source.parse().unwrap(), destination.parse().unwrap());
            let mut bytes = header(&ends);
            let len = bytes.len();
            bytes.extend(b"AMQP\0\0\x09\x01");
            assert_eq!(parse(&bytes), Ok(Some(Header { len, ends: Some(ends) })));
        }
    }

    fn shown(parsed: Result<Option<Header>, Malformed>) -> String {
        let header = parsed.unwrap().unwrap();
        match header.ends {
            None => format!("{} none", header.len),
            Some(ends) => format!("{} {} {}", header.len, ends.source, ends.destination),
        }
    }

    #[track_caller]
    fn good(text: &str, len: usize, want: &str) {
        assert_eq!(shown(parse(text.as_bytes())), format!("{len} {want}"));
    }

    #[track_caller]
    fn bad(text: &str, want: Malformed) {
        assert_eq!(parse(text.as_bytes()), Err(want));
    }
}
