//! RabbitMQ's classic format of Erlang terms (`rabbitmq.config`, `advanced.config`): not read, but each term is told as the
//! line of `rabbitmq.conf` that says the same.

use crate::error::{ConfigError, FAULTS_MAX, Problem, Provenance, short};
use crate::known;
use crate::ldap::term::{Reader, Term};
use crate::load::Config;

/// What is told first.
pub(crate) const CLASSIC: &str = "this is RabbitMQ's classic format of Erlang terms (rabbitmq.config, \
    advanced.config), which is not read. Write a file in the format of rabbitmq.conf and name that one, with these \
    lines; `leveret serve --help` lists the keys";

/// What the keys of an application begin with.
const APPLICATIONS: [(&str, &str); 9] = [
    ("rabbit", ""),
    ("rabbitmq_management", "management."),
    ("rabbitmq_prometheus", "prometheus."),
    ("rabbitmq_auth_backend_cache", "auth_cache."),
    ("rabbitmq_auth_backend_http", "auth_http."),
    ("rabbitmq_auth_backend_ldap", "auth_ldap."),
    ("rabbitmq_auth_backend_oauth2", "auth_oauth2."),
    ("rabbitmq_mqtt", "mqtt."),
    ("rabbitmq_tracing", "tracing."),
];

/// Keys whose names do not follow from the terms.
const RENAMED: [(&str, &str); 11] = [
    ("tracing.directory", "tracing.dir"),
    ("tcp_listeners", "listeners.tcp"),
    ("ssl_listeners", "listeners.ssl"),
    ("log.categories", "log"),
    ("num_tcp_acceptors", "num_acceptors.tcp"),
    ("num_ssl_acceptors", "num_acceptors.ssl"),
    ("management.listener.port", "management.tcp.port"),
    ("management.listener.ip", "management.tcp.ip"),
    ("management.load_definitions", "load_definitions"),
    ("prometheus.tcp_config.port", "prometheus.tcp.port"),
    ("prometheus.tcp_config.ip", "prometheus.tcp.ip"),
];

/// Whether the first thing in the text, after comments, is a list of Erlang terms.
pub(crate) fn is_classic(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim_start);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('%'));
    first.is_some_and(|line| line.starts_with('['))
}

/// One fault for the file, and one for each of its terms.
pub(crate) fn faults(name: &str, text: &str) -> Vec<ConfigError> {
    let fault = |line: u32, what: String| ConfigError {
        at: Provenance::File { name: name.to_owned(), line },
        problem: Problem::Syntax(what),
    };
    let mut all = vec![fault(1, CLASSIC.to_owned())];
    all.extend(terms(text).into_iter().map(|(line, what)| fault(line, what)));
    all
}

/// What is to be written for each term, or that nothing can be, with its line; for very many the first.
pub(crate) fn terms(text: &str) -> Vec<(u32, String)> {
    let mut reader = Reader { rest: text.trim_start_matches('\u{feff}') };
    let mut told = Vec::new();
    let line_of = |rest: &str| {
        let before = &text[..text.len() - rest.len()];
        u32::try_from(before.matches('\n').count()).unwrap_or(u32::MAX).saturating_add(1)
    };
    let mut tell = |rest, what: String| {
        told.push((line_of(rest), short(&what).into_owned()));
        if told.len() < FAULTS_MAX { Ok(()) } else { Err("there are very many terms".to_owned()) }
    };
    if let Err(why) = applications(&mut reader, &mut tell) {
        let what = format!(
            "what follows is not {}: {why}",
            if told.len() < FAULTS_MAX { "understood" } else { "told" }
        );
        told.push((line_of(reader.rest), what));
    }
    told
}

fn applications<'a>(
    reader: &mut Reader<'a>,
    tell: &mut dyn FnMut(&'a str, String) -> Result<(), String>,
) -> Result<(), String> {
    each(reader, &mut |reader| {
        expect(reader, "{")?;
        let application = reader.term(0)?;
        expect(reader, ",")?;
        each(reader, &mut |reader| {
            reader.skip();
            let at = reader.rest;
            let term = reader.term(0)?;
            for what in told(application.word().unwrap_or_default(), &term) {
                tell(at, what)?;
            }
            Ok(())
        })?;
        expect(reader, "}")
    })
}

