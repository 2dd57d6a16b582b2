//! The report of a run: what each kind of fault came to, beside what is promised.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::Sessions;
use super::rounds::{self, Felt};

/// What happened on the nodes of one broker.
pub(super) struct Played {
    /// What they run.
    pub(super) title: String,
    pub(super) nodes: usize,
    /// Where sessions were; none on another broker, which promised nothing.
    pub(super) sessions: Option<Sessions>,
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
    /// Whether others were always most of the nodes: only then something is promised.
    is_promised: bool,
}

/// What clients over nodes had that a fault did not hit, from there to the next fault.
struct Elsewhere {
    /// How many nodes it hit; none if it hit all, or none in particular.
    hit: usize,
    pauses_ms: Vec<f64>,
    errors: u64,
}

impl Elsewhere {
    /// Of a phase of the traffic.
    fn of(phase: &Value) -> Self {
        let numbers = |key: &str| phase[key].as_array().into_iter().flatten();
        let hit: Vec<_> = numbers("nodes").filter_map(Value::as_u64).collect();
        let others = |key: &str| {
            let nodes = numbers(key).zip(0..);
            nodes.filter(|(_, node)| !hit.contains(node)).map(|(it, _)| it).collect::<Vec<_>>()
        };
        Self {
            hit: hit.len(),
            pauses_ms: others("pauses_ms").into_iter().filter_map(Value::as_f64).collect(),
            errors: others("errors").into_iter().filter_map(Value::as_u64).sum(),
        }
    }

    /// Whether there were others, most of so many nodes.
    fn goes_on(&self, nodes: usize) -> bool {
        self.hit > 0 && rounds::goes_on_without(nodes, self.hit)
    }
}

impl Played {
    /// In the order in which rounds are listed; what is none of them comes first.
    fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = Vec::new();
        for phase in self.traffic["phases"].as_array().into_iter().flatten() {
            let name = phase["name"].as_str().unwrap_or_default();
            let at = kinds.iter().position(|it| it.name == name).unwrap_or_else(|| {
                kinds.push(Kind { name: name.to_owned(), is_promised: true, ..Kind::default() });
                kinds.len() - 1
            });
            kinds[at].add(phase, self.nodes);
        }
        let place = |it: &Kind| rounds::ALL.iter().position(|round| round.name == it.name);
        kinds.sort_by_key(place);
        for kind in &mut kinds {
            kind.pauses_ms.sort_by(f64::total_cmp);
        }
        kinds
    }

    /// What clients over nodes that were not hit felt, and were not to feel: a line each.
    pub(super) fn felt(&self) -> Vec<String> {
        let (Some(sessions), phases) = (self.sessions, self.traffic["phases"].as_array()) else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        for (number, phase) in phases.into_iter().flatten().enumerate() {
            let name = phase["name"].as_str().unwrap_or_default();
            let (elsewhere, round) = (Elsewhere::of(phase), rounds::find(name));
            if round.is_some() && !elsewhere.goes_on(self.nodes) {
                continue;
            }
            let fault = format!("fault {number}, {name} {}", phase["nodes"]);
            let may_end =
                round.is_some_and(|it| it.felt == Felt::ByRelayed && sessions == Sessions::Relayed);
            if elsewhere.errors > 0 && !may_end {
                lines.push(format!(
                    "{fault}: clients over nodes that it did not hit had {} errors: see traffic.log",
                    elsewhere.errors
                ));
            }
            let longest_ms = elsewhere.pauses_ms.into_iter().fold(0.0, f64::max);
            if let Some(bound_ms) = round.and_then(|it| it.bound_ms())
                && longest_ms > f64::from(bound_ms)
            {
                lines.push(format!(
                    "{fault}: a publisher over a node that it did not hit waited {longest_ms:.0} ms, above {bound_ms} ms"
                ));
            }
        }
        lines
    }

    fn failures(&self) -> impl Iterator<Item = String> {
        let failed = |(name, _, why): &(&str, f64, Option<String>)| {
            why.as_ref().map(|why| format!("{name}: {why}"))
        };
        let found = self.traffic["first_findings"].as_array().into_iter().flatten();
        let found = found.filter_map(|it| it.as_str()).map(str::to_owned);
        self.rounds.iter().filter_map(failed).chain(self.felt()).chain(found)
    }
}

