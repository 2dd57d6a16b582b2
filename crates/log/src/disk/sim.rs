//! A disk in memory, for tests: seeded, with the faults that disks have.
//!
//! It is a handle: its clones are the same disk, so that a test can crash it while a log has it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{
    Body, Disk, DiskError, Done, FileName, Floor, Listed, Op, Piece, Point, Reached, Roster,
    RosterLines, Stage, Token, lens_like,
};
use crate::file::{Checked, Digester, Undigested, check};

/// What a power cut keeps or loses as a whole.
const SECTOR: usize = 512;

/// What goes wrong, and how slow the disk is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// How many times it is polled in vain for each operation, about.
    pub delay: u32,
    /// Bytes that fit, if there is a limit.
    pub capacity: Option<u64>,
    /// There is little room, by its own account.
    pub wants_room: bool,
    /// The next write that is synced fails, and tells it.
    pub fail_sync: bool,
    /// The next write fails.
    pub fail_write: bool,
    /// The next read fails.
    pub fail_read: bool,
    /// Removals fail.
    pub fail_remove: bool,
    /// The removal of this file fails.
    pub stuck: Option<FileName>,
    /// The next write to the list of files fails, and tells it.
    pub fail_list: bool,
    /// There is no room for the list of files.
    pub full_list: bool,
    /// A byte of a file that cannot be read, nor what is read with it.
    pub unreadable: Option<(FileName, u64)>,
    /// A write takes long: those behind it wait, and removals. Reads do not, nor what is written in the background.
    pub stall: bool,
    /// Reads of this file take long.
    pub slow: Option<FileName>,
}

/// What a simulated disk did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Writes.
    pub writes: u64,
    /// Bytes of them.
    pub written_bytes: u64,
    /// Writes that were synced.
    pub syncs: u64,
    /// Reads.
    pub reads: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Files that were made of removed ones.
    pub reused: u64,
    /// Digests that were made.
    pub digests: u64,
}

/// A disk in memory.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<World>>);

#[derive(Debug)]
struct World {
    state: u64,
    files: BTreeMap<FileName, File>,
    /// What came of files, and those of them that the list has.
    coming: BTreeMap<FileName, File>,
    arriving: BTreeSet<FileName>,
    /// Never synced.
    digests: BTreeMap<FileName, Vec<u8>>,
    /// What is kept aside.
    aside: BTreeMap<String, Vec<u8>>,
    writes: VecDeque<(Token, Op)>,
    reads: Vec<(Token, Op)>,
    faults: Faults,
    work: Work,
    /// A file that was removed, for the next, if one is kept.
    spare: Option<Vec<u8>>,
    keeps_spare: bool,
    /// What is known of files, and what of that survives a power cut.
    roster: BTreeMap<FileName, Listed>,
    safe_roster: BTreeMap<FileName, Listed>,
    floor: Floor,
    /// Always synced.
    point: Option<Point>,
    list: List,
}

/// What became of what is known of files.
#[derive(Clone, Copy, Debug, Default)]
enum List {
    #[default]
    Whole,
    Damaged,
    Lost,
    /// There was no room for it.
    GivenUp,
    /// Nobody knows what is in it.
    Failed,
}

#[derive(Debug, Default)]
struct File {
    bytes: Vec<u8>,
    /// Whether a power cut can undo its being there.
    is_new: bool,
    unsynced: Vec<Unsynced>,
}

/// A write that a power cut can undo.
#[derive(Debug)]
struct Unsynced {
    position: usize,
    bytes: Vec<u8>,
    /// What was there before, up to the end of the file.
    before: Vec<u8>,
    len_before: usize,
    /// What was cut off behind it.
    cut: Vec<u8>,
}

/// The bytes of a write.
fn joined(head: &[u8], body: &Body) -> Vec<u8> {
    std::iter::once(head).chain(body.pieces()).collect::<Vec<_>>().concat()
}

impl World {
    /// SplitMix64; below `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }

