//! Opening a log: at a start, and while others go on.
//!
//! To open a log takes as long as a start takes: of a long backlog without digests that is seconds. A member whose log has to be opened
//! anew, as it has got the leader's files, has that done by somebody else, so that the thread by which beats of all groups come and go does
//! not wait. Meanwhile it votes, and does nothing that needs its log.

use leveret_log::disk::Disk;
use leveret_log::file::{Inspected, OnDamage, OpenError, Options, Report};
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
fn open<D: Disk>(
    disk: D,
    options: &Options,
    agreed: BatchName,
) -> Result<(FileLog<D>, Report), MemberError> {
    match inspect(disk, options, agreed)? {
        Ok(whole) => Ok(whole.open(&mut |_| {})?),
        Err((_, why)) => Err(MemberError::Damaged(why)),
    }
}

/// Opens a log at a start. One that is damaged has nothing any more, as one that is gone: what was wrong is given back. Its files are as
/// files that came: what is whole of them is not had from the others again.
pub(super) fn begin<D: Disk>(
    disk: D,
    options: &Options,
    has_others: bool,
) -> Result<(FileLog<D>, Report, Option<String>), MemberError> {
    let (mut disk, why) = match inspect(disk, options, BatchName::NONE)? {
        Ok(whole) => {
            let (log, report) = whole.open(&mut |_| {})?;
            return Ok((log, report, None));
        }
        Err((_, why)) if !has_others => return Err(MemberError::Damaged(why)),
        Err(damaged) => damaged,
    };
    let on = |error| OpenError::Disk { file: "the log".into(), error };
    disk.disown_now().map_err(on)?;
    let (log, report) = open(disk, options, BatchName::NONE)?;
    Ok((log, report, Some(found(&why))))
}

/// What a log has. One that is damaged comes back as its disk, with what is wrong. So does one without a whole list of files: nobody knows
/// what is missing. But where the list found no room on the disk all that is there counts: a full disk takes nothing away.
fn inspect<D: Disk>(
    disk: D,
    options: &Options,
    agreed: BatchName,
) -> Result<Result<Inspected<D>, (D, OpenError)>, OpenError> {
    let (follows, on_damage) = (Some(agreed), OnDamage::Aside);
    let options = Options { follows, on_damage, ..options.clone() };
    Ok(match FileLog::inspect(disk, options, &mut |_| {})? {
        Inspected::Damaged(disk, _, why) => Err((disk, why)),
        Inspected::Whole(log, Report { list: Some(what), is_list_given_up: false, .. }) => {
            Err((log.into_disk(), OpenError::List { what }))
        }
        whole => Ok(whole),
    })
}

/// What is wrong, without what an operator of a node alone would do.
fn found(why: &OpenError) -> String {
    match why {
        OpenError::Damaged { file, position, what } => {
            format!("{file} is damaged at byte {position}: {what}")
        }
        OpenError::Missing { file, len } => format!("{file} is missing, which had {len} bytes"),
        OpenError::List { what } => format!("the list of files {what}"),
        other => other.to_string(),
    }
}
