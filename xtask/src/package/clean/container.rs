//! Both stages of `packaging/Containerfile`, each in a clean system: what they run and copy, and the container's life with
//! the user, the environment and the commands that the last one names. No container is made: neither images nor their tools
//! are needed.
//!
//! [`mod@build`]: the first stage.

mod build;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};

use super::System;
use build::Built;

use crate::package::output;
use crate::root;

/// Who may come from outside, named as the file's first lines say.
const USER: [(&str, &str); 2] =
    [("RABBITMQ_DEFAULT_USER", "shop"), ("RABBITMQ_DEFAULT_PASS", "a good password")];

/// What a stage leaves behind, beside files.
#[derive(Debug, Default)]
struct Stage {
    user: String,
    environment: Vec<(String, String)>,
    volume: String,
    signal: String,
    health: Vec<String>,
    command: Vec<String>,
}

/// What the Containerfile says of its two stages.
fn stages() -> anyhow::Result<[String; 2]> {
    let text = fs::read_to_string(root().join("packaging/Containerfile"))?.replace("\\\n", " ");
    let stages: Vec<String> = text.split("\nFROM ").skip(1).map(str::to_owned).collect();
    stages.try_into().map_err(|_| anyhow::anyhow!("the Containerfile has not two stages"))
}

/// The first stage alone.
pub(in crate::package) fn build(built: &[PathBuf]) -> anyhow::Result<()> {
    let [first, _] = stages()?;
    build::run(&first, built).map(drop)
}

/// What somebody does who starts it, asks how it is, and stops it.
pub(in crate::package) fn life(built: &[PathBuf]) -> anyhow::Result<()> {
    let [first, last] = stages()?;
    let from = build::run(&first, built).context("the first stage")?;
    let system = System::make("container", built)?;
    let mut stage = Stage::default();
    for line in last.lines().skip(1).filter(|line| !line.starts_with('#')) {
        stage.take(&system, &from, line).with_context(|| line.to_owned())?;
    }
    let volume = stage.volume.trim_start_matches('/');
    let mut command = stage.command(&system, &stage.command);
    command.envs(USER);
    let node = system.serve(command).context("starting")?;
    output(&mut stage.command(&system, &stage.health)).context("asking for its health")?;
    let ask = |words: &str| -> anyhow::Result<String> {
        let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
        Ok(String::from_utf8(output(&mut stage.command(&system, &words))?)?)
    };
    let users = ask("rabbitmqctl -q list_users")?;
    ensure!(users == "user\ttags\nshop\t[administrator]\n", "the users are {users}");
    system.fill()?;
    ensure!(ask("rabbitmqctl -q list_queues")? == "name\tmessages\nkept\t2\n");
    let data = fs::metadata(system.path(volume))?;
    ensure!(data.permissions().mode() & 0o7777 == 0o750, "others may read the volume");
    ensure!(data.uid() != 0, "root owns the volume");
    ensure!(stage.signal == "SIGTERM", "{} is not what ends a node in good order", stage.signal);
    node.stop()?;
    // Another container with the same volume.
    let node = system.serve(stage.command(&system, &stage.command)).context("starting again")?;
    ensure!(ask("rabbitmqctl -q list_queues")? == "name\tmessages\nkept\t2\n");
    node.stop()
}

impl Stage {
    fn take(&mut self, system: &System, built: &Built, line: &str) -> anyhow::Result<()> {
        let Some((instruction, rest)) = line.split_once(' ') else { return Ok(()) };
        let rest = rest.trim();
        match instruction {
            "RUN" => drop(output(&mut system.command("root", &["sh", "-c", rest]))?),
            "COPY" => {
                let words: Vec<&str> = rest.split(' ').collect();
                let [stage, from, to] = words[..] else { bail!("three words are expected") };
                ensure!(stage == format!("--from={}", built.stage), "there is no such stage");
                fs::copy(built.path(from)?, system.path(to.trim_start_matches('/')))?;
            }
            "USER" => rest.clone_into(&mut self.user),
            "VOLUME" => rest.clone_into(&mut self.volume),
            "STOPSIGNAL" => rest.clone_into(&mut self.signal),
            "ENV" => {
                let (name, value) = rest.split_once('=').context("a name and a value")?;
                self.environment.push((name.to_owned(), value.to_owned()));
            }
            "HEALTHCHECK" => {
                let (_, words) = rest.split_once("CMD ").context("a command")?;
                self.health = serde_json::from_str(words)?;
            }
            "CMD" => self.command = serde_json::from_str(rest)?,
            "EXPOSE" => {}
            _ => bail!("this instruction is not known"),
        }
        Ok(())
    }

    /// A program in the container.
    fn command(&self, system: &System, words: &[String]) -> Command {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = system.command(&format!("{0}:{0}", self.user), &words);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command
    }
}
