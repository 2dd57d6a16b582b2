//! The examples of the manual, as they stand there: every page against a node of its own.

use std::process::Command;

use anyhow::Context as _;

use super::forward::Forward;
use super::python;
use super::tools::{Counts, SuitePlace};
use crate::node::{self, Node};

/// Pages whose examples are run, each from its first to its last.
const PAGES: [&str; 11] = [
    "start",
    "queues",
    "exchanges",
    "ttl",
    "dead-lettering",
    "priorities",
    "consumers",
    "transactions",
    "flow",
    "events",
    "load-testing",
];

/// Blocks marked `sh` and `python`. What is not to be run is not marked.
pub(super) fn examples(place: &SuitePlace) -> anyhow::Result<Counts> {
    let python = python::clients(place)?;
    let programs = node::program();
    let programs = std::path::Path::new(programs.get_program()).parent();
    let programs = programs.context("the program is in a directory")?.display().to_string();
    let path = format!("{programs}:{}", std::env::var("PATH").unwrap_or_default());
    let mut counts = Counts::default();
    for page in PAGES {
        let text = std::fs::read_to_string(place.root.join(format!("docs/{page}.md")))?;
        let node = Node::start(&[])?;
        let _amqp = Forward::to(node.address.port())?;
        let _http = Forward::http_to(node.http.port())?;
        for (line, kind, code) in blocks(&text) {
            let mut command = match kind {
                "sh" => Command::new("sh"),
                "python" => Command::new(&python),
                _ => continue,
            };
            if kind == "sh" {
                command.arg("-eu");
            }
            let file = place.dir.join(format!("{page}-{line}.{kind}"));
            std::fs::write(&file, code)?;
            command.arg(&file);
            command.env("PATH", &path).env("LEVERET_DATA_DIR", node.data_dir());
            let name = format!("{page}.md:{line}");
            let (output, is_good) = place.run(&format!("{page}-{line}"), 1, &mut command)?;
            if !is_good {
                println!("  {name}: {}", output.trim());
            }
            counts.add(&name, is_good);
        }
    }
    Ok(counts)
}

/// The fenced blocks of a page: line, what they are marked as, text.
fn blocks(text: &str) -> Vec<(usize, &str, String)> {
    let mut found = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let Some(kind) = line.strip_prefix("```") else { continue };
        let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
        found.push((at + 1, kind, inside.map(|line| format!("{line}\n")).collect()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found() {
        let text = "a\n```sh\nls\ncd\n```\nb\n```\nx\n```\n";
        assert_eq!(blocks(text), [(2, "sh", "ls\ncd\n".to_owned()), (7, "", "x\n".to_owned())]);
    }
}
