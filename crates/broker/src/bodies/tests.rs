//! Conversations with the room, and random ones in which nobody waits for ever.

use std::collections::BTreeMap;

use leveret_log::suite::numbers;
use leveret_topology::NodeId;

use super::*;

/// A room of 100 bytes, 67 of them for one user, and those who talk with it.
struct Talk {
    room: BodyRoom,
    outbox: Outbox,
    /// Who is whose.
    users: BTreeMap<u64, String>,
}

impl Talk {
    fn new() -> Self {
        let (room, outbox) = (BodyRoom::default(), Outbox::default());
        room.set_watermark(268);
        Self { room, outbox, users: BTreeMap::new() }
    }

    /// Each is a user of its own, but for those that another test names.
    fn ask(&mut self, who: u64, holds: u64, wants: u64) -> RoomAnswer {
        self.ask_as((who, &who.to_string()), holds, wants)
    }

    fn ask_as(&mut self, (who, user): (u64, &str), holds: u64, wants: u64) -> RoomAnswer {
        self.users.insert(who, user.into());
        let question = Question {
            connection: NodeId::ALONE.connection(who),
            number: 0,
            user,
            holds: [holds, 0, 0],
        };
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
        self.users.insert(who, user.into());
        let holds = Kinds::default();
        let question =
            Question { connection: NodeId::ALONE.connection(who), number: 0, user, holds };
        self.room.ask(question, Kind::Frame, wants, &mut self.outbox)
    }

    fn give_back(&mut self, who: u64, bytes: u64) {
        self.room.give_back(&self.users[&who], Kind::Body, bytes, &mut self.outbox);
    }

    fn give_back_frame(&mut self, who: u64, bytes: u64) {
        self.room.give_back(&self.users[&who], Kind::Frame, bytes, &mut self.outbox);
    }

    fn withdraw(&mut self, who: u64, wants: u64) {
        let (id, user) = (NodeId::ALONE.connection(who), &self.users[&who]);
        self.room.withdraw(id, user, Kind::Body, wants, &mut self.outbox);
    }

    /// Who was told what since the last time.
    fn told(&mut self) -> Vec<(u64, bool)> {
        let letters = std::mem::take(&mut self.outbox.sessions);
        let mut told = Vec::new();
        for (to, letter) in letters {
            let ToSession::Room { is_granted, .. } = letter else { panic!("{letter:?}") };
            told.push((to.number(), is_granted));
        }
        told
    }
}

/// Whoever has stalled, and however many wait: another user finds a third of what is left, and one after the other of them is served.
#[test]
fn users_have_shares() {
    let mut talk = Talk::new();
    let (mut stalled, mut of_one) = (0, 0);
    for who in 0..60 {
        if talk.ask_as((who, "still"), 0, 2) == RoomAnswer::Granted {
            stalled += 2;
        }
    }
    assert_eq!((stalled, talk.room.waiting()), (66, 27), "a user alone has all of the limit");
    assert!(talk.room.is_awaited("still", [2, 0, 0]), "by its own");
    for who in 100..200 {
        if talk.ask_as((who, "other"), 0, 2) == RoomAnswer::Granted || talk.told() == [(who, true)]
        {
            of_one += 2;
        }
    }
    assert_eq!(of_one, 22);
    assert_eq!(talk.ask_as((300, "third"), 0, 12), RoomAnswer::Waits);
    assert_eq!(talk.told(), [(300, true)], "it passes those who wait for their own");
    assert!(!talk.room.is_awaited("third", [12, 0, 0]), "nobody waits but for its own share");
    talk.give_back(300, 12);
    assert_eq!(talk.told(), []);
    for next in 111..115 {
        talk.give_back(100, 2);
        let told = talk.told();
        assert_eq!(told.len(), 1, "{next}: {told:?}");
        assert_eq!(talk.users[&told[0].0], "other");
    }
    assert_eq!(talk.ask_as((400, "fourth"), 0, 34), RoomAnswer::Waits);
    assert!(talk.room.is_awaited("still", [2, 0, 0]));
    for _ in 0..33 {
        talk.give_back(0, 2);
    }
    assert!(talk.told().contains(&(400, true)));
}

