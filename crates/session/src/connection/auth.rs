//! Who the client is: PLAIN, AMQPLAIN, ANONYMOUS, EXTERNAL.

use leveret_amqp::method::connection;
use leveret_amqp::table::{RawTable, RawValue};
use leveret_broker::login::{Login, Proof};
use leveret_topology::Password;
use leveret_topology::rights::Admitted;

use crate::connection::Stage;
use crate::consume;
use crate::core::{Context, Core};
use crate::reply::{self, Fault};
use crate::session::Session;
use crate::settings::Mechanism;
use crate::waiting::{Awaited, WaitingCommand};

/// `connection.start-ok`.
const START_OK: (u16, u16) = (10, 11);
/// `connection.update-secret`.
const UPDATE_SECRET: (u16, u16) = (10, 70);

/// Why a client was not let in.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// What it sent makes no sense.
    Fault(Fault),
    /// The user, the password, or where it comes from. The client learns no more than that.
    Login { mechanism: &'static str },
}

/// Of one of `loopback_users`, with what can be done.
const BARRED: &str = "the user can only connect via localhost: other machines need a user of their own (leveret ctl add_user), or \
                      loopback_users without this one";

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// The two parts of a PLAIN response, each after a NUL.
fn plain(response: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = response.strip_prefix(b"\0")?;
    let at = rest.iter().position(|&b| b == 0)?;
    let (user, password) = rest.split_at(at);
    let password = password.strip_prefix(b"\0")?;
    (!password.contains(&0)).then_some((user, password))
}

fn amqplain(response: &[u8]) -> Result<(&[u8], &[u8]), Fault> {
    let table = RawTable::new(response).map_err(|_| reply::amqplain_incomplete())?;
    let field = |name| match table.get(name) {
        Ok(Some(RawValue::LongStr(text) | RawValue::Bytes(text))) => Ok(text),
        Ok(Some(_)) => Err(reply::amqplain_type()),
        _ => Err(reply::amqplain_incomplete()),
    };
    Ok((field("LOGIN")?, field("PASSWORD")?))
}

impl Core {
    /// Reads `mechanism` and `response` of `connection.start-ok`, and asks whether the client may come in.
    pub(crate) fn ask_to_log_in(
        &mut self,
        mechanism: &str,
        response: &[u8],
        cx: &mut Context<'_>,
    ) -> Result<(), Refusal> {
        let Some(mechanism) = self.mechanisms().find(|m| m.name() == mechanism) else {
            return Err(reply::unknown_mechanism(mechanism).into());
        };
        let name = mechanism.name();
        self.identity.mechanism = name;
        let (user, password) = match mechanism {
            Mechanism::Plain => plain(response).ok_or_else(reply::invalid_response)?,
            Mechanism::AmqPlain => amqplain(response)?,
            Mechanism::Anonymous => match &self.settings.anonymous_login {
                Some(login) => (login.0.as_bytes(), login.1.reveal().as_bytes()),
                None => return Err(Refusal::Login { mechanism: name }),
            },
            Mechanism::External => {
                let user = self.certificate_user()?.into();
                self.ask(user, Proof::Certificate, cx);
                return Ok(());
            }
        };
        let (Ok(user), Ok(password)) = (std::str::from_utf8(user), std::str::from_utf8(password))
        else {
            self.say_refused(name, "not UTF-8");
            return Err(Refusal::Login { mechanism: name });
        };
        let (user, proof) = (user.into(), Proof::Password(Password::new(password)));
        self.ask(user, proof, cx);
        Ok(())
    }

    /// Nothing more is read until the answer comes.
    fn ask(&mut self, user: Box<str>, proof: Proof, cx: &mut Context<'_>) {
        self.identity.user.clone_from(&user);
        self.stage = Stage::Authenticating;
        self.timers.pause_handshake(cx.now);
        let mechanism = self.identity.mechanism;
        self.send_login(user, proof, mechanism, cx);
    }

    fn send_login(
        &self,
        user: Box<str>,
        proof: Proof,
        mechanism: &'static str,
        cx: &mut Context<'_>,
    ) {
        cx.outbox.logins.push(Login {
            connection: self.id,
            barred: self.is_barred(&user).then_some(BARRED),
            user,
            proof,
            peer: self.peer.address.clone(),
            connection_name: Some(self.name_in_log()),
            mechanism,
            protocol: "amqp091",
            is_repeated: false,
        });
    }

    fn is_barred(&self, user: &str) -> bool {
        let local = &self.settings.loopback_users;
        !self.peer.is_loopback && local.iter().any(|local| **local == *user)
    }

    /// The mechanisms that this client may choose from.
    pub(crate) fn mechanisms(&self) -> impl Iterator<Item = Mechanism> {
        let is_encrypted = self.peer.tls.is_some();
        let all = self.settings.mechanisms.iter().copied();
        // Without a certificate it is offered too: a refused login says more than a missing mechanism.
        all.filter(move |mechanism| *mechanism != Mechanism::External || is_encrypted)
    }

