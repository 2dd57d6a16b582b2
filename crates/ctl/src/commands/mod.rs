//! The table of commands: one entry each, in the file of what it is about.

mod absent;
mod access;
mod checks;
mod cluster;
mod cluster_status;
mod command;
mod connections;
mod definitions;
mod encrypted;
mod figures;
mod limits;
mod lists;
mod live;
mod logs;
mod node;
mod plugins;
mod policies;
mod queues;
mod report;
mod status;
mod streams;
mod tls;
mod vhosts;

use crate::call::{Answer, Call};
use crate::fault::Fault;
pub(crate) use command::{Command, Kind, Tools, Word};
use command::{flag, ignored, ignored_value, many, maybe, one, value};

/// Done, if the node is there.
fn answers(it: &mut Call<'_>) -> Result<Answer, Fault> {
    it.get("/api/version")?;
    Ok(Answer::Done)
}

/// Every command there is.
pub(crate) fn all() -> impl Iterator<Item = &'static Command> {
    let tables: [&'static [Command]; 21] = [
        node::COMMANDS,
        status::COMMANDS,
        cluster_status::COMMANDS,
        lists::COMMANDS,
        access::COMMANDS,
        vhosts::COMMANDS,
        limits::COMMANDS,
        policies::COMMANDS,
        definitions::COMMANDS,
        queues::COMMANDS,
        connections::COMMANDS,
        checks::COMMANDS,
        cluster::COMMANDS,
        plugins::COMMANDS,
        logs::COMMANDS,
        live::COMMANDS,
        tls::COMMANDS,
        figures::COMMANDS,
        streams::COMMANDS,
        encrypted::COMMANDS,
        absent::COMMANDS,
    ];
    tables.into_iter().flatten().chain(report::COMMANDS)
}

/// The commands of `leveret ctl`, by name, each with how many words it has to have: for those who try all of them.
pub fn names() -> impl Iterator<Item = (&'static str, usize)> {
    let has_to_be = |word: &&Word| matches!(word.kind, Kind::One);
    all()
        .filter(|entry| entry.tools.meets(Tools::ALL))
        .map(move |entry| (entry.name, entry.words.iter().filter(has_to_be).count()))
}

/// RabbitMQ's tools.
const TOOLS: [(&str, Tools); 6] = [
    ("rabbitmqctl", Tools::CTL),
    ("rabbitmq-diagnostics", Tools::DIAGNOSTICS),
    ("rabbitmq-queues", Tools::QUEUES),
    ("rabbitmq-plugins", Tools::PLUGINS),
    ("rabbitmq-upgrade", Tools::UPGRADE),
    ("rabbitmq-streams", Tools::STREAMS),
];

/// The command line of the tool of this name: what a link of that name to the program is.
pub fn tool(name: &str) -> Option<clap::Command> {
    let (name, tools) = TOOLS.iter().find(|(known, _)| *known == name)?;
    Some(crate::args::tool(name, *tools))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names are told apart by tool; `leveret ctl` has most of them in one.
    #[test]
    fn no_name_is_there_twice() {
        for tools in TOOLS.iter().map(|(_, tools)| *tools).chain([Tools::ALL]) {
            let of_tool = all().filter(|entry| entry.tools.meets(tools));
            let mut names: Vec<_> = of_tool.map(|entry| entry.name).collect();
            let before = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), before);
        }
    }

    /// A place in a template that no word fills would be shown empty.
    #[test]
    fn templates_name_their_words() {
        for entry in all() {
            for template in [entry.banner, entry.missing.1] {
                for place in template.split('{').skip(1) {
                    let name = place.split('}').next().unwrap_or_default();
                    let is_common = ["vhost", "node", "timeout"].contains(&name);
                    let is_word = entry.words.iter().any(|word| word.name == name);
                    assert!(is_common || is_word, "{}: {template}", entry.name);
                }
            }
        }
    }

    /// The manual names every command, and no tool's command goes without a word about it.
    #[test]
    fn the_manual_names_every_command() {
        let manual = include_str!("../../../../docs/command-line.md");
        for entry in all() {
            assert!(manual.contains(&format!("`{}", entry.name)), "{}", entry.name);
            assert!(!entry.about.is_empty(), "{}", entry.name);
        }
    }
}
