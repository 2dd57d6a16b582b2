//! Sessions on the node of their client: clients of the nodes that follow while the one that leads is killed.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use leveret_client::amqp::method::Method;
use leveret_client::{Consume, Error, Event};

use super::*;
use crate::broker::wait_until;

/// Transactions are over both.
fn two_shards() -> Vec<Member> {
    three_with("LEVERET_SHARDS", "2")
}

fn durable() -> QueueDeclare {
    QueueDeclare { durable: true, ..QueueDeclare::default() }
}

/// The next event, as soon as it comes.
#[track_caller]
pub(super) fn next<T>(
    client: &mut Connection,
    mut pick: impl FnMut(&Event<'_>) -> T,
) -> Result<T, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(event) = client.next_event()? {
            return Ok(pick(&event));
        }
        assert!(Instant::now() < deadline, "nothing came");
        client.flush()?;
        client.wait(PATIENCE)?;
    }
}

/// Delivery tag, redelivered, body.
#[track_caller]
fn delivered(client: &mut Connection) -> (u64, bool, Vec<u8>) {
    next(client, |event| {
        let Event::Content { method: Method::BasicDeliver(it), body, .. } = event else {
            panic!("{event:?}")
        };
        (it.delivery_tag, it.redelivered, body.to_vec())
    })
    .unwrap()
}

/// Messages that are ready, as `basic.get` finds them.
fn drain(client: &mut Connection, channel: u16, queue: &str) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| client.get(channel, queue, true).unwrap()).map(|it| it.body).collect()
}

/// The queues that a client commits to.
fn committed(number: usize) -> [String; 2] {
    ["left", "right"].map(|side| format!("{side}-{number}"))
}

/// Does something with a number again and again until it is told to stop: how often it did it. Others see how far it is.
fn again_and_again(
    done: &AtomicU32,
    stops: &AtomicBool,
    mut act: impl FnMut(u32) -> Result<(), Error>,
) -> u32 {
    let mut count = 0;
    while !stops.load(Ordering::Relaxed) {
        act(count).unwrap();
        count += 1;
        done.store(count, Ordering::Relaxed);
    }
    count
}

/// A client that waits for answers in a queue of its own goes on doing so, whoever leads, and others find it there. What was in it is
/// gone with the leader, also what the client has and has not acked.
#[test]
fn exclusive_queues_outlive_the_one_that_leads() {
    let mut members = three();
    let (old, _) = leader(&members, &[0, 1, 2]);
    let others = [1, 2].map(|it| (old + it) % 3);
    let [one, two] = others.map(|it| members[it].relays());
    let (mut asks, asking) = connect(one);
    let own = QueueDeclare { exclusive: true, ..QueueDeclare::default() };
    let queue = asks.queue_declare(asking, "", &own).unwrap().queue;
    asks.queue_bind(asking, &queue, "amq.direct", "all", &Table::default()).unwrap();
    asks.consume(asking, &queue, &Consume::default()).unwrap();
    let (mut answers, answering) = connect(two);
    answers.confirm_select(answering).unwrap();
    let mut confirmed = 0;
    let mut publish = |exchange: &str, key: &str, body: &[u8]| {
        answers.publish(answering, exchange, key, &PERSISTENT, body);
        confirmed += 1;
        let tag = next(&mut answers, |event| match event {
            Event::Method { method: Method::BasicAck(it), .. } => it.delivery_tag,
            event => panic!("{event:?}"),
        });
        assert_eq!(tag.unwrap(), confirmed);
    };
    publish("", &queue, b"before");
    let (before, ..) = delivered(&mut asks);
    members[old].child.kill().unwrap();
    for (exchange, key) in [("", &*queue), ("amq.direct", "other"), ("amq.direct", "all")] {
        publish(exchange, key, key.as_bytes());
    }
    // The first one may have been sent to the old leader, who may have given it out.
    for (key, may_have_come) in [(&*queue, true), ("all", false)] {
        let (tag, redelivered, body) = delivered(&mut asks);
        assert_eq!((redelivered && !may_have_come, &body[..]), (false, key.as_bytes()));
        asks.ack(asking, tag, false);
    }
    asks.ack(asking, before, false);
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    asks.queue_declare(asking, &queue, &passive).unwrap();
    // It is nobody else's, and goes with its connection.
    let (_, new) = leader(&members, &others);
    let refused = |code| {
        let (mut other, channel) = connect(new);
        let error = other.queue_declare(channel, &queue, &passive).unwrap_err();
        matches!(error, Error::ChannelClosed { reason, .. } if reason.code == code)
    };
    assert!(refused(405), "it is locked");
    asks.close().unwrap();
    wait_until(PATIENCE, "it is gone", || refused(404));
}

