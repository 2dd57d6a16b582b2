//! The traffic: `leveret perf experiment failover`, which is told of every fault and keeps the account.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};

/// The program that makes the traffic.
pub(super) struct Traffic {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// What is sent.
pub(super) struct Load<'a> {
    /// The program that sends it.
    pub(super) program: &'a Path,
    /// The nodes.
    pub(super) uris: &'a [String],
    pub(super) queue_type: Option<&'a str>,
    /// Messages that lie there from before the first fault.
    pub(super) backlog: u64,
    /// Their lengths, as the program reads them.
    pub(super) backlog_size: &'a str,
    pub(super) seed: u64,
}

impl Traffic {
    /// Starts it; its files go to this directory.
    pub(super) fn start(load: &Load<'_>, dir: &Path) -> anyhow::Result<Self> {
        // It does not outlive the thread that starts it.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(load.program);
        let seed = load.seed.to_string();
        command.args(["perf", "experiment", "failover", "--told", "--seed", &seed]);
        for uri in load.uris {
            command.args(["--node", uri]);
        }
        if let Some(kind) = load.queue_type {
            command.args(["--queue-type", kind]);
        }
        command.args(["--backlog", &load.backlog.to_string()]);
        command.args(["--backlog-size", load.backlog_size]);
        command.arg("--log").arg(dir.join("traffic.log"));
        command.arg("--json").arg(dir.join("traffic.json"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("starting the traffic")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = BufReader::new(output.context("its output is piped")?);
        Ok(Self { child, input, output })
    }

    fn say(&mut self, line: &str) -> anyhow::Result<String> {
        let input = self.input.as_mut().context("the traffic was ended")?;
        writeln!(input, "{line}").context("telling the traffic")?;
        let mut answer = String::new();
        self.output.read_line(&mut answer).context("asking the traffic")?;
        ensure!(!answer.is_empty(), "the traffic has ended by itself");
        Ok(answer.trim().to_owned())
    }

    /// A fault is made now; of these nodes, or of all.
    pub(super) fn fault(&mut self, name: &str, nodes: &[usize]) -> anyhow::Result<()> {
        let answer = self.say(&format!("fault {name} {}", listed(nodes)))?;
        ensure!(answer == "begun", "the traffic says: {answer}");
        Ok(())
    }

    /// All is in order again, but for these nodes: waits until every client of the others works, at most so long.
    pub(super) fn settle(&mut self, patience: Duration, away: &[usize]) -> anyhow::Result<()> {
        let away =
            if away.is_empty() { String::new() } else { format!(" without {}", listed(away)) };
        let answer = self.say(&format!("settle {}{away}", patience.as_secs()))?;
        ensure!(answer.starts_with("settled "), "the traffic says: {answer}");
        Ok(())
    }

    /// Empties the queues, prints the account, and says whether nothing is wrong with it.
    pub(super) fn end(mut self) -> anyhow::Result<bool> {
        drop(self.input.take());
        for line in self.output.by_ref().lines() {
            println!("{}", line?);
        }
        Ok(self.child.wait()?.success())
    }
}

fn listed(nodes: &[usize]) -> String {
    nodes.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

impl Drop for Traffic {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
