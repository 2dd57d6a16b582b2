//! The node itself: is it there, its end, its watermarks, its options.

use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::{Value, json};

use super::{Command, Tools, answers, checks, flag, ignored, many, maybe, one, value};
use crate::call::{Answer, Call};
use crate::fault::{Code, Fault};

/// Waits until the node answers.
fn wait_until_it_runs(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let deadline = Instant::now() + it.timeout();
    loop {
        match it.get("/api/version") {
            Ok(told) if checks::is_booted(&told) => return Ok(Answer::Done),
            Ok(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
            Ok(_) => return Err(Fault::new(Code::TempFail, leveret_config::FILLING)),
            Err(fault) if !matches!(fault.code, Code::Unavailable | Code::NotReady) => {
                return Err(fault);
            }
            Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(50)),
            Err(fault) => return Err(Fault::new(Code::TempFail, fault.text)),
        }
    }
}

/// Stops the node, and waits until its process is gone.
fn stop(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let process = match it.connect() {
        Err(fault) if fault.code == Code::Unavailable && it.flag("idempotent") => {
            return Ok(Answer::Message("The node is no longer running".to_owned()));
        }
        connected => connected?,
    };
    // Opened first: afterwards its number may be another process's.
    let process = process.and_then(|pid: Pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    it.post("/api/leveret/stop", &Value::Null)?;
    let Some(process) = process else { return Ok(Answer::Done) };
    let timeout = it.timeout();
    let limit = rustix::event::Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: 0,
    };
    let limit = (!timeout.is_zero()).then_some(&limit);
    let mut waits = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
    match rustix::event::poll(&mut waits, limit) {
        Ok(0) => Err(Fault::new(Code::TempFail, "the node is stopping, but has not stopped yet")),
        Ok(_) => Ok(Answer::Done),
        Err(error) => Err(Fault::software(format!("cannot wait for the node to stop: {error}"))),
    }
}

/// A threshold as the API takes it, and what is said of it.
type Threshold = (Value, &'static str);

/// `0.4`, or `absolute` and a number of bytes with or without a unit.
fn memory(words: &[&str]) -> Result<Threshold, Fault> {
    match words {
        ["absolute", bytes] => Ok((json!({"absolute": bytes_of(bytes)?}), " bytes")),
        [fraction] => match fraction.parse::<f64>() {
            Ok(fraction) if (0.0..=1.0).contains(&fraction) => {
                Ok((json!({"relative": fraction}), ""))
            }
            _ => Err(Fault::data("The threshold should be a fraction between 0.0 and 1.0")),
        },
        _ => Err(Fault::usage("expected <fraction> or absolute <bytes>")),
    }
}

/// A number of bytes with or without a unit, or `mem_relative` and a part of the memory.
fn disk(words: &[&str]) -> Result<Threshold, Fault> {
    match words {
        ["mem_relative", part] => match part.parse::<f64>() {
            Ok(part) if (0.0..=1000.0).contains(&part) => {
                Ok((json!({"relative": part}), " times the total RAM"))
            }
            _ => Err(Fault::data("The fraction should be a number, 0.0 or more")),
        },
        [bytes] => Ok((json!({"absolute": bytes_of(bytes)?}), " bytes")),
        _ => Err(Fault::usage("expected <bytes> or mem_relative <fraction>")),
    }
}

/// Sets the watermark of the path to what the words say.
fn set_watermark(
    it: &mut Call<'_>,
    read: fn(&[&str]) -> Result<Threshold, Fault>,
    path: &str,
    what: &str,
) -> Result<Answer, Fault> {
    let words: Vec<&str> = it.words("threshold").iter().map(String::as_str).collect();
    let (limit, unit) = read(&words)?;
    let last = words.last().copied().unwrap_or_default();
    let banner = format!("Setting {what} on {} to {last}{unit} ...", it.node());
    it.say_this(&banner)?;
    it.put(path, &limit)?;
    Ok(Answer::Done)
}

/// RabbitMQ's units: `kB` is 1000, `KiB` is 1024.
fn bytes_of(text: &str) -> Result<u64, Fault> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = text.get(digits.len()..).unwrap_or_default().to_ascii_lowercase();
    let (letter, base) = match unit.trim_end_matches('b').strip_suffix('i') {
        Some(letter) => (letter, 1024_u64),
        None => (unit.trim_end_matches('b'), 1000),
    };
    let power = ["", "k", "m", "g", "t", "p"].iter().position(|it| *it == letter);
    let bytes = power.and_then(|power| {
        digits.parse::<u64>().ok()?.checked_mul(base.checked_pow(u32::try_from(power).ok()?)?)
    });
    bytes.ok_or_else(|| Fault::data("Invalid units."))
}

