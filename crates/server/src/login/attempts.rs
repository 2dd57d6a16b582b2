//! Counts of logins, by protocol and by source: what `/api/auth/attempts` shows.

use std::net::IpAddr;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Sources that are told apart; all beyond are counted as one without address and user.
const SOURCES_MAX: usize = 4096;

/// Logins so far, since the start or the last [`reset`](Self::reset).
#[derive(Debug, Default)]
pub struct Attempts {
    protocols: Vec<(&'static str, Counts)>,
    sources: HashMap<AttemptSource, Counts, RandomState>,
}

/// Where logins come from, as RabbitMQ's API tells them apart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct AttemptSource {
    address: Option<IpAddr>,
    user: Box<str>,
    protocol: &'static str,
}

/// How often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Let in.
    pub succeeded: u64,
    /// Turned away.
    pub failed: u64,
}

impl Counts {
    /// Both together.
    pub fn total(self) -> u64 {
        self.succeeded + self.failed
    }

    fn count(&mut self, accepted: bool) {
        *(if accepted { &mut self.succeeded } else { &mut self.failed }) += 1;
    }
}

/// Logins of one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BySource {
    /// Empty where it is not known.
    pub address: String,
    /// As the client named itself.
    pub user: String,
    /// `amqp091`, `http`, ...
    pub protocol: &'static str,
    /// How often.
    pub counts: Counts,
}

impl Attempts {
    pub(super) fn count(
        &mut self,
        address: Option<IpAddr>,
        user: &str,
        protocol: &'static str,
        accepted: bool,
    ) {
        match self.protocols.iter_mut().find(|(known, _)| *known == protocol) {
            Some((_, counts)) => counts.count(accepted),
            None => {
                let mut counts = Counts::default();
                counts.count(accepted);
                self.protocols.push((protocol, counts));
            }
        }
        let mut source = AttemptSource { address, user: user.into(), protocol };
        if self.sources.len() >= SOURCES_MAX && !self.sources.contains_key(&source) {
            source = AttemptSource { protocol, ..AttemptSource::default() };
        }
        self.sources.entry(source).or_default().count(accepted);
    }

    /// By protocol.
    pub fn by_protocol(&self) -> &[(&'static str, Counts)] {
        &self.protocols
    }

    /// By address, user and protocol, in this order.
    pub fn by_source(&self) -> Vec<BySource> {
        let mut all: Vec<BySource> = self
            .sources
            .iter()
            .map(|(source, &counts)| BySource {
                address: source.address.map(|it| it.to_string()).unwrap_or_default(),
                user: source.user.to_string(),
                protocol: source.protocol,
                counts,
            })
            .collect();
        all.sort_by(|a, b| {
            (&a.address, &a.user, a.protocol).cmp(&(&b.address, &b.user, b.protocol))
        });
        all
    }

    /// Begins anew.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart_and_bounded() {
        let mut attempts = Attempts::default();
        let from = Some([127, 0, 0, 1].into());
        attempts.count(from, "u", "amqp091", true);
        attempts.count(from, "u", "amqp091", false);
        attempts.count(from, "u", "http", false);
        for n in 0..5000 {
            attempts.count(None, &n.to_string(), "amqp091", false);
        }
        assert_eq!(attempts.by_protocol()[0], ("amqp091", Counts { succeeded: 1, failed: 5001 }));
        let sources = attempts.by_source();
        assert!(sources.len() <= SOURCES_MAX + 1, "{}", sources.len());
        let u = sources.iter().find(|it| it.user == "u" && it.protocol == "amqp091").unwrap();
        assert_eq!((u.address.as_str(), u.counts.total()), ("127.0.0.1", 2));
        let all: u64 = sources.iter().map(|it| it.counts.total()).sum();
        assert_eq!(all, 5003);
        attempts.reset();
        assert!(attempts.by_source().is_empty());
    }
}
