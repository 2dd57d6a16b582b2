//! What a shard gives to consumers of a session elsewhere: as much as letters allow, and it says when it waits for more.

use std::sync::Arc;

use leveret_amqp::content::Properties;
use leveret_amqp::table::Table;
use leveret_broker::Shard;
use leveret_broker::message::*;
use leveret_broker::record::join_names;
use leveret_log::MemoryLog;
use leveret_queue::{Time, delivery_cost};
use leveret_topology::{GroupId, NodeId, QueueId, QueueSpec, Topology};

const ONE: ConnectionId = NodeId::ALONE.connection(1);
const BODY: &[u8] = b"body";
const COST: u64 = delivery_cost(BODY.len() as u64);

struct World {
    shard: Shard<MemoryLog>,
    topology: Topology,
    queue: QueueId,
    now: Time,
}

/// What a turn told a session.
#[derive(Default)]
struct Told {
    given: usize,
    states: Vec<AllowanceState>,
}

impl World {
    fn new() -> Self {
        let mut topology = Topology::new();
        topology.add_vhost("/").expect("a vhost");
        let spec = QueueSpec {
            vhost: topology.vhost("/").expect("there").id,
            name: "q",
            server_named: false,
            durable: true,
            auto_delete: false,
            exclusive_owner: None,
            arguments: Table::new(),
        };
        let queue = topology.declare_queue(spec).expect("declared").id;
        let shard = Shard::new(GroupId::new(0), MemoryLog::new());
        Self { shard, topology, queue, now: Time::from_ms(1_000) }
    }

    fn turn(&mut self, letter: ToShard) -> Told {
        let mut out = Outbox::default();
        self.now = self.now.after_ms(1);
        self.shard.turn(&mut vec![letter], &self.topology, self.now, &mut out);
        let mut told = Told::default();
        for (to, letter) in out.sessions {
            assert_eq!(to, ONE);
            match letter {
                ToSession::Deliver(deliveries) => told.given += deliveries.len(),
                ToSession::AllowanceStates { states, .. } => told.states.extend(states),
                _ => {}
            }
        }
        told
    }

    fn publish(&mut self, count: usize) -> Told {
        let mut properties = Vec::new();
        Properties::default().encode(&mut properties);
        let message = Publish {
            channel: 1,
            confirm: 0,
            targets: [self.queue].into_iter().collect(),
            persistent: false,
            priority: 0,
            expiration_ms: None,
            message: Message::from_parts(&join_names("", "q"), &properties, BODY),
            shared: None,
        };
        self.turn(ToShard::Publish { from: ONE, messages: vec![message; count] })
    }

    fn consume(&mut self, channel: ChannelId, slot: u32) -> Told {
        self.turn(ToShard::Consume {
            user: "".into(),
            reply: ReplyTo { connection: ONE, channel },
            queue: self.queue,
            slot: ConsumerSlot(slot),
            tag: "t".into(),
            no_ack: false,
            exclusive: false,
            priority: 0,
            prefetch: 0,
            gate: None,
            arguments: Arc::default(),
        })
    }

    fn cancel(&mut self, slot: u32) -> Told {
        let (user, queue, slot) = ("".into(), self.queue, ConsumerSlot(slot));
        self.turn(ToShard::Cancel { user, reply: None, connection: ONE, queue, slot })
    }

    fn allow(&mut self, allowances: Vec<Allowance>) -> Told {
        self.turn(ToShard::Allow { connection: ONE, allowances })
    }
}

fn allowance(of: &AllowanceState, version: u64, total: u64) -> Allowance {
    let AllowanceState { of, account, .. } = *of;
    Allowance { of, account, version, total, is_called_back: false }
}

fn waiting(told: &Told) -> Vec<(Option<ChannelId>, u64)> {
    let waiting = told.states.iter().filter(|state| state.is_waiting);
    waiting.map(|state| (state.of, state.total)).collect()
}

