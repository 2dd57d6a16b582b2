//! What recent-history exchanges remember: replayed, forgotten and paid for.

use leveret_broker::flow::WAITING_BYTES_MAX;
use leveret_broker::work::Limits;

use crate::*;

fn history_exchange(node: &mut Node) -> ExchangeId {
    history_exchange_named(node, "h")
}

fn history_exchange_named(node: &mut Node, name: &str) -> ExchangeId {
    let spec = ExchangeSpec {
        vhost: node.vhost,
        name,
        kind: "x-recent-history",
        durable: true,
        auto_delete: false,
        internal: false,
        arguments: Table::default(),
    };
    node.topology.declare_exchange(spec).expect("declared")
}

/// A message that passes a recent-history exchange which keeps two.
fn remember(node: &mut Node, exchange: ExchangeId, body: &str, priority: u8) {
    remember_some(node, exchange, 2, &[body], priority);
}

/// Messages that pass a recent-history exchange which keeps `limit`, in one turn.
fn remember_some(node: &mut Node, exchange: ExchangeId, limit: u32, bodies: &[&str], priority: u8) {
    let mut out = Outbox::default();
    let shard = node.topology.history_home(exchange);
    for body in bodies {
        let nowhere = message(QueueId::new(0), "k", body, 0);
        let message = Publish { targets: Targets::new(), persistent: true, priority, ..nowhere };
        out.shard(shard, ToShard::Remember { from: ME, exchange, limit, message });
    }
    node.run(out);
}

/// Who publishes to recent-history exchanges, and pauses when it is told to.
#[derive(Default)]
struct Publisher {
    is_paused: bool,
    pauses: usize,
}

impl Publisher {
    const ID: ConnectionId = NodeId::ALONE.connection(2);

    /// A message of it that passes an exchange which keeps `limit`.
    fn remember(exchange: ExchangeId, limit: u32, body: &str) -> ToShard {
        let nowhere = message(QueueId::new(0), "k", body, 0);
        let message = Publish { targets: Targets::new(), ..nowhere };
        ToShard::Remember { from: Self::ID, exchange, limit, message }
    }

    /// A turn of a shard, which tells nobody else to pause. Whether more is to be done.
    fn turn(&mut self, node: &mut Node, shard: usize, letters: &mut Vec<ToShard>) -> bool {
        let mut out = Outbox::default();
        let goes_on = node.shards[shard].turn(letters, &node.topology, node.now, &mut out);
        for (who, letter) in out.sessions.drain(..) {
            let ToSession::Paused(paused) = letter else { continue };
            assert_eq!((who, paused), (Self::ID, !self.is_paused));
            self.is_paused = paused;
            self.pauses += usize::from(paused);
        }
        goes_on
    }

    /// It did, and goes on.
    fn has_paused(&self) {
        assert!(self.pauses > 0 && !self.is_paused, "{} pauses", self.pauses);
    }
}

#[test]
fn what_a_recent_history_exchange_remembers_is_replayed_as_it_came() {
    let mut node = Node::new();
    let exchange = history_exchange(&mut node);
    for (body, priority) in [("oldest", 9), ("low", 1), ("high", 7)] {
        remember(&mut node, exchange, body, priority);
    }
    let queue = node.declare("q", table(&[("x-max-priority", Value::I32(9))]));
    let mut out = Outbox::default();
    out.shard(node.topology.history_home(exchange), ToShard::Replay { from: ME, exchange, queue });
    node.run(out);
    let persistent =
        node.shards.iter().flat_map(Shard::queues).map(|(_, it)| it.counts().persistent);
    assert_eq!(persistent.sum::<u64>(), 2);
    node.consume(queue, 0, true);
    assert_eq!(node.bodies(), ["high", "low"]);
}

