//! AMQP URIs: `amqp://user:password@host:port/vhost?heartbeat=10`.
//!
//! The form is RabbitMQ's URI specification with one habit of its clients added: a path of only
//! `/` means the vhost `/`, not the vhost with the empty name.

/// Where and as whom to connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port, 5672 unless given.
    pub port: u16,
    /// User name, `guest` unless given.
    pub user: String,
    /// Password, `guest` unless given.
    pub password: String,
    /// Virtual host, `/` unless given.
    pub vhost: String,
    /// Heartbeat to ask for, in seconds; `None` takes what the server suggests, 0 switches it off.
    pub heartbeat_s: Option<u16>,
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
        }
    }
}

/// Why a text is not a URI this client can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UriError {
    /// Another scheme than `amqp`.
    #[error("the URI must start with amqp://")]
    Scheme,
    /// TLS is asked for.
    #[error("amqps:// is not supported by this client")]
    Tls,
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
            Some(("amqps", _)) => return Err(UriError::Tls),
            _ => return Err(UriError::Scheme),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
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
                uri.password = decoded(password)?;
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
                _ => return Err(UriError::Parameter(parameter.into())),
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
            ("amqps://h", UriError::Tls),
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
            ("amqp://h?color=red", UriError::Parameter("color=red".into())),
        ] {
            assert_eq!(text.parse::<Uri>(), Err(error), "{text}");
        }
        assert_eq!("amqp://h?heartbeat=7".parse::<Uri>().unwrap().heartbeat_s, Some(7));
    }
}
