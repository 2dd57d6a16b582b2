//! Requests that a page of another site has a browser send.
//!
//! A browser adds to them what it knows: the password that was typed into its own dialog. So a request that
//! changes something is refused if the browser says that it comes from another site's page. Programs say
//! nothing of the kind, and are taken as ever.
//!
//! | the request has | it comes from |
//! |---|---|
//! | none of `Sec-Fetch-Site`, `Origin`, `Referer` | a program |
//! | an `Origin` of `management.cors.allow_origins` | a site that may |
//! | `Sec-Fetch-Site: same-origin` or `none` | the management page, or the person at the browser |
//! | another `Sec-Fetch-Site` | another site |
//! | an `Origin`, or else a `Referer`, of the host that was asked | the management page, without TLS |
//! | anything else | another site |
//!
//! The host that was asked is `Host`, or what a proxy says that it was (`X-Forwarded-Host`): no page can set
//! either without asking first, which [CORS](super::shell) answers.
//!
//! Behind this stands a second wall: what a form can send and is no JSON is refused from any browser.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, Method, Request, header};
use hyper::body::Body as _;
use rustix::system::uname;

use super::answer::Fault;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Refuses what another site's page wants to be changed, unless that site may.
pub(super) fn check(
    is_allowed: impl Fn(&str) -> bool,
    takes_tokens: bool,
    request: &Request<Body>,
) -> Result<(), Fault> {
    let (method, headers, path) = (request.method(), request.headers(), request.uri().path());
    // A provider sends people to it; what they may do is in the form, and nothing is changed.
    let is_sign_in = takes_tokens && *method == Method::POST && path.ends_with("/api/login");
    if !changes(method, path) || is_sign_in || !is_browsers(headers) {
        return Ok(());
    }
    if is_foreign(is_allowed, headers) {
        let from = text(headers, &header::ORIGIN).unwrap_or("another site");
        return Err(Fault::foreign(from));
    }
    let is_upload = path.ends_with("/api/definitions") || path.contains("/api/definitions/");
    let is_good = match text(headers, &header::CONTENT_TYPE) {
        Some(kind) => is_json(kind) || is_upload && kind.starts_with("multipart/form-data"),
        None => false,
    };
    if is_good || request.body().is_end_stream() { Ok(()) } else { Err(Fault::not_json()) }
}

/// Whether a request changes something. The test of aliveness is a GET that declares a queue.
fn changes(method: &Method, path: &str) -> bool {
    !method.is_safe() || path.contains("/api/aliveness-test/")
}

/// Whether a browser sends it, for a page or a person.
fn is_browsers(headers: &HeaderMap) -> bool {
    [SEC_FETCH_SITE, header::ORIGIN, header::REFERER].iter().any(|it| headers.contains_key(it))
}

fn is_foreign(is_allowed: impl Fn(&str) -> bool, headers: &HeaderMap) -> bool {
    let origin = text(headers, &header::ORIGIN);
    if origin.is_some_and(is_allowed) {
        return false;
    }
    if headers.contains_key(SEC_FETCH_SITE) {
        return !matches!(text(headers, &SEC_FETCH_SITE), Some("same-origin" | "none"));
    }
    let from =
        if headers.contains_key(header::ORIGIN) { &header::ORIGIN } else { &header::REFERER };
    let Some((host, port)) = text(headers, from).and_then(authority) else { return true };
    let is_it = |asked: &HeaderName| {
        let asked = text(headers, asked).and_then(|list| list.split(',').next());
        asked.is_some_and(|asked| {
            let (name, number) = split_port(asked.trim());
            name.eq_ignore_ascii_case(host) && number.is_none_or(|number| number == port)
        })
    };
    !is_it(&header::HOST) && !is_it(&FORWARDED_HOST)
}

/// Host and port of an address.
fn authority(address: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = address.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (host, port) = split_port(authority);
    let port = port.or(match scheme {
        "https" => Some("443"),
        "http" => Some("80"),
        _ => None,
    })?;
    Some((host, port))
}

/// `host:port`, where the host may be an IPv6 address in brackets.
fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

