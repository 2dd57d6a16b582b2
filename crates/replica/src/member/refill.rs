//! Files in place of batches: what a leader gives to members that lack more than it keeps, and what such a member takes.
//!
//! ```text
//!   behind       -->  WantManifest  -->  the files as of a batch that all agree upon, which stay for a while
//!   receive      <--  Manifest      <--
//!   wanted       -->  WantPieces    -->  read by the log, some at a time
//!   take_piece   <--  Piece         <--
//!   ...
//!   arrived: the replica is told, and has the files installed; the log is opened anew, and goes on with the next batch
//! ```
//!
//! All of it may get lost: what was asked for and does not come is asked for again after a time-out, of whoever leads then. What came
//! stays, also over a start.

use std::collections::{BTreeMap, VecDeque};

use leveret_log::BatchName;
use leveret_log::disk::Disk;
use leveret_log::file::{Manifest, NoPiece, PieceCopy, PieceName};

use super::{Member, changes};
use crate::files::{Given, Refill, Wanted};
use crate::members::MemberId;
use crate::replica::NotNow;

/// What a member has of the bytes that may be asked for before it hears how many others take files.
pub(super) const SHARES: u64 = 64;

/// The bytes that may be asked for are so many shares at least: one more has one at once.
const SHARES_MIN: u64 = 4;

/// Pieces that wait for one member, at most.
const ASKED_MAX: usize = 64;

/// Files stay for a member that was not heard for so many time-outs.
const SILENT: u64 = 60;

/// Who takes files, and has none yet, does not need them if nobody says so for so many time-outs.
const GIVEN_UP: u64 = 5;

/// How far the files are that a member takes in place of its log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refilling {
    /// Bytes that are here.
    pub here: u64,
    /// Of so many; 0 until that is known.
    pub of: u64,
}

/// What a leader gives.
#[derive(Debug, Default)]
pub(super) struct Giving {
    manifest: Option<Manifest>,
    takers: BTreeMap<MemberId, Taker>,
    /// Pieces that were asked for, and by whom.
    asked: VecDeque<(MemberId, PieceName)>,
    /// What is to be looked for in the log while it is not lent.
    wanted: Wanted,
}

/// A member that takes files.
#[derive(Debug, Default)]
struct Taker {
    /// It waits for a manifest.
    waits: bool,
    /// Who has the files, and this batch, needs them no more.
    until: Option<u64>,
}

impl Giving {
    fn has(&self, name: &PieceName) -> bool {
        let mut files = self.manifest.iter().flat_map(|it| &it.files);
        files.any(|it| (it.file, it.heading.mark) == (name.file, name.mark))
    }
}

/// What a member takes.
#[derive(Debug)]
pub(super) struct Taking {
    from: MemberId,
    /// When something came last, or was asked for again.
    moved_ms: u64,
    begun_ms: u64,
    /// When its leader said last that it has no batches for it.
    behind_ms: u64,
    /// As of which batch the files are, once that is known.
    manifest: Option<BatchName>,
    /// The replica has the files in place of its log.
    is_decided: bool,
    /// And so has the disk in a moment: as of this batch, and with the count of the replica's cuts.
    installing: Option<(BatchName, u64)>,
    /// What was told: files that came damaged.
    is_told: bool,
    progress: Refilling,
}

impl Taking {
    pub(super) fn progress(&self) -> Refilling {
        self.progress
    }

    pub(super) fn installing(&self) -> Option<(BatchName, u64)> {
        self.installing
    }

    /// The disk is to have the files in place of the log.
    pub(super) fn install(&mut self, at: BatchName, cuts: u64) {
        self.installing = Some((at, cuts));
    }
}

impl<D: Disk> Member<D> {
    /// Whether it takes files in place of its log.
    pub fn takes_files(&self) -> bool {
        self.taking.is_some()
    }

    /// So many members on this node take files, and share what may be asked for ([`Settings::files_bytes`](crate::Settings)).
    pub fn share_files(&mut self, count: u64) {
        self.share = self.settings.files_bytes / count.max(SHARES_MIN);
    }