/// A long history is replayed in short turns, as it was when the queue was bound: what passes the exchange meanwhile drops
/// nothing of it, and neither does the end of the exchange. Others have their turns in between.
#[test]
fn a_long_history_is_replayed_in_short_turns() {
    const REMEMBERED: u64 = 20_000;
    for is_deleted in [false, true] {
        let mut node = Node::new();
        let exchange = history_exchange(&mut node);
        let home = node.topology.history_home(exchange);
        let bodies: Vec<String> = (0..REMEMBERED).map(|number| number.to_string()).collect();
        let bodies: Vec<&str> = bodies.iter().map(|body| &**body).collect();
        remember_some(&mut node, exchange, REMEMBERED as u32, &bodies, 0);
        let queues = ["q", "r", "s"].map(|name| node.declare(name, Table::default()));
        let queue = queues[usize::from(node.topology.home(queues[0]) != home)];
        assert_eq!(node.topology.home(queue), home);

        let index = home.index();
        let mut letters = vec![ToShard::Replay { from: ME, exchange, queue }];
        let (mut turns, mut before) = (0, 0);
        loop {
            let mut out = Outbox::default();
            let topology = &node.topology;
            let goes_on = node.shards[index].turn(&mut letters, topology, node.now, &mut out);
            let enqueued = node.shards[index].counters().enqueued;
            assert!(enqueued - before <= 2048, "{} in one turn", enqueued - before);
            (turns, before) = (turns + 1, enqueued);
            if !goes_on {
                break;
            }
            let nowhere = message(QueueId::new(0), "k", "later", 0);
            let message = Publish { targets: Targets::new(), ..nowhere };
            let limit = REMEMBERED as u32;
            letters = vec![ToShard::Remember { from: ME, exchange, limit, message }];
            if is_deleted && turns == 2 {
                node.topology.delete_exchange(node.vhost, "h", false).expect("deleted");
                letters.push(ToShard::Forget { exchange });
            }
        }
        assert!((10..100).contains(&turns), "{turns} turns");
        node.consume_within(1 << 30, queue, 1, true);
        let mut got = Vec::new();
        while let Some(ToSession::Deliver(deliveries)) = node.got.pop_front() {
            got.extend(deliveries.iter().map(body));
        }
        assert_eq!(got, bodies);
        let kept = if is_deleted { 0..1 } else { 1 << 20..4 << 20 };
        assert!(kept.contains(&node.queue_bytes()), "{}", node.queue_bytes());
    }
}

/// A queue gets what is kept when it is bound, and no more: what a replay still needs is not for others, and goes with it,
/// though nothing more is published.
#[test]
fn a_replay_keeps_nothing_for_those_who_bind_later() {
    const LIMIT: u32 = 5000;
    let mut node = Node::new();
    let exchange = history_exchange(&mut node);
    let home = node.topology.history_home(exchange);
    let bodies: Vec<String> = (0..8000).map(|number| format!("{number:04}")).collect();
    let bodies: Vec<&str> = bodies.iter().map(|body| &**body).collect();
    remember_some(&mut node, exchange, LIMIT, &bodies[..5000], 0);
    let names = ["q", "r", "s", "t", "u", "v", "w", "x"];
    let queues = names.map(|name| node.declare(name, Table::default()));
    let mut queues = queues.into_iter().filter(|queue| node.topology.home(*queue) == home);
    let queues = [(); 3].map(|()| queues.next().expect("a queue there"));
    let before = node.queue_bytes();

    let replay = |queue| ToShard::Replay { from: ME, exchange, queue };
    let remember = |body: &&str| {
        let nowhere = message(QueueId::new(0), "k", body, 0);
        let message = Publish { targets: Targets::new(), persistent: true, ..nowhere };
        ToShard::Remember { from: ME, exchange, limit: LIMIT, message }
    };
    let mut letters = vec![replay(queues[0])];
    letters.extend(bodies[5000..].iter().map(remember));
    letters.push(replay(queues[1]));
    node.one_turn(queues[0], letters);
    node.shard(queues[2], replay(queues[2]));
    for (slot, (queue, want)) in
        queues.into_iter().zip([&bodies[..5000], &bodies[3000..], &bodies[3000..]]).enumerate()
    {
        node.consume_within(1 << 30, queue, slot as u32 + 1, true);
        let mut got = Vec::new();
        while let Some(ToSession::Deliver(deliveries)) = node.got.pop_front() {
            got.extend(deliveries.iter().map(body));
        }
        assert!(got == want, "{} from {:?} on", got.len(), got.first());
    }
    assert_eq!(node.queue_bytes(), before);
}