/// What is larger than the share has its turn: nobody of the same user passes it, and nobody else once the user has nothing.
#[test]
fn what_is_larger_than_the_share_comes_through() {
    let mut talk = Talk::new();
    for who in 0..6 {
        assert_eq!(talk.ask_as((who, "a"), 0, 10), RoomAnswer::Granted);
    }
    assert_eq!(talk.ask_as((10, "a"), 0, 80), RoomAnswer::Waits);
    assert_eq!(talk.ask_as((11, "a"), 0, 1), RoomAnswer::Waits, "it does not pass");
    for who in 0..5 {
        talk.give_back(who, 10);
        assert_eq!(talk.ask_as((20 + who, "b"), 0, 1), RoomAnswer::Waits);
        assert_eq!(talk.told(), [(20 + who, true)]);
        talk.give_back(20 + who, 1);
    }
    talk.give_back(5, 10);
    assert_eq!(talk.told(), [(10, true)], "alone");
    talk.give_back(10, 80);
    assert_eq!(talk.told(), [(11, true)]);
}

/// A user is remembered while it has something or waits, and a bounded number of others are.
#[test]
fn users_are_forgotten() {
    let mut talk = Talk::new();
    for who in 0..10_000 {
        assert_eq!(talk.ask(who, 0, 90), RoomAnswer::Granted);
        assert_eq!(talk.ask(who + 10_000, 0, 90), RoomAnswer::Waits);
        talk.withdraw(who + 10_000, 90);
        talk.give_back(who, 90);
        assert!(!talk.room.take_now("", 200) || talk.room.taken() == 200);
        talk.room.give_back("", Kind::Body, talk.room.taken(), &mut talk.outbox);
    }
    assert!(talk.room.lock().users.len() <= IDLE_USERS + 1);
}

#[test]
fn first_come_first_served() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask(1, 0, 60), RoomAnswer::Granted);
    assert_eq!(talk.ask(2, 0, 60), RoomAnswer::Waits);
    // It would fit, but another one came before.
    assert_eq!(talk.ask(3, 0, 10), RoomAnswer::Waits);
    assert_eq!((talk.room.taken(), talk.room.waiting()), (60, 2));
    talk.give_back(1, 10);
    assert_eq!(talk.told(), []);
    talk.give_back(1, 10);
    assert_eq!(talk.told(), [(2, true)]);
    talk.give_back(1, 40);
    assert_eq!(talk.told(), [(3, true)]);
    talk.give_back(2, 60);
    talk.give_back(3, 10);
    assert_eq!((talk.room.taken(), talk.room.waiting()), (0, 0));
}

#[test]
fn what_is_longer_than_all_of_the_room_gets_it_alone() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask(1, 0, 10), RoomAnswer::Granted);
    assert_eq!(talk.ask(2, 0, 1000), RoomAnswer::Waits);
    assert_eq!(talk.ask(3, 0, 10), RoomAnswer::Waits);
    talk.give_back(1, 10);
    assert_eq!(talk.told(), [(2, true)]);
    talk.give_back(2, 1000);
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
    talk.give_back(1, 60);
    assert_eq!(talk.told(), [(3, true), (4, true)]);
    // The letter is on its way, and the connection is gone.
    talk.withdraw(3, 50);
    assert_eq!(talk.room.taken(), 50);
}

#[test]
fn connections_that_wait_for_each_other() {
    let mut talk = Talk::new();
    for who in 1..4 {
        assert_eq!(talk.ask_as((who, "a"), 0, 20), RoomAnswer::Granted);
    }
    for who in 1..3 {
        assert_eq!(talk.ask_as((who, "a"), 20, 10), RoomAnswer::Waits);
    }
    assert_eq!(talk.told(), [], "the third can go on");
    // That another user goes on is no help.
    assert_eq!(talk.ask_as((9, "b"), 0, 1), RoomAnswer::Waits);
    assert_eq!(talk.told(), [(9, true)]);
    assert_eq!(talk.ask_as((3, "a"), 20, 10), RoomAnswer::Waits);
    assert_eq!(talk.told(), [(1, true)], "in excess of the share");
    // The first wants no more: all goes its way.
    talk.give_back(1, 30);
    assert_eq!(talk.told(), [(2, true), (3, true)]);
    talk.give_back(2, 30);
    talk.give_back(3, 30);
    assert_eq!(talk.room.taken(), 1);
}

