//! Conversations with the room, and random ones in which nobody waits for ever.

use super::*;

/// A room of 100 bytes and those who talk with it.
struct Talk {
    room: BodyRoom,
    outbox: Outbox,
}

impl Talk {
    fn new() -> Self {
        let talk = Self { room: BodyRoom::default(), outbox: Outbox::default() };
        talk.room.set_watermark(400);
        talk
    }

    fn ask(&mut self, who: u64, holds: u64, wants: u64) -> RoomAnswer {
        self.ask_as((who, ""), holds, wants)
    }

    fn ask_as(&mut self, (who, user): (u64, &str), holds: u64, wants: u64) -> RoomAnswer {
        let question = Question { connection: ConnectionId::new(who), number: 0, user, holds };
        self.room.ask(question, Kind::Body, wants, &mut self.outbox)
    }

    /// A room that one of the user `many` has, from 1 on, and in whose line the others of it are.
    fn crowded(last: u64) -> Self {
        let mut talk = Self::new();
        assert_eq!(talk.ask_as((1, "many"), 0, 90), RoomAnswer::Granted);
        for who in 2..=last {
            assert_eq!(talk.ask_as((who, "many"), 0, 90), RoomAnswer::Waits);
        }
        talk
    }

    fn ask_for_frame(&mut self, (who, user): (u64, &str), wants: u64) -> RoomAnswer {
        let question = Question { connection: ConnectionId::new(who), number: 0, user, holds: 0 };
        self.room.ask(question, Kind::Frame, wants, &mut self.outbox)
    }

    fn give_back(&mut self, bytes: u64) {
        self.room.give_back(Kind::Body, bytes, &mut self.outbox);
    }

    fn withdraw(&mut self, who: u64, wants: u64) {
        self.room.withdraw(ConnectionId::new(who), Kind::Body, wants, &mut self.outbox);
    }

    /// Who was told what since the last time.
    fn told(&mut self) -> Vec<(u64, bool)> {
        let letters = std::mem::take(&mut self.outbox.sessions);
        let mut told = Vec::new();
        for (to, letter) in letters {
            let ToSession::Room { is_granted, .. } = letter else { panic!("{letter:?}") };
            told.push((to.get(), is_granted));
        }
        told
    }
}

#[test]
fn first_come_first_served() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask(1, 0, 60), RoomAnswer::Granted);
    assert_eq!(talk.ask(2, 0, 60), RoomAnswer::Waits);
    // It would fit, but another one came before.
    assert_eq!(talk.ask(3, 0, 10), RoomAnswer::Waits);
    assert_eq!((talk.room.taken(), talk.room.waiting()), (60, 2));
    talk.give_back(10);
    assert_eq!(talk.told(), []);
    talk.give_back(10);
    assert_eq!(talk.told(), [(2, true)]);
    talk.give_back(40);
    assert_eq!(talk.told(), [(3, true)]);
    talk.give_back(70);
    assert_eq!((talk.room.taken(), talk.room.waiting()), (0, 0));
}

#[test]
fn what_is_longer_than_all_of_the_room_gets_it_alone() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask(1, 0, 10), RoomAnswer::Granted);
    assert_eq!(talk.ask(2, 0, 1000), RoomAnswer::Waits);
    assert_eq!(talk.ask(3, 0, 10), RoomAnswer::Waits);
    talk.give_back(10);
    assert_eq!(talk.told(), [(2, true)]);
    talk.give_back(1000);
    assert_eq!(talk.told(), [(3, true)]);
}

#[test]
fn who_leaves_the_line_leaves_its_room() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask(1, 0, 60), RoomAnswer::Granted);
    for who in 2..5 {
        assert_eq!(talk.ask(who, 0, 50), RoomAnswer::Waits);
    }
    talk.withdraw(2, 50);
    assert_eq!(talk.told(), []);
    talk.give_back(60);
    assert_eq!(talk.told(), [(3, true), (4, true)]);
    // The letter is on its way, and the connection is gone.
    talk.withdraw(3, 50);
    assert_eq!(talk.room.taken(), 50);
}

