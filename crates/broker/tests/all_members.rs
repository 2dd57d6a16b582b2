//! A shard whose queues want confirms to stand for the copies of all members in contact (`replication-confirm`).

#[path = "hand/log.rs"]
mod log;

use leveret_amqp::content::Properties;
use leveret_amqp::table::{Table, Value};
use leveret_broker::Shard;
use leveret_broker::message::*;
use leveret_broker::record::join_names;
use leveret_broker::shard::Users;
use leveret_broker::stream::{Numbered, StreamClass, StreamEvent, StreamId};
use leveret_broker::transaction::{Decided, TxId};
use leveret_log::{Log as _, Moment};
use leveret_queue::Time;
use leveret_topology::{ApplyTo, GroupId, NodeId, PolicySpec, QueueId, QueueSpec, Topology};
use log::HandLog;

const ME: ReplyTo = ReplyTo { connection: NodeId::ALONE.connection(1), channel: 1 };
const BODIES: StreamId = StreamId { node: NodeId::ALONE, start: 1, class: StreamClass::Bodies };
const TX: TxId = TxId::new(7);

struct World {
    log: HandLog,
    shard: Shard<HandLog>,
    topology: Topology,
    /// Of all, and of a majority.
    queues: [QueueId; 2],
    now: Time,
    confirmed: Vec<u64>,
    replies: usize,
    news: Vec<StreamEvent>,
}

impl World {
    /// A log that others have, too.
    fn new() -> Self {
        Self::over(Some(Moment::default()))
    }

    fn over(agreed: Option<Moment>) -> Self {
        let mut topology = Topology::new();
        topology.add_vhost("/").expect("a vhost");
        let queues = ["all", "majority"].map(|name| {
            let enqueue = ("x-confirm-on".to_owned(), Value::from("enqueue"));
            declare(&mut topology, name, [enqueue].into_iter().collect())
        });
        let log = HandLog::default();
        log.hand().agrees = agreed.is_some();
        (log.hand().agreed, log.hand().on_all) = (agreed, Some(Moment::default()));
        let shard = Shard::new(GroupId::new(0), log.clone());
        let (now, confirmed, replies, news) = (Time::from_ms(1_000), vec![], 0, vec![]);
        let mut world = Self { log, shard, topology, queues, now, confirmed, replies, news };
        world.turn(queues.map(|queue| ToShard::Create { reply: None, queue }));
        world.policy("all");
        world
    }

    /// The policy of the first queue.
    fn policy(&mut self, replication: &str) {
        let value = serde_json::Value::from(replication);
        let definition = [("replication-confirm".to_owned(), value)].into_iter().collect();
        let policy = PolicySpec {
            name: "p",
            pattern: "^all$",
            apply_to: ApplyTo::Queues,
            priority: 0,
            definition,
        };
        let changed = self.topology.set_policy("/", policy).expect("set");
        self.turn(changed.into_iter().map(|queue| ToShard::OptionsChanged { queue }));
    }

    /// A queue whose messages all are to have, unless a consumer acks them before.
    fn declare_first(&mut self) -> QueueId {
        let value = serde_json::json!({"confirm-on": "first", "replication-confirm": "all"});
        let serde_json::Value::Object(definition) = value else { unreachable!() };
        let policy = PolicySpec {
            name: "q",
            pattern: "^first$",
            apply_to: ApplyTo::Queues,
            priority: 0,
            definition,
        };
        self.topology.set_policy("/", policy).expect("set");
        declare(&mut self.topology, "first", Table::default())
    }

    fn turn(&mut self, letters: impl IntoIterator<Item = ToShard>) {
        let mut out = Outbox::default();
        self.now = self.now.after_ms(1);
        let mut letters = letters.into_iter().collect();
        self.shard.turn(&mut letters, &self.topology, self.now, &mut out);
        self.hear(out);
    }

    fn hear(&mut self, out: Outbox) {
        for (_, letter) in out.sessions {
            match letter {
                ToSession::Confirm { first, last, ok: true, .. } => {
                    self.confirmed.extend(first..=last);
                }
                ToSession::Reply { reply: Reply::Committed, .. } => self.replies += 1,
                ToSession::Reply { reply: Reply::Purged(_), .. } => {}
                other => panic!("{other:?}"),
            }
        }
        self.news.extend(out.news.into_iter().map(|(_, news)| news.what));
    }

