//! Writes what arrived as the lines of a script.

use std::collections::{BTreeMap, BTreeSet};

use crate::peer::Event;
use crate::run::confirm_tags;
use crate::script::Block;
use crate::text::Vars;
use crate::value::Value;

/// Lines of a script to be replaced.
#[derive(Debug)]
pub struct Edit {
    removed: Vec<usize>,
    after: usize,
    lines: Vec<String>,
}

impl Edit {
    /// The expected lines of `block` become `lines` for the first of `dialects`; what other
    /// dialects expect stays.
    pub fn new(block: &Block, dialects: &[String], lines: Vec<String>) -> Self {
        let dialect = dialects.first().map_or("3.10", String::as_str);
        let others: Vec<usize> = block
            .expects
            .iter()
            .filter(|e| !e.dialects.is_empty() && !e.dialects.iter().any(|d| d == dialect))
            .map(|e| e.line)
            .collect();
        let removed: Vec<usize> = block
            .expects
            .iter()
            .filter(|e| {
                e.dialects.iter().any(|d| d == dialect)
                    || e.dialects.is_empty() && dialect == "3.10"
            })
            .map(|e| e.line)
            .collect();
        let is_marked = dialect != "3.10" || !others.is_empty();
        let lines = if !is_marked {
            lines
        } else if lines.is_empty() {
            vec![format!("{dialect}< nothing")]
        } else {
            lines.into_iter().map(|line| format!("{dialect}{line}")).collect()
        };
        let last = block.expects.iter().map(|e| e.line).max().unwrap_or(block.line);
        // Ours go first, so that a note on another broker follows the truth.
        let after = if dialect == "3.10" { block.line } else { last };
        Self { removed, after, lines }
    }
}

/// The text with all edits done.
pub fn apply(lines: &[String], edits: Vec<Edit>) -> String {
    let mut removed = BTreeSet::new();
    let mut added: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for edit in edits {
        removed.extend(edit.removed);
        added.entry(edit.after).or_default().extend(edit.lines);
    }
    let mut out = String::new();
    for (at, line) in lines.iter().enumerate() {
        if !removed.contains(&at) {
            out.push_str(line);
            out.push('\n');
        }
        for line in added.get(&at).into_iter().flatten() {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// How a script names a connection and a channel.
pub fn target(first: &str, name: &str, channel: u16, event: &Event) -> String {
    let default = match event {
        Event::Method(m) if m.method.name.starts_with("connection.") => 0,
        Event::Method(_) => 1,
        _ => 0,
    };
    let mut out = if name == first { String::new() } else { name.to_owned() };
    if channel != default {
        out.push_str(&channel.to_string());
    }
    out
}

/// The words for one event.
pub fn line(event: &Event, vars: &Vars) -> String {
    let rename = |text: &[u8]| {
        vars.iter()
            .find(|(_, value)| matches!(value, Value::Str(s) if s == text && !s.is_empty()))
            .map(|(name, _)| name.clone())
    };
    match event {
        Event::Method(message) => message.render(&rename),
        Event::Greeting(bytes) => {
            let numbers: Vec<String> = bytes.iter().skip(4).map(u8::to_string).collect();
            format!("protocol-header {}", numbers.join(" "))
        }
        Event::Heartbeat => "heartbeat".to_owned(),
        Event::End => "eof".to_owned(),
        Event::Violation(why) => format!("violation {why:?}"),
    }
}

/// The lines for what arrived. Names made up by the broker become variables.
pub(crate) fn lines(
    first: &str,
    events: &[(String, u16, Event)],
    vars: &mut Vars,
    confirmed: &mut BTreeMap<(String, u16), BTreeSet<u64>>,
) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = events;
    while let Some((name, channel, event)) = rest.first() {
        let known = confirmed.entry((name.clone(), *channel)).or_default();
        let run = rest
            .iter()
            .take_while(|(n, c, e)| {
                n == name && c == channel && confirm_tags(e, &BTreeSet::new(), 0).is_some()
            })
            .count();
        let shown = target(first, name, *channel, event);
        if run > 0 {
            let (mut acks, mut nacks) = (BTreeSet::new(), BTreeSet::new());
            for (_, _, event) in &rest[..run] {
                if let Some((is_ack, tags)) = confirm_tags(event, known, 0) {
                    known.extend(&tags);
                    if is_ack { &mut acks } else { &mut nacks }.extend(tags);
                }
            }
            let mut line = format!("<{shown} confirms");
            if !acks.is_empty() {
                line.push_str(&format!(" {}", ranges(&acks)));
            }
            if !nacks.is_empty() {
                line.push_str(&format!(" nack {}", ranges(&nacks)));
            }
            out.push(line);
            rest = &rest[run..];
            continue;
        }
        if let Event::Method(message) = event {
            name_generated(message, vars);
        }
        out.push(format!("<{shown} {}", line(event, vars)));
        rest = &rest[1..];
    }
    out
}

fn name_generated(message: &crate::wire::Message, vars: &mut Vars) {
    for (field, prefix, kind) in
        [("queue", "amq.gen-", "queue"), ("consumer-tag", "amq.ctag-", "tag")]
    {
        let Some(text) = message.text(field) else { continue };
        let is_new = !vars.values().any(|v| matches!(v, Value::Str(s) if s == text));
        if text.starts_with(prefix.as_bytes()) && is_new {
            let free = |n: &u32| !vars.contains_key(&format!("{kind}{n}"));
            let n = (1..).find(free).unwrap_or(0);
            vars.insert(format!("{kind}{n}"), Value::Str(text.to_vec()));
        }
    }
    if let Some(content) = &message.content {
        for (name, value) in &content.properties {
            if let Value::Str(text) = value
                && *name == "reply-to"
                && text.starts_with(b"amq.rabbitmq.reply-to.")
                && !vars.values().any(|v| v == value)
            {
                let free = |n: &u32| !vars.contains_key(&format!("reply{n}"));
                let n = (1..).find(free).unwrap_or(0);
                vars.insert(format!("reply{n}"), value.clone());
            }
        }
    }
}

fn ranges(tags: &BTreeSet<u64>) -> String {
    let mut out: Vec<(u64, u64)> = Vec::new();
    for tag in tags {
        match out.last_mut() {
            Some((_, last)) if *last + 1 == *tag => *last = *tag,
            _ => out.push((*tag, *tag)),
        }
    }
    let words: Vec<String> =
        out.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}..{b}") }).collect();
    words.join(",")
}
