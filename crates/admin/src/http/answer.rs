//! What the API answers, and how it refuses.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse;
use leveret_amqp::reply::ReplyCode;
use serde_json::{Value, json};

use super::stream;
use crate::ops::ask::Refusal;
use crate::ops::direct::Closed;
use crate::room::Held;

/// A good answer.
#[derive(Debug)]
pub(crate) enum Answer {
    /// 200 with a document.
    Json(Value),
    /// 200 with a document that is written already.
    Text(Vec<u8>),
    /// The same, with the room that it takes until the client has it.
    Held(Vec<u8>, Arc<Held>),
    /// 200 with a document that is long and sent while it is made; the name of its file, if it is one.
    Stream(stream::Made, Option<String>),
    /// 200 with a file of text that is sent while it is read.
    TextFile(stream::Made),
    /// 201, made; where it is, if that is not where it was put.
    Created(Option<String>),
    /// 204, done.
    Done,
    /// 200 with a file.
    File {
        /// Its type.
        kind: &'static str,
        /// Its name when it is saved.
        name: Option<String>,
        /// Its text.
        text: String,
    },
    /// Another one, and what is to be told of it that is no fault, in the header `Warning`.
    Warned(Box<Self>, Vec<String>),
    /// 503 with a document: a health check that fails.
    Unhealthy(Value),
}

impl Answer {
    /// 201 for what is new, 204 for what was there.
    pub(crate) fn put(is_new: bool) -> Self {
        if is_new { Self::Created(None) } else { Self::Done }
    }

    /// With what is to be told of it that is no fault. The log has all of it.
    pub(crate) fn with_warnings(self, told: impl IntoIterator<Item = String>) -> Self {
        let told: Vec<_> = told.into_iter().collect();
        if told.is_empty() { self } else { Self::Warned(Box::new(self), told) }
    }
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) status: StatusCode,
    /// RabbitMQ's word for the kind: `bad_request`.
    pub(crate) error: &'static str,
    /// For people.
    pub(crate) reason: String,
    /// Whether a browser shall ask for name and password.
    pub(crate) asks_password: bool,
    /// Whether it is of now, and another try may do better.
    passes: bool,
}

/// When another try may do better, in seconds.
const RETRY_S: u16 = 5;

impl Fault {
    fn new(status: StatusCode, error: &'static str, reason: impl Into<String>) -> Self {
        Self { status, error, reason: reason.into(), asks_password: false, passes: false }
    }

    /// 400.
    pub(crate) fn bad(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", reason)
    }

    /// 400: the body has not all that it must have.
    pub(crate) fn keys_missing(keys: &[&str]) -> Self {
        let all: Vec<_> = keys.iter().map(|key| format!("{{key_missing,{key}}}")).collect();
        Self::bad(format!("[{}]", all.join(",")))
    }

