//! Confirmed traffic that is accounted for: what was confirmed comes, once, or again with the mark of a redelivery.
//!
//! A queue has one producer and one consumer. A body is the message's number in its queue. Operators close their connections as those of
//! all others; both come back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use leveret_client::amqp::method::Method;
use leveret_client::{Connection, Consume, Error, Event, Options, QueueDeclare, Uri};

use super::journal::{Journal, Outcome};
use super::operators::explains_close;
use crate::loads::Confirms;

/// Persistent: the flags of the properties, and the delivery mode.
const PERSISTENT: [u8; 3] = [0x10, 0x00, 2];
/// Messages that a producer has under way.
const WINDOW: usize = 100;
/// Messages of a producer in a second, at most: hours of them have to be remembered.
const PACE: Duration = Duration::from_millis(10);
const BURST: usize = 5;

/// What was done with a message, as bits.
const CONFIRMED: u8 = 1;
const DELIVERED: u8 = 2;

/// The name of the connections, for operators to find them.
pub(crate) const NAME: &str = "leveret everything ledger";

/// What is known of the messages of one queue.
#[derive(Debug, Default)]
pub(crate) struct Book {
    messages: Mutex<Vec<u8>>,
}

/// What it comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Sum {
    pub(crate) published: u64,
    pub(crate) confirmed: u64,
    pub(crate) delivered: u64,
    /// Confirmed, and never came.
    pub(crate) lost: u64,
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of one more message.
    fn publish(&self) -> u64 {
        let mut messages = self.lock();
        messages.push(0);
        messages.len() as u64 - 1
    }

    fn confirm(&self, number: u64) {
        if let Some(message) = self.lock().get_mut(number as usize) {
            *message |= CONFIRMED;
        }
    }

    /// Takes note of a delivery; the text of what is wrong with it.
    fn deliver(&self, body: &[u8], redelivered: bool) -> Option<String> {
        let number = body.first_chunk::<8>().map(|it| u64::from_be_bytes(*it));
        let mut messages = self.lock();
        let message = number.and_then(|number| messages.get_mut(number as usize));
        let Some(message) = message else {
            return Some("a message came that was never published".to_owned());
        };
        let came_before = *message & DELIVERED != 0;
        *message |= DELIVERED;
        (came_before && !redelivered).then(|| {
            format!("message {} came twice, without the mark of a redelivery", number.unwrap_or(0))
        })
    }

    pub(crate) fn sum(&self) -> Sum {
        let mut sum = Sum::default();
        for message in self.lock().iter() {
            sum.published += 1;
            sum.confirmed += u64::from(message & CONFIRMED != 0);
            sum.delivered += u64::from(message & DELIVERED != 0);
            sum.lost += u64::from(message & CONFIRMED != 0 && message & DELIVERED == 0);
        }
        sum
    }
}

fn options() -> Options {
    Options { name: Some(NAME.to_owned()), heartbeat_s: Some(10), ..Options::default() }
}

fn sorted(result: Result<(), Error>) -> (Outcome, ()) {
    let outcome = match result {
        Ok(()) => Outcome::Done,
        Err(error) if explains_close(&error) => Outcome::Explained(error.to_string()),
        Err(error) => Outcome::Unexplained(error.to_string()),
    };
    (outcome, ())
}

/// Publishes until it is time to stop, with as many connections as it takes.
pub(crate) fn produce(uri: &Uri, queue: &str, book: &Book, journal: &Journal, stop: &AtomicBool) {
    while !stop.load(Ordering::Acquire) {
        let what = format!("produces into {queue}");
        journal.act("ledger", what, || sorted(produce_once(uri, queue, book, stop)));
    }
}

