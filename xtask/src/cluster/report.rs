//! The report of a run: what each kind of fault came to, beside what is promised.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::rounds;

/// What happened on the nodes of one broker.
pub(super) struct Played {
    /// What they run.
    pub(super) title: String,
    pub(super) nodes: usize,
    /// The rounds, in their order: name, how long it took in seconds, what failed.
    pub(super) rounds: Vec<(&'static str, f64, Option<String>)>,
    /// What the traffic came to, as it says.
    pub(super) traffic: Value,
}

/// All faults of one kind.
#[derive(Debug, Default, PartialEq)]
struct Kind {
    name: String,
    times: u64,
    confirmed: u64,
    lost: u64,
    duplicates: u64,
    out_of_order: u64,
    /// Errors of clients over nodes that were not hit.
    errors: u64,
    /// Of publishers over nodes that were not hit, or of all if all were; sorted.
    pauses_ms: Vec<f64>,
}

impl Played {
    /// In the order in which rounds are listed; what is none of them comes first.
    fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = Vec::new();
        for phase in self.traffic["phases"].as_array().into_iter().flatten() {
            let name = phase["name"].as_str().unwrap_or_default();
            let at = kinds.iter().position(|it| it.name == name).unwrap_or_else(|| {
                kinds.push(Kind { name: name.to_owned(), ..Kind::default() });
                kinds.len() - 1
            });
            kinds[at].add(phase);
        }
        let place = |it: &Kind| rounds::ALL.iter().position(|round| round.name == it.name);
        kinds.sort_by_key(place);
        for kind in &mut kinds {
            kind.pauses_ms.sort_by(f64::total_cmp);
        }
        kinds
    }

    fn failures(&self) -> impl Iterator<Item = String> {
        let failed = |(name, _, why): &(&str, f64, Option<String>)| {
            why.as_ref().map(|why| format!("{name}: {why}"))
        };
        let found = self.traffic["first_findings"].as_array().into_iter().flatten();
        let found = found.filter_map(|it| it.as_str()).map(str::to_owned);
        self.rounds.iter().filter_map(failed).chain(found)
    }
}

impl Kind {
    fn add(&mut self, phase: &Value) {
        let count = |key: &str| phase[key].as_u64().unwrap_or_default();
        self.times += 1;
        self.confirmed += count("confirmed");
        self.lost += count("lost");
        self.duplicates += count("duplicates");
        self.out_of_order += count("out_of_order");
        let numbers = |key: &str| phase[key].as_array().into_iter().flatten();
        let hit: Vec<_> = numbers("nodes").filter_map(Value::as_u64).collect();
        let is_hit = |node: usize| hit.contains(&(node as u64));
        let pauses = numbers("pauses_ms").enumerate().filter(|(node, _)| !is_hit(*node));
        self.pauses_ms.extend(pauses.filter_map(|(_, it)| it.as_f64()));
        let errors = numbers("errors").enumerate().filter(|(node, _)| !is_hit(*node));
        self.errors += errors.filter_map(|(_, it)| it.as_u64()).sum::<u64>();
    }

    /// The nearest of the pauses, in ms.
    fn pause(&self, quantile: f64) -> Option<f64> {
        let rank = (self.pauses_ms.len() as f64 * quantile).ceil() as usize;
        self.pauses_ms.get(rank.max(1) - 1).copied()
    }

    fn promise_ms(&self) -> Option<u32> {
        rounds::find(&self.name)?.promise_ms
    }

    /// As it is read in the table of a report.
    fn cells(&self, broker: &str) -> Vec<String> {
        let ms = |it: Option<f64>| it.map_or_else(|| "-".to_owned(), |it| format!("{it:.0}"));
        vec![
            self.name.clone(),
            broker.to_owned(),
            self.times.to_string(),
            self.confirmed.to_string(),
            self.lost.to_string(),
            self.duplicates.to_string(),
            self.out_of_order.to_string(),
            self.errors.to_string(),
            ms(self.pause(0.5)),
            ms(self.pause(0.9)),
            ms(self.pause(1.0)),
            ms(self.promise_ms().map(f64::from)),
        ]
    }
}

const HEAD: [&str; 12] = [
    "fault",
    "broker",
    "times",
    "confirmed",
    "lost",
    "twice without a reason",
    "out of order",
    "errors elsewhere",
    "pause p50, ms",
    "p90",
    "longest",
    "promised",
];

