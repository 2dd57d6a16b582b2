//! P: what confirms that wait for a consumer instead of the disk gain, by the number of queues.
//!
//! The reference measurement had two channels on a producer's connection and three on a consumer's;
//! the load tool has one on each.

use std::borrow::Cow;
use std::path::Path;

use anyhow::Result;
use leveret_load::process;

use super::Workload;
use super::measure::{Bench, BrokerAt, Figures, number};
use super::stored::{ctl, owned};
use super::target::Target;

/// The rules, the usual one first. Other brokers have only that.
const RULES: [&str; 4] = ["enqueue", "first", "ack", "ack-lean"];
/// Above so many queues the reference measurement takes the mean of its gains.
const FEW_QUEUES: u32 = 3;

/// One rule on so many queues.
#[derive(Debug)]
struct Case {
    queues: u32,
    rule: &'static str,
    cpu_s_per_million: f64,
    rate: f64,
    /// Bytes to disk per message, when they may be read.
    written: Option<f64>,
}

/// The figures of all cases, and the CPU seconds of the tool. The rules of one number of queues
/// follow each other, since their differences matter and the machine may change its speed.
pub(crate) fn grid(
    bench: &mut Bench,
    target: &Target,
    place: &BrokerAt<'_>,
) -> Result<(Figures, f64)> {
    bench.describe(
        Workload::P,
        "leveret ctl set_policy rule '.*' '{\"confirm-on\": RULE}' --apply-to queues; \
         leveret perf -x 2N -y 3N -qp q%d -qpf 1 -qpt N -s 1500 -f persistent -c 200 -q 100 -A 10",
    );
    let mut cases = Vec::new();
    let mut tool_s = 0.0;
    for queues in bench.queues.clone() {
        for rule in RULES {
            if let Some(data) = target.data() {
                set_rule(bench.tool(), data, rule)?;
            } else if rule != RULES[0] {
                continue;
            }
            let (case, cpu_s) = measure(bench, place, queues, rule)?;
            eprintln!("{} {case:?}", target.title());
            cases.push(case);
            tool_s += cpu_s;
        }
    }
    Ok((figures(&cases), tool_s))
}

fn set_rule(tool: &Path, data: &Path, rule: &str) -> Result<()> {
    let definition = format!("{{\"confirm-on\": \"{rule}\"}}");
    let words = ["set_policy", "rule", ".*", &definition, "--apply-to", "queues"];
    ctl(tool, data, &words).map(drop)
}

fn measure(
    bench: &mut Bench,
    place: &BrokerAt<'_>,
    queues: u32,
    rule: &'static str,
) -> Result<(Case, f64)> {
    let (producers, consumers) = ((2 * queues).to_string(), (3 * queues).to_string());
    let (pattern, last) = (format!("{rule}-%d"), queues.to_string());
    let seconds = bench.seconds.to_string();
    let mut flags = vec!["-x", &*producers, "-y", &consumers];
    flags.extend(["-qp", &pattern, "-qpf", "1", "-qpt", &last, "-s", "1500", "-f", "persistent"]);
    flags.extend(["-c", "200", "-q", "100", "-A", "10", "-z", &seconds]);
    let before = process::written_bytes(place.pid);
    let result = bench.perf(Workload::P, place, &owned(&flags))?;
    let written = before.zip(process::written_bytes(place.pid));
    let messages = number(&result, "/published")?;
    let case = Case {
        queues,
        rule,
        cpu_s_per_million: number(&result, "/broker/cpu_s_per_million")?,
        rate: number(&result, "/publish_rate/mean")?,
        written: written.map(|(before, after)| (after - before) as f64 / messages.max(1.0)),
    };
    Ok((case, number(&result, "/tool/cpu_s")?))
}

fn figures(cases: &[Case]) -> Figures {
    let mut figures = Figures::new();
    let mut add = |what: &str, of: &dyn Fn(&Case) -> Option<f64>| {
        for case in cases {
            if let Some(value) = of(case) {
                let Case { queues, rule, .. } = case;
                figures.push((Cow::Owned(format!("{what}, {queues} q, {rule}")), value));
            }
        }
    };
    add("CPU s per million", &|case| Some(case.cpu_s_per_million));
    add("messages/s", &|case| Some(case.rate));
    add("bytes to disk per message", &|case| case.written);
    add("gain in %", &|case| gain(cases, case));
    // However many queues there are, they are no slower than one.
    if let Some(most) = cases.iter().map(|case| case.queues).max().filter(|it| *it > 1) {
        for rule in RULES {
            let rate = |queues| {
                let it = cases.iter().find(|it| it.queues == queues && it.rule == rule);
                it.map(|it| it.rate)
            };
            if let (Some(many), Some(one)) = (rate(most), rate(1)) {
                let name = format!("messages/s, {most} q, of 1 q, {rule}");
                figures.push((name.into(), many / one));
            }
        }
    }
    for rule in RULES {
        let gains: Vec<f64> = cases
            .iter()
            .filter(|case| case.rule == rule && case.queues > FEW_QUEUES)
            .filter_map(|case| gain(cases, case))
            .collect();
        if !gains.is_empty() {
            let mean = gains.iter().sum::<f64>() / gains.len() as f64;
            figures.push((format!("gain in %, mean above {FEW_QUEUES} q, {rule}").into(), mean));
        }
    }
    figures
}

/// By how much a rule's send rate is above that of the usual one, in percent.
fn gain(cases: &[Case], case: &Case) -> Option<f64> {
    let usual = cases.iter().find(|it| it.queues == case.queues && it.rule == RULES[0])?;
    (case.rule != RULES[0]).then(|| (case.rate - usual.rate) / usual.rate * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_are_of_the_same_number_of_queues() {
        let case =
            |queues, rule, rate| Case { queues, rule, rate, cpu_s_per_million: 1.0, written: None };
        let cases = [
            case(1, "enqueue", 100.0),
            case(1, "first", 308.0),
            case(5, "enqueue", 200.0),
            case(5, "first", 300.0),
            case(30, "enqueue", 100.0),
            case(30, "first", 140.0),
        ];
        let all = figures(&cases);
        let of = |name: &str| all.iter().find(|(it, _)| it == name).map(|(_, value)| *value);
        assert_eq!(of("gain in %, 1 q, first"), Some(208.0));
        assert_eq!(of("gain in %, mean above 3 q, first"), Some(45.0));
        assert_eq!(of("gain in %, 1 q, enqueue"), None);
        assert_eq!(of("messages/s, 30 q, of 1 q, enqueue"), Some(1.0));
        assert_eq!(of("messages/s, 30 q, of 1 q, ack"), None);
        assert_eq!(of("bytes to disk per message, 1 q, first"), None);
    }
}
