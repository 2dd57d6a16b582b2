//! Connections to the directory that are kept for the next question.
//!
//! A connection belongs to one question at a time, and binds anew for each: whom it was bound as before does
//! not matter. One that fails is dropped; if it was kept from before, a new one is tried, since the server
//! may have closed it meanwhile.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leveret_config::ldap::LdapOptions;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::Credentials;
use super::link::{Fault, Link, Server, Tls};
use super::shares::{PoolShare, PoolShares};

#[derive(Debug)]
pub(super) struct Pool {
    servers: Vec<Server>,
    timeout: Duration,
    idle_timeout: Duration,
    places: Arc<Semaphore>,
    /// Of them, those of logins.
    shares: Arc<PoolShares>,
    /// Those that nobody uses, the last used last.
    idle: Mutex<VecDeque<(Instant, Link)>>,
}

/// A connection that somebody uses.
#[derive(Debug)]
pub(super) struct Bound {
    pub(super) link: Link,
    _place: OwnedSemaphorePermit,
}

impl Pool {
    pub(super) fn new(options: &LdapOptions, tls: Tls) -> Self {
        let servers = options.servers.iter().map(|host| {
            let inside = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let host = inside.unwrap_or(host).to_owned();
            Server { host, port: options.port, tls: tls.clone() }
        });
        Self {
            servers: servers.collect(),
            timeout: options.timeout.into(),
            idle_timeout: options.idle_timeout.into(),
            places: Arc::new(Semaphore::new(options.pool_size as usize)),
            shares: PoolShares::new(options.pool_size as usize),
            idle: Mutex::default(),
        }
    }

    /// The turn of a login from this address, before it asks for a connection.
    pub(super) async fn share(&self, address: &str) -> Result<PoolShare, Fault> {
        let taking = tokio::time::timeout(self.timeout, self.shares.take(address));
        taking.await.ok().flatten().ok_or(Fault::Busy)
    }

    /// A connection that is bound as somebody; none if that is not its password.
    pub(super) async fn bind(&self, who: &Credentials) -> Result<Option<Bound>, Fault> {
        let waiting = Arc::clone(&self.places).acquire_owned();
        let place = tokio::time::timeout(self.timeout, waiting).await;
        let Ok(Ok(place)) = place else { return Err(Fault::Late) };
        let kept = self.take_idle();
        let (mut link, is_kept) = match kept {
            Some(link) => (link, true),
            None => (self.open().await?, false),
        };
        let accepted = match link.bind(who).await {
            Err(Fault::Lost(_)) if is_kept => {
                link = self.open().await?;
                link.bind(who).await?
            }
            accepted => accepted?,
        };
        let bound = Bound { link, _place: place };
        if !accepted {
            self.give_back(bound);
            return Ok(None);
        }
        Ok(Some(bound))
    }

    /// Keeps a connection that works for the next one.
    pub(super) fn give_back(&self, bound: Bound) {
        if !self.idle_timeout.is_zero() {
            lock(&self.idle).push_back((Instant::now(), bound.link));
        }
    }

    fn take_idle(&self) -> Option<Link> {
        let mut idle = lock(&self.idle);
        while idle.front().is_some_and(|(since, _)| since.elapsed() >= self.idle_timeout) {
            idle.pop_front();
        }
        idle.pop_back().map(|(_, link)| link)
    }

    /// A new connection, to the first server that can be reached.
    async fn open(&self) -> Result<Link, Fault> {
        let mut last = Fault::Late;
        for server in &self.servers {
            match Link::open(server, self.timeout).await {
                Ok(link) => return Ok(link),
                Err(fault) => {
                    let (host, port) = (server.host.as_str(), server.port);
                    tracing::warn!(host, port, why = %fault, "a directory cannot be reached");
                    last = fault;
                }
            }
        }
        Err(last)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who waits behind others has not found the directory late.
    #[test]
    fn who_waits_for_a_turn_in_vain_is_told_so() {
        let timeout = leveret_config::Millis(1);
        let options = LdapOptions { pool_size: 1, timeout, ..LdapOptions::default() };
        let pool = Pool::new(&options, Tls::None);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let _first = pool.share("10.0.0.1").await.unwrap();
            assert!(matches!(pool.share("10.0.0.1").await, Err(Fault::Busy)));
        });
    }
}