/// Which alarm an expression sets or clears: test suites do.
fn alarm(plain: &str) -> Option<(&'static str, bool)> {
    let (rest, is_on) = match plain.strip_prefix("rabbit_alarm:set_alarm({{resource_limit,") {
        Some(rest) => (rest.strip_suffix(",node()},[]})")?, true),
        None => {
            let rest = plain.strip_prefix("rabbit_alarm:clear_alarm({resource_limit,")?;
            (rest.strip_suffix(",node()})")?, false)
        }
    };
    ["memory", "disk"].into_iter().find(|known| *known == rest).map(|resource| (resource, is_on))
}

/// The few expressions that tools evaluate, and what they are here.
fn eval(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let expression = it.words("expression").join(" ");
    let plain: String = expression.chars().filter(|c| !c.is_whitespace()).collect();
    let plain = plain.trim_end_matches('.');
    if let Some((resource, is_on)) = alarm(plain) {
        let path = format!("/api/leveret/watermarks/{resource}");
        match (is_on, resource) {
            (false, _) => it.delete(&path)?,
            // Whatever is used is too much, whatever is free too little.
            (true, "memory") => it.put(&path, &json!({"absolute": 0}))?,
            (true, _) => it.put(&path, &json!({"absolute": u64::MAX}))?,
        };
        return Ok(Answer::Value(json!("ok")));
    }
    match plain {
        "rabbit_nodes:reached_target_cluster_size()" => {
            it.get("/api/health/checks/reached-target-cluster-size")?;
            Ok(Answer::Value(json!(true)))
        }
        "rabbit:is_running()" => {
            it.get("/api/version")?;
            Ok(Answer::Value(json!(true)))
        }
        "node()" => {
            it.learn_node()?;
            Ok(Answer::Value(json!(it.node())))
        }
        _ => Err(Fault::unavailable(
            "the node is not written in Erlang and evaluates none; of what tools ask by it there are \
             'rabbit_nodes:reached_target_cluster_size().', 'rabbit:is_running().', 'node().', and setting \
             and clearing the alarms of memory and disk",
        )),
    }
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new("ping", Tools::CTL_AND_DIAGNOSTICS, "Check that the node answers", |it| {
        it.get("/api/version")?;
        Ok(Answer::Message("Ping succeeded".to_owned()))
    })
    .says("Will ping {node}. Timeout: {timeout} s."),
    Command::new("await_startup", Tools::CTL, "Wait until the node is ready", wait_until_it_runs),
    Command::new(
        "wait",
        Tools::CTL_AND_DIAGNOSTICS,
        "Wait until the node is ready",
        wait_until_it_runs,
    )
    .takes(&[
        maybe("pidfile", "Accepted for rabbitmqctl's sake"),
        value("pid", "", "Accepted for rabbitmqctl's sake").short('P'),
    ]),
    Command::new("stop", Tools::CTL, "Stop the node", stop)
        .takes(&[
            flag("idempotent", "Succeed if the node is not running"),
            maybe("pidfile", "Accepted for rabbitmqctl's sake"),
        ])
        .says("Stopping and halting node {node} ..."),
    Command::new("shutdown", Tools::CTL, "Stop the node", stop)
        .takes(&[
            ignored("wait"),
            ignored("no-wait"),
            flag("idempotent", "Succeed if it is not running"),
        ])
        .says("Shutting down node {node} ..."),
    Command::new(
        "version",
        Tools::EVERY,
        "Show the version of RabbitMQ that the tools stand for, which needs no node",
        |it| Ok(Answer::Value(json!(it.rabbitmq_version))),
    ),
    Command::new(
        "server_version",
        Tools::DIAGNOSTICS,
        "Show the version of RabbitMQ that the node stands for",
        |it| Ok(Answer::Value(it.get("/api/version")?["rabbitmq_version"].clone())),
    )
    .says("Asking node {node} for its RabbitMQ version..."),
    Command::new("product_info", Tools::DIAGNOSTICS, "Show the node's name and version", |it| {
        let version = it.get("/api/version")?;
        let text = format!(
            "{} {}",
            version["product_name"].as_str().unwrap_or_default(),
            version["product_version"].as_str().unwrap_or_default()
        );
        Ok(Answer::Document(version, format!("{text}\n")))
    })
    .says("Asking node {node} for its product info..."),
    Command::new(
        "environment",
        Tools::CTL_AND_DIAGNOSTICS,
        "Show every option with its value",
        |it| {
            let options = it.get("/api/config/effective")?;
            let lines = options.as_object().into_iter().flatten();
            let text =
                lines.map(|(key, value)| format!("{key} = {}\n", crate::format::cell(value)));
            let text = text.collect();
            Ok(Answer::Document(options, text))
        },
    )
    .says("Application environment of node {node} ..."),
    Command::new(
        "reload_certificates",
        Tools::CTL,
        "Read certificates and keys of TLS again",
        |it| {
            it.post("/api/leveret/certificates/reload", &Value::Null)?;
            Ok(Answer::Done)
        },
    )
    .says("Reading certificates again ..."),
    Command::new(
        "set_vm_memory_high_watermark",
        Tools::CTL,
        "Set the memory use at which publishers are blocked, until the next start",
        |it| set_watermark(it, memory, "/api/leveret/watermarks/memory", "memory threshold"),
    )
    .takes(&[many("threshold", "A part of the machine's memory, or: absolute BYTES")]),
    Command::new(
        "set_disk_free_limit",
        Tools::CTL,
        "Set the free disk space under which publishers are blocked, until the next start",
        |it| set_watermark(it, disk, "/api/leveret/watermarks/disk", "disk free limit"),
    )
    .takes(&[many(
        "threshold",
        "Bytes, with or without a unit, or: mem_relative FRACTION of the machine's memory",
    )]),
    Command::new("suspend_listeners", Tools::CTL, "Take no more connections of clients", |it| {
        it.post("/api/leveret/listeners/suspend", &Value::Null)?;
        Ok(Answer::Done)
    })
    .says(
        "Will suspend client connection listeners on node {node}. The node will no longer accept \
         client connections!",
    ),
    Command::new("resume_listeners", Tools::CTL, "Take connections of clients again", |it| {
        it.post("/api/leveret/listeners/resume", &Value::Null)?;
        Ok(Answer::Done)
    })
    .says(
        "Will resume client connection listeners on node {node}. The node will now accept client \
         connections",
    ),
    Command::new(
        "enable_feature_flag",
        Tools::CTL,
        "Accepted for every flag that RabbitMQ has",
        |it| {
            if it.word("flag") == "all" {
                it.say_this("Enabling all feature flags ...")?;
            }
            let done = it.put("/api/feature-flags/{flag}/enable", &Value::Null);
            if done.as_ref().is_err_and(|fault| fault.code == Code::Data) {
                it.learn_node()?;
                let why = "This feature flag is not supported by node {node}";
                return Err(Fault::usage(it.fill(why)));
            }
            done.map(|_| Answer::Done)
        },
    )
    .takes(&[
        ignored("experimental").short('e'),
        ignored("opt-in").short('o'),
        one("flag", "A flag, or all"),
    ])
    .says("Enabling feature flag \"{flag}\" ..."),
    Command::new("eval", Tools::CTL, "The few expressions that tools evaluate", eval)
        .takes(&[many("expression", "An expression of Erlang")]),
    Command::new("force_gc", Tools::CTL, "Accepted: there is no garbage to collect", answers),
    Command::new(
        "reset_stats_db",
        Tools::CTL,
        "Accepted: rates are of the last minutes, and go by themselves",
        |it| {
            it.delete("/api/reset")?;
            Ok(Answer::Done)
        },
    )
    .takes(&[ignored("all")])
    .says("Resetting statistics database in node {node}"),
    Command::new(
        "autocomplete",
        Tools::EVERY,
        "List commands that begin so; completions of shells come with the packages",
        |it| {
            let begun = it.word("begun").to_owned();
            let names =
                super::all().map(|entry| entry.name).filter(|name| name.starts_with(&begun));
            let names: std::collections::BTreeSet<_> = names.collect();
            let lines = names.iter().map(|name| format!("{name}\n")).collect();
            Ok(Answer::Document(json!(names), lines))
        },
    )
    .takes(&[maybe("begun", "How they begin")]),
    Command::new("resolve_hostname", Tools::DIAGNOSTICS, "Look a name up, on this machine", |it| {
        use std::net::ToSocketAddrs as _;
        let found = (it.word("hostname"), 0_u16)
            .to_socket_addrs()
            .map_err(|error| Fault::new(Code::NoHost, format!("cannot resolve it: {error}")))?;
        let wants_v6 = it.word("address-family").eq_ignore_ascii_case("ipv6");
        let mut found: Vec<_> =
            found.map(|it| it.ip()).filter(|it| it.is_ipv6() == wants_v6).collect();
        found.dedup();
        if found.is_empty() {
            return Err(Fault::new(Code::NoHost, "it has no address of that family"));
        }
        let lines: Vec<_> = found.iter().map(ToString::to_string).collect();
        Ok(Answer::Document(json!({"addresses": lines}), lines.join("\n") + "\n"))
    })
    .takes(&[
        value("address-family", "IPv4", "IPv4 or IPv6"),
        ignored("offline"),
        one("hostname", "The name"),
    ])
    .says("Resolving {hostname} to {address-family} addresses..."),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn watermarks() {
        check(memory, "0.4",                 Some(json!({"relative": 0.4})));
        check(memory, "1.1",                 None);
        check(memory, "half",                None);
        check(memory, "absolute 1GB",        Some(json!({"absolute": 1_000_000_000_u64})));
        check(memory, "absolute 1GiB",       Some(json!({"absolute": 1_u64 << 30})));
        check(memory, "absolute 4096",       Some(json!({"absolute": 4096})));
        check(memory, "absolute 1XB",        None);
        check(memory, "absolute 99999999PB", None);
        check(memory, "absolute",            None);
        check(disk,   "50MB",                Some(json!({"absolute": 50_000_000})));
        check(disk,   "1024",                Some(json!({"absolute": 1024})));
        check(disk,   "mem_relative 1.5",    Some(json!({"relative": 1.5})));
        check(disk,   "mem_relative -1",     None);
        check(disk,   "lots",                None);
        check(disk,   "absolute 5",          None);
    }

    #[track_caller]
    fn check(read: fn(&[&str]) -> Result<Threshold, Fault>, words: &str, want: Option<Value>) {
        let got = read(&words.split(' ').collect::<Vec<_>>());
        assert_eq!(got.ok().map(|(limit, _)| limit), want, "{words}");
    }
}