    /// 412: what is there stands against it.
    pub(crate) fn precondition(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::PRECONDITION_FAILED, "precondition_failed", reason)
    }

    /// 400 under another name.
    pub(crate) fn invalid(error: &'static str, reason: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error, reason)
    }

    /// 404 for an object or a path.
    pub(crate) fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "Object Not Found", "Not Found")
    }

    /// 404 with a reason.
    pub(crate) fn missing(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", reason)
    }

    /// 401: the user is known, and may not.
    pub(crate) fn forbidden(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "not_authorised", reason)
    }

    /// 401: nobody said who asks.
    pub(crate) fn login() -> Self {
        let fault = Self::new(StatusCode::UNAUTHORIZED, "not_authorized", "Not_Authorized");
        Self { asks_password: true, ..fault }
    }

    /// 401: name or password are wrong.
    pub(crate) fn wrong_password() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "not_authorized", "Not_Authorized")
    }

    /// 401: `management.disable_basic_auth` is set.
    pub(crate) fn no_passwords() -> Self {
        let reason = "names with passwords are not accepted: management.disable_basic_auth is set";
        Self::new(StatusCode::UNAUTHORIZED, "not_authorized", reason)
    }

    /// 403: a page of another site has a browser ask for a change.
    pub(crate) fn foreign(from: &str) -> Self {
        let reason = format!(
            "a page of another site ({from}) may change nothing here, unless \
             management.cors.allow_origins names it"
        );
        Self::new(StatusCode::FORBIDDEN, "forbidden", reason)
    }

    /// 415: what a form can send.
    pub(crate) fn not_json() -> Self {
        let reason = "a browser's request must have the content type application/json";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", reason)
    }

    /// 413.
    pub(crate) fn too_large(max: u64) -> Self {
        let reason = format!(
            "Exceeded HTTP request body size limit: {max} bytes (management.http.max_body_size)"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "bad_request", reason)
    }

    /// 413: it would take too much when it is read.
    pub(crate) fn too_much(length: usize, takes: u64, max: u64) -> Self {
        let reason = format!(
            "the document of {length} bytes takes about {takes} bytes of memory when it is read, and {max} may be \
             taken, half of vm_memory_high_watermark; send it in several parts"
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "bad_request", reason)
    }

    /// 408.
    pub(crate) fn too_slow(came: usize, least: u64, time: Duration) -> Self {
        let reason = format!(
            "the body stands still at {came} bytes: fewer than {least} more came in {} s \
             (unfinished_timeout)",
            time.as_secs_f32()
        );
        Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", reason)
    }

    /// 429.
    pub(crate) fn too_many(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", reason)
    }

    /// 405 where a path and a method exist, but not for this object.
    pub(crate) fn not_allowed(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", reason)
    }

    /// 503, and when to come again.
    pub(crate) fn busy(reason: impl Into<String>) -> Self {
        Self { passes: true, ..Self::unavailable(reason) }
    }

    /// 503.
    pub(crate) fn unavailable(reason: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "service_unavailable", reason)
    }
}

/// Whether a code says that the node is at fault, or short of something, and not who asks: 506 and 541.
fn is_nodes(code: u16) -> bool {
    [ReplyCode::ResourceError, ReplyCode::InternalError].iter().any(|it| *it as u16 == code)
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Refused { code, text } if is_nodes(code as u16) => Self::unavailable(text),
            Refusal::Refused { text, .. } => Self::bad(text),
            Refusal::Stopping | Refusal::Starting => Self::unavailable(refusal.to_string()),
        }
    }
}

impl Fault {
    /// What was to be declared, bound, purged or deleted was not. RabbitMQ does these without a channel, and its text has
    /// no code in front.
    pub(crate) fn of_name(closed: Closed) -> Self {
        match closed {
            Closed::Told { code, text } if !is_nodes(code) && !matches!(code, 403 | 530) => {
                let text = text.split_once(" - ").map_or(&*text, |(_, explanation)| explanation);
                if code == 404 { Self::missing(text) } else { Self::bad(text) }
            }
            other => other.into(),
        }
    }
}

impl From<Closed> for Fault {
    fn from(closed: Closed) -> Self {
        match closed {
            Closed::Told { code: 404, text } => Self::missing(text),
            // RabbitMQ says no more than this for a declare or a delete, which helps nobody.
            Closed::Told { code: 403 | 530, text } => Self::forbidden(text),
            Closed::Told { code, text } if is_nodes(code) => Self::unavailable(text),
            Closed::Told { code, text } => Self::bad(format!("{code} {text}")),
            Closed::TooLarge { .. } => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "bad_request", closed.to_string())
            }
            Closed::NoVhost => Self::not_found(),
            Closed::QueueGone => Self::missing(closed.to_string()),
            Closed::Stopping => Self::unavailable(closed.to_string()),
        }
    }
}

/// Types of answers.
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// A document as it is sent.
pub(super) fn text(value: &Value) -> Vec<u8> {
    // Only maps with other keys than texts cannot be written.
    serde_json::to_vec(value).unwrap_or_default()
}

fn response(status: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, JSON);
    response
}

fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// What a header tells, in bytes: clients and proxies take 4 to 8 KiB of all headers together.
const WARNING_BYTES: usize = 1 << 10;

/// The value of the header `Warning` that tells all this, or the beginning of it.
fn warning(told: &[String]) -> String {
    let mut text = String::new();
    for (at, one) in told.iter().enumerate() {
        if at > 0 {
            text.push_str("; ");
        }
        if text.len() + one.len() > WARNING_BYTES {
            let part = one.floor_char_boundary(WARNING_BYTES.saturating_sub(text.len()));
            text.push_str(one.get(..part).unwrap_or_default());
            text.push_str("... and more: see the log");
            break;
        }
        text.push_str(one);
    }
    let plain = text.chars().map(|letter| match letter {
        '\\' | '"' => '\'',
        letter if letter.is_control() => ' ',
        letter => letter,
    });
    format!("299 - \"{}\"", plain.collect::<String>())
}

