//! Sends a command to an actor and waits for its answer, as a client of the broker would.

use std::sync::Arc;

use leveret_amqp::reply::ReplyCode;
use leveret_broker::message::{
    AdminCommand, ConnectionId, Reply, ReplyTo, ToMeta, ToSession, ToShard,
};
use leveret_server::node::{Node, Recipient};
use leveret_server::runner::with_runner;
use leveret_topology::{By, GroupId, Imported, QueueId};
use tokio::sync::mpsc;

/// Why a command was not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The broker says no, as it would say to a client.
    #[error("{text}")]
    Refused {
        /// The code a client would get.
        code: ReplyCode,
        /// In words.
        text: String,
    },
    /// Nobody answers any more.
    #[error("the node is stopping")]
    Stopping,
    /// No shard answers yet.
    #[error("{}", leveret_config::FILLING)]
    Starting,
}

/// Somebody who sends commands to actors and waits for their answers.
#[derive(Debug)]
pub struct Asker<'a> {
    node: &'a Arc<Node>,
    id: ConnectionId,
    answers: mpsc::UnboundedReceiver<ToSession>,
}

impl<'a> Asker<'a> {
    /// Under an id of its own, until it is dropped.
    pub fn new(node: &'a Arc<Node>) -> Self {
        let id = node.new_id();
        let (sender, answers) = mpsc::unbounded_channel();
        node.register(id, Recipient::Request(sender));
        Self { node, id, answers }
    }

    /// Its id.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// Where answers are to go.
    pub fn reply_to(&self) -> ReplyTo {
        ReplyTo { connection: self.id, channel: 0 }
    }

    /// Sends a letter to the shard of a queue, and works off what follows.
    pub fn tell_shard_of(&self, queue: QueueId, letter: ToShard) {
        let home = self.node.topology().home(queue);
        self.tell_shard(home, letter);
    }

    /// Sends a letter to a shard, and works off what follows.
    pub fn tell_shard(&self, group: GroupId, letter: ToShard) {
        with_runner(self.node, |runner| runner.run_shard(group, letter));
    }

    /// Sends a letter to the topology's owner, and works off what follows.
    pub fn tell_meta(&self, letter: ToMeta) {
        with_runner(self.node, |runner| runner.run_meta(letter));
    }

    /// The next letter to it.
    pub async fn letter(&mut self) -> Result<ToSession, Refusal> {
        self.answers.recv().await.ok_or(Refusal::Stopping)
    }

    /// The next answer.
    pub async fn answer(&mut self) -> Result<Reply, Refusal> {
        loop {
            match self.letter().await? {
                ToSession::Reply { reply: Reply::Refused { code, text }, .. } => {
                    return Err(Refusal::Refused { code, text });
                }
                ToSession::Reply { reply, .. } => return Ok(reply),
                _ => {}
            }
        }
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        self.node.forget(self.id);
    }
}

/// Has the topology's owner make a change that somebody asks for, and waits until it is true. What an import has to
/// tell.
pub async fn admin(
    node: &Arc<Node>,
    by: Box<By>,
    command: AdminCommand,
) -> Result<Imported, Refusal> {
    let command = command.prepared().map_err(|error| Refusal::Refused {
        code: ReplyCode::PreconditionFailed,
        text: error.to_string(),
    })?;
    let letter = |reply| ToMeta::Admin { by, reply, command: Box::new(command) };
    match meta(node, letter).await? {
        Reply::Imported(imported) => Ok(*imported),
        _ => Ok(Imported::default()),
    }
}

/// Asks the topology's owner.
pub async fn meta(
    node: &Arc<Node>,
    letter: impl FnOnce(ReplyTo) -> ToMeta,
) -> Result<Reply, Refusal> {
    let mut asker = Asker::new(node);
    asker.tell_meta(letter(asker.reply_to()));
    asker.answer().await
}

/// Asks the shard of a queue. It is not waited for while the queues are being filled.
pub async fn shard(
    node: &Arc<Node>,
    queue: QueueId,
    letter: impl FnOnce(ReplyTo) -> ToShard,
) -> Result<Reply, Refusal> {
    if !node.is_filled() {
        return Err(Refusal::Starting);
    }
    let mut asker = Asker::new(node);
    asker.tell_shard_of(queue, letter(asker.reply_to()));
    asker.answer().await
}
