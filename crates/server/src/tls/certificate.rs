//! What a client's certificate says: its names as RabbitMQ writes them, and who its user is.
//!
//! A name is a login, so it is written to the letter as RabbitMQ does: RFC 4514, last part first, with
//! RabbitMQ's short names of the types and its escapes.

use leveret_config::tls::{AlternativeNameKind, CertificateLogin};
use leveret_session::CertificateFacts;
use rustls::CertificateError;
use rustls::pki_types::UnixTime;
use x509_parser::asn1_rs::{Any, FromDer as _, Tag};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::time::ASN1Time;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

/// Which part of a certificate is the user's name.
#[derive(Clone, Copy, Debug)]
pub struct LoginFrom {
    /// `ssl_cert_login_from`.
    pub from: CertificateLogin,
    /// `ssl_cert_login_san_type`.
    pub kind: AlternativeNameKind,
    /// `ssl_cert_login_san_index`.
    pub index: usize,
}

/// Short names of types, by object identifier.
#[rustfmt::skip] // a table
const TYPES: [(&str, &str); 16] = [
    ("2.5.4.4",  "SN"),         ("2.5.4.42", "GIVENNAME"),
    ("2.5.4.43", "INITIALS"),   ("2.5.4.44", "GENERATIONQUALIFIER"),
    ("2.5.4.3",  "CN"),         ("2.5.4.7",  "L"),
    ("2.5.4.8",  "ST"),         ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),         ("2.5.4.12", "TITLE"),
    ("2.5.4.6",  "C"),          ("2.5.4.5",  "SERIALNUMBER"),
    ("2.5.4.65", "PSEUDONYM"),  ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "EMAILADDRESS"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

const COMMON_NAME: &str = "2.5.4.3";

/// Everything that listings show of a certificate, and whose it is. `None` if it cannot be read.
pub fn facts(der: &[u8], login: LoginFrom) -> Option<CertificateFacts> {
    let certificate = parse(der)?;
    let validity = certificate.validity();
    Some(CertificateFacts {
        subject: name(certificate.subject()),
        issuer: name(certificate.issuer()),
        serial_number: serial_number(certificate.raw_serial()),
        validity: format!("{} - {}", time(validity.not_before), time(validity.not_after)),
        login: user(&certificate, login),
    })
}

fn parse(der: &[u8]) -> Option<X509Certificate<'_>> {
    x509_parser::parse_x509_certificate(der).ok().map(|(_, certificate)| certificate)
}

/// From when until when a certificate is valid, in seconds since the Unix epoch.
pub fn validity_s(der: &[u8]) -> Option<(i64, i64)> {
    let certificate = parse(der)?;
    let validity = certificate.validity();
    Some((validity.not_before.timestamp(), validity.not_after.timestamp()))
}

/// Why nobody would take a certificate at this time, in seconds since the Unix epoch.
pub(super) fn out_of_date(der: &[u8], now_s: i64) -> Option<String> {
    let Some(certificate) = parse(der) else {
        return Some("the dates of a certificate cannot be read".to_owned());
    };
    let validity = certificate.validity();
    let (since, until) = (validity.not_before, validity.not_after);
    let whose = name(certificate.subject());
    if until.timestamp() < now_s {
        return Some(format!(
            "the certificate '{whose}' has expired: it was valid until {}",
            time(until)
        ));
    }
    let is_early = since.timestamp() > now_s;
    is_early.then(|| {
        format!("the certificate '{whose}' is not valid yet: it will be from {} on", time(since))
    })
}

/// Why a certificate is not taken, for people.
pub(crate) fn in_words(why: &CertificateError) -> String {
    use CertificateError as E;
    let since = |at: UnixTime| {
        let at = i64::try_from(at.as_secs()).ok().and_then(|at| ASN1Time::from_timestamp(at).ok());
        at.map_or_else(String::new, time)
    };
    match why {
        E::Expired => "it has expired".to_owned(),
        E::ExpiredContext { not_after, .. } => {
            format!("it has expired: it was valid until {}", since(*not_after))
        }
        E::NotValidYet => "it is not valid yet".to_owned(),
        E::NotValidYetContext { not_before, .. } => {
            format!("it is not valid yet: it will be from {} on", since(*not_before))
        }
        E::UnknownIssuer | E::BadSignature => "no authority of cacertfile has signed it".to_owned(),
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "its extended key usage has not both serverAuth and clientAuth".to_owned()
        }
        E::Other(why) => why.0.to_string(),
        why => why.to_string(),
    }
}

/// Whether a certificate names itself as its issuer.
pub(super) fn is_self_issued(der: &[u8]) -> bool {
    parse(der).is_some_and(|it| it.subject().as_raw() == it.issuer().as_raw())
}

/// Whom a certificate is about, encoded; none if it cannot be read.
pub(super) fn subject(der: &[u8]) -> Option<Vec<u8>> {
    parse(der).map(|it| it.subject().as_raw().to_vec())
}

/// The user a certificate stands for.
fn user(certificate: &X509Certificate<'_>, login: LoginFrom) -> Option<String> {
    let found = match login.from {
        CertificateLogin::DistinguishedName => name(certificate.subject()),
        CertificateLogin::CommonName => {
            let names = certificate.subject().iter_attributes();
            let common = names.filter(|it| it.attr_type().to_id_string() == COMMON_NAME);
            let all: Vec<String> = common.map(|it| text_of(it.attr_value())).collect();
            all.join(",")
        }
        CertificateLogin::AlternativeName | CertificateLogin::AltName => {
            alternative_names(certificate, login.kind).into_iter().nth(login.index)?
        }
    };
    // A user's name ends where its bytes end, not at a NUL.
    (!found.is_empty() && !found.contains('\0')).then_some(found)
}