    fn used(&self) -> u64 {
        let spare = self.spare.as_ref().map_or(0, Vec::len) as u64;
        // The same bytes have two names while the file is there.
        let is_same = |bytes: &Vec<u8>| self.files.values().any(|file| file.bytes == *bytes);
        let aside = self.aside.iter().filter(|(_, bytes)| !is_same(bytes));
        let aside: u64 = aside.map(|(_, bytes)| bytes.len() as u64).sum();
        let digests: u64 = self.digests.values().map(|bytes| bytes.len() as u64).sum();
        spare
            + aside
            + digests
            + self.coming.values().map(|file| file.bytes.len() as u64).sum::<u64>()
            + self.files.values().map(|file| file.bytes.len() as u64).sum::<u64>()
    }

    fn write(
        &mut self,
        name: FileName,
        position: u64,
        bytes: &[u8],
        (sync, is_last): (bool, bool),
    ) -> Result<(), DiskError> {
        if std::mem::take(&mut self.faults.fail_write) {
            return Err(DiskError::Failed("simulated write error".into()));
        }
        let position = position as usize;
        if sync && position == 0 && name.generation == 0 && !self.files.contains_key(&name) {
            let is_safe = !self.faults.fail_sync;
            // The bytes are there before the file has its name.
            if let Some(spare) = self.spare.take_if(|spare| is_safe && spare.len() >= bytes.len()) {
                let mut file = File { bytes: spare, is_new: true, ..File::default() };
                file.bytes[..bytes.len()].copy_from_slice(bytes);
                self.files.insert(name, file);
                self.work.reused += 1;
            }
        }
        let len = self.files.get(&name).map_or(0, |file| file.bytes.len());
        let growth = (position + bytes.len()).saturating_sub(len) as u64;
        if self.faults.capacity.is_some_and(|most| self.used() + growth > most) {
            self.spare = None;
        }
        let is_full = self.faults.capacity.is_some_and(|most| self.used() + growth > most);
        // As much as fits is written all the same.
        let fits = if is_full { self.below(bytes.len() as u64 + 1) as usize } else { bytes.len() };
        let file =
            self.files.entry(name).or_insert_with(|| File { is_new: true, ..File::default() });
        file.write(position, &bytes[..fits], is_last && !is_full);
        self.work.writes += 1;
        self.work.written_bytes += fits as u64;
        if is_full {
            return Err(DiskError::Full);
        }
        if sync {
            self.work.syncs += 1;
            if std::mem::take(&mut self.faults.fail_sync) {
                return Err(DiskError::Failed("simulated sync error".into()));
            }
            file.unsynced.clear();
            file.is_new = false;
        }
        Ok(())
    }

    /// Whether what is to be written to the list is.
    fn write_list(&mut self) -> Result<(), DiskError> {
        let has_failed = matches!(self.list, List::Failed);
        if has_failed || std::mem::take(&mut self.faults.fail_list) {
            self.list = List::Failed;
            return Err(DiskError::Failed("simulated error of the list".into()));
        }
        self.list = match self.list {
            _ if self.faults.full_list => List::GivenUp,
            // What is written anew is safe.
            List::GivenUp => {
                self.safe_roster = self.roster.clone();
                List::Whole
            }
            list => list,
        };
        Ok(())
    }

    /// So much of a file is safe.
    fn synced(
        &mut self,
        file: FileName,
        (position, bytes): (u64, &[u8]),
        reached: Reached,
        is_last: bool,
    ) -> Result<(), DiskError> {
        self.write_list()?;
        let len = position + bytes.len() as u64;
        if is_last && file.generation > 0 {
            self.safe_roster = self.roster.clone();
        }
        if position == 0 {
            self.roster.insert(file, Listed::begun(file, bytes, len, reached));
        }
        // Before anything is written behind its beginning.
        if position == 0 {
            self.safe_roster = self.roster.clone();
        }
        if let Some(known) = self.roster.get_mut(&file) {
            known.len = known.len.max(len);
            known.reached = known.reached.max(reached);
            known.stage = if is_last { Stage::Sealed } else { known.stage };
        }
        Ok(())
    }

