//! The last events of the node.

use leveret_amqp::table::RawTable;
use leveret_server::events::KeptEvent;
use leveret_topology::table_to_json;
use serde_json::{Value, json};

use super::answer::{Answer, Fault};
use super::call::Call;

/// `GET /api/events`: those kept, oldest first; with `?since=N` those after number N.
///
/// For administrators: parameters are among the facts, and secrets among the parameters.
pub(super) async fn list(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let since = match call.query("since") {
        None => 0,
        Some(text) => text.parse().map_err(|_| Fault::bad("'since' must be an event's number"))?,
    };
    let (events, last) = call.node().events.after(since);
    let events: Vec<_> = events.iter().map(row).collect();
    Ok(Answer::Json(json!({"events": events, "last": last})))
}

fn row(event: &KeptEvent) -> Value {
    let facts = RawTable::unchecked(&event.facts).to_table().unwrap_or_default();
    json!({
        "number": event.number,
        "name": event.name,
        "timestamp": event.at.ms(),
        "facts": table_to_json(&facts),
    })
}
