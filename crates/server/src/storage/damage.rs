//! What a start says of files that were damaged.

use std::path::{Path, PathBuf};

use leveret_log::Offset;
use leveret_log::disk::FileName;
use leveret_log::file::{Damage, Report, TOO_LATE};
use leveret_topology::{QueueId, Topology};

use crate::disk::RealDisk;
use crate::disk::sync_dir;
use leveret_log::FileLog;

/// Says of each damaged file what was lost, and what can be done.
pub(crate) fn tell_damage(damages: &[(PathBuf, Damage)], topology: &Topology) {
    for (dir, damage) in damages {
        if damage.lost_bytes == 0 && damage.lost_records_max == Some(0) {
            tracing::warn!(
                log = %dir.display(),
                file = %damage.file,
                position = damage.position,
                reason = damage.what,
                kept = damage.kept.as_deref().unwrap_or_default(),
                "a file was damaged, and all messages in it are there"
            );
            continue;
        }
        let Damage { file, position, what, lost_bytes, .. } = damage;
        let messages = damage.lost_records_max.map_or_else(
            || "an unknown number of messages".to_owned(),
            |most| format!("at most {most} messages"),
        );
        let queues = of_queues(damage, topology);
        let text = format!(
            "{file}: {what}, at byte {position}. Lost: {lost_bytes} bytes, {messages}, of queues: {queues}\n"
        );
        let beside = damage.kept.clone().unwrap_or_else(|| file.absent());
        if let Err(error) = std::fs::write(dir.join(format!("{beside}.txt")), text) {
            tracing::warn!(log = %dir.display(), %error, "what was lost cannot be written beside what is kept");
        }
        let Some(kept) = &damage.kept else {
            tracing::error!(
                log = %dir.display(),
                %file,
                lost_bytes,
                lost = messages,
                queues,
                "a file is missing: what was in it is lost, and acks in it are undone. To get it back, stop the broker \
                 now, put the file or a good copy of it back, and start again"
            );
            continue;
        };
        if *what == TOO_LATE {
            tracing::error!(
                log = %dir.display(),
                %file,
                lost = messages,
                kept,
                "a file was put back when another had its place already, so nothing of it is used. Messages that only this \
                 one has are there again if all files of this log are restored from one copy"
            );
            continue;
        }
        let again = match damage.rest {
            Some(rest) => format!("put a good copy of {file} in the place of {rest}"),
            None => format!("put a good copy of {file} back"),
        };
        tracing::error!(
            log = %dir.display(),
            %file,
            position,
            reason = what,
            lost_bytes,
            lost = messages,
            queues,
            kept,
            "a file was damaged: what was whole is there, the rest is lost, and acks in it are undone. To get \
             it back, stop the broker now, {again}, and start again"
        );
    }
}

/// The queues whose messages a damaged file held.
fn of_queues(damage: &Damage, topology: &Topology) -> String {
    let mut names = Vec::new();
    for holder in &damage.holders {
        let queue = topology.queue_by_id(QueueId::new(holder.get()));
        let Some(queue) = queue.filter(|queue| queue.durable) else { continue };
        let vhost = topology.vhost_by_id(queue.vhost).map_or("?", |vhost| &vhost.name);
        names.push(format!("'{}' in vhost '{vhost}'", queue.name));
    }
    if !damage.are_all_holders {
        let any = "any durable queue of this shard";
        names.push(if names.is_empty() { any.into() } else { format!("perhaps {any}") });
    }
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

/// Warns of files that earlier starts found damaged.
pub(super) fn tell_of_earlier(dir: &Path, report: &Report) {
    let is_new = |kept: &String| {
        let is_it = |it: &Damage| it.kept.as_ref() == Some(kept) || it.file.absent() == *kept;
        report.damaged.iter().any(is_it)
    };
    let kept: Vec<_> = kept_aside(dir).into_iter().filter(|kept| !is_new(kept)).collect();
    if !kept.is_empty() {
        tracing::warn!(
            log = %dir.display(),
            files = kept.join(", "),
            "files that were found damaged are kept here, or word of those that are missing; remove them when nobody \
             needs them"
        );
    }
}

/// The offset before which a log may have lost something with files that were found damaged, by this start or an earlier
/// one, or may have lost something that nobody knows of, and of which nobody has said since that nobody needs them.
pub(super) fn lost_before(dir: &Path, log: &FileLog<RealDisk>) -> Offset {
    let kept = kept_aside(dir);
    let names = kept.iter().filter_map(|name| FileName::of_kept(name));
    let known = names.map(|file| log.begun_after(file)).max().unwrap_or(Offset::ZERO);
    known.max(short_before(dir).unwrap_or(Offset::ZERO))
}

/// Beside the files of a log that may have lost some of which nobody knows: its list was empty, damaged or missing, or it is
/// of an earlier time than it should be.
const SHORT: &str = "files.missing";

/// What it begins with, before the offset below which records may have been lost.
const BEFORE: &str = "before ";

/// Writes down that records before this offset may have been lost, other than by a file that is known.
pub(super) fn note_short(dir: &Path, before: Offset) -> std::io::Result<()> {
    let (path, new) = (dir.join(SHORT), dir.join("files.missing.new"));
    std::fs::write(&new, format!("{BEFORE}{before}\n"))?;
    std::fs::File::open(&new)?.sync_all()?;
    std::fs::rename(new, path)?;
    sync_dir(dir)
}

/// What [`note_short`] wrote. Anything else says it of all.
fn short_before(dir: &Path) -> Option<Offset> {
    let bytes = std::fs::read(dir.join(SHORT)).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let before = text.strip_prefix(BEFORE).and_then(|rest| rest.trim_end().parse().ok());
    Some(before.map_or(Offset::MAX, Offset::new))
}

/// Damaged files that are kept in the directory of a log, and word of those that were missing.
fn kept_aside(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let mut kept: Vec<_> =
        names.filter(|name| name == SHORT || FileName::of_kept(name).is_some()).collect();
    kept.sort();
    kept
}

#[cfg(test)]
mod tests;
