//! The node's log: its last lines, a new file for it, its level.

use std::path::PathBuf;
use std::time::Duration;

use leveret_config::{Level, Value as _};
use leveret_server::front::About;
use serde_json::json;

use super::answer::{Answer, Fault};
use super::call::{Call, Fields as _, aside};
use crate::ops::system::{self, Part};

/// Lines of the log that are shown unless the query says how many.
const LINES: usize = 50;
/// How much of the log is looked at for them, in bytes.
const PART_BYTES: u64 = 1 << 20;
/// How long who asks for them waits for lines that are not written yet.
const PATIENCE: Duration = Duration::from_millis(100);

fn no_file() -> Fault {
    Fault::missing(
        "the node logs to no file: set log.file, or ask the journal (journalctl -u leveret)",
    )
}

/// `GET /api/leveret/log`: the last lines of the log file, or with `from=END` those after an earlier answer's
/// end.
pub(super) async fn tail(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    tail_of(&call.app.ops.about, call.number("lines")?, call.number("from")?).await
}

/// The same of a node that may have no broker.
pub(crate) async fn tail_of(
    about: &About,
    lines: Option<u64>,
    from: Option<u64>,
) -> Result<Answer, Fault> {
    let lines = lines.map_or(LINES, |lines| lines as usize);
    let file = about.log_files.iter().find(|name| !name.starts_with('<'));
    let file = file.ok_or_else(no_file)?;
    let (logs, path) = (about.logs.clone(), PathBuf::from(file));
    // A disk that hangs takes this thread from nobody.
    let read = move || {
        logs.flush_file(PATIENCE);
        match from {
            Some(from) => system::after(&path, from, PART_BYTES),
            None => system::tail(&path, PART_BYTES),
        }
    };
    let read = aside(read).await?;
    let Part { text, end } =
        read.map_err(|error| Fault::unavailable(format!("cannot read {file}: {error}")))?;
    let all: Vec<&str> = text.lines().collect();
    // Who follows the file gets all there is.
    let skipped = if from.is_some() { 0 } else { all.len().saturating_sub(lines) };
    Ok(Answer::Json(json!({"file": file, "lines": &all[skipped..], "end": end})))
}

/// `POST /api/leveret/log/rotate`: the log file makes way for a new one.
pub(super) async fn rotate(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    rotate_of(&call.app.ops.about).await
}

/// The same of a node that may have no broker.
pub(crate) async fn rotate_of(about: &About) -> Result<Answer, Fault> {
    let logs = about.logs.clone();
    let rotated = aside(move || logs.rotate()).await?;
    match rotated.map_err(|error| Fault::unavailable(format!("the log file stays: {error}")))? {
        true => Ok(Answer::Done),
        false => Err(no_file()),
    }
}

/// `PUT /api/leveret/log/level`: what is logged from now on, until the next start.
pub(super) async fn put_level(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let level = Level::read(&call.object()?.text("level")?).map_err(Fault::bad)?;
    call.app.ops.about.logs.set_level(level);
    Ok(Answer::Done)
}
