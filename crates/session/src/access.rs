//! What the user may do: the names say it, or who keeps the user elsewhere.
//!
//! Who keeps the user may take its time. A check then fails with a fault that is none yet
//! ([`Fault::undecided`]): the question leaves by a letter, the frame is put back, nothing more is read,
//! and when the answer is there the frame is looked at again, from its beginning. So a check has to come
//! before everything that cannot be done twice. Answers are kept for a while: a publish whose names are
//! in the route cache asks nobody.

use std::sync::Arc;

use hashbrown::HashMap;
use leveret_broker::login::Asked;
use leveret_queue::Time;
use leveret_topology::hash::Keyed;
use leveret_topology::rights::{Decision, Question, Rights};
use leveret_topology::{Exchange, ExchangeKind, Permission, ResourceKind, VhostId};

use crate::channel::Channel;
use crate::core::{Context, Core};
use crate::publish;
use crate::reply::Fault;
use crate::session::Session;
use crate::waiting::{Awaited, WaitingCommand};

/// How long an answer holds, in ms. RabbitMQ's channels forget theirs as often.
const KEPT_MS: u64 = 60_000;
/// Answers that are kept.
const KEPT_MAX: usize = 1024;

/// A user who is kept elsewhere.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    rights: Arc<dyn Rights>,
    answers: HashMap<Question, Decision, Keyed>,
    /// When the answers are forgotten.
    until: Time,
    /// The answers hold a refusal, which is forgotten with the fault it makes.
    has_refusal: bool,
}

impl Elsewhere {
    pub(crate) fn new(rights: Arc<dyn Rights>) -> Self {
        let answers = HashMap::default();
        Self { rights, answers, until: Time::from_ms(0), has_refusal: false }
    }

    /// Whether the answers are too old, and were forgotten.
    pub(crate) fn forgets(&mut self, now: Time) -> bool {
        let is_over = self.until <= now && !self.answers.is_empty();
        if is_over {
            self.answers.clear();
        }
        is_over
    }

    fn learn(&mut self, question: Question, decision: Decision, now: Time) {
        if self.answers.len() >= KEPT_MAX {
            self.answers.clear();
        }
        if self.answers.is_empty() {
            self.until = now.after_ms(KEPT_MS);
        }
        self.has_refusal |= !decision.is_allowed();
        self.answers.insert(question, decision);
    }

    fn forget_refusals(&mut self) {
        if std::mem::take(&mut self.has_refusal) {
            self.answers.retain(|_, decision| decision.is_allowed());
        }
    }

    /// The refusal, if it is one, of `user`.
    fn check(&self, question: Question, user: &str) -> Result<(), Fault> {
        let known = self.rights.decide(&question);
        match known.or_else(|| self.answers.get(&question).cloned()) {
            Some(Decision::Allowed) => Ok(()),
            Some(Decision::Refused(None)) => Err(question.refusal(user).into()),
            Some(Decision::Refused(Some(why)) | Decision::Failed(why)) => {
                let mut fault = Fault::from(question.refusal(user));
                fault.text.to_mut().push_str(&why);
                Err(fault)
            }
            None => Err(Fault::undecided(question)),
        }
    }
}

impl Core {
    /// Whether the user may open a vhost.
    pub(crate) fn check_vhost(&self, vhost: &str, cx: &Context<'_>) -> Result<VhostId, Fault> {
        let user = &self.identity.user;
        let Some(elsewhere) = &self.identity.elsewhere else {
            return Ok(cx.topology.check_vhost_access(user, vhost)?);
        };
        let question = Question::Vhost(vhost.into());
        let found = cx.topology.vhost(vhost).ok_or_else(|| question.refusal(user))?;
        elsewhere.check(question, user)?;
        Ok(found.id)
    }

    /// Whether the user may configure, write to or read from what bears this name.
    pub(crate) fn check(
        &self,
        permission: Permission,
        kind: ResourceKind,
        name: &str,
        cx: &Context<'_>,
    ) -> Result<(), Fault> {
        let identity = &self.identity;
        if identity.is_operator {
            return Ok(());
        }
        let user = &identity.user;
        let Some(elsewhere) = &identity.elsewhere else {
            return Ok(cx.topology.check_access(user, identity.vhost, permission, kind, name)?);
        };
        elsewhere.check(Question::resource(&identity.vhost_name, kind, name, permission), user)
    }

    /// Whether the user may write to or read from an exchange with this key.
    pub(crate) fn check_topic(
        &self,
        permission: Permission,
        exchange: &Exchange,
        key: &str,
        cx: &Context<'_>,
    ) -> Result<(), Fault> {
        let identity = &self.identity;
        if identity.is_operator {
            return Ok(());
        }
        let user = &identity.user;
        let Some(elsewhere) = &identity.elsewhere else {
            return Ok(cx.topology.check_topic_access(user, exchange, permission, key)?);
        };
        if exchange.kind != ExchangeKind::Topic {
            return Ok(());
        }
        let question = Question::topic(&identity.vhost_name, &exchange.name, permission, key);
        elsewhere.check(question, user)
    }

    /// Whether the user has this tag.
    pub(crate) fn has_tag(&self, tag: &str, cx: &Context<'_>) -> bool {
        let identity = &self.identity;
        identity.tags.iter().any(|own| own == tag)
            || identity.elsewhere.is_none()
                && cx.topology.user(&identity.user).is_some_and(|user| user.has_tag(tag))
    }
}

impl Session {
    /// A frame was at fault, or it is not known whether it is. False when it is to be given again.
    #[cold]
    pub(crate) fn fault(
        &mut self,
        number: u16,
        method: (u16, u16),
        is_content: bool,
        mut fault: Fault,
        cx: &mut Context<'_>,
    ) -> bool {
        let core = &mut self.core;
        if let Some(elsewhere) = &mut core.identity.elsewhere {
            if let Some(question) = fault.undecided.take() {
                let (connection, rights) = (core.id, Arc::clone(&elsewhere.rights));
                cx.outbox.asked.push(Asked { connection, rights, question: *question });
                let what = Awaited::Decision { is_content };
                core.waiting =
                    Some(WaitingCommand { channel: number, method, no_wait: false, what });
                return is_content;
            }
            elsewhere.forget_refusals();
        }
        self.fail(number, method, &fault, cx);
        true
    }

    /// The answer to what was asked.
    pub(crate) fn decided(&mut self, question: Question, decision: Decision, cx: &mut Context<'_>) {
        let (number, method, is_content) = match self.core.waiting.take() {
            Some(WaitingCommand {
                channel,
                method,
                what: Awaited::Decision { is_content },
                ..
            }) => (channel, method, is_content),
            other => {
                self.core.waiting = other;
                return;
            }
        };
        let core = &mut self.core;
        if let Some(elsewhere) = &mut core.identity.elsewhere {
            elsewhere.learn(question, decision, cx.now);
        }
        // A method's frame was put back and is read again by itself.
        let is_open = |channel: &&mut Channel| !channel.is_closing;
        if is_content && let Some(channel) = self.channels.get(number).filter(is_open) {
            if let Err(fault) = publish::again(core, channel, cx) {
                self.fault(number, method, true, fault, cx);
            }
            self.send_confirms(cx);
        }
    }
}
