//! Clients by hand: bytes into a node's sockets, bytes out of them.

use bytes::Bytes;
use leveret_amqp::method::{Encode, basic, channel, connection, queue};
use leveret_amqp::outbuf::OutBuf;
use leveret_amqp::table::RawTable;
use leveret_broker::message::ConnectionId;
use leveret_queue::Time;
use leveret_sim::{Node, Socket};

/// When all of it happens.
pub(crate) const NOW: Time = Time::from_ms(1_700_000_000_000);

/// The server's end of a client that is logged in and has channel 1 open.
pub(crate) fn log_in(node: &mut Node, seed: u64) -> ConnectionId {
    let id = node.connect(seed, usize::MAX, NOW);
    let mut out = OutBuf::new();
    out.put_bytes(b"AMQP\x00\x00\x09\x01");
    let start_ok = connection::StartOk {
        client_properties: RawTable::unchecked(&[]),
        mechanism: "PLAIN",
        response: b"\0guest\0guest",
        locale: "en_US",
    };
    out.put_method(0, &start_ok);
    let tune = connection::TuneOk { channel_max: 2047, frame_max: 131_072, heartbeat: 0 };
    out.put_method(0, &tune);
    let open = connection::Open { virtual_host: "/", capabilities: "", insist: false };
    out.put_method(0, &open);
    out.put_method(1, &channel::Open { out_of_band: "" });
    send(node, id, &out.take_rest());
    assert!(read(node, id) > 0);
    id
}

/// The client's end of the socket.
pub(crate) fn socket(node: &mut Node, id: ConnectionId) -> &mut Socket {
    node.socket(id).filter(|socket| !socket.is_closed).expect("the connection stays open")
}

/// The client sends bytes, and everybody runs.
pub(crate) fn send(node: &mut Node, id: ConnectionId, bytes: &[u8]) {
    socket(node, id).to_server.extend(bytes);
    node.run(NOW);
}

/// The client reads all that came: how many bytes.
pub(crate) fn read(node: &mut Node, id: ConnectionId) -> usize {
    let to_client = &mut socket(node, id).to_client;
    let count = to_client.len();
    to_client.clear();
    count
}

/// The client sends a method on channel 1 and throws the answer away.
pub(crate) fn call(node: &mut Node, id: ConnectionId, method: &impl Encode) {
    let mut out = OutBuf::new();
    out.put_method(1, method);
    send(node, id, &out.take_rest());
    read(node, id);
}

pub(crate) fn declare(node: &mut Node, id: ConnectionId, name: &str) {
    call(node, id, &queue::Declare { queue: name, ..Default::default() });
}

pub(crate) fn consume(node: &mut Node, id: ConnectionId, queue: &str, no_ack: bool) {
    let consumer_tag = queue;
    call(node, id, &basic::Consume { queue, consumer_tag, no_ack, ..Default::default() });
}

/// A publish on channel 1 as it is on the wire.
pub(crate) fn publish(exchange: &str, routing_key: &str, body: &[u8]) -> Vec<u8> {
    let mut out = OutBuf::new();
    out.put_method(1, &basic::Publish { exchange, routing_key, ..Default::default() });
    // No property at all.
    out.put_header(1, 60, body.len() as u64, &[0, 0]);
    out.put_body(1, &Bytes::copy_from_slice(body), 131_072);
    out.take_rest()
}
