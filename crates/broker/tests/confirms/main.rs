//! When publishers are told: each rule, each way out of a queue, each fan-out; what the disk gets for it;
//! and what a crash or a failing disk leaves.

mod letters;
#[path = "../hand/lines.rs"]
mod lines;
#[path = "../hand/log.rs"]
mod log;
mod node;
mod quick;
mod random;

use leveret_broker::flow::Alarm;
use leveret_broker::message::*;
use leveret_broker::shard::NackReason;
use leveret_broker::transaction::TxId;
use node::{Node, PUBLISHER};

/// Words: `p1:ab` message 1, persistent, to queues a and b; `t1:ab` transient; `n:a` persistent, without a
/// confirm; `A1:a`, `E1:a` with the header `x-confirm-on` ack, enqueue; `c:a` a consumer, `c1:a` one with
/// prefetch 1, `x:a` one that never acks; `ack:a`, `rej:a`, `req:a` settle the oldest; `get:a` without ack;
/// `purge1:a` purges the first one, `discard:a` the second; `mv:az` moves the first one of a to z; `disk` the disk finishes what it has; `+5` later, in ms. `|` looks at what was told.
#[track_caller]
fn check(queues: &str, script: &str, want: &str) {
    let mut node = Node::new(queues);
    let mut got = Vec::new();
    for word in script.split_whitespace() {
        match word {
            "|" => got.push(node.take_told()),
            word => node.word(word),
        }
    }
    got.push(node.take_told());
    let want: Vec<&str> = want.split('|').map(str::trim).collect();
    assert_eq!(got, want, "{queues}  {script}");
}

#[test]
#[rustfmt::skip] // a table
fn rules() {
    // queues          what happens                      what is told
    check("a",         "p1:a | disk",                    "| 1");         // `first` is the default
    check("a",         "t1:a",                           "1");           // transient: at once
    check("a:transient", "p1:a",                         "1");
    check("a",         "c:a p1:a | ack:a",               "| 1");         // never written
    check("a",         "c:a p1:a | +5 | disk",           "| | 1");       // slow: written, then confirmed
    check("a",         "x:a p1:a",                       "1");           // handed over is acked
    check("a",         "p1:a get:a",                     "1");
    check("a",         "c1:a p1:a p2:a | disk",          "| 1 2");       // 2 is ready: the disk is asked
    check("a",         "p1:a | p2:a p3:a | disk | disk", "| | 1 | 2 3"); // one batch at a time
    check("a:enqueue", "p1:a | disk",                    "| 1");
    check("a:enqueue", "c:a p1:a | ack:a | disk",        "| | 1");       // the disk alone decides
    check("a:enqueue", "t1:a",                           "1");
    check("a:ack",     "p1:a disk +4 disk | c:a | ack:a", "| | 1");
    check("a:ack",     "t1:a disk | c:a | ack:a",        "| | 1");       // transient ones too
    check("a:ack,transient", "p1:a | c:a ack:a",         "| 1");
    check("a:ack",     "x:a p1:a",                       "1");
    check("a:ack",     "p1:a | get:a",                   "| 1");
    check("a:ack",     "c:a p1:a req:a | ack:a",         "| 1");         // it came back, it was acked later
    check("a:ack",     "c:a p1:a p2:a p3:a acklast:a | ack:a ack:a", "3 | 1 2");
}

#[test]
#[rustfmt::skip] // a table
fn other_ways_out() {
    // Under `ack` they are no success.
    check("a:ack",            "c:a p1:a | rej:a",        "| -1");
    check("a:ack,ttl10",      "p1:a | +10",              "| -1");
    check("a:ack,max1",       "p1:a p2:a | get:a",       "-1 | 2");
    check("a:ack,reject1",    "p1:a p2:a | get:a",       "-2 | 1");
    check("a:ack",            "p1:a | purge:a",          "| -1");
    check("a:ack",            "p1:a p2:a purge1:a | purge:a", "-1 | -2");
    check("a:ack",            "p1:a p2:a discard:a | purge:a", "-2 | -1");
    check("a:ack",            "p1:a c:a p2:a | del:a",   "| -1 -2");
    // Moved is as dead-lettered: it is in another queue, when it is safe there.
    check("z a:ack",          "p1:a mv:az | disk | get:z", "| -1 |");
    check("z a:ack,dla",      "p1:a mv:az | disk",       "| 1");
    check("z a",              "p1:a mv:az | disk disk",  "| 1");
    check("z:reject0 a:ack",  "p1:a mv:az disk | get:a", "| 1");         // refused: where it was
    check("z a:ack",          "t1:a | mv:az",            "| -1");
    check("z a:ack",          "p1:a mv:az | del:a disk", "| -1");
    check("a:ack",            "del:a p1:a",              "-1");          // routed a moment before
    check("a:ack,limit0",     "c:a p1:a | req:a",        "| -1");
    // A dead letter has left when it is safe where it went.
    check("z a:ack,dlx",      "c:a p1:a | rej:a | disk", "| | -1");
    check("z a:ack,dlx,dla",  "c:a p1:a | rej:a | disk", "| | 1");
    check("z a:ack,dlx,dla",  "c:a t1:a | rej:a",        "| 1");
    check("z a:ack,dlx,dla",  "c:a p1:a | del:z rej:a",  "| -1");        // dead-lettered to nowhere
    check("z a:ack,dlx,ttl10", "p1:a | +10 | disk",      "| | -1");
    check("z a:ack,dlx,dla,ttl10", "p1:a | +10 | disk",  "| | 1");
    // Under `first` and `enqueue` the queue had it, as in RabbitMQ.
    check("a",                "c:a p1:a | rej:a",        "| 1");
    check("a:ttl10",          "c:a +0 p1:a | disk | rej:a", "| | 1");
    check("a:max1",           "p1:a p2:a | disk disk",   "1 | 2");
    check("a:ttl10",          "p1:a | +10",              "| 1");
    check("a",                "p1:a | purge:a",          "| 1");
    check("a",                "p1:a | del:a",            "| 1");
    check("a",                "del:a p1:a",              "1");
    check("z a:dlx",          "c:a p1:a | rej:a | disk", "| | 1");
    check("a:enqueue,ttl10",  "p1:a | +10 | disk",       "| | 1");
    // Refused is refused.
    check("a:reject1",        "p1:a p2:a | disk",        "-2 | 1");
    check("a:enqueue,reject1", "p1:a p2:a | disk",       "-2 | 1");
    check("a:reject1",        "t1:a t2:a",               "1 -2");
}