/// No client of the others has an error. Commits are answered once, and are in all of their queues or in none; each publish is
/// confirmed once, in order; a consumer keeps what it has not acked, may ack it at the next leader, and goes on.
#[test]
fn clients_of_other_nodes_outlive_the_one_that_leads() {
    let mut members = two_shards();
    let (old, _) = leader(&members, &[0, 1, 2]);
    let others: Vec<_> = (0..3).filter(|at| *at != old).collect();
    let at = others.iter().map(|at| members[*at].relays()).collect::<Vec<_>>();

    let (mut holds, holding) = connect(at[0]);
    holds.queue_declare(holding, "held", &durable()).unwrap();
    holds.qos(holding, 2, false).unwrap();
    holds.consume(holding, "held", &Consume::default()).unwrap();
    let (mut feeds, feeding) = with_orders(at[1]);
    for body in ["one", "two", "three"] {
        feeds.publish(feeding, "", "held", &PERSISTENT, body.as_bytes());
    }
    feeds.tx_commit(feeding).unwrap();
    let (first, ..) = delivered(&mut holds);
    let (second, ..) = delivered(&mut holds);

    // One after the other, so that they are in different shards.
    for queue in (0..2).flat_map(committed) {
        feeds.queue_declare(feeding, &queue, &durable()).unwrap();
    }

    let stops = AtomicBool::new(false);
    let done: [AtomicU32; 4] = Default::default();
    let all_went_on = std::thread::scope(|scope| {
        let stops = &stops;
        let commits: Vec<_> = at
            .iter()
            .zip(&done[..2])
            .enumerate()
            .map(|(number, (at, done))| {
                scope.spawn(move || {
                    let (mut client, channel) = connect(*at);
                    let queues = committed(number);
                    client.tx_select(channel).unwrap();
                    let count = again_and_again(done, stops, |count| {
                        for queue in &queues {
                            client.publish(channel, "", queue, &PERSISTENT, &count.to_be_bytes());
                        }
                        client.tx_commit(channel)
                    });
                    let all: Vec<_> = (0..count).map(|it| it.to_be_bytes().to_vec()).collect();
                    for queue in &queues {
                        assert_eq!(drain(&mut client, channel, queue), all, "{queue}");
                    }
                    client.close().unwrap();
                })
            })
            .collect();
        let confirms: Vec<_> = at
            .iter()
            .zip(&done[2..])
            .enumerate()
            .map(|(number, (at, done))| {
                scope.spawn(move || {
                    let (mut client, channel) = connect(*at);
                    let queue = format!("confirmed-{number}");
                    client.queue_declare(channel, &queue, &durable()).unwrap();
                    client.confirm_select(channel).unwrap();
                    let mut acked = 0;
                    let count = again_and_again(done, stops, |count| {
                        client.publish(channel, "", &queue, &PERSISTENT, &count.to_be_bytes());
                        while acked <= u64::from(count) {
                            let (tag, multiple) = next(&mut client, |event| match event {
                                Event::Method { method: Method::BasicAck(it), .. } => {
                                    (it.delivery_tag, it.multiple)
                                }
                                event => panic!("{event:?}"),
                            })?;
                            assert!(
                                tag == acked + 1 || multiple && tag > acked,
                                "{tag} after {acked}"
                            );
                            acked = tag;
                        }
                        Ok(())
                    });
                    let all: Vec<_> = (0..count).map(|it| it.to_be_bytes().to_vec()).collect();
                    assert_eq!(drain(&mut client, channel, &queue), all, "{queue}");
                    client.close().unwrap();
                })
            })
            .collect();
        // Each of them goes on by so much, or has ended with a panic.
        let go_on = || {
            let before = done.each_ref().map(|it| it.load(Ordering::Relaxed));
            wait_until(PATIENCE, "all clients go on", || {
                let stands = || {
                    done.iter()
                        .zip(before)
                        .any(|(it, before)| it.load(Ordering::Relaxed) < before + 20)
                };
                !stands() || commits.iter().chain(&confirms).any(|it| it.is_finished())
            });
        };
        go_on();
        members[old].child.kill().unwrap();
        leader(&members, &others);
        go_on();
        stops.store(true, Ordering::Relaxed);
        commits.into_iter().chain(confirms).all(|it| it.join().is_ok())
    });
    assert!(all_went_on);

    // What it holds is its own still: the prefetch is full, and what it gives back comes before what came later.
    feeds.publish(feeding, "", "held", &PERSISTENT, b"four");
    feeds.tx_commit(feeding).unwrap();
    holds.ack(holding, first, false);
    let (third, redelivered, body) = delivered(&mut holds);
    // The leader that is gone may have delivered it.
    assert_eq!((redelivered, &body[..]), (true, &b"three"[..]));
    holds.nack(holding, second, false, true);
    let (again, redelivered, body) = delivered(&mut holds);
    assert_eq!((redelivered, &body[..]), (true, &b"two"[..]));
    holds.ack(holding, third, false);
    let (last, redelivered, body) = delivered(&mut holds);
    assert_eq!((redelivered, &body[..]), (false, &b"four"[..]));
    for tag in [again, last] {
        holds.ack(holding, tag, false);
    }
    holds.close().unwrap();
    assert_eq!(drain(&mut feeds, feeding, "held"), Vec::<Vec<u8>>::new());
}

