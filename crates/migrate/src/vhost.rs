//! A vhost on both brokers: a connection to each, and its queues, one after the other.

use std::time::Duration;

use leveret_client::amqp::table::Table;
use leveret_client::{
    CloseReason, Connection, Error, ExchangeDeclare, Options, QueueDeclare, QueueDeclared, Uri,
};
use leveret_ctl::{Code, Fault};

use crate::definitions::NAME_MAX;
use crate::flow::{Flow, Intake};
use crate::queues::Queue;
use crate::report::{Outcome, Report};

/// Begins the names of the exchanges that messages pass on the new broker, each bound to one queue. The default exchange
/// would do, but for the routing key, which would be the queue's name then: what consumers look at and what a dead
/// letter is routed by. And `CC` would bring copies to other queues.
const EXCHANGE: &str = "leveret.migrate.";

/// Connections to both brokers.
#[derive(Debug)]
pub(crate) struct Pair {
    source: Connection,
    target: Connection,
    from: Uri,
    to: Uri,
    prefetch: u16,
    /// Why there is no connection to one of them any more.
    lost: Option<String>,
}

/// Which of the two brokers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Where messages come from.
    Old,
    /// Where they go.
    New,
}

/// What went wrong, and with which broker.
pub(crate) type Failure = (Side, Error);

impl Pair {
    /// Connects to both. The inner error is one of this vhost alone.
    pub(crate) fn open(
        from: &Uri,
        to: &Uri,
        vhost: &str,
        prefetch: u16,
    ) -> Result<Result<Self, String>, Fault> {
        let in_vhost = |uri: &Uri| Uri { vhost: vhost.to_owned(), ..uri.clone() };
        let (from, to) = (in_vhost(from), in_vhost(to));
        let (source, target) = match (connect(Side::Old, &from)?, connect(Side::New, &to)?) {
            (Ok(source), Ok(target)) => (source, target),
            (Err(why), _) | (_, Err(why)) => return Ok(Err(why)),
        };
        let mut pair = Self { source, target, from, to, prefetch, lost: None };
        match pair.are_two() {
            Ok(true) => Ok(Ok(pair)),
            Ok(false) => Err(Fault::new(
                Code::Usage,
                "--from and --to are the same broker; nothing was moved",
            )),
            Err((side, error)) => Ok(Err(pair.told(side, &error))),
        }
    }

    /// Whether what is declared on one is not there on the other.
    fn are_two(&mut self) -> Result<bool, Failure> {
        let name = format!("{EXCHANGE}{}", std::process::id());
        let how = ExchangeDeclare::default();
        let channel = self.target.open_channel().map_err(Side::New.failure())?;
        let declared = self.target.exchange_declare(channel, &name, "fanout", &how);
        declared.map_err(Side::New.failure())?;
        let channel_there = self.source.open_channel().map_err(Side::Old.failure())?;
        let how = ExchangeDeclare { passive: true, ..how };
        let seen = match self.source.exchange_declare(channel_there, &name, "fanout", &how) {
            Err(error) if code(&error) == 404 => Ok(true),
            seen => seen.map(|()| false).map_err(Side::Old.failure()),
        };
        let deleted = self.target.exchange_delete(channel, &name, false);
        deleted.and_then(|()| self.target.close_channel(channel)).map_err(Side::New.failure())?;
        seen
    }

    /// Why there is no connection any more.
    pub(crate) fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    /// Moves the messages of one queue, until it was seen empty or something keeps it from that.
    pub(crate) fn move_queue(&mut self, queue: &Queue, report: &mut Report) -> Outcome {
        let mut outcome = Outcome::default();
        match self.attempt(queue, &mut outcome, report) {
            Ok(()) => {}
            // It went meanwhile, and nothing is left.
            Err((Side::Old, error)) if is_no_queue(&error) && outcome.moved == 0 => {
                return Outcome::default();
            }
            Err((side, error)) => {
                outcome.why = Some(self.told(side, &error));
                self.begin_anew(queue);
            }
        }
        if outcome.why.is_some() && self.lost.is_none() {
            // What is left is what the queue itself says now.
            match self.look(queue) {
                Ok(declared) => outcome.left = declared.message_count.into(),
                Err(_) => self.begin_anew(queue),
            }
        }
        outcome
    }

    /// After a failure: new connections, on which nothing is under way, and what was made for the queue is removed.
    fn begin_anew(&mut self, queue: &Queue) {
        match Self::open(&self.from, &self.to, &self.from.vhost, self.prefetch) {
            Ok(Ok(pair)) => *self = pair,
            Ok(Err(why)) => self.lost = Some(why),
            Err(fault) => self.lost = Some(fault.text),
        }
        if self.lost.is_none()
            && let Err(error) = self.clear(queue)
        {
            self.lost = Some(self.told(Side::New, &error));
        }
    }

