//! The rest of a body that nobody reads, because its request was refused before.
//!
//! A socket that is closed with bytes unread is reset, and a reset overtakes the answer: a client that still sends saw a broken
//! connection in the place of why it was refused. So what still comes is read and thrown away, within bounds. If that is more
//! than little, or if the client waits for leave to send it, the answer says that the connection ends with it.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::{HeaderMap, Response, header};
use tokio::sync::oneshot::{Receiver, Sender, channel};
use tokio::time::{sleep, timeout};

use crate::front::Ended;

/// After no more than this the connection goes on.
const LITTLE: u64 = 64 << 10;

/// No more than this is thrown away. Three times the longest body that is taken by default.
const MOST: usize = 64 << 20;

/// Nor for longer than this, from when the answer is written.
const PATIENCE: Duration = Duration::from_secs(5);

/// Nor for longer than this once the node stops: less than a stop waits for requests.
const STOP_PATIENCE: Duration = Duration::from_millis(500);

/// A body that goes back to where it was lent from, unless all of it is read.
struct Lent {
    body: Option<Incoming>,
    owner: Option<Sender<Incoming>>,
}

/// Where a body goes back to.
pub(crate) struct Unread {
    back: Receiver<Incoming>,
    /// The client sends it only if it is told to, and never if it is refused.
    waits: bool,
}

/// The body of an answer. Gone when all of it is written.
struct Written {
    body: Body,
    _tell: Sender<()>,
}

/// Lends a body to who answers its request, which has these headers.
pub(crate) fn lend(headers: &HeaderMap, body: Incoming) -> (Body, Unread) {
    let (owner, back) = channel();
    let lent = Lent { body: Some(body), owner: Some(owner) };
    (Body::new(lent), Unread { back, waits: headers.contains_key(header::EXPECT) })
}

impl Unread {
    /// The answer, if the request is gone: what is left of its body is thrown away.
    pub(crate) fn after(mut self, response: Response<Body>, mut ended: Ended) -> Response<Body> {
        let rest = self.back.try_recv();
        let Some(rest) = rest.ok().filter(|rest| !rest.is_end_stream()) else { return response };
        let (mut head, body) = response.into_parts();
        let is_little = rest.size_hint().upper().is_some_and(|bytes| bytes <= LITTLE);
        if self.waits || !is_little {
            head.headers.insert(header::CONNECTION, header::HeaderValue::from_static("close"));
        }
        let (tell, is_written) = channel();
        tokio::spawn(async move {
            // Who reads a body gives leave to send it, unless it is answered already.
            let _ = is_written.await;
            let late = async {
                ended.comes().await;
                sleep(STOP_PATIENCE).await;
            };
            tokio::select! {
                _ = timeout(PATIENCE, throw_away(rest)) => {}
                () = late => {}
            }
        });
        Response::from_parts(head, Body::new(Written { body, _tell: tell }))
    }
}

async fn throw_away(mut body: Incoming) {
    let mut left = MOST;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(bytes) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

impl HttpBody for Lent {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.body = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), HttpBody::size_hint)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let (Some(body), Some(owner)) = (self.body.take(), self.owner.take()) {
            // Nobody wants it back of a request that is not answered.
            let _ = owner.send(body);
        }
    }
}

impl HttpBody for Written {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