fn alternative_names(certificate: &X509Certificate<'_>, kind: AlternativeNameKind) -> Vec<String> {
    let names = certificate.extensions().iter().filter_map(|it| match it.parsed_extension() {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    names
        .flatten()
        .filter_map(|name| match (name, kind) {
            (GeneralName::DNSName(text), AlternativeNameKind::Dns)
            | (GeneralName::RFC822Name(text), AlternativeNameKind::Email)
            | (GeneralName::URI(text), AlternativeNameKind::Uri) => Some((*text).to_owned()),
            (GeneralName::IPAddress(bytes), AlternativeNameKind::Ip) => Some(address(bytes)),
            (GeneralName::OtherName(_, value), AlternativeNameKind::OtherName) => {
                Some(other_name(value))
            }
            _ => None,
        })
        .collect()
}

/// RabbitMQ takes the bytes of an address for a name; nobody could have a user of that name.
fn address(bytes: &[u8]) -> String {
    if let Ok(v4) = <[u8; 4]>::try_from(bytes) {
        std::net::Ipv4Addr::from(v4).to_string()
    } else if let Ok(v6) = <[u8; 16]>::try_from(bytes) {
        std::net::Ipv6Addr::from(v6).to_string()
    } else {
        String::new()
    }
}

/// The text inside of a name of another kind, however it is wrapped.
fn other_name(value: &[u8]) -> String {
    let Ok((_, outer)) = Any::from_der(value) else { return String::new() };
    match Any::from_der(outer.data) {
        Ok((_, inner)) if outer.class() != x509_parser::asn1_rs::Class::Universal => {
            text_of(&inner)
        }
        _ => text_of(&outer),
    }
}

fn name(name: &X509Name<'_>) -> String {
    let mut parts: Vec<String> = name
        .iter_rdn()
        .map(|part| part.iter().map(attribute).collect::<Vec<_>>().join("+"))
        .collect();
    parts.reverse();
    parts.join(",")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let id = attribute.attr_type().to_id_string();
    let short = TYPES.iter().find(|(known, _)| *known == id).map_or(id.as_str(), |(_, name)| name);
    format!("{short}={}", escaped(&text_of(attribute.attr_value())))
}

/// The text of a value, whatever the kind of string; bytes that are none as Latin-1.
fn text_of(value: &Any<'_>) -> String {
    let bytes = value.data;
    match value.tag() {
        Tag::BmpString => {
            let units = bytes.chunks_exact(2).map(|it| u16::from_be_bytes([it[0], it[1]]));
            char::decode_utf16(units).map(|it| it.unwrap_or(char::REPLACEMENT_CHARACTER)).collect()
        }
        Tag::UniversalString => bytes
            .chunks_exact(4)
            .map(|it| u32::from_be_bytes([it[0], it[1], it[2], it[3]]))
            .map(|code| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER))
            .collect(),
        Tag::T61String => bytes.iter().copied().map(char::from).collect(),
        _ => match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => bytes.iter().copied().map(char::from).collect(),
        },
    }
}

/// RFC 4514 section 2.4, and a backslash and two digits for each byte that is not printable ASCII.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let bytes = text.as_bytes();
    for (at, &byte) in bytes.iter().enumerate() {
        let is_last = at + 1 == bytes.len();
        match byte {
            b' ' | b'#' if at == 0 => out.extend(['\\', char::from(byte)]),
            b' ' if is_last => out.push_str("\\ "),
            b'"' | b'+' | b',' | b';' | b'<' | b'>' | b'\\' => out.extend(['\\', char::from(byte)]),
            // RabbitMQ takes the tilde for one of them.
            ..32 | 126.. => out.push_str(&format!("\\{byte:02X}")),
            _ => out.push(char::from(byte)),
        }
    }
    out
}

fn time(at: ASN1Time) -> String {
    let at = at.to_datetime();
    format!(
        "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z",
        at.year(),
        u8::from(at.month()),
        at.day(),
        at.hour(),
        at.minute(),
        at.second()
    )
}

fn serial_number(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02X}")).collect();
    match digits.trim_start_matches('0') {
        "" => "0".to_owned(),
        digits => digits.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn escapes() {
        check("guest",      "guest");
        check("",           "");
        check(" a b ",      "\\ a b\\ ");
        check("#a#",        "\\#a#");
        check("a,b+c;d",    "a\\,b\\+c\\;d");
        check("<\"\\>",     "\\<\\\"\\\\\\>");
        check("ü",          "\\C3\\BC"); // the bytes of UTF-8
        check("a\nb~",      "a\\0Ab\\7E");
        check(" ",          "\\ ");
    }

    #[track_caller]
    fn check(text: &str, want: &str) {
        assert_eq!(escaped(text), want, "{text:?}");
    }

    #[test]
    fn serial_numbers() {
        assert_eq!(serial_number(&[0, 0x8f, 1]), "8F01");
        assert_eq!(serial_number(&[0]), "0");
    }

    /// Bytes from the network are refused, not tripped over.
    #[test]
    fn no_certificate() {
        let login = LoginFrom {
            from: CertificateLogin::DistinguishedName,
            kind: AlternativeNameKind::Dns,
            index: 0,
        };
        for bytes in [&b""[..], b"\x30", b"\x30\x82\xff\xff", b"x", &[0x30; 100]] {
            assert!(facts(bytes, login).is_none());
            assert!(!is_self_issued(bytes));
        }
    }
}
