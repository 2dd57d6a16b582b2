//! Handlers of requests as the router has them: of one type, whatever the function.
//!
//! The router is generic over its handlers, and puts many functions of its own around each. With one type for all handlers
//! these functions are compiled once and not 180 times, which is a third of the time to compile this crate.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::FromRequest as _;
use axum::handler::Handler;
use axum::http::{Request, Response};
use axum::response::IntoResponse as _;

use super::App;
use super::answer::{Answer, Fault};
use super::call::Call;

type Later<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Made = Result<Answer, Fault>;
type OfRequest = dyn Fn(Arc<App>, Request<Body>) -> Later<Made> + Send + Sync;

/// A handler.
#[derive(Clone)]
pub(super) enum Handle {
    /// For users who have shown a password.
    Call(Arc<dyn Fn(Call) -> Later<Made> + Send + Sync>),
    /// For everybody: it does not see the request.
    App(Arc<dyn Fn(Arc<App>) -> Later<Answer> + Send + Sync>),
    /// For everybody, with the request as it came.
    Request(Arc<OfRequest>),
}

/// A function that can be a handler. `Of` is its argument.
pub(super) trait Handles<Of> {
    /// The function as the router has it.
    fn handle(self) -> Handle;
}

impl<F, L> Handles<Call> for F
where
    F: Fn(Call) -> L + Send + Sync + 'static,
    L: Future<Output = Made> + Send + 'static,
{
    fn handle(self) -> Handle {
        Handle::Call(Arc::new(move |call| Box::pin(self(call))))
    }
}

impl<F, L> Handles<Arc<App>> for F
where
    F: Fn(Arc<App>) -> L + Send + Sync + 'static,
    L: Future<Output = Answer> + Send + 'static,
{
    fn handle(self) -> Handle {
        Handle::App(Arc::new(move |app| Box::pin(self(app))))
    }
}

impl<F, L> Handles<(Arc<App>, Request<Body>)> for F
where
    F: Fn(Arc<App>, Request<Body>) -> L + Send + Sync + 'static,
    L: Future<Output = Made> + Send + 'static,
{
    fn handle(self) -> Handle {
        Handle::Request(Arc::new(move |app, request| Box::pin(self(app, request))))
    }
}

/// The mark by which [`Handler`] tells its implementations apart.
pub(super) enum Any {}

impl Handler<Any, Arc<App>> for Handle {
    type Future = Later<Response<Body>>;

    fn call(self, request: Request<Body>, app: Arc<App>) -> Self::Future {
        Box::pin(async move {
            match self {
                Self::Call(answer) => match Call::from_request(request, &app).await {
                    Ok(call) => {
                        let answer = answer(call).await;
                        // What it says was so when it was looked at, if this node leads still.
                        app.ops.node.may_answer().await;
                        answer.into_response()
                    }
                    Err(fault) => fault.into_response(),
                },
                Self::App(answer) => answer(app).await.into_response(),
                Self::Request(answer) => answer(app, request).await.into_response(),
            }
        })
    }
}
