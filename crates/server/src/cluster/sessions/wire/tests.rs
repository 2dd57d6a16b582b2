use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use bytes::Bytes;
use leveret_link::frame::{Class, Envelope, Kind};
use leveret_topology::GroupId;
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Says letters that are numbers, each of its own length and group, and writes down what it hears.
#[derive(Default)]
struct Counting {
    to_say: RefCell<VecDeque<(u64, usize)>>,
    heard: RefCell<Vec<(u64, usize)>>,
    reads: Cell<usize>,
    most_encoded: Cell<usize>,
    /// Reads that brought more of a letter, and no whole one.
    parts: Cell<usize>,
    says_goodbye: Cell<bool>,
    /// The number that is one too many.
    refuses: Cell<Option<u64>>,
    /// Told when as many letters came as are awaited.
    awaited: Cell<usize>,
    all_came: Notify,
}

impl Counting {
    fn of(letters: impl IntoIterator<Item = (u64, usize)>) -> Self {
        let it = Self::default();
        it.to_say.borrow_mut().extend(letters);
        it
    }

    async fn has_heard(&self, count: usize) {
        self.awaited.set(count);
        while self.heard.borrow().len() < count {
            self.all_came.notified().await;
        }
    }
}

impl End for Counting {
    fn say(&self, to: &mut Outgoing) -> Result<(), String> {
        while to.has_room() {
            let Some((number, len)) = self.to_say.borrow_mut().pop_front() else {
                if self.says_goodbye.get() {
                    to.ends();
                }
                break;
            };
            let group = GroupId::new(number as u32 % 7);
            let envelope =
                Envelope { kind: Kind::new(Class::Letters, 1), again: false, group, number };
            to.writer().share(&Bytes::from(vec![number as u8; len]));
            let payload = to.writer().finish();
            to.put(Letter { envelope, payload });
            self.most_encoded.set(self.most_encoded.get().max(to.sender.output_len()));
        }
        Ok(())
    }

    fn more_of_a_letter(&self) {
        self.parts.set(self.parts.get() + 1);
    }

    fn hear(&self, letters: &mut Vec<Letter>) -> Result<(), String> {
        self.reads.set(self.reads.get() + 1);
        for letter in letters.drain(..) {
            let number = letter.envelope.number;
            if self.refuses.get() == Some(number) {
                return Err(format!("{number} is one too many"));
            }
            let bytes = letter.payload.to_vec();
            assert!(bytes.iter().all(|byte| *byte == number as u8), "letter {number}");
            self.heard.borrow_mut().push((number, bytes.len()));
        }
        if self.heard.borrow().len() >= self.awaited.get() {
            self.all_came.notify_one();
        }
        Ok(())
    }
}

async fn pair() -> (LinkSocket, LinkSocket) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let called = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (answered, _) = listener.accept().await.unwrap();
    (called.into(), answered.into())
}

/// Lengths around those of a frame, of what is encoded at once, and of what is copied.
fn letters(count: u64) -> Vec<(u64, usize)> {
    let lens = [0, 1, 24, 2047, 2048, 70_000, 256 * 1024 - 24, 256 * 1024 - 23, 700_000, 1 << 21];
    (0..count).map(|number| (number, lens[number as usize * 7 % lens.len()])).collect()
}

/// Why it was over.
async fn call(socket: &LinkSocket, end: &impl End, woken: &Notify) -> String {
    super::call(socket, end, woken).await.why
}

async fn answer(socket: &LinkSocket, end: &impl End, woken: &Notify) -> String {
    super::answer(socket, end, woken).await.why
}

#[tokio::test]
async fn all_letters_come_in_order_both_ways_at_once() {
    let (near, far) = pair().await;
    let (one, other) = (Counting::of(letters(200)), Counting::of(letters(200)));
    let (wakes_one, wakes_other) = (Notify::new(), Notify::new());
    tokio::select! {
        why = call(&near, &one, &wakes_one) => panic!("{why}"),
        why = answer(&far, &other, &wakes_other) => panic!("{why}"),
        _ = async { tokio::join!(one.has_heard(200), other.has_heard(200)) } => {}
    }
    for end in [&one, &other] {
        assert_eq!(*end.heard.borrow(), letters(200));
        assert!(end.parts.get() > 0, "long ones come in parts");
        assert!(end.most_encoded.get() <= OUTPUT_MAX, "{}", end.most_encoded.get());
    }
}

#[tokio::test]
async fn letters_that_are_there_together_are_heard_together() {
    let (near, far) = pair().await;
    let (one, other) = (Counting::of((0..1_000).map(|it| (it, 10))), Counting::default());
    let (wakes_one, wakes_other) = (Notify::new(), Notify::new());
    tokio::select! {
        why = call(&near, &one, &wakes_one) => panic!("{why}"),
        why = answer(&far, &other, &wakes_other) => panic!("{why}"),
        () = other.has_heard(1_000) => {}
    }
    assert!(other.reads.get() < 100, "{} reads", other.reads.get());
    assert_eq!(other.parts.get(), 0, "each is short");
    // One that comes later is said when somebody rings, from any thread.
    one.to_say.borrow_mut().push_back((1_000, 5));
    let ringing = std::thread::spawn({
        let wakes = std::sync::Arc::new(wakes_one);
        let rung = std::sync::Arc::clone(&wakes);
        move || {
            rung.notify_one();
            wakes
        }
    });
    let wakes_one = ringing.join().unwrap();
    let (near, far) = pair().await;
    tokio::select! {
        why = call(&near, &one, &wakes_one) => panic!("{why}"),
        why = answer(&far, &other, &wakes_other) => panic!("{why}"),
        () = other.has_heard(1_001) => {}
    }
}

