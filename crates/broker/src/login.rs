//! A client that asks to be let in: the letter from a session to whoever decides.
//!
//! A session decides nothing by itself: a check may take long, an address may have had too many refused ones,
//! and users may be kept elsewhere. It reads no further until [`ToSession::LoggedIn`] comes.

use std::sync::Arc;

use leveret_topology::rights::{Admitted, Question, Rights};
use leveret_topology::{AuthError, Password, Topology};

use crate::message::{ConnectionId, ToSession};

/// Who wants to come in, and why it should be let in.
#[derive(Debug)]
pub struct Login {
    /// Who waits for the answer.
    pub connection: ConnectionId,
    /// The name it gives itself.
    pub user: Box<str>,
    /// What it has to show.
    pub proof: Proof,
    /// Where it comes from: address and port.
    pub peer: String,
    /// The name of the connection in the log. None if there is no connection, as over HTTP.
    pub connection_name: Option<String>,
    /// The SASL mechanism, or what corresponds to it.
    pub mechanism: &'static str,
    /// RabbitMQ's word for the protocol: `amqp091`, `http`, ...
    pub protocol: &'static str,
    /// Why it is refused even if the proof is good.
    pub barred: Option<&'static str>,
    /// It was let in a moment ago, as with each request over HTTP: that it is again is not worth a line in
    /// the log.
    pub is_repeated: bool,
}

/// What a client has to show.
#[derive(Debug)]
pub enum Proof {
    /// A password.
    Password(Password),
    /// A certificate that was found good, and names the user.
    Certificate,
}

/// A session waits for a decision.
#[derive(Debug)]
pub struct Asked {
    /// Who waits for the answer.
    pub connection: ConnectionId,
    /// Who decides.
    pub rights: Arc<dyn Rights>,
    /// About what.
    pub question: Question,
}

/// Why a client is not let in. The client itself does not learn which.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The password, or there is no such user.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// A certificate names nobody.
    #[error("there is no user of the certificate's name")]
    NoUser,
    /// See [`Login::barred`].
    #[error("{0}")]
    Barred(&'static str),
}

impl Login {
    /// Decides by the names alone, however long the user's hash takes.
    pub fn judge(&self, topology: &Topology) -> Result<Admitted, Refused> {
        match &self.proof {
            Proof::Password(password) => {
                topology.authenticate(&self.user, password.reveal())?;
            }
            Proof::Certificate => {
                topology.user(&self.user).ok_or(Refused::NoUser)?;
            }
        }
        match self.barred {
            None => Ok(Admitted::known(&self.user)),
            Some(why) => Err(Refused::Barred(why)),
        }
    }

    /// The answer by the names alone: for a driver that has nothing else to decide by.
    pub fn answer(&self, topology: &Topology) -> ToSession {
        ToSession::LoggedIn(self.judge(topology).ok().map(Box::new))
    }
}
