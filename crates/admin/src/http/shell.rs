//! What every answer of the API has, whatever it is about: the path's prefix, `OPTIONS`, CORS, headers,
//! ETags and compression.

use std::hash::{BuildHasher as _, Hasher as _};
use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::uri::PathAndQuery;
use axum::http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header,
};
use axum::response::IntoResponse as _;
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use foldhash::fast::FixedState;
use http_body_util::BodyExt as _;
use serde_json::json;
use tokio::time::timeout;
use tower::ServiceExt as _;

use super::App;
use super::answer::{Answer, Fault};
use super::call::{Peer, Who};
use super::login::Login;
use super::origin;
use super::routes::may_be_nameless;
use super::stream;
use crate::places::ConnectionPlace;
use crate::room::Held;

/// Shorter answers are not worth compressing: they fit one packet.
const GZIP_MIN: usize = 1024;

/// A node whose part takes so long already is not healthy.
const STALL: Duration = Duration::from_secs(3);

/// How long a login may take while the node stalls.
const LOGIN_PATIENCE: Duration = Duration::from_secs(1);

/// What a health check says of a node that stalls, whatever it is about. Before anything else is asked: the names, by which a
/// login is decided, may be what it waits for. So it fails for everybody, and what stalls is told to who is let in.
async fn stalled(app: &App, peer: Peer, headers: &HeaderMap, path: &str) -> Option<Answer> {
    let checks = ["/api/health/checks/", "/api/healthchecks/", "/api/aliveness-test/"];
    let (age, what) = app.ops.node.watched.stall()?;
    if age < STALL || !checks.iter().any(|it| path.starts_with(it)) {
        return None;
    }
    let mut failed = json!({"status": "failed"});
    if may_be_told(app, peer, headers).await {
        let seconds = age.as_secs();
        failed["reason"] =
            json!(format!("The node does not go on: {what} takes {seconds} s up to now"));
    }
    Some(Answer::Unhealthy(failed))
}

/// Whether the request shows a user, or is the operator's. Not when that could not be found out at once.
async fn may_be_told(app: &App, peer: Peer, headers: &HeaderMap) -> bool {
    let node = &app.ops.node;
    if peer.is_operator() {
        return true;
    }
    let login = async { Login::of_request(headers, app, peer).await.is_ok() };
    node.names_are_free() && timeout(LOGIN_PATIENCE, login).await.unwrap_or(false)
}

/// Answers a request.
pub(super) async fn answer(
    app: &App,
    router: Router,
    peer: Peer,
    place: Option<Arc<ConnectionPlace>>,
    mut request: Request<Body>,
) -> Response<Body> {
    let who = Who::default();
    let asked = request.headers().clone();
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let mut response =
        match strip(app, &mut request).and_then(|()| must_be_own(app, peer, &request)) {
            Ok(()) => {
                request.extensions_mut().insert(peer);
                request.extensions_mut().insert(who.clone());
                place.map(|place| request.extensions_mut().insert(place));
                let stripped = request.uri().path().to_owned();
                match stalled(app, peer, &asked, &stripped).await {
                    Some(failed) => failed.into_response(),
                    None => router.oneshot(request).await.into_response(),
                }
            }
            Err(fault) => fault.into_response(),
        };
    if response.status().is_success() && changes(&method, &path) {
        let (user, peer) = (who.0.get().map_or("", String::as_str), peer.to_string());
        tracing::info!(target: "audit", user, peer, %method, path, "audit: changed");
    }
    // A handler that refuses a method says why by itself, and names no others.
    let is_routed = !response.headers().contains_key(header::ALLOW);
    if response.status() == StatusCode::METHOD_NOT_ALLOWED && !is_routed {
        response = not_allowed(app, &method, &response);
    }
    let headers = response.headers_mut();
    cors(app, &asked, &method, headers);
    dress(app, headers);
    finish(response, &method, &asked).await
}

/// Whether a request changes what is defined. Messages are no definitions, and who only logs in changes nothing.
fn changes(method: &Method, path: &str) -> bool {
    let is_post = *method == Method::POST;
    let is_about_messages = ["/publish", "/get"].iter().any(|end| path.ends_with(end));
    let changes_nothing = is_post && (is_about_messages || path.ends_with("/api/login"));
    !method.is_safe() && !changes_nothing
}

