//! RabbitMQ's rules, one table each: a command, and what comes of it.
//!
//! ```text
//!   publish [size=N] [priority=N] [ttl=MS]    offsets count from 1
//!   consume NAME [no-ack] [exclusive] [prefetch=N] [priority=N]
//!   cancel NAME | get [no-ack] | purge [max=N] | pass MS | touch | pause | resume
//!   single | many   (consumers)
//!   safe N   (a dead letter that is held is where it is to go)
//!   who-is-full     (says `a@MS`: since when its prefetch is reached)
//!   vanish NAME   (a cancel that comes in the same turn as what was before)
//!   ack N | reject N | requeue N | return N   (a return does not count as a delivery)
//! ```
//!
//! and what comes of it, in order: `a:1` delivered to a, `a:1*` redelivered, `a:1*2` with two returns;
//! `acked:1 expired:1 maxlen:1 rejected:1 delivery_limit:1 purged:1`, with a `+` in front when
//! dead-lettered, `!` when also held; `got:1`, `empty`, `full`, `in-use`, `active:b`, `auto-delete`,
//! `unused`.

use std::collections::HashMap;

use leveret_queue::{
    ConsumerId, ConsumerSpec, Delivery, Gate, Incoming, Left, Offset, Options, Overflow, Queue,
    Settle, Settled, Time, UnackedId,
};

struct Script {
    queue: Queue,
    now: Time,
    published: u64,
    names: Vec<String>,
    ids: HashMap<String, ConsumerId>,
    unacked: HashMap<u64, UnackedId>,
    said: Vec<String>,
    out: Vec<Left>,
}

#[track_caller]
fn check(options: Options, rows: &[(&str, &str)]) {
    let mut script = Script {
        queue: Queue::new(options, Time::from_ms(0)),
        now: Time::from_ms(0),
        published: 0,
        names: Vec::new(),
        ids: HashMap::new(),
        unacked: HashMap::new(),
        said: Vec::new(),
        out: Vec::new(),
    };
    for (row, (commands, want)) in rows.iter().enumerate() {
        for command in commands.split("; ") {
            script.command(command);
        }
        script.dispatch();
        let said = std::mem::take(&mut script.said).join(" ");
        assert_eq!(said, *want, "row {row}: {commands}");
    }
}