#[test]
fn nothing_is_given_before_it_is_allowed_and_never_more() {
    let mut world = World::new();
    world.publish(10);
    let told = world.consume(3, 0);
    let [output, places] = told.states[..] else { panic!("{:?}", told.states) };
    assert_eq!((output.of, places.of, told.given), (None, Some(3), 0));
    assert_eq!([output.version, places.version], [0, 0]);
    // Bytes, and no place.
    let told = world.allow(vec![allowance(&output, 1, 4 * COST)]);
    assert_eq!((told.given, waiting(&told)), (0, vec![(Some(3), 0)]));
    // Places, then bytes for four.
    assert_eq!(world.allow(vec![allowance(&places, 1, 3)]).given, 3);
    let told = world.allow(vec![allowance(&places, 2, 8)]);
    assert_eq!((told.given, waiting(&told)), (1, vec![(None, 4 * COST)]));
    // The same again, an older one, one of another account, and one that is not enough.
    let told = world.allow(vec![allowance(&output, 1, 9 * COST)]);
    assert_eq!((told.given, waiting(&told)), (0, vec![(None, 4 * COST)]));
    let other = AllowanceState { account: AccountId { term: 9, ..output.account }, ..output };
    let told = world.allow(vec![allowance(&other, 5, 9 * COST)]);
    assert_eq!((told.given, told.states.len()), (0, 0));
    let told = world.allow(vec![allowance(&output, 2, 4 * COST)]);
    assert_eq!((told.given, waiting(&told)), (0, vec![(None, 4 * COST)]));
    // The message that crosses it goes.
    let told = world.allow(vec![allowance(&output, 3, 5 * COST + 1)]);
    assert_eq!((told.given, waiting(&told)), (2, vec![(None, 5 * COST + 1)]));
    let both = vec![allowance(&output, 4, 99 * COST), allowance(&places, 3, UNLIMITED)];
    assert_eq!(world.allow(both).given, 4);
}

#[test]
fn what_is_called_back_is_given_back_once() {
    let mut world = World::new();
    let told = world.consume(3, 0);
    let [output, places] = told.states[..] else { panic!("{:?}", told.states) };
    world.allow(vec![allowance(&output, 1, 99 * COST), allowance(&places, 1, 5)]);
    assert_eq!(world.publish(2).given, 2);
    let back = Allowance { is_called_back: true, ..allowance(&places, 2, 5) };
    for _ in 0..2 {
        let told = world.allow(vec![back]);
        assert_eq!(told.states, [AllowanceState { version: 2, total: 2, ..places }]);
    }
    let told = world.publish(1);
    assert_eq!((told.given, waiting(&told)), (0, vec![(Some(3), 2)]));
    assert_eq!(world.allow(vec![back]).given, 0);
    assert_eq!(world.allow(vec![allowance(&places, 3, 3)]).given, 1);
    // Any number, and then none but what came.
    assert_eq!(world.allow(vec![allowance(&places, 4, UNLIMITED)]).given, 0);
    assert_eq!(world.publish(3).given, 3);
    world.allow(vec![allowance(&places, 5, 5)]);
    let told = world.publish(1);
    assert_eq!((told.given, waiting(&told)), (0, vec![(Some(3), 5)]));
    assert_eq!(world.allow(vec![allowance(&places, 6, 7)]).given, 1);
}

/// Other channels of the connection go on; a channel that comes again is another account; over a new link all is told again.
#[test]
fn accounts_come_and_go() {
    let mut world = World::new();
    let told = world.consume(3, 0);
    let [output, three] = told.states[..] else { panic!("{:?}", told.states) };
    let told = world.consume(4, 1);
    let [four] = told.states[..] else { panic!("the output is known: {:?}", told.states) };
    world.allow(vec![allowance(&output, 1, 99 * COST), allowance(&four, 1, 2)]);
    let told = world.publish(4);
    assert_eq!((told.given, waiting(&told)), (2, vec![(Some(3), 0), (Some(4), 2)]));
    world.cancel(0);
    let told = world.consume(3, 2);
    let [again] = told.states[..] else { panic!("{:?}", told.states) };
    assert!(again.account > three.account && again.version == 0);
    assert_eq!(world.allow(vec![allowance(&three, 9, 9)]).given, 0);
    world.shard.link_is_new(NodeId::ALONE);
    let told = world.turn(ToShard::Continue);
    let of: Vec<_> = told.states.iter().map(|it| (it.of, it.version)).collect();
    assert_eq!(of, [(None, 1), (Some(3), 0), (Some(4), 1)]);
    assert_eq!(world.allow(vec![allowance(&again, 1, 9)]).given, 2);
    world.turn(ToShard::Disconnected { connection: ONE, reply: None });
    world.shard.link_is_new(NodeId::ALONE);
    assert_eq!(world.turn(ToShard::Continue).states, []);
}
