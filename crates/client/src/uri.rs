//! AMQP URIs: `amqp://user:password@host:port/vhost?heartbeat=10`, and `amqps://` for TLS, with the files
//! and choices as parameters: `cacertfile`, `certfile`, `keyfile`, `verify`, `server_name_indication`,
//! `auth_mechanism=external`.
//!
//! The form is RabbitMQ's URI specification with one habit of its clients added: a path of only
//! `/` means the vhost `/`, not the vhost with the empty name.

/// Where and as whom to connect.
#[derive(Clone, PartialEq, Eq)]
pub struct Uri {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port, 5672 (5671 with TLS) unless given.
    pub port: u16,
    /// User name, `guest` unless given.
    pub user: String,
    /// Password, `guest` unless given.
    pub password: String,
    /// Virtual host, `/` unless given.
    pub vhost: String,
    /// Heartbeat to ask for, in seconds; `None` takes what the server suggests, 0 switches it off.
    pub heartbeat_s: Option<u16>,
    /// How to speak TLS, if so.
    pub tls: Option<TlsUri>,
}

/// What the parameters of an `amqps://` URI say. Files are in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsUri {
    /// `cacertfile`: authorities to trust, in place of the system's.
    pub cacertfile: Option<String>,
    /// `certfile`: our own certificate.
    pub certfile: Option<String>,
    /// `keyfile`: its key.
    pub keyfile: Option<String>,
    /// False for `verify=verify_none`: the broker may be anybody.
    pub verifies: bool,
    /// `server_name_indication`: the name in the broker's certificate, if it is not the host's.
    pub server_name: Option<String>,
    /// `auth_mechanism=external`: log in by the certificate, without a password.
    pub is_external: bool,
}

impl Default for TlsUri {
    fn default() -> Self {
        Self {
            cacertfile: None,
            certfile: None,
            keyfile: None,
            verifies: true,
            server_name: None,
            is_external: false,
        }
    }
}

impl TlsUri {
    /// Takes a parameter; false if there is none of that name, or with that value.
    fn set(&mut self, name: &str, value: String) -> bool {
        match (name, value.as_str()) {
            ("cacertfile", _) => self.cacertfile = Some(value),
            ("certfile", _) => self.certfile = Some(value),
            ("keyfile", _) => self.keyfile = Some(value),
            ("server_name_indication", _) => self.server_name = Some(value),
            ("verify", "verify_peer") => self.verifies = true,
            ("verify", "verify_none") => self.verifies = false,
            ("auth_mechanism", "external") => self.is_external = true,
            ("auth_mechanism", "plain") => self.is_external = false,
            _ => return false,
        }
        true
    }
}

/// Without the password.
impl std::fmt::Debug for Uri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Uri")
            .field("host", &self.host)
            .field("port", &self.port)
            .field("user", &self.user)
            .field("vhost", &self.vhost)
            .field("heartbeat_s", &self.heartbeat_s)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl Default for Uri {
    fn default() -> Self {
        Self {
            host: "localhost".into(),
            port: 5672,
            user: "guest".into(),
            password: "guest".into(),
            vhost: "/".into(),
            heartbeat_s: None,
            tls: None,
        }
    }
}

/// Why a text is not a URI this client can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Another scheme than `amqp` and `amqps`.
    #[error("the URI must start with amqp:// or amqps://")]
    Scheme,
    /// The port is not a number from 1 to 65535.
    #[error("bad port '{0}' in the URI")]
    Port(String),
    /// A `%` that is not followed by two hexadecimal digits, or bytes that are no UTF-8.
    #[error("bad percent-encoding in '{0}'")]
    Encoding(String),
    /// A second `/` after the vhost: the vhost `/` is written `%2F`.
    #[error("the URI's path '{0}' has several segments; write a '/' in a vhost as %2F")]
    Path(String),
    /// A bracket without its partner around an IPv6 address.
    #[error("bad host '{0}' in the URI")]
    Host(String),
    /// A query parameter this client does not know, or a bad value.
    #[error("bad parameter '{0}' in the URI")]
    Parameter(String),
}

impl std::str::FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Self, UriError> {
        let mut uri = Self::default();
        let rest = match text.split_once("://") {
            Some(("amqp", rest)) => rest,
            Some(("amqps", rest)) => {
                (uri.port, uri.tls) = (5671, Some(TlsUri::default()));
                rest
            }
            _ => return Err(UriError::Scheme),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // A password with a '/' or '?' of its own ends too early. An error must not show what there is of it.
        let has_port =
            |it: &str| it.rsplit_once(':').is_none_or(|(_, end)| end.parse::<u16>().is_ok());
        if (path.contains('@') || query.contains('@'))
            && !authority.contains('@')
            && !has_port(authority)
        {
            return Err(UriError::Encoding("the user or the password".into()));
        }
        if path.contains('/') {
            return Err(UriError::Path(path.into()));
        }
        if !path.is_empty() {
            uri.vhost = decoded(path)?;
        }
        let address = match authority.rsplit_once('@') {
            None => authority,
            Some((login, address)) => {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                uri.user = decoded(user)?;
                // An error must not show it.
                uri.password =
                    decoded(password).map_err(|_| UriError::Encoding("the password".into()))?;
                address
            }
        };
        let (host, port) = if let Some(rest) = address.strip_prefix('[') {
            let (host, after) =
                rest.split_once(']').ok_or_else(|| UriError::Host(address.into()))?;
            match after.strip_prefix(':') {
                Some(port) => (host, port),
                None if after.is_empty() => (host, ""),
                None => return Err(UriError::Host(address.into())),
            }
        } else {
            address.split_once(':').unwrap_or((address, ""))
        };
        if !host.is_empty() {
            uri.host = decoded(host)?;
        }
        if !port.is_empty() {
            uri.port = match port.parse() {
                Ok(number) if number != 0 => number,
                _ => return Err(UriError::Port(port.into())),
            };
        }
        for parameter in query.split('&').filter(|text| !text.is_empty()) {
            match parameter.split_once('=') {
                Some(("heartbeat", value)) => {
                    let seconds = value.parse();
                    uri.heartbeat_s =
                        Some(seconds.map_err(|_| UriError::Parameter(parameter.into()))?);
                }
                Some((name, value)) => {
                    let value = decoded(value)?;
                    if !uri.tls.as_mut().is_some_and(|tls| tls.set(name, value)) {
                        return Err(UriError::Parameter(parameter.into()));
                    }
                }
                None => return Err(UriError::Parameter(parameter.into())),
            }
        }
        Ok(uri)
    }
}