/// What passes an exchange while a replay has not come so far is kept beyond the limit, up to a bound: then whoever publishes
/// pauses until little of it is left.
#[test]
fn who_publishes_past_a_slow_replay_pauses() {
    const LIMIT: u32 = 5000;
    let mut node = Node::new();
    let exchange = history_exchange(&mut node);
    let home = node.topology.history_home(exchange);
    let body = "x".repeat(4000);
    remember_some(&mut node, exchange, LIMIT, &vec![&*body; LIMIT as usize], 0);
    let kept = node.queue_bytes();
    let queues = ["q", "r", "s"].map(|name| node.declare(name, Table::default()));
    let queue = queues[usize::from(node.topology.home(queues[0]) != home)];
    assert_eq!(node.topology.home(queue), home);

    let shard = home.index();
    node.shards[shard].set_limits(Limits { turn: 64, share: 64 });
    let (mut publisher, mut most) = (Publisher::default(), 0);
    let mut letters = vec![ToShard::Replay { from: ME, exchange, queue }];
    loop {
        let goes_on = publisher.turn(&mut node, shard, &mut letters);
        most = most.max(node.queue_bytes() - kept);
        if !goes_on {
            break;
        }
        if !publisher.is_paused {
            letters.extend((0..50).map(|_| Publisher::remember(exchange, LIMIT, &body)));
        }
    }
    publisher.has_paused();
    assert!((WAITING_BYTES_MAX..WAITING_BYTES_MAX + (1 << 20)).contains(&most), "{most}");
    assert!(node.queue_bytes() < kept + (1 << 20), "{}", node.queue_bytes());
}

/// Exchanges that go all at once are let go of for what that costs, and what waits says so once.
#[test]
fn what_many_exchanges_remembered_is_let_go_of_for_its_price() {
    const EXCHANGES: usize = 3000;
    let mut node = Node::new();
    let named = |number| history_exchange_named(&mut node, &format!("h{number}"));
    let mut exchanges: Vec<ExchangeId> = (0..EXCHANGES).map(named).collect();
    exchanges.retain(|exchange| node.topology.history_home(*exchange) == GroupId::at(0));
    for exchange in &exchanges {
        remember_some(&mut node, *exchange, 4, &["a", "b", "c", "d"], 0);
    }
    let forget = |exchange: &ExchangeId| ToShard::Forget { exchange: *exchange };
    let mut letters: Vec<ToShard> = exchanges.iter().map(forget).collect();
    let (topology, now) = (&node.topology, node.now);
    let goes_on = node.shards[0].turn(&mut letters, topology, now, &mut Outbox::default());
    let waits = node.shards[0].under_way();
    assert!(goes_on && waits <= 5 * exchanges.len() as u64, "{waits} units wait");
    node.later(0);
    assert_eq!(node.queue_bytes(), 0);
    assert_eq!(node.shards[0].under_way(), 0);
}

/// Whoever publishes to a recent-history exchange pays for what it has remembered, if others wait.
#[test]
fn what_is_remembered_is_paid_for() {
    let mut node = Node::new();
    let exchange = history_exchange(&mut node);
    let home = node.topology.history_home(exchange);
    let queues = ["q", "r", "s"].map(|name| node.declare(name, Table::default()));
    let queue = queues[usize::from(node.topology.home(queues[0]) != home)];
    let [me, other] = [ME, NodeId::ALONE.connection(2)];
    let publish = |from, body, count| {
        let messages = vec![message(queue, "q", body, 0); count];
        ToShard::Publish { from, messages }
    };
    let remember = |_| {
        let nowhere = message(QueueId::new(0), "k", "x", 0);
        let message = Publish { targets: Targets::new(), ..nowhere };
        ToShard::Remember { from: me, exchange, limit: 10, message }
    };
    let mut letters = vec![publish(me, "mine", 5_000), publish(other, "other", 5_000)];
    letters.extend((0..20_000).map(remember));
    node.one_turn(queue, letters);
    node.consume_within(1 << 30, queue, 1, true);
    let mut got = Vec::new();
    while let Some(ToSession::Deliver(deliveries)) = node.got.pop_front() {
        got.extend(deliveries.iter().map(body));
    }
    let first = got.iter().position(|it| it == "mine");
    assert_eq!((got.len(), first), (10_000, Some(5_000)), "those who do not pay come first");
}

