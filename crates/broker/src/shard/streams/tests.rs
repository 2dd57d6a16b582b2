use std::collections::BTreeSet;

use leveret_topology::NodeId;

use super::*;
use crate::stream::StreamClass;

const ID: StreamId = StreamId { node: NodeId::ALONE, start: 3, class: StreamClass::Bodies };

/// A set of numbers in ranges is the set.
#[test]
fn letters_are_done_in_any_order() {
    for seed in 0..200 {
        let mut below = leveret_log::suite::numbers(seed);
        let (mut done, mut model) = (Done::default(), BTreeSet::new());
        let most = 1 + below(40);
        for _ in 0..60 {
            let number = 1 + below(most);
            done.parts.insert(number, 1);
            done.add(number);
            model.insert(number);
            for number in 1..most + 2 {
                assert_eq!(done.has(number), model.contains(&number), "{number} of {done:?}");
            }
            let low = (1..).take_while(|it| model.contains(it)).last().unwrap_or(0);
            assert_eq!((done.low, done.parts.len()), (low, 0));
            let ranges: Vec<_> = done.above.iter().map(|(&first, &last)| (first, last)).collect();
            assert!(ranges.iter().all(|(first, last)| first <= last && *first > low + 1));
            assert!(ranges.windows(2).all(|it| it[0].1 + 1 < it[1].0), "{ranges:?}");
        }
    }
}

/// What a note says is found again, whatever older notes are in the log still.
#[test]
fn the_last_note_counts() {
    for seed in 0..100 {
        let mut below = leveret_log::suite::numbers(seed);
        let mut streams = Streams::default();
        let mut log: Vec<NotePiece> = Vec::new();
        let mut first = 0;
        for number in 1..20 {
            assert_eq!(streams.take(ID, number, 1), NumberFate::Next { done: 0 });
            let tag = Tag { stream: ID, number };
            streams.begin(tag, 0);
            let done = below(6) as usize;
            (0..done).filter(|_| below(2) == 0).for_each(|place| streams.refused(place));
            if below(2) == 0 {
                streams.leaves(done as u32);
            }
            streams.end();
            for (id, pieces) in streams.to_note() {
                let count = pieces.len() as u64;
                let at = Offset::new(log.len() as u64);
                log.extend(pieces);
                let durable = at.get().saturating_sub(below(20));
                for old in streams.noted(id, at, count, Moment::default(), durable) {
                    assert_eq!(old.get(), first, "in order");
                    assert!(old.get() < durable);
                    first += 1;
                }
            }
            assert_eq!(streams.records(), log.len() as u64 - first);
        }
        let mut found = Streams::default();
        found.begin_term();
        for (at, piece) in log.iter().enumerate().skip(first as usize) {
            let piece = NotePiece::decode(&piece.encode()).expect("a note");
            found.found(Offset::new(at as u64), piece);
        }
        found.all_found(Moment::default());
        let Some(want) = streams.all.pop() else { continue };
        let it = &mut found.all[0];
        assert_eq!((&it.done, &it.refused), (&want.done, &want.refused), "seed {seed}");
        assert_eq!((it.taken, &it.earlier, &it.notes), (want.done.low, &it.done, &want.notes));
    }
}

#[test]
fn a_number_is_taken_once_and_in_its_turn() {
    let mut streams = Streams::default();
    assert_eq!(streams.take(ID, 2, 1), NumberFate::Lacks(1));
    assert_eq!(streams.take(ID, 3, 1), NumberFate::StillLacks, "that was said");
    assert_eq!(streams.take(ID, 1, 1), NumberFate::Next { done: 0 });
    assert_eq!(streams.take(ID, 1, 1), NumberFate::Again);
    assert_eq!(streams.take(ID, 2, 1), NumberFate::Next { done: 0 });
    assert_eq!(streams.take(ID, 4, 1), NumberFate::Lacks(3));
    let place = |term, next| StreamPlace { term, next, agreed: 0 };
    assert_eq!(streams.place(ID), place(0, 3));
    let other = StreamId { class: StreamClass::Acks, ..ID };
    assert_eq!(streams.place(other), place(0, 1));

    let mut again = Streams::default();
    again.begin_term();
    let items = vec![NoteItem::Done { first: 4, last: 5 }, NoteItem::Part { number: 3, count: 7 }];
    again.found(Offset::new(9), NotePiece { stream: ID, goes_on: false, low: 2, items });
    again.all_found(Moment::default());
    assert_eq!(again.place(ID), place(1, 3));
    assert_eq!(again.take(ID, 2, 1), NumberFate::Earlier);
    assert_eq!(again.take(ID, 4, 1), NumberFate::Lacks(3));
    assert_eq!(again.take(ID, 3, 1), NumberFate::Next { done: 7 });
    assert_eq!(again.take(ID, 4, 1), NumberFate::Earlier);
    assert_eq!(again.take(ID, 5, 1), NumberFate::Earlier);
    assert_eq!(again.take(ID, 4, 1), NumberFate::Earlier, "it is asked again");
    assert_eq!(again.take(ID, 3, 1), NumberFate::Again);
    assert_eq!(again.take(ID, 6, 1), NumberFate::Next { done: 0 });
    // Of a process that is gone nothing is kept.
    assert_eq!(again.keep_only(|_| false), [Offset::new(9)]);
    assert_eq!((again.records(), again.is_empty()), (0, true));
}

#[test]
fn what_is_agreed_upon_is_said_once() {
    let mut streams = Streams::default();
    let moment = |end| Moment { end: leveret_log::Offset::new(end), notes: 0 };
    for number in 1..=3 {
        streams.take(ID, number, 1);
        streams.is_done(Tag { stream: ID, number });
        streams.noted(ID, Offset::new(number), 1, moment(10 * number), 0);
    }
    let mut said = Vec::new();
    for until in [9, 10, 29, 30, 30] {
        streams.agreed(|it| it.end.get() <= until, |news| said.push((until, news.what)));
    }
    let want = [(10, 1), (29, 2), (30, 3)].map(|(at, low)| (at, StreamEvent::Agreed(low)));
    assert_eq!(said, want);
    assert_eq!(streams.place(ID).agreed, 3, "whoever begins to talk to the shard is told again");

    // A new term says it once more.
    let mut again = Streams::default();
    again.begin_term();
    again.found(Offset::new(9), NotePiece { stream: ID, goes_on: false, low: 3, items: vec![] });
    again.all_found(moment(40));
    let mut said = Vec::new();
    for until in [39, 40, 41] {
        again.agreed(|it| it.end.get() <= until, |news| said.push((until, news.term, news.what)));
    }
    assert_eq!(said, [(40, 1, StreamEvent::Agreed(3))]);
}
