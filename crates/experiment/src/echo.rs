//! What a round of the probe costs without a broker: the control that goes beside it.
//!
//! Two threads do what the probe and a broker that has nothing else to do would: a connection, ten questions and their
//! answers, and the disk three times. What such a round waits for, beside a load, is the machine: a processor that
//! others have, and the disk. A round of the probe waits for that, too, and more often, as a broker has more threads than one.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use leveret_load::{Percentiles, histogram};
use serde::Serialize;

use crate::text;

/// A round begins so long after the one before, or at once when that took longer: half as often as the probe's, so that it
/// changes little of what it measures.
const EVERY: Duration = Duration::from_millis(20);
/// Longest time for an answer: the other thread has failed.
const ANSWER: Duration = Duration::from_secs(60);
/// What is asked in a round: login, declare, publish, get, close. Those that are true wait for the disk.
const QUESTIONS: [bool; 10] = [false, false, false, false, true, false, true, false, true, false];
/// Bytes that the disk gets for an answer.
const RECORD: [u8; 100] = [7; 100];
/// Rounds that are kept with their time, of those that took longer than [`SLOW`].
const KEPT: usize = 100_000;
/// A round below that needs no explanation.
const SLOW: Duration = Duration::from_millis(5);

/// The control at work, on two threads of its own.
#[derive(Debug)]
pub(crate) struct Echo {
    stop: Arc<AtomicBool>,
    address: SocketAddr,
    asks: JoinHandle<Echoed>,
    answers: JoinHandle<()>,
}

/// What it found.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Echoed {
    pub(crate) rounds: u64,
    pub(crate) p99_ms: f64,
    pub(crate) slowest_ms: f64,
    /// When slow rounds began, and what they took.
    #[serde(skip)]
    slow: Vec<(Instant, Duration)>,
}

impl Echo {
    /// Begins. The file is where a broker that is started here has its own: where temporary files are.
    pub(crate) fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let file = tempfile::tempfile()?;
        let answers =
            std::thread::Builder::new().name("echo-answers".to_owned()).spawn(move || {
                // One who asks nothing has it end.
                while let Ok((socket, _)) = listener.accept()
                    && answer(socket, &file).unwrap_or(0) > 0
                {}
            })?;
        let told = Arc::clone(&stop);
        let asks = std::thread::Builder::new().name("echo".to_owned()).spawn(move || {
            let mut tally = Tally::default();
            loop {
                let began = Instant::now();
                if ask(address).is_err() {
                    break;
                }
                tally.add(began, began.elapsed());
                if told.load(Ordering::Acquire) {
                    break;
                }
                std::thread::sleep(EVERY.saturating_sub(began.elapsed()));
            }
            tally.done()
        })?;
        Ok(Self { stop, address, asks, answers })
    }

    /// Ends, and says what was found.
    pub(crate) fn stop(self) -> Echoed {
        self.stop.store(true, Ordering::Release);
        let echoed = self.asks.join().unwrap_or_default();
        // The other one waits for a connection, or has ended.
        let _ = TcpStream::connect(self.address);
        let _ = self.answers.join();
        echoed
    }
}

impl Echoed {
    /// The slowest of its rounds that were under way in this time, in words.
    pub(crate) fn slowest_between(&self, from: Instant, to: Instant) -> String {
        let overlaps = |(began, took): &&(Instant, Duration)| *began < to && *began + *took > from;
        match self.slow.iter().filter(overlaps).map(|(_, took)| *took).max() {
            Some(took) => format!("{} ms", text::number(took.as_secs_f64() * 1e3)),
            None => format!("less than {} ms", SLOW.as_millis()),
        }
    }

    /// What came out, for people.
    pub(crate) fn told(&self) -> String {
        format!(
            "control, the same without a broker: {} rounds, p99 {} ms, slowest {} ms",
            self.rounds,
            text::number(self.p99_ms),
            text::number(self.slowest_ms)
        )
    }
}

/// Answers until the end of the connection: how many questions.
fn answer(mut socket: TcpStream, mut file: &std::fs::File) -> io::Result<u64> {
    socket.set_nodelay(true)?;
    let (mut question, mut count) = ([0], 0);
    while socket.read(&mut question)? > 0 {
        if question == [1] {
            file.write_all(&RECORD)?;
            file.sync_data()?;
        }
        socket.write_all(&question)?;
        count += 1;
    }
    Ok(count)
}

fn ask(address: SocketAddr) -> io::Result<()> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(ANSWER))?;
    for waits in QUESTIONS {
        socket.write_all(&[u8::from(waits)])?;
        socket.read_exact(&mut [0])?;
    }
    Ok(())
}

/// Adds rounds up.
struct Tally {
    times_ns: Histogram<u64>,
    echoed: Echoed,
}

impl Default for Tally {
    fn default() -> Self {
        Self { times_ns: histogram(), echoed: Echoed::default() }
    }
}

impl Tally {
    fn add(&mut self, began: Instant, took: Duration) {
        self.times_ns.saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        self.echoed.rounds += 1;
        self.echoed.slowest_ms = self.echoed.slowest_ms.max(took.as_secs_f64() * 1e3);
        if took > SLOW && self.echoed.slow.len() < KEPT {
            self.echoed.slow.push((began, took));
        }
    }

    fn done(mut self) -> Echoed {
        if let Some(times) = Percentiles::of(&self.times_ns) {
            self.echoed.p99_ms = times.p99 as f64 / 1e6;
        }
        self.echoed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_add_up() {
        let mut tally = Tally::default();
        let began = Instant::now();
        let ms = |ms| Duration::from_millis(ms);
        (0..98).for_each(|_| tally.add(began, ms(1)));
        tally.add(began + ms(100), ms(20));
        tally.add(began + ms(200), ms(30_000));
        let echoed = tally.done();
        assert_eq!((echoed.rounds, echoed.slowest_ms), (100, 30_000.0));
        assert!((20.0..20.2).contains(&echoed.p99_ms), "{}", echoed.p99_ms);
        let slowest = |from, to| echoed.slowest_between(began + ms(from), began + ms(to));
        assert_eq!(slowest(0, 100), "less than 5 ms");
        assert_eq!(slowest(0, 110), "20.0 ms");
        assert_eq!(slowest(119, 400), "30,000 ms");
        assert_eq!(slowest(121, 150), "less than 5 ms");
        assert_eq!(Tally::default().done().rounds, 0);
    }

    #[test]
    fn it_goes_round_and_ends() {
        let echoed = Echo::start().unwrap().stop();
        assert!(echoed.rounds > 0, "{echoed:?}");
    }
}