    /// Whom the certificate names; the server has found the certificate good.
    fn certificate_user(&self) -> Result<&str, Refusal> {
        let mechanism = Mechanism::External.name();
        let certificate = self.peer.tls.as_ref().and_then(|tls| tls.certificate.as_ref());
        let why = match certificate.map(|certificate| &certificate.login) {
            Some(Some(user)) => return Ok(user),
            Some(None) => "no name found in the certificate",
            None => "connection peer presented no TLS (x.509) certificate",
        };
        self.say_refused(mechanism, why);
        Err(Refusal::Login { mechanism })
    }
}

impl Session {
    /// The answer to [`ask_to_log_in`](Core::ask_to_log_in).
    pub(crate) fn logged_in(&mut self, admitted: Option<Box<Admitted>>, cx: &mut Context<'_>) {
        let core = &mut self.core;
        if matches!(core.waiting, Some(WaitingCommand { what: Awaited::Secret, .. })) {
            core.waiting = None;
            if let Err(fault) = self.secret_updated(admitted, cx) {
                self.fail(0, UPDATE_SECRET, &fault, cx);
            }
            return;
        }
        if core.stage != Stage::Authenticating {
            return;
        }
        core.stage = Stage::Starting;
        core.timers.resume_handshake(cx.now);
        // A token may name another user than the client did.
        if let Some(admitted) = admitted.filter(|admitted| !core.is_barred(&admitted.user)) {
            core.totals.auth_succeeded += 1;
            core.timers.expire(admitted.expires);
            core.identity.admit(*admitted);
            core.tune(cx);
            return;
        }
        core.totals.auth_failed += 1;
        let mechanism = core.identity.mechanism;
        core.identity.user = Box::default();
        if let Err(fault) = self.refuse(Refusal::Login { mechanism }, cx) {
            self.fail(0, START_OK, &fault, cx);
        }
    }

    /// `connection.update-secret`. The secret of a user of our own is not kept by the connection, so there
    /// is nothing to replace; the user may have been deleted, though.
    pub(crate) fn update_secret(
        &mut self,
        method: &connection::UpdateSecret<'_>,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let core = &mut self.core;
        let identity = &core.identity;
        if core.timers.expires() {
            let secret = std::str::from_utf8(method.new_secret);
            let proof =
                Proof::Password(Password::new(secret.map_err(|_| reply::secret_refused())?));
            core.send_login(identity.user.clone(), proof, "update-secret", cx);
            core.waiting = Some(WaitingCommand {
                channel: 0,
                method: UPDATE_SECRET,
                no_wait: false,
                what: Awaited::Secret,
            });
            return Ok(());
        }
        if identity.elsewhere.is_none() && cx.topology.user(&identity.user).is_none() {
            return Err(reply::secret_refused());
        }
        core.check_vhost(&identity.vhost_name, cx)?;
        cx.out.put_method(0, &connection::UpdateSecretOk);
        Ok(())
    }

    /// A new secret was looked at. It has to be the same user's, and to hold as the old one did.
    fn secret_updated(
        &mut self,
        admitted: Option<Box<Admitted>>,
        cx: &mut Context<'_>,
    ) -> Result<(), Fault> {
        let core = &mut self.core;
        let admitted =
            admitted.filter(|new| new.user == core.identity.user && new.rights.is_some());
        let admitted = admitted.ok_or_else(reply::secret_refused)?;
        core.timers.expire(admitted.expires);
        core.identity.admit(*admitted);
        if let Some(cache) = &mut core.cache {
            cache.forget();
        }
        core.check_vhost(&core.identity.vhost_name, cx)?;
        consume::recheck(core, &mut self.channels, cx);
        cx.out.put_method(0, &connection::UpdateSecretOk);
        Ok(())
    }

    /// The client is not let in. One that did not ask to be told learns it by silence, as in RabbitMQ;
    /// older clients take just that for a refused login.
    pub(crate) fn refuse(&mut self, refusal: Refusal, cx: &mut Context<'_>) -> Result<(), Fault> {
        match refusal {
            Refusal::Fault(fault) => Err(fault),
            Refusal::Login { mechanism } if self.core.capabilities.authentication_failure_close => {
                Err(reply::login_refused(mechanism))
            }
            Refusal::Login { .. } => {
                self.core.stage = Stage::Deaf;
                self.core.timers.give_up_silently(cx.now);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_responses() {
        assert_eq!(plain(b"\0guest\0secret"), Some((&b"guest"[..], &b"secret"[..])));
        assert_eq!(plain(b"\0\0"), Some((&b""[..], &b""[..])));
        for bad in [&b""[..], b"guest\0guest", b"\0guest", b"id\0guest\0guest", b"\0a\0b\0c"] {
            assert_eq!(plain(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn amqplain_responses() {
        let good = b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x06secret";
        assert_eq!(amqplain(good).unwrap(), (&b"guest"[..], &b"secret"[..]));
        assert_eq!(amqplain(b"").unwrap_err(), reply::amqplain_incomplete());
        assert_eq!(amqplain(b"\x05LOGINt\x01").unwrap_err(), reply::amqplain_type());
        assert_eq!(amqplain(b"\x05LO").unwrap_err(), reply::amqplain_incomplete());
    }
}
