//! One workload on one broker: runs the tool, keeps what it says.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use leveret_client::{Connection, Options, QueueDeclare, Uri};
use leveret_load::{Idle, process};
use serde_json::{Value, json};

use super::target::{Target, spawn_on};
use super::{BenchArgs, Workload};
use super::{api, backlogs, go, memory, recovery, relay, rules, scale, stored};

/// Idle things that are opened.
const IDLE_COUNT: u32 = 1000;
/// Messages of S1.
pub(crate) const S1_COUNT: u64 = 100_000;
/// How long an idle broker is watched.
const IDLE_WATCH: Duration = Duration::from_secs(5);

/// Figures of a run: each its name with unit, and the value.
pub(crate) type Figures = Vec<(Cow<'static, str>, f64)>;

/// All measurements so far.
#[derive(Debug)]
pub(crate) struct Bench {
    tool: PathBuf,
    gobench: Option<PathBuf>,
    runs: usize,
    pub(crate) seconds: u32,
    pub(crate) backlog_seconds: u32,
    /// Numbers of queues in P.
    pub(crate) queues: Vec<u32>,
    /// Messages at the end of `growth`.
    pub(crate) millions: u64,
    results: BTreeMap<(String, Workload), Vec<Figures>>,
    /// The command of each workload, as it may be repeated.
    commands: BTreeMap<Workload, String>,
    lines: Vec<Value>,
    /// Lines about parts of the run under way; its target and number are still to be added.
    pub(crate) details: Vec<Value>,
}

/// Where the broker is.
pub(crate) struct BrokerAt<'a> {
    pub(crate) uri: &'a str,
    pub(crate) pid: u32,
}

impl Bench {
    pub(crate) fn new(tool: PathBuf, args: &BenchArgs) -> Self {
        Self {
            tool,
            gobench: args.gobench.clone(),
            runs: args.runs.max(1),
            seconds: args.seconds,
            backlog_seconds: args.backlog_seconds,
            queues: args.queues.clone(),
            millions: args.millions,
            results: BTreeMap::new(),
            commands: BTreeMap::new(),
            lines: Vec::new(),
            details: Vec::new(),
        }
    }

    /// The load tool, which is also `leveret ctl`.
    pub(crate) fn tool(&self) -> &Path {
        &self.tool
    }

    /// Says what is repeated by hand, where one command of the load tool is not all.
    pub(crate) fn describe(&mut self, workload: Workload, command: &str) {
        self.commands.insert(workload, command.to_owned());
    }

    pub(crate) fn runs(&self) -> usize {
        self.runs
    }

    pub(crate) fn command(&self, workload: Workload) -> Option<&str> {
        self.commands.get(&workload).map(String::as_str)
    }

    pub(crate) fn results(&self, target: &str, workload: Workload) -> &[Figures] {
        self.results.get(&(target.to_owned(), workload)).map_or(&[], Vec::as_slice)
    }

    /// All that is known of each run, and of its seconds.
    pub(crate) fn lines(&self) -> &[Value] {
        &self.lines
    }

    pub(crate) fn json_lines(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }

    pub(crate) fn measure(&mut self, target: &mut Target, workload: Workload) -> Result<()> {
        for number in 1..=self.runs {
            let (uri, pid) = target.fresh()?;
            let place = BrokerAt { uri: &uri, pid };
            let busy = Busy::start();
            let broker_before = process::tree(pid).map_or(0.0, |usage| usage.cpu_s);
            let (mut figures, tool_cpu_s) = self.one(target, workload, &place)?;
            let broker_s = process::tree(pid).map_or(0.0, |usage| usage.cpu_s) - broker_before;
            if !workload.is_ours_alone() {
                figures.push(("others' CPU, %".into(), busy.others(broker_s + tool_cpu_s)));
            }
            eprintln!("{} {workload:?} {number}: {figures:?}", target.title());
            for mut detail in std::mem::take(&mut self.details) {
                detail["target"] = target.title().into();
                detail["run"] = number.into();
                self.lines.push(detail);
            }
            self.lines.push(json!({
                "target": target.title(),
                "workload": format!("{workload:?}"),
                "run": number,
                "figures": figures.iter().cloned().collect::<BTreeMap<_, _>>(),
            }));
            let key = (target.title().to_owned(), workload);
            self.results.entry(key).or_default().push(figures);
        }
        Ok(())
    }