    /// Another member says something of files. Who says what cannot be is not heard.
    pub fn refill(&mut self, from: MemberId, refill: Refill) {
        if self.is_out() {
            return;
        }
        match refill {
            Refill::WantManifest => self.want_manifest(from),
            Refill::WantPieces(names) => self.want_pieces(from, names),
            Refill::Manifest(manifest) => self.take_manifest(from, manifest),
            Refill::Piece(piece) => self.take_piece(from, &piece),
            Refill::Gone => {
                // After a time-out it asks which there are now.
                if let Some(taking) = self.taking.as_mut().filter(|it| it.from == from) {
                    (taking.manifest, taking.moved_ms) = (None, self.now_ms);
                }
            }
        }
        self.go_on();
    }

    fn say(&mut self, to: MemberId, what: Refill) {
        self.actions.refill.push((to, what));
    }

    fn want_manifest(&mut self, from: MemberId) {
        // It may be that it leads once this one has the files.
        if self.replica.matched(from).is_none() {
            return;
        }
        self.heard.insert(from, self.now_ms);
        // The log may have let go of one, for room: what follows on those files is not there any more then.
        let point = self.replica.point().at.number;
        self.giving.manifest.take_if(|it| it.point.at.number < point);
        let manifest = self.giving.manifest.clone().filter(|it| names(it, from));
        *self.giving.takers.entry(from).or_default() =
            Taker { waits: manifest.is_none(), until: None };
        match manifest {
            Some(manifest) => self.say(from, Refill::Manifest(manifest)),
            None => self.order_manifest(),
        }
    }

    fn want_pieces(&mut self, from: MemberId, names: Vec<PieceName>) {
        let giving = &mut self.giving;
        if giving.manifest.is_none() || !giving.takers.contains_key(&from) {
            return self.say(from, Refill::Gone);
        }
        self.heard.insert(from, self.now_ms);
        let mut wanted = Wanted::default();
        for name in names {
            let count = giving.asked.iter().filter(|it| it.0 == from).count();
            if count < ASKED_MAX && !giving.asked.contains(&(from, name)) {
                giving.asked.push_back((from, name));
                wanted.pieces.push_back(name);
            }
        }
        self.order_files(wanted);
    }

    /// Has the log say which files it has, as of now.
    pub(super) fn order_manifest(&mut self) {
        if self.giving.takers.values().any(|it| it.waits) {
            let manifest = Some(changes::logged(self.replica.snapshot()));
            self.order_files(Wanted { manifest, ..Wanted::default() });
        }
    }

    fn order_files(&mut self, wanted: Wanted) {
        if wanted.is_empty() {
            return;
        }
        match &self.lent {
            Some(lent) => {
                lent.desk().order(|orders| orders.files.add(wanted));
                self.actions.wakes_log = true;
            }
            None => self.giving.wanted.add(wanted),
        }
    }

    /// The log is lent: its shard looks for what waits.
    pub(super) fn hand_over_files(&mut self) {
        let wanted = std::mem::take(&mut self.giving.wanted);
        self.order_files(wanted);
    }

    /// Looks for what waits in the own log.
    pub(super) fn look_for_files(&mut self) {
        let mut given = Given::default();
        if let Some(log) = self.log.as_mut().filter(|_| !self.giving.wanted.is_empty()) {
            self.giving.wanted.look(log, &mut given);
        }
        self.give(given);
    }

    /// What the log has found.
    pub(super) fn give(&mut self, given: Given) {
        let Given { manifest, pieces } = given;
        if let Some(manifest) = manifest {
            for (&id, taker) in &mut self.giving.takers {
                if taker.waits && names(&manifest, id) {
                    taker.waits = false;
                    self.actions.refill.push((id, Refill::Manifest(manifest.clone())));
                }
            }
            self.giving.manifest = Some(manifest);
        }
        for (name, piece) in pieces {
            let giving = &mut self.giving;
            let Some(at) = giving.asked.iter().position(|it| it.1 == name) else { continue };
            let Some((to, _)) = giving.asked.remove(at) else { continue };
            match piece {
                Ok(piece) => self.say(to, Refill::Piece(piece)),
                Err(NoPiece::ToCome) => {}
                Err(NoPiece::Gone) => {
                    // Of an earlier manifest, or the files have to make room.
                    if giving.has(&name) {
                        giving.manifest = None;
                    }
                    self.say(to, Refill::Gone);
                }
                Err(why @ NoPiece::Unreadable) => {
                    let file = name.file;
                    self.actions.told.push(format!("{file:?} is wanted by member {to}: {why}"));
                }
            }
        }
    }