fn produce_once(uri: &Uri, queue: &str, book: &Book, stop: &AtomicBool) -> Result<(), Error> {
    /// Longest time for the last confirms.
    const LAST: Duration = Duration::from_secs(30);
    let mut connection = Connection::open(uri, &options())?;
    let channel = connection.open_channel()?;
    connection.confirm_select(channel)?;
    let (mut confirms, mut numbers, mut first) = (Confirms::default(), VecDeque::new(), 1);
    let (mut end, mut due) = (None, Instant::now());
    loop {
        if end.is_none() && stop.load(Ordering::Acquire) {
            end = Some(Instant::now() + LAST);
        }
        match end {
            Some(_) if confirms.waiting() == 0 => return connection.close(),
            Some(end) if Instant::now() > end => return Err(Error::TimedOut("the last confirms")),
            _ => {}
        }
        if end.is_none() && confirms.waiting() < WINDOW && Instant::now() >= due {
            due = Instant::now() + PACE;
            for _ in 0..BURST {
                let number = book.publish();
                connection.publish(channel, "", queue, &PERSISTENT, &number.to_be_bytes());
                confirms.published();
                numbers.push_back(number);
            }
        }
        connection.flush()?;
        connection.wait(PACE)?;
        while let Some(event) = connection.next_event()? {
            if let Event::Method { method: Method::BasicAck(ack), .. } = event {
                confirms.answered(ack.delivery_tag, ack.multiple, |tag| {
                    if let Some(number) = numbers.get((tag - first) as usize) {
                        book.confirm(*number);
                    }
                });
            }
        }
        while numbers.len() > confirms.waiting() {
            numbers.pop_front();
            first += 1;
        }
    }
}

/// Consumes until it is told to stop and the queue is empty.
pub(crate) fn consume(uri: &Uri, queue: &str, book: &Book, journal: &Journal, stop: &AtomicBool) {
    /// How long a queue may take to be emptied at the end.
    const LAST: Duration = Duration::from_secs(120);
    let mut end = None;
    loop {
        let is_empty = journal.act("ledger", format!("consumes from {queue}"), || {
            let done = consume_once(uri, queue, book, journal, stop);
            let is_empty = done.is_ok();
            (sorted(done).0, is_empty)
        });
        if !stop.load(Ordering::Acquire) {
            continue;
        }
        let end = *end.get_or_insert_with(|| Instant::now() + LAST);
        if is_empty {
            return;
        }
        if Instant::now() > end {
            return journal.find(&format!("{queue} could not be emptied at the end"));
        }
    }
}

fn consume_once(
    uri: &Uri,
    queue: &str,
    book: &Book,
    journal: &Journal,
    stop: &AtomicBool,
) -> Result<(), Error> {
    let mut connection = Connection::open(uri, &options())?;
    let channel = connection.open_channel()?;
    connection.qos(channel, 200, false)?;
    let tag = connection.consume(channel, queue, &Consume::default())?;
    let mut came = 0_u64;
    loop {
        let has_some = connection.wait(Duration::from_millis(500))?;
        let mut acks = Vec::new();
        while let Some(event) = connection.next_event()? {
            let Event::Content { method: Method::BasicDeliver(deliver), body, .. } = event else {
                continue;
            };
            came += 1;
            if let Some(wrong) = book.deliver(body, deliver.redelivered) {
                journal.find(&format!("{queue}: {wrong}"));
            }
            // Some come back, with their mark.
            acks.push((deliver.delivery_tag, came.is_multiple_of(97) && !deliver.redelivered));
        }
        for (tag, comes_back) in acks {
            if comes_back {
                connection.nack(channel, tag, false, true);
            } else {
                connection.ack(channel, tag, false);
            }
        }
        connection.flush()?;
        if !has_some && stop.load(Ordering::Acquire) {
            connection.cancel(channel, &tag)?;
            // What was on its way is given back by the end of the channel.
            connection.close_channel(channel)?;
            let channel = connection.open_channel()?;
            let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
            let left = connection.queue_declare(channel, queue, &passive)?.message_count;
            if left > 0 {
                return Err(Error::TimedOut("the last messages"));
            }
            return connection.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books() {
        let book = Book::default();
        let numbers = [(); 3].map(|()| book.publish());
        numbers[..2].iter().for_each(|number| book.confirm(*number));
        assert_eq!(book.deliver(&0_u64.to_be_bytes(), false), None);
        assert_eq!(book.deliver(&0_u64.to_be_bytes(), true), None);
        assert!(book.deliver(&0_u64.to_be_bytes(), false).unwrap().contains("twice"));
        assert!(book.deliver(&7_u64.to_be_bytes(), false).unwrap().contains("never published"));
        assert_eq!(book.sum(), Sum { published: 3, confirmed: 2, delivered: 1, lost: 1 });
    }
}