#[test]
fn a_circle_that_no_excess_opens() {
    let mut talk = Talk::new();
    for who in 1..7 {
        assert_eq!(talk.ask_as((who, "a"), 0, 10), RoomAnswer::Granted);
    }
    for who in 1..7 {
        assert_eq!(talk.told(), []);
        assert_eq!(talk.ask_as((who, "a"), 10, 30), RoomAnswer::Waits);
    }
    assert_eq!(talk.told(), [(6, false)]);
    talk.withdraw(6, 30);
    talk.give_back(6, 10);
    assert_eq!(talk.told(), [(1, true)]);
}

/// A connection that is refused may be gone before it hears so: room that others have is not counted as free.
#[test]
fn who_is_refused_and_gone_takes_nothing_from_others() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask(1, 0, 50), RoomAnswer::Granted);
    assert_eq!(talk.ask(2, 0, 50), RoomAnswer::Granted);
    assert_eq!(talk.ask(1, 50, 30), RoomAnswer::Waits);
    assert_eq!(talk.ask(2, 50, 90), RoomAnswer::Waits);
    assert_eq!(talk.told(), [(2, false)]);
    talk.withdraw(2, 90);
    assert_eq!(talk.room.taken(), 100);
    talk.give_back(2, 50);
    assert_eq!(talk.told(), [(1, true)]);
    talk.give_back(1, 80);
    assert_eq!((talk.room.taken(), talk.room.waiting()), (0, 0));
}

/// Frames have room of their own, whoever waits: neither do bodies wait for them nor they for bodies.
#[test]
fn frames_have_a_part() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask_for_frame((1, "a"), 20), RoomAnswer::Granted);
    assert_eq!(talk.ask_for_frame((2, "a"), 20), RoomAnswer::Waits);
    assert_eq!((talk.room.waiting(), talk.room.frames_waiting()), (0, 1));
    assert_eq!(talk.ask(3, 0, 100), RoomAnswer::Granted);
    assert_eq!(talk.ask(4, 0, 10), RoomAnswer::Waits);
    assert_eq!((talk.room.waiting(), talk.room.frames_waiting()), (1, 1));
    talk.give_back_frame(1, 20);
    assert_eq!(talk.told(), [(2, true)], "it waits for no body");
    talk.give_back(3, 100);
    assert_eq!(talk.told(), [(4, true)]);
    assert_eq!(talk.ask_for_frame((5, "b"), 1000), RoomAnswer::Waits);
    talk.give_back_frame(2, 20);
    assert_eq!(talk.told(), [(5, true)], "alone");
    talk.give_back(4, 10);
    talk.give_back_frame(5, 1000);
    assert_eq!((talk.room.taken(), talk.room.frames_waiting()), (0, 0));
}

/// However full the room is of long bodies that stand still, and whoever waits for it: little ones come through.
#[test]
fn small_bodies_have_a_part() {
    let mut talk = Talk::new();
    let mut ask = |who: u64, user: &str, kind, wants| {
        let connection = NodeId::ALONE.connection(who);
        let question = Question { connection, number: 0, user, holds: Kinds::default() };
        talk.room.ask(question, kind, wants, &mut talk.outbox)
    };
    assert_eq!(ask(1, "still", Kind::Body, 66), RoomAnswer::Granted);
    assert_eq!(ask(2, "long", Kind::Body, 40), RoomAnswer::Waits, "no room for so long a body");
    assert_eq!(ask(3, "long", Kind::Small, 1), RoomAnswer::Granted);
    for who in 10..60 {
        ask(who, "still", Kind::Small, 1);
    }
    for who in 60..66 {
        ask(who, "other", Kind::Small, 1);
    }
    assert_eq!(talk.room.taken(), 66 + 1 + 16 + 5);
    assert!(talk.room.is_awaited("still", [66, 0, 0]));
    assert!(talk.room.is_awaited("still", [0, 1, 0]), "by its own");
    assert!(!talk.room.is_awaited("third", [0, 0, 1]));
}