    /// A file is about to go.
    fn strike(&mut self, file: FileName) -> Result<(), DiskError> {
        self.write_list()?;
        if let Some(known) = self.roster.get_mut(&file) {
            known.stage = Stage::Going;
        }
        self.safe_roster = self.roster.clone();
        Ok(())
    }

    /// The end of a file is about to be cut off.
    fn shorten(&mut self, file: FileName, len: u64, reached: Reached) -> Result<(), DiskError> {
        self.write_list()?;
        if let Some(known) = self.roster.get_mut(&file) {
            (known.len, known.reached, known.stage) = (len, reached, Stage::Growing);
        }
        self.safe_roster = self.roster.clone();
        Ok(())
    }

    fn set_point(&mut self, point: Point) -> Result<(), DiskError> {
        self.write_list()?;
        if matches!(self.list, List::GivenUp) {
            return Err(DiskError::Full);
        }
        self.point = Some(point);
        self.safe_roster = self.roster.clone();
        Ok(())
    }

    fn receive(&mut self, name: FileName, position: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let len = self.coming.get(&name).map_or(0, |file| file.bytes.len() as u64);
        let growth = (position + bytes.len() as u64).saturating_sub(len);
        if self.faults.capacity.is_some_and(|most| self.used() + growth > most) {
            return Err(DiskError::Full);
        }
        let file =
            self.coming.entry(name).or_insert_with(|| File { is_new: true, ..File::default() });
        file.write(position as usize, bytes, false);
        self.work.writes += 1;
        self.work.written_bytes += bytes.len() as u64;
        Ok(())
    }

    fn check(&mut self, name: FileName, len: u64, has_come: bool) -> Result<Checked, DiskError> {
        let files = if has_come { &mut self.coming } else { &mut self.files };
        let Some(file) = files.get_mut(&name) else { return Ok(Checked::default()) };
        if has_come {
            file.unsynced.clear();
            file.is_new = false;
        }
        let bytes = &file.bytes;
        check(len.min(bytes.len() as u64), &mut |position, into| {
            let end = DiskError::Failed("end of file".into());
            let from = bytes.get(position as usize..).and_then(|rest| rest.get(..into.len()));
            into.copy_from_slice(from.ok_or(end)?);
            Ok(())
        })
    }

    fn install(&mut self, lines: RosterLines, arriving: Vec<FileName>) -> Result<(), DiskError> {
        self.write_list()?;
        if matches!(self.list, List::GivenUp) {
            return Err(DiskError::Full);
        }
        let of = |it: Listed| (it.file, it);
        let mut roster: BTreeMap<_, _> = lines.files.into_iter().map(of).collect();
        for &file in self.files.keys() {
            let (beginning, reached, stage) = (0, Reached::default(), Stage::Going);
            let going = Listed { file, len: 0, beginning, reached, heading: None, stage };
            roster.entry(file).or_insert(going);
        }
        (self.safe_roster, self.roster) = (roster.clone(), roster);
        (self.floor, self.point) = (lines.floor, lines.point);
        self.arriving = arriving.into_iter().collect();
        Ok(())
    }

    fn truncate(&mut self, file: FileName, len: u64) {
        if let Some(file) = self.files.get_mut(&file) {
            file.bytes.truncate(len as usize);
            file.unsynced.clear();
            file.is_new = false;
        }
    }

    fn check_removal(&self, file: FileName) -> Result<(), DiskError> {
        match self.faults.fail_remove || self.faults.stuck == Some(file) {
            true => Err(DiskError::Failed("simulated removal error".into())),
            false => Ok(()),
        }
    }

    /// It is gone.
    fn gone(&mut self, file: FileName) {
        self.roster.remove(&file);
    }

