//! Every path and method of the API.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{Method, Response, Uri};
use axum::response::IntoResponse as _;
use axum::routing::{MethodFilter, MethodRouter};

use super::answer::Fault;
use super::handle::Handles as _;
use super::{
    App, bindings, browse, channels, cluster, connections, consumers, definitions, events,
    exchanges, features, health, inspect, limits, logs, members, messages, moving, nodes, openapi,
    operate, overview, parameters, path, permissions, policies, queue_control, queues, top, traces,
    users, vhosts,
};

macro_rules! routes {
    ($($path:literal => $($method:ident $handler:path),+;)*) => {
        /// Paths and their methods, for the description of the API to be compared with.
        #[cfg(test)]
        pub(super) const ROUTES: &[(&str, &[&str])] = &[$(($path, &[$(stringify!($method)),+])),*];

        /// What answers them.
        pub(super) fn router(app: Arc<App>) -> Router {
            let routes = Router::new()
                $(.route($path, MethodRouter::new()$(.on(MethodFilter::$method, $handler.handle()))+))*;
            with_nameless(routes)
                .fallback(page)
                .with_state(app)
        }
    };
}

/// Whether `DELETE` of this path with a slash behind it is about what has no name: imports took empty names once. All other
/// slashes at the end of a path mean nothing.
pub(super) fn may_be_nameless(path: &str) -> bool {
    let fits = |nameless: &str| {
        let (mut wanted, mut given) = (nameless.trim_end_matches('/').split('/'), path.split('/'));
        let is_so = wanted.by_ref().all(|wanted| {
            given.next().is_some_and(|given| wanted.starts_with('{') || wanted == given)
        });
        is_so && given.next().is_none()
    };
    NAMELESS.iter().any(|(nameless, _)| fits(nameless))
}

/// `DELETE` of what has no name: its path, and the route of what has one, whose handler answers.
macro_rules! nameless {
    ($($path:literal of $named:literal => $handler:path;)*) => {
        /// Paths, and the routes whose rights they have.
        const NAMELESS: &[(&str, &str)] = &[$(($path, $named)),*];

        fn with_nameless(routes: Router<Arc<App>>) -> Router<Arc<App>> {
            routes$(.route($path, MethodRouter::new().on(MethodFilter::DELETE, $handler.handle())))*
        }
    };
}

#[rustfmt::skip] // a table
nameless! {
    "/api/users/" of "/api/users/{user}" => users::delete;
    "/api/global-parameters/" of "/api/global-parameters/{name}" => parameters::delete_global;
    "/api/policies/{vhost}/" of "/api/policies/{vhost}/{name}" => policies::delete;
    "/api/operator-policies/{vhost}/" of "/api/operator-policies/{vhost}/{name}" => policies::delete_operator;
    "/api/parameters/{component}/{vhost}/" of "/api/parameters/{component}/{vhost}/{name}" => parameters::delete;
}

/// What is not the API's may be the management page's.
async fn page(State(app): State<Arc<App>>, method: Method, uri: Uri) -> Response<Body> {
    let is_read = method == Method::GET || method == Method::HEAD;
    let prefix = app.options.path_prefix.as_deref().unwrap_or_default();
    let page = is_read.then(|| crate::page::answer(prefix, uri.path())).flatten();
    page.unwrap_or_else(|| Fault::not_found().into_response())
}