#[test]
#[rustfmt::skip] // a table
fn fan_out() {
    check("a b",             "p1:ab | disk",                      "| 1");
    check("a b",             "c:a c:b p1:ab ack:a | ack:b",       "| 1");
    check("a b",             "c:a c:b p1:ab ack:a | +5 disk",     "| 1");   // b waits for the disk
    check("a b:ack",         "c:a c:b p1:ab | +5 disk | ack:b",   "| | 1"); // each by its own rule
    check("a b:ack",         "c:a c:b p1:ab ack:b | ack:a",       "| 1");
    check("a b:ack",         "c:a c:b p1:ab ack:a | ack:b",       "| 1");
    check("a:enqueue b:ack", "c:a c:b p1:ab ack:a ack:b | disk",  "| 1");
    check("a b:transient",   "c:a c:b p1:ab ack:b | ack:a",       "| 1");   // b's does not count for a
    check("a b:transient",   "c:a c:b p1:ab ack:a",               "1");
    check("a:ack b:ack",     "c:a c:b p1:ab ack:a | rej:b",       "| -1");
    check("a:ack b:ack",     "c:a c:b p1:ab rej:a | ack:b",       "| -1");  // told when all is known
    check("a:ack b",         "c:a c:b p1:ab rej:a | ack:b",       "| -1");
    check("a:ack b",         "c:a c:b p1:ab rej:b | ack:a",       "| 1");
    check("z a:ack,dlx,dla b:ack,dlx", "c:a c:b p1:ab rej:a disk | ack:b", "| 1");
    check("z a:ack,dlx,dla b:ack,dlx", "c:a c:b p1:ab rej:b disk | ack:a", "| -1");
    check("a:ack b:ack,reject1", "c:a t9:b p1:ab | ack:a",         "| -1");
    check("a:ack b:ack",     "p1:ab del:a | get:b",               "| -1");
}

/// Document 000: with n queues, n - 1 acks are no confirm.
#[test]
fn every_queue_has_to_ack() {
    for count in [1, 2, 3, 15] {
        for persistent in [true, false] {
            let names: String = ('a'..='o').take(count).collect();
            let queues: Vec<String> = names.chars().map(|name| format!("{name}:ack")).collect();
            let mut node = Node::new(&queues.join(" "));
            for name in names.chars() {
                node.consume(node.queue(name), false, 0);
            }
            node.word(&format!("{}1:{names}", if persistent { 'p' } else { 't' }));
            for name in names.chars() {
                assert_eq!(node.take_told(), "", "{count}");
                node.word(&format!("ack:{name}"));
            }
            assert_eq!(node.take_told(), "1");
        }
    }
}

/// `ack-lean`: what is handed out is known to the consumer's channel alone.
#[test]
#[rustfmt::skip] // a table
fn lean() {
    check("a:ack-lean", "c:a p1:a | ack:a",              "| 1");
    check("a:ack-lean", "c:a t1:a | ack:a",              "| 1");
    check("a:ack-lean", "p1:a | +5000 disk | c:a ack:a", "| | 1");
    check("a:ack-lean", "x:a p1:a",                      "1");
    check("a:ack-lean", "c:a p1:a p2:a | rej:a ack:a",   "| -1 2");
    check("a:ack-lean", "c:a p1:a | req:a",              "| -1");        // it cannot come back
    check("a:ack-lean", "c:a p1:a | del:a | ack:a",      "| | 1");       // lent before the queue went
    check("a:ack-lean", "c:a p1:a | del:a | rej:a",      "| | -1");
    check("a:ack-lean", "p1:a | del:a p2:a",             "| -1 -2");
    check("a:ack-lean", "c1:a p1:a p2:a | ack:a | ack:a", "| 1 | 2");    // prefetch holds
    check("a:ack-lean,ttl10", "p1:a | +10",              "| -1");
    check("a:ack-lean,timeout50", "c:a p1:a +50 | ack:a", "!1 |");
    check("a:ack-lean b", "c:a c:b p1:ab | ack:b | ack:a", "| | 1");
    check("a:ack-lean b", "c:a p1:ab | ack:a | disk",    "| | 1");
    check("a:ack-lean b:ack", "c:a c:b p1:ab ack:b | req:a", "| -1");
    check("a:ack-lean,hdr", "E1:a | disk | c:a ack:a",   "| | 1");       // no header changes it
}

#[test]
fn a_lent_message_is_let_go_of_at_once() {
    let mut node = Node::new("a:ack-lean");
    node.word("c1:a");
    for word in ["p1:a", "p2:a", "p3:a"] {
        node.word(word);
    }
    assert_eq!(node.shard.usage().records, 2, "the first one is gone");
    for _ in 0..3 {
        node.word("ack:a");
    }
    assert_eq!((node.shard.usage().records, node.log().syncs), (0, 0));
    assert_eq!(node.take_told(), "1 2 3");
}