    fn publish(&mut self, messages: impl IntoIterator<Item = Publish>) {
        let from = ME.connection;
        self.turn([ToShard::Publish { from, messages: messages.into_iter().collect() }]);
    }

    /// The disk does all that it was given, and others agree.
    fn write(&mut self) {
        while self.log.hand().finish() {
            self.turn([ToShard::LogWoke]);
        }
    }

    /// All members in contact have what a majority has: those are confirmed now.
    fn reach_all(&mut self) -> Vec<u64> {
        let agreed = self.log.hand().agreed;
        self.log.hand().on_all = agreed;
        self.turn([ToShard::LogWoke]);
        self.take()
    }

    fn take(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.confirmed)
    }

    fn all_use(&self) -> (bool, bool) {
        self.log.hand().all_use
    }
}

fn declare(topology: &mut Topology, name: &str, arguments: Table) -> QueueId {
    let spec = QueueSpec {
        vhost: topology.vhost("/").expect("there").id,
        name,
        server_named: false,
        durable: true,
        auto_delete: false,
        exclusive_owner: None,
        arguments,
    };
    topology.declare_queue(spec).expect("declared").id
}

/// A message whose number is that of its confirm.
fn message(number: u64, targets: &[QueueId]) -> Publish {
    let mut properties = Vec::new();
    Properties::default().encode(&mut properties);
    Publish {
        channel: 1,
        confirm: number,
        targets: targets.iter().copied().collect(),
        persistent: true,
        priority: 0,
        expiration_ms: None,
        message: Message::from_parts(&join_names("", "q"), &properties, b"body"),
        shared: None,
    }
}

/// A message to both queues waits as the one that waits for more does.
#[test]
fn a_confirm_waits_for_all_members_in_contact() {
    let mut world = World::new();
    let [all, majority] = world.queues;
    world.turn([ToShard::Continue]);
    assert_eq!(world.all_use(), (true, false), "nobody waits");
    let messages =
        [message(1, &[all]), message(2, &[majority]), message(3, &[majority, all])].into_iter();
    world.publish(messages);
    world.write();
    assert_eq!(world.take(), [2]);
    assert_eq!(world.all_use(), (true, true));
    // Later ones do not wait for these.
    world.publish([message(4, &[majority])]);
    world.write();
    assert_eq!(world.take(), [4]);
    assert_eq!(world.reach_all(), [1, 3]);
    world.turn([ToShard::Continue]);
    assert_eq!(world.all_use(), (true, false));
    world.policy("majority");
    world.turn([ToShard::Continue]);
    assert_eq!(world.all_use(), (false, false));
}

/// A consumer's ack confirms it under `first`, whoever has it.
#[test]
fn an_ack_may_be_first() {
    let mut world = World::new();
    let [all, _] = world.queues;
    let first = world.declare_first();
    world.publish([message(1, &[first]), message(2, &[all])]);
    world.write();
    assert_eq!(world.take(), [0; 0]);
    world.turn([ToShard::Purge { reply: ME, queue: first, max: 1 }]);
    world.write();
    assert_eq!(world.take(), [1]);
    assert_eq!(world.reach_all(), [2]);
}

/// Who waits is told as soon as a majority has it; and who did not wait does not begin to.
#[test]
fn a_policy_changes_while_confirms_wait() {
    let mut world = World::new();
    let [all, majority] = world.queues;
    world.publish([message(1, &[all]), message(2, &[majority, all])]);
    world.write();
    assert_eq!(world.take(), [0; 0]);
    world.policy("majority");
    assert_eq!(world.take(), [1, 2], "a majority has them");
    world.policy("all");
    world.publish([message(3, &[all])]);
    world.policy("majority");
    assert_eq!(world.take(), [0; 0]);
    world.write();
    assert_eq!(world.take(), [3]);

    world.publish([message(4, &[all])]);
    world.policy("all");
    world.publish([message(5, &[all])]);
    world.write();
    assert_eq!(world.take(), [4]);
    assert_eq!(world.reach_all(), [5]);
}

