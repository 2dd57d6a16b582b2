//! How many requests are under way whose bodies are not whole, and how many read queues.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use leveret_server::locks::{Rank, Ranked};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::answer::Fault;
use super::health::Service;

/// Bodies of one user that are being received at a time.
const OF_USER_MAX: usize = 32;

/// Requests at a time that read messages of queues: each has one message of any length in hand.
const GETS_MAX: usize = 4;

/// What all requests of an entrance share.
#[derive(Debug)]
pub(crate) struct Requests {
    of_users: Ranked<HashMap<String, usize, FixedState>>,
    gets: Semaphore,
    pub(super) service: Service,
}

impl Default for Requests {
    fn default() -> Self {
        let of_users = Ranked::new(Rank::Above, HashMap::default());
        Self { of_users, gets: Semaphore::new(GETS_MAX), service: Service::default() }
    }
}

/// A body that is being received.
#[derive(Debug)]
pub(super) struct One<'a> {
    all: &'a Requests,
    user: &'a str,
}

impl Requests {
    /// One more body of this user comes.
    pub(super) fn enter<'a>(&'a self, user: &'a str) -> Result<One<'a>, Fault> {
        let mut of_users = self.of_users.lock();
        let count = of_users.entry_ref(user).or_default();
        if *count >= OF_USER_MAX {
            return Err(Fault::too_many(format!(
                "{OF_USER_MAX} requests of user '{user}' have bodies that are not whole; end some of them first"
            )));
        }
        *count += 1;
        Ok(One { all: self, user })
    }

    /// Waits until few enough read queues.
    pub(super) async fn get(&self) -> Option<SemaphorePermit<'_>> {
        // It is never closed.
        self.gets.acquire().await.ok()
    }
}

impl Drop for One<'_> {
    fn drop(&mut self) {
        let mut of_users = self.all.of_users.lock();
        if let Some(count) = of_users.get_mut(self.user) {
            *count -= 1;
            if *count == 0 {
                of_users.remove(self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_one_user() {
        let all = Requests::default();
        let mut some: Vec<_> = (0..OF_USER_MAX).map(|_| all.enter("u").unwrap()).collect();
        assert_eq!(all.enter("u").unwrap_err().status, 429);
        assert!(all.enter("v").is_ok(), "another one's");
        some.pop();
        drop(all.enter("u").unwrap());
        drop(some);
        assert!(all.of_users.lock().is_empty());
    }
}
