//! What the log says of a connection, in RabbitMQ's words: operators search for them.
//!
//! Each line says in its field `from` who caused it, a user and an address: by that the server limits how many lines one
//! cause may write. A line that is one too many is not put into words.

use std::fmt::{self, Display, Formatter};

use leveret_amqp::frame::ProtocolHeader;
use leveret_amqp::method::Method;
use leveret_amqp::reply::ReplyCode;
use leveret_amqp::table::{RawTable, RawValue};
use leveret_queue::Time;

use crate::connection::Stage;
use crate::core::Core;
use crate::reply::Fault;

/// The longest part of a name that a client gives itself, in characters.
const OWN_NAME_MAX: usize = 255;

/// `127.0.0.1:50000 -> 127.0.0.1:5672 - app`, with the name that the client gives itself.
struct Name<'a>(&'a Core);

impl Display for Name<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(core) = self;
        write!(f, "{} -> {}", core.peer.address, core.peer.local)?;
        let properties = RawTable::unchecked(&core.identity.client_properties);
        if let Ok(Some(RawValue::LongStr(own))) = properties.get("connection_name") {
            let own = String::from_utf8_lossy(own);
            f.write_str(" - ")?;
            own.chars().take(OWN_NAME_MAX).try_for_each(|letter| write!(f, "{letter}"))?;
        }
        Ok(())
    }
}

/// [`Name`], vhost and user, as far as they are known.
struct Who<'a>(&'a Core);

impl Display for Who<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(core) = self;
        write!(f, "{}", Name(core))?;
        if core.was_open() {
            write!(f, ", vhost: '{}'", core.identity.vhost_name)?;
        }
        if core.was_open() || core.stage == Stage::Opening {
            write!(f, ", user: '{}'", core.identity.user)?;
        }
        Ok(())
    }
}

/// Who causes lines: a user, as soon as one has logged in, and the machine.
struct Cause<'a>(&'a Core);

impl Display for Cause<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(core) = self;
        let address = &*core.peer.address;
        let machine = address.rsplit_once(':').map_or(address, |(machine, _)| machine);
        let is_known = core.was_open() || core.stage == Stage::Running;
        let user = if is_known { &*core.identity.user } else { "" };
        write!(f, "{user}@{machine}")
    }
}

/// How long something took, in RabbitMQ's form: `1H, 0M, 7s`.
struct Duration(u64);

impl Display for Duration {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(ms) = *self;
        let s = ms / 1000;
        let (days, hours, minutes) = (s / 86_400, s / 3600 % 24, s / 60 % 60);
        match s {
            0 => return write!(f, "{ms}ms"),
            1..60 => {}
            60..3600 => write!(f, "{minutes}M, ")?,
            3600..86_400 => write!(f, "{hours}H, {minutes}M, ")?,
            _ => write!(f, "{days}D, {hours}H, {minutes}M, ")?,
        }
        write!(f, "{}s", s % 60)
    }
}

/// The method that failed; `none` where it was none.
fn operation((class, method): (u16, u16)) -> &'static str {
    Method::name_of(class, method).unwrap_or("none")
}

impl Core {
    /// Whether it is, or was, a client's connection to a vhost.
    fn was_open(&self) -> bool {
        self.totals.connections_opened > 0
    }

    /// A connection of the node's own: whoever has it is told what happens, and no log.
    fn is_inside(&self) -> bool {
        self.stage == Stage::Running && !self.was_open()
    }

    fn duration(&self, now: Time) -> Duration {
        Duration(now.ms().saturating_sub(self.identity.connected.ms()))
    }

    /// What the log calls this connection.
    pub(crate) fn name_in_log(&self) -> String {
        Name(self).to_string()
    }

    /// What a client has to show cannot be asked about. Other refused logins are told by those who decide.
    pub(crate) fn say_refused(&self, mechanism: &str, why: &str) {
        let (peer, connection) = (self.peer.address.as_str(), self.name_in_log());
        tracing::warn!(
            target: "audit", peer, connection = connection.as_str(), mechanism, why, "audit: login refused"
        );
    }

    pub(crate) fn say_opened(&self) {
        tracing::info!(
            target: "connection", from = %Cause(self),
            "connection {}: user '{}' authenticated and granted access to vhost '{}'",
            Name(self), self.identity.user, self.identity.vhost_name
        );
    }