    /// Of what was not synced of the list, each line is there or not.
    fn tear_roster(&mut self) {
        let safe = std::mem::take(&mut self.safe_roster);
        let now = std::mem::take(&mut self.roster);
        let files: BTreeSet<_> = now.keys().chain(safe.keys()).copied().collect();
        for file in files {
            let kept = if self.below(2) == 0 { &now } else { &safe }.get(&file).copied();
            self.roster.extend(kept.map(|kept| (file, kept)));
        }
        self.safe_roster = self.roster.clone();
    }

    fn read(&mut self, name: FileName, position: u64, len: usize) -> Result<Vec<u8>, DiskError> {
        let end = position + len as u64;
        let is_bad = |(file, at): (FileName, u64)| file == name && (position..end).contains(&at);
        if std::mem::take(&mut self.faults.fail_read) || self.faults.unreadable.is_some_and(is_bad)
        {
            return Err(DiskError::Failed("simulated read error".into()));
        }
        self.work.reads += 1;
        self.work.read_bytes += len as u64;
        let file = self.files.get(&name);
        let file = file.ok_or_else(|| DiskError::Failed("no such file".into()))?;
        let bytes = file.bytes.get(position as usize..).and_then(|rest| rest.get(..len));
        bytes.map(<[u8]>::to_vec).ok_or_else(|| DiskError::Failed("end of file".into()))
    }

    /// Makes the digest of a file.
    fn digest(&mut self, name: FileName, len: u64) -> Result<(), Undigested> {
        let mut digester = Digester::new(name, len);
        let bytes = loop {
            let read = &mut |position, into: &mut [u8]| {
                into.copy_from_slice(&self.read(name, position, into.len())?);
                Ok(())
            };
            if let Some(bytes) = digester.step(read)? {
                break bytes;
            }
        };
        let len = bytes.len() as u64;
        if self.faults.capacity.is_some_and(|most| self.used() + len > most) {
            return Err(Undigested::Disk(DiskError::Full));
        }
        self.work.digests += 1;
        self.digests.insert(name, bytes);
        Ok(())
    }

    /// Of digests a power cut leaves whatever it likes.
    fn tear_digests(&mut self) {
        for (name, mut bytes) in std::mem::take(&mut self.digests) {
            match self.below(6) {
                0 => continue,
                1 => bytes.truncate(self.below(bytes.len() as u64 + 1) as usize),
                2 => {
                    for sector in bytes.chunks_mut(SECTOR) {
                        if self.below(2) == 0 {
                            sector.fill(0);
                        }
                    }
                }
                _ => {}
            }
            self.digests.insert(name, bytes);
        }
    }

    /// What a power cut leaves of a file: of what was not synced each sector is there or not, and so is the file.
    fn torn(&mut self, mut file: File) -> Option<File> {
        for write in file.unsynced.iter().rev() {
            file.bytes.extend_from_slice(&write.cut);
            file.bytes.truncate(write.len_before);
            let end = write.position + write.before.len();
            // One that began behind the end, after one that found the disk full, replaced nothing.
            if let Some(bytes) = file.bytes.get_mut(write.position..end) {
                bytes.copy_from_slice(&write.before);
            }
        }
        let mood = self.below(4); // all kept, all lost, else mixed
        let keeps_all = mood == 0;
        if file.is_new && mood == 1 {
            return None;
        }
        for write in std::mem::take(&mut file.unsynced) {
            let end = write.position + write.bytes.len();
            for (index, sector) in write.bytes.chunks(SECTOR).enumerate() {
                if keeps_all || mood > 1 && self.below(2) == 0 {
                    file.write(write.position + index * SECTOR, sector, false);
                }
            }
            if !write.cut.is_empty() && (keeps_all || mood > 1 && self.below(2) == 0) {
                file.bytes.truncate(end);
            }
        }
        file.unsynced.clear();
        file.is_new = false;
        Some(file)
    }

    /// Whether the disk takes its time.
    fn waits(&mut self) -> bool {
        let delay = u64::from(self.faults.delay);
        self.below(delay + 1) > 0
    }
}

