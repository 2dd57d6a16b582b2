//! Closes connections of clients.

use std::sync::Arc;

use leveret_server::cluster::sessions::seen::{AnyConnection, NotHeard, Wanted};
use leveret_server::node::Node;

use super::pages::Slice;

/// Closes the connections, of all nodes, that are meant; their clients are told the reason.
///
/// # Errors
///
/// Nodes that did not answer in time: theirs stay.
pub(crate) async fn close_all(
    node: &Arc<Node>,
    reason: &str,
    meant: &Wanted,
) -> Result<(), NotHeard> {
    close_here(node, reason, meant).await;
    let mut elsewhere = node.connections_elsewhere(meant);
    while let Some(some) = elsewhere.next().await {
        some.iter().for_each(|it| it.close(node, reason.to_owned()));
    }
    elsewhere.all_came().await
}

/// The same of this node alone: of what is deleted, a node of sessions closes its own.
pub(crate) async fn close_here(node: &Arc<Node>, reason: &str, meant: &Wanted) {
    let mut slice = Slice::begin();
    for connection in node.connections() {
        if meant.has(&connection) {
            AnyConnection::Here(connection).close(node, reason.to_owned());
        }
        slice.share().await;
    }
}