/// What is remembered takes memory, until the exchange goes, by itself or with its vhost; and a message
/// that was on its way then is not remembered for ever.
#[test]
fn a_recent_history_ends_with_its_exchange() {
    let me = ReplyTo { connection: ME, channel: 1 };
    let ends: [fn(ReplyTo, VhostId) -> ToMeta; 2] = [
        |reply, vhost| ToMeta::DeleteExchange {
            by: Box::default(),
            reply,
            vhost,
            name: "h".into(),
            if_unused: false,
        },
        |reply, _| {
            let command = Box::new(AdminCommand::DeleteVhost { name: "/".to_owned() });
            ToMeta::Admin { by: Box::default(), reply, command }
        },
    ];
    for end in ends {
        let mut node = Node::new();
        let exchange = history_exchange(&mut node);
        let body = "x".repeat(1000);
        (0..3).for_each(|_| remember(&mut node, exchange, &body, 0));
        assert!((2000..4000).contains(&node.queue_bytes()), "{}", node.queue_bytes());
        node.run(Outbox { meta: vec![end(me, node.vhost)], ..Outbox::default() });
        assert!(matches!(node.reply(), Reply::Done));
        assert_eq!(node.queue_bytes(), 0);
        remember(&mut node, exchange, &body, 0);
        assert_eq!(node.queue_bytes(), 0, "too late");
    }
}

/// All histories of a shard together have a bound in bytes. What does not fit is taken from the longest one, and a replay of
/// that goes on with what is left.
#[test]
fn histories_have_a_bound_in_bytes() {
    let mut node = Node::new();
    let exchanges = ["a", "b", "c"].map(|name| history_exchange_named(&mut node, name));
    let long = exchanges[0];
    let home = node.topology.history_home(long);
    let mut others = exchanges[1..].iter();
    let short = *others.find(|it| node.topology.history_home(**it) == home).unwrap();
    let index = home.index();
    const MAX: u64 = 64 << 10;
    node.shards[index].set_history_bytes_max(MAX);
    let body = "x".repeat(1000);
    let before = node.shards[index].held_bytes();
    remember_some(&mut node, short, 100, &["first", "second"], 0);
    for _ in 0..10 {
        remember_some(&mut node, long, 1_000_000, &[&*body; 50], 0);
        let taken = node.shards[index].held_bytes() - before;
        assert!(taken < 2 * MAX, "{taken} bytes");
    }
    // A message that does not fit is not remembered, and nothing else is for its sake but what is larger than the rest.
    remember_some(&mut node, long, 1_000_000, &[&*"y".repeat(2 * MAX as usize)], 0);
    remember_some(&mut node, long, 1_000_000, &["last"], 0);
    let [of_short, of_long] = [short, long].map(|exchange| replayed(&mut node, exchange));
    assert_eq!(of_short, ["first", "second"]);
    assert_eq!(of_long, ["last"]);
}

/// A large message pushes out many small ones: some of them at once, and the rest in pieces.
#[test]
fn a_large_message_pushes_out_small_ones_in_pieces() {
    const SMALL: usize = 20_000;
    let mut node = Node::new();
    let exchange = history_exchange(&mut node);
    let shard = node.topology.history_home(exchange).index();
    let before = node.shards[shard].held_bytes();
    remember_some(&mut node, exchange, 1_000_000, &vec!["small"; SMALL], 0);
    let max = node.shards[shard].held_bytes() - before;
    node.shards[shard].set_history_bytes_max(max);
    let large = "x".repeat(max as usize / 2);
    let mut letters = vec![Publisher::remember(exchange, 1_000_000, &large)];
    let (topology, now) = (&node.topology, node.now);
    node.shards[shard].set_limits(Limits { turn: 64, share: 64 });
    let goes_on = node.shards[shard].turn(&mut letters, topology, now, &mut Outbox::default());
    let waits = node.shards[shard].under_way();
    assert!(goes_on && waits <= 1_100, "{waits} were pushed out at once");
    node.later(0);
    assert_eq!(node.shards[shard].under_way(), 0);
    let taken = node.shards[shard].held_bytes() - before;
    assert!((max - max / 50..=max).contains(&taken), "{taken} bytes, and there may be {max}");
    let got = replayed(&mut node, exchange);
    let (last, others) = got.split_last().expect("the large one, at least");
    assert!(*last == large && others.iter().all(|it| it == "small"));
    assert!((SMALL / 3..=SMALL / 2).contains(&others.len()), "{} small ones", others.len());
}

