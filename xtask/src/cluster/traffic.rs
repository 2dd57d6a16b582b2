//! The traffic: `leveret perf experiment failover`, which is told of every fault and keeps the account.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};

/// The program that makes the traffic.
pub(super) struct Traffic {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Traffic {
    /// Starts it through these nodes; its files go to this directory.
    pub(super) fn start(
        program: &Path,
        uris: &[String],
        dir: &Path,
        seed: u64,
    ) -> anyhow::Result<Self> {
        // It does not outlive the thread that starts it.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL"]).arg(program);
        command.args(["perf", "experiment", "failover", "--told", "--seed", &seed.to_string()]);
        for uri in uris {
            command.args(["--node", uri]);
        }
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

    /// A fault is made now; of this node, or of all.
    pub(super) fn fault(&mut self, name: &str, node: Option<usize>) -> anyhow::Result<()> {
        let node = node.map(|it| format!(" {it}")).unwrap_or_default();
        let answer = self.say(&format!("fault {name}{node}"))?;
        ensure!(answer == "begun", "the traffic says: {answer}");
        Ok(())
    }

    /// All is in order again: waits until every client works, at most so long; how long that took.
    pub(super) fn settle(&mut self, patience: Duration) -> anyhow::Result<Duration> {
        let answer = self.say(&format!("settle {}", patience.as_secs()))?;
        match answer.split_once(' ') {
            Some(("settled", ms)) => Ok(Duration::from_millis(ms.parse()?)),
            _ => bail!("the traffic says: {answer}"),
        }
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

impl Drop for Traffic {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
