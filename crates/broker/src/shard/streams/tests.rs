use std::collections::BTreeSet;

use leveret_topology::NodeId;

use super::facts::Messages;
use super::*;
use crate::stream::{NoteItem, StreamClass};

const ID: StreamId = StreamId { node: NodeId::ALONE, start: 3, class: StreamClass::Bodies };

/// A set of numbers in ranges is the set.
#[test]
fn letters_are_done_in_any_order() {
    for seed in 0..200 {
        let mut below = leveret_log::suite::numbers(seed);
        let (mut done, mut model) = (Done::default(), BTreeSet::new());
        let most = 1 + below(40);
        for _ in 0..60 {
            let first = 1 + below(most);
            let last = if below(3) == 0 { first + below(5) } else { first };
            done.add_part(first, 1);
            match below(8) {
                0 => {
                    done.is_to(last);
                    model.extend(1..=last);
                }
                _ => {
                    done.add(first, last);
                    model.extend(first..=last);
                }
            }
            for number in 1..most + 7 {
                assert_eq!(done.has(number), model.contains(&number), "{number} of {done:?}");
            }
            let low = (1..).take_while(|it| model.contains(it)).last().unwrap_or(0);
            assert_eq!((done.low, done.parts.len()), (low, 0));
            let ranges: Vec<_> = done.above.iter().collect();
            assert!(ranges.iter().all(|(first, last)| first <= last && *first > low + 1));
            assert!(ranges.windows(2).all(|it| it[0].1 + 1 < it[1].0), "{ranges:?}");
        }
    }
}

#[test]
fn what_was_refused_is_known_until_nobody_asks() {
    for seed in 0..200 {
        let mut below = leveret_log::suite::numbers(seed);
        let (mut refused, mut model, mut kept_from) = (Messages::default(), BTreeSet::new(), 1);
        for number in 1..30 {
            let messages = 1 + below(4) as u32;
            for place in (0..messages).filter(|_| below(3) > 0) {
                refused.add(number, place, place);
                model.insert((number, place));
            }
            let all = (0..messages).all(|place| model.contains(&(number, place)));
            assert_eq!(refused.is_whole(number, messages), all);
            if below(6) == 0 {
                kept_from = 1 + below(number);
                refused.forget_below(kept_from);
            }
            model.retain(|(number, _)| *number >= kept_from);
            for (number, place) in (1..=number).flat_map(|it| (0..messages).map(move |at| (it, at)))
            {
                let is_whole = refused.has(number, u32::MAX);
                let want = model.contains(&(number, place)) || is_whole;
                assert_eq!(refused.has(number, place), want, "seed {seed}");
                assert!(!is_whole || number >= kept_from && model.contains(&(number, 0)));
            }
        }
        refused.forget_below(u64::MAX);
        assert_eq!(refused, Messages::default());
    }
}

/// What notes say is found again, whatever older notes are in the log still, and they are not much longer than what there is to say.
#[test]
fn the_notes_together_count() {
    for seed in 0..100 {
        let mut below = leveret_log::suite::numbers(seed);
        let mut streams = Streams::default();
        let mut log: Vec<NotePiece> = Vec::new();
        let (mut first, mut kept_from) = (0, 1);
        let often = 1 + below(8);
        for number in 1..300 {
            if below(often * 4) == 0 {
                kept_from += below(number + 1 - kept_from);
            }
            assert_eq!(
                streams.take(ID, number, kept_from, kept_from),
                NumberFate::Next { done: 0 }
            );
            let tag = Tag { stream: ID, number };
            let messages = below(6) as usize;
            streams.begin(tag, 0, messages);
            for place in 0..messages {
                match below(6 * often) {
                    0..6 => streams.refused(place),
                    // Few enough to be told apart.
                    6 => streams.waits(place, WaitsWhere::Nowhere),
                    7 => streams.waits(place, WaitsWhere::Log(Offset::new(below(1 << 40)))),
                    _ => {}
                }
            }
            if below(often * 2) == 0 {
                streams.leaves(messages as u32);
            }
            streams.end();
            if below(3) == 0 {
                continue;
            }
            for (id, pieces) in streams.next_notes() {
                let count = pieces.len() as u64;
                let at = Offset::new(log.len() as u64);
                log.extend(pieces);
                let most = 2 * streams.all[0].facts.len() + ITEMS_BEYOND;
                let durable = at.get().saturating_sub(below(20));
                for old in streams.noted(id, at, count, Moment::default(), durable) {
                    assert_eq!(old.get(), first, "in order");
                    first += 1;
                }
                assert!(streams.all[0].items <= most, "seed {seed}");
            }
            let records = log.len() as u64 - first;
            assert_eq!(streams.records(), records);
            if below(10) > 0 {
                continue;
            }
            // A crash: any end of the log that no note lies across, if nothing behind a whole note was let go of.
            let mut found = Streams::default();
            found.begin_term();
            for (at, piece) in log.iter().enumerate().skip(first as usize) {
                let piece = NotePiece::decode(&piece.encode()).expect("a note");
                found.found(Offset::new(at as u64), piece);
            }
            found.all_found(Moment::default());
            let want = &streams.all[0];
            let it = &mut found.all[0];
            it.facts.forget_below(kept_from, kept_from);
            assert_eq!(it.facts, want.facts, "seed {seed}");
            let same = (it.taken, &it.earlier, &it.notes, it.items);
            assert_eq!(same, (want.facts.done.low, &it.facts.done, &want.notes, want.items));
        }
    }
}

