//! The operator who sets and clears policies while messages flow.

use leveret_broker::message::{AdminCommand, ConnectionId, ReplyTo, ToMeta};

use crate::plan::POLICIES;
use crate::random::Random;

/// Who asks for it: no connection.
pub(crate) const OPERATOR: ConnectionId = ConnectionId::new(0);

/// Which policies are there.
#[derive(Debug, Default)]
pub(crate) struct Policies {
    is_set: [bool; POLICIES.len()],
}

impl Policies {
    /// The next change: a policy is made, replaced or cleared.
    pub(crate) fn change(&mut self, random: &mut Random) -> ToMeta {
        let at = random.below(POLICIES.len());
        let (queue, definitions) = POLICIES[at];
        let clears = self.is_set[at] && random.one_in(3);
        self.is_set[at] = !clears;
        let (vhost, name) = ("/".to_owned(), queue.to_owned());
        let command = if clears {
            AdminCommand::ClearPolicy { vhost, name }
        } else {
            let json = definitions[random.below(definitions.len())];
            AdminCommand::SetPolicy {
                vhost,
                name,
                pattern: format!("^{queue}$"),
                definition: serde_json::from_str(json).expect("the plan is well-formed"),
                priority: 0,
                apply_to: "queues".to_owned(),
            }
        };
        let reply = ReplyTo { connection: OPERATOR, channel: 0 };
        ToMeta::Admin { reply, command: Box::new(command) }
    }
}