/// Refuses what a page of another site asks for. No page reaches the control socket.
fn must_be_own(app: &App, peer: Peer, request: &Request<Body>) -> Result<(), Fault> {
    let Peer::Network(address) = peer else { return Ok(()) };
    let own = origin::check(|site| is_allowed(app, site), app.signin.takes_tokens, request);
    own.inspect_err(|fault| {
        let (method, path) = (request.method(), request.uri().path());
        let (peer, why) = (address.to_string(), &*fault.reason);
        tracing::warn!(target: "audit", peer, %method, path, why, "audit: HTTP access denied");
    })
}

/// Takes the prefix from the path, and a slash at the end that means nothing.
fn strip(app: &App, request: &mut Request<Body>) -> Result<(), Fault> {
    let prefix = app.options.path_prefix.as_deref().unwrap_or_default();
    let uri = request.uri();
    let path = uri.path().strip_prefix(prefix).ok_or_else(Fault::not_found)?;
    let trimmed = if path.len() > 1 { path.trim_end_matches('/') } else { path };
    let is_nameless = request.method() == Method::DELETE
        && trimmed.len() < path.len()
        && may_be_nameless(trimmed);
    let kept = if is_nameless { &path[..=trimmed.len()] } else { trimmed };
    if kept.len() == uri.path().len() {
        return Ok(());
    }
    let kept = if kept.is_empty() { "/" } else { kept };
    let query = uri.query().map(|query| format!("?{query}")).unwrap_or_default();
    let new = PathAndQuery::try_from(format!("{kept}{query}"));
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(new.map_err(|_| Fault::not_found())?);
    *request.uri_mut() = parts.try_into().map_err(|_| Fault::not_found())?;
    Ok(())
}

/// The path is there, the method is not. `OPTIONS` asks for just that.
fn not_allowed(app: &App, method: &Method, response: &Response<Body>) -> Response<Body> {
    let allow = response.headers().get(header::ALLOW).and_then(|allow| allow.to_str().ok());
    let mut allowed: Vec<&str> = allow.unwrap_or_default().split(',').map(str::trim).collect();
    allowed.push("OPTIONS");
    allowed.retain(|method| !method.is_empty());
    let mut answer = if method == Method::OPTIONS {
        Response::new(Body::empty())
    } else {
        Fault::not_allowed(format!("{method} is not possible here")).into_response()
    };
    if let Ok(allow) = HeaderValue::try_from(allowed.join(", ")) {
        if !app.options.hide_allow_header {
            answer.headers_mut().insert(header::ALLOW, allow.clone());
        }
        if method == Method::OPTIONS {
            answer.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_METHODS, allow);
        }
    }
    answer
}

/// Whether pages of a site may use the API.
fn is_allowed(app: &App, site: &str) -> bool {
    app.options.cors_origins.iter().any(|one| one == "*" || one == site)
}

/// What pages of other sites may do, if the configuration names the site.
fn cors(app: &App, asked: &HeaderMap, method: &Method, headers: &mut HeaderMap) {
    headers.insert(header::VARY, HeaderValue::from_static("accept, accept-encoding, origin"));
    let methods = headers.remove(header::ACCESS_CONTROL_ALLOW_METHODS);
    let Some(origin) = asked.get(header::ORIGIN) else { return };
    if !origin.to_str().is_ok_and(|site| is_allowed(app, site)) {
        return;
    }
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
    headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    if method == Method::OPTIONS {
        let max_age = app.options.cors_max_age.get();
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from(max_age));
        if let Some(methods) = methods {
            headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        }
        if let Some(wanted) = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
        }
    }
}

