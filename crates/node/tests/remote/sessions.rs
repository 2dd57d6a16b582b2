//! All nodes of sessions that are connected to the node that leads, and what they know of the names.

use std::collections::BTreeMap;

use leveret_broker::command::CommandStream;
use leveret_broker::message::{FromLeader, NodeId, Outbox, SessionsHello, ToLeader};
use leveret_broker::meta::TermNote;
use leveret_broker::stream::{StreamClass, StreamEvent, StreamId, StreamNews};
use leveret_node::remote::{HeldTurns, NodeHeard, RemoteNode, node_of};
use leveret_topology::{Change, GroupId, Homes};

/// What a letter of a node is, for whoever drives the node that leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeardOf {
    /// Nothing is left to do.
    Done,
    /// The node has its first names: it may be told [`FromLeader::Begins`].
    HasNames,
}

/// All nodes of sessions that are connected, and what they know of the names. The program's gateway is the same with threads.
#[derive(Debug)]
pub(crate) struct RemoteSessions {
    homes: Homes,
    nodes: BTreeMap<NodeId, RemoteNode>,
    turns: HeldTurns,
    /// The leader's, and who led last.
    terms: (u64, Option<TermNote>),
}

impl RemoteSessions {
    /// Nobody is connected. `homes` are the cluster's; `terms` are the leader's, and what the log of names has of the one before.
    pub(crate) fn new(homes: Homes, terms: (u64, Option<TermNote>)) -> Self {
        Self { homes, nodes: BTreeMap::new(), turns: HeldTurns::default(), terms }
    }

    /// A node says who it is. If an earlier connection of it is there still, [`gone`](Self::gone) is to be said of that first.
    /// `has_begun`: the shards are in their terms, and wait for nobody who was not here. What follows is [`names`](Self::names).
    ///
    /// # Errors
    ///
    /// A text for [`FromLeader::Over`], if it is refused.
    pub(crate) fn hello(
        &mut self,
        hello: &SessionsHello,
        has_begun: bool,
    ) -> Result<NodeId, String> {
        let new = RemoteNode::new(hello, self.homes)?;
        let node = new.node();
        match self.nodes.get(&node) {
            Some(other) if other.raft_id() != new.raft_id() => {
                return Err(format!(
                    "members {:016x} and {:016x} of the cluster both have the number {node}: only one of them can have \
                     sessions of its own",
                    other.raft_id(),
                    new.raft_id()
                ));
            }
            Some(_) => return Err("the node is connected already".to_owned()),
            None => {}
        }
        let (term, last) = &self.terms;
        if !new.was_known(*term, last.as_ref())? {
            return Err("a leader before has given what this node has to others".to_owned());
        }
        if new.attaches() && has_begun {
            return Err(
                "the node that leads did not wait for the sessions of this node, and has given what they held to others"
                    .to_owned(),
            );
        }
        self.nodes.insert(node, new);
        self.turns.comes(node);
        Ok(node)
    }

    /// Those that are connected.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &RemoteNode> {
        self.nodes.values()
    }

    /// Those whose sessions are to attach: for [`Shard::succeed`](leveret_broker::Shard::succeed).
    pub(crate) fn attaching(&self) -> Vec<NodeId> {
        self.nodes().filter(|node| node.attaches()).map(RemoteNode::node).collect()
    }

    /// Whether a stream is one of a node that is here: for [`Shard::keep_streams`](leveret_broker::Shard::keep_streams).
    pub(crate) fn numbers(&self, stream: StreamId) -> bool {
        let StreamId { node, start, .. } = stream;
        self.commands(CommandStream { node, start })
    }

    /// The same of commands: for [`Meta::keep_commands`](leveret_broker::Meta::keep_commands).
    pub(crate) fn commands(&self, stream: CommandStream) -> bool {
        self.nodes.get(&stream.node).is_some_and(|node| node.commands() == stream)
    }

    /// All names, for a node that has said hello: a [snapshot](leveret_topology::Topology::snapshot) in which all changes are that
    /// [`change`](Self::change) was told.
    pub(crate) fn names(&mut self, node: NodeId, all: Vec<Change>) {
        let number = self.turns.number();
        if let Some(node) = self.nodes.get_mut(&node) {
            node.tell_names(number, true, all);
        }
    }

    /// A turn of the owner of the names has made these changes, in its batches.
    pub(crate) fn change(&mut self, batches: impl IntoIterator<Item = Vec<Change>>) {
        for batch in batches {
            let number = self.turns.changed();
            for node in self.nodes.values_mut() {
                node.tell_names(number, false, batch.clone());
            }
        }
    }

    /// What the same turn wrote goes to `out` once all nodes have the names: see [`HeldTurns::hold`].
    pub(crate) fn hold(&mut self, turn: Outbox, out: &mut Outbox) {
        self.turns.hold(turn, out);
    }

    /// Turns whose letters wait for the names of nodes.
    pub(crate) fn turns(&self) -> &HeldTurns {
        &self.turns
    }

    /// A node writes. Letters to shards, to the owner of the names, and to sessions of other nodes are left in `out`.
    ///
    /// # Errors
    ///
    /// A text, if the letter is not this node's: its connection is to end, and [`gone`](Self::gone) is to be said of it.
    pub(crate) fn hear(
        &mut self,
        node: NodeId,
        letter: ToLeader,
        out: &mut Outbox,
    ) -> Result<HeardOf, String> {
        let remote = self.nodes.get_mut(&node).ok_or("the node has not said hello")?;
        match remote.hear(letter, out)? {
            NodeHeard::Done | NodeHeard::Seen(..) | NodeHeard::Told(_) | NodeHeard::Uses(_) => {
                Ok(HeardOf::Done)
            }
            NodeHeard::NamesTaken(number) => match self.turns.taken(node, number, out)? {
                true => Ok(HeardOf::HasNames),
                false => Ok(HeardOf::Done),
            },
        }
    }

    /// Leaves a letter for a node. Of one that is not here it comes back.
    ///
    /// # Errors
    ///
    /// The letter, if the node is not here: what was on its way to a session is undelivered.
    pub(crate) fn tell(&mut self, node: NodeId, letter: FromLeader) -> Result<(), Box<FromLeader>> {
        match self.nodes.get_mut(&node) {
            Some(node) => {
                node.tell(letter);
                Ok(())
            }
            None => Err(Box::new(letter)),
        }
    }

    /// One of those that are connected.
    pub(crate) fn node(&mut self, node: NodeId) -> Option<&mut RemoteNode> {
        self.nodes.get_mut(&node)
    }

    /// The next letter for a node.
    pub(crate) fn send_next(&mut self, node: NodeId) -> Option<FromLeader> {
        self.nodes.get_mut(&node)?.send_next()
    }

    /// The connection of a node has ended: see [`RemoteNode::gone`].
    pub(crate) fn gone(&mut self, node: NodeId, out: &mut Outbox) {
        if let Some(remote) = self.nodes.remove(&node) {
            remote.gone(out);
            self.turns.goes(node, out);
        }
    }
}

