//! Closes connections of clients.

use std::sync::Arc;

use leveret_server::node::Node;
use leveret_session::ConnectionFacts;

use super::pages::Slice;

/// Closes the connections, of all nodes, that `is_meant` says; their clients are told the reason.
pub(crate) async fn close_all(
    node: &Arc<Node>,
    reason: &str,
    is_meant: impl Fn(&ConnectionFacts) -> bool + Send + Sync,
) {
    let mut slice = Slice::begin();
    for connection in node.all_connections().await {
        if connection.facts().is_some_and(|facts| is_meant(&facts)) {
            connection.close(node, reason.to_owned());
        }
        slice.share().await;
    }
}
