//! What clients do to a broker in the experiments that are no lines of the load tool.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use leveret_client::amqp::method::Method;
use leveret_client::{Connection, Consume, Event};

use crate::site::Site;

/// A message without properties.
pub(crate) const PLAIN: [u8; 2] = [0, 0];

/// What a publisher sends, again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message<'a> {
    /// Where to.
    pub(crate) exchange: &'a str,
    pub(crate) key: &'a str,
    /// From the property flags on.
    pub(crate) properties: &'a [u8],
    pub(crate) body: &'a [u8],
}

/// When a publisher ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    Moment(Instant),
    Count(u64),
}

impl Until {
    fn is_over(self, published: u64) -> bool {
        match self {
            Self::Moment(end) => Instant::now() >= end,
            Self::Count(count) => published >= count,
        }
    }
}

/// Which messages were confirmed, of those whose number is at least `first`.
#[derive(Debug)]
pub(crate) struct Confirms {
    first: u64,
    open: VecDeque<bool>,
}

impl Default for Confirms {
    fn default() -> Self {
        Self { first: 1, open: VecDeque::new() }
    }
}

impl Confirms {
    /// One more was published: its number.
    pub(crate) fn published(&mut self) -> u64 {
        self.open.push_back(true);
        self.first + self.open.len() as u64 - 1
    }

    /// How many have no answer; those before the first of them have one.
    pub(crate) fn waiting(&self) -> usize {
        self.open.len()
    }

    /// An answer came; `each` hears of every number that it is for.
    pub(crate) fn answered(&mut self, tag: u64, multiple: bool, mut each: impl FnMut(u64)) {
        let from = if multiple { self.first } else { tag };
        for number in from..=tag {
            let at = number.checked_sub(self.first).map(|at| at as usize);
            if let Some(open) = at.and_then(|at| self.open.get_mut(at))
                && std::mem::take(open)
            {
                each(number);
            }
        }
        while self.open.front() == Some(&false) {
            self.open.pop_front();
            self.first += 1;
        }
    }
}

/// Publishes with a window of confirms; gives the number of messages that were confirmed.
pub(crate) fn publish(
    connection: &mut Connection,
    message: &Message<'_>,
    window: usize,
    until: Until,
) -> Result<u64> {
    let channel = connection.open_channel()?;
    connection.confirm_select(channel)?;
    let (mut confirms, mut published, mut confirmed) = (Confirms::default(), 0, 0);
    loop {
        let ends = until.is_over(published);
        if ends && confirms.waiting() == 0 {
            return Ok(confirmed);
        }
        let room = if ends { 0 } else { window - confirms.waiting().min(window) };
        for _ in 0..room.min(256) {
            if let Until::Count(count) = until
                && published >= count
            {
                break;
            }
            let Message { exchange, key, properties, body } = *message;
            connection.publish(channel, exchange, key, properties, body);
            confirms.published();
            published += 1;
        }
        connection.flush()?;
        if room == 0 {
            connection.wait(Duration::from_millis(100))?;
        } else {
            connection.poll()?;
        }
        while let Some(event) = connection.next_event()? {
            match event {
                Event::Method { method: Method::BasicAck(ack), .. } => {
                    confirms.answered(ack.delivery_tag, ack.multiple, |_| confirmed += 1);
                }
                Event::Method { method: Method::BasicNack(nack), .. } => {
                    confirms.answered(nack.delivery_tag, nack.multiple, |_| {});
                }
                _ => {}
            }
        }
    }
}

/// Publishes without confirms; gives the number of messages that were written.
pub(crate) fn publish_blindly(
    connection: &mut Connection,
    message: &Message<'_>,
    until: Until,
) -> Result<u64> {
    let channel = connection.open_channel()?;
    let mut published = 0;
    while !until.is_over(published) {
        let Message { exchange, key, properties, body } = *message;
        for _ in 0..64 {
            connection.publish(channel, exchange, key, properties, body);
        }
        connection.flush()?;
        published += 64;
        if connection.poll()? {
            while connection.next_event()?.is_some() {}
        }
    }
    // What is on its way arrives before this is answered.
    connection.close_channel(channel)?;
    Ok(published)
}

/// Consumes from these queues, a channel each, until it is told to stop; counts what comes.
pub(crate) fn consume(
    connection: &mut Connection,
    queues: &[String],
    no_ack: bool,
    stop: &AtomicBool,
    came: &AtomicU64,
) -> Result<()> {
    for queue in queues {
        let channel = connection.open_channel()?;
        connection.consume(channel, queue, &Consume { no_ack, ..Consume::default() })?;
    }
    receive(connection, stop, came)
}

/// Takes what comes until it is told to stop.
pub(crate) fn receive(
    connection: &mut Connection,
    stop: &AtomicBool,
    came: &AtomicU64,
) -> Result<()> {
    while !stop.load(Ordering::Acquire) {
        let mut count = 0;
        while let Some(event) = connection.next_event()? {
            count += u64::from(matches!(event, Event::Content { .. }));
        }
        came.fetch_add(count, Ordering::Relaxed);
        connection.wait(Duration::from_millis(50))?;
    }
    Ok(())
}

/// Runs `work` on so many threads at once, and adds up what they did.
pub(crate) fn at_once(count: usize, work: impl Fn(usize) -> Result<u64> + Sync) -> Result<u64> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|index| scope.spawn(move || work(index))).collect();
        let mut sum = 0;
        let mut failure = None;
        for thread in threads {
            match thread.join() {
                Ok(Ok(count)) => sum += count,
                Ok(Err(error)) => failure = failure.or(Some(error)),
                Err(_) => bail!("a client panicked"),
            }
        }
        failure.map_or(Ok(sum), Err)
    })
}

/// Publishes on several connections at once, with a window each, or without confirms if that is 0.
pub(crate) fn publishers(
    site: &Site,
    vhost: &str,
    count: usize,
    message: &Message<'_>,
    window: usize,
    until: Until,
) -> Result<u64> {
    at_once(count, |_| {
        let mut connection = site.connect(vhost)?;
        match window {
            0 => publish_blindly(&mut connection, message, until),
            _ => publish(&mut connection, message, window, until),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn confirms_in_any_order() {
        let mut confirms = Confirms::default();
        assert_eq!([(); 5].map(|()| confirms.published()), [1, 2, 3, 4, 5]);
        let mut told = Vec::new();
        confirms.answered(3, false, |number| told.push(number));
        confirms.answered(3, false, |number| told.push(number));
        confirms.answered(2, true, |number| told.push(number));
        assert_eq!((told.as_slice(), confirms.waiting()), ([3, 1, 2].as_slice(), 2));
        confirms.answered(9, true, |number| told.push(number));
        assert_eq!((told.as_slice(), confirms.waiting()), ([3, 1, 2, 4, 5].as_slice(), 0));
        assert_eq!(confirms.published(), 6);
    }
}