impl Kind {
    fn add(&mut self, phase: &Value, nodes: usize) {
        let count = |key: &str| phase[key].as_u64().unwrap_or_default();
        self.times += 1;
        self.confirmed += count("confirmed");
        self.lost += count("lost");
        self.duplicates += count("duplicates");
        self.out_of_order += count("out_of_order");
        let elsewhere = Elsewhere::of(phase);
        self.is_promised &= elsewhere.goes_on(nodes);
        self.pauses_ms.extend(elsewhere.pauses_ms);
        self.errors += elsewhere.errors;
    }

    /// The nearest of the pauses, in ms.
    fn pause(&self, quantile: f64) -> Option<f64> {
        let rank = (self.pauses_ms.len() as f64 * quantile).ceil() as usize;
        self.pauses_ms.get(rank.max(1) - 1).copied()
    }

    fn promise_ms(&self) -> Option<u32> {
        rounds::find(&self.name)?.promise_ms.filter(|_| self.is_promised)
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
            phase("leader-killed", &[1], [30.0, 5000.0, 1600.0]),
            phase("two-killed", &[1, 2], [9000.0, 5000.0, 5000.0]),
        ];
        let played = Played {
            title: "B".to_owned(),
            nodes: 3,
            sessions: Some(Sessions::Own),
            rounds: vec![("leader-killed", 4.0, Some("why".to_owned()))],
            traffic: json!({"phases": phases, "sum": {"confirmed": 40}, "findings": 0}),
        };
        let kinds = played.kinds();
        let names: Vec<_> = kinds.iter().map(|it| &*it.name).collect();
        assert_eq!(names, ["undisturbed", "leader-killed", "two-killed", "all-killed"]);
        let killed = &kinds[1];
        assert_eq!((killed.times, killed.confirmed, killed.lost), (2, 20, 2));
        assert_eq!(killed.pauses_ms, [10.0, 20.0, 30.0, 1600.0]);
        assert_eq!(killed.errors, 2 + 4 + 1 + 4);
        // Two of three leave no majority.
        assert_eq!([&kinds[1], &kinds[2]].map(Kind::promise_ms), [Some(100), None]);
        let pauses = [0.5, 0.9, 1.0].map(|it| killed.pause(it));
        assert_eq!(pauses, [Some(20.0), Some(1600.0), Some(1600.0)]);
        let felt = played.felt();
        assert!(felt[0].starts_with("fault 0, undisturbed []: clients over nodes"), "{felt:?}");
        assert!(
            felt[1]
                .contains("leader-killed [0]: clients over nodes that it did not hit had 6 errors"),
            "{felt:?}"
        );
        assert!(
            felt[2]
                .contains("leader-killed [1]: clients over nodes that it did not hit had 5 errors"),
            "{felt:?}"
        );
        assert!(felt[3].contains("leader-killed [1]: a publisher over a node that it did not hit waited 1600 ms, above 1500 ms"), "{felt:?}");
        assert_eq!(felt.len(), 4, "{felt:?}");
        let relayed = Played { sessions: Some(Sessions::Relayed), ..played };
        assert_eq!(relayed.felt().len(), 2, "the node that leads has their connections");
        let played = Played { sessions: None, ..relayed };
        assert_eq!(played.felt(), [""; 0]);
        let text = markdown("command", &[played]);
        let row = "| leader-killed | B | 2 | 20 | 2 | 0 | 0 | 11 | 20 | 1600 | 1600 | 100 |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("B: leader-killed: why"), "{text}");
    }
}