    fn attempt(
        &mut self,
        queue: &Queue,
        outcome: &mut Outcome,
        report: &mut Report,
    ) -> Result<(), Failure> {
        let declared = self.look(queue).map_err(Side::Old.failure())?;
        outcome.found = declared.message_count.into();
        outcome.left = outcome.found;
        outcome.consumers = declared.consumer_count;
        if declared.message_count == 0 {
            // A run that was killed may have left its exchange.
            return self.clear(queue).map_err(Side::New.failure());
        }
        let (to, before) = self.prepare(queue).map_err(Side::New.failure())?;
        outcome.why = queue.why_no_room(outcome.found, before.message_count.into());
        if outcome.why.is_some() {
            close(&mut self.target, to).map_err(Side::New.failure())?;
            return self.clear(queue).map_err(Side::New.failure());
        }
        let from = self.source.open_channel().map_err(Side::Old.failure())?;
        let how = if queue.is_auto_delete { Intake::Got(from) } else { Intake::Consumed(from) };
        let exchange = exchange_of(queue);
        let (source, target) = (&mut self.source, &mut self.target);
        let prefetch = self.prefetch;
        let mut flow = Flow::new((source, how), (target, to), queue, &exchange, prefetch, &before);
        let found = outcome.found;
        let ended = flow.run(|moved, word| report.at(queue, moved, found, word));
        outcome.moved = flow.moved();
        outcome.why = flow.why().map(str::to_owned);
        outcome.note = flow.note().map(str::to_owned);
        outcome.left = found.saturating_sub(outcome.moved);
        ended?;
        // What was not acked goes back to its queue.
        close(&mut self.source, from).map_err(Side::Old.failure())?;
        close(&mut self.target, to).map_err(Side::New.failure())?;
        self.clear(queue).map_err(Side::New.failure())?;
        if outcome.why.is_none() {
            outcome.left = 0;
        }
        Ok(())
    }

    /// What the old broker says of a queue.
    fn look(&mut self, queue: &Queue) -> Result<QueueDeclared, Error> {
        let channel = self.source.open_channel()?;
        let how = QueueDeclare { passive: true, ..QueueDeclare::default() };
        let declared = self.source.queue_declare(channel, &queue.name, &how)?;
        self.source.close_channel(channel)?;
        Ok(declared)
    }

    /// Looks whether the queue is there, and binds an exchange of its own to it. The channel to publish on, and what the
    /// queue has.
    fn prepare(&mut self, queue: &Queue) -> Result<(u16, QueueDeclared), Error> {
        let (target, exchange) = (&mut self.target, exchange_of(queue));
        let channel = target.open_channel()?;
        let how = QueueDeclare { passive: true, ..QueueDeclare::default() };
        let declared = target.queue_declare(channel, &queue.name, &how)?;
        // One that was left there may be bound to more: names that are too long are cut.
        target.exchange_delete(channel, &exchange, false)?;
        target.exchange_declare(channel, &exchange, "fanout", &ExchangeDeclare::default())?;
        target.queue_bind(channel, &queue.name, &exchange, "", &Table::default())?;
        target.confirm_select(channel)?;
        Ok((channel, declared))
    }

    /// Removes the queue's exchange.
    fn clear(&mut self, queue: &Queue) -> Result<(), Error> {
        let channel = self.target.open_channel()?;
        self.target.exchange_delete(channel, &exchange_of(queue), false)?;
        self.target.close_channel(channel)
    }

    fn told(&self, side: Side, error: &Error) -> String {
        let user = if side == Side::Old { &self.from.user } else { &self.to.user };
        match error.close_reason() {
            Some(reason) if reason.text.contains("user_id") => format!(
                "{}: {}: give the user '{user}' the tag impersonator there, and run it again",
                side.name(),
                reason.text
            ),
            Some(reason) => format!("{}: {}{}", side.name(), reason.text, hint(side, reason)),
            None => format!("{}: {error}; run it again", side.name()),
        }
    }
}

impl Side {
    fn name(self) -> &'static str {
        if self == Self::Old { "the old broker" } else { "the new broker" }
    }

    pub(crate) fn failure(self) -> impl FnOnce(Error) -> Failure {
        move |error| (self, error)
    }
}