/// Where nobody could be told that it was lost, nothing is lent.
#[test]
fn what_nobody_waits_for_is_kept_until_it_is_acked() {
    let mut node = Node::new("a:ack-lean");
    node.word("c:a");
    node.word("n:a");
    let messages = vec![node.message(0, "a", true, None)];
    commit(&mut node, messages, vec![]);
    assert_eq!(node.shard.usage().records, 2);
    for word in ["req:a", "req:a", "ack:a", "ack:a"] {
        node.word(word);
    }
    assert_eq!(node.shard.usage().records, 0);
}

#[test]
#[rustfmt::skip] // a table
fn headers_and_policies() {
    check("a",          "A1:a | disk",          "| 1");          // the queue does not allow it
    check("a:hdr",      "A1:a disk | get:a",    "| 1");
    check("a:hdr,ack",  "E1:a | disk",          "| 1");
    check("a:hdr",      "p1:a | disk",          "| 1");
    check("a:hdr b:ack", "A1:ab disk get:a | get:b", "| 1");

    let mut node = Node::new("a");
    node.word("p1:a");
    node.policy(r#"{"confirm-on": "ack"}"#);
    node.word("p2:a");
    node.word("disk");
    assert_eq!(node.take_told(), "1", "published under the rule before");
    node.word("get:a");
    node.word("get:a");
    assert_eq!(node.take_told(), "2");
}

#[test]
#[rustfmt::skip] // a table
fn timeouts() {
    check("a:ack,timeout50",  "p1:a +49 | +1 | get:a",             "| !1 |");   // the message stayed
    check("a:timeout50",      "p1:a +50 | disk",                   "!1 |");
    check("a:ack,timeout50",  "p1:a +20 get:a | +100",             "1 |");
    check("a:ack,timeout50 b:ack", "p1:ab p2:b +50 | get:b get:b", "!1 | 2");
    check("a:ack,timeout50",  "p1:a +25 p2:a +25 | +25",           "!1 | !2");
}

/// Releases that find the disk busy with others wait for their turn, and are not forgotten when nothing follows.
#[test]
fn releases_get_to_a_disk_that_was_busy() {
    let mut node = Node::new("a");
    for word in ["p1:a", "disk", "p2:a", "disk", "get:a", "+200"] {
        node.word(word);
    }
    assert_eq!(node.log().on_disk().len(), 2, "at the disk");
    for word in ["get:a", "+200", "disk", "+200", "disk"] {
        node.word(word);
    }
    assert_eq!(node.log().on_disk(), []);
    assert_eq!(node.shard.next_timeout().filter(|at| at.ms() < node.now.ms() + 500), None);
}

/// A message that waits for its ack is not written, until it waited for long.
#[test]
fn deferred() {
    let mut node = Node::new("a:ack,defer40 b:ack");
    for word in ["p1:a", "n:a", "p2:b", "t3:a", "+39", "disk"] {
        node.word(word);
    }
    assert_eq!(node.log().written_bytes, 0);
    node.word("+1");
    assert_eq!(node.log().on_disk(), [], "at the disk");
    node.word("disk");
    assert_eq!(node.log().on_disk().iter().map(|&(at, _)| at).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(node.take_told(), "", "the ack is what counts");
    node.word("+1000");
    node.word("disk");
    assert_eq!(node.log().on_disk().iter().map(|&(at, _)| at).collect::<Vec<_>>(), [0, 1, 2]);
    for word in ["get:a", "get:b", "get:a", "get:a"] {
        node.word(word);
    }
    assert_eq!(node.take_told(), "1 2 3");
    node.word("+200");
    node.word("disk");
    assert_eq!(node.log().on_disk(), [], "releases get there too");
    assert_eq!(node.shard.next_timeout().filter(|at| at.ms() < node.now.ms() + 1000), None);
}

/// A queue that waits for its consumers no more: publishers are told when the disk has what is in it; those of
/// transient messages at once, and those of what is forgotten when it is handed out by its ack, as ever.
#[test]
fn a_rule_that_is_changed_frees_those_who_wait() {
    let mut node = Node::new("a b c:enqueue d:ack");
    node.policy(r#"{"confirm-on": "ack", "confirm-defer": 40}"#);
    node.word("c1:a");
    // One is out with the consumer, one is deferred and on the disk, others are in memory, some in several queues.
    for word in ["p1:a", "p2:a", "+40", "disk", "p3:a", "t4:a", "p5:ab", "p6:ac", "p7:ad", "p8:da"]
    {
        node.word(word);
    }
    node.policy(r#"{"confirm-on": "ack-lean"}"#);
    assert_eq!(node.take_told(), "", "it still waits for consumers");
    node.policy(r#"{"confirm-on": "enqueue"}"#);
    assert_eq!(node.take_told(), "4");
    // The consumer has 1 and is given 2, then 3: what has left before it is safe is told by its ack, once.
    node.word("ack:a");
    assert_eq!(node.take_told(), "1");
    node.word("disk");
    node.word("disk");
    assert_eq!(node.take_told(), "2 3 5 6", "d has a rule of its own");
    for _ in 0..8 {
        node.word("ack:a");
        node.word("get:b");
    }
    assert_eq!(node.take_told(), "");
    node.word("get:d");
    node.word("get:d");
    assert_eq!(node.take_told(), "7 8");
    for word in ["+200", "disk", "+200", "disk", "get:c", "+200", "disk", "+200", "disk"] {
        node.word(word);
    }
    assert_eq!(node.log().on_disk(), []);
}

/// The same under `ack-lean`: a message that a consumer may take with it is not safe.
#[test]
fn what_is_lent_waits_for_its_ack_whatever_the_rule_becomes() {
    let mut node = Node::new("a");
    node.policy(r#"{"confirm-on": "ack-lean"}"#);
    node.word("p1:a");
    node.word("p2:a");
    node.policy(r#"{"confirm-on": "enqueue"}"#);
    for word in ["disk", "disk", "c1:a"] {
        node.word(word);
    }
    assert_eq!(node.take_told(), "");
    node.word("ack:a");
    node.word("rej:a");
    assert_eq!(node.take_told(), "1 -2");
}

/// A stop in good order keeps what is persistent, also where a consumer was waited for in place of the disk.
#[test]
fn a_stop_writes_what_waits_for_its_ack() {
    let mut node = Node::new("a:ack b:ack-lean c:ack,transient d:ack e:ack-lean");
    node.word("c1:e");
    for word in ["p1:a", "n:a", "t2:a", "p3:b", "t4:b", "p5:c", "p6:d", "get:d", "p7:e", "p8:e"] {
        node.word(word);
    }
    // What was published long ago stays behind those that are looked at often.
    (10..3000).for_each(|seq| node.word(&format!("t{seq}:a")));
    assert_eq!(node.log().written_bytes, 0);
    node.shard.close();
    node.shard.sync().expect("a log");
    node.disk();
    let on_disk: Vec<u64> = node.log().on_disk().iter().map(|&(at, _)| at).collect();
    assert_eq!(on_disk, [0, 1, 3, 8], "the last one of e is lent: its publisher has it");
}

/// After a stop wrote down what may have been delivered nothing more is given out. Publishers are told of what it wrote.
#[test]
fn a_closed_shard_gets_on_with_its_log_and_nothing_else() {
    let mut node = Node::new("a");
    for word in ["c1:a", "p1:a", "disk", "p2:a", "disk", "p3:a"] {
        node.word(word);
    }
    assert_eq!(node.take_told(), "1 2");
    let counts = |node: &Node| {
        let counts = node.shard.queues().next().expect("a queue").1.counts();
        (counts.ready, counts.unacked)
    };
    assert_eq!(counts(&node), (2, 1));
    node.shard.close();
    node.shard.sync().expect("a log");
    for word in ["ack:a", "p4:a", "c9:a", "get:a", "disk", "+1000", "disk"] {
        node.word(word);
    }
    assert_eq!((node.take_told().as_str(), counts(&node)), ("3", (2, 1)));
    assert_eq!((node.shard.next_timeout(), node.shard.is_durable()), (None, true));
}

/// The point of `first` and `ack`: a quick consumer costs the disk nothing.
#[test]
fn what_is_acked_at_once_is_never_written() {
    for (queue, publish) in [("a", "p"), ("a:ack", "p"), ("a:ack", "n"), ("a", "n")] {
        let mut node = Node::new(queue);
        node.word("c:a");
        for seq in 1..=1_000 {
            node.word(&format!("{publish}{seq}:a"));
            node.word("+2");
            if seq > 1 {
                node.word("ack:a");
            }
        }
        let log = node.log();
        // One is written to know what the disk takes: whether consumers are quick is a question of that.
        let measured = u64::from((queue, publish) == ("a", "p"));
        assert_eq!(log.syncs, measured, "{queue} {publish}");
        assert!(log.written_bytes <= 300 * measured, "{queue} {publish}: {}", log.written_bytes);
    }
}

/// One message each ms, for whose confirm nobody waits, in the hands of a consumer for so long. Returns what of the second
/// half is written, in percent.
fn written_at_pace(ack_ms: usize, consumer: &str) -> u64 {
    let mut node = Node::new("a");
    node.word(consumer);
    let mut before = 0;
    let count = 4_000;
    for number in 1..=count {
        node.word("n:a");
        node.word("+1");
        if number > ack_ms {
            node.word("ack:a");
        }
        if number % 3 == 0 {
            node.word("disk");
        }
        if number == count / 2 {
            before = node.log().written_bytes;
        }
    }
    let each = node.shard.usage().live_bytes / node.shard.usage().records.max(1);
    (node.log().written_bytes - before) * 100 / (each * count as u64 / 2)
}

/// Under load an ack takes longer than from a consumer at rest: what is written meanwhile is written in vain. Where a
/// publisher waits, see `quick`.
#[test]
fn acks_that_take_long_are_waited_for_if_they_come() {
    for ack_ms in [3, 10, 20, 40] {
        assert!(written_at_pace(ack_ms, "c:a") < 5, "{ack_ms}");
    }
    // The last of these are ready, not with the consumer, but it will have them soon.
    assert!(written_at_pace(20, "c10:a") < 5);
}

/// But not for ever, and not at the publisher's cost.
#[test]
fn acks_that_do_not_come_in_time_are_not_waited_for() {
    assert!(written_at_pace(1_000, "c:a") > 90);
    let mut node = Node::new("a");
    node.word("c:a");
    for seq in 1..=100 {
        node.word(&format!("p{seq}:a"));
        node.word("+40");
        node.word("ack:a");
        node.word("disk");
    }
    node.word("disk");
    node.take_told();
    node.word("p101:a");
    node.word(&format!("+{}", leveret_broker::shard::LAZY_MAX_MS));
    node.word("disk");
    node.word("disk");
    assert_eq!(node.take_told(), "101", "the consumer has stopped");
}

#[test]
fn an_idle_shard_is_woken_for_the_disk() {
    let mut node = Node::new("a");
    node.word("c:a");
    node.word("p1:a");
    let at = node.shard.next_timeout().expect("the message may have to be written");
    assert_eq!(at.ms() - node.now.ms(), leveret_broker::shard::LAZY_MS);
    node.word("ack:a");
    node.word("+0");
    let soon = node.now.after_ms(100);
    assert!(node.shard.next_timeout().is_none_or(|at| at > soon), "nothing to write any more");
}

#[test]
fn a_crash_leaves_whole_turns_and_whole_fan_outs() {
    let mut node = Node::new("a b:transient c:ack");
    node.word("p1:abc");
    assert_eq!(node.log().on_disk(), [], "not confirmed, not there");
    node.word("disk");
    let holders: Vec<u64> = "abc".chars().map(|name| node.queue(name).get()).collect();
    assert_eq!(node.log().on_disk(), [(0, holders)]);
    assert_eq!(node.take_told(), "", "c has to ack");
}

fn commit(node: &mut Node, messages: Vec<Publish>, settlements: Vec<Settlement>) {
    let reply = ReplyTo { connection: PUBLISHER, channel: 1 };
    node.turn(ToShard::Commit { reply, messages, settlements });
}

#[test]
fn a_commit_is_answered_when_it_is_on_the_disk() {
    for queues in ["a b", "a:ack b:ack", "a:enqueue b"] {
        let mut node = Node::new(queues);
        node.word("c:a");
        node.word("p1:a");
        node.word("+5");
        node.word("disk");
        node.said.clear();
        let ack = node.settlement(node.queue('a'), Settle::Ack, false).expect("delivered");
        let messages = (0..3).map(|_| node.message(0, "b", true, None)).collect();
        commit(&mut node, messages, vec![ack]);
        assert!(node.said.is_empty(), "{queues}: {:?}", node.said);
        let before: Vec<u64> = node.log().on_disk().iter().map(|&(at, _)| at).collect();
        assert!(before.iter().all(|&at| at == 0), "nothing of it, {queues}: {before:?}");
        node.word("disk");
        assert_eq!(node.said, ["Committed"], "{queues}");
        let after: Vec<u64> = node.log().on_disk().iter().map(|&(at, _)| at).collect();
        assert_eq!(after, [1, 2, 3], "{queues}: all of it, and the ack");
    }
}

/// As those of any publish: the disk is waited for by who commits, not by who consumes.
#[test]
fn a_commit_of_one_shard_is_delivered_before_it_is_on_the_disk() {
    let mut node = Node::new("a");
    node.word("c:a");
    node.said.clear();
    let messages = (0..3).map(|_| node.message(0, "a", true, None)).collect();
    commit(&mut node, messages, vec![]);
    assert_eq!(node.unacked(node.queue('a')), 3);
    assert!(node.said.is_empty() && node.log().on_disk().is_empty(), "{:?}", node.said);
    node.word("disk");
    assert_eq!(
        (node.said.as_slice(), node.log().on_disk().len()),
        (&["Committed".to_owned()][..], 3)
    );
}

#[test]
fn a_commit_of_what_need_not_be_written_is_answered_at_once() {
    let mut node = Node::new("a b:transient");
    let messages = vec![node.message(0, "a", false, None), node.message(0, "b", true, None)];
    commit(&mut node, messages, vec![]);
    assert_eq!(node.said, ["Committed"]);
}

#[test]
fn a_full_disk_refuses() {
    let mut node = Node::new("a");
    node.log().is_full = true;
    node.word("p1:a");
    node.word("p2:a");
    assert_eq!(node.take_told(), "-1 -2");
    let messages = vec![node.message(0, "a", true, None)];
    commit(&mut node, messages, vec![]);
    let text = "the transaction could not be stored: the disk of the log is full";
    assert_eq!(node.said, [format!("refused 506 {text}")]);
    node.log().is_full = false;
    node.word("t3:a");
    assert_eq!(node.take_told(), "3", "it may come back");
    assert_eq!(node.shard.counters().unstored, 3);
}

/// What a refused transaction was to settle goes back: its client has it no more, and is closed.
#[test]
fn a_refused_commit_gives_back_what_it_was_to_settle() {
    let mut node = Node::new("a");
    node.word("c:a");
    node.word("p1:a");
    node.log().is_full = true;
    let ack = node.settlement(node.queue('a'), Settle::Ack, false).expect("delivered");
    let messages = vec![node.message(0, "a", true, None)];
    commit(&mut node, messages, vec![ack]);
    let counts: Vec<_> = node.shard.queues().map(|(_, queue)| queue.counts()).collect();
    assert_eq!((counts[0].ready, counts[0].unacked), (0, 1), "to the consumer, again");
    let again = node.settlement(node.queue('a'), Settle::Ack, false).expect("delivered again");
    assert_eq!(again.offset, ack.offset);
}

#[test]
fn nothing_is_confirmed_after_a_failed_sync() {
    let mut node = Node::new("a b:ack");
    node.word("p1:a");
    node.word("p2:b");
    let messages = vec![node.message(0, "a", true, None)];
    commit(&mut node, messages, vec![]);
    node.log().fails = true;
    node.turn(ToShard::LogWoke);
    assert_eq!(node.take_told(), "-1 -2");
    assert_eq!(node.said, ["refused 541 the transaction could not be written to the disk"]);
    assert!(node.failed.is_some(), "the server has to know");
    for word in ["p3:a", "t4:a", "c:b", "ack:b", "disk"] {
        node.word(word);
    }
    assert_eq!(node.take_told(), "-3 -4");
}

/// At least once: who holds a dead letter lets go of it when it is safe where it went.
#[test]
fn a_held_dead_letter_stays_until_its_copy_is_durable() {
    let mut node = Node::new("z a:ack,dlx,dla,limit9");
    node.policy(r#"{"dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}"#);
    for word in ["c:a", "p1:a", "rej:a"] {
        node.word(word);
    }
    assert_eq!(node.shard.usage().records, 2, "both");
    assert_eq!(node.take_told(), "");
    node.word("disk");
    assert_eq!(node.shard.usage().records, 1);
    assert_eq!(node.take_told(), "1");
}

/// The disk has the message, and no room for it where it is to go: it waits in its queue until there is.
#[test]
fn a_dead_letter_is_not_lost_on_a_full_disk() {
    let strategies = ["at-most-once", "at-least-once"];
    for (strategy, stops) in strategies.into_iter().flat_map(|it| [(it, true), (it, false)]) {
        let mut node = Node::new("z a:dlx,limit9");
        let definition =
            format!(r#"{{"dead-letter-strategy": "{strategy}", "overflow": "reject-publish"}}"#);
        node.policy(&definition);
        for word in ["p1:a", "disk", "c:a", "req:a"] {
            node.word(word);
        }
        node.log().is_full = true;
        node.word("rej:a");
        let (a, z) = (node.queue('a'), node.queue('z'));
        let counts = |node: &Node, queue| {
            let all = node.shard.queues().find(|(id, _)| *id == queue).expect("there").1.counts();
            (all.ready, all.unacked, all.held)
        };
        for _ in 0..3 {
            assert_eq!((counts(&node, a), counts(&node, z)), ((0, 0, 1), (0, 0, 0)), "{strategy}");
            assert_eq!(node.log().on_disk(), [(0, vec![a.get()])], "{strategy}");
            node.word("+1000");
        }
        if stops {
            node.shard.close();
            assert_eq!(node.log().marks.get(&(0, a.get())), Some(&0x81), "what it is, on a stop");
            continue;
        }
        node.log().is_full = false;
        ["+1000", "disk", "+200", "disk"].iter().for_each(|word| node.word(word));
        assert_eq!((counts(&node, a), counts(&node, z)), ((0, 0, 0), (1, 0, 0)), "{strategy}");
        let on_disk = node.log().on_disk();
        assert!(matches!(&on_disk[..], [(_, held)] if held[..] == [z.get()]), "{on_disk:?}");
        // With the room its target comes back, or not: then it is as if there had always been room.
        for word in ["p2:a", "disk", "disk"] {
            node.word(word);
        }
        node.log().is_full = true;
        node.word("rej:a");
        node.log().is_full = false;
        node.word("del:z");
        node.word("+1000");
        let held = u64::from(strategy == "at-least-once");
        assert_eq!(counts(&node, a), (0, 0, held), "{strategy}");
    }
}

/// Very many expire that are on the disk alone: they are read and go on bit by bit, in order.
#[test]
fn cold_dead_letters_are_read_few_at_a_time() {
    let mut node = Node::new("z a:dlx,ttl1000");
    let many = 3_000;
    let messages = (0..many).map(|_| node.message(0, "a", true, None)).collect();
    node.turn(ToShard::Publish { from: PUBLISHER, messages });
    ["+5", "disk", "disk"].iter().for_each(|word| node.word(word));
    node.log().cold = (0..many).collect();
    let z = node.queue('z');
    node.later(2_000);
    (0..100).for_each(|_| node.later(1));
    let parked = node.shard.parked();
    assert!((1_000..many).contains(&parked), "{parked}: the others stay in their queue until then");
    for _ in 0..many {
        let asked = std::mem::take(&mut node.log().fetching);
        let asked: std::collections::BTreeSet<_> = asked.into_iter().collect();
        assert!(asked.len() <= 64, "{} asked for at once", asked.len());
        assert!(node.shard.under_way() - node.shard.parked() <= 256);
        node.log().fetching.extend(asked);
        node.word("disk");
    }
    node.word("disk");
    assert_eq!(node.shard.under_way(), 0);
    let queue = node.shard.queues().find(|(id, _)| *id == z).expect("there").1;
    assert_eq!(queue.counts().ready, many);
}

#[test]
fn publishers_pause_while_much_is_to_be_written() {
    let mut node = Node::new("a b");
    node.log().more_unwritten = 40 << 20;
    node.word("p1:a");
    node.word("p2:a");
    assert_eq!(node.said, ["Paused(true)"]);
    let all: Box<[_]> = node.shard.queues().map(|(id, _)| id).collect();
    let reply = ReplyTo { connection: PUBLISHER, channel: 1 };
    let list = || ToShard::List { reply, queues: all.clone(), consumers: Named::None };
    node.turn(list());
    assert_eq!(node.said.pop().as_deref(), Some("in flow"), "a, and not b");
    assert_eq!(node.said, ["Paused(true)"]);
    node.log().more_unwritten = 20 << 20;
    node.word("disk");
    assert_eq!(node.said, ["Paused(true)"], "not half yet");
    node.log().more_unwritten = 15 << 20;
    node.turn(ToShard::LogWoke);
    assert_eq!(node.said, ["Paused(true)", "Paused(false)"]);
    node.turn(list());
    assert_eq!(node.said.len(), 2, "nothing is in flow any more");
}

/// Who publishes into a queue that holds much, or what the disk is to have, keeps an alarm up; nobody else.
#[test]
fn an_alarm_stops_those_who_publish_into_what_is_full() {
    let (memory, disk, stops_all) = (true, true, false);
    let short = |memory, disk| Alarm { memory, disk, stops_all };
    #[rustfmt::skip] // a table
    let rows = [
        (short(memory, false), "t1:a", "a transient message into a short queue", false),
        (short(memory, false), "p1:a", "the disk has room",                      false),
        (short(memory, false), "t1:f", "nobody consumes",                        true),
        (short(memory, false), "t1:u", "its consumer does not ack",              true),
        (short(memory, false), "t1:af", "one of its queues is full",             true),
        (short(false, disk),   "t1:a", "it is never written",                    false),
        (short(false, disk),   "p1:a", "it is",                                  true),
        (short(false, disk),   "p1:c", "its consumer acks it before that",       false),
        (short(false, disk),   "p1:t", "its queue is transient",                 false),
        (short(false, disk),   "t1:f", "it will be, to save memory",             true),
        (Alarm { memory, disk, stops_all: true }, "p1:f", "the session knows",   false),
        (short(false, false),  "p1:f", "nothing is short",                       false),
    ];
    let mut node = Node::new("a c:ack f u t:transient");
    node.word("c:u");
    for queue in ["f", "u"] {
        let messages = (0..12_000).map(|_| node.message(0, queue, false, None)).collect();
        node.turn(ToShard::Publish { from: PUBLISHER, messages });
    }
    node.said.clear();
    for (alarm, word, why, stops) in rows {
        node.shard.set_alarm(alarm);
        node.word(word);
        let said = std::mem::take(&mut node.said);
        let want: &[&str] = if stops { &["Stopped"] } else { &[] };
        assert_eq!(said, want, "{word}: {why}");
    }
}

/// Copies for the firehose stop nobody. While an alarm is on they stay out of what holds much; events do not.
#[test]
fn copies_stay_out_of_what_is_full_while_an_alarm_is_on() {
    let mut node = Node::new("a f");
    let messages = (0..12_000).map(|_| node.message(0, "f", false, None)).collect();
    node.turn(ToShard::Publish { from: PUBLISHER, messages });
    let ready = |node: &Node, name| {
        let queue = node.queue(name);
        node.shard.queues().find(|(id, _)| *id == queue).expect("there").1.counts().ready
    };
    let mut check = |alarm: Alarm, from, [a, f]: [u64; 2]| {
        let before = ['a', 'f'].map(|name| ready(&node, name));
        node.shard.set_alarm(alarm);
        let copy = Publish { channel: 0, ..node.message(0, "af", false, None) };
        node.turn(ToShard::Publish { from, messages: vec![copy] });
        let after = ['a', 'f'].map(|name| ready(&node, name));
        assert_eq!(after, [before[0] + a, before[1] + f], "{alarm:?} {from:?}");
        assert_eq!(node.said, [""; 0]);
    };
    let short = Alarm { disk: true, ..Alarm::default() };
    let nobody = ConnectionId::NOBODY;
    check(Alarm::default(), PUBLISHER, [1, 1]);
    check(short, PUBLISHER, [1, 0]);
    check(Alarm { memory: true, stops_all: true, ..short }, PUBLISHER, [1, 0]);
    check(short, nobody, [1, 1]);
    assert_eq!(node.shard.counters().copies_left_out, 2);
}

#[test]
fn what_confirmed_is_counted() {
    let mut node = Node::new("a b:ack");
    for word in ["p1:a", "disk", "t2:a", "p3:b", "get:b", "t4:b", "purge:b"] {
        node.word(word);
    }
    let counts = node.shard.confirmed();
    assert_eq!(
        (counts.at_once, counts.durable, counts.acked, counts.nacked),
        (1, 1, 1, 1),
        "{}",
        node.take_told()
    );
}

/// Each nack has one reason, also of a message that is refused first and times out then.
#[test]
fn a_nack_has_one_reason() {
    let mut node = Node::new("a:ack,timeout50 b:ack,reject1");
    for word in ["t9:b", "p1:ab", "p2:a", "+50"] {
        node.word(word);
    }
    assert_eq!(node.take_told(), "!1 !2");
    let by_reason = NackReason::ALL.map(|reason| node.shard.nacked().of(reason));
    assert_eq!(by_reason, [1, 0, 0, 1]);
    assert_eq!(by_reason.iter().sum::<u64>(), node.shard.confirmed().nacked);
}

/// A message that cannot be read is set aside, as by a consumer: `basic.get` goes on to the next one.
#[test]
fn a_get_passes_what_is_damaged() {
    for no_ack in [false, true] {
        let mut node = Node::new("a b");
        for word in ["p1:a", "p2:b", "p3:a", "p4:a", "disk", "disk"] {
            node.word(word);
        }
        assert_eq!(node.take_told(), "1 2 3 4");
        node.log().damaged = [0, 2].into();
        let reply = ReplyTo { connection: PUBLISHER, channel: 1 };
        for want in ["Got", "GotNothing"] {
            node.turn(ToShard::Get { reply, queue: node.queue('a'), no_ack });
            assert_eq!(std::mem::take(&mut node.said), [want], "no_ack: {no_ack}");
        }
        let queue = node.queue('a');
        let counts = node.shard.queues().find(|(id, _)| *id == queue).expect("there").1.counts();
        let unacked = if no_ack { 2 } else { 3 };
        assert_eq!((counts.ready, counts.unacked), (0, unacked), "no_ack: {no_ack}");
        assert_eq!(node.shard.counters().delivered, 1);
        assert!(node.log().holders().contains_key(&0), "the file may be restored");
    }
}

/// A dead letter that cannot be read stays in its queue, set aside: it is neither lost nor tried for ever, and
/// a publisher who waits for its ack is told. With the queue it goes.
#[test]
fn a_dead_letter_that_is_damaged() {
    let strategies = ["at-most-once", "at-least-once"];
    for (strategy, stops) in strategies.into_iter().flat_map(|it| [(it, true), (it, false)]) {
        let mut node = Node::new("z a:ack,dlx,dla,limit9");
        let definition =
            format!(r#"{{"dead-letter-strategy": "{strategy}", "overflow": "reject-publish"}}"#);
        node.policy(&definition);
        for word in ["c:a", "p1:a", "p2:a"] {
            node.word(word);
        }
        node.log().damaged = [0].into();
        for word in ["rej:a", "rej:a", "disk", "+1000", "+1000", "disk"] {
            node.word(word);
        }
        assert_eq!(node.take_told(), "-1 2", "{strategy}");
        let (a, z) = (node.queue('a'), node.queue('z'));
        let counts = |queue| {
            let all = node.shard.queues().find(|(id, _)| *id == queue).expect("there").1.counts();
            (all.ready, all.unacked, all.held)
        };
        assert_eq!((counts(a), counts(z)), ((0, 0, 1), (1, 0, 0)), "{strategy}");
        assert_eq!(node.shard.counters().unreadable, 1, "told once");
        assert_eq!(node.shard.under_way(), 0, "{strategy}");
        if stops {
            node.shard.close();
            assert_eq!(node.log().marks.get(&(0, a.get())), Some(&0x80), "it was delivered");
            assert!(node.log().holders().contains_key(&0), "the file may be restored");
            continue;
        }
        node.word("del:a");
        assert!(!node.log().holders().contains_key(&0), "{strategy}");
    }
}

/// A process that stops waits for dead letters; what it leaves behind is in its old queue, as delivered.
#[test]
fn a_stop_knows_of_dead_letters_on_their_way() {
    for strategy in ["at-most-once", "at-least-once"] {
        for waits in [false, true] {
            let mut node = Node::new("z a:dlx,limit9");
            let definition = format!(
                r#"{{"dead-letter-strategy": "{strategy}", "overflow": "reject-publish"}}"#
            );
            node.policy(&definition);
            let queue = node.queue('a');
            for word in ["c:a", "p1:a", "disk", "req:a", "rej:a"] {
                node.word(word);
            }
            assert_eq!(node.shard.under_way(), 1, "{strategy}");
            node.log().marks.clear();
            if waits {
                node.word("disk");
                node.word("disk");
                assert_eq!(node.shard.under_way(), 0, "{strategy}");
            }
            node.shard.close();
            let at = (0, queue.get());
            let mark = node.log().marks.get(&at).copied();
            assert_eq!(mark, (!waits).then_some(0x81), "{strategy}, {waits}");
            let is_held =
                node.log().holders().get(&0).is_some_and(|held| held.contains(&queue.get()));
            assert_eq!(is_held, !waits, "{strategy}");
            // Its copy is durable, then comes the stop, then the answer.
            for _ in 0..3 {
                node.shard.sync().expect("a log");
                node.word("disk");
            }
            let on_disk = node.log().on_disk();
            let z = node.queue('z').get();
            assert!(
                matches!(&on_disk[..], [(_, held)] if held[..] == [z]),
                "{strategy}: {on_disk:?}"
            );
        }
    }
}

/// What is moved is in its queue until the target has it on its disk; what is refused stays in its place.
#[test]
fn what_is_moved_leaves_when_it_is_safe_there() {
    let counts = |node: &Node, name| {
        let id = node.queue(name);
        let counts = node.shard.queues().find(|(other, _)| *other == id).expect("a queue").1;
        let counts = counts.counts();
        (counts.ready, counts.unacked)
    };
    let mut node = Node::new("a z y:reject0");
    ["p1:a", "disk", "p2:a", "disk", "mv:az"].iter().for_each(|word| node.word(word));
    assert_eq!((counts(&node, 'a'), counts(&node, 'z')), ((1, 1), (1, 0)));
    let on_disk =
        |node: &mut Node| node.log().on_disk().iter().map(|(at, _)| *at).collect::<Vec<_>>();
    assert_eq!(on_disk(&mut node), [0, 1]);
    node.said.clear();
    node.disk();
    assert_eq!(node.said, ["Moved"]);
    assert!(on_disk(&mut node).contains(&2));
    assert_eq!((counts(&node, 'a'), counts(&node, 'z')), ((1, 0), (1, 0)));
    node.word("mv:ay");
    assert_eq!((counts(&node, 'a'), counts(&node, 'y')), ((1, 0), (0, 0)));
    // To the end of its own queue.
    ["p3:a", "disk", "mv:aa", "disk"].iter().for_each(|word| node.word(word));
    assert_eq!(counts(&node, 'a'), (2, 0));
    // Its queue goes: who waits for the move is told.
    node.word("mv:az");
    node.said.clear();
    node.word("del:a");
    node.disk();
    assert_eq!(node.said, ["Gone", "Deleted"]);
    assert_eq!(node.shard.under_way(), 0);
}

/// There is no room for a transaction that was to settle very many: they come back in pieces.
#[test]
fn a_refused_transaction_gives_back_in_pieces() {
    const MANY: usize = 20_000;
    for is_part in [true, false] {
        let mut node = Node::new("a b");
        let queue = node.queue('a');
        node.consume(queue, false, 0);
        let messages = (0..MANY).map(|_| node.message(0, "a", false, None)).collect();
        node.turn(ToShard::Publish { from: PUBLISHER, messages });
        let mut settlements: Vec<_> =
            std::iter::from_fn(|| node.settlement(queue, Settle::Ack, true)).collect();
        settlements.reverse();
        assert_eq!(settlements.len(), MANY);
        node.log().is_full = true;
        let reply = ReplyTo { connection: PUBLISHER, channel: 1 };
        let (tx, parts, messages) = (TxId::new(7), 2, vec![node.message(0, "b", true, None)]);
        let mut letters = vec![match is_part {
            true => ToShard::Prepare { reply, tx, parts, messages, settlements },
            false => ToShard::Commit { reply, messages, settlements },
        }];
        let (mut out, mut refused) = (Outbox::default(), 0);
        let turn = node.shard.limits().turn;
        while node.shard.turn(&mut letters, &node.topology, node.now, &mut out) {
            let spent = node.shard.spent();
            // A transaction is paid for as if it was done.
            let price = if is_part || refused > 0 { 0 } else { MANY as u64 };
            assert!(spent <= 2 * turn + price, "{spent} units in one turn of {turn}");
            refused += 1;
        }
        assert!(refused > 2, "{refused} turns");
        let again = out.sessions.iter().map(|(_, letter)| match letter {
            ToSession::Deliver(deliveries) => deliveries.iter().filter(|it| it.redelivered).count(),
            _ => 0,
        });
        assert_eq!(again.sum::<usize>(), MANY);
    }
}