    /// The figures of one run, and the CPU seconds of the load program.
    fn one(
        &mut self,
        target: &mut Target,
        workload: Workload,
        place: &BrokerAt<'_>,
    ) -> Result<(Figures, f64)> {
        let seconds = self.seconds.to_string();
        let count = IDLE_COUNT.to_string();
        let s1 = S1_COUNT.to_string();
        let k2 =
            |size| ["-e", "", "-u", "k2", "-a", "-s", size, "-z", &*seconds].map(str::to_owned);
        match workload {
            Workload::M => Ok((idle(target, place)?, 0.0)),
            Workload::Connections => self.per_item(workload, place, "--idle-connections", &count),
            Workload::Queues => self.per_item(workload, place, "--idle-queues", &count),
            Workload::K2Small => self.throughput(workload, place, &k2("16")),
            Workload::K2Large => self.throughput(workload, place, &k2("1024")),
            Workload::S1 => {
                let flags =
                    ["-y", "0", "-e", "", "-u", "s1", "-ad", "false", "-s", "1024", "-C", &*s1];
                self.publish_only(workload, place, &flags.map(str::to_owned))
            }
            Workload::S3 => {
                let flags = ["latency", "-e", "", "-u", "s3", "-z", &*seconds];
                let result = self.perf(workload, place, &flags.map(str::to_owned))?;
                Ok((latency_figures(&result)?, number(&result, "/tool/cpu_s")?))
            }
            Workload::K1 => stored::backlog(self, target, place),
            Workload::K1Queues => backlogs::queues(self, target, place),
            Workload::K1Unacked => backlogs::unacked(self, target, place),
            Workload::K1Stopped => backlogs::stopped(self, target, place),
            Workload::Growth => memory::growth(self, target, place),
            Workload::Resident => Ok((memory::resident(self, target)?, 0.0)),
            Workload::P => rules::grid(self, target, place),
            Workload::Sync => stored::sync(self, place),
            Workload::P99 => scale::latency_below_the_limit(self, place),
            Workload::Cores => Ok((scale::cores(self, target)?, 0.0)),
            Workload::BesideQueues => scale::beside_idle(self, workload, place, Idle::Queues),
            Workload::BesideConnections => {
                scale::beside_idle(self, workload, place, Idle::Connections)
            }
            Workload::Api => api::lists(self, target, place),
            Workload::Relay => relay::beside(self, place),
            Workload::Recovery => Ok((recovery::starts(self, target, place)?, 0.0)),
            Workload::GoS1 | Workload::GoS2 | Workload::GoS3 => {
                let gobench = self.gobench.as_ref().context("no --gobench")?;
                let (figures, cpu_s, command) = go::run(gobench, workload, place)?;
                self.commands.insert(workload, command);
                Ok((figures, cpu_s))
            }
        }
    }

    fn throughput(
        &mut self,
        workload: Workload,
        place: &BrokerAt<'_>,
        flags: &[String],
    ) -> Result<(Figures, f64)> {
        let result = self.perf(workload, place, flags)?;
        let figures = named([
            ("broker CPU s per million", number(&result, "/broker/cpu_s_per_million")?),
            ("published/s", number(&result, "/publish_rate/mean")?),
            ("consumed/s", number(&result, "/consume_rate/mean")?),
            ("tool CPU s per million", number(&result, "/tool/cpu_s_per_million")?),
            ("peak RSS, MB", number(&result, "/broker/rss_peak_bytes")? / 1e6),
        ]);
        Ok((figures, number(&result, "/tool/cpu_s")?))
    }

