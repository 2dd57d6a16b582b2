//! The connection itself: what happens on channel 0, from the protocol header to the last close-ok.
//!
//! ```text
//!   Header -> Starting -> Authenticating -> Tuning -> Opening -> Running -> Closing -> Ended
//!                \_____________\______________\__________\__________\
//!                                                                    +--> Closed (we sent close) -> Ended
//!                                                                    +--> Deaf (out of step)     -> Ended
//! ```

pub(crate) mod auth;
pub(crate) mod close;
pub(crate) mod handshake;
pub(crate) mod timers;

use leveret_amqp::method::{Method, connection};

use crate::core::Context;
use crate::reply::{self, Fault};
use crate::session::Session;

/// How far the connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing was read yet.
    Header,
    /// `connection.start` was sent.
    Starting,
    /// `connection.start-ok` was read; whether the client may come in is being decided elsewhere.
    Authenticating,
    /// `connection.tune` was sent.
    Tuning,
    /// `connection.tune-ok` was read.
    Opening,
    /// `connection.open-ok` was sent.
    Running,
    /// `connection.close` was read; `close-ok` waits for exclusive queues to go.
    Closing,
    /// `connection.close` was sent: all but its answer is thrown away.
    Closed,
    /// The input is out of step, or the client was not let in: everything is thrown away for a while.
    Deaf,
    /// Over.
    Ended,
}

impl Stage {
    /// RabbitMQ's name of the state, in texts and listings.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Header => "pre_init",
            Self::Starting | Self::Authenticating => "starting",
            Self::Tuning => "tuning",
            Self::Opening => "opening",
            Self::Running => "running",
            Self::Closing => "closing",
            Self::Closed | Self::Deaf | Self::Ended => "closed",
        }
    }

    /// Whether frames are acted upon.
    pub(crate) const fn is_open(self) -> bool {
        matches!(
            self,
            Self::Starting | Self::Authenticating | Self::Tuning | Self::Opening | Self::Running
        )
    }
}

impl Session {
    /// A method on channel 0.
    pub(crate) fn connection_method(
        &mut self,
        payload: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let stage = self.core.stage;
        if stage == Stage::Closed {
            match Method::decode(payload) {
                Ok(Method::ConnectionClose(_)) => cx.out.put_method(0, &connection::CloseOk),
                Ok(Method::ConnectionCloseOk(_)) => self.core.end_after_flush(),
                _ => {}
            }
            return Ok(());
        }
        let method = Method::decode(payload).map_err(|error| reply::bad_method(&error, payload))?;
        match (method, stage) {
            (Method::ConnectionStartOk(method), Stage::Starting) => self.start_ok(&method, cx),
            (Method::ConnectionTuneOk(method), Stage::Tuning) => self.tune_ok(&method, cx),
            (Method::ConnectionOpen(method), Stage::Opening) => self.open(&method, cx),
            (Method::ConnectionClose(method), _) => {
                self.close_requested(&method, cx);
                Ok(())
            }
            (Method::ConnectionUpdateSecret(method), Stage::Running) => {
                self.update_secret(&method, cx)
            }
            _ => Err(reply::unexpected_in_state(self.core.state_name())),
        }
    }
}