/// A full queue refuses all of many letters, and others are refused in part.
#[test]
fn a_note_says_what_is_new() {
    let mut streams = Streams::default();
    let mut at = 0;
    let mut note = |streams: &mut Streams| {
        let before = at;
        for (id, pieces) in streams.next_notes() {
            let count = pieces.len() as u64;
            streams.noted(id, Offset::new(at), count, Moment::default(), at);
            at += count;
        }
        at - before
    };
    let refuse = |streams: &mut Streams, number, messages, refused: usize| {
        assert_eq!(streams.take(ID, number, 1, 1), NumberFate::Next { done: 0 });
        streams.begin(Tag { stream: ID, number }, 0, messages);
        (0..refused).for_each(|place| streams.refused(place));
        streams.end();
    };
    for number in 1..=5_000 {
        refuse(&mut streams, number, 3, 3);
    }
    assert_eq!(note(&mut streams), 1, "all are one item");
    let mut written = 0;
    for number in 5_001..=7_000 {
        refuse(&mut streams, number, 3, 1);
        written += note(&mut streams);
    }
    // Each said once, and all anew whenever that has doubled about.
    assert!(written < 2 * 2_000, "{written} records");
}

/// Of a stream a few letters were refused in part, and its sender does not let go of them. All that follow are just done, one a turn.
#[test]
fn notes_that_say_only_a_number_are_let_go_of() {
    let mut streams = Streams::default();
    let mut at = 0;
    for number in 1..=1_000 {
        assert_eq!(streams.take(ID, number, 1, 1), NumberFate::Next { done: 0 });
        streams.begin(Tag { stream: ID, number }, 0, 2);
        if number <= NOTE_ITEMS as u64 + 1 {
            streams.refused(0);
        }
        streams.end();
        for (id, pieces) in streams.next_notes() {
            let count = pieces.len() as u64;
            streams.noted(id, Offset::new(at), count, Moment::default(), at);
            at += count;
        }
        let most = 2 * (2 * NOTE_ITEMS + ITEMS_BEYOND);
        assert!(streams.records() <= most as u64, "{number}: {}", streams.records());
    }
}

/// A verdict that was given in a later turn than its letter was done is held for longer than what is agreed upon of the letter.
#[test]
fn what_is_held_is_told_before_it_is_said_to_be() {
    let mut streams = Streams::default();
    let moment = |end| Moment { end: leveret_log::Offset::new(end), notes: 0 };
    for number in 1..=3 {
        streams.take(ID, number, 1, 1);
        streams.is_done(Tag { stream: ID, number });
        streams.noted(ID, Offset::new(number), 1, moment(10 * number), 0);
    }
    let mut said = |end: Option<u64>, until| {
        let mut said = Vec::new();
        let is_agreed = |it: &Moment| it.end.get() <= until;
        let until = moment(end.unwrap_or(0));
        let held = HeldVerdicts { until, for_all: false, in_turns: end.is_some() };
        streams.agreed(held, is_agreed, |_| false, |news| said.push(news.what));
        said
    };
    let agreed = |low, told| [StreamEvent::Agreed { low, told }];
    assert_eq!(said(Some(15), 10), agreed(1, 0));
    assert_eq!(said(Some(25), 14), []);
    assert_eq!(said(Some(25), 20), agreed(2, 1), "what is held now is of later turns");
    assert_eq!(said(Some(35), 24), []);
    assert_eq!(said(Some(35), 30), agreed(3, 2));
    assert_eq!(said(None, 35), agreed(3, 3));
    assert_eq!(said(None, 40), []);
}