/// A user's frames that stand still leave a third of the part to those of others.
#[test]
fn frames_have_shares() {
    let mut talk = Talk::new();
    for who in 0..100 {
        talk.ask_for_frame((who, "still"), 1);
    }
    assert_eq!((talk.room.taken(), talk.room.frames_waiting()), (16, 84));
    for who in 100..106 {
        assert_eq!(talk.ask_for_frame((who, "other"), 1), RoomAnswer::Waits);
        assert_eq!(talk.told(), [(who, true)]);
    }
}

/// However many frames of one user wait, those of others come between.
#[test]
fn frames_of_users_take_turns() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask_for_frame((1, "a"), 20), RoomAnswer::Granted);
    for (who, user) in [(2, "a"), (3, "a"), (4, "a"), (5, "b"), (6, "c"), (7, "b")] {
        assert_eq!(talk.ask_for_frame((who, user), 20), RoomAnswer::Waits);
    }
    talk.room.withdraw(NodeId::ALONE.connection(4), "a", Kind::Frame, 20, &mut talk.outbox);
    let mut holder = 1;
    for next in [2, 5, 6, 3, 7] {
        talk.give_back_frame(holder, 20);
        assert_eq!(talk.told(), [(next, true)]);
        holder = next;
    }
    talk.give_back_frame(holder, 20);
    assert_eq!((talk.room.taken(), talk.room.frames_waiting()), (0, 0));
}

#[test]
fn bodies_of_users_take_turns() {
    let mut talk = Talk::crowded(5);
    assert_eq!(talk.ask_as((10, "few"), 0, 90), RoomAnswer::Waits);
    assert_eq!(talk.ask_as((11, "few"), 0, 90), RoomAnswer::Waits);
    let mut order = vec![1];
    for came in 12..18 {
        talk.give_back(order[order.len() - 1], 90);
        order.extend(talk.told().into_iter().map(|(who, _)| who));
        // One who comes again and again does not pass those who wait for ever.
        assert_eq!(talk.ask_as((came, "new"), 0, 90), RoomAnswer::Waits);
    }
    assert_eq!(order, [1, 2, 10, 12, 3, 11, 13]);
}

/// Whoever waits much and leaves again has not put others back.
#[test]
fn turns_that_were_not_served_do_not_count() {
    let mut talk = Talk::crowded(99);
    talk.withdraw(99, 90);
    talk.give_back(1, 90);
    assert_eq!(talk.told(), [(2, true)]);
    assert_eq!(talk.ask_as((100, "few"), 0, 90), RoomAnswer::Waits);
    talk.give_back(2, 90);
    assert_eq!(talk.told(), [(100, true)]);
}

/// Room for the frame that a body's header came in is not in the way of a long body.
#[test]
fn frames_do_not_make_the_room_full() {
    let mut talk = Talk::new();
    assert_eq!(talk.ask_for_frame((1, "a"), 5), RoomAnswer::Granted);
    assert_eq!(talk.ask_for_frame((2, "a"), 5), RoomAnswer::Granted);
    assert_eq!(talk.ask_as((1, "a"), 5, 1000), RoomAnswer::Granted);
    assert_eq!(talk.ask_as((2, "a"), 5, 1000), RoomAnswer::Waits);
    talk.give_back(1, 1000);
    assert_eq!(talk.told(), [(2, true)]);
}