    /// Who takes files may have all by now, or be gone.
    pub(super) fn look_at_takers(&mut self) {
        // One that was to wait for files may be gone before the log has said which they are.
        if self.giving.takers.is_empty() && self.giving.manifest.is_none() {
            return;
        }
        if self.replica.leader() != Some(self.replica.id()) {
            // The log may hold files that are too old to be given. One that is lent does not come back.
            self.giving = Giving::default();
            self.log.iter_mut().for_each(|log| log.let_go_of_manifest());
            return;
        }
        let Self { replica, giving, heard, settings, now_ms, .. } = self;
        let point = giving.manifest.as_ref().map(|it| it.point.at.number);
        let agreed = replica.agreed().number;
        giving.takers.retain(|id, taker| {
            let Some(matched) = replica.matched(*id) else { return false };
            if point.is_some_and(|point| matched >= point) {
                // What comes behind the files stays until it is near.
                let until = *taker.until.get_or_insert(agreed);
                if matched >= until {
                    return false;
                }
            }
            let heard_ms = heard.get(id).copied().unwrap_or(0);
            now_ms.saturating_sub(heard_ms) < SILENT * settings.patience_ms()
        });
        giving.asked.retain(|(id, _)| giving.takers.contains_key(id));
        if giving.takers.is_empty() {
            giving.manifest = None;
            self.order_files(Wanted { lets_go: true, ..Wanted::default() });
        }
        self.order_manifest();
    }

    fn take_manifest(&mut self, from: MemberId, manifest: Manifest) {
        let at = manifest.point.at;
        let is_wanted =
            |it: &&mut Taking| it.from == from && !it.is_decided && it.manifest != Some(at);
        let Some(taking) = self.taking.as_mut().filter(is_wanted) else { return };
        let Some(log) = self.log.as_mut().filter(|it| it.applied().is_some()) else { return };
        if at.number <= self.replica.agreed().number {
            return;
        }
        let result = match changes::of_log(&manifest.point) {
            Some(_) => log.receive(manifest).map_err(|why| why.to_string()),
            None => Err(format!("who is a member as of {at} cannot be read")),
        };
        taking.moved_ms = self.now_ms;
        match result {
            Ok(()) => taking.manifest = Some(at),
            Err(why) => {
                let text =
                    format!("files of member {from} cannot take the place of the log: {why}");
                self.actions.told.push(text);
            }
        }
    }

    fn take_piece(&mut self, from: MemberId, piece: &PieceCopy) {
        let is_wanted = |it: &&mut Taking| it.from == from && !it.is_decided;
        let Some(taking) = self.taking.as_mut().filter(is_wanted) else { return };
        let Some(log) = &mut self.log else { return };
        // One that is late, or damaged, is as one that did not come.
        if log.take_piece(piece).is_ok() {
            taking.moved_ms = self.now_ms;
        }
    }