/// What an exchange remembers when a queue is bound to it now.
fn replayed(node: &mut Node, exchange: ExchangeId) -> Vec<String> {
    let queue = node.declare(&format!("q-{}", exchange.get()), Table::default());
    let mut out = Outbox::default();
    let home = node.topology.history_home(exchange);
    out.shard(home, ToShard::Replay { from: ME, exchange, queue });
    node.run(out);
    // However much it is, and in however many turns it comes.
    node.consume_within(1 << 30, queue, 0, true);
    let mut got = Vec::new();
    while !node.got.is_empty() {
        got.extend(node.bodies());
    }
    got
}

/// A history that is longer than most gives up nothing as long as another one is much longer, however many there are.
#[test]
fn many_short_histories_lose_nothing_for_a_long_one() {
    let mut node = Node::new();
    let named = |number| history_exchange_named(&mut node, &format!("h{number}"));
    let mut exchanges: Vec<ExchangeId> = (0..1000).map(named).collect();
    let home = node.topology.history_home(exchanges[0]);
    exchanges.retain(|exchange| node.topology.history_home(*exchange) == home);
    let [long, honest] = [exchanges[0], exchanges[1]];
    const MAX: u64 = 4 << 20;
    node.shards[home.index()].set_history_bytes_max(MAX);
    let before = node.shards[home.index()].held_bytes();
    let body = "x".repeat(1000);
    for exchange in &exchanges[2..] {
        remember_some(&mut node, *exchange, 20, &["short"], 0);
    }
    remember_some(&mut node, long, 1_000_000, &vec![&*body; 5000], 0);
    // More than their share: a 500th of all.
    let bodies: Vec<String> = (0..20).map(|number| format!("{number:02}{body}")).collect();
    let bodies: Vec<&str> = bodies.iter().map(|body| &**body).collect();
    remember_some(&mut node, honest, 20, &bodies, 0);
    let taken = node.shards[home.index()].held_bytes() - before;
    assert!((MAX / 2..=MAX + MAX / 4).contains(&taken), "{taken} bytes");
    assert!(replayed(&mut node, honest) == bodies);
    assert_eq!(replayed(&mut node, exchanges[2]), ["short"]);
    assert_eq!(replayed(&mut node, *exchanges.last().unwrap()), ["short"]);
}

/// What exchanges remembered that are gone is bounded by the pauses of those who publish to others, until it is let go of.
#[test]
fn who_publishes_while_much_is_to_be_let_go_of_pauses() {
    let mut node = Node::new();
    let named = |number| history_exchange_named(&mut node, &format!("h{number}"));
    let mut exchanges: Vec<ExchangeId> = (0..40).map(named).collect();
    let home = node.topology.history_home(exchanges[0]);
    exchanges.retain(|exchange| node.topology.history_home(*exchange) == home);
    let shard = home.index();
    const MAX: u64 = 4 << 20;
    node.shards[shard].set_history_bytes_max(MAX);
    node.shards[shard].set_limits(Limits { turn: 64, share: 64 });
    let before = node.queue_bytes();
    let body = "x".repeat(1000);
    let (mut publisher, mut most) = (Publisher::default(), 0);
    let mut exchanges = exchanges.into_iter();
    let mut letters = Vec::new();
    loop {
        // Each turn fills a history, and the exchange goes.
        if !publisher.is_paused
            && let Some(exchange) = exchanges.next()
        {
            letters.extend((0..4000).map(|_| Publisher::remember(exchange, 1_000_000, &body)));
            letters.push(ToShard::Forget { exchange });
        }
        let goes_on = publisher.turn(&mut node, shard, &mut letters);
        most = most.max(node.queue_bytes() - before);
        if !goes_on {
            break;
        }
    }
    publisher.has_paused();
    assert_eq!(exchanges.count(), 0);
    assert!((WAITING_BYTES_MAX..WAITING_BYTES_MAX + 3 * MAX).contains(&most), "{most}");
    assert_eq!(node.queue_bytes(), before);
}
