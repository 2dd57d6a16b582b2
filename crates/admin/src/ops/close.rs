//! Closes connections of clients.

use std::sync::Arc;

use leveret_amqp::reply::ReplyCode;
use leveret_broker::message::ToSession;
use leveret_server::connection::{Connection, Letter};
use leveret_server::node::Node;
use leveret_server::runner::with_runner;
use leveret_session::ConnectionFacts;

use super::pages::Slice;

/// Closes a connection; its client is told the reason.
pub(crate) fn close(node: &Arc<Node>, connection: &Arc<Connection>, reason: &str) {
    let letter = ToSession::Close { code: ReplyCode::ConnectionForced, text: reason.to_owned() };
    with_runner(node, |runner| runner.run_connection(connection, Letter::Session(letter)));
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
