//! What a node answers that has a copy of the names and nothing else: the same as the node that leads, by the same code.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{AGE, WARNING};
use axum::http::{HeaderValue, Method, Request, Response};
use leveret_config::options::{ManagementOptions, TracingOptions};
use leveret_server::cluster::names::CopyAge;
use leveret_server::cluster::view::Views;
use leveret_server::front::{About, Stop};
use leveret_server::node::Node;

use super::call::{Peer, parse_query};
use super::{App, Requests, routes, shell};
use crate::ops::Ops;
use crate::signin::SignIn;
use crate::stats::Collector;
use crate::traces::Traces;

/// What is answered by names alone: the path itself, and what is below it.
const OF_NAMES: [&str; 13] = [
    "bindings",
    "definitions",
    "exchanges",
    "global-parameters",
    "operator-policies",
    "parameters",
    "permissions",
    "policies",
    "topic-permissions",
    "user-limits",
    "users",
    "vhost-limits",
    "vhosts",
];

/// What is known of a queue without its shard.
const OF_QUEUE: [&str; 7] =
    ["arguments", "auto_delete", "durable", "exclusive", "name", "type", "vhost"];

/// Whether a request needs nothing but the names: only reads them, and asks for no messages, connections or rates.
pub(crate) fn needs_only_names(request: &Request<Body>) -> bool {
    let path = request.uri().path();
    let Some(path) = path.strip_prefix("/api/").filter(|_| request.method() == Method::GET) else {
        return false;
    };
    let parts: Vec<_> = path.trim_end_matches('/').split('/').collect();
    match *parts.as_slice() {
        ["queues"] | ["queues", _] => {
            let query = parse_query(request.uri().query().unwrap_or_default());
            let is_key = |key: &str| key == "columns" || key == "sort";
            let named = query.iter().filter(|(key, _)| is_key(key));
            let mut names = named.flat_map(|(_, names)| names.split(','));
            query.iter().any(|(key, _)| key == "columns")
                && names.all(|name| OF_QUEUE.contains(&name))
        }
        ["queues", _, _, "bindings"] => true,
        // Messages of a traced vhost, and who is connected.
        ["vhosts", _, "connections" | "channels"] | ["users", _, "queues" | "connections"] => false,
        [first, ..] => OF_NAMES.contains(&first),
        [] => false,
    }
}

/// Answers from a copy.
#[derive(Debug)]
pub(crate) struct Copied {
    app: App,
    router: Router,
}

impl Copied {
    /// Of a node without actors that has the names.
    pub(crate) fn new(node: Arc<Node>, about: About, stop: Stop, views: Views) -> Self {
        let stats =
            Arc::new(Collector::new(Arc::clone(&node), about.clone(), Duration::from_secs(5)));
        let traces =
            Traces::new(Arc::clone(&node), TracingOptions::default(), about.data_dir.clone());
        let (views, members) = (Some(views), None);
        let ops = Arc::new(Ops { node, about, stop, stats, views, members, traces });
        let app = || App {
            ops: Arc::clone(&ops),
            options: ManagementOptions::default(),
            signin: SignIn::by_password(),
            requests: Requests::default(),
        };
        Self { app: app(), router: routes::router(Arc::new(app())) }
    }

    /// Answers a request that [needs only names](needs_only_names), from a copy of this age; `why`
    /// no other node is asked.
    pub(crate) async fn answer(
        &self,
        peer: Peer,
        request: Request<Body>,
        age: CopyAge,
        why: &str,
    ) -> Response<Body> {
        let mut response = shell::answer(&self.app, self.router.clone(), peer, None, request).await;
        let headers = response.headers_mut();
        headers.insert(AGE, HeaderValue::from(age.at_least.as_secs()));
        // 110: the answer is stale.
        let text = format!("110 - \"a copy of the names {age}, as {why}\"");
        headers.extend(HeaderValue::try_from(text).ok().map(|text| (WARNING, text)));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn what_names_alone_answer() {
        check("GET",  "/api/exchanges",                            true);
        check("GET",  "/api/exchanges/%2F/x/bindings/source",      true);
        check("GET",  "/api/definitions",                          true);
        check("GET",  "/api/users/u/permissions",                  true);
        check("GET",  "/api/queues/%2F?columns=name",              true);
        check("GET",  "/api/queues?columns=name,arguments",        true);
        check("GET",  "/api/queues/%2F/q/bindings",                true);
        check("GET",  "/api/queues?columns=name&sort=durable",     true);
        check("GET",  "/api/queues?columns=name&sort=messages",    false);
        check("GET",  "/api/queues",                               false); // messages are the shards'
        check("GET",  "/api/queues/%2F?columns=name,messages",     false);
        check("GET",  "/api/queues/%2F/q",                         false);
        check("GET",  "/api/users/u/queues",                       false);
        check("GET",  "/api/vhosts/%2F/connections",               false);
        check("GET",  "/api/overview",                             false);
        check("GET",  "/api/connections",                          false);
        check("PUT",  "/api/vhosts/v",                             false);
        check("POST", "/api/definitions",                          false);

        #[track_caller]
        fn check(method: &str, uri: &str, want: bool) {
            let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
            assert_eq!(needs_only_names(&request), want, "{method} {uri}");
        }
    }
}
