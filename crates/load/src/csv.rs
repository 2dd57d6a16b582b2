//! The intervals as CSV, in PerfTest's columns.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context, Result};

use crate::lines::{Shown, rate};
use crate::outcome::Interval;
use crate::stats::Counter;

/// A file that grows by a line each interval.
#[derive(Debug)]
pub(crate) struct Csv {
    file: BufWriter<File>,
    id: String,
}

impl Csv {
    /// Makes the file, or empties it.
    pub(crate) fn create(path: &Path, id: &str, shown: Shown) -> Result<Self> {
        let create = || -> std::io::Result<Self> {
            let mut file = BufWriter::new(File::create(path)?);
            writeln!(file, "{}", header(shown))?;
            Ok(Self { file, id: id.to_owned() })
        };
        create().with_context(|| format!("writing --output-file {}", path.display()))
    }

    /// A line, on the disk at once: a run may be ended at any time.
    pub(crate) fn interval(&mut self, shown: Shown, interval: &Interval) -> std::io::Result<()> {
        writeln!(self.file, "{}", line(&self.id, shown, interval))?;
        self.file.flush()
    }
}

fn header(shown: Shown) -> String {
    let mut header = "id,time (s),published (msg/s),returned (msg/s),confirmed (msg/s),\
                      nacked (msg/s),received (msg/s)"
        .to_owned();
    for who in ["consumer", "confirm"] {
        for which in ["min", "median", "75th p.", "95th p.", "99th p."] {
            header += &format!(",{which} {who} latency ({})", shown.unit());
        }
    }
    header
}

fn line(id: &str, shown: Shown, interval: &Interval) -> String {
    let mut line = format!("{id},{:.3}", interval.end_s);
    let rates = [
        (shown.published, Counter::Published),
        (shown.returned, Counter::Returned),
        (shown.confirmed, Counter::Confirmed),
        (shown.confirmed, Counter::Nacked),
        (shown.received, Counter::Consumed),
    ];
    for (is_shown, what) in rates {
        line.push(',');
        if is_shown {
            line += &rate(interval.rate(what));
        }
    }
    let latencies =
        [(shown.received, &interval.latency), (shown.confirmed, &interval.confirm_latency)];
    for (is_shown, latency) in latencies {
        for value in &shown.six(latency.as_ref())[..5] {
            line.push(',');
            if is_shown {
                line += &value.to_string();
            }
        }
    }
    line
}
