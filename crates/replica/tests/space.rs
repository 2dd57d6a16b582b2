//! A member's log gives back space, lent or not: its list of files is told who is a member before a file goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leveret_log::disk::{Faults, SimDisk};
use leveret_log::file::Options;
use leveret_log::{BatchName, Holder, Keep, Log};
use leveret_replica::{GroupLog, Member, MemberId, Members, Point, Settings};

const ONE: [Holder; 1] = [Holder::new(1)];

type Taken = leveret_replica::MemberActions;

/// What a member wants is done: words are kept at once.
fn take(member: &mut Member<SimDisk>) -> Taken {
    let mut all = Taken::default();
    loop {
        let actions = member.take_actions();
        if let Some(log) = member.take_reopening() {
            member.reopened(log.open());
        }
        let last = actions.keep.last().map(|(_, ticket)| *ticket);
        all.messages.extend(actions.messages);
        all.wakes_log |= actions.wakes_log;
        assert_eq!(actions.failed, None);
        let Some(ticket) = last else { return all };
        member.kept(ticket);
    }
}

fn open(id: u64, disk: &SimDisk) -> Member<SimDisk> {
    open_of(&[1, 2], id, disk)
}

fn open_of(all: &[u64], id: u64, disk: &SimDisk) -> Member<SimDisk> {
    let members = Members::of(&all.iter().map(|id| MemberId(*id)).collect::<Vec<_>>());
    let point = Point { at: BatchName { number: 1, term: 1 }, members };
    let options = Options { segment_bytes: 4_000, cache_bytes: 0, ..Options::default() };
    let held_bytes = 100_000;
    let settings = Settings { tick_ms: 100, election_ticks: 4, held_bytes, ..Settings::default() };
    let word = Some(Default::default());
    Member::open(MemberId(id), settings, id, word, disk.clone(), options, point).unwrap().0
}

/// A lent log, and whether it has something for its member.
type Lent = (GroupLog<SimDisk>, Arc<AtomicBool>);

/// Ten milliseconds of two members, of which the first may have lent its log.
fn turn(members: &mut [Member<SimDisk>; 2], lent: &mut Option<Lent>, now_ms: &mut u64) {
    *now_ms += 10;
    for at in 0..2 {
        members[at].tick(*now_ms);
        members[at].disk_woke();
        if at == 0
            && let Some((log, rung)) = lent
        {
            log.collect().unwrap();
            if rung.swap(false, Ordering::Relaxed) {
                members[0].log_woke();
            }
        }
        for (to, message, copies) in take(&mut members[at]).messages {
            if let Some(to) = members.get_mut(to.0 as usize - 1) {
                to.step(MemberId(at as u64 + 1), message, copies);
            }
        }
    }
}

/// The first one is to lead, and lends its log.
fn first_leads(members: &mut [Member<SimDisk>; 2], now_ms: &mut u64) -> Option<Lent> {
    for _ in 0..10_000 {
        turn(members, &mut None, now_ms);
        if members[0].leads().is_some() {
            break;
        }
        if members[1].leads().is_some() {
            let _ = members[1].transfer(MemberId(1));
        }
    }
    let rung = Arc::new(AtomicBool::new(false));
    let bell = rung.clone();
    let wake = Arc::new(move || bell.store(true, Ordering::Relaxed));
    Some((members[0].lend_log(wake).unwrap(), rung))
}