/// What the client is to call the file.
fn put_name(headers: &mut HeaderMap, name: Option<String>) {
    let disposition = name.map(|name| format!("attachment; filename={name}"));
    if let Some(value) = disposition.and_then(|it| HeaderValue::try_from(it).ok()) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response<Body> {
        match self {
            Self::Json(value) => response(StatusCode::OK, text(&value)),
            Self::Text(text) => response(StatusCode::OK, text),
            Self::Held(text, held) => {
                let mut response = response(StatusCode::OK, text);
                response.extensions_mut().insert(held);
                response
            }
            Self::Unhealthy(value) => response(StatusCode::SERVICE_UNAVAILABLE, text(&value)),
            Self::Created(location) => {
                let mut response = empty(StatusCode::CREATED);
                if let Some(at) = location.and_then(|it| HeaderValue::try_from(it).ok()) {
                    response.headers_mut().insert(header::LOCATION, at);
                }
                response
            }
            Self::Done => empty(StatusCode::NO_CONTENT),
            Self::Warned(answer, told) => {
                let mut response = answer.into_response();
                if let Ok(value) = HeaderValue::try_from(warning(&told)) {
                    response.headers_mut().insert(header::WARNING, value);
                }
                response
            }
            Self::File { kind, name, text } => {
                let mut response = response(StatusCode::OK, text);
                let headers = response.headers_mut();
                headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
                put_name(headers, name);
                response
            }
            Self::TextFile(made) => {
                let mut response = Self::Stream(made, None).into_response();
                let kind = HeaderValue::from_static("text/plain; charset=utf-8");
                response.headers_mut().insert(header::CONTENT_TYPE, kind);
                response
            }
            Self::Stream(made, name) => {
                // Its body is put in by `shell`, compressed or not.
                let mut response = response(StatusCode::OK, Body::empty());
                put_name(response.headers_mut(), name);
                response.extensions_mut().insert(stream::SharedBody::of(made));
                response
            }
        }
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response<Body> {
        let body = json!({"error": self.error, "reason": self.reason});
        let mut response = response(self.status, text(&body));
        if self.asks_password {
            let realm = HeaderValue::from_static("Basic realm=\"RabbitMQ Management\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, realm);
        }
        if self.passes {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_S));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_fit_a_header() {
        let value = |told: &[String]| {
            let response = Answer::Done.with_warnings(told.to_vec()).into_response();
            response.headers().get(header::WARNING).map(|it| it.as_bytes().to_vec())
        };
        let text = |told: &[String]| String::from_utf8(value(told).unwrap()).unwrap();
        assert_eq!(value(&[]), None);
        let two = ["policy 'a\nb': no \"x\"".to_owned(), "\u{fc}\u{85}\0".to_owned()];
        assert_eq!(text(&two), "299 - \"policy 'a b': no 'x'; \u{fc}  \"");
        let many: Vec<_> = (0..101).map(|n| format!("policy {n:0300}")).collect();
        let told = text(&many);
        assert!(told.len() < WARNING_BYTES + 50, "{told}");
        assert!(told.starts_with("299 - \"policy 0"), "{told}");
        assert!(told.ends_with("... and more: see the log\""), "{told}");
        assert!(
            text(&["\u{fc}".repeat(WARNING_BYTES)]).ends_with("\u{fc}... and more: see the log\"")
        );
    }

    /// A full disk is not the mistake of who asks.
    #[test]
    fn what_the_node_is_short_of() {
        let asked = |code| Fault::from(Refusal::Refused { code, text: String::new() }).status;
        assert_eq!(asked(ReplyCode::ResourceError), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(asked(ReplyCode::InternalError), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(asked(ReplyCode::PreconditionFailed), StatusCode::BAD_REQUEST);
        let told = |code| Fault::from(Closed::Told { code, text: String::new() }).status;
        assert_eq!(told(506), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(told(541), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(told(406), StatusCode::BAD_REQUEST);
    }
}
