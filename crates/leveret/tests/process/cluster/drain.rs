//! Nodes that are drained for maintenance.

use std::net::TcpStream;

use super::*;

/// Whether a node lets clients in where it listened last.
fn is_open(member: &Member) -> bool {
    let line = member.log.with("stands by").pop().unwrap();
    TcpStream::connect(relays_at(&line)).is_ok()
}

#[track_caller]
fn is_drained(member: &Member) {
    wait_until(PATIENCE, "its listener is closed", || !is_open(member));
    let status = told(member, &["status"]);
    assert_eq!(status["is_under_maintenance"], true, "{status}");
}

/// A client that may only be told to go when its own node is drained.
fn works((client, channel): &mut (Connection, u16)) {
    client.publish(*channel, "", "orders", &PERSISTENT, b"one");
    client.tx_commit(*channel).unwrap();
}

/// Clients of other nodes go on, and new ones come in there.
#[test]
fn a_node_that_is_drained_lets_its_own_clients_go() {
    let members = three();
    let (leads, address) = leader(&members, &[0, 1, 2]);
    let [follows, other] = [1, 2].map(|it| (leads + it) % 3);
    let mut clients =
        [address, members[follows].relays(), members[other].relays()].map(with_orders);
    clients.iter_mut().for_each(works);

    ctl(&members[follows], &["drain"]);
    let [at_leader, drained, at_other] = &mut clients;
    let reason = close_reason(&mut drained.0);
    assert_eq!(
        (reason.code, &*reason.text),
        (320, "CONNECTION_FORCED - Node was put into maintenance mode")
    );
    is_drained(&members[follows]);
    [&mut *at_leader, &mut *at_other].into_iter().for_each(works);
    ctl(&members[follows], &["revive"]);
    assert!(is_open(&members[follows]));
    works(&mut with_orders(members[follows].relays()));

    // Another node leads before the clients of this one are told to go, and it stays closed.
    ctl(&members[leads], &["drain"]);
    assert_eq!(close_reason(&mut at_leader.0).code, 320);
    is_drained(&members[leads]);
    works(at_other);
    let status = told(&members[other], &["cluster_status"]);
    let old = format!("rabbit@{leads}");
    assert!(status["leader"].is_string() && status["leader"] != old, "{status}");
    assert!(status["running_nodes"].as_array().unwrap().iter().any(|it| *it == old), "{status}");
    ctl(&members[leads], &["revive"]);
    assert!(is_open(&members[leads]));
}