/// What a transaction came to is asked for until it is answered, however much else was heard.
#[test]
fn what_was_undone_is_known_until_nobody_waits_for_it() {
    let mut streams = Streams::default();
    let tag = |number| Tag { stream: ID, number };
    for number in 1..=3 {
        assert_eq!(streams.take(ID, number, 1, 1), NumberFate::Next { done: 0 });
        streams.begin(tag(number), 0, 1);
        if number == 3 {
            streams.refused(0);
        }
        streams.end();
    }
    streams.was_given_up(tag(2));
    for (undecided_from, want) in [(2, Outcome::Refused), (3, Outcome::Done)] {
        assert_eq!(streams.take(ID, 3, 4, undecided_from), NumberFate::Again);
        assert_eq!(streams.outcome(tag(2)), want);
        assert_eq!(streams.outcome(tag(3)), Outcome::Done, "its sender has heard of it");
    }
}

/// Of a letter whose sender has heard what it came to, what is asked for waits for a consumer.
#[test]
fn what_is_asked_for_though_it_was_heard_of_waits() {
    let mut streams = Streams::default();
    streams.begin_term();
    let items = vec![
        NoteItem::Refused { number: 3, first: 1, last: 1 },
        NoteItem::Waits { number: 3, first: 2, last: 3 },
        NoteItem::InLog { number: 3, first: 3, last: 3, at: 70 },
    ];
    streams.found(
        Offset::new(0),
        NotePiece { stream: ID, role: PieceRole::Whole, low: 3, items: items.into() },
    );
    streams.all_found(Moment::default());
    let what = |streams: &Streams, number| {
        [0, 1, 2, 3].map(|place| streams.earlier_message(Tag { stream: ID, number }, place))
    };
    let in_log = EarlierMessage::WaitsInLog(Offset::new(70));
    assert_eq!(streams.take(ID, 2, 2, 9), NumberFate::Earlier);
    assert_eq!(what(&streams, 1), [EarlierMessage::Waits; 4]);
    assert_eq!(what(&streams, 2), [EarlierMessage::Stored; 4]);
    let want = [EarlierMessage::Stored, EarlierMessage::Refused, EarlierMessage::Waits, in_log];
    assert_eq!(what(&streams, 3), want);
    assert_eq!(streams.take(ID, 4, 4, 9), NumberFate::Next { done: 0 });
    assert_eq!(what(&streams, 3), [EarlierMessage::Waits; 4]);
}

/// While more and more is refused of letters above one that waits, nothing new is agreed upon, and nobody is told anything.
#[test]
fn a_note_that_moves_no_number_brings_no_news() {
    let mut streams = Streams::default();
    for number in 1..=20 {
        assert_eq!(streams.take(ID, number, 1, 1), NumberFate::Next { done: 0 });
        streams.begin(Tag { stream: ID, number }, 0, 2);
        if number == 2 {
            streams.leaves(1);
        } else {
            streams.refused(0);
        }
        streams.end();
        for (id, pieces) in streams.next_notes() {
            streams.noted(id, Offset::new(0), pieces.len() as u64, Moment::default(), 0);
        }
        let mut said = Vec::new();
        let held = HeldVerdicts::default();
        streams.agreed(held, |_| true, |_| false, |news| said.push(news.what));
        let want: &[StreamEvent] =
            if number == 1 { &[StreamEvent::Agreed { low: 1, told: 1 }] } else { &[] };
        assert_eq!(said, want, "{number}");
    }
}

/// Letters that waited in lines when their leader fell lie between many that were done. They are taken, or the stream would stand
/// still for ever.
#[test]
fn what_an_earlier_term_left_out_is_taken_though_there_is_much_to_say() {
    let mut streams = Streams::default();
    streams.begin_term();
    let last = 2 * 4096;
    let mut items: Vec<_> =
        (1..last / 2).map(|it| NoteItem::Done { first: 2 * it, last: 2 * it }).collect();
    items.push(NoteItem::Part { number: last, count: 1 });
    streams.found(
        Offset::new(0),
        NotePiece { stream: ID, role: PieceRole::Whole, low: 0, items: items.into() },
    );
    streams.all_found(Moment::default());
    for number in 1..=last {
        let want = match number {
            number if number == last => NumberFate::Next { done: 1 },
            number if number % 2 == 0 => NumberFate::Earlier,
            _ => NumberFate::Next { done: 0 },
        };
        assert_eq!(streams.take(ID, number, 1, 1), want, "{number}");
        // Of each that is new something is to be said.
        streams.begin(Tag { stream: ID, number }, 0, 2);
        if number % 2 == 1 {
            streams.refused(0);
        }
        streams.end();
    }
    assert_eq!(streams.all[0].facts.done, Done { low: last, ..Done::default() });
}