    /// It speaks another protocol; `input` is what it began with.
    pub(crate) fn say_no_amqp(&self, input: &[u8], now: Time) {
        let what = match input {
            [0x16, 3, ..] => {
                "TLS client detected on non-TLS AMQP port. Ensure the client is connecting to the correct port"
            }
            [b'G', b'E', b'T', b' ', ..] => {
                "HTTP GET request detected on AMQP port. Ensure the client is connecting to the correct port"
            }
            _ => "client did not start with AMQP protocol header",
        };
        tracing::warn!(
            target: "connection", from = %Cause(self),
            "closing AMQP connection {} (duration: '{}'): {what}: {}",
            Name(self), self.duration(now),
            input.get(..ProtocolHeader::LEN).unwrap_or(input).escape_ascii()
        );
    }

    pub(crate) fn say_channel_error(&self, channel: u16, method: (u16, u16), fault: &Fault) {
        if self.is_inside() {
            return;
        }
        tracing::error!(
            target: "channel", from = %Cause(self),
            "Channel error on connection {} ({}), channel {channel}: \
             operation {} caused a channel exception {}: {}",
            self.id.pid(), Who(self), operation(method), fault.code.name().to_lowercase(), fault.text
        );
    }

    pub(crate) fn say_connection_error(&self, channel: u16, method: (u16, u16), fault: &Fault) {
        // Why a login was refused is in the audit log.
        let is_login = self.stage == Stage::Starting && fault.code == ReplyCode::AccessRefused;
        if is_login || self.is_inside() {
            return;
        }
        tracing::error!(
            target: "connection", from = %Cause(self),
            "Error on AMQP connection {} ({}, state: {}), channel {channel}: \
             operation {} caused a connection exception {}: \"{}\"",
            self.id.pid(), Who(self), self.stage.name(), operation(method),
            fault.code.name().to_lowercase(), fault.text
        );
    }

    /// An operator closes it, or the broker that stops.
    pub(crate) fn say_forced(&self, why: &str) {
        if self.is_inside() {
            return;
        }
        tracing::warn!(
            target: "connection", from = %Cause(self),
            "Closing AMQP connection {} ({}): {why}", self.id.pid(), Who(self)
        );
    }

    /// It is closed without a word to the client. Nothing more is said of its end.
    pub(crate) fn say_lost(&mut self, why: impl Display, now: Time) {
        let is_said = std::mem::replace(&mut self.is_end_said, true) || self.is_inside();
        if !is_said {
            tracing::warn!(
                target: "connection", from = %Cause(self),
                "closing AMQP connection {} ({}, duration: '{}'): {why}",
                self.id.pid(), Who(self), self.duration(now)
            );
        }
    }

    /// The socket is closed. A client that goes before it says anything is a health check.
    pub(crate) fn say_disconnected(&mut self, now: Time) {
        if self.end.is_none() && self.stage.is_open() {
            self.say_lost("client unexpectedly closed TCP connection", now);
        } else if self.was_open() && !std::mem::replace(&mut self.is_end_said, true) {
            tracing::info!(
                target: "connection", from = %Cause(self),
                "closing AMQP connection ({}, duration: '{}')", Who(self), self.duration(now)
            );
        }
    }

    /// The connection deleted it, and nobody else.
    pub(crate) fn say_queue_deleted(&self, queue: &str, messages: u64) {
        let (user, vhost) = (&self.identity.user, &self.identity.vhost_name);
        let on = if self.was_open() { "connection " } else { "" };
        let name: &dyn Display = if self.was_open() { &Name(self) } else { &self.peer.address };
        tracing::info!(
            target: "queue", from = %Cause(self), messages,
            "queue '{queue}' in vhost '{vhost}' deleted by user '{user}' from {on}{name}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn durations() {
        let check = |ms, want: &str| assert_eq!(Duration(ms).to_string(), want);
        check(0,          "0ms");
        check(999,        "999ms");
        check(1_000,      "1s");
        check(61_999,     "1M, 1s");
        check(3_600_000,  "1H, 0M, 0s");
        check(90_061_000, "1D, 1H, 1M, 1s");
    }
}