/// The same of who committed: a transaction waits for the last of its queues that wants it.
#[test]
fn a_policy_changes_while_commits_wait() {
    for is_part in [false, true] {
        let mut world = World::new();
        let [all, majority] = world.queues;
        let (reply, tx) = (ME, TX);
        let commit = |targets: &[&[QueueId]]| {
            let messages = targets.iter().map(|ids| message(0, ids)).collect();
            let settlements = Vec::new();
            match is_part {
                true => ToShard::Prepare { reply, tx, parts: 2, messages, settlements },
                false => ToShard::Commit { reply, messages, settlements },
            }
        };
        let mut committed = |targets: &[&[QueueId]], policies: &[&str]| {
            world.turn([commit(targets)]);
            world.write();
            if is_part {
                world.turn([ToShard::Decide { tx, commit: true }]);
                world.write();
            }
            let told = policies.iter().map(|policy| {
                world.policy(policy);
                std::mem::take(&mut world.replies)
            });
            told.collect::<Vec<_>>()
        };
        assert_eq!(committed(&[&[all], &[majority, all]], &["all", "majority", "all"]), [0, 1, 0]);
        assert_eq!(committed(&[&[majority]], &["all"]), [1]);
        // One that the disk has not got yet.
        world.turn([commit(&[&[all]])]);
        world.policy("majority");
        assert_eq!(world.replies, 0, "a part {is_part}");
        world.write();
        if is_part {
            world.turn([ToShard::Decide { tx, commit: true }]);
            world.write();
        }
        assert_eq!(world.replies, 1, "a part {is_part}");
    }
}

/// Two queues that both want it: one of them changes its mind.
#[test]
fn a_message_waits_for_the_last_of_its_queues_that_wants_it() {
    let mut world = World::new();
    let [all, majority] = world.queues;
    let name = "r";
    let definition = [("replication-confirm".to_owned(), "all".into())].into_iter().collect();
    let (pattern, apply_to, priority) = ("^majority$", ApplyTo::Queues, 0);
    let policy = PolicySpec { name, pattern, apply_to, priority, definition };
    let changed = world.topology.set_policy("/", policy).expect("set");
    assert_eq!(changed, [majority]);
    world.turn([ToShard::OptionsChanged { queue: majority }]);
    world.publish([message(1, &[all, majority])]);
    world.write();
    world.policy("majority");
    assert_eq!(world.take(), [0; 0]);
    world.topology.clear_policy("/", name).expect("there");
    world.turn([ToShard::OptionsChanged { queue: majority }]);
    assert_eq!(world.take(), [1]);
}

#[test]
fn alone_it_makes_no_difference() {
    let mut world = World::over(None);
    let [all, _] = world.queues;
    world.publish([message(1, &[all])]);
    assert_eq!(world.take(), [0; 0]);
    world.write();
    assert_eq!(world.take(), [1]);
    assert!(!world.all_use().1);
}

/// One that is for this shard alone, and one that others have parts of.
#[test]
fn a_commit_waits_for_all_members_in_contact() {
    for is_part in [false, true] {
        for (place, waits) in [(0, true), (1, false)] {
            let mut world = World::new();
            let messages = vec![message(0, &[world.queues[place]])];
            let (reply, settlements) = (ME, Vec::new());
            if is_part {
                let (tx, parts) = (TX, 2);
                world.turn([ToShard::Prepare { reply, tx, parts, messages, settlements }]);
                world.write();
                world.turn([ToShard::Decide { tx, commit: true }]);
            } else {
                world.turn([ToShard::Commit { reply, messages, settlements }]);
            }
            world.write();
            let case = format!("a part {is_part}, waits {waits}");
            assert_eq!(world.replies, usize::from(!waits), "{case}");
            world.reach_all();
            assert_eq!(world.replies, 1, "{case}");
        }
    }
}

fn numbered(number: u64, messages: Vec<Publish>) -> ToShard {
    ToShard::Numbered(Box::new(Numbered {
        stream: BODIES,
        number,
        term: u64::MAX,
        heard_below: 1,
        undecided_from: 1,
        is_again: false,
        letter: ToShard::Publish { from: ME.connection, messages },
    }))
}