fn is_json(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or_default().trim();
    kind.eq_ignore_ascii_case("application/json")
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Whether a browser on this machine asks for a name that may be anybody's: a site can have its own name lead
/// here once its page is loaded, and then the page is of "the same site". It knows no password but the one
/// that everybody knows, of users who may log in from this machine alone. A name without a dot is of one's own
/// network.
pub(super) fn may_be_rebound(headers: &HeaderMap) -> bool {
    let is_program = !is_browsers(headers) && !headers.contains_key(header::ACCEPT_LANGUAGE);
    let Some(host) = text(headers, &header::HOST).filter(|_| !is_program) else { return false };
    let host = split_port(host).0.trim_end_matches('.').to_ascii_lowercase();
    let is_address = host.starts_with('[') || host.parse::<std::net::IpAddr>().is_ok();
    let name = uname().nodename().to_string_lossy().to_ascii_lowercase();
    let is_local = !host.contains('.') || host.ends_with(".localhost");
    !is_address && !is_local && host != name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &str) -> HeaderMap {
        let lines = list.split("; ").filter(|line| !line.is_empty());
        let pairs = lines.map(|line| line.split_once(": ").unwrap());
        pairs
            .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    #[test]
    #[rustfmt::skip] // a table
    fn who_sends_it() {
        #[track_caller]
        fn check(list: &str, want: bool) {
            let headers = headers(list);
            let is_allowed = |origin: &str| origin == "https://good.example";
            assert_eq!(is_browsers(&headers) && is_foreign(is_allowed, &headers), want, "{list}");
        }
        // Programs.
        check("", false);
        check("host: a:15672; content-type: application/x-www-form-urlencoded", false);
        // The page.
        check("host: a:15672; sec-fetch-site: same-origin; origin: http://a:15672", false);
        check("host: a:15672; sec-fetch-site: none", false);
        check("host: a:15672; origin: http://a:15672", false);
        check("host: A:15672; origin: http://a:15672", false);
        check("host: a; origin: https://a", false);
        check("host: a:443; origin: https://a", false);
        check("host: [::1]:15672; origin: http://[::1]:15672", false);
        check("host: a:15672; referer: http://a:15672/#/queues", false);
        // The page behind a proxy.
        check("host: inside:15672; x-forwarded-host: a; origin: https://a", false);
        check("host: inside:15672; sec-fetch-site: same-origin; origin: https://a", false);
        // A site that may.
        check("host: a:15672; sec-fetch-site: cross-site; origin: https://good.example", false);
        check("host: a:15672; origin: https://good.example", false);
        // Another site.
        check("host: a:15672; sec-fetch-site: cross-site; origin: https://bad.example", true);
        check("host: a:15672; sec-fetch-site: same-site; origin: http://b.a", true);
        check("host: a:15672; sec-fetch-site: cross-site", true);
        check("host: a:15672; sec-fetch-site: else", true);
        check("host: a:15672; origin: https://bad.example", true);
        check("host: a:15672; origin: https://good.example.bad", true);
        check("host: a:15672; origin: http://a:80", true);
        check("host: a:15672; origin: http://a", true);
        check("host: a:15672; origin: null", true);
        check("host: a:15672; origin: null; referer: http://a:15672/", true);
        check("host: a:15672; referer: https://bad.example/http://a:15672/", true);
        check("host: a:15672; referer: nonsense", true);
        check("origin: http://a:15672", true);
    }

    #[test]
    #[rustfmt::skip] // a table
    fn names_that_may_be_anybodys() {
        #[track_caller]
        fn check(list: &str, want: bool) {
            assert_eq!(may_be_rebound(&headers(list)), want, "{list}");
        }
        check("host: x; accept-language: en", false);
        check("host: bad.example:15672", false);
        check("host: bad.example:15672; origin: http://bad.example:15672", true);
        check("host: bad.example:15672; accept-language: en", true);
        check("host: localhost:15672; accept-language: en", false);
        check("host: a.localhost; accept-language: en", false);
        check("host: localhost.bad.example; accept-language: en", true);
        check("host: 127.0.0.1:15672; accept-language: en", false);
        check("host: [::1]:15672; accept-language: en", false);
        check("host: [::1]; accept-language: en", false);
    }
}