/// What stays for a third one that is away gives its room back where there is little: else publishers waited for it, and what
/// consumers ack would give no room.
#[test]
fn nothing_stays_for_others_on_a_full_disk() {
    let disks = [1, 2].map(SimDisk::new);
    let mut members = [1, 2].map(|id| open_of(&[1, 2, 3], id, &disks[id as usize - 1]));
    let mut now_ms = 0;
    let mut lent = first_leads(&mut members, &mut now_ms);
    let mut put = |count: usize, members: &mut _, now_ms: &mut u64| {
        for number in 0..count {
            let log = &mut lent.as_mut().unwrap().0;
            let at = log.append(b"h", &[&[number as u8; 200]], &ONE, Keep::Durable).unwrap();
            for _ in 0..20 {
                lent.as_mut().unwrap().0.sync().unwrap();
                turn(members, &mut lent, now_ms);
            }
            lent.as_mut().unwrap().0.release(at, ONE[0]).unwrap();
        }
    };
    put(300, &mut members, &mut now_ms);
    let count = |disk: &SimDisk| disk.files().len();
    assert!(count(&disks[0]) > 15, "all of 100 kB: {}", count(&disks[0]));
    for disk in &disks {
        disk.set_faults(Faults { wants_room: true, ..Faults::default() });
    }
    put(20, &mut members, &mut now_ms);
    for disk in &disks {
        // One that is written to, and one of members: what is there when nobody is away.
        assert!(count(disk) < 6, "{}", count(disk));
    }
}

/// As much stays for a third one that is away as is to, however long it is: behind that it gets files in place of batches.
#[test]
fn who_is_away_for_long_costs_no_more_room() {
    let disks = [1, 2].map(SimDisk::new);
    let mut members = [1, 2].map(|id| open_of(&[1, 2, 3], id, &disks[id as usize - 1]));
    let mut now_ms = 0;
    let mut lent = first_leads(&mut members, &mut now_ms);
    let mut most = 0;
    for number in 0..900 {
        let log = &mut lent.as_mut().unwrap().0;
        let at = log.append(b"h", &[&[number as u8; 200]], &ONE, Keep::Durable).unwrap();
        for _ in 0..20 {
            lent.as_mut().unwrap().0.sync().unwrap();
            turn(&mut members, &mut lent, &mut now_ms);
        }
        lent.as_mut().unwrap().0.release(at, ONE[0]).unwrap();
        most = disks[0].files().len().max(most);
    }
    // Of 4 kB each; and as many as there are when nobody is away.
    assert!((20..32).contains(&most), "{most} files");
}

#[test]
fn files_go_when_nobody_needs_them() {
    let disks = [1, 2].map(SimDisk::new);
    let mut members = [1, 2].map(|id| open(id, &disks[id as usize - 1]));
    let mut now_ms = 0;
    let mut lent = first_leads(&mut members, &mut now_ms);
    let mut turn = |members: &mut [Member<SimDisk>; 2], lent: &mut Option<Lent>| {
        turn(members, lent, &mut now_ms);
    };
    let mut most = [0; 2];
    for number in 0..600 {
        let log = &mut lent.as_mut().unwrap().0;
        let at = log.append(b"h", &[&[number as u8; 200]], &ONE, Keep::Durable).unwrap();
        for _ in 0..20 {
            lent.as_mut().unwrap().0.sync().unwrap();
            turn(&mut members, &mut lent);
        }
        let log = &mut lent.as_mut().unwrap().0;
        assert!(log.readable() > at, "record {number}");
        log.release(at, ONE[0]).unwrap();
        for (most, disk) in most.iter_mut().zip(&disks) {
            *most = disk.files().len().max(*most);
        }
    }
    for at in 0..2 {
        // More than 30 were written.
        assert!(most[at] < 20, "{most:?}");
        let status = members[at].status();
        assert!(status.agreed.number > 600 && status.members.voters.len() == 2);
    }
    // A start knows who is a member, and goes on.
    drop((members, lent));
    for disk in &disks {
        disk.crash();
    }
    let mut members = [1, 2].map(|id| open(id, &disks[id as usize - 1]));
    assert!(members.iter().all(|it| it.status().last.number > 600));
    let mut now_ms = 0;
    let leads = (0..10_000).any(|_| {
        now_ms += 10;
        for at in 0..2 {
            members[at].tick(now_ms);
            members[at].disk_woke();
            for (to, message, copies) in take(&mut members[at]).messages {
                members[to.0 as usize - 1].step(MemberId(at as u64 + 1), message, copies);
            }
        }
        members.iter().any(|it| it.leads().is_some())
    });
    assert!(leads);
}