const HOMES: Homes = Homes::among(2);
const GROUP: GroupId = GroupId::new(1);

fn hello(raft_id: u64, start: u32, attaches: bool) -> SessionsHello {
    let attaches = attaches.then_some(3);
    let connections = vec![node_of(raft_id).connection(1)];
    SessionsHello { raft_id, start, attaches, connections }
}

#[test]
fn who_comes_too_late_or_twice_is_refused() {
    let mut sessions = RemoteSessions::new(HOMES, (9, None));
    let node = sessions.hello(&hello(5, 2, true), false).expect("it is in time");
    assert_eq!(sessions.attaching(), [node]);
    assert!(sessions.hello(&hello(5, 3, false), false).is_err(), "it is here");
    assert!(sessions.hello(&hello(5 + (1 << 24) - 2, 0, false), false).is_err(), "its number is");
    assert!(sessions.hello(&hello(6, 0, true), true).is_err(), "nobody waited");
    assert!(sessions.hello(&hello(6, 0, false), true).is_ok(), "nothing was to be waited for");
    let of_another = SessionsHello { raft_id: 8, ..hello(5, 2, false) };
    assert!(sessions.hello(&of_another, false).is_err(), "it has sessions of another node");
    let stream = |start| StreamId { node, start, class: StreamClass::Acks };
    assert!(sessions.numbers(stream(2)) && !sessions.numbers(stream(1)));
    let mut out = Outbox::default();
    sessions.gone(node, &mut out);
    assert!(sessions.attaching().is_empty() && !sessions.numbers(stream(2)));
}

#[test]
fn names_are_told_to_all_in_parts() {
    let mut sessions = RemoteSessions::new(HOMES, (9, None));
    let node = sessions.hello(&hello(5, 2, false), false).expect("a node");
    let key = leveret_topology::EntityKey::Ids;
    let change = Change { key, is_stored: true, record: Some(vec![0; 1 << 10].into()) };
    sessions.names(node, vec![change.clone(); 300]);
    sessions.change([vec![change]]);
    let told: Vec<_> = std::iter::from_fn(|| sessions.send_next(node)).collect();
    let parts = told.iter().map(|letter| match letter {
        FromLeader::Names(it) => (it.number, it.is_whole, it.goes_on, it.changes.len()),
        other => panic!("{other:?}"),
    });
    let parts: Vec<_> = parts.collect();
    let want = [(1, true, true, 128), (1, true, true, 128), (1, true, false, 44)];
    assert_eq!((&parts[..3], &parts[3..]), (&want[..], &[(2, false, false, 1)][..]));
    let news = StreamNews {
        stream: StreamId { node, start: 2, class: StreamClass::Acks },
        term: 1,
        what: StreamEvent::Agreed { low: 1, told: 1 },
    };
    assert!(sessions.tell(node, FromLeader::News(GROUP, news)).is_ok());
    assert!(sessions.tell(NodeId::ALONE, FromLeader::Beat).is_err());
}

#[test]
fn whom_the_leader_before_did_not_tell_that_it_hears_is_refused() {
    let is_refused = |term, over: &[u32], attaches| {
        let process = |&start: &u32| CommandStream { node: node_of(5), start };
        let note = TermNote { term, over: over.iter().map(process).collect() };
        let mut sessions = RemoteSessions::new(HOMES, (9, Some(note)));
        sessions.hello(&hello(5, 2, attaches), false).is_err()
    };
    assert!(is_refused(4, &[], true));
    assert!(!is_refused(4, &[], false), "it has nothing of an earlier leader");
    assert!(!is_refused(3, &[], true) && !is_refused(3, &[1], true));
    assert!(is_refused(3, &[2], true), "its sessions are over");
    let mut sessions = RemoteSessions::new(HOMES, (2, None));
    assert!(sessions.hello(&hello(5, 2, true), false).is_err(), "another one leads since");
}