/// Has the user `guest` limited, at any node.
fn limit_guest(member: &Member, limits: &str) {
    ctl(member, &["set_user_limits", "guest", limits]);
}

/// Whether one connection more than `limit` is refused.
fn is_full(at: SocketAddr, limit: u64) -> bool {
    match open(at) {
        Ok(client) => {
            client.close().unwrap();
            false
        }
        Err(error) => {
            let text = format!("user connection limit ({limit}) is reached");
            assert!(error.to_string().contains(&text), "{error}");
            true
        }
    }
}

/// Connections of a user at all three nodes count together, also at the next leader. Those of the one that is gone count no more.
#[test]
fn limits_are_of_all_nodes_whoever_leads() {
    let mut members = three();
    let (old, at_leader) = leader(&members, &[0, 1, 2]);
    let others: Vec<_> = (0..3).filter(|at| *at != old).collect();
    let relays = others.iter().map(|at| members[*at].relays()).collect::<Vec<_>>();
    limit_guest(&members[others[0]], r#"{"max-connections": 3}"#);
    let all = [at_leader, relays[0], relays[1]];
    let _clients = all.map(connect);
    for at in all {
        wait_until(PATIENCE, "no more may come", || is_full(at, 3));
    }
    members[old].child.kill().unwrap();
    let (new, at_leader) = leader(&members, &others);
    let follows = others.iter().position(|at| *at != new).unwrap();
    let _another = connect(relays[follows]);
    for at in [at_leader, relays[follows]] {
        wait_until(PATIENCE, "no more may come", || is_full(at, 3));
    }
    limit_guest(&members[new], r#"{"max-connections": 4}"#);
    let _last = connect(at_leader);
    wait_until(PATIENCE, "no more may come", || is_full(relays[follows], 4));
}

/// A node that begins to lead keeps the sessions that it has beside those of its broker: their channels count together.
#[test]
fn channels_of_a_node_count_whoever_has_the_session() {
    let mut members = three_with("LEVERET_CHANNEL_MAX_PER_NODE", "3");
    let (old, _) = leader(&members, &[0, 1, 2]);
    let others: Vec<_> = (0..3).filter(|at| *at != old).collect();
    let mut keep: Vec<_> = others.iter().map(|at| connect(members[*at].relays()).0).collect();
    keep.iter_mut().for_each(|client| _ = client.open_channel().unwrap());
    members[old].child.kill().unwrap();
    let (new, address) = leader(&members, &others);
    let _stays = connect(address);
    let mut client = open(address).unwrap();
    let why = client.open_channel().unwrap_err().to_string();
    let text = format!("opened on node 'rabbit@{new}' has reached the maximum allowed limit of 3");
    assert!(why.contains(&text), "{why}");
    let kept = &mut keep[others.iter().position(|at| *at == new).unwrap()];
    let why = kept.open_channel().unwrap_err().to_string();
    assert!(why.contains(&text), "{why}");
}

/// So do connections.
#[test]
fn connections_of_a_node_count_whoever_has_the_session() {
    let mut members = three_with("LEVERET_CONNECTION_MAX", "3");
    let (old, _) = leader(&members, &[0, 1, 2]);
    let others: Vec<_> = (0..3).filter(|at| *at != old).collect();
    let relays = others.iter().flat_map(|at| [members[*at].relays(); 2]);
    let _keep: Vec<_> = relays.map(connect).collect();
    members[old].child.kill().unwrap();
    let (_, address) = leader(&members, &others);
    let _third = connect(address);
    assert!(open(address).is_err());
}

/// A node that hears from no leader does not know which names there are: it takes nothing from its clients, and tells them nothing. A
/// message without a queue would be confirmed by names that are not so any more.
#[test]
fn who_hears_from_nobody_does_not_act_by_old_names() {
    let members = three_with("LEVERET_SHARDS", "1");
    let (leads, _) = leader(&members, &[0, 1, 2]);
    let alone = (leads + 1) % 3;
    let (mut client, channel) = connect(members[alone].relays());
    client.confirm_select(channel).unwrap();
    let publishes = |client: &mut Connection| {
        client.publish(channel, "amq.topic", "nobody", &PERSISTENT, b"one");
        client.flush().unwrap();
    };
    let is_confirmed = |client: &mut Connection| {
        let event = client.next_event().unwrap();
        event.is_some_and(|it| matches!(it, Event::Method { method: Method::BasicAck(_), .. }))
    };
    let awaits_confirm = |client: &mut Connection| {
        wait_until(PATIENCE, "a confirm", || {
            is_confirmed(client) || client.wait(PATIENCE).is_err()
        });
    };
    publishes(&mut client);
    awaits_confirm(&mut client);

    let others = (0..3).filter(|at| *at != alone);
    others.clone().for_each(|at| members[at].signal(Signal::STOP));
    let deadline = Instant::now() + PATIENCE;
    // Its lease lasts for a while.
    loop {
        publishes(&mut client);
        client.wait(Duration::from_millis(400)).unwrap();
        if !is_confirmed(&mut client) {
            break;
        }
        assert!(Instant::now() < deadline, "it acts by old names");
    }
    others.for_each(|at| members[at].signal(Signal::CONT));
    awaits_confirm(&mut client);
    client.close().unwrap();
}

/// Whoever comes to the one that is left is told in the handshake; who is connected and waits, after a while. What was confirmed is
/// there when a majority is.
#[test]
fn without_a_majority_clients_are_told_how_many_nodes_are_there() {
    let mut members = two_shards();
    let (leads, address) = leader(&members, &[0, 1, 2]);
    let (left, gone) = ((leads + 1) % 3, (leads + 2) % 3);
    let (mut client, channel) = with_orders(address);
    client.publish(channel, "", "orders", &PERSISTENT, b"one");
    client.tx_commit(channel).unwrap();
    let relays = members[left].relays();
    let (mut waits, channel) = connect(relays);
    waits.queue_declare(channel, "orders", &durable()).unwrap();
    waits.confirm_select(channel).unwrap();
    for at in [gone, leads] {
        members[at].signal(Signal::KILL);
    }
    let begun = Instant::now();
    waits.publish(channel, "", "orders", &PERSISTENT, b"two");
    let mut missing = [gone, leads];
    missing.sort_unstable();
    let want = format!(
        "CONNECTION_FORCED - no node leads the cluster now: 1 of 3 nodes is here, 2 are needed, missing rabbit@{}, rabbit@{}",
        missing[0], missing[1]
    );
    wait_until(PATIENCE, "nobody leads", || {
        told(&members[left], &["cluster_status"])["standing"] == "waits"
    });
    let came = Instant::now();
    let Err(Error::ConnectionClosed(reason)) = open(relays) else { panic!("nobody leads") };
    assert_eq!((reason.code, &*reason.text), (320, &*want));
    let took = came.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    let deadline = begun + Duration::from_secs(60);
    let reason = loop {
        assert!(Instant::now() < deadline, "nobody was told");
        match next(&mut waits, |_| ()) {
            Ok(()) => {}
            Err(Error::ConnectionClosed(reason)) => break reason,
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!((reason.code, &*reason.text), (320, &*want));
    let waited = begun.elapsed();
    assert!(waited > Duration::from_secs(29), "{waited:?}");
    let mut command = leveret(&[]);
    command.env("LEVERET_SHARDS", "2");
    members[gone].start_again(command);
    let (_, address) = leader(&members, &[left, gone]);
    let (mut client, channel) = connect(address);
    assert_eq!(
        client.get(channel, "orders", true).unwrap().expect("it was confirmed").body,
        b"one"
    );
}
