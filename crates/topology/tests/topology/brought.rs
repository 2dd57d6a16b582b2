//! Exclusive queues outlive the topology that had them first.

use leveret_amqp::table::Table;
use leveret_topology::{
    BroughtError, Change, ConnectionId, Destination, EntityKey, ExchangeSpec, GroupId, NodeId,
    QueueId, QueueSpec, Topology, VhostId,
};

const NODE: NodeId = NodeId::new(2).expect("a node");

fn names() -> (Topology, VhostId) {
    let mut names = Topology::new();
    let vhost = names.add_vhost("/").unwrap();
    for (name, durable) in [("logs", true), ("passing", false)] {
        let arguments = Table::new();
        let (auto_delete, internal) = (false, false);
        let kind = "fanout";
        let spec = ExchangeSpec { vhost, name, kind, durable, auto_delete, internal, arguments };
        names.declare_exchange(spec).unwrap();
    }
    (names, vhost)
}

fn declare(names: &mut Topology, vhost: VhostId, name: &str, owner: Option<ConnectionId>) {
    let spec = QueueSpec {
        vhost,
        name,
        server_named: false,
        durable: owner.is_none(),
        auto_delete: false,
        exclusive_owner: owner,
        arguments: Table::new(),
    };
    names.declare_queue(spec).unwrap();
}

fn bind(names: &mut Topology, vhost: VhostId, source: &str, queue: &str, owner: ConnectionId) {
    let to = Destination::Queue(queue);
    names.bind(vhost, source, to, "", Table::new(), Some(owner)).unwrap();
}

/// What whoever owns the names next has of them: what survives a restart.
fn next(names: &Topology) -> Topology {
    let mut next = Topology::new();
    let stored: Vec<Change> = names.snapshot().into_iter().filter(|it| it.is_stored).collect();
    next.follow(&stored).unwrap();
    next.take_changes();
    next
}

fn brought_of(names: &Topology, is_owner: impl Fn(ConnectionId) -> bool) -> Vec<Change> {
    names.exclusive_queues(NODE, is_owner).into_iter().map(|(change, _)| change).collect()
}

fn bring(
    names: &mut Topology,
    brought: &[Change],
    is_owner: impl Fn(ConnectionId) -> bool,
) -> Result<Vec<(QueueId, GroupId)>, BroughtError> {
    names.bring_back(&brought.iter().collect::<Vec<_>>(), is_owner)
}

fn described(names: &Topology, vhost: VhostId) -> Vec<(String, Vec<String>)> {
    let mut all: Vec<_> = names
        .queues(vhost)
        .into_iter()
        .map(|queue| {
            let target = leveret_topology::Target::Queue(queue.id);
            let sources = names.bindings_to(target).map(|it| {
                names.exchange_by_id(it.source).map_or_else(String::new, |it| it.name.to_string())
            });
            (format!("{} {}", queue.id, queue.name), sources.collect())
        })
        .collect();
    all.sort();
    all
}

/// Of which nobody stores anything: so it is brought, to vhosts that are there.
#[test]
fn vhosts_are_traced_again() {
    let (mut names, vhost) = names();
    names.add_vhost("passing").unwrap();
    for name in ["/", "passing"] {
        names.set_tracing(name, true).unwrap();
    }
    let brought = names.traced();
    assert_eq!(brought.len(), 2);
    names.delete_vhost("passing").unwrap();
    let mut next = next(&names);
    assert!(!next.traces_any());
    assert_eq!(bring(&mut next, &brought, |_| false).unwrap(), []);
    assert!(next.vhost_by_id(vhost).unwrap().is_traced);
    next.assert_invariants();
    assert!(next.has_only_transient_changes());
    assert_eq!(next.take_changes().len(), 1);
    bring(&mut next, &brought, |_| false).unwrap();
    assert_eq!(next.take_changes(), [], "it is there already");
}

