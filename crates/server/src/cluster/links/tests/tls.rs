//! Links with TLS, and what goes wrong with it.

use std::net::SocketAddr;
use std::path::PathBuf;

use leveret_config::tls::{CipherNames, TlsSettings, TlsVersions, Verify};
use leveret_link::frame::{Class, Envelope, Kind, Letter};
use leveret_link::payload::Payload;
use leveret_link::sender::Sender;
use leveret_topology::GroupId;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::runtime::Handle;

use super::super::encryption::decrypt;
use super::*;
use crate::cluster::relay::{Moved, relay};

type Authority = CertifiedIssuer<'static, KeyPair>;

/// Certificates for one test.
pub(super) struct Certificates {
    dir: tempfile::TempDir,
    ca: Authority,
    other: Authority,
}

/// How a node's TLS is.
struct With<'a> {
    /// Names of authorities that stand behind the node's certificate, each signed by itself.
    behind: &'a [&'a str],
    by: &'a Authority,
    /// The authority that it trusts.
    trusts: &'a Authority,
    change: fn(&mut CertificateParams),
    verify: Verify,
    accepts_plain: bool,
}

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

impl Certificates {
    pub(super) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), ca: authority("one"), other: authority("other") }
    }

    fn with(&self) -> With<'_> {
        With {
            behind: &[],
            by: &self.ca,
            trusts: &self.ca,
            change: |_| {},
            verify: Verify::Peer,
            accepts_plain: false,
        }
    }

    fn write(&self, name: String, text: &str) -> String {
        let path: PathBuf = self.dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Certificate and key, each in a file.
    fn node(&self, of: &With<'_>, file: &str) -> [String; 2] {
        let mut params = CertificateParams::new(vec!["somebody".to_owned()]).unwrap();
        (of.change)(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, of.by).unwrap();
        let behind = of.behind.iter().map(|name| authority(name).pem());
        let chain = certificate.pem() + &behind.collect::<String>();
        [
            self.write(format!("{file}.pem"), &chain),
            self.write(format!("{file}.key"), &key.serialize_pem()),
        ]
    }

    fn settings(&self, of: &With<'_>, file: &str) -> TlsSettings {
        let [certfile, keyfile] = self.node(of, file);
        TlsSettings {
            prefix: "cluster.ssl_options",
            cacertfile: Some(self.write(format!("{file}.ca.pem"), &of.trusts.pem())),
            certfile: Some(certfile),
            keyfile: Some(keyfile),
            password: None,
            verify: of.verify,
            fail_if_no_peer_cert: of.verify == Verify::Peer,
            versions: TlsVersions::newest(),
            ciphers: CipherNames::default(),
            depth: 10,
            honor_cipher_order: false,
        }
    }

    fn tls(&self, of: &With<'_>, file: &str) -> anyhow::Result<Arc<Tls>> {
        Tls::load_for_nodes(self.settings(of, file))
    }

    fn encryption(&self, of: &With<'_>) -> Encryption {
        let file = format!("node-{}", rand::random::<u64>());
        let tls = self.tls(of, &file).unwrap();
        Encryption::on(tls, of.accepts_plain, Handle::current())
    }

    pub(super) fn good(&self) -> Encryption {
        self.encryption(&self.with())
    }
}

fn pair(with: [Option<Encryption>; 2]) -> [LinkedNode; 2] {
    let places = [NodePlace::new("a@x", 1), NodePlace::new("b@x", 2)];
    let peers: Vec<_> = places.iter().map(NodePlace::address).collect();
    let mut with = with.into_iter();
    places.each_ref().map(|place| {
        let encryption = with.next().flatten();
        start_with(place, &peers, (SECRET, encryption, TIMES))
    })
}

impl LinkedNode {
    /// Waits for a link: whether it has TLS.
    async fn encrypted(&mut self) -> bool {
        match self.next().await {
            LinkNews::Linked(peer) => peer.encrypted,
            news => panic!("{news:?}"),
        }
    }
}