#[tokio::test]
async fn who_is_refused_is_told_first() {
    let (near, far) = pair().await;
    let (one, other) = (Counting::of([(1, 10)]), Counting::of(letters(20)));
    other.says_goodbye.set(true);
    let (wakes_one, wakes_other) = (Notify::new(), Notify::new());
    let called = async {
        let why = call(&near, &one, &wakes_one).await;
        drop(near);
        why
    };
    let (why, other_why) = tokio::join!(called, answer(&far, &other, &wakes_other));
    assert_eq!(why, CLOSED);
    assert_eq!(other_why, CLOSED);
    assert_eq!(*one.heard.borrow(), letters(20));
}

#[tokio::test(start_paused = true)]
async fn an_end_that_says_nothing_is_gone_and_one_that_has_nothing_to_say_is_not() {
    let (near, far) = pair().await;
    let (one, other) = (Counting::default(), Counting::default());
    let (wakes_one, wakes_other) = (Notify::new(), Notify::new());
    let begun = tokio::time::Instant::now();
    {
        let mut caller = std::pin::pin!(call(&near, &one, &wakes_one));
        let mut answerer = std::pin::pin!(answer(&far, &other, &wakes_other));
        tokio::select! {
            why = &mut caller => panic!("{why}"),
            why = &mut answerer => panic!("{why}"),
            () = tokio::time::sleep(SILENCE * 5) => {}
        }
        // The other end stands still from now on.
        assert_eq!(caller.await, silent().why);
    }
    assert!(begun.elapsed() >= SILENCE * 5 + SILENCE - BEAT_AFTER, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_end_that_takes_nothing_is_gone_though_it_speaks() {
    let (near, far) = pair().await;
    let one = Counting::of((0..100).map(|it| (it, 1 << 20)));
    let woken = Notify::new();
    let speaks = async {
        loop {
            let mut bytes = Outgoing::new(true);
            bytes.put(beat());
            let mut slices = [IoSlice::new(&[]); 1];
            let count = bytes.sender.slices(&mut slices);
            far.try_write_vectored(&slices[..count]).unwrap();
            tokio::time::sleep(BEAT_AFTER).await;
        }
    };
    let why = tokio::select! {
        why = call(&near, &one, &woken) => why,
        () = speaks => unreachable!(),
    };
    assert!(why.contains("took nothing"), "{why}");
}

#[tokio::test]
async fn what_is_wrong_ends_it_with_a_text() {
    let woken = Notify::new();
    // Noise in the place of frames.
    let (near, far) = pair().await;
    let other = Counting::default();
    near.try_write(&[CHECKSUMS]).unwrap();
    near.try_write(&[0xff; 64]).unwrap();
    let why = answer(&far, &other, &woken).await;
    assert!(why.contains("follow its head"), "{why}");
    // Neither kind of frames.
    let (near, far) = pair().await;
    near.try_write(&[7]).unwrap();
    let why = answer(&far, &other, &woken).await;
    assert!(why.contains("first byte is 7"), "{why}");
    // A letter that is none.
    let (near, far) = pair().await;
    let one = Counting::of(letters(10));
    other.refuses.set(Some(5));
    let why = tokio::select! {
        why = call(&near, &one, &woken) => panic!("{why}"),
        why = answer(&far, &other, &woken) => why,
    };
    assert_eq!(why, "5 is one too many");
    assert_eq!(*other.heard.borrow(), letters(5));
    // A byte changed on its way.
    let (near, far) = pair().await;
    let (has, other) = (Counting::of([(9, 40)]), Counting::default());
    let mut bytes = Outgoing::new(true);
    has.say(&mut bytes).unwrap();
    let mut slices = [IoSlice::new(&[]); 4];
    let count = bytes.sender.slices(&mut slices);
    let mut sent: Vec<u8> = vec![CHECKSUMS];
    slices[..count].iter().for_each(|slice| sent.extend_from_slice(slice));
    *sent.last_mut().unwrap() ^= 1;
    near.try_write(&sent).unwrap();
    let why = answer(&far, &other, &woken).await;
    assert!(why.contains("checksum"), "{why}");
    assert!(other.heard.borrow().is_empty());
}

/// Nobody waits for the other one's reading: who is told much and says much is heard all the same, and holds little.
#[tokio::test]
async fn who_reads_nothing_is_not_written_to_without_bound() {
    let (near, far) = pair().await;
    let one = Counting::of((0..100).map(|it| (it, 1 << 20)));
    let woken = Notify::new();
    near.tcp().set_nodelay(true).unwrap();
    let writes = async {
        // The other end reads nothing, and is alive.
        loop {
            far.writable().await.unwrap();
            let mut bytes = Outgoing::new(true);
            bytes.put(beat());
            let mut slices = [IoSlice::new(&[]); 1];
            let count = bytes.sender.slices(&mut slices);
            far.try_write_vectored(&slices[..count]).unwrap();
            if one.to_say.borrow().len() < 100 && near_is_full(&one) {
                break;
            }
            yield_now().await;
        }
    };
    tokio::select! {
        why = call(&near, &one, &woken) => panic!("{why}"),
        () = writes => {}
    }
    assert!(one.to_say.borrow().len() > 50, "{} wait", one.to_say.borrow().len());
    assert!(one.most_encoded.get() <= OUTPUT_MAX, "{}", one.most_encoded.get());
}

/// Nothing was taken of what waits for a while.
fn near_is_full(end: &Counting) -> bool {
    let left = end.to_say.borrow().len();
    let same = if end.awaited.get() == left { end.reads.get() + 1 } else { 0 };
    end.awaited.set(left);
    end.reads.set(same);
    same > 1_000
}