/// Headers that the configuration sets.
fn dress(app: &App, headers: &mut HeaderMap) {
    let options = &app.options;
    let csp = Some(options.csp.as_deref().unwrap_or(&app.signin.csp));
    #[rustfmt::skip] // a table
    let set: [(&'static str, Option<&str>); 6] = [
        ("content-security-policy",   csp),
        ("strict-transport-security", options.hsts.as_deref()),
        ("x-content-type-options",    options.content_type_options.as_deref()),
        ("x-frame-options",           options.frame_options.as_deref()),
        ("x-xss-protection",          options.xss_protection.as_deref()),
        ("referrer-policy",           options.referrer_policy.as_deref()),
    ];
    for (name, value) in set {
        if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

/// Tells whether the client has the answer already, and compresses it if not.
async fn finish(response: Response<Body>, method: &Method, asked: &HeaderMap) -> Response<Body> {
    let is_read = method == Method::GET;
    let (mut head, body) = response.into_parts();
    if let Some(made) = head.extensions.remove::<stream::SharedBody>().and_then(|slot| slot.take())
    {
        // It is not known yet, so it has no tag and no length; that of the empty body in its place goes.
        head.headers.remove(header::CONTENT_LENGTH);
        head.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        if !takes_gzip(asked) {
            return Response::from_parts(head, Body::new(made));
        }
        head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        return Response::from_parts(head, Body::new(made.zipped()));
    }
    let held = head.extensions.remove::<Arc<Held>>();
    let Ok(body) = body.collect().await else { return Response::from_parts(head, Body::empty()) };
    let mut body = body.to_bytes();
    if is_read && !head.headers.contains_key(header::CACHE_CONTROL) {
        head.headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    }
    if is_read && head.status == StatusCode::OK {
        let tag = head.headers.get(header::ETAG).cloned().or_else(|| etag(&body));
        if let Some(tag) = tag {
            let known = asked.get(header::IF_NONE_MATCH).and_then(|it| it.to_str().ok());
            let is_known = known.is_some_and(|known| knows(known, &tag));
            head.headers.insert(header::ETAG, tag);
            if is_known {
                head.status = StatusCode::NOT_MODIFIED;
                head.headers.remove(header::CONTENT_TYPE);
                return Response::from_parts(head, Body::empty());
            }
        }
    }
    if body.len() >= GZIP_MIN
        && takes_gzip(asked)
        && !head.headers.contains_key(header::CONTENT_ENCODING)
        && let Some(small) = gzip(&body)
    {
        head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        body = small;
    }
    head.headers.remove(header::CONTENT_LENGTH);
    let body = match held {
        // What it takes is given back when the last of it is written.
        Some(held) => Bytes::from_owner(HeldBytes { bytes: body, _held: held }),
        None => body,
    };
    Response::from_parts(head, Body::from(body))
}

/// An answer and the room that it takes.
struct HeldBytes {
    bytes: Bytes,
    _held: Arc<Held>,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Weak: the same answer may be compressed or not.
fn etag(body: &Bytes) -> Option<HeaderValue> {
    let mut hasher = FixedState::default().build_hasher();
    hasher.write(body);
    HeaderValue::try_from(format!("W/\"{:016x}\"", hasher.finish())).ok()
}

fn knows(known: &str, tag: &HeaderValue) -> bool {
    let plain = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let tag = plain(tag.to_str().unwrap_or_default());
    known.split(',').any(|one| one.trim() == "*" || plain(one) == tag)
}

fn takes_gzip(asked: &HeaderMap) -> bool {
    let text = asked.get(header::ACCEPT_ENCODING).and_then(|it| it.to_str().ok());
    text.unwrap_or_default().split(',').any(|one| {
        let (name, quality) = one.split_once(';').unwrap_or((one, "q=1"));
        let refused = matches!(quality.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000");
        matches!(name.trim(), "gzip" | "*") && !refused
    })
}

fn gzip(body: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 8), Compression::fast());
    encoder.write_all(body).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn encodings() {
        let check = |text: &str, want: bool| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, text.parse().unwrap());
            assert_eq!(takes_gzip(&headers), want, "{text}");
        };
        check("gzip",                  true);
        check("deflate, gzip;q=0.5",   true);
        check("*",                     true);
        check("gzip;q=0",              false);
        check("identity",              false);
        check("",                      false);
    }

    #[test]
    #[rustfmt::skip] // a table
    fn what_changes() {
        let check = |method: Method, path: &str, want| assert_eq!(changes(&method, path), want, "{path}");
        check(Method::GET,     "/api/users",                               false);
        check(Method::OPTIONS, "/api/users/u",                             false);
        check(Method::PUT,     "/api/users/u",                             true);
        check(Method::DELETE,  "/api/queues/%2F/get",                      true);
        check(Method::POST,    "/api/queues/%2F/q/get",                    false);
        check(Method::POST,    "/api/exchanges/%2F/amq.default/publish",   false);
        check(Method::POST,    "/broker/api/login",                        false);
        check(Method::POST,    "/api/definitions",                         true);
    }

    #[test]
    fn tags() {
        let tag = etag(&Bytes::from_static(b"abc")).unwrap();
        let text = tag.to_str().unwrap().to_owned();
        assert!(knows(&text, &tag));
        assert!(knows(&format!("\"x\", {}", text.trim_start_matches("W/")), &tag));
        assert!(knows("*", &tag));
        assert!(!knows("\"x\"", &tag));
        assert_ne!(etag(&Bytes::from_static(b"abd")).unwrap(), tag);
    }
}
