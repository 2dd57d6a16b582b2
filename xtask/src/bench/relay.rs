//! What moving bytes through sockets costs, and no more: a relay of TCP connections.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};

use anyhow::{Context as _, Result};
use leveret_client::Uri;
use leveret_load::process;
use socket2::SockRef;

use super::Workload;
use super::measure::{Bench, BrokerAt, Figures, named, number, own_cpu_s};
use super::stored::owned;

/// Bytes of one read. Larger ones take more calls' worth of copies out of the cache.
const READ_BYTES: usize = 128 * 1024;

/// Large bodies with a relay between clients and broker. The relay reads and writes each message twice, the broker
/// once: half of what the relay uses are the socket copies alone.
pub(crate) fn beside(bench: &mut Bench, place: &BrokerAt<'_>) -> Result<(Figures, f64)> {
    let broker: Uri = place.uri.parse()?;
    let relay = start((broker.host.as_str(), broker.port))?;
    let through = format!("amqp://guest:guest@{relay}/%2F");
    let seconds = bench.seconds.to_string();
    // A hundred in flight, whoever is quicker: where a backlog grows, most of the cost is its fresh memory.
    let steady = ["-qa", "x-confirm-on=ack", "-q", "50", "-c", "100"];
    let flags =
        [&["-e", "", "-u", "relayed", "-s", "65536", "-z", &*seconds], &steady[..]].concat();
    let faults = || process::tree(place.pid).map_or(0, |usage| usage.minor_faults);
    let (before, faults_before) = (own_cpu_s(), faults());
    let result =
        bench.perf(Workload::Relay, &BrokerAt { uri: &through, pid: place.pid }, &owned(&flags))?;
    let relay_s = own_cpu_s() - before;
    let relay_cpu = relay_s / (number(&result, "/published")? / 1e6);
    let broker_cpu = number(&result, "/broker/cpu_s_per_million")?;
    let figures = named([
        ("broker CPU s per million", broker_cpu),
        ("relay CPU s per million", relay_cpu),
        ("broker CPU, of the socket copies alone", broker_cpu / (relay_cpu / 2.0)),
        (
            "page faults per message",
            (faults() - faults_before) as f64 / number(&result, "/published")?,
        ),
        ("consumed/s", number(&result, "/consume_rate/mean")?),
        ("peak RSS, MB", number(&result, "/broker/rss_peak_bytes")? / 1e6),
    ]);
    Ok((figures, number(&result, "/tool/cpu_s")?))
}

/// Relays all connections to a place, as long as this process lives; where it listens.
fn start(to: (&str, u16)) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let here = listener.local_addr()?;
    let to = std::net::ToSocketAddrs::to_socket_addrs(&to)?.next().context("no such host")?;
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(broker) = TcpStream::connect(to) else { continue };
            for socket in [&client, &broker] {
                // As broker and load tool do on one machine.
                let _ = SockRef::from(socket).set_tcp_congestion(b"cubic");
                let _ = socket.set_nodelay(true);
            }
            if let (Ok(client_too), Ok(broker_too)) = (client.try_clone(), broker.try_clone()) {
                std::thread::spawn(move || copy(client, broker));
                std::thread::spawn(move || copy(broker_too, client_too));
            }
        }
    });
    Ok(here)
}

/// Until the end, which is passed on.
fn copy(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(count) = from.read(&mut buffer) {
        if count == 0 || to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_their_end_go_both_ways() {
        let there = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = there.local_addr().unwrap();
        let relay = start(("127.0.0.1", address.port())).unwrap();
        let mut client = TcpStream::connect(relay).unwrap();
        let (mut server, _) = there.accept().unwrap();
        let sent = vec![7; 3 * READ_BYTES + 1];
        let reader = std::thread::spawn(move || {
            let mut got = Vec::new();
            server.read_to_end(&mut got).unwrap();
            server.write_all(b"answer").unwrap();
            got
        });
        client.write_all(&sent).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!((reader.join().unwrap(), answer.as_str()), (sent, "answer"));
    }
}
