//! Which host a request asks for: one, or it is refused (RFC 9112 section 3.2). A proxy in front and this broker could take it
//! for two different ones otherwise. The HTTP library takes all that are sent.

use axum::body::Body;
use axum::response::IntoResponse as _;
use hyper::header::{CONNECTION, HOST, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::Authority;
use hyper::{Response, Version};

use crate::http::Fault;

/// Whether a request has one `Host`, and it is a host's. HTTP/1.0 may have none.
pub(crate) fn is_clear(head: &Parts) -> bool {
    let mut hosts = head.headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (Some(host), None) => is_host(host),
        (None, _) => head.version < Version::HTTP_11,
        (Some(_), Some(_)) => false,
    }
}

/// Whether the value is a host and perhaps a port. An empty one is that of an address without a host.
fn is_host(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    bytes.is_empty() || !bytes.contains(&b'@') && Authority::try_from(bytes).is_ok()
}

/// What the client reads. What it sends after that is read no more.
pub(crate) fn refusal() -> Response<Body> {
    let fault = Fault::bad("a request must have one Host header, with a host in it");
    let mut response = fault.into_response();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn hosts() {
        #[track_caller]
        fn check(version: Version, hosts: &[&str], want: bool) {
            let request = Request::builder().version(version);
            let request = hosts.iter().fold(request, |request, host| request.header(HOST, *host));
            assert_eq!(is_clear(&request.body(()).unwrap().into_parts().0), want, "{hosts:?}");
        }
        check(Version::HTTP_11, &["a"],              true);
        check(Version::HTTP_11, &["a:15672"],        true);
        check(Version::HTTP_11, &["[::1]:15672"],    true);
        check(Version::HTTP_11, &["127.0.0.1"],      true);
        check(Version::HTTP_11, &["under_score"],    true);
        check(Version::HTTP_11, &[""],               true);
        check(Version::HTTP_11, &[],                 false);
        check(Version::HTTP_10, &[],                 true);
        check(Version::HTTP_11, &["a", "a"],         false);
        check(Version::HTTP_10, &["a", "b"],         false);
        check(Version::HTTP_11, &["user@a"],         false);
        check(Version::HTTP_11, &["a b"],            false);
        check(Version::HTTP_11, &["a, b"],           false);
        check(Version::HTTP_11, &["a/b"],            false);
    }
}