/// What to do about a close.
fn hint(side: Side, reason: &CloseReason) -> &'static str {
    match (side, reason.code) {
        (Side::Old, 403 | 530) => {
            ": give its user permission to read there (rabbitmqctl set_permissions), or stop the consumer that has \
             the queue exclusively"
        }
        (Side::New, 530) if reason.text.ends_with(" not found") => {
            ": leave out --messages-only, or add it there (leveret ctl add_vhost)"
        }
        (Side::New, 403 | 530) => {
            ": give its user all permissions there (leveret ctl set_permissions)"
        }
        (Side::Old, 404) => ": it is gone meanwhile, or the nodes that have it do not run",
        (Side::New, 404) => {
            ": declare it there; queues that are neither durable nor exclusive come with their clients"
        }
        (_, 405) => ": it belongs to a connection",
        _ => "",
    }
}

/// For how long a broker may read nothing of what is sent to it, as one does that is short of memory or disk.
const WRITE_PATIENCE: Duration = Duration::from_secs(300);

/// Whether the old broker can be reached and takes the login. What keeps the user out of a vhost is told with its queues.
pub(crate) fn check_login(from: &Uri) -> Result<(), Fault> {
    if let Ok(connection) = connect(Side::Old, from)? {
        // RabbitMQ's log has a warning otherwise.
        let _ = connection.close();
    }
    Ok(())
}

/// Connects to one. The inner error is one of the vhost alone.
fn connect(side: Side, uri: &Uri) -> Result<Result<Connection, String>, Fault> {
    let options = Options {
        name: Some("leveret migrate".to_owned()),
        write_timeout: Some(WRITE_PATIENCE),
        ..Options::default()
    };
    match Connection::open(uri, &options) {
        Ok(connection) => Ok(Ok(connection)),
        // There is no such vhost, or not for this user, or it has its limits.
        Err(Error::ConnectionClosed(reason)) => {
            Ok(Err(format!("{}: {}{}", side.name(), reason.text, hint(side, &reason))))
        }
        Err(error) => Err(unreachable(side, uri, &error)),
    }
}

fn unreachable(side: Side, uri: &Uri, error: &Error) -> Fault {
    let option = if side == Side::Old { "--from" } else { "--to" };
    let name = side.name();
    match error {
        Error::LoginRefused(why) => Fault::new(
            Code::NoPermission,
            format!(
                "{name} ({option}) refuses the login of user '{}': {}. 'guest' gets in only from the broker's own \
                 machine; in a URI the signs '/', '@', ':' and '%' of a password are percent-encoded.",
                uri.user,
                // RabbitMQ's text is a sentence, which ends.
                why.trim_end_matches('.')
            ),
        ),
        error => Fault::new(Code::Unavailable, format!("{name} ({option}): {error}")),
    }
}

/// Closes a channel, and takes no notice of what came for it before: its number will be used again.
fn close(connection: &mut Connection, channel: u16) -> Result<(), Error> {
    connection.close_channel(channel)?;
    while connection.next_event()?.is_some() {}
    Ok(())
}

/// Whether there is no such queue. RabbitMQ has the same code for one that it cannot get at: whose node is down, or
/// whose process has crashed.
fn is_no_queue(error: &Error) -> bool {
    error.close_reason().is_some_and(|it| it.code == 404 && it.text.contains("no queue '"))
}

/// The reply code of a close, or 0.
fn code(error: &Error) -> u16 {
    error.close_reason().map_or(0, |reason| reason.code)
}

/// The exchange of a queue. The same for every run, so that what one that was killed has left is found.
fn exchange_of(queue: &Queue) -> String {
    let mut name = format!("{EXCHANGE}{}", queue.name);
    let mut end = name.len().min(NAME_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn a_queue_out_of_reach_is_there() {
        let check = |code, text: &str, want| {
            let reason = CloseReason { code, text: text.to_owned(), method: (50, 10) };
            assert_eq!(is_no_queue(&Error::ChannelClosed { channel: 1, reason }), want, "{text}");
        };
        check(404, "NOT_FOUND - no queue 'q' in vhost '/'",                                                     true);
        check(404, "NOT_FOUND - home node 'a@b' of durable queue 'q' in vhost '/' is down or inaccessible",     false);
        check(404, "NOT_FOUND - queue 'q' in vhost '/' has crashed and failed to restart",                      false);
        check(404, "NOT_FOUND - queue 'q' in vhost '/' process is stopped by supervisor",                       false);
        check(404, "NOT_FOUND - failed to perform operation on queue 'q' in vhost '/' due to timeout",          false);
        check(405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'q' in vhost '/'",         false);
    }
}