    /// The broker is done when the queue holds all messages, not when they are written.
    fn publish_only(
        &mut self,
        workload: Workload,
        place: &BrokerAt<'_>,
        flags: &[String],
    ) -> Result<(Figures, f64)> {
        let uri: Uri = place.uri.parse()?;
        let mut connection = Connection::open(&uri, &Options::default())?;
        let channel = connection.open_channel()?;
        connection.queue_delete(channel, "s1")?;
        let cpu = |pid| process::tree(pid).map(|usage| usage.cpu_s).context("the broker has ended");
        let before = cpu(place.pid)?;
        let result = self.perf(workload, place, flags)?;
        let began = Instant::now();
        let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
        while u64::from(connection.queue_declare(channel, "s1", &passive)?.message_count) < S1_COUNT
        {
            if began.elapsed() > Duration::from_secs(60) {
                bail!("not all messages have arrived in the queue");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let all_s = number(&result, "/publish_s")? + began.elapsed().as_secs_f64();
        let cpu_s = cpu(place.pid)? - before;
        connection.queue_delete(channel, "s1")?;
        connection.close()?;
        let figures = named([
            ("broker CPU s per million", cpu_s / S1_COUNT as f64 * 1e6),
            ("published/s", number(&result, "/publish_rate/mean")?),
            ("in the queue/s", S1_COUNT as f64 / all_s),
            ("tool CPU s per million", number(&result, "/tool/cpu_s_per_million")?),
            ("peak RSS, MB", number(&result, "/broker/rss_peak_bytes")? / 1e6),
        ]);
        Ok((figures, number(&result, "/tool/cpu_s")?))
    }

    fn per_item(
        &mut self,
        workload: Workload,
        place: &BrokerAt<'_>,
        flag: &str,
        count: &str,
    ) -> Result<(Figures, f64)> {
        let result = self.perf(workload, place, &[flag.to_owned(), count.to_owned()])?;
        let figures = named([
            ("KB each", number(&result, "/bytes_each")? / 1e3),
            ("s to open", number(&result, "/open_s")?),
            ("CPU while idle, %", number(&result, "/idle_cpu_share")? * 100.0),
        ]);
        Ok((figures, 0.0))
    }

    /// Runs the load tool and reads its JSON.
    pub(crate) fn perf(
        &mut self,
        workload: Workload,
        place: &BrokerAt<'_>,
        flags: &[String],
    ) -> Result<Value> {
        self.perf_on(None, workload, place, flags)
    }

    /// The same, with so many cores for the tool, if not all.
    pub(crate) fn perf_on(
        &mut self,
        cores: Option<usize>,
        workload: Workload,
        place: &BrokerAt<'_>,
        flags: &[String],
    ) -> Result<Value> {
        let shown: Vec<&str> =
            flags.iter().map(|word| if word.is_empty() { "''" } else { word }).collect();
        let command = format!("leveret perf {} -h URI --broker-pid PID", shown.join(" "));
        // The first command is what a workload is about; others bring it to its end.
        self.commands.entry(workload).or_insert(command);
        let mut command = Command::new(&self.tool);
        command
            .arg("perf")
            .args(flags)
            // A broker that dies ends the measurement.
            .arg("-dcr")
            .args(["-h", place.uri, "--broker-pid", &place.pid.to_string(), "--json", "-"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let output = spawn_on(&mut command, cores)
            .and_then(Child::wait_with_output)
            .with_context(|| format!("running {}", self.tool.display()))?;
        if !output.status.success() {
            bail!("leveret perf: {}", String::from_utf8_lossy(&output.stderr));
        }
        serde_json::from_slice(&output.stdout).context("reading the tool's JSON")
    }
}

/// Figures whose names are fixed.
pub(crate) fn named<const N: usize>(figures: [(&'static str, f64); N]) -> Figures {
    figures.map(|(name, value)| (Cow::Borrowed(name), value)).into()
}

/// A number in the tool's result.
pub(crate) fn number(result: &Value, path: &str) -> Result<f64> {
    result.pointer(path).and_then(Value::as_f64).with_context(|| format!("no {path} in the result"))
}

fn latency_figures(result: &Value) -> Result<Figures> {
    let mut figures = Vec::new();
    for (name, path) in [
        ("mean, us", "/latency_us/mean"),
        ("p50, us", "/latency_us/p50"),
        ("p90, us", "/latency_us/p90"),
        ("p99, us", "/latency_us/p99"),
        ("p99.9, us", "/latency_us/p999"),
        ("max, us", "/latency_us/max"),
        ("broker CPU s per million", "/broker/cpu_s_per_million"),
    ] {
        figures.push((name.into(), number(result, path)?));
    }
    Ok(figures)
}

fn idle(target: &Target, place: &BrokerAt<'_>) -> Result<Figures> {
    std::thread::sleep(Duration::from_secs(2));
    let before = process::tree(place.pid).context("the broker has ended")?;
    std::thread::sleep(IDLE_WATCH);
    let after = process::tree(place.pid).context("the broker has ended")?;
    let mut figures = named([
        ("RSS, MB", after.rss_bytes as f64 / 1e6),
        ("CPU, %", (after.cpu_s - before.cpu_s) / IDLE_WATCH.as_secs_f64() * 100.0),
    ]);
    if let Some(start) = target.start_time() {
        figures.push(("start, ms".into(), start.as_secs_f64() * 1e3));
    }
    Ok(figures)
}

/// CPU that neither broker nor tool used, nor this program: it relays, and opens what is idle beside a load.
pub(crate) struct Busy {
    busy_s: f64,
    own_s: f64,
    began: Instant,
}

impl Busy {
    pub(crate) fn start() -> Self {
        Self { busy_s: process::machine_busy_s(), own_s: own_cpu_s(), began: Instant::now() }
    }

    /// Share of all cores in percent.
    pub(crate) fn others(&self, known_s: f64) -> f64 {
        let all = self.began.elapsed().as_secs_f64()
            * std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let known_s = known_s + own_cpu_s() - self.own_s;
        ((process::machine_busy_s() - self.busy_s - known_s) / all * 100.0).max(0.0)
    }
}

/// CPU time of this program alone, in seconds: without brokers and tools that have ended.
pub(crate) fn own_cpu_s() -> f64 {
    process::own().cpu_s - process::children_cpu_s()
}
