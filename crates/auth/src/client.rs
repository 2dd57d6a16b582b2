//! Requests by HTTP and HTTPS.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;

/// Longest answer that is read, in bytes.
const ANSWER_MAX: usize = 1 << 20;
/// How long a connection is kept for the next request.
const IDLE: Duration = Duration::from_secs(30);

/// A client that keeps its connections for a while.
pub(crate) struct Client {
    pool: Pool<HttpsConnector<HttpConnector>, Full<Bytes>>,
    timeout: Duration,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl Client {
    /// An answer has to be there in `timeout`, a connection in `connecting`.
    pub(crate) fn new(tls: &Arc<ClientConfig>, timeout: Duration, connecting: Duration) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout(Some(connecting));
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(ClientConfig::clone(tls))
            .https_or_http()
            .enable_http1()
            .wrap_connector(tcp);
        let pool = Pool::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        Self { pool, timeout }
    }

    /// Asks; a form makes it a POST. What goes wrong is told without the address, which may hold a password.
    pub(crate) async fn ask(
        &self,
        uri: Uri,
        form: Option<String>,
    ) -> Result<(StatusCode, Bytes), String> {
        let mut request = Request::new(Full::from(form.clone().unwrap_or_default()));
        *request.uri_mut() = uri;
        if form.is_some() {
            *request.method_mut() = Method::POST;
            let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
            request.headers_mut().insert(CONTENT_TYPE, kind);
        }
        let answer = async {
            let answer = self.pool.request(request).await.map_err(|error| cause(&error))?;
            let status = answer.status();
            let body = Limited::new(answer.into_body(), ANSWER_MAX).collect().await;
            let body = body.map_err(|error| format!("the answer was cut off: {error}"))?;
            Ok((status, body.to_bytes()))
        };
        let answered = tokio::time::timeout(self.timeout, answer).await;
        answered.unwrap_or_else(|_| Err("it takes too long".to_owned()))
    }
}

/// The innermost cause: the outer ones say no more than that it did not work.
fn cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// Reads an address from an option.
pub(crate) fn address(option: &str, text: &str) -> anyhow::Result<Uri> {
    let uri: Uri = text.parse().with_context(|| format!("{option} = {text}: no address"))?;
    let is_whole = uri.host().is_some() && matches!(uri.scheme_str(), Some("http" | "https"));
    anyhow::ensure!(is_whole, "{option} = {text}: expected http://HOST/PATH or https://HOST/PATH");
    Ok(uri)
}

/// Names and values as a query or a form.
pub(crate) fn form(pairs: &[(&str, &str)]) -> String {
    let mut text = String::new();
    for (name, value) in pairs {
        if !text.is_empty() {
            text.push('&');
        }
        text.push_str(name);
        text.push('=');
        // As RabbitMQ does it: a space is a plus.
        for (index, word) in value.split(' ').enumerate() {
            if index > 0 {
                text.push('+');
            }
            text.extend(percent_encoding::utf8_percent_encode(word, ESCAPED));
        }
    }
    text
}

/// All but letters, digits and `.-~_`.
const ESCAPED: &percent_encoding::AsciiSet =
    &percent_encoding::NON_ALPHANUMERIC.remove(b'.').remove(b'-').remove(b'~').remove(b'_');

/// An address with something added to its query.
pub(crate) fn with_query(uri: &Uri, query: &str) -> Result<Uri, String> {
    let glue = match uri.query() {
        _ if query.is_empty() => "",
        Some(_) => "&",
        None => "?",
    };
    format!("{uri}{glue}{query}").parse().map_err(|_| "the address is too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        assert_eq!(form(&[("a", "b c"), ("d", "/&=%+"), ("e", "")]), "a=b+c&d=%2F%26%3D%25%2B&e=");
        let uri = "http://h/p?x=1".parse().unwrap();
        assert_eq!(with_query(&uri, "y=2").unwrap().to_string(), "http://h/p?x=1&y=2");
        let uri = "http://h/p".parse().unwrap();
        assert_eq!(with_query(&uri, "y=2").unwrap().to_string(), "http://h/p?y=2");
        assert_eq!(with_query(&uri, "").unwrap().to_string(), "http://h/p");
    }

    #[test]
    fn addresses() {
        assert!(address("o", "http://127.0.0.1:1/a").is_ok());
        for bad in ["", "/a", "ftp://h/", "http//x"] {
            assert!(address("o", bad).is_err(), "{bad}");
        }
    }
}