#[test]
fn exclusive_queues_come_back_with_their_ids_and_bindings() {
    let (mut names, vhost) = names();
    let [one, two, gone] = [1, 2, 3].map(|number| NODE.connection(number));
    let elsewhere = NodeId::new(3).unwrap().connection(1);
    for (name, owner) in
        [("a", Some(one)), ("b", Some(two)), ("c", Some(gone)), ("d", Some(elsewhere)), ("e", None)]
    {
        declare(&mut names, vhost, name, owner);
    }
    bind(&mut names, vhost, "logs", "a", one);
    bind(&mut names, vhost, "passing", "a", one);
    bind(&mut names, vhost, "logs", "b", two);
    let is_owner = |id| id == one || id == two;
    let brought = brought_of(&names, is_owner);
    assert_eq!(brought.len(), 5);
    let mut next = next(&names);
    let made = bring(&mut next, &brought, is_owner).unwrap();
    assert_eq!(made.len(), 2);
    let want: Vec<_> = described(&names, vhost)
        .into_iter()
        .filter(|(name, _)| !name.ends_with('c') && !name.ends_with('d'))
        .map(|(name, sources)| (name, sources.into_iter().filter(|it| it != "passing").collect()))
        .collect();
    assert_eq!(described(&next, vhost), want, "the transient exchange is not there");
    next.assert_invariants();
    // Whoever follows hears of them, and the log does not.
    assert!(next.has_only_transient_changes());
    let noted = next.take_changes();
    assert_eq!(noted.len(), 4, "{noted:?}");
    assert_eq!(bring(&mut next, &brought, is_owner).unwrap(), [], "they are there already");
    assert_eq!(next.queues_owned_by(one).len(), 1);
    // The copy of their node goes on with what it has.
    let towards = names.changes_towards(next.snapshot());
    let queues: Vec<_> = towards
        .iter()
        .filter(|it| matches!(it.key, EntityKey::Queue(_)) && it.record.is_none())
        .collect();
    assert_eq!(queues.len(), 2, "those of others: {queues:?}");
    names.follow(&towards).unwrap();
    assert_eq!(names.describe(), next.describe());
}

#[test]
fn what_has_no_place_any_more_is_left_out() {
    let (mut names, vhost) = names();
    let one = NODE.connection(1);
    declare(&mut names, vhost, "a", Some(one));
    declare(&mut names, vhost, "b", Some(one));
    declare(&mut names, vhost, "e", None);
    bind(&mut names, vhost, "logs", "a", one);
    let brought = brought_of(&names, |_| true);
    let mut next = next(&names);
    declare(&mut next, vhost, "a", None);
    let made = bring(&mut next, &brought, |_| true).unwrap();
    assert_eq!(made.len(), 1, "'a' is another one's");
    assert!(next.queue(vhost, "a").is_some_and(|it| it.durable));
    next.assert_invariants();
    let mut bare = Topology::new();
    bare.add_vhost("/").unwrap();
    let other = bare.add_vhost("other").unwrap();
    ["a", "b", "c"].into_iter().for_each(|name| declare(&mut bare, other, name, None));
    bare.delete_vhost("/").unwrap();
    assert_eq!(bring(&mut bare, &brought, |_| true).unwrap(), [], "there is no such vhost");
}

#[test]
fn what_is_none_of_its_own_is_refused() {
    let (mut names, vhost) = names();
    let one = NODE.connection(1);
    declare(&mut names, vhost, "a", Some(one));
    declare(&mut names, vhost, "e", None);
    let brought = brought_of(&names, |_| true);
    let mut next = next(&names);
    assert!(bring(&mut next, &brought, |_| false).is_err(), "it is another connection's");
    let durable = names.snapshot().into_iter().filter(|it| matches!(it.key, EntityKey::Queue(_)));
    assert!(bring(&mut next, &durable.collect::<Vec<_>>(), |_| true).is_err(), "one is durable");
    let user = Change {
        key: EntityKey::User("one".into()),
        is_stored: false,
        record: Some(vec![1].into()),
    };
    assert!(bring(&mut next, &[user], |_| true).is_err());
    let mut cut = brought.clone();
    for len in 0..cut[0].record.as_ref().unwrap().len() {
        cut[0].record = Some(brought[0].record.as_ref().unwrap()[..len].into());
        assert!(bring(&mut next, &cut, |_| true).is_err(), "{len}");
    }
    let fresh = &mut Topology::new();
    fresh.add_vhost("/").unwrap();
    assert!(bring(fresh, &brought, |_| true).is_err(), "no leader gave that id");
    assert!(next.queue(vhost, "a").is_none());
}