#[tokio::test]
async fn encrypted_nodes_talk() {
    let (log, _guard) = Log::start();
    let certificates = Certificates::new();
    let [mut a, mut b] = pair([Some(certificates.good()), Some(certificates.good())]);
    assert!(a.encrypted().await && b.encrypted().await);
    assert_eq!(log.count("node b@x is linked, with TLS"), 1);
    for number in 1..=20 {
        a.links.send(b.id, append(number, 300_000));
        b.links.send(a.id, append(number, 3));
        a.links.send(b.id, heard(number));
    }
    let (mut batches, mut urgent) = (Vec::new(), Vec::new());
    for _ in 0..40 {
        let (_, letter) = b.letter().await;
        if letter.urgency() == Urgency::Bulk { &mut batches } else { &mut urgent }.push(letter);
    }
    assert_eq!(batches, (1..=20).map(|number| append(number, 300_000)).collect::<Vec<_>>());
    assert_eq!(urgent, (1..=20).map(heard).collect::<Vec<_>>());
    for number in 1..=20 {
        assert_eq!(a.letter().await, (b.id, append(number, 3)));
    }
    // What is said before a clean end arrives.
    b.links.send(a.id, append(21, 3 << 20));
    b.links.close().await;
    assert_eq!(a.letter().await, (b.id, append(21, 3 << 20)));
    assert_eq!(a.unlinked().await, b.id);
}

/// Each that does not fit: both say why, once.
#[tokio::test]
async fn what_tls_refuses_is_said_once() {
    let certificates = Certificates::new();
    let of = |with: With<'_>| Some(certificates.encryption(&with));
    let by = |by, trusts| With { by, trusts, ..certificates.with() };
    let lenient = || With { verify: Verify::None, ..certificates.with() };
    refuse(
        |[a, _]| a.encryption = of(certificates.with()),
        [
            "the other side says: b@x refuses a node that has not said its name: it calls with TLS, and this node has none for links: set cluster.ssl_options here, too",
            "b@x refuses a node that has not said its name: it calls with TLS, and this node has none for links: set cluster.ssl_options here, too",
        ],
    )
    .await;
    refuse(
        |[_, b]| b.encryption = of(certificates.with()),
        [
            "the other side says: b@x refuses a@x: it calls without TLS, and this node takes links with TLS alone: set cluster.ssl_options there, too",
            "b@x refuses a@x: it calls without TLS, and this node takes links with TLS alone: set cluster.ssl_options there, too",
        ],
    )
    .await;
    // The dates of a certificate: of the one that is called, of the one that calls.
    let old: fn(&mut CertificateParams) = |params| {
        (params.not_before, params.not_after) =
            (rcgen::date_time_ymd(2019, 1, 1), rcgen::date_time_ymd(2020, 1, 1));
    };
    refuse(
        |[a, b]| {
            a.encryption = of(certificates.with());
            b.encryption = of(With { change: old, ..certificates.with() });
        },
        [
            "a@x refuses b@x: its certificate is not taken: it has expired: it was valid until 2020-01-01T00:00:00Z",
            "the other side says: this node's certificate is not taken: it has expired, or is not valid yet",
        ],
    )
    .await;
    refuse(
        |[a, b]| {
            a.encryption = of(With { change: old, ..certificates.with() });
            b.encryption = of(certificates.with());
        },
        [
            "the other side says: this node's certificate is not taken: it has expired, or is not valid yet",
            "b@x refuses a node that has not said its name: its certificate is not taken: it has expired: it was valid until 2020-01-01T00:00:00Z",
        ],
    )
    .await;
    // Another authority.
    refuse(
        |[a, b]| {
            a.encryption = of(certificates.with());
            b.encryption = of(by(&certificates.other, &certificates.other));
        },
        [
            "a@x refuses b@x: its certificate is not taken: no authority of cacertfile has signed it",
            "the other side says: this node's certificate is not taken: no authority of its cacertfile has signed it",
        ],
    )
    .await;
    refuse(
        |[a, b]| {
            a.encryption = of(With { by: &certificates.other, ..lenient() });
            b.encryption = of(certificates.with());
        },
        [
            "the other side says: this node's certificate is not taken: no authority of its cacertfile has signed it",
            "b@x refuses a node that has not said its name: its certificate is not taken: no authority of cacertfile has signed it",
        ],
    )
    .await;
    // One that is for servers alone calls.
    refuse(
        |[a, b]| {
            let change: fn(&mut CertificateParams) = |params| {
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            };
            a.encryption = of(With { change, ..lenient() });
            b.encryption = of(certificates.with());
        },
        [
            "the other side says: this node's certificate is not taken: its extended key usage has not both serverAuth and clientAuth",
            "b@x refuses a node that has not said its name: its certificate is not taken: its extended key usage has not both serverAuth and clientAuth",
        ],
    )
    .await;
    // A chain in which a path would be looked for long: of the one that is called, of the one that calls.
    refuse(
        |[a, b]| {
            a.encryption = of(certificates.with());
            b.encryption = of(With { behind: &["ca"; 100], ..lenient() });
        },
        [
            "a@x refuses b@x: its certificate is not taken: its chain is longer than depth allows",
            "the other side says: this node's certificate is not taken: its chain is longer than its depth allows, or has two certificates with the same subject",
        ],
    )
    .await;
    refuse(
        |[a, b]| {
            a.encryption = of(With { behind: &["ca", "other", "ca"], ..lenient() });
            b.encryption = of(certificates.with());
        },
        [
            "the other side says: this node's certificate is not taken: its chain is longer than its depth allows, or has two certificates with the same subject",
            "b@x refuses a node that has not said its name: its certificate is not taken: two certificates of its chain have the same subject",
        ],
    )
    .await;
    // Hellos are exchanged over TLS as they are without.
    refuse(
        |[a, b]| {
            a.secret = b"another sixteen bytes";
            (a.encryption, b.encryption) = (of(certificates.with()), of(certificates.with()));
        },
        [
            "the other side says: b@x refuses a@x: wrong secret: cluster.secret is not the same on both, or something in between ends the TLS connection",
            "b@x refuses a@x: wrong secret: cluster.secret is not the same on both, or something in between ends the TLS connection",
        ],
    )
    .await;
}