impl Script {
    fn command(&mut self, command: &str) {
        let words: Vec<&str> = command.split(' ').collect();
        let number = |name: &str| -> Option<i64> {
            words.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
        };
        let has = |name: &str| words.contains(&name);
        let argument = words.get(1).copied().unwrap_or_default();
        match words[0] {
            "publish" => {
                self.published += 1;
                let size = number("size").unwrap_or(1) as u32;
                let message = Incoming {
                    priority: number("priority").unwrap_or(0) as u8,
                    expiration_ms: number("ttl").map(|ms| ms as u64),
                    ..Incoming::new(Offset::new(self.published), size)
                };
                let result = if has("lean") {
                    self.queue.enqueue_lean(message, self.now, &mut self.out)
                } else {
                    self.queue.enqueue(message, self.now, &mut self.out)
                };
                self.say_left();
                if result.is_err() {
                    self.said.push("full".into());
                }
            }
            "consume" => {
                let spec = ConsumerSpec {
                    key: self.names.len() as u64,
                    no_ack: has("no-ack"),
                    exclusive: has("exclusive"),
                    priority: number("priority").unwrap_or(0) as i32,
                    prefetch: number("prefetch").unwrap_or(0) as u16,
                    gate: Gate::open(),
                };
                self.names.push(argument.into());
                match self.queue.add_consumer(spec, self.now) {
                    Ok(id) => drop(self.ids.insert(argument.into(), id)),
                    Err(_) => self.said.push("in-use".into()),
                }
            }
            "cancel" | "vanish" => {
                if words[0] == "cancel" {
                    self.dispatch();
                }
                let id = self.ids.remove(argument).expect("consumes");
                let removed = self.queue.remove_consumer(id, self.now, &mut self.out);
                let removed = removed.expect("consumes");
                if let Some(key) = removed.activated {
                    self.said.push(format!("active:{}", self.names[key as usize]));
                }
                if removed.auto_delete {
                    self.said.push("auto-delete".into());
                }
            }
            "get" => {
                let got = self.queue.get(self.now, has("no-ack"), &mut self.out);
                self.say_left();
                let Some(got) = got else { return self.said.push("empty".into()) };
                self.said.push(format!("got:{}", got.offset.get()) + star(got.redelivered));
                self.unacked.extend(got.unacked.map(|id| (got.offset.get(), id)));
            }
            "purge" => {
                let max = number("max").map_or(u64::MAX, |max| max as u64);
                self.out.extend(self.queue.purge(max));
            }
            "pass" => {
                self.now = self.now.after_ms(argument.parse().expect("a number"));
                self.queue.expire(self.now, &mut self.out);
                if self.queue.is_expired_unused(self.now) {
                    self.said.push("unused".into());
                }
            }
            "safe" => {
                let offset = Offset::new(argument.parse().expect("an offset"));
                assert!(self.queue.dead_lettered(offset, true));
            }
            "touch" => self.queue.touch(self.now),
            "who-is-full" => {
                self.dispatch();
                let full = self.queue.consumers().filter_map(|it| Some((it.key, it.full_since?)));
                let names = &self.names;
                let full = full.map(|(key, at)| format!("{}@{}", names[key as usize], at.ms()));
                self.said.extend(full);
            }
            "pause" | "resume" | "single" | "many" => {
                let mut options = self.queue.options().clone();
                match words[0] {
                    "pause" | "resume" => options.paused = words[0] == "pause",
                    how => options.single_active = how == "single",
                }
                self.queue.set_options(options, self.now, &mut self.out);
            }
            how => {
                let how = match how {
                    "ack" => Settle::Ack,
                    "reject" => Settle::Reject,
                    "requeue" => Settle::Requeue { counts: true },
                    "return" => Settle::Requeue { counts: false },
                    _ => panic!("unknown command {command:?}"),
                };
                let offset: u64 = argument.parse().expect("an offset");
                let id = self.unacked.remove(&offset).expect("unacked");
                let offset = Offset::new(offset);
                let settled = self.queue.settle(id, offset, how, self.now, &mut self.out);
                assert_ne!(settled, Settled::Stale);
            }
        }
        self.say_left();
    }

    fn dispatch(&mut self) {
        let Self { queue, unacked, names, said, out, .. } = self;
        let mut deliver = |delivery: Delivery| {
            let offset = delivery.offset.get();
            let mut text = format!("{}:{offset}", names[delivery.consumer_key as usize]);
            text += star(delivery.redelivered);
            if delivery.delivery_count > 0 {
                text += &delivery.delivery_count.to_string();
            }
            said.push(text);
            unacked.extend(delivery.unacked.map(|id| (offset, id)));
        };
        queue.dispatch(self.now, &mut deliver, out, u32::MAX);
        self.say_left();
    }

    fn say_left(&mut self) {
        for left in self.out.drain(..) {
            let offset = left.offset().get();
            self.said.push(match left {
                Left::Acked(_) => format!("acked:{offset}"),
                Left::DeadLetter { reason, held, .. } => {
                    format!("{}{}:{offset}", if held { "!+" } else { "+" }, reason.name())
                }
                Left::Dropped { reason, .. } => format!("{}:{offset}", reason.name()),
                Left::Purged(_) => format!("purged:{offset}"),
                Left::Held { goes, .. } => format!("held:{offset}:{goes}"),
                Left::Lent(_) => format!("lent:{offset}"),
                Left::Returned { acked, .. } => format!("returned:{offset}:{acked}"),
            });
        }
    }
}

fn star(redelivered: bool) -> &'static str {
    if redelivered { "*" } else { "" }
}

fn options() -> Options {
    Options::default()
}