/// Random connections of three users, with several bodies each: each ends what it begins or is refused, and what is taken
/// stays below the bounds, for all and for each user.
#[test]
fn nobody_waits_for_ever() {
    for seed in 0..300_u64 {
        let mut random = numbers(seed);
        let mut talk = Talk::new();
        // Held, asked for, bodies to begin.
        let mut all = vec![(0_u64, 0_u64, 20_u64); 12];
        let users = 1 + seed % 3;
        for _ in 0..40_000 {
            let who = random(12);
            let (holds, asked, left) = all[who as usize];
            if asked > 0 {
                continue;
            }
            if left > 0 && random(2) == 0 {
                let wants = (1 + random(30)).min(33 - holds.min(32));
                all[who as usize].2 -= 1;
                let user = (who % users).to_string();
                match talk.ask_as((who, &user), holds, wants) {
                    RoomAnswer::Granted => all[who as usize].0 += wants,
                    RoomAnswer::Waits => all[who as usize].1 = wants,
                }
            } else if holds > 0 {
                let bytes = if random(2) == 0 { holds } else { 1 + random(holds) };
                all[who as usize].0 -= bytes;
                talk.give_back(who, bytes);
            }
            let mut told = talk.told();
            while let Some((who, is_granted)) = told.pop() {
                let (holds, asked, _) = &mut all[who as usize];
                assert!(*asked > 0);
                if is_granted {
                    *holds += std::mem::take(asked);
                } else {
                    let bytes = std::mem::take(holds) + std::mem::take(asked);
                    talk.give_back(who, bytes);
                }
                told.extend(talk.told());
            }
            assert!(talk.room.taken() <= 100, "{}", talk.room.taken());
            let taken: u64 = all.iter().map(|(holds, ..)| holds).sum();
            assert_eq!(taken, talk.room.taken(), "seed {seed}");
            for user in 0..users {
                let held = |(who, one): (usize, &(u64, u64, u64))| {
                    if who as u64 % users == user { one.0 } else { 0 }
                };
                let held: u64 = all.iter().enumerate().map(held).sum();
                assert!(held <= 89, "seed {seed}: {held}");
            }
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

/// Random connections with bodies, small ones and frames, and few users: some hold one kind and wait for another, and each ends
/// what it begins or is refused.
#[test]
fn nobody_waits_for_another_kind_for_ever() {
    #[derive(Clone, Default, Debug)]
    struct One {
        holds: Kinds,
        asked: Option<(Kind, u64)>,
        left: u64,
    }
    for seed in 0..200_u64 {
        let mut random = numbers(seed);
        let mut talk = Talk::new();
        let mut all = vec![One { left: 20, ..One::default() }; 12];
        let users = 1 + seed % 3;
        for _ in 0..40_000 {
            let who = random(12);
            let user = (who % users).to_string();
            let one = &mut all[who as usize];
            if one.asked.is_some() {
                continue;
            }
            if one.left > 0 && random(2) == 0 {
                one.left -= 1;
                let kind = KINDS[random(3) as usize];
                let [body, small, _] = one.holds;
                let (kind, wants) = match kind {
                    // What was small moves with it.
                    Kind::Body => (kind, (1 + random(30)).min(33 - (body + small).min(32)) + small),
                    Kind::Small if body > 0 => (Kind::Body, 1 + random(4)),
                    Kind::Small => (kind, 1 + random(4)),
                    Kind::Frame => (kind, 1 + random(12)),
                };
                let connection = NodeId::ALONE.connection(who);
                let question = Question { connection, number: 0, user: &user, holds: one.holds };
                match talk.room.ask(question, kind, wants, &mut talk.outbox) {
                    RoomAnswer::Granted => one.holds[kind as usize] += wants,
                    RoomAnswer::Waits => one.asked = Some((kind, wants)),
                }
            } else if let Some(&kind) = KINDS.iter().find(|&&it| one.holds[it as usize] > 0) {
                let held = &mut one.holds[kind as usize];
                let bytes = if random(2) == 0 { *held } else { 1 + random(*held) };
                *held -= bytes;
                talk.room.give_back(&user, kind, bytes, &mut talk.outbox);
            }
            let mut told = talk.told();
            while let Some((who, is_granted)) = told.pop() {
                let one = &mut all[who as usize];
                let (kind, wants) = one.asked.take().expect("it asked");
                one.holds[kind as usize] += wants;
                if !is_granted {
                    let user = (who % users).to_string();
                    for kind in KINDS {
                        let bytes = std::mem::take(&mut one.holds[kind as usize]);
                        talk.room.give_back(&user, kind, bytes, &mut talk.outbox);
                    }
                }
                told.extend(talk.told());
            }
            let taken: u64 = all.iter().flat_map(|one| one.holds).sum();
            assert_eq!(taken, talk.room.taken(), "seed {seed}");
            assert!(taken <= 150, "seed {seed}: {taken}");
            let goes_on = |one: &One| one.asked.is_none() && one.holds != Kinds::default();
            let waits = all.iter().any(|one| one.asked.is_some());
            assert!(!waits || all.iter().any(goes_on), "seed {seed}: {all:?}");
            if all.iter().all(|one| one.left == 0 && one.holds == Kinds::default()) {
                break;
            }
        }
        assert!(all.iter().all(|one| one.left == 0 && one.asked.is_none()), "{seed}: {all:?}");
    }
}