/// Who is in between, with a certificate that nobody looks at, is found by the secret: it is proved for one channel.
#[tokio::test]
async fn who_is_in_between_is_found() {
    let certificates = Certificates::new();
    let lenient = || With { verify: Verify::None, ..certificates.with() };
    let both =
        [Some(certificates.encryption(&lenient())), Some(certificates.encryption(&lenient()))];
    let [mut a, _b] = pair(both);
    assert!(a.encrypted().await, "nobody is in between");
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = between.local_addr().unwrap().to_string();
    refuse(
        |[a, b]| {
            let to = std::mem::replace(&mut a.peers[1].address, address);
            let other = With { by: &certificates.other, ..lenient() };
            let (called, calls) = (certificates.encryption(&other), certificates.encryption(&other));
            (a.encryption, b.encryption) =
                (Some(certificates.encryption(&lenient())), Some(certificates.encryption(&lenient())));
            tokio::spawn(async move {
                loop {
                    let (left, from) = between.accept().await.unwrap();
                    let right = TcpStream::connect(&to).await.unwrap();
                    let left = called.answer(left, from).await.unwrap();
                    let right = calls.call(right).await.unwrap();
                    let _ = relay(&left, &right, &Moved::default(), SOON).await;
                }
            });
        },
        [
            "the other side says: b@x refuses a@x: wrong secret: cluster.secret is not the same on both, or something in between ends the TLS connection",
            "b@x refuses a@x: wrong secret: cluster.secret is not the same on both, or something in between ends the TLS connection",
        ],
    )
    .await;
}

/// Nodes get TLS one after the other: those that take both link with all.
#[tokio::test]
async fn from_plain_to_tls() {
    let certificates = Certificates::new();
    let both =
        || Some(certificates.encryption(&With { accepts_plain: true, ..certificates.with() }));
    let tls = || Some(certificates.good());
    for (with, want) in [
        ([both(), None], false),
        ([None, both()], false),
        ([both(), both()], true),
        ([both(), tls()], true),
        ([tls(), both()], true),
    ] {
        let [mut a, mut b] = pair(with);
        assert_eq!((a.encrypted().await, b.encrypted().await), (want, want));
    }
    // A certificate that is not taken is told: nobody goes on without one for it.
    refuse(
        |[a, b]| {
            let other = With { by: &certificates.other, trusts: &certificates.other, ..certificates.with() };
            a.encryption = both();
            b.encryption = Some(certificates.encryption(&With { accepts_plain: true, ..other }));
        },
        [
            "a@x refuses b@x: its certificate is not taken: no authority of cacertfile has signed it",
            "the other side says: this node's certificate is not taken: no authority of its cacertfile has signed it",
        ],
    )
    .await;
}

/// A node called `b@x`, which waits for `a@x`, and its address.
fn waiting(encryption: Encryption, times: Times) -> (LinkedNode, SocketAddr) {
    let place = NodePlace::new("b@x", 2);
    let address = place.listener.local_addr().unwrap();
    let a = PeerAddress { name: "a@x".to_owned(), address: "127.0.0.1:1".to_owned() };
    (start_with(&place, &[a], (SECRET, Some(encryption), times)), address)
}