#[test]
#[rustfmt::skip] // a table
fn round_robin_and_prefetch() {
    check(options(), &[
        ("consume a prefetch=2; consume b prefetch=1", ""),
        ("publish; publish; publish; publish",         "a:1 b:2 a:3"),
        ("ack 3",                                      "acked:3 a:4"),
        ("publish",                                    ""),
        ("ack 2",                                      "acked:2 b:5"),
        ("cancel a; ack 5; ack 1; ack 4; publish",     "acked:5 acked:1 acked:4 b:6"),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn since_when_a_prefetch_is_reached() {
    check(options(), &[
        ("consume a prefetch=2; consume b prefetch=1; pass 10; publish; publish; publish", "a:1 b:2 a:3"),
        ("pass 10; who-is-full",               ""),        // there is nothing it could be given
        ("pass 10; publish; who-is-full",      "a@30 b@30"),
        ("pass 10; who-is-full",               "a@30 b@30"),
        ("ack 3; pass 10; who-is-full",        "acked:3 a:4 b@30"),
        ("publish; who-is-full",               "a@50 b@30"),
        ("cancel b; ack 1; who-is-full",       "acked:1 a:5"),
    ]);
}

/// What was meant for a consumer that goes comes back, and a full queue stays within its length.
#[test]
#[rustfmt::skip] // a table
fn a_consumer_vanishes_before_it_gets_its_messages() {
    check(Options { max_length: Some(2), ..options() }, &[
        ("consume a no-ack; publish; publish; publish; publish; vanish a", "maxlen:1 maxlen:2"),
        ("consume b", "b:3* b:4"),
    ]);
}

/// What is lent is in the prefetch of its consumer and nowhere else, and does not come back.
#[test]
#[rustfmt::skip] // a table
fn lent() {
    check(options(), &[
        ("consume a prefetch=1",         ""),
        ("publish lean; publish lean",   "a:1 lent:1"),
        ("ack 1",                        "returned:1:true a:2 lent:2"),
        ("requeue 2",                    "returned:2:false"),
        ("publish lean; publish",        "a:3 lent:3"),
        ("cancel a; reject 3",           "returned:3:false"),
        ("publish lean; get; get",       "got:4 lent:5 got:5"),
        ("ack 5; ack 4",                 "returned:5:true acked:4"),
        ("publish lean; purge",          "purged:6"),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn consumer_priorities() {
    check(options(), &[
        ("consume low; consume high priority=5 prefetch=1; consume mid priority=1 no-ack", ""),
        ("publish; publish", "high:1 mid:2 acked:2"),
        ("ack 1; publish",   "acked:1 high:3"),
        ("cancel mid; publish", "low:4"),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn what_comes_back_goes_to_its_place() {
    check(options(), &[
        ("publish; publish; publish",        ""),
        ("get; get",                         "got:1 got:2"),
        ("requeue 2; requeue 1",             ""),
        ("consume a prefetch=2",             "a:1* a:2*"),
        ("cancel a; return 2; reject 1; get", "rejected:1 got:2*"),
        ("get no-ack; get",                  "acked:3 got:3 empty"),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn drop_head() {
    check(Options { max_length: Some(2), dead_letter: true, ..options() }, &[
        ("publish; publish; publish",      "+maxlen:1"),
        ("get; publish",                   "got:2"),          // unacked ones do not count
        ("requeue 2",                      "+maxlen:2"),      // it is the head again
        ("consume a no-ack",               "a:3 a:4 acked:3 acked:4"),
        ("publish; publish; publish",      "a:5 a:6 a:7 acked:5 acked:6 acked:7"), // taken at once
    ]);
    check(Options { max_length_bytes: Some(10), ..options() }, &[
        ("publish size=4; publish size=4", ""),
        ("publish size=9",                 "maxlen:1 maxlen:2"),
        ("publish size=11",                "maxlen:3 maxlen:4"), // too large by itself
    ]);
    check(Options { max_length: Some(0), ..options() }, &[
        ("publish",                        "maxlen:1"),
        ("consume a prefetch=1; publish",  "a:2"),
        ("publish",                        "maxlen:3"),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn drop_head_takes_the_highest_priority_first() {
    check(Options { max_length: Some(2), max_priority: Some(5), ..options() }, &[
        ("publish priority=1; publish priority=9; publish priority=5", "maxlen:2"), // 9 counts as 5
        ("publish",                                                    "maxlen:3"),
        ("get; get",                                                   "got:1 got:4"),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn reject_publish() {
    check(Options { max_length: Some(1), overflow: Overflow::RejectPublish, ..options() }, &[
        ("publish; publish",              "maxlen:2 full"),
        ("consume a prefetch=2",          "a:1"),
        ("publish; publish; publish",     "maxlen:5 full a:3"), // one taken, one ready, one too many
        ("requeue 1; requeue 3",          "a:1* a:3*"),
        ("cancel a; requeue 1; requeue 3; publish", "maxlen:6 full"), // what comes back is never refused
    ]);
    let overflow = Overflow::RejectPublishDlx;
    let rows = [("publish; publish", "+maxlen:2 full"), ("get", "got:1")];
    check(Options { max_length: Some(1), overflow, dead_letter: true, ..options() }, &rows);
    let rows = [("publish; publish", "maxlen:2 full"), ("get", "got:1")];
    check(Options { max_length: Some(1), overflow, ..options() }, &rows);
}

#[test]
#[rustfmt::skip] // a table
fn time_to_live() {
    check(Options { message_ttl_ms: Some(100), dead_letter: true, ..options() }, &[
        ("publish; pass 50; publish ttl=500; publish ttl=10", ""),
        ("pass 49",                   ""),
        ("pass 1",                    "+expired:1"),
        ("pass 49",                   ""),           // 3 is over, but behind 2
        ("pass 1",                    "+expired:2 +expired:3"),
        ("publish; get; pass 200",    "got:4"),      // unacked ones do not expire
        ("requeue 4",                 "+expired:4"), // but when they come back
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn a_time_to_live_of_zero_is_at_once_or_never() {
    check(options(), &[
        ("publish ttl=0",             "expired:1"),
        ("consume a prefetch=1",      ""),
        ("publish ttl=0; publish ttl=0", "expired:3 a:2"),
        ("requeue 2",                 "expired:2"),
        ("publish; publish; publish ttl=0", "a:4"),
        ("cancel a; ack 4",           "acked:4"),    // 6 is over, but behind 5
        ("get",                       "expired:6 got:5"),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn delivery_limit() {
    check(Options { delivery_limit: Some(2), dead_letter: true, ..options() }, &[
        ("publish; consume a", "a:1"),
        ("requeue 1",          "a:1*1"),
        ("return 1",           "a:1*1"), // a return does not count
        ("requeue 1",          "a:1*2"),
        ("requeue 1",          "+delivery_limit:1"),
    ]);
    check(Options { counts_deliveries: true, ..options() }, &[
        ("publish; consume a", "a:1"),
        ("requeue 1",          "a:1*1"),
        ("requeue 1",          "a:1*2"), // counted for the header, without an end
    ]);
    check(options(), &[
        ("publish; consume a", "a:1"),
        ("requeue 1",          "a:1*"),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn at_least_once_holds() {
    let with = |overflow| Options { overflow, dead_letter: true, at_least_once: true, ..options() };
    let rows = [("publish; get; reject 1", "got:1 !+rejected:1")];
    check(with(Overflow::RejectPublish), &rows);
    // Only together with reject-publish, as in RabbitMQ.
    let rows = [("publish; get; reject 1", "got:1 +rejected:1")];
    check(with(Overflow::DropHead), &rows);
    // What is held counts towards the lengths: nothing else bounds it while its target is away.
    let rows = [
        ("publish size=5; publish size=5", ""),
        ("get; reject 1; publish size=5",  "got:1 !+rejected:1 maxlen:3 full"),
        ("safe 1; publish size=5",         ""),
        ("get; reject 2; get; reject 4",   "got:2 !+rejected:2 got:4 !+rejected:4"),
        ("publish size=1; safe 2",         "maxlen:5 full"),
        ("publish size=5; publish size=1", "maxlen:7 full"),
    ];
    let full = with(Overflow::RejectPublish);
    check(Options { max_length: Some(2), ..full }, &rows);
    check(Options { max_length_bytes: Some(10), ..full }, &rows);
}

#[test]
#[rustfmt::skip] // a table
fn exclusive_consumers() {
    check(options(), &[
        ("consume a exclusive",           ""),
        ("consume b",                     "in-use"),
        ("consume c exclusive",           "in-use"),
        ("cancel a; consume d; consume e", ""),
        ("consume f exclusive",           "in-use"),
        ("publish",                       "d:1"),
    ]);
    check(Options { single_active: true, ..options() }, &[("consume a exclusive", "in-use")]);
}

#[test]
#[rustfmt::skip] // a table
fn single_active_consumer() {
    check(Options { single_active: true, ..options() }, &[
        ("consume a prefetch=1; consume b; consume c priority=1", ""),
        ("publish; publish",  "a:1"),
        ("cancel b; ack 1",   "acked:1 a:2"),
        ("publish; cancel a", "active:c c:3"), // the highest priority is next; 2 is still a's channel's
        ("requeue 2",         "c:2*"),
        ("cancel c",          ""),
        ("consume d; publish", "d:4"),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn auto_delete_and_expires() {
    check(Options { auto_delete: true, ..options() }, &[
        ("consume a; consume b; cancel a", ""),
        ("cancel b",                       "auto-delete"),
    ]);
    check(Options { expires_ms: Some(100), ..options() }, &[
        ("pass 99; touch; pass 99",     ""),
        ("get; pass 99",                "empty"),
        ("publish; pass 1",             "unused"), // publishing is no use
        ("consume a no-ack; pass 1000", "a:1 acked:1"),
        ("cancel a; pass 99",           ""),
        ("pass 1",                      "unused"),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn a_single_active_consumer_from_now_on() {
    check(options(), &[
        ("consume a prefetch=1; consume b prefetch=2", ""),
        ("publish; publish",                           "a:1 b:2"),
        ("single; publish; publish",                   ""), // a is next in line, and full
        ("ack 1; ack 2",                               "acked:1 acked:2 a:3"),
        ("ack 3; cancel a; publish",                   "acked:3 a:4 active:b b:5"),
        ("consume c; publish",                         "b:6"),
        ("many; publish",                              "c:7"),
    ]);
    check(options(), &[
        ("consume a prefetch=1; publish; publish",     "a:1"),
        ("single; ack 1",                              "acked:1 a:2"), // it was blocked
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn a_paused_queue_gives_nothing_and_takes_everything() {
    check(Options { max_length: Some(3), ..options() }, &[
        ("consume a prefetch=2; publish",              "a:1"),
        ("pause; get; publish; publish ttl=5; ack 1",  "empty acked:1"),
        ("publish; publish",                           "maxlen:2"),
        ("pass 5; get",                                "expired:3 empty"),
        ("resume",                                     "a:4 a:5"),
    ]);
}

#[test]
#[rustfmt::skip] // a table
fn purge_takes_ready_messages_only() {
    check(options(), &[
        ("publish; publish; publish; get", "got:1"),
        ("purge",                          "purged:2 purged:3"),
        ("requeue 1; purge",               "purged:1"),
        ("publish; publish; publish",      ""),
        ("purge max=2",                    "purged:4 purged:5"),
        ("consume a",                      "a:6"),
        // What is unacked keeps its time to live.
        ("publish ttl=50; publish; cancel a; requeue 6; get", "a:7 a:8 got:6*"),
        ("requeue 8; requeue 7; get",      "got:7*"),
        ("publish ttl=20; publish; purge", "purged:8 purged:9 purged:10"),
        ("requeue 7; pass 49",             ""),
        ("pass 1",                         "expired:7"),
    ]);
}
