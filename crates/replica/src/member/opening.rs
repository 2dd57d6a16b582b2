//! Opening a log: at a start, and while others go on.
//!
//! To open a log takes as long as a start takes: of a long backlog without digests that is seconds. A member whose log has to be
//! opened anew (it stood for election and has to copy now, or has got the leader's files) has that done by somebody else, so that the
//! thread by which beats of all groups come and go does not wait. Meanwhile it votes, and does nothing that needs its log.

use leveret_log::disk::Disk;
use leveret_log::file::{Inspected, OnDamage, Options, Report};
use leveret_log::{BatchName, FileLog};

use super::MemberError;

/// A log that is to be opened anew, on any thread. See [`Member::take_reopening`](super::Member::take_reopening).
#[derive(Debug)]
pub struct Reopening<D> {
    pub(super) disk: D,
    pub(super) options: Options,
    pub(super) agreed: BatchName,
}

/// What became of it, for [`Member::reopened`](super::Member::reopened).
#[derive(Debug)]
pub struct Reopened<D>(pub(super) Result<FileLog<D>, MemberError>);

impl<D: Disk> Reopening<D> {
    /// Opens it. It may take long.
    pub fn open(self) -> Reopened<D> {
        Reopened(open(self.disk, &self.options, self.agreed).map(|(log, _)| log))
    }
}

/// Opens a log as a follower's. Nothing is changed in one that is damaged.
pub(super) fn open<D: Disk>(
    disk: D,
    options: &Options,
    agreed: BatchName,
) -> Result<(FileLog<D>, Report), MemberError> {
    let options = Options { follows: Some(agreed), ..options.clone() };
    match FileLog::inspect(disk, options, &mut |_| {})? {
        whole @ Inspected::Whole(..) => Ok(whole.open(&mut |_| {})?),
        Inspected::Damaged(disk, options) => {
            let options = Options { on_damage: OnDamage::Refuse, ..options };
            match FileLog::inspect(disk, options, &mut |_| {}) {
                Err(error) => Err(MemberError::Damaged(error)),
                Ok(found) => Ok(found.open(&mut |_| {})?),
            }
        }
    }
}