/// Says hello over TLS as a node called `a@x` would.
async fn shake(address: SocketAddr, with: &Encryption, urgency: Urgency) -> LinkSocket {
    let socket = TcpStream::connect(address).await.unwrap();
    let socket = with.call(socket).await.map_err(|(_, why)| why).unwrap();
    let own = NodeFacts { name: "a@x".into(), cluster: None, raft_id: RaftId(1), start: 1 };
    let (secret, exporter) = (Secret::new(SECRET).unwrap(), socket.exporter());
    let mut call = Handshake::call(own, urgency, secret, exporter, rand::random(), wall_ms());
    loop {
        shake::write(&socket, &call.take_output()).await.unwrap();
        if let Some(outcome) = call.outcome() {
            outcome.clone().unwrap();
            return socket;
        }
        let mut bytes = vec![0; call.wants()];
        let count = shake::read(&socket, &mut bytes).await.unwrap();
        call.input(&bytes[..count], wall_ms(), &Known(vec![]));
    }
}

/// A frame with or without a checksum.
fn frame(has_checksum: bool) -> Vec<u8> {
    let mut sender = Sender::new(has_checksum);
    let kind = Kind::new(Class::Batches, 10);
    let envelope = Envelope { kind, again: false, group: GroupId::new(1), number: 1 };
    sender.put(Letter { envelope, payload: Payload::from(Bytes::from_static(b"\x01")) });
    sender.fill();
    let mut slices = [io::IoSlice::new(&[]); 8];
    let count = sender.slices(&mut slices);
    slices[..count].iter().flat_map(|slice| slice.to_vec()).collect()
}

/// TLS has a better checksum: frames have none, and none is taken.
#[tokio::test]
async fn frames_have_no_checksum() {
    let certificates = Certificates::new();
    let (mut node, address) = waiting(certificates.good(), TIMES);
    let calls = certificates.good();
    for has_checksum in [false, true] {
        let urgent = shake(address, &calls, Urgency::Urgent).await;
        let mut bulk = shake(address, &calls, Urgency::Bulk).await;
        assert!(node.encrypted().await);
        bulk.write_all(&frame(has_checksum)).await.unwrap();
        bulk.flush().await.unwrap();
        if has_checksum {
            assert_eq!(node.unlinked().await, RaftId(1));
            let why = node.why_not("a@x").unwrap();
            assert_eq!(why, "a frame has a checksum, which it has not under TLS");
        } else {
            assert_eq!(node.letter().await, (RaftId(1), heard_in(1, 1)));
            drop((urgent, bulk));
            assert_eq!(node.unlinked().await, RaftId(1));
        }
    }
}

/// Strangers who begin with TLS and stall have the time and the places of others, and keep no node out.
#[tokio::test]
async fn strangers_with_tls_keep_no_node_out() {
    let (log, _guard) = Log::start();
    let certificates = Certificates::new();
    let short = Times { handshake: Duration::from_millis(300), ..TIMES };
    let (node, address) = waiting(certificates.good(), short);
    let mut stalls = TcpStream::connect(address).await.unwrap();
    stalls.write_all(&[22, 3, 1, 2]).await.unwrap();
    let mut rest = Vec::new();
    let ended = stalls.read_to_end(&mut rest);
    let _ = timeout(SOON, ended).await.expect("it is closed");
    assert_eq!(rest, b"");
    until(|| log.count("its handshake is not done") == 1).await;
    drop(node);
    let (mut node, address) = waiting(certificates.good(), TIMES);
    let mut crowd = Vec::new();
    for _ in 0..3 * HANDSHAKES_MAX {
        let mut one = TcpStream::connect(address).await.unwrap();
        one.write_all(&[22, 3, 1, 2]).await.unwrap();
        crowd.push(one);
    }
    let calls = certificates.good();
    let _urgent = shake(address, &calls, Urgency::Urgent).await;
    let _bulk = shake(address, &calls, Urgency::Bulk).await;
    assert!(node.encrypted().await);
}