/// Reads a list by what reads each of its entries.
fn each<'a>(
    reader: &mut Reader<'a>,
    entry: &mut dyn FnMut(&mut Reader<'a>) -> Result<(), String>,
) -> Result<(), String> {
    expect(reader, "[")?;
    if reader.take("]") {
        return Ok(());
    }
    loop {
        entry(reader)?;
        if reader.take("]") {
            return Ok(());
        }
        expect(reader, ",")?;
    }
}

fn expect(reader: &mut Reader<'_>, mark: &str) -> Result<(), String> {
    if reader.take(mark) { Ok(()) } else { Err(format!("expected {mark}")) }
}

/// The lines that say what a term of an application says.
fn told(application: &str, term: &Term) -> Vec<String> {
    let prefix = APPLICATIONS.iter().find(|(name, _)| *name == application);
    let mut lines = Vec::new();
    if let (Some((_, prefix)), Term::Tuple(pair)) = (prefix, term)
        && let [name, value] = &**pair
        && let Some(name) = name.word()
    {
        flatten(&format!("{prefix}{name}"), value, &mut lines);
    }
    if lines.is_empty() {
        let name = match term {
            Term::Tuple(parts) => parts.first().and_then(Term::word),
            other => other.word(),
        };
        let name = name.unwrap_or("...");
        lines.push((format!("{{{application}, {name}}}"), None));
    }
    let told = |(key, value): (String, Option<String>)| match value {
        Some(value) if is_known(&key) => format!("write `{key} = {value}`"),
        _ => format!("{key}: there is no key of rabbitmq.conf for it here"),
    };
    // Whether a key is known is looked up in a table that is made for it.
    lines.into_iter().take(FAULTS_MAX).map(told).collect()
}

/// Keys and values of a term and those in it.
fn flatten(key: &str, value: &Term, lines: &mut Vec<(String, Option<String>)>) {
    let key = RENAMED.iter().find(|(from, _)| *from == key).map_or(key, |(_, to)| to);
    let mut put = |key: String, value: &str| {
        let is_secret = key.ends_with("pass") || key.ends_with("password");
        let value = if is_secret { "(hidden)" } else { value };
        lines.push((key, Some(value.to_owned())));
    };
    match (key, value) {
        ("vm_memory_high_watermark" | "disk_free_limit", Term::Tuple(pair)) => match &**pair {
            [kind, Term::Number(value) | Term::Text(value)] => {
                let kind = if kind.word() == Some("absolute") { "absolute" } else { "relative" };
                put(format!("{key}.{kind}"), value);
            }
            _ => lines.push((key.to_owned(), None)),
        },
        ("vm_memory_high_watermark", Term::Number(part)) => put(format!("{key}.relative"), part),
        ("disk_free_limit", Term::Number(bytes) | Term::Text(bytes)) => {
            put(format!("{key}.absolute"), bytes);
        }
        ("loopback_users" | "listeners.tcp" | "listeners.ssl", Term::List(none))
            if none.is_empty() =>
        {
            put(key.to_owned(), "none");
        }
        // Up to RabbitMQ 3.6: `[{connection, info}, ...]`.
        ("log_levels", Term::List(levels)) => {
            for level in levels {
                let Term::Tuple(pair) = level else { continue };
                if let [Term::Atom(category), level] = &**pair {
                    flatten(&format!("log.{category}.level"), level, lines);
                }
            }
        }
        ("loopback_users" | "default_user_tags", Term::List(names)) => {
            names.iter().filter_map(Term::word).for_each(|it| put(format!("{key}.{it}"), "true"));
        }
        ("default_permissions", Term::List(three)) if three.len() == 3 => {
            let kinds = ["configure", "write", "read"].iter();
            for (kind, value) in kinds.zip(three) {
                put(format!("{key}.{kind}"), value.word().unwrap_or_default());
            }
        }
        (_, Term::Atom(value) | Term::Number(value) | Term::Text(value)) => {
            put(key.to_owned(), value)
        }
        (_, Term::Tuple(pair)) => match &**pair {
            // `{"127.0.0.1", 5672}`
            [Term::Text(host), Term::Number(port)] => {
                put(key.to_owned(), &format!("{host}:{port}"))
            }
            _ => lines.push((key.to_owned(), None)),
        },
        (_, Term::List(entries)) => {
            for (index, entry) in entries.iter().enumerate() {
                match entry {
                    Term::Tuple(pair) => match &**pair {
                        [Term::Atom(name), value] => {
                            flatten(&format!("{key}.{name}"), value, lines);
                        }
                        _ => flatten(&format!("{key}.{}", index + 1), entry, lines),
                    },
                    _ => flatten(&format!("{key}.{}", index + 1), entry, lines),
                }
            }
        }
    }
}