#[test]
fn a_number_is_taken_once_and_in_its_turn() {
    let mut streams = Streams::default();
    assert_eq!(streams.take(ID, 2, 1, 1), NumberFate::Lacks(1));
    assert_eq!(streams.take(ID, 3, 1, 1), NumberFate::StillLacks, "that was said");
    assert_eq!(streams.take(ID, 1, 1, 1), NumberFate::Next { done: 0 });
    assert_eq!(streams.take(ID, 1, 1, 1), NumberFate::Again);
    assert_eq!(streams.take(ID, 2, 1, 1), NumberFate::Next { done: 0 });
    assert_eq!(streams.take(ID, 4, 1, 1), NumberFate::Lacks(3));
    let place = |term, next| StreamPlace { term, next, agreed: 0 };
    assert_eq!(streams.place(ID), place(0, 3));
    let other = StreamId { class: StreamClass::Acks, ..ID };
    assert_eq!(streams.place(other), place(0, 1));

    let mut again = Streams::default();
    again.begin_term();
    let items = vec![NoteItem::Done { first: 4, last: 5 }, NoteItem::Part { number: 3, count: 7 }];
    again.found(
        Offset::new(9),
        NotePiece { stream: ID, role: PieceRole::Whole, low: 2, items: items.into() },
    );
    again.all_found(Moment::default());
    assert_eq!(again.place(ID), place(1, 3));
    assert_eq!(again.take(ID, 2, 1, 1), NumberFate::Earlier);
    assert_eq!(again.take(ID, 4, 1, 1), NumberFate::Lacks(3));
    assert_eq!(again.take(ID, 3, 1, 1), NumberFate::Next { done: 7 });
    assert_eq!(again.take(ID, 4, 1, 1), NumberFate::Earlier);
    assert_eq!(again.take(ID, 5, 1, 1), NumberFate::Earlier);
    assert_eq!(again.take(ID, 4, 1, 1), NumberFate::Earlier, "it is asked again");
    assert_eq!(again.take(ID, 3, 1, 1), NumberFate::Again);
    assert_eq!(again.take(ID, 6, 1, 1), NumberFate::Next { done: 0 });
    // Of a process that is gone nothing is kept.
    assert_eq!(again.keep_only(|_| false), [Offset::new(9)]);
    assert_eq!((again.records(), again.is_empty()), (0, true));
}

#[test]
fn what_is_agreed_upon_is_said_once() {
    let mut streams = Streams::default();
    let moment = |end| Moment { end: leveret_log::Offset::new(end), notes: 0 };
    for number in 1..=3 {
        streams.take(ID, number, 1, 1);
        streams.is_done(Tag { stream: ID, number });
        streams.noted(ID, Offset::new(number), 1, moment(10 * number), 0);
    }
    let mut said = Vec::new();
    for until in [9, 10, 29, 30, 30] {
        let is_so_far = |it: &Moment| it.end.get() <= until;
        let held = HeldVerdicts::default();
        streams.agreed(held, is_so_far, |_| false, |news| said.push((until, news.what)));
    }
    let want =
        [(10, 1), (29, 2), (30, 3)].map(|(at, low)| (at, StreamEvent::Agreed { low, told: low }));
    assert_eq!(said, want);
    assert_eq!(streams.place(ID).agreed, 3, "whoever begins to talk to the shard is told again");

    // A new term says it once more.
    let mut again = Streams::default();
    again.begin_term();
    again.found(
        Offset::new(9),
        NotePiece { stream: ID, role: PieceRole::Whole, low: 3, items: Default::default() },
    );
    again.all_found(moment(40));
    let mut said = Vec::new();
    for until in [39, 40, 41] {
        again.agreed(
            HeldVerdicts::default(),
            |it| it.end.get() <= until,
            |_| false,
            |news| said.push((until, news.term, news.what)),
        );
    }
    assert_eq!(said, [(40, 1, StreamEvent::Agreed { low: 3, told: 3 })]);
}
