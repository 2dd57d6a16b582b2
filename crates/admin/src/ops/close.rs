//! Closes connections of clients.

use std::sync::Arc;

use leveret_server::connection::Connection;
use leveret_server::node::Node;
use leveret_server::runner::with_runner;
use leveret_session::ConnectionFacts;

use super::pages::Slice;

/// Closes a connection; its client is told the reason.
pub(crate) fn close(node: &Arc<Node>, connection: &Arc<Connection>, reason: &str) {
    with_runner(node, |runner| runner.close_connection(connection, reason.to_owned()));
}

/// Closes the connections that `is_meant` says; their clients are told the reason.
pub(crate) async fn close_all(
    node: &Arc<Node>,
    reason: &str,
    is_meant: impl Fn(&ConnectionFacts) -> bool + Send + Sync,
) {
    let mut slice = Slice::begin();
    for connection in node.connections() {
        if is_meant(&connection.facts()) {
            close(node, &connection, reason);
        }
        slice.share().await;
    }
}