/// Whether the key is an option, or one that RabbitMQ has and is told about when it is set.
fn is_known(key: &str) -> bool {
    let words: Vec<String> = key.split('.').map(str::to_owned).collect();
    let is = |pattern: &str| known::matches(pattern, &words).is_some();
    let options = Config::sections();
    let mut specs = options.iter().flat_map(|(_, specs)| specs);
    specs.any(|spec| spec.keys.iter().chain(spec.aliases).any(|it| is(it)))
        || known::table().iter().any(|it| is(&it.pattern))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_term_has_its_line() {
        let text = "%% mine\n[\n {rabbit, [\n  {heartbeat, 60}, {tcp_listeners, [5672, {\"::1\", 5673}]},\n  \
            {vm_memory_high_watermark, 0.4},\n  {disk_free_limit, {mem_relative, 1.5}},\n  \
            {default_pass, <<\"s3cret\">>}, {loopback_users, []},\n  {auth_mechanisms, ['PLAIN', 'AMQPLAIN']},\n  \
            {ssl_options, [{certfile, \"/c.pem\"}, {verify, verify_peer}]},\n  {log, [{file, [{level, debug}]}, \
            {categories, [{connection, [{level, warning}]}]}]}, {log_levels, [{channel, error}]},\n  \
            {default_permissions, [<<\".*\">>, <<\"a\">>, <<\"b\">>]},\n  {nonsense, -1}]},\n \
            {rabbitmq_management, [{listener, [{port, 15672}]}]},\n {kernel, [{net_ticktime, 60}]}\n].\n";
        let told: Vec<String> =
            terms(text).into_iter().map(|(line, what)| format!("{line} {what}")).collect();
        assert_eq!(
            told,
            [
                "4 write `heartbeat = 60`",
                "4 write `listeners.tcp.1 = 5672`",
                "4 write `listeners.tcp.2 = ::1:5673`",
                "5 write `vm_memory_high_watermark.relative = 0.4`",
                "6 write `disk_free_limit.relative = 1.5`",
                "7 write `default_pass = (hidden)`",
                "7 write `loopback_users = none`",
                "8 write `auth_mechanisms.1 = PLAIN`",
                "8 write `auth_mechanisms.2 = AMQPLAIN`",
                "9 write `ssl_options.certfile = /c.pem`",
                "9 write `ssl_options.verify = verify_peer`",
                "10 write `log.file.level = debug`",
                "10 write `log.connection.level = warning`",
                "10 write `log.channel.level = error`",
                "11 write `default_permissions.configure = .*`",
                "11 write `default_permissions.write = a`",
                "11 write `default_permissions.read = b`",
                "12 nonsense: there is no key of rabbitmq.conf for it here",
                "13 write `management.tcp.port = 15672`",
                "14 {kernel, net_ticktime}: there is no key of rabbitmq.conf for it here",
            ]
        );
        assert_eq!(
            terms("[{rabbit, [{a, fun() -> 1 end}]}]."),
            [(
                1,
                "what follows is not understood: expected , or } before '() -> 1 end}]}].'"
                    .to_owned()
            )]
        );
        assert_eq!(terms("[]."), []);
    }

    #[test]
    fn of_very_many_terms_the_first_are_told() {
        let entries = "{heartbeat,\n60}, ".repeat(100_000);
        let told = terms(&format!("[{{rabbit, [{entries}]}}]."));
        assert_eq!(told.len(), FAULTS_MAX + 1);
        assert_eq!(told[99], (100, "write `heartbeat = 60`".to_owned()));
        let last = "what follows is not told: there are very many terms";
        assert_eq!(told[100], (101, last.to_owned()));
        let told = terms(&format!("[{{rabbit, [{{a, [{}1]}}]}}].", "1, ".repeat(100_000)));
        assert_eq!(told.len(), FAULTS_MAX + 1);
        let told = terms(&format!("[{{rabbit, [{{heartbeat, {}}}]}}].", "9".repeat(100_000)));
        assert!(told[0].1.len() < 1100);
    }
}