/// As Markdown.
pub(super) fn markdown(command: &str, all: &[Played]) -> String {
    let mut text = "# Nodes that fail\n\n".to_owned();
    let _ = writeln!(text, "`{command}`\n");
    for it in all {
        let sum = |key: &str| it.traffic["sum"][key].as_u64().unwrap_or_default();
        let seconds: f64 = it.rounds.iter().map(|(_, seconds, _)| seconds).sum();
        let _ = writeln!(
            text,
            "- **{}**, nodes: {}. {} rounds in {:.0} minutes; {} confirmed, {} lost, {} twice without a reason, {} out of order, {} findings.",
            it.title,
            it.nodes,
            it.rounds.len(),
            seconds / 60.0,
            sum("confirmed"),
            sum("lost"),
            sum("duplicates"),
            sum("out_of_order"),
            it.traffic["findings"]
        );
        let backlog = &it.traffic["backlog"];
        if backlog.is_object() {
            let _ = writeln!(
                text,
                "  A backlog of {} messages lay there all the time: {} lost, {} twice without a reason, {} out of order.",
                backlog["count"], backlog["lost"], backlog["duplicates"], backlog["out_of_order"]
            );
        }
    }
    text += "\nA pause is the longest time between two confirms of a publisher over a node that the fault did not hit, from one fault to the next; of every publisher, where all nodes were hit. \
             A message that was lost counts where it was confirmed.\n\n";
    let mut rows = vec![HEAD.map(str::to_owned).to_vec(), HEAD.map(|_| "---".to_owned()).to_vec()];
    let mut kinds: Vec<_> =
        all.iter().flat_map(|it| it.kinds().into_iter().map(move |kind| (kind, it))).collect();
    // Brokers beside each other.
    kinds.sort_by_key(|(kind, _)| rounds::ALL.iter().position(|it| it.name == kind.name));
    rows.extend(kinds.iter().map(|(kind, it)| kind.cells(&it.title)));
    for row in rows {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    let failures: Vec<_> = all
        .iter()
        .flat_map(|it| it.failures().map(move |line| format!("{}: {line}", it.title)))
        .collect();
    if !failures.is_empty() {
        text += "\n## What failed\n\n";
        failures.iter().for_each(|line| text += &format!("- {line}\n"));
    }
    text
}

fn document(command: &str, all: &[Played]) -> Value {
    let of_kind = |kind: &Kind| {
        json!({
            "name": kind.name,
            "times": kind.times,
            "confirmed": kind.confirmed,
            "lost": kind.lost,
            "duplicates": kind.duplicates,
            "out_of_order": kind.out_of_order,
            "errors_elsewhere": kind.errors,
            "pauses_ms": kind.pauses_ms,
            "pause_p50_ms": kind.pause(0.5),
            "pause_p90_ms": kind.pause(0.9),
            "pause_max_ms": kind.pause(1.0),
            "promise_ms": kind.promise_ms(),
        })
    };
    let of_broker = |it: &Played| {
        let round = |(name, seconds, failure): &(&str, f64, Option<String>)| json!({"name": name, "seconds": seconds, "failure": failure});
        json!({
            "title": it.title,
            "nodes": it.nodes,
            "rounds": it.rounds.iter().map(round).collect::<Vec<_>>(),
            "kinds": it.kinds().iter().map(of_kind).collect::<Vec<_>>(),
            "traffic": it.traffic,
        })
    };
    json!({"command": command, "brokers": all.iter().map(of_broker).collect::<Vec<_>>()})
}

/// Writes both: the Markdown there, and the JSON beside it.
pub(super) fn write(path: &Path, command: &str, all: &[Played]) -> anyhow::Result<()> {
    let put = |path: &Path, text: String| {
        std::fs::write(path, text).with_context(|| path.display().to_string())
    };
    put(path, markdown(command, all))?;
    let json = serde_json::to_string_pretty(&document(command, all))?;
    put(&path.with_extension("json"), json + "\n")?;
    println!("{} has the report, beside it is the JSON", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(name: &str, nodes: &[u64], pauses_ms: [f64; 3]) -> Value {
        json!({
            "name": name, "nodes": nodes, "pauses_ms": pauses_ms, "errors": [1, 2, 4],
            "confirmed": 10, "lost": 1, "duplicates": 0, "out_of_order": 0,
        })
    }

    #[test]
    fn faults_by_kind() {
        let phases = [
            phase("undisturbed", &[], [1.0, 1.0, 1.0]),
            phase("all-killed", &[], [100.0, 200.0, 300.0]),
            phase("leader-killed", &[0], [4000.0, 10.0, 20.0]),
            phase("leader-killed", &[1, 2], [30.0, 5000.0, 9000.0]),
        ];
        let played = Played {
            title: "B".to_owned(),
            nodes: 3,
            rounds: vec![("leader-killed", 4.0, Some("why".to_owned()))],
            traffic: json!({"phases": phases, "sum": {"confirmed": 40}, "findings": 0}),
        };
        let kinds = played.kinds();
        let names: Vec<_> = kinds.iter().map(|it| &*it.name).collect();
        assert_eq!(names, ["undisturbed", "leader-killed", "all-killed"]);
        let killed = &kinds[1];
        assert_eq!((killed.times, killed.confirmed, killed.lost), (2, 20, 2));
        assert_eq!(killed.pauses_ms, [10.0, 20.0, 30.0]);
        assert_eq!(killed.errors, 2 + 4 + 1);
        let pauses = [0.5, 0.9, 1.0].map(|it| killed.pause(it));
        assert_eq!(pauses, [Some(20.0), Some(30.0), Some(30.0)]);
        let text = markdown("command", &[played]);
        let row = "| leader-killed | B | 2 | 20 | 2 | 0 | 0 | 7 | 20 | 30 | 30 | 100 |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("B: leader-killed: why"), "{text}");
    }
}