#[test]
fn two_that_wait_for_each_other() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask(1, 0, 30), RoomAnswer::Granted);
    assert_eq!(talk.ask(2, 0, 30), RoomAnswer::Granted);
    assert_eq!(talk.ask(3, 0, 30), RoomAnswer::Granted);
    for who in 1..3 {
        assert_eq!(talk.ask(who, 30, 20), RoomAnswer::Waits);
    }
    assert_eq!(talk.told(), [], "the third can go on");
    assert_eq!(talk.ask(3, 30, 20), RoomAnswer::Waits);
    assert_eq!(talk.told(), [(1, true)], "in excess of the room");
    // The first wants no more: all goes its way.
    talk.give_back(50);
    assert_eq!(talk.told(), [(2, true), (3, true)]);
    talk.give_back(100);
    assert_eq!(talk.room.taken(), 0);
}

#[test]
fn a_circle_that_no_excess_opens() {
    let mut talk = Talk::new();
    for who in 1..11 {
        assert_eq!(talk.ask(who, 0, 10), RoomAnswer::Granted);
    }
    for who in 1..10 {
        assert_eq!(talk.ask(who, 10, 40), RoomAnswer::Waits);
    }
    assert_eq!(talk.ask(10, 10, 40), RoomAnswer::Waits);
    assert_eq!(talk.told(), [(1, true)]);
    // 140 of 150 are taken. The first asks again, and nobody can go on.
    assert_eq!(talk.ask(1, 50, 0), RoomAnswer::Waits);
    assert_eq!(talk.told(), [(1, true)]);
    let refused = loop {
        // Whoever goes on waits with all that it has.
        let asked = talk.ask(1, 30, 20);
        assert_eq!(asked, RoomAnswer::Waits);
        if let Some(refused) = talk.told().iter().find(|(_, is_granted)| !is_granted) {
            break refused.0;
        }
    };
    assert!((1..11).contains(&refused));
}

/// A connection that is refused may be gone before it hears so: room that others have is not counted as free.
#[test]
fn who_is_refused_and_gone_takes_nothing_from_others() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask(1, 0, 50), RoomAnswer::Granted);
    assert_eq!(talk.ask(2, 0, 50), RoomAnswer::Granted);
    assert_eq!(talk.ask(1, 50, 90), RoomAnswer::Waits);
    assert_eq!(talk.ask(2, 50, 90), RoomAnswer::Waits);
    assert_eq!(talk.told(), [(2, false)]);
    talk.withdraw(2, 90);
    assert_eq!(talk.room.taken(), 100);
    talk.give_back(50);
    assert_eq!(talk.told(), [(1, true)]);
    talk.give_back(140);
    assert_eq!((talk.room.taken(), talk.room.waiting()), (0, 0));
}

/// Frames have a quarter of the room, whoever waits, and bodies do not wait for them.
#[test]
fn frames_have_a_part() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask_for_frame((1, "a"), 20), RoomAnswer::Granted);
    assert_eq!(talk.ask_for_frame((2, "a"), 20), RoomAnswer::Waits);
    assert_eq!((talk.room.waiting(), talk.room.frames_waiting()), (0, 1));
    assert_eq!(talk.ask(3, 0, 80), RoomAnswer::Granted);
    assert_eq!(talk.ask(4, 0, 10), RoomAnswer::Waits);
    assert_eq!((talk.room.waiting(), talk.room.frames_waiting()), (1, 1));
    talk.give_back(80);
    assert_eq!(talk.told(), [(4, true)]);
    talk.room.give_back(Kind::Frame, 20, &mut talk.outbox);
    assert_eq!(talk.told(), [(2, true)]);
    assert_eq!(talk.ask_for_frame((5, "b"), 1000), RoomAnswer::Waits);
    talk.room.give_back(Kind::Frame, 20, &mut talk.outbox);
    talk.give_back(10);
    assert_eq!(talk.told(), [(5, true)], "alone");
    talk.room.give_back(Kind::Frame, 1000, &mut talk.outbox);
    assert_eq!((talk.room.taken(), talk.room.frames_waiting()), (0, 0));
}