/// What was agreed upon and not told by the shard before is not told by the next one before all have it. Nor is it said to have been told.
#[test]
fn a_new_leader_waits_as_the_one_before_did() {
    let mut world = World::new();
    let [all, majority] = world.queues;
    let letters = || {
        let stripped = Publish { targets: Targets::default(), ..message(3, &[]) };
        let second = vec![stripped];
        [numbered(1, vec![message(1, &[all]), message(2, &[majority])]), numbered(2, second)]
    };
    let [first, _] = letters();
    world.turn([first, numbered(2, vec![message(3, &[all])])]);
    world.write();
    assert_eq!(world.take(), [2]);
    assert_eq!(world.news.split_off(0).last(), Some(&StreamEvent::Agreed { low: 2, told: 0 }));

    world.log = world.log.crash();
    let moment = world.log.moment();
    world.log.hand().agrees = true;
    (world.log.hand().agreed, world.log.hand().on_all) = (Some(moment), Some(Moment::default()));
    let mut out = Outbox::default();
    let decided = Decided::default();
    let log = world.log.clone();
    world.shard.lose(log, Users::AreCutOff(&[]), &world.topology, &decided, world.now, &mut out);
    world.hear(out);
    world.turn(letters());
    assert_eq!(world.take(), [2], "of one that is agreed upon its sender does not say the queues");
    assert_eq!(world.news.split_off(0).last(), Some(&StreamEvent::Agreed { low: 2, told: 0 }));
    assert_eq!(world.reach_all(), [1, 3]);
    assert_eq!(world.news.split_off(0).last(), Some(&StreamEvent::Agreed { low: 2, told: 2 }));
}

/// Who does not wait for all any more, as a message is gone before they have it, is told with the turn that let it go. A stream is not said to
/// be told before that, though all have the message by then: the next leader would take what its sender asks for to be lost.
#[test]
fn what_is_over_before_all_have_it_is_told_with_its_turn() {
    for is_on_all in [true, false] {
        let mut world = World::new();
        let first = world.declare_first();
        world.turn([numbered(1, vec![message(1, &[first])])]);
        world.write();
        let is_told = |told| Some(StreamEvent::Agreed { low: 1, told });
        assert_eq!(world.news.split_off(0).pop(), is_told(0), "{is_on_all}");
        world.turn([ToShard::Purge { reply: ME, queue: first, max: 1 }]);
        if is_on_all {
            assert_eq!(world.reach_all(), [0; 0]);
        } else {
            world.turn([ToShard::Continue]);
        }
        assert_eq!(world.news, [], "the purge is not agreed upon: {is_on_all}");
        world.write();
        assert_eq!(world.take(), [1], "{is_on_all}");
        if !is_on_all {
            assert_eq!(world.news, [], "others may wait");
            world.reach_all();
        }
        assert_eq!(world.news.pop(), is_told(1), "{is_on_all}");
    }
}

/// The disk fails of a leader whose messages others have: nobody is told that they are not stored, and whose letters have numbers asks the next
/// leader.
#[test]
fn who_waits_is_not_told_no_when_the_disk_fails() {
    let mut world = World::new();
    let [all, majority] = world.queues;
    world.turn([numbered(1, vec![message(1, &[all]), message(2, &[majority])])]);
    let commit = ToShard::Commit {
        reply: ReplyTo { channel: 2, ..ME },
        messages: vec![message(0, &[all])],
        settlements: Vec::new(),
    };
    world.turn([commit]);
    world.write();
    assert_eq!(world.take(), [2]);
    world.turn([numbered(2, vec![message(3, &[majority])])]);
    world.log.hand().fails = true;
    let mut out = Outbox::default();
    let mut letters = vec![ToShard::LogWoke, numbered(3, vec![message(4, &[majority])])];
    world.shard.turn(&mut letters, &world.topology, world.now, &mut out);
    assert!(out.failed.is_some());
    world.hear(out);
    world.turn([numbered(4, vec![message(5, &[majority])])]);
    assert_eq!((world.take(), world.replies), (vec![], 0));
}
