//! Queues whose confirms stand for the copies of all members in contact, while one of these stands still.

use leveret_client::Event;
use leveret_client::amqp::method::Method;
use serde_json::json;

use super::*;

/// Publishes one message, and waits for its confirm.
fn publish(client: &mut Connection, channel: u16, queue: &str) {
    client.publish(channel, "", queue, &PERSISTENT, b"one");
    let deadline = Instant::now() + PATIENCE;
    loop {
        match client.next_event().unwrap() {
            Some(Event::Method { method: Method::BasicAck(_), .. }) => return,
            Some(event) => panic!("{event:?}"),
            None => {}
        }
        assert!(Instant::now() < deadline, "no confirm");
        client.flush().unwrap();
        client.wait(PATIENCE).unwrap();
    }
}

/// A client that publishes to a queue of its own.
fn publisher(address: SocketAddr, queue: &str) -> (Connection, u16) {
    let (mut client, channel) = connect(address);
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    client.queue_declare(channel, queue, &durable).unwrap();
    client.confirm_select(channel).unwrap();
    (client, channel)
}

/// A follower stands still: confirms that are to be of all wait until it is out of contact, and go on without it. Others do not
/// wait. It is shown, and counts again when it goes on.
#[test]
fn a_follower_that_stands_still_is_left_out() {
    let members = three_with("LEVERET_SHARDS", "1");
    let (leads, address) = leader(&members, &[0, 1, 2]);
    let still = (leads + 1) % 3;
    let name = format!("rabbit@{still}");
    let definition = r#"{"replication-confirm": "all"}"#;
    ctl(&members[leads], &["set_policy", "copies", "^all$", definition]);
    let (mut to_all, channel) = publisher(address, "all");
    let (mut to_majority, other) = publisher(address, "majority");
    publish(&mut to_all, channel, "all");
    publish(&mut to_majority, other, "majority");
    let row = || {
        let rows = told(&members[leads], &["list_queues", "name", "replication_confirm"]);
        let mut rows = rows.as_array().unwrap().clone().into_iter();
        rows.find(|it| it["name"] == "all").unwrap()["replication_confirm"].take()
    };
    let all: Vec<_> = (0..3).map(|at| format!("rabbit@{at}")).collect();
    wait_until(PATIENCE, "all are in contact", || {
        row() == json!({"value": "all", "in_contact": all, "left_out": []})
    });

    members[still].signal(Signal::STOP);
    let waits = std::thread::spawn(move || {
        publish(&mut to_all, channel, "all");
        // It is left out now: nothing waits any more.
        (0..20).for_each(|_| publish(&mut to_all, channel, "all"));
        to_all
    });
    let mut count = 0;
    while !waits.is_finished() {
        publish(&mut to_majority, other, "majority");
        count += 1;
    }
    assert!(count > 1, "{count} were confirmed meanwhile");
    let mut to_all = waits.join().unwrap();
    members[leads].log.wait_for(&format!("{name} does not answer"));
    let left_out = json!([{"node": name, "reason": "does not answer"}]);
    wait_until(PATIENCE, "it is shown", || row()["left_out"] == left_out);
    let status = told(&members[leads], &["cluster_status"]);
    assert_eq!(status["groups"][1]["left_out"], left_out, "{status}");

    members[still].signal(Signal::CONT);
    members[leads].log.wait_for(&format!("{name} has all that is confirmed"));
    publish(&mut to_all, channel, "all");
    wait_until(PATIENCE, "it is not shown", || row()["left_out"] == json!([]));
}