/// A node that is gone for a moment is not called without TLS for it.
#[tokio::test]
async fn only_who_says_so_is_called_without_tls() {
    let certificates = Certificates::new();
    let place = NodePlace::new("a@x", 1);
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = other.local_addr().unwrap().to_string();
    let with = With { accepts_plain: true, ..certificates.with() };
    let with = (SECRET, Some(certificates.encryption(&with)), TIMES);
    let a = start_with(&place, &[PeerAddress { name: "b@x".to_owned(), address }], with);
    for ends_cleanly in [true, false, true, false] {
        let (mut called, _) = timeout(SOON, other.accept()).await.unwrap().unwrap();
        let mut first = [0];
        called.read_exact(&mut first).await.unwrap();
        assert_eq!(first, [22]);
        if ends_cleanly {
            called.read_exact(&mut [0; 100]).await.unwrap();
            called.shutdown().await.unwrap();
        }
    }
    let closed = "it closed the connection in the middle of the handshake";
    until(|| a.why_not("b@x").as_deref() == Some(closed)).await;
}

/// What one end leaves behind that has closed is not kept for the other one, which does not read.
#[tokio::test]
async fn who_does_not_read_keeps_no_relay() {
    let certificates = Certificates::new();
    for broker_closes in [true, false] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (calls, answers) = (certificates.good(), certificates.good());
        let called = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (socket, from) = listener.accept().await.unwrap();
        let (client, link) = tokio::join!(calls.call(called), answers.answer(socket, from));
        let (client, link) = (client.unwrap(), link.unwrap());
        let (ours, theirs) = UnixStream::pair().unwrap();
        // Nothing more goes to the one that does not read.
        let full = |taken: io::Result<usize>| {
            taken.is_err_and(|it| it.kind() == io::ErrorKind::WouldBlock)
        };
        if broker_closes {
            while !full(link.try_write(&[1; 4096])) {}
            theirs.writable().await.unwrap();
            theirs.try_write(&[1; 65_536]).unwrap();
            drop(theirs);
            let ended = timeout(SOON, decrypt(&link, &ours, REST)).await.unwrap();
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
            drop(client);
        } else {
            ours.writable().await.unwrap();
            while !full(ours.try_write(&[1; 4096])) {}
            client.try_write(b"more").unwrap();
            client.shutdown().await.unwrap();
            let ended = timeout(SOON, decrypt(&link, &ours, REST)).await.unwrap();
            assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
            drop(theirs);
        }
    }
}

/// How long what is left has in a test.
const REST: Duration = Duration::from_millis(20);

/// A new certificate is shown to those who come, and links that are there stay.
#[tokio::test]
async fn certificates_are_exchanged() {
    let certificates = Certificates::new();
    let [mut a, mut b] = pair([Some(certificates.good()), Some(certificates.good())]);
    assert!(a.encrypted().await && b.encrypted().await);
    let tls = b.links.tls().unwrap();
    let settings = tls.settings().clone();
    let file = settings.certfile.clone().unwrap();
    let file = PathBuf::from(file).file_stem().unwrap().to_str().unwrap().to_owned();
    // Of an authority that nobody trusts: it is refused, and the old one stays.
    let other = With { by: &certificates.other, ..certificates.with() };
    certificates.node(&other, &file);
    let why = format!("{:#}", tls.reload().unwrap_err());
    assert!(why.contains("links to other nodes: the old certificate stays"), "{why}");
    assert!(why.contains("no authority of cacertfile has signed it"), "{why}");
    certificates.node(&certificates.with(), &file);
    let before = tls.config();
    tls.reload().unwrap();
    assert!(!Arc::ptr_eq(&before, &tls.config()));
    a.links.send(b.id, heard(1));
    assert_eq!(b.letter().await, (a.id, heard(1)));
}

/// What a start would find out too late.
#[test]
fn files_that_do_not_fit() {
    let certificates = Certificates::new();
    let fault = |settings: TlsSettings| format!("{:#}", Tls::load_for_nodes(settings).unwrap_err());
    let why =
        fault(TlsSettings { certfile: None, ..certificates.settings(&certificates.with(), "a") });
    assert!(why.contains("cluster.ssl_options.certfile and cluster.ssl_options.keyfile"), "{why}");
    let why =
        fault(TlsSettings { cacertfile: None, ..certificates.settings(&certificates.with(), "a") });
    assert!(why.contains("verify_peer needs cluster.ssl_options.cacertfile"), "{why}");
    let change: fn(&mut CertificateParams) =
        |params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let why = fault(certificates.settings(&With { change, ..certificates.with() }, "a"));
    assert!(why.contains("has not both serverAuth and clientAuth"), "{why}");
    let other = With { trusts: &certificates.other, ..certificates.with() };
    let why = fault(certificates.settings(&other, "a"));
    assert!(why.contains("no authority of cacertfile has signed it"), "{why}");
}