/// Host, port and vhost; never the password.
impl std::fmt::Display for Uri {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}:{} vhost '{}'", self.user, self.host, self.port, self.vhost)
    }
}

fn decoded(text: &str) -> Result<String, UriError> {
    let bad = || UriError::Encoding(text.into());
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || {
                let digit = char::from(rest.next()?).to_digit(16)?;
                u8::try_from(digit).ok()
            };
            let (high, low) = (digit().ok_or_else(bad)?, digit().ok_or_else(bad)?);
            bytes.push(high << 4 | low);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn readable_uris() {
        //    text                               user     password  host         port  vhost
        check("amqp://",                         "guest", "guest", "localhost", 5672, "/");
        check("amqp://h",                        "guest", "guest", "h",         5672, "/");
        check("amqp://h/",                       "guest", "guest", "h",         5672, "/");
        check("amqp://h:1/v",                    "guest", "guest", "h",         1,    "v");
        check("amqp://u:p@h:65535/%2f",          "u",     "p",     "h",         65535, "/");
        check("amqp://u%61:p%40%3a@h/a%2Fb",     "ua",    "p@:",   "h",         5672, "a/b");
        check("amqp://u@h",                      "u",     "",      "h",         5672, "/");
        check("amqp://u:a@b@h",                  "u",     "a@b",   "h",         5672, "/");
        check("amqp://h:1/v@w",                  "guest", "guest", "h",         1,    "v@w");
        check("amqp://[::1]:5673/x",             "guest", "guest", "::1",       5673, "x");
        check("amqp://[::1]",                    "guest", "guest", "::1",       5672, "/");
    }

    #[track_caller]
    fn check(text: &str, user: &str, password: &str, host: &str, port: u16, vhost: &str) {
        let uri: Uri = text.parse().unwrap();
        assert_eq!(
            (&*uri.user, &*uri.password, &*uri.host, uri.port, &*uri.vhost),
            (user, password, host, port, vhost)
        );
    }

    #[test]
    fn refused_uris() {
        for (text, error) in [
            ("h:5672", UriError::Scheme),
            ("http://h", UriError::Scheme),
            ("amqp://h:x", UriError::Port("x".into())),
            ("amqp://h:0", UriError::Port("0".into())),
            ("amqp://h:65536", UriError::Port("65536".into())),
            ("amqp://h/%2", UriError::Encoding("%2".into())),
            ("amqp://h/%zz", UriError::Encoding("%zz".into())),
            ("amqp://h/%ff", UriError::Encoding("%ff".into())),
            ("amqp://h/a/b", UriError::Path("a/b".into())),
            ("amqp://[::1", UriError::Host("[::1".into())),
            ("amqp://[::1]x", UriError::Host("[::1]x".into())),
            ("amqp://h?heartbeat=x", UriError::Parameter("heartbeat=x".into())),
            ("amqp://h?verify=verify_none", UriError::Parameter("verify=verify_none".into())),
            ("amqps://h?verify=x", UriError::Parameter("verify=x".into())),
            ("amqp://u:sec/ret@h", UriError::Encoding("the user or the password".into())),
            ("amqp://u:sec?ret@h/v", UriError::Encoding("the user or the password".into())),
            ("amqp://u:sec%zzret@h", UriError::Encoding("the password".into())),
            ("amqp://h?color=red", UriError::Parameter("color=red".into())),
        ] {
            assert_eq!(text.parse::<Uri>(), Err(error), "{text}");
        }
        assert_eq!("amqp://h?heartbeat=7".parse::<Uri>().unwrap().heartbeat_s, Some(7));
    }

    #[test]
    fn tls_uris() {
        let uri: Uri = "amqps://h".parse().unwrap();
        assert_eq!((uri.port, uri.tls), (5671, Some(TlsUri::default())));
        let text = "amqps://h:1/?cacertfile=%2Fca.pem&certfile=c&keyfile=k&verify=verify_none\
                    &server_name_indication=n&auth_mechanism=external&heartbeat=3";
        let uri: Uri = text.parse().unwrap();
        let tls = TlsUri {
            cacertfile: Some("/ca.pem".into()),
            certfile: Some("c".into()),
            keyfile: Some("k".into()),
            verifies: false,
            server_name: Some("n".into()),
            is_external: true,
        };
        assert_eq!((uri.port, uri.heartbeat_s, uri.tls), (1, Some(3), Some(tls)));
        let shown = format!("{:?}", "amqp://u:s3cret@h".parse::<Uri>().unwrap());
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