    /// Takes what can be taken now. `is_behind`: its leader says that it has what is lacked here as files only.
    pub(super) fn take_files(&mut self, is_behind: bool) {
        let Some(log) = &mut self.log else { return };
        let leader = self.replica.leader();
        if leader == Some(self.replica.id()) {
            // It lacks nothing.
            if self.taking.take().is_some() {
                log.stop_receiving();
            }
            return;
        }
        if let (None, Some(from), true) = (&self.taking, leader, is_behind) {
            self.taking = Some(Taking {
                from,
                moved_ms: self.now_ms,
                begun_ms: self.now_ms,
                behind_ms: self.now_ms,
                manifest: None,
                is_decided: false,
                installing: None,
                is_told: false,
                progress: Refilling::default(),
            });
            self.actions.told.push(format!(
                "this node lacks more than the node that leads keeps as it was: it gets all of that node's files of this log, and cannot \
                 lead before. It has the log up to {}",
                self.replica.last()
            ));
            return self.say(from, Refill::WantManifest);
        }
        let Some(taking) = &mut self.taking else { return };
        if is_behind {
            taking.behind_ms = self.now_ms;
        }
        if taking.is_decided {
            return;
        }
        if let Some(from) = leader.filter(|id| is_behind && *id != taking.from) {
            // What came of the other one's files stays, as far as they are the same.
            (taking.from, taking.manifest, taking.moved_ms) = (from, None, self.now_ms);
            return self.say(from, Refill::WantManifest);
        }
        let Some(fetched) = log.fetched().filter(|_| taking.manifest.is_some()) else { return };
        taking.progress = Refilling { here: fetched.bytes, of: fetched.of };
        if let Some(file) = fetched.damaged {
            if !std::mem::replace(&mut taking.is_told, true) {
                let from = taking.from;
                self.actions.told.push(format!(
                    "{file:?} of member {from} is damaged there, or comes so: it is asked for again"
                ));
            }
            return;
        }
        let Some(point) = log.arrived().and_then(changes::of_log) else {
            let names = log.wanted(self.share);
            if !names.is_empty() {
                let from = taking.from;
                self.say(from, Refill::WantPieces(names));
            }
            return;
        };
        // Nothing is to come between: a cut of the log may take away what has arrived.
        if !self.tasks.is_empty() {
            return;
        }
        match self.replica.install(point) {
            Ok(output) => {
                taking.is_decided = true;
                self.absorb(output);
            }
            // Nobody leads just now, or it is no member as of these files: after a time-out it asks which there are then.
            Err(NotNow) => taking.manifest = None,
        }
    }

    /// Time has passed.
    pub(super) fn tick_files(&mut self) {
        self.look_at_takers();
        self.let_go_of_rests();
        let patience_ms = self.settings.patience_ms();
        let (Some(taking), Some(log)) = (&mut self.taking, &mut self.log) else { return };
        if taking.is_decided {
            // There may have been no room for the list of files.
            if taking.installing.is_some() && log.arrived().is_some() {
                log.install();
            }
            return;
        }
        if self.replica.leader().is_none() {
            // Nobody can say so.
            taking.behind_ms = self.now_ms;
        }
        let is_here = taking.manifest.is_some_and(|at| self.replica.has(at));
        let waited_ms = self.now_ms.saturating_sub(taking.moved_ms);
        let silent_ms = self.now_ms.saturating_sub(taking.behind_ms);
        if is_here || taking.manifest.is_none() && silent_ms > GIVEN_UP * patience_ms {
            // Somebody had the batches.
            self.taking = None;
            return log.stop_receiving();
        }
        if waited_ms < patience_ms || self.replica.leader() != Some(taking.from) {
            return;
        }
        taking.moved_ms = self.now_ms;
        let from = taking.from;
        let is_damaged = log.fetched().is_some_and(|it| it.damaged.is_some());
        if taking.manifest.is_none() || is_damaged {
            taking.manifest = None;
            return self.say(from, Refill::WantManifest);
        }
        log.ask_again();
    }

    /// Where batches suffice, what was set aside of a damaged log is of no use, nor is what came to an earlier process. That is so once the
    /// log goes up to the term of its leader. While files are taken it is not for this to decide: what is agreed upon may be what they
    /// bring, before the list of files is theirs.
    fn let_go_of_rests(&mut self) {
        let Self { replica, taking, log, has_rests, is_reopening, .. } = self;
        let is_near = replica.leader().is_some()
            && replica.lacks().is_none()
            && replica.agreed().term == replica.term();
        if let (true, None, false, Some(log)) = (*has_rests && is_near, taking, *is_reopening, log)
        {
            *has_rests = false;
            log.stop_receiving();
        }
    }

    /// The files are those of the leader, and the log is open again.
    pub(super) fn refilled(&mut self) {
        let Some(taking) = self.taking.take() else { return };
        let Refilling { of, .. } = taking.progress;
        let passed_ms = self.now_ms.saturating_sub(taking.begun_ms);
        let at = self.replica.last();
        self.actions.noted.push(format!(
            "this node has all files of this log again, up to {at}: {of} bytes in {passed_ms} ms; what follows is copied"
        ));
    }
}

/// Whether somebody is a member as of these files: they are of no use to anybody else.
fn names(manifest: &Manifest, id: MemberId) -> bool {
    changes::of_log(&manifest.point).is_some_and(|point| point.members.has(id))
}