/// However many frames of one user wait, those of others come between.
#[test]
fn frames_of_users_take_turns() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask_for_frame((1, "a"), 20), RoomAnswer::Granted);
    for (who, user) in [(2, "a"), (3, "a"), (4, "a"), (5, "b"), (6, "c"), (7, "b")] {
        assert_eq!(talk.ask_for_frame((who, user), 20), RoomAnswer::Waits);
    }
    talk.room.withdraw(ConnectionId::new(4), Kind::Frame, 20, &mut talk.outbox);
    for next in [2, 5, 6, 3, 7] {
        talk.room.give_back(Kind::Frame, 20, &mut talk.outbox);
        assert_eq!(talk.told(), [(next, true)]);
    }
    talk.room.give_back(Kind::Frame, 20, &mut talk.outbox);
    assert_eq!((talk.room.taken(), talk.room.frames_waiting()), (0, 0));
}

#[test]
fn bodies_of_users_take_turns() {
    let mut talk = Talk::crowded(5);
    assert_eq!(talk.ask_as((10, "few"), 0, 90), RoomAnswer::Waits);
    assert_eq!(talk.ask_as((11, "few"), 0, 90), RoomAnswer::Waits);
    let mut order = Vec::new();
    for came in 12..18 {
        talk.give_back(90);
        order.extend(talk.told().into_iter().map(|(who, _)| who));
        // One who comes again and again does not pass those who wait for ever.
        assert_eq!(talk.ask_as((came, "new"), 0, 90), RoomAnswer::Waits);
    }
    assert_eq!(order, [2, 10, 12, 3, 11, 13]);
}

/// Whoever waits much and leaves again has not put others back.
#[test]
fn turns_that_were_not_served_do_not_count() {
    let mut talk = Talk::crowded(99);
    talk.withdraw(99, 90);
    talk.give_back(90);
    assert_eq!(talk.told(), [(2, true)]);
    assert_eq!(talk.ask_as((100, "few"), 0, 90), RoomAnswer::Waits);
    talk.give_back(90);
    assert_eq!(talk.told(), [(100, true)]);
}

/// Room for the frame that a body's header came in is not in the way of a long body.
#[test]
fn frames_do_not_make_the_room_full() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask_for_frame((1, "a"), 10), RoomAnswer::Granted);
    assert_eq!(talk.ask_for_frame((2, "a"), 10), RoomAnswer::Granted);
    assert_eq!(talk.ask(1, 10, 1000), RoomAnswer::Granted);
    assert_eq!(talk.ask(2, 10, 1000), RoomAnswer::Waits);
    talk.give_back(1000);
    assert_eq!(talk.told(), [(2, true)]);
}

/// Random connections with several bodies each: each ends what it begins or is refused, and what is taken
/// stays below the bound.
#[test]
fn nobody_waits_for_ever() {
    for seed in 0..300_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut random = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        let mut talk = Talk::new();
        // Held, asked for, bodies to begin.
        let mut all = vec![(0_u64, 0_u64, 20_u64); 8];
        for _ in 0..20_000 {
            let who = random(8) as usize;
            let (holds, asked, left) = all[who];
            if asked > 0 {
                continue;
            }
            if left > 0 && random(2) == 0 {
                let wants = (1 + random(45)).min(50 - holds.min(49));
                all[who].2 -= 1;
                match talk.ask(who as u64, holds, wants) {
                    RoomAnswer::Granted => all[who].0 += wants,
                    RoomAnswer::Waits => all[who].1 = wants,
                }
            } else if holds > 0 {
                let bytes = if random(2) == 0 { holds } else { 1 + random(holds) };
                all[who].0 -= bytes;
                talk.give_back(bytes);
            }
            let mut told = talk.told();
            while let Some((who, is_granted)) = told.pop() {
                let (holds, asked, _) = &mut all[who as usize];
                assert!(*asked > 0);
                if is_granted {
                    *holds += std::mem::take(asked);
                } else {
                    talk.give_back(std::mem::take(holds) + std::mem::take(asked));
                }
                told.extend(talk.told());
            }
            assert!(talk.room.taken() <= 150, "{}", talk.room.taken());
            let taken: u64 = all.iter().map(|(holds, ..)| holds).sum();
            assert_eq!(taken, talk.room.taken(), "seed {seed}");
            if all.iter().all(|&(holds, asked, left)| holds + asked + left == 0) {
                break;
            }
            let goes_on = all.iter().any(|&(holds, asked, left)| asked == 0 && holds + left > 0);
            assert!(goes_on, "seed {seed}: {all:?}");
        }
        assert!(
            all.iter().all(|&(holds, asked, left)| holds + asked + left == 0),
            "{seed}: {all:?}"
        );
    }
}