impl File {
    fn write(&mut self, position: usize, bytes: &[u8], is_last: bool) {
        let len_before = self.bytes.len();
        let end = position + bytes.len();
        let before = self.bytes.get(position..end.min(len_before)).unwrap_or_default().to_vec();
        if end > len_before {
            self.bytes.resize(end, 0);
        }
        self.bytes[position..end].copy_from_slice(bytes);
        let cut = if is_last { self.bytes.split_off(end) } else { Vec::new() };
        self.unsynced.push(Unsynced { position, bytes: bytes.to_vec(), before, len_before, cut });
    }
}

impl SimDisk {
    /// An empty disk. Which faults befall what follows from the seed.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(World {
            state: seed,
            files: BTreeMap::new(),
            coming: BTreeMap::new(),
            arriving: BTreeSet::new(),
            digests: BTreeMap::new(),
            aside: BTreeMap::new(),
            writes: VecDeque::new(),
            reads: Vec::new(),
            faults: Faults::default(),
            work: Work::default(),
            spare: None,
            keeps_spare: false,
            roster: BTreeMap::new(),
            safe_roster: BTreeMap::new(),
            floor: Floor::default(),
            point: None,
            list: List::default(),
        })))
    }

    /// From now on a file is made of one that was removed, if there is one, and the first of `spare`.
    pub fn keep_spare(&self, spare: Vec<u8>) {
        let mut world = self.world();
        (world.spare, world.keeps_spare) = (Some(spare), true);
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what goes wrong.
    pub fn set_faults(&self, faults: Faults) {
        self.world().faults = faults;
    }

    /// What it did so far.
    pub fn work(&self) -> Work {
        self.world().work
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        let world = self.world();
        world.writes.is_empty() && world.reads.is_empty()
    }

    /// Cuts the power: of what was not synced, each sector is there or not, whatever came first. The
    /// writes that are next may have been begun; what else was submitted is lost.
    pub fn crash(&self) {
        let mut world = self.world();
        let next = world.writes.drain(..).next();
        let others = std::mem::take(&mut world.reads);
        for (_, op) in next.into_iter().chain(others) {
            match op {
                Op::Write { file, position, head, body, is_last, .. } if world.below(3) > 0 => {
                    let bytes = joined(&head, &body);
                    let _ = world.write(file, position, &bytes, (false, is_last));
                }
                // Not in the list any more, and there still.
                Op::Remove { file, .. } if world.below(2) == 0 => {
                    let _ = world.strike(file);
                }
                Op::Cut { file, len, reached } => {
                    let steps = world.below(3);
                    if steps > 0 {
                        let _ = world.shorten(file, len, reached);
                    }
                    if steps > 1 {
                        world.truncate(file, len);
                    }
                }
                Op::Digest { file, len } if world.below(2) == 0 => {
                    let _ = world.digest(file, len);
                }
                Op::SetPoint(point) if world.below(2) == 0 => drop(world.set_point(point)),
                Op::Receive { file, position, bytes } if world.below(2) == 0 => {
                    let _ = world.receive(file, position, &bytes);
                }
                Op::Install { lines, arriving } if world.below(2) == 0 => {
                    let _ = world.install(lines, arriving);
                }
                _ => {}
            }
        }
        world.tear_roster();
        world.tear_digests();
        world.spare = None;
        for (name, file) in std::mem::take(&mut world.files) {
            let torn = world.torn(file);
            world.files.extend(torn.map(|file| (name, file)));
        }
        for (name, file) in std::mem::take(&mut world.coming) {
            let torn = world.torn(file);
            world.coming.extend(torn.map(|file| (name, file)));
        }
    }

    /// Ends the process and not the machine: what was begun is kept, what was only submitted is lost.
    pub fn kill(&self) {
        let mut world = self.world();
        world.writes.clear();
        world.reads.clear();
        world.spare = None;
    }

    /// Bytes of all files, of those kept aside, and of the one that is kept for the next.
    pub fn used(&self) -> u64 {
        self.world().used()
    }

    /// The files and their lengths.
    pub fn files(&self) -> Vec<(FileName, u64)> {
        let world = self.world();
        world.files.iter().map(|(name, file)| (*name, file.bytes.len() as u64)).collect()
    }

    /// Takes the list of files away, until the log is open.
    pub fn lose_list(&self) {
        self.world().list = List::Lost;
    }

    /// Damages the list of files: each line can be read or not.
    pub fn damage_list(&self) {
        let mut world = self.world();
        world.list = List::Damaged;
        for (file, line) in std::mem::take(&mut world.roster) {
            if world.below(2) == 0 {
                world.roster.insert(file, line);
            }
        }
        (world.floor, world.point) = (Floor::default(), None);
    }

    /// What is known of files.
    pub fn listed(&self) -> Vec<Listed> {
        self.world().roster.values().copied().collect()
    }

    /// The bytes of a file.
    pub fn bytes_of(&self, name: FileName) -> Vec<u8> {
        self.world().files.get(&name).map(|file| file.bytes.clone()).unwrap_or_default()
    }

    /// The files that are kept aside, with their bytes.
    pub fn kept_aside(&self) -> Vec<(String, Vec<u8>)> {
        let world = self.world();
        world.aside.iter().map(|(name, bytes)| (name.clone(), bytes.clone())).collect()
    }

    /// Removes what is kept aside: nobody needs it.
    pub fn drop_kept(&self) {
        self.world().aside.clear();
    }

    /// Puts a file there as it is.
    pub fn put(&self, name: FileName, bytes: Vec<u8>) {
        self.world().files.insert(name, File { bytes, ..File::default() });
    }

    /// The digests there are, with their bytes.
    pub fn digests(&self) -> Vec<(FileName, Vec<u8>)> {
        let world = self.world();
        world.digests.iter().map(|(name, bytes)| (*name, bytes.clone())).collect()
    }

    /// Puts a digest there as it is.
    pub fn put_digest(&self, of: FileName, bytes: Vec<u8>) {
        self.world().digests.insert(of, bytes);
    }

    /// What came of files, with their bytes.
    pub fn came(&self) -> Vec<(FileName, Vec<u8>)> {
        let world = self.world();
        world.coming.iter().map(|(name, file)| (*name, file.bytes.clone())).collect()
    }

    /// Turns one bit around of what came of a file.
    pub fn flip_coming(&self, name: FileName, position: u64, bit: u8) {
        if let Some(file) = self.world().coming.get_mut(&name)
            && let Some(byte) = file.bytes.get_mut(position as usize)
        {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// Turns one bit of a file around.
    pub fn flip(&self, name: FileName, position: u64, bit: u8) {
        if let Some(file) = self.world().files.get_mut(&name)
            && let Some(byte) = file.bytes.get_mut(position as usize)
        {
            *byte ^= 1 << (bit % 8);
        }
    }

    /// Takes a file away, which is still known to have been there.
    pub fn lose(&self, name: FileName) {
        self.world().files.remove(&name);
    }

    /// Another disk with the same files, and that knows the same of them.
    pub fn copy_whole(&self, seed: u64) -> Self {
        let copy = self.copy(seed);
        let (roster, floor, list, aside, digests, point) = {
            let world = self.world();
            let (aside, digests) = (world.aside.clone(), world.digests.clone());
            let point = world.point.clone();
            (world.roster.clone(), world.floor, world.list, aside, digests, point)
        };
        // The list may have them, and a start gives them their names.
        let came = |(name, file): (&FileName, &File)| {
            (*name, File { bytes: file.bytes.clone(), ..File::default() })
        };
        let (coming, arriving): (BTreeMap<_, _>, _) = {
            let world = self.world();
            (world.coming.iter().map(came).collect(), world.arriving.clone())
        };
        let mut world = copy.world();
        (world.coming, world.arriving) = (coming, arriving);
        world.point = point;
        (world.safe_roster, world.roster) = (roster.clone(), roster);
        (world.floor, world.list, world.aside) = (floor, list, aside);
        world.digests = digests;
        drop(world);
        copy
    }

    /// Another disk with the same files, and that knows nothing of them but what is there.
    pub fn copy(&self, seed: u64) -> Self {
        let copy = Self::new(seed);
        for (name, file) in &self.world().files {
            copy.put(*name, file.bytes.clone());
        }
        copy
    }
}

impl Disk for SimDisk {
    fn wants_room(&self) -> bool {
        self.world().faults.wants_room
    }

    fn submit(&mut self, token: Token, op: Op) {
        let mut world = self.world();
        match op {
            Op::Read { .. } | Op::Digest { .. } | Op::Write { is_background: true, .. } => {
                world.reads.push((token, op))
            }
            op => world.writes.push_back((token, op)),
        }
    }

    fn poll(&mut self) -> Option<(Token, Done)> {
        let mut world = self.world();
        if world.writes.is_empty() && world.reads.is_empty() {
            return None;
        }
        let can_write = !world.writes.is_empty() && !world.faults.stall;
        let slow = world.faults.slow;
        let is_slow = |op: &Op| matches!(op, Op::Read { file, .. } if slow == Some(*file));
        // Those that are slow are last.
        world.reads.sort_by_key(|(_, op)| is_slow(op));
        let quick = world.reads.partition_point(|(_, op)| !is_slow(op));
        if !can_write && quick == 0 || world.waits() {
            return None;
        }
        let total = quick as u64 + u64::from(can_write);
        let pick = world.below(total) as usize;
        let (token, op) =
            if pick < quick { world.reads.swap_remove(pick) } else { world.writes.pop_front()? };
        let done = match op {
            Op::Write { file, position, head, body, reached, sync, is_last, .. } => {
                let bytes = joined(&head, &body);
                let result = world.write(file, position, &bytes, (sync, is_last));
                let listed = match &result {
                    Ok(()) if sync => world.synced(file, (position, &bytes), reached, is_last),
                    _ => Ok(()),
                };
                match listed {
                    Ok(()) => Done::Written { head, body, result },
                    Err(error) => Done::Failed(error),
                }
            }
            Op::Read { file, pieces } => {
                let read = |it: &Piece| world.read(file, it.position, it.len);
                let pieces: Result<Vec<_>, _> = pieces.iter().map(read).collect();
                Done::Read(pieces.map(|pieces| Bytes::from(pieces.concat())))
            }
            Op::Digest { file, len } => {
                let result = world.digest(file, len);
                if matches!(result, Err(Undigested::Damaged(_))) {
                    world.digests.remove(&file);
                }
                Done::Digested(result)
            }
            Op::Mend { file, position, bytes } => {
                if let Some(file) = world.files.get_mut(&file) {
                    file.write(position as usize, &bytes, false);
                }
                Done::Mended(Ok(()))
            }
            Op::Cut { file, len, reached } => match world.shorten(file, len, reached) {
                Ok(()) => {
                    world.truncate(file, len);
                    Done::Cut(Ok(()))
                }
                Err(error) => Done::Failed(error),
            },
            Op::Receive { file, position, bytes } => {
                Done::Received(world.receive(file, position, &bytes))
            }
            Op::Discard { file } => {
                world.coming.remove(&file);
                Done::Received(Ok(()))
            }
            Op::Check { file, len, has_come } => Done::Checked(world.check(file, len, has_come)),
            Op::Install { lines, arriving } => match world.install(lines, arriving) {
                Err(error @ DiskError::Failed(_)) => Done::Failed(error),
                result => Done::Installed(result),
            },
            Op::SetPoint(point) => match world.set_point(point) {
                Err(error @ DiskError::Failed(_)) => Done::Failed(error),
                result => Done::PointSet(result),
            },
            Op::Remove { file, next_len } => {
                world.digests.remove(&file);
                if let Err(error) = world.strike(file) {
                    return Some((token, Done::Failed(error)));
                }
                if let Err(error) = world.check_removal(file) {
                    return Some((token, Done::Removed(Err(error))));
                }
                let removed = world.files.remove(&file);
                let lens = lens_like(next_len);
                world.spare.take_if(|spare| spare.len() as u64 > *lens.end());
                if world.keeps_spare && world.spare.is_none() {
                    let removed = removed.map(|file| file.bytes);
                    world.spare = removed.filter(|bytes| lens.contains(&(bytes.len() as u64)));
                }
                world.gone(file);
                Done::Removed(Ok(()))
            }
        };
        Some((token, done))
    }

    fn coming(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        let world = self.world();
        Ok(world.coming.iter().map(|(name, file)| (*name, file.bytes.len() as u64)).collect())
    }

    fn roster(&mut self) -> Result<Roster, DiskError> {
        let mut world = self.world();
        for file in world.arriving.clone() {
            let came = world.coming.remove(&file);
            world.files.extend(came.map(|came| (file, came)));
        }
        let files = world.roster.values().copied().collect();
        let lines = RosterLines { files, floor: world.floor, point: world.point.clone() };
        Ok(match world.list {
            List::Whole | List::Failed => Roster::Whole(lines),
            List::GivenUp => Roster::GivenUp,
            List::Damaged => Roster::Damaged(lines, "is damaged by a test".to_owned()),
            List::Lost => Roster::None,
        })
    }

    fn enlist(&mut self, lines: &RosterLines, _: bool) -> Result<(), DiskError> {
        let mut world = self.world();
        (world.floor, world.list, world.point) = (lines.floor, List::Whole, lines.point.clone());
        world.arriving.clear();
        world.roster = lines.files.iter().map(|it| (it.file, *it)).collect();
        world.safe_roster = world.roster.clone();
        Ok(())
    }

    fn list(&mut self) -> Result<Vec<(FileName, u64)>, DiskError> {
        Ok(self.files())
    }

    fn read_now(
        &mut self,
        file: FileName,
        position: u64,
        into: &mut [u8],
    ) -> Result<(), DiskError> {
        let bytes = self.world().read(file, position, into.len())?;
        into.copy_from_slice(&bytes);
        Ok(())
    }

    fn truncate_now(&mut self, file: FileName, len: u64) -> Result<(), DiskError> {
        self.world().truncate(file, len);
        Ok(())
    }

    fn write_now(&mut self, file: FileName, position: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.world().write(file, position, bytes, (false, false))
    }

    fn keep_aside(&mut self, file: FileName) -> Result<String, DiskError> {
        let mut world = self.world();
        let bytes = world.files.get(&file).map(|file| file.bytes.clone());
        let Some(bytes) = bytes else {
            world.aside.entry(file.absent()).or_default();
            return Ok(file.absent());
        };
        let mut names = (1..).map(|count| file.aside_again(count));
        let is_for_it = |name: &String| world.aside.get(name).is_none_or(|kept| *kept == bytes);
        let name = names.find(is_for_it).unwrap_or_default();
        world.aside.insert(name.clone(), bytes);
        Ok(name)
    }

    fn kept(&mut self) -> Result<Vec<FileName>, DiskError> {
        Ok(self.world().aside.keys().filter_map(|name| FileName::of_kept(name)).collect())
    }

    fn digest(&mut self, file: FileName) -> Result<Vec<u8>, DiskError> {
        Ok(self.world().digests.get(&file).cloned().unwrap_or_default())
    }

    fn keep_digests(&mut self, of: &[FileName]) {
        self.world().digests.retain(|file, _| of.contains(file));
    }

    fn disown_now(&mut self) -> Result<(), DiskError> {
        let mut world = self.world();
        for (name, file) in std::mem::take(&mut world.files) {
            world.coming.insert(name, File { bytes: file.bytes, ..File::default() });
        }
        world.digests.clear();
        world.roster.clear();
        world.safe_roster.clear();
        world.arriving.clear();
        (world.floor, world.point, world.list) = (Floor::default(), None, List::Lost);
        Ok(())
    }

    fn remove_now(&mut self, file: FileName) -> Result<(), DiskError> {
        let mut world = self.world();
        world.strike(file)?;
        world.check_removal(file)?;
        world.files.remove(&file);
        world.gone(file);
        Ok(())
    }
}
