//! The recorded conversations, played to a node in this process under a virtual clock: what waits for
//! time to pass takes none.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use leveret_broker::message::{AdminCommand, ConnectionId, NodeId, ReplyTo, ToMeta};
use leveret_conform::{Connect, Input, Outcome, Script, Settings, Stream, run};
use leveret_queue::Time;
use leveret_sim::Node;

/// A node and the time it has there.
struct World {
    node: Node,
    now: Time,
    connections: u64,
}

impl World {
    /// Runs everybody; then lets time pass until `is_done` or until `end`.
    fn run_until(&mut self, end: Time, is_done: impl Fn(&mut Node) -> bool) {
        loop {
            self.node.run(self.now);
            if is_done(&mut self.node) || self.now >= end {
                return;
            }
            let next = self.node.next_timeout().unwrap_or(end);
            self.now = next.clamp(self.now, end);
        }
    }
}

/// Opens connections to the node.
struct InProcess(Rc<RefCell<World>>);

impl InProcess {
    /// A node that holds the users and policies the conversations count on.
    fn new(shards: usize, definitions: &str) -> Self {
        let homes = leveret_topology::Homes::among(shards as u32).by_chance(7);
        let mut node = Node::with_homes(homes, leveret_session::Settings::default());
        let now = Time::from_ms(1_700_000_000_000);
        node.tell_meta(ToMeta::Admin {
            by: Box::default(),
            reply: ReplyTo { connection: NodeId::ALONE.connection(0), channel: 0 },
            command: Box::new(AdminCommand::ImportDefinitions {
                definitions: Box::new(leveret_topology::Import::read(definitions).expect("JSON")),
            }),
        });
        node.run(now);
        Self(Rc::new(RefCell::new(World { node, now, connections: 0 })))
    }
}

impl Connect for InProcess {
    fn connect(&mut self) -> io::Result<Box<dyn Stream>> {
        let mut world = self.0.borrow_mut();
        world.connections += 1;
        let (seed, now) = (world.connections, world.now);
        let id = world.node.connect(seed, usize::MAX, now);
        Ok(Box::new(Pipe { world: Rc::clone(&self.0), id }))
    }
}

/// The client's end of one connection.
struct Pipe {
    world: Rc<RefCell<World>>,
    id: ConnectionId,
}

impl Stream for Pipe {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut world = self.world.borrow_mut();
        match world.node.socket(self.id) {
            Some(socket) if !socket.is_closed => socket.to_server.extend(bytes),
            _ => return Err(io::ErrorKind::BrokenPipe.into()),
        }
        let now = world.now;
        world.run_until(now, |_| true);
        Ok(())
    }

    fn receive(&mut self, within: Duration) -> io::Result<Input> {
        let mut world = self.world.borrow_mut();
        let end = world.now.after_ms(within.as_millis() as u64);
        world.run_until(end, |node| {
            node.socket(self.id).is_none_or(|it| !it.to_client.is_empty() || it.is_closed)
        });
        let Some(socket) = world.node.socket(self.id) else { return Ok(Input::End) };
        match socket {
            it if !it.to_client.is_empty() => Ok(Input::Bytes(it.to_client.drain(..).collect())),
            it if it.is_closed => Ok(Input::End),
            _ => Ok(Input::Nothing),
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        let mut world = self.world.borrow_mut();
        if let Some(socket) = world.node.socket(self.id) {
            socket.is_reset = true;
        }
        let now = world.now;
        world.run_until(now, |_| true);
        world.node.bury();
    }
}

/// Plays every conversation to one node.
fn play(shards: usize) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/scripts");
    let definitions = std::fs::read_to_string(folder.join("definitions.json")).expect("readable");
    let mut broker = InProcess::new(shards, &definitions);
    let settings = Settings {
        dialects: vec!["leveret".to_owned(), "3.10".to_owned()],
        deadline: Duration::from_secs(20),
        record: None,
    };
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("readable")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    files.sort();
    let (mut passed, mut failed) = (0, Vec::new());
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        let script_name = file.file_name().unwrap_or_default().to_string_lossy();
        let script = Script::parse(&script_name, &text).expect("a script");
        for (name, outcome) in run(&script, &mut broker, &settings, "").outcomes {
            match outcome {
                Outcome::Passed => passed += 1,
                Outcome::Skipped(_) => {}
                Outcome::Failed(why) => failed.push(format!("{script_name}: {name}\n  {why}")),
            }
        }
    }
    let count = failed.len();
    assert!(failed.is_empty(), "{passed} passed, {count} failed:\n{}", failed.join("\n"));
    assert!(passed >= 200, "only {passed} conversations");
}

#[test]
fn conversations_hold_with_one_shard() {
    play(1);
}

#[test]
fn conversations_hold_with_three_shards() {
    play(3);
}