#[rustfmt::skip] // a table
routes! {
    "/api/openapi.yaml" => GET openapi::get;
    "/api/overview" => GET overview::get;
    "/api/cluster-name" => GET cluster::get_name, PUT cluster::put_name;
    "/api/nodes" => GET nodes::list;
    "/api/nodes/{node}" => GET nodes::get;
    "/api/nodes/{node}/memory" => GET nodes::memory;
    "/api/nodes/{node}/memory/relative" => GET nodes::memory_relative;
    "/api/nodes/{node}/memory/ets" => GET nodes::memory_ets;
    "/api/nodes/{node}/memory/ets/relative" => GET nodes::memory_ets;
    "/api/extensions" => GET cluster::extensions;
    "/api/all-configuration" => GET definitions::get, POST definitions::put, PUT definitions::put;
    "/api/definitions" => GET definitions::get, POST definitions::put, PUT definitions::put;
    "/api/definitions/{vhost}" => GET definitions::get, POST definitions::put, PUT definitions::put;
    "/api/parameters" => GET parameters::list;
    "/api/parameters/{component}" => GET parameters::list;
    "/api/parameters/{component}/{vhost}" => GET parameters::list;
    "/api/parameters/{component}/{vhost}/{name}" => GET parameters::get, PUT parameters::put, DELETE parameters::delete;
    "/api/global-parameters" => GET parameters::list_globals;
    "/api/global-parameters/{name}" => GET parameters::get_global, PUT parameters::put_global, DELETE parameters::delete_global;
    "/api/policies" => GET policies::list;
    "/api/policies/{vhost}" => GET policies::list;
    "/api/policies/{vhost}/{name}" => GET policies::get, PUT policies::put, DELETE policies::delete;
    "/api/operator-policies" => GET policies::list_operators;
    "/api/operator-policies/{vhost}" => GET policies::list_operators;
    "/api/operator-policies/{vhost}/{name}" => GET policies::get_operator, PUT policies::put_operator, DELETE policies::delete_operator;
    "/api/vhost-limits" => GET limits::list_of_vhosts;
    "/api/vhost-limits/{vhost}" => GET limits::list_of_vhosts;
    "/api/vhost-limits/{vhost}/{name}" => PUT limits::put_of_vhost, DELETE limits::delete_of_vhost;
    "/api/user-limits" => GET limits::list_of_users;
    "/api/user-limits/{user}" => GET limits::list_of_users;
    "/api/user-limits/{user}/{name}" => PUT limits::put_of_user, DELETE limits::delete_of_user;
    "/api/connections" => GET connections::list;
    "/api/connections/{connection}" => GET connections::get, DELETE connections::close;
    "/api/connections/{connection}/channels" => GET connections::list_channels;
    "/api/connections/{connection}/sessions" => GET connections::list_sessions;
    "/api/connections/username/{user}" => GET connections::list_of_user, DELETE connections::close_of_user;
    "/api/channels" => GET channels::list;
    "/api/channels/{channel}" => GET channels::get;
    "/api/consumers" => GET consumers::list;
    "/api/consumers/{vhost}" => GET consumers::list;
    "/api/exchanges" => GET exchanges::list;
    "/api/exchanges/{vhost}" => GET exchanges::list;
    "/api/exchanges/{vhost}/{exchange}" => GET exchanges::get, PUT exchanges::put, DELETE exchanges::delete;
    "/api/exchanges/{vhost}/{exchange}/publish" => POST messages::publish;
    "/api/exchanges/{vhost}/{exchange}/bindings/source" => GET bindings::list_from;
    "/api/exchanges/{vhost}/{exchange}/bindings/destination" => GET bindings::list_to;
    "/api/queues" => GET queues::list;
    "/api/queues/detailed" => GET queues::list;
    "/api/queues/{vhost}" => GET queues::list;
    "/api/queues/{vhost}/{queue}" => GET queues::get, PUT queues::put, DELETE queues::delete;
    "/api/queues/{vhost}/{queue}/bindings" => GET bindings::list_of_queue;
    "/api/queues/{vhost}/{queue}/contents" => DELETE queues::purge;
    "/api/queues/{vhost}/{queue}/messages" => GET browse::list;
    "/api/queues/{vhost}/{queue}/messages/{position}" => DELETE browse::delete;
    "/api/queues/{vhost}/{queue}/messages/{position}/requeue" => POST moving::requeue;
    "/api/queues/{vhost}/{queue}/move" => POST moving::post;
    "/api/queues/{vhost}/{queue}/get" => POST messages::get;
    "/api/queues/{vhost}/{queue}/arguments" => PUT queue_control::put_arguments, PATCH queue_control::patch_arguments;
    "/api/queues/{vhost}/{queue}/pause" => PUT queue_control::pause;
    "/api/queues/{vhost}/{queue}/resume" => PUT queue_control::resume;
    "/api/queues/{vhost}/{queue}/actions" => POST queues::act;
    "/api/queues/quorum/{vhost}/{queue}/status" => GET queues::quorum_status;
    "/api/queues/quorum/{vhost}/{queue}/replicas/add" => POST queues::add_replicas;
    "/api/queues/quorum/{vhost}/{queue}/replicas/delete" => DELETE queues::replicas;
    "/api/queues/quorum/replicas/on/{node}/grow" => POST queues::add_replicas;
    "/api/queues/quorum/replicas/on/{node}/shrink" => DELETE queues::replicas;
    "/api/rebalance/queues" => POST cluster::rebalance;
    "/api/bindings" => GET bindings::list;
    "/api/bindings/{vhost}" => GET bindings::list;
    "/api/bindings/{vhost}/e/{source}/{dtype}/{destination}" => GET bindings::list_between, POST bindings::post;
    "/api/bindings/{vhost}/e/{source}/{dtype}/{destination}/{props}" => GET bindings::get, DELETE bindings::delete;
    "/api/vhosts" => GET vhosts::list;
    "/api/vhosts/{vhost}" => GET vhosts::get, PUT vhosts::put, DELETE vhosts::delete;
    "/api/vhosts/{vhost}/start/{node}" => POST vhosts::start;
    "/api/vhosts/{vhost}/deletion/protection" =>
        GET vhosts::protection, POST vhosts::protect, DELETE vhosts::unprotect;
    "/api/vhosts/{vhost}/permissions" => GET permissions::list_of_vhost;
    "/api/vhosts/{vhost}/topic-permissions" => GET permissions::list_topics_of_vhost;
    "/api/vhosts/{vhost}/connections" => GET connections::list_of_vhost;
    "/api/vhosts/{vhost}/channels" => GET channels::list_of_vhost;
    "/api/users" => GET users::list;
    "/api/users/bulk-delete" => POST users::bulk_delete;
    "/api/users/without-permissions" => GET users::without_permissions;
    "/api/users/{user}" => GET users::get, PUT users::put, DELETE users::delete;
    "/api/users/{user}/permissions" => GET permissions::list_of_user;
    "/api/users/{user}/queues" => GET queues::list_of_user;
    "/api/users/{user}/topic-permissions" => GET permissions::list_topics_of_user;
    "/api/whoami" => GET cluster::whoami;
    "/api/version" => GET cluster::version;
    "/api/permissions" => GET permissions::list;
    "/api/permissions/{vhost}/{user}" => GET permissions::get, PUT permissions::put, DELETE permissions::delete;
    "/api/traces" => GET traces::list;
    "/api/traces/node/{node}" => GET traces::list;
    "/api/traces/{vhost}" => GET traces::list;
    "/api/traces/node/{node}/{vhost}" => GET traces::list;
    "/api/traces/{vhost}/{name}" => GET traces::get, PUT traces::put, DELETE traces::delete;
    "/api/traces/node/{node}/{vhost}/{name}" => GET traces::get, PUT traces::put, DELETE traces::delete;
    "/api/trace-files" => GET traces::list_files;
    "/api/trace-files/node/{node}" => GET traces::list_files;
    "/api/trace-files/{name}" => GET traces::get_file, DELETE traces::delete_file;
    "/api/trace-files/node/{node}/{name}" => GET traces::get_file, DELETE traces::delete_file;
    "/api/topic-permissions" => GET permissions::list_topics;
    "/api/topic-permissions/{vhost}/{user}" => GET permissions::get_topics, PUT permissions::put_topics, DELETE permissions::delete_topics;
    "/api/topic-permissions/{vhost}/{user}/{exchange}" => GET permissions::get_topics, DELETE permissions::delete_topics;
    "/api/aliveness-test/{vhost}" => GET health::aliveness;
    "/api/healthchecks/node" => GET health::node;
    "/api/healthchecks/node/{node}" => GET health::node;
    "/api/health/checks/alarms" => GET health::alarms;
    "/api/health/checks/local-alarms" => GET health::local_alarms;
    "/api/health/checks/certificate-expiration/{within}/{unit}" => GET health::certificates;
    "/api/health/checks/port-listener/{port}" => GET health::port;
    "/api/health/checks/protocol-listener/{protocol}" => GET health::protocol;
    "/api/health/checks/virtual-hosts" => GET health::virtual_hosts;
    "/api/health/checks/node-is-mirror-sync-critical" => GET health::mirror_critical;
    "/api/health/checks/node-is-quorum-critical" => GET health::quorum_critical;
    "/api/health/checks/reached-target-cluster-size" => GET health::cluster_size;
    "/api/health/checks/quorum-queues-without-elected-leaders/all-vhosts" => GET health::led;
    "/api/health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}" => GET health::led;
    "/api/health/checks/quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}" => GET health::led;
    "/api/health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}" => GET health::led;
    "/api/health/checks/metadata-store/initialized" => GET health::names;
    "/api/health/checks/metadata-store/initialized/with-data" => GET health::names_with_data;
    "/api/health/checks/is-in-service" => GET health::in_service;
    "/api/health/checks/ready-to-serve-clients" => GET health::ready;
    "/api/health/checks/below-node-connection-limit" => GET health::connection_limit;
    "/api/feature-flags" => GET features::flags;
    "/api/feature-flags/{name}/enable" => PUT features::enable;
    "/api/deprecated-features" => GET features::deprecated;
    "/api/deprecated-features/used" => GET features::deprecated_used;
    "/api/reset" => DELETE cluster::reset;
    "/api/reset/{node}" => DELETE cluster::reset;
    "/api/events" => GET events::list;
    "/api/auth" => GET cluster::auth;
    "/api/auth/attempts/{node}" => GET cluster::attempts, DELETE cluster::clear_attempts;
    "/api/auth/attempts/{node}/source" => GET cluster::attempts_by_source, DELETE cluster::clear_attempts;
    "/api/auth/hash_password/{password}" => GET cluster::hash_password;
    "/api/login" => POST cluster::login;
    "/api/config/effective" => GET cluster::environment;
    "/api/leveret/status" => GET operate::status;
    "/api/leveret/cluster" => GET members::get;
    "/api/leveret/cluster/nodes/{node}" => DELETE members::forget;
    "/api/leveret/cluster/hand-over" => POST members::hand_over;
    "/api/leveret/stop" => POST operate::stop;
    "/api/leveret/certificates/reload" => POST operate::reload_certificates;
    "/api/leveret/watermarks/memory" => PUT operate::put_memory_watermark, DELETE operate::delete_memory_watermark;
    "/api/leveret/watermarks/disk" => PUT operate::put_disk_watermark, DELETE operate::delete_disk_watermark;
    "/api/leveret/authenticate" => POST operate::authenticate;
    "/api/leveret/listeners/suspend" => POST operate::suspend_listeners;
    "/api/leveret/listeners/resume" => POST operate::resume_listeners;
    "/api/leveret/log" => GET logs::tail;
    "/api/leveret/log/rotate" => POST logs::rotate;
    "/api/leveret/log/level" => PUT logs::put_level;
    "/api/leveret/tls" => GET inspect::tls;
    "/api/top/{node}" => GET top::processes;
    "/api/top/ets/{node}" => GET top::tables;
    "/api/process/{pid}" => GET top::process;
    "/api/leveret/path/{vhost}" => GET path::get;
    "/api/leveret/threads" => GET inspect::threads;
    "/api/leveret/message-sizes" => GET inspect::message_sizes;
    "/api/leveret/confirm-latency" => GET inspect::confirm_latency;
    "/api/leveret/waits" => GET inspect::waits;
    "/api/shovels" => GET cluster::nothing;
    "/api/shovels/{vhost}" => GET cluster::nothing;
    "/api/shovels/vhost/{vhost}/{name}" => GET cluster::no_such, DELETE cluster::no_such;
    "/api/federation-links" => GET cluster::nothing;
    "/api/federation-links/{vhost}" => GET cluster::nothing;
    "/api/stream/connections" => GET cluster::nothing;
    "/api/stream/connections/{vhost}" => GET cluster::nothing;
    "/api/stream/publishers" => GET cluster::nothing;
    "/api/stream/publishers/{vhost}" => GET cluster::nothing;
    "/api/stream/consumers" => GET cluster::nothing;
    "/api/stream/consumers/{vhost}" => GET cluster::nothing;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who may use it, by tag and permissions: see `tests/http/rights.rs`.
    const RIGHTS: &str = include_str!("../../tests/http/rights.txt");

    /// A route in a vhost has a row for a vhost of one's own and one for another's.
    #[test]
    fn every_route_has_its_rights() {
        let mut routed = Vec::new();
        for (path, methods) in ROUTES {
            let vhosts: &[&str] = if path.contains("{vhost}") { &["v", "zz"] } else { &["-"] };
            for method in *methods {
                routed.extend(vhosts.iter().map(|vhost| format!("{method} {path} {vhost}")));
            }
        }
        let lines = RIGHTS.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let mut rows: Vec<_> = lines
            .map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" "))
            .collect();
        routed.sort();
        rows.sort();
        assert_eq!(rows, routed);
    }

    /// What deletes the nameless is what deletes the named: its rights have rows.
    #[test]
    fn the_nameless_have_the_rights_of_the_named() {
        for (path, named) in NAMELESS {
            assert!(
                named.starts_with(path) && may_be_nameless(path.trim_end_matches('/')),
                "{path}"
            );
            let found = ROUTES.iter().find(|(path, _)| path == named);
            assert!(found.is_some_and(|(_, methods)| methods.contains(&"DELETE")), "{named}");
        }
    }
}
