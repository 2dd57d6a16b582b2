//! Where the node is: behind a Unix socket of this machine, or anywhere behind the management API.

use std::fmt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;

use crate::fault::Fault;

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The control socket of a node of this machine. Whoever can open it needs no password.
    Socket(PathBuf),
    /// The management API.
    Network(Address),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => write!(f, "the control socket {}", path.display()),
            Self::Network(Address { host, port, .. }) => {
                write!(f, "the management API at {host}:{port}")
            }
        }
    }
}

/// The management API of a node.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) is_tls: bool,
    /// `management.path_prefix`, without a slash at the end.
    pub(crate) prefix: String,
    /// Value of the header: name and password.
    pub(crate) authorization: Option<String>,
    /// Authorities to trust in the place of the system's.
    pub(crate) cacertfile: Option<PathBuf>,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({}:{}{}, ...)", self.host, self.port, self.prefix)
    }
}

impl Address {
    /// One that asks for no password.
    pub(crate) fn open(host: String, port: u16) -> Self {
        let (prefix, authorization) = (String::new(), None);
        Self { host, port, is_tls: false, prefix, authorization, cacertfile: None }
    }

    /// What the header `Host` says: an IPv6 address is in brackets there (RFC 9110 section 7.2).
    pub(crate) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// Reads `http[s]://[USER[:PASSWORD]@]HOST[:PORT][/PREFIX]`. Without a user it is guest.
    pub(crate) fn parse(text: &str, cacertfile: Option<PathBuf>) -> Result<Self, Fault> {
        // Whoever wrote it wrote a password into it: it is not repeated.
        let bad = |why: &str| {
            Fault::usage(format!(
                "the address of the node is not like http://USER:PASSWORD@HOST:15672: {why}"
            ))
        };
        let uri: Uri = text.parse().map_err(|_| bad("it cannot be read"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(bad("it begins with neither http:// nor https://")),
        };
        let host =
            uri.host().filter(|host| !host.is_empty()).ok_or_else(|| bad("it has no host"))?;
        let (user, password) = match uri.authority().and_then(|it| it.as_str().rsplit_once('@')) {
            Some((user, _)) => user.split_once(':').unwrap_or((user, "")),
            None => ("guest", "guest"),
        };
        let decode = |text: &str| {
            let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
            decoded.map(|it| it.into_owned()).map_err(|_| bad("name or password are not UTF-8"))
        };
        let login = format!("{}:{}", decode(user)?, decode(password)?);
        Ok(Self {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: uri.port_u16().unwrap_or(if is_tls { 15671 } else { 15672 }),
            is_tls,
            prefix: uri.path().trim_end_matches('/').to_owned(),
            authorization: Some(format!("Basic {}", STANDARD.encode(login))),
            cacertfile,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn hosts() {
        let check = |host: &str, want: &str| {
            assert_eq!(Address::open(host.to_owned(), 15672).authority(), want);
        };
        check("host",      "host:15672");
        check("127.0.0.1", "127.0.0.1:15672");
        check("::1",       "[::1]:15672");
    }

    #[test]
    #[rustfmt::skip] // a table
    fn addresses() {
        check("http://a:b@host:1234",        Some(("host", 1234, false, "", "a:b")));
        check("http://host",                 Some(("host", 15672, false, "", "guest:guest")));
        check("https://a:p%40s%3As@host/x/", Some(("host", 15671, true, "/x", "a:p@s:s")));
        check("http://a:b@[::1]:1",          Some(("::1", 1, false, "", "a:b")));
        check("amqp://host",                 None);
        check("host:15672",                  None);
        check("",                            None);
    }

    #[track_caller]
    fn check(text: &str, want: Option<(&str, u16, bool, &str, &str)>) {
        let got = Address::parse(text, None);
        let Some((host, port, is_tls, prefix, login)) = want else {
            let told = got.unwrap_err().text;
            return assert!(text.is_empty() || !told.contains(text), "{told}");
        };
        let got = got.unwrap();
        assert_eq!((&*got.host, got.port, got.is_tls, &*got.prefix), (host, port, is_tls, prefix));
        assert_eq!(got.authorization, Some(format!("Basic {}", STANDARD.encode(login))));
        assert!(!format!("{got:?}").contains(login), "no password in a debug text");
    }
}
