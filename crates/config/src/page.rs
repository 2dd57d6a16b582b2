//! The pages made from the declarations: `docs/configuration.md` and the manual's section.

use std::fmt::Write as _;

use crate::known::{self, Fate};
use crate::load::Config;
use crate::option::Spec;

/// The text of `docs/configuration.md`.
pub fn markdown() -> String {
    let mut page = String::from(HEAD);
    for (title, specs) in Config::sections() {
        let _ = writeln!(page, "\n## {title}");
        for spec in specs {
            markdown_option(&mut page, &spec);
        }
    }
    page.push_str("\n## Keys of RabbitMQ that are not options\n");
    for (fate, about) in [
        (
            Fate::Accepted,
            "Accepted: they have no meaning here. The broker lists them when it starts.",
        ),
        (
            Fate::Refused,
            "Refused, unless the value is `none` or `false`: to ignore them would be unsafe.",
        ),
        (
            Fate::AlwaysOn,
            "Of what is always there: the broker warns about each that says `false` when it starts.",
        ),
        (Fate::Later, "Not there yet: the broker warns about each when it starts."),
    ] {
        let _ = writeln!(page, "\n{about}\n\n| Keys beginning with | Why |\n|---|---|");
        for (reason, starts) in reasons(fate) {
            let starts: Vec<_> = starts.iter().map(|it| format!("`{it}`")).collect();
            let _ = writeln!(page, "| {} | {reason} |", starts.join(", "));
        }
    }
    page
}

const HEAD: &str = "\
<!-- Made by `cargo xtask codegen` from crates/config/src/options.rs. -->
# Configuration

The broker starts without any configuration. Options are set in a file, in the environment or
by flags. A later place of this list takes precedence over an earlier one:

1. the defaults below;
2. the file of `--config`, else of `LEVERET_CONFIG_FILE`, `RABBITMQ_CONFIG_FILE` or
   `RABBITMQ_CONFIG_FILES` (a directory or a pattern), else `/etc/leveret/leveret.conf` if it exists;
3. RabbitMQ's environment variables, then ours: `LEVERET_` and the key in capitals with `_` for
   each dot;
4. flags: the key with `-` for each dot and underscore, or `--set key=value` for any key.

A file has the form of `rabbitmq.conf`:

```ini
# a comment
heartbeat = 30
default_pass = 'a # in quotes is no comment'
listeners.tcp.local = 127.0.0.1:5672
default_vhost = $(VHOST)          # a key set elsewhere, or an environment variable
include conf.d/*.conf
```

The last setting of a key holds. If files set a key more than once, the log names the line that holds and the
others. A key that neither Leveret nor RabbitMQ knows, or a value that cannot be read, keeps the broker from
starting. The errors name all such places at once (at most a hundred), with file and line.

Values: BYTES such as `131072`, `512MiB` (1024) or `2GB` (1000); MILLISECONDS and SECONDS also as `250ms`,
`30s`, `5m`, `1h30m`; FRACTION such as `0.6` or `60%`.
";

fn markdown_option(page: &mut String, spec: &Spec) {
    let _ = writeln!(page, "\n### `{}`\n", spec.keys.join("`, `"));
    let _ = writeln!(page, "{}\n", wrap(&spec.doc, 100));
    let _ = write!(page, "- Value: {}", spec.form.replace('|', " or "));
    if let Some(range) = &spec.range {
        let _ = write!(page, "; {range}");
    }
    let _ = writeln!(page, "\n- Default: `{}`", spec.default);
    if !spec.aliases.is_empty() {
        let _ = writeln!(page, "- Also written: `{}`", spec.aliases.join("`, `"));
    }
    let names = |names: Vec<(String, &str)>, dashes: &str| {
        let names = names.into_iter().map(|(name, key)| match spec.keys.contains(&key) {
            true => format!("`{dashes}{name}`"),
            false => format!("`{dashes}{name}` (sets `{key}`)"),
        });
        names.collect::<Vec<_>>().join(", ")
    };
    let (env, flags) = (names(spec.env_names(), ""), names(spec.flag_names(), "--"));
    if !env.is_empty() {
        let _ = writeln!(page, "- Environment: {env}");
    }
    if !flags.is_empty() {
        let _ = writeln!(page, "- Flag: {flags}");
    }
}

/// The options as a section of a manual page, in roff.
pub fn man_section() -> String {
    let mut page = String::new();
    for (title, specs) in Config::sections() {
        let _ = writeln!(page, ".SS {title}");
        for spec in specs {
            let _ = writeln!(
                page,
                ".TP\n\\fB{}\\fR = {}",
                roff(&spec.keys.join(", ")),
                roff(spec.form)
            );
            let _ = writeln!(page, "{}", roff(&spec.doc).replace("\n\n", "\n.IP\n"));
            let _ = writeln!(page, "Default: {}.", roff(&spec.default));
        }
    }
    page
}

/// Escapes what roff takes for its own.
fn roff(text: &str) -> String {
    text.replace('\\', "\\\\").replace('-', "\\-").replace('`', "").replace("\n.", "\n\\&.")
}

/// The reasons of one fate, each with the distinct beginnings of its keys.
fn reasons(fate: Fate) -> Vec<(&'static str, Vec<String>)> {
    let mut reasons: Vec<(&'static str, Vec<String>)> = Vec::new();
    for known in known::table().into_iter().filter(|known| known.fate == fate) {
        let words: Vec<_> = known.pattern.split('.').collect();
        let start = match words.as_slice() {
            [only] => (*only).to_owned(),
            ["log" | "management" | "cluster_formation", second, ..] => {
                format!("{}.{second}", words[0])
            }
            [first, ..] => format!("{first}."),
            [] => continue,
        };
        let of_reason = match reasons.iter_mut().find(|(reason, _)| *reason == known.reason) {
            Some((_, starts)) => starts,
            None => {
                reasons.push((known.reason, Vec::new()));
                &mut reasons.last_mut().expect("was just pushed").1
            }
        };
        if !of_reason.contains(&start) {
            of_reason.push(start);
        }
    }
    reasons
}

/// Breaks paragraphs into lines of at most `width` letters.
fn wrap(text: &str, width: usize) -> String {
    let paragraphs = text.split("\n\n").map(|paragraph| {
        let mut lines = vec![String::new()];
        for word in paragraph.split_whitespace() {
            let line = lines.last_mut().expect("starts with one line");
            if !line.is_empty() && line.len() + 1 + word.len() > width {
                lines.push(word.to_owned());
            } else {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
        }
        lines.join("\n")
    });
    paragraphs.collect::<Vec<_>>().join("\n\n")
}
