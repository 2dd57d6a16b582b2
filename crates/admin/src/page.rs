//! The management page: a few files made from `crates/admin/page` and held in the program.
//!
//! The page is static and asks the API like any other client. `npm run build` makes it; what that makes is
//! checked in, so that cargo alone builds the broker, and a test builds it anew and compares.
//!
//! Compression, `304 Not Modified` and the headers of the configuration come after this, as for the API's answers.

use std::fmt::Write as _;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode, header};
use rust_embed::RustEmbed;

/// What the page may load: its own files and nothing else. No other page may show it inside itself.
/// All answers have it, unless `management.csp.policy` says something else.
pub(crate) const CSP: &str = "default-src 'self'; object-src 'none'; base-uri 'self'; \
                              form-action 'self'; frame-ancestors 'none'";

/// Kept, but asked for again each time: a new broker's page is seen at once, the old one costs a 304.
const CACHE: &str = "no-cache";

/// The first parts of the page's addresses after `#/`. Without the `#` they lead there, too.
const PLACES: [&str; 15] = [
    "channels",
    "connections",
    "consumers",
    "definitions",
    "exchanges",
    "feature-flags",
    "limits",
    "nodes",
    "parameters",
    "policies",
    "queues",
    "tracing",
    "users",
    "vhosts",
    "waits",
];

/// Where the page comes back to from a provider of OAuth 2.
const CALLBACK: &str = "js/oidc-oauth/login-callback.html";

#[derive(RustEmbed)]
#[folder = "page/dist"]
struct Dist;

/// The answer for a path of the page, or `None` if it is not one of the page's.
///
/// `prefix` is `management.path_prefix`, which `path` no longer carries.
pub(crate) fn answer(prefix: &str, path: &str) -> Option<Response<Body>> {
    let name = match path.strip_prefix('/')? {
        "" => "index.html",
        // Where providers of OAuth 2 send people back to: the same as RabbitMQ's.
        CALLBACK => "index.html",
        // Browsers ask for it by themselves.
        "favicon.ico" => "icon.svg",
        name => name,
    };
    match Dist::get(name) {
        Some(file) => {
            let tag = tag(prefix, &file.metadata.sha256_hash());
            let bytes = if name == "index.html" {
                let is_below = path.rsplit_once('/').is_some_and(|(before, _)| !before.is_empty());
                based(prefix, is_below, &String::from_utf8_lossy(&file.data)).into()
            } else {
                file.data.into_owned()
            };
            Some(found(kind(name), &tag, bytes))
        }
        None => lead(prefix, name),
    }
}

fn found(kind: &'static str, tag: &str, bytes: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(bytes));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(CACHE));
    if let Ok(tag) = HeaderValue::try_from(tag) {
        headers.insert(header::ETAG, tag);
    }
    #[rustfmt::skip] // a table
    let set = [
        ("x-frame-options",            "DENY"),
        ("x-content-type-options",     "nosniff"),
        ("referrer-policy",            "no-referrer"),
        ("cross-origin-opener-policy", "same-origin"),
    ];
    for (name, value) in set {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

/// An address of the page written without the `#`: `/queues/%2F/orders`.
fn lead(prefix: &str, path: &str) -> Option<Response<Body>> {
    let place = path.split('/').next()?;
    if !PLACES.contains(&place) {
        return None;
    }
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let to = HeaderValue::try_from(format!("{prefix}/#/{path}")).ok()?;
    response.headers_mut().insert(header::LOCATION, to);
    Some(response)
}

/// The first file, with the place its other files and the API are found from: `/prefix` and `/prefix/`
/// are the same page. Without a prefix that is where it is, unless it is shown below.
fn based(prefix: &str, is_below: bool, index: &str) -> String {
    if prefix.is_empty() && !is_below {
        return index.to_owned();
    }
    let mut escaped = String::new();
    for letter in prefix.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            '<' => escaped.push_str("&lt;"),
            letter => escaped.push(letter),
        }
    }
    index.replacen("<head>", &format!("<head>\n    <base href=\"{escaped}/\" />"), 1)
}

/// Weak: the same file may be compressed or not.
fn tag(prefix: &str, hash: &[u8]) -> String {
    let mut tag = String::from("W/\"");
    for byte in hash.iter().take(8) {
        let _ = write!(tag, "{byte:02x}");
    }
    // The first file holds the prefix.
    if !prefix.is_empty() {
        let _ = write!(tag, "-{}", prefix.len());
    }
    tag.push('"');
    tag
}

fn kind(name: &str) -> &'static str {
    match name.rsplit('.').next() {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn paths() {
        check("",    "/",                  "200 text/html; charset=utf-8");
        check("",    "/index.html",        "200 text/html; charset=utf-8");
        check("",    "/page.js",           "200 text/javascript; charset=utf-8");
        check("",    "/page.css",          "200 text/css; charset=utf-8");
        check("",    "/icon.svg",          "200 image/svg+xml");
        check("",    "/js/oidc-oauth/login-callback.html", "200 text/html; charset=utf-8");
        check("",    "/favicon.ico",       "200 image/svg+xml");
        check("",    "/queues",            "303 /#/queues");
        check("",    "/queues/%2F/a%20b",  "303 /#/queues/%2F/a%20b");
        check("/mq", "/queues/%2F/orders", "303 /mq/#/queues/%2F/orders");
        check("",    "/api/queues",        "none");
        check("",    "/queuesx",           "none");
        check("",    "/../Cargo.toml",     "none");
        check("",    "//",                 "none");
        check("",    "",                   "none");
        check("",    "/queues/\n",         "none");
    }

    #[track_caller]
    fn check(prefix: &str, path: &str, want: &str) {
        let got = answer(prefix, path).map(|response| {
            let is_found = response.status() == StatusCode::OK;
            let name = if is_found { header::CONTENT_TYPE } else { header::LOCATION };
            let value = response.headers()[name].to_str().unwrap();
            format!("{} {value}", response.status().as_u16())
        });
        assert_eq!(got.as_deref().unwrap_or("none"), want, "{path}");
    }

    #[test]
    fn headers_keep_others_out() {
        let page = answer("", "/").unwrap();
        let header = |name: &str| page.headers()[name].to_str().unwrap().to_owned();
        assert_eq!(header("x-frame-options"), "DENY");
        assert!(header("etag").starts_with("W/\""));
    }

    #[test]
    fn the_prefix_is_the_base() {
        let index = based("/a\"b", false, "<html><head></head></html>");
        assert!(index.contains("<base href=\"/a&quot;b/\" />"), "{index}");
        assert_eq!(based("", false, "<head>"), "<head>");
        assert!(based("", true, "<head>").contains("<base href=\"/\" />"));
    }

    /// The policy allows no script, style or picture in the page itself, and nothing from elsewhere.
    #[test]
    fn nothing_comes_from_elsewhere() {
        let index = Dist::get("index.html").unwrap();
        let index = String::from_utf8(index.data.into_owned()).unwrap();
        for piece in index.split('<').skip(1) {
            let address = piece.split_once("src=\"").or_else(|| piece.split_once("href=\""));
            if let Some((_, address)) = address {
                assert!(address.starts_with("./"), "{piece}");
            }
            assert!(!piece.starts_with("style"), "{piece}");
            assert!(!piece.starts_with("script>"), "{piece}");
        }
    }

    #[test]
    fn it_is_small() {
        let bytes: usize =
            Dist::iter().filter_map(|name| Dist::get(&name)).map(|file| file.data.len()).sum();
        assert!(bytes < 225_000, "{bytes} bytes");
    }
}
