//! What goes in pieces: whatever else begins in the middle of it, names are whole after each piece.

use leveret_amqp::table::Table;
use leveret_topology::{
    ApplyTo, Destination, ExchangeSpec, Import, Policy, PolicyChange, PolicySpec, QueueId,
    QueueSpec, Sweep, Topology, VhostId,
};
use serde_json::json;

use crate::common::{Rng, World};

/// Bindings of what is large.
const MANY: usize = 520;

/// Something that is done in pieces.
enum Job {
    Sweep(Sweep),
    Vhost { id: VhostId, queues: Vec<QueueId>, rest: Option<Sweep> },
    Policy(PolicyChange),
    Import(Box<Import>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Exchange(&'static str),
    Queue(&'static str),
    SmallQueue,
    Vhost,
    SetPolicy,
    ClearPolicy,
    Import,
}

const KINDS: [Kind; 9] = [
    Kind::Exchange("x"),
    Kind::Exchange("y"),
    Kind::Exchange("auto"),
    Kind::Queue("q"),
    Kind::SmallQueue,
    Kind::Vhost,
    Kind::SetPolicy,
    Kind::ClearPolicy,
    Kind::Import,
];

/// As the owner of names begins it: what is small is done at once.
fn start(kind: Kind, topology: &mut Topology) -> Option<Job> {
    let vhost = topology.vhost("/").map(|vhost| vhost.id);
    let queue = |name| Some(topology.queue(vhost?, name)?.id);
    match kind {
        Kind::Exchange(name) => {
            let sweep = topology.start_delete_exchange(vhost?, name, false).unwrap();
            if sweep.is_none() {
                topology.delete_exchange(vhost?, name, false).unwrap();
            }
            sweep.map(Job::Sweep)
        }
        Kind::Queue(name) => start_remove(queue(name)?, topology),
        Kind::SmallQueue => start_remove(queue("q1")?, topology),
        Kind::Vhost if topology.is_large_vhost("/") => {
            let id = topology.start_delete_vhost("/").unwrap();
            Some(Job::Vhost { id, queues: topology.queues_of_going(id), rest: None })
        }
        Kind::Vhost => {
            let _ = topology.delete_vhost("/");
            None
        }
        Kind::SetPolicy => {
            let definition = json!({ "max-length": 1 }).as_object().unwrap().clone();
            let spec = PolicySpec {
                name: "p",
                pattern: "1",
                apply_to: ApplyTo::All,
                priority: 1,
                definition,
            };
            let policy = Policy::new(spec, false).unwrap();
            Some(Job::Policy(topology.start_set_policy("/", policy, false).ok()?))
        }
        Kind::ClearPolicy => {
            Some(Job::Policy(topology.start_clear_policy("/", "first", false).ok()?))
        }
        Kind::Import => Some(Job::Import(Box::new(Import::read(&definitions()).unwrap()))),
    }
}

fn start_remove(id: QueueId, topology: &mut Topology) -> Option<Job> {
    let sweep = topology.start_remove_queue(id);
    if sweep.is_none() {
        topology.remove_queue(id);
    }
    sweep.map(Job::Sweep)
}

/// Another vhost with bindings, whose places may be those of bindings that went.
fn definitions() -> String {
    let bindings = (0..MANY).map(|at| {
        json!({ "vhost": "other", "source": "amq.direct", "destination": "o", "destination_type": "queue",
                "routing_key": at.to_string() })
    });
    json!({
        "vhosts": [{ "name": "other" }, { "name": "/" }],
        "exchanges": [{ "vhost": "/", "name": "x", "type": "direct" }],
        "queues": [{ "vhost": "other", "name": "o" }, { "vhost": "/", "name": "q" }],
        "bindings": bindings.collect::<Vec<_>>(),
    })
    .to_string()
}

/// One piece; what is left to do.
fn advance(job: Job, topology: &mut Topology, allowed: u64) -> Vec<Job> {
    match job {
        Job::Sweep(mut sweep) => {
            topology.sweep(&mut sweep, allowed);
            if sweep.is_done() { Vec::new() } else { vec![Job::Sweep(sweep)] }
        }
        Job::Vhost { id, rest: Some(mut rest), queues } => {
            topology.sweep(&mut rest, allowed);
            if rest.is_done() {
                topology.end_vhost(id);
                return Vec::new();
            }
            vec![Job::Vhost { id, rest: Some(rest), queues }]
        }
        Job::Vhost { id, mut queues, rest: None } => {
            let mut left = Vec::new();
            for queue in queues.drain(..queues.len().min(allowed as usize)) {
                left.extend(start_remove(queue, topology));
            }
            let rest = queues.is_empty().then(|| topology.rest_of_vhost(id));
            left.push(Job::Vhost { id, queues, rest });
            left
        }
        Job::Policy(mut change) => {
            change.advance(topology, allowed).unwrap();
            if change.left() > 0 {
                return vec![Job::Policy(change)];
            }
            change.end(topology);
            Vec::new()
        }
        Job::Import(mut import) => {
            // A name that went meanwhile ends it.
            let advanced = import.advance(topology, allowed);
            if advanced.is_ok() && !import.is_done() {
                vec![Job::Import(import)]
            } else {
                Vec::new()
            }
        }
    }
}

/// `x` leads to `q` by very many bindings and to others by a few; so does `y` if it is rich, and exchanges lead to each other.
fn world(is_rich: bool) -> World {
    let mut world = World::new();
    for name in ["x", "y"] {
        world.exchange(name, "direct");
    }
    let auto = world.exchange_spec("auto", "topic");
    world.topology.declare_exchange(ExchangeSpec { auto_delete: true, ..auto }).unwrap();
    for name in ["q", "q1", "q2"] {
        let spec = world.queue_spec(name);
        let spec = QueueSpec { durable: true, ..spec };
        world.topology.declare_queue(spec).unwrap();
    }
    let first = json!({ "expires": 5 }).as_object().unwrap().clone();
    let spec = PolicySpec {
        name: "first",
        pattern: "q",
        apply_to: ApplyTo::All,
        priority: 0,
        definition: first,
    };
    world.topology.set_policy("/", spec).unwrap();
    for at in 0..MANY {
        let key = at.to_string();
        world.bind("x", "q", &key);
        if is_rich {
            world.bind("y", ["q", "q1", "q2"][at % 3], &key);
            world.bind_exchange("auto", "x", &key);
            world.bind_exchange("x", "y", &key);
        }
    }
    world.try_bind("x", Destination::Queue("q1"), "", Table::new()).unwrap();
    world.bind_exchange("x", "x", "self");
    world
}

/// Any two, the second at any time after the first, in pieces of any size: and bindings of another vhost that came
/// between stay.
#[test]
fn any_two_at_once() {
    for is_rich in [false, true] {
        for first in KINDS {
            for second in KINDS {
                for pieces in [1, 3] {
                    two(is_rich, first, second, pieces);
                }
            }
        }
    }
}

fn two(is_rich: bool, first: Kind, second: Kind, pieces: usize) {
    let mut world = world(is_rich);
    let topology = &mut world.topology;
    let mut jobs: Vec<Job> = start(first, topology).into_iter().collect();
    topology.assert_structure();
    let go_on = |jobs: &mut Vec<Job>, topology: &mut Topology| {
        let before = std::mem::take(jobs);
        jobs.extend(before.into_iter().flat_map(|job| advance(job, topology, 211)));
        topology.assert_structure();
    };
    for _ in 1..pieces {
        go_on(&mut jobs, topology);
    }
    // Somebody else's bindings take places that are free.
    let mut others = Vec::new();
    let other = topology.add_vhost("theirs").unwrap();
    let spec = spec_of(other);
    topology.declare_queue(spec).unwrap();
    jobs.extend(start(second, topology));
    topology.assert_structure();
    for at in 0..50 {
        let (to, key) = (Destination::Queue("t"), at.to_string());
        topology.bind(other, "amq.topic", to, &key, Table::new(), None).unwrap();
        others.push(key);
    }
    let mut turns = 0;
    while !jobs.is_empty() {
        go_on(&mut jobs, topology);
        turns += 1;
        assert!(turns < 1_000, "{first:?} and {second:?} do not end");
    }
    let mut theirs: Vec<_> = topology.bindings(other).map(|it| it.key.to_string()).collect();
    theirs.sort_by_key(|key| key.parse::<usize>().unwrap());
    assert_eq!(theirs, others, "{first:?}, {second:?}");
    topology.assert_invariants();
    assert_eq!(topology.going_vhosts().count(), 0);
    let has_import = [first, second].contains(&Kind::Import);
    if [first, second].contains(&Kind::Vhost) && !has_import {
        assert!(topology.vhost("/").is_none(), "{first:?}, {second:?}");
        assert_eq!((topology.queue_count(), topology.binding_count()), (1, 50));
        assert_eq!(topology.exchange_count(), 7);
    }
}

fn spec_of(vhost: VhostId) -> QueueSpec<'static> {
    QueueSpec {
        vhost,
        name: "t",
        server_named: false,
        durable: true,
        auto_delete: false,
        exclusive_owner: None,
        arguments: Table::new(),
    }
}

/// More than two, and names that are made anew in the middle.
#[test]
fn any_at_random() {
    for seed in 0..24 {
        let mut rng = Rng(seed);
        let mut world = world(seed % 2 == 0);
        let topology = &mut world.topology;
        let mut jobs: Vec<Job> = Vec::new();
        for _ in 0..40 {
            match rng.below(6) {
                0 | 1 => {
                    let kind = KINDS[rng.below(KINDS.len())];
                    jobs.extend(start(kind, topology));
                }
                2 => remake(&mut rng, topology),
                _ if jobs.is_empty() => continue,
                _ => {
                    let job = jobs.swap_remove(rng.below(jobs.len()));
                    let allowed = 1 + rng.below(300) as u64;
                    jobs.extend(advance(job, topology, allowed));
                }
            }
            topology.assert_structure();
        }
        while let Some(job) = jobs.pop() {
            jobs.extend(advance(job, topology, 200));
            topology.assert_structure();
        }
        topology.assert_invariants();
        assert_eq!(topology.going_vhosts().count(), 0, "{seed}");
    }
}

/// Names that may be going are declared and bound again.
fn remake(rng: &mut Rng, topology: &mut Topology) {
    let vhost = topology.add_vhost("/").unwrap();
    let name = rng.pick(&["x", "y", "auto"]);
    let spec = ExchangeSpec {
        vhost,
        name,
        kind: if name == "auto" { "topic" } else { "direct" },
        durable: name != "auto",
        auto_delete: name == "auto",
        internal: false,
        arguments: Table::new(),
    };
    let _ = topology.declare_exchange(spec);
    let queue = rng.pick(&["q", "q1"]);
    let spec = QueueSpec { vhost, name: queue, ..spec_of(vhost) };
    topology.declare_queue(spec).unwrap();
    for at in 0..rng.below(2 * MANY) {
        let to = Destination::Queue(queue);
        topology.bind(vhost, name, to, &at.to_string(), Table::new(), None).unwrap();
    }
}
