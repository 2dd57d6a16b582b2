//! Two nodes say hello to each other, or one to whoever.

use leveret_counting as counting;
use proptest::collection::vec;
use proptest::prelude::*;

use super::secret::PROOF;
use super::*;

const SECRET: &[u8] = b"sixteen bytes ..";
const NOW_MS: u64 = 1_800_000_000_000;

/// A node as a row of a table changes it.
#[derive(Clone)]
struct Node {
    facts: NodeFacts,
    secret: &'static [u8],
    exporter: Option<&'static [u8]>,
    versions: RangeInclusive<u16>,
    urgency: Urgency,
    now_ms: u64,
    /// Name, Raft id and last start of the members that it knows.
    members: Vec<(&'static str, u64, u64)>,
    /// Raft ids of those that were members.
    forgotten: Vec<u64>,
    /// Names in its configuration.
    listed: Vec<&'static str>,
    /// Whom it calls.
    meant: &'static str,
}

impl Members for Node {
    fn start_of(&self, id: RaftId) -> Option<u64> {
        self.members.iter().find(|(_, member, _)| *member == id.0).map(|(.., start)| *start)
    }

    fn named(&self, name: &str) -> Option<RaftId> {
        self.members.iter().find(|(own, ..)| *own == name).map(|(_, id, _)| RaftId(*id))
    }

    fn is_forgotten(&self, id: RaftId) -> bool {
        self.forgotten.contains(&id.0)
    }

    fn is_listed(&self, name: &str) -> bool {
        self.listed.contains(&name)
    }
}

fn cluster(number: u128) -> Option<ClusterId> {
    NonZeroU128::new(number).map(ClusterId)
}

fn node(name: &'static str, raft_id: u64) -> Node {
    Node {
        facts: NodeFacts {
            name: name.into(),
            cluster: cluster(1),
            raft_id: RaftId(raft_id),
            start: 3,
        },
        secret: SECRET,
        exporter: None,
        versions: VERSIONS,
        urgency: Urgency::Bulk,
        now_ms: NOW_MS,
        members: vec![("a@x", 1, 3), ("b@x", 2, 3)],
        forgotten: vec![],
        listed: vec!["a@x", "b@x"],
        meant: "b@x",
    }
}

/// It is in no cluster.
fn blank(name: &'static str, raft_id: u64) -> Node {
    let mut node = node(name, raft_id);
    (node.facts.cluster, node.members) = (None, vec![]);
    node
}

impl Node {
    fn secret(&self) -> Secret {
        Secret::new(self.secret).unwrap()
    }

    fn exporter(&self) -> Option<Box<[u8]>> {
        self.exporter.map(Into::into)
    }

    fn call(&self, random: u8) -> Handshake {
        let (facts, exporter) = (self.facts.clone(), self.exporter());
        let random = [random; 32];
        Handshake::call(facts, self.urgency, self.secret(), exporter, random, self.now_ms)
            .meant_for(self.meant)
            .with_versions(self.versions.clone(), self.now_ms)
    }

    fn answer(&self, random: u8) -> Handshake {
        Handshake::answer(self.facts.clone(), self.secret(), self.exporter(), [random; 32])
            .with_versions(self.versions.clone(), self.now_ms)
    }
}

fn text(handshake: &Handshake) -> String {
    match handshake.outcome() {
        None => "waits".into(),
        Some(Ok(peer)) => format!("{} v{}", peer.node.name, peer.version),
        Some(Err(why)) => why.to_string(),
    }
}

/// Lets two nodes talk until neither has anything to say; `change` may change what goes over, by who wrote it.
fn talk(
    (caller, called): (&Node, &Node),
    mut change: impl FnMut(Role, &mut Vec<u8>),
) -> (Handshake, Handshake) {
    let (mut call, mut answer) = (caller.call(7), called.answer(8));
    loop {
        let mut there = call.take_output();
        change(Role::Caller, &mut there);
        answer.input(&there, called.now_ms, called);
        let mut back = answer.take_output();
        change(Role::Callee, &mut back);
        call.input(&back, caller.now_ms, caller);
        if there.is_empty() && back.is_empty() {
            return (call, answer);
        }
    }
}

#[test]
fn members_come_in() {
    for urgency in [Urgency::Urgent, Urgency::Bulk, Urgency::Relay] {
        let (mut a, mut b) = (node("a@x", 1), node("b@x", 2));
        (a.urgency, b.now_ms, b.versions) = (urgency, NOW_MS + 59_000, 1..=4);
        (a.exporter, b.exporter) = (Some(&b"of the channel"[..]), Some(&b"of the channel"[..]));
        let (call, answer) = talk((&a, &b), |_, _| {});
        let of = |other: &Node, clock_ahead_ms| {
            let (node, version) = (other.facts.clone(), 1);
            Some(Ok(Peer { node, joins: false, version, urgency, clock_ahead_ms, encrypted: true }))
        };
        assert_eq!(call.outcome().cloned(), of(&b, 59_000));
        assert_eq!(answer.outcome().cloned(), of(&a, -59_000));
    }
}

/// Nodes that are in no cluster, each of which lists the other; and one that its founder has made a member, whether or not it has
/// heard of that.
#[test]
fn who_founds_a_cluster_links() {
    let (member, founded) = (node("a@x", 1), blank("b@x", 2));
    // A new node, and a cluster that was founded without it.
    let others = Node { members: vec![("a@x", 1, 3)], ..member.clone() };
    for (caller, called) in [
        (blank("a@x", 1), blank("b@x", 2)),
        (member.clone(), founded.clone()),
        (others, founded.clone()),
    ] {
        let (call, answer) = talk((&caller, &called), |_, _| {});
        for side in [call, answer] {
            assert!(side.outcome().unwrap().as_ref().unwrap().joins);
        }
    }
    let (mut caller, mut called) = (founded, member);
    caller.meant = "a@x";
    let (call, _) = talk((&caller, &called), |_, _| {});
    assert!(call.outcome().unwrap().is_ok());
    // It relays nobody.
    (caller.urgency, called.urgency) = (Urgency::Relay, Urgency::Relay);
    let (call, answer) = talk((&caller, &called), |_, _| {});
    let why = "clients are relayed between members of a cluster only";
    let both = ["b@x refuses a@x", "a@x refuses b@x"].map(|who| format!("{who}: {why}"));
    assert_eq!([text(&call), text(&answer)], both);
}

/// What each side says, where one node is changed. The rows are the caller's outcome and that of whom it calls.
#[test]
fn refusals() {
    let ids = "00000000000000000000000000000002 there, 00000000000000000000000000000001 here";
    let back = "00000000000000000000000000000001 there, 00000000000000000000000000000002 here";
    check(
        |_, b| b.versions = 2..=3,
        "a@x refuses b@x: no version in common: here are 1 to 1 of the link, there 2 to 3; upgrade one node at a time, by one version",
        "b@x refuses a@x: no version in common: here are 2 to 3 of the link, there 1 to 1; upgrade one node at a time, by one version",
    );
    check(
        |a, _| a.secret = b"another sixteen bytes",
        "the other side says: b@x refuses a@x: wrong secret: cluster.secret is not the same on both",
        "b@x refuses a@x: wrong secret: cluster.secret is not the same on both",
    );
    check(
        |a, b| (a.exporter, b.exporter) = (Some(&b"one"[..]), Some(&b"two"[..])),
        "the other side says: b@x refuses a@x: wrong secret: cluster.secret is not the same on both, or something in between ends the TLS connection",
        "b@x refuses a@x: wrong secret: cluster.secret is not the same on both, or something in between ends the TLS connection",
    );
    check(
        |_, b| b.facts.cluster = cluster(2),
        &format!("a@x refuses b@x: it is of another cluster: {ids}"),
        &format!("b@x refuses a@x: it is of another cluster: {back}"),
    );
    // Forgotten, which it does not know itself.
    check(
        |_, b| b.members = vec![("b@x", 2, 3)],
        "the other side says: b@x refuses a@x: its Raft id 0000000000000001 is not a member's: it was forgotten, or never was one",
        "b@x refuses a@x: its Raft id 0000000000000001 is not a member's: it was forgotten, or never was one",
    );
    // Its data directory was wiped: it draws a new number, and is in no cluster.
    check(
        |a, _| (a.facts.cluster, a.facts.raft_id, a.members) = (None, RaftId(9), vec![]),
        "the other side says: b@x refuses a@x: its name belongs to the data directory with Raft id 0000000000000001, and it says 0000000000000009: if the old directory is lost, forget_cluster_node first",
        "b@x refuses a@x: its name belongs to the data directory with Raft id 0000000000000001, and it says 0000000000000009: if the old directory is lost, forget_cluster_node first",
    );
    check(
        |a, _| a.facts.start = 2,
        "the other side says: b@x refuses a@x: it is start 2 of its data directory, and start 3 was here: an older copy of the directory, or a second process on a copy of it",
        "b@x refuses a@x: it is start 2 of its data directory, and start 3 was here: an older copy of the directory, or a second process on a copy of it",
    );
    check(
        |a, _| a.facts.start = u64::MAX,
        "the other side says: b@x refuses a@x: it says that it is start 18446744073709551615 of its data directory, and start 3 is the last that was heard of: its file 'cluster' is not as it was written",
        "b@x refuses a@x: it says that it is start 18446744073709551615 of its data directory, and start 3 is the last that was heard of: its file 'cluster' is not as it was written",
    );
    check(
        |_, b| b.facts.raft_id = RaftId(1),
        "a@x refuses b@x: it has this node's own Raft id 0000000000000001: this node itself, or a copy of its data directory",
        "b@x refuses a@x: it has this node's own Raft id 0000000000000001: this node itself, or a copy of its data directory",
    );
    check(
        |_, b| b.now_ms = NOW_MS - 75_900,
        "a@x refuses b@x: the clock differs by 75 s: the other's is behind; 60 s are allowed",
        "b@x refuses a@x: the clock differs by 75 s: the other's is ahead; 60 s are allowed",
    );
    check(
        |_, b| b.now_ms = u64::MAX,
        "a@x refuses b@x: the clock differs by 9223372036854775 s: the other's is ahead; 60 s are allowed",
        "b@x refuses a@x: the clock differs by 9223372036854775 s: the other's is behind; 60 s are allowed",
    );
    // One of two that are in no cluster is not expected.
    check(
        |a, b| (*a, *b) = (blank("a@x", 1), Node { listed: vec!["b@x", "c@x"], ..blank("b@x", 2) }),
        "the other side says: b@x refuses a@x: its name is not in cluster_formation.classic_config.nodes here",
        "b@x refuses a@x: its name is not in cluster_formation.classic_config.nodes here",
    );
    check(
        |a, b| (*a, *b) = (Node { listed: vec!["a@x"], ..blank("a@x", 1) }, blank("b@x", 2)),
        "a@x refuses b@x: its name is not in cluster_formation.classic_config.nodes here",
        "the other side says: a@x refuses b@x: its name is not in cluster_formation.classic_config.nodes here",
    );
    // A member that the configuration does not list.
    check(
        |_, b| b.listed = vec!["b@x"],
        "the other side says: b@x refuses a@x: its name is not in cluster_formation.classic_config.nodes here",
        "b@x refuses a@x: its name is not in cluster_formation.classic_config.nodes here",
    );
    check(
        |_, b| (b.members, b.forgotten) = (vec![("b@x", 2, 3)], vec![1]),
        "the other side says: b@x refuses a@x: its data directory, with Raft id 0000000000000001, was forgotten (forget_cluster_node): with an empty one it becomes a new member",
        "b@x refuses a@x: its data directory, with Raft id 0000000000000001, was forgotten (forget_cluster_node): with an empty one it becomes a new member",
    );
    check(
        |a, b| (a.facts.name, a.meant, b.facts.raft_id) = ("b@x".into(), "b@x", RaftId(3)),
        "b@x refuses b@x: it has this node's own name",
        "b@x refuses b@x: it has this node's own name",
    );
    check(
        |a, _| a.meant = "c@x",
        "a@x refuses b@x: c@x was called: see cluster_formation.classic_config.addresses here",
        "the other side says: a@x refuses b@x: c@x was called: see cluster_formation.classic_config.addresses here",
    );
    // The caller alone finds something.
    check(
        |a, _| a.members = vec![("a@x", 1, 3)],
        "a@x refuses b@x: its Raft id 0000000000000002 is not a member's: it was forgotten, or never was one",
        "the other side says: a@x refuses b@x: its Raft id 0000000000000002 is not a member's: it was forgotten, or never was one",
    );
}

/// One node has TLS, and the other has none: whoever calls is told, and hears no hello.
#[test]
fn tls_on_one_side() {
    let (a, b) = (node("a@x", 1), node("b@x", 2));
    let (mut call, mut plain, mut tls) = (a.call(7), b.answer(8).with_tls_only(), b.answer(8));
    plain.input(&call.take_output(), NOW_MS, &b);
    let why = "b@x refuses a@x: it calls without TLS, and this node takes links with TLS alone: set cluster.ssl_options there, too";
    assert_eq!(text(&plain), why);
    let told = plain.take_output();
    assert_eq!(told.len(), MAGIC.len() + 4 + why.len());
    call.input(&told, NOW_MS, &a);
    assert_eq!(text(&call), format!("the other side says: {why}"));
    // The caller has said nothing that can be read.
    tls.refuse_tls();
    let mut call = a.call(7);
    call.input(&tls.take_output(), NOW_MS, &a);
    let why = "b@x refuses a node that has not said its name: it calls with TLS, and this node has none for links: set cluster.ssl_options here, too";
    assert_eq!((text(&tls), text(&call)), (why.to_owned(), format!("the other side says: {why}")));
    // With TLS it comes in.
    let exporter = Some(&b"of the channel"[..]);
    let (a, b) = (Node { exporter, ..a }, Node { exporter, ..b });
    let (mut call, mut answer) = (a.call(7), b.answer(8).with_tls_only());
    while answer.outcome().is_none() {
        answer.input(&call.take_output(), NOW_MS, &b);
        call.input(&answer.take_output(), NOW_MS, &a);
    }
    assert_eq!(text(&answer), "a@x v1");
}

#[track_caller]
fn check(change: impl FnOnce(&mut Node, &mut Node), caller: &str, called: &str) {
    let (mut a, mut b) = (node("a@x", 1), node("b@x", 2));
    change(&mut a, &mut b);
    let (call, answer) = talk((&a, &b), |_, _| {});
    assert_eq!((&*text(&call), &*text(&answer)), (caller, called));
}

/// What comes in place of a caller's first bytes, what the node says then, and what it answers.
#[test]
fn strangers() {
    let first = |bytes: &[u8]| {
        let mut answer = node("b@x", 2).answer(8);
        answer.input(bytes, NOW_MS, &node("b@x", 2));
        (text(&answer), answer.take_output())
    };
    let malformed = |text: &str| {
        format!("b@x refuses a node that has not said its name: its handshake has an error: {text}")
    };
    let not_a_node = "b@x refuses a node that has not said its name: its first bytes are not those of a Leveret node";
    for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"AMQP\0\0\x09\x01", b"LVRTLINE", b"X"] {
        assert_eq!(first(bytes), (not_a_node.into(), vec![]), "nothing is said");
    }
    let hello = node("a@x", 1).call(7).take_output();
    type Change = fn(&mut Vec<u8>);
    let rows: [(Change, &str); 8] = [
        (|it| it[8] = 9, "a message of an unknown kind"),
        (|it| it[9] = 1, "a message of an unknown kind"),
        (|it| it[8] = 2, "something else than what comes next"),
        (|it| it[11] = 4, "a message of more than 1 KiB"),
        (|it| (it[10], it[11]) = (20, 0), "a hello that is too short"),
        (|it| it[12] = 9, "versions from a higher to a lower one"),
        (|it| it[16] = 3, "an unknown connection"),
        (|it| it[92] = 0xff, "a name that is none"),
    ];
    for (change, want) in rows {
        let mut bytes = hello.clone();
        change(&mut bytes);
        let (text, told) = first(&bytes);
        assert_eq!(text, malformed(want));
        assert_eq!(
            told,
            [&b"LVRTLINK\x04\0"[..], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
        );
    }
    let mut late = node("b@x", 2).answer(8);
    late.give_up();
    assert_eq!(
        text(&late),
        "b@x refuses a node that has not said its name: its handshake is not done after 5 s"
    );
    assert_eq!(first(b"LVRTLINK\x04\0\x05\0no\x1b\nx").0, "the other side says: no\\u{1b}\\nx");
}

#[test]
fn secrets_are_long() {
    let short = Secret::new(&SECRET[..15]).unwrap_err();
    assert_eq!(short.to_string(), "cluster.secret has 15 bytes, and needs 16 at least");
    assert_eq!(format!("{:?}", Secret::new(SECRET).unwrap()), "Secret(..)");
}

/// One that does not know the secret sends back what it is sent.
#[test]
fn a_proof_is_no_proof_of_the_other_side() {
    let a = node("a@x", 1);
    let mut call = a.call(7);
    for _ in 0..3 {
        let back = call.take_output();
        call.input(&back, NOW_MS, &a);
    }
    assert_eq!(
        text(&call),
        "a@x refuses a@x: wrong secret: cluster.secret is not the same on both"
    );
}

/// One that does not know the secret says again what a member said, to the same node and to the member.
#[test]
fn a_proof_is_good_once() {
    let (a, b) = (node("a@x", 1), node("b@x", 2));
    let (mut by_caller, mut by_called) = (Vec::new(), Vec::new());
    let (call, answer) = talk((&a, &b), |by, bytes| match by {
        Role::Caller => by_caller.extend_from_slice(bytes),
        Role::Callee => by_called.extend_from_slice(bytes),
    });
    assert!(call.outcome().unwrap().is_ok() && answer.outcome().unwrap().is_ok());
    let (mut later_call, mut later_answer) = (a.call(9), b.answer(10));
    later_answer.input(&by_caller, NOW_MS, &b);
    assert_eq!(
        text(&later_answer),
        "b@x refuses a@x: wrong secret: cluster.secret is not the same on both"
    );
    later_call.input(&by_called, NOW_MS, &a);
    assert_eq!(
        text(&later_call),
        "a@x refuses b@x: wrong secret: cluster.secret is not the same on both"
    );
}

/// Somebody in between changes a bit of a hello or a proof: nobody comes in.
#[test]
fn each_bit_counts() {
    let (a, b) = (node("a@x", 1), node("b@x", 2));
    let hello = a.call(7).take_output().len();
    for changed in [Role::Caller, Role::Callee] {
        for bit in 0..(hello + 4 + PROOF) * 8 {
            let mut at = 0;
            let (call, answer) = talk((&a, &b), |by, bytes| {
                if by != changed {
                    return;
                }
                if let Some(byte) = (bit / 8_usize).checked_sub(at).and_then(|at| bytes.get_mut(at))
                {
                    *byte ^= 1 << (bit % 8);
                }
                at += bytes.len();
            });
            for side in [call, answer] {
                assert!(!matches!(side.outcome(), Some(Ok(_))), "bit {bit} of the {changed:?}");
            }
        }
    }
}

/// All that a caller and who it calls write, as bytes.
fn conversation() -> (Vec<u8>, Vec<u8>) {
    let (mut by_caller, mut by_called) = (Vec::new(), Vec::new());
    talk((&node("a@x", 1), &node("b@x", 2)), |by, bytes| match by {
        Role::Caller => by_caller.extend_from_slice(bytes),
        Role::Callee => by_called.extend_from_slice(bytes),
    });
    (by_caller, by_called)
}

/// The bytes that another version has to understand.
#[test]
fn golden() {
    let (by_caller, by_called) = conversation();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let found = format!("caller {}\ncallee {}\n", hex(&by_caller), hex(&by_called));
    assert_eq!(found, include_str!("../../tests/golden/hello-1.txt"), "now {found}");
}

/// Who reads as many bytes as are wanted has not one of what is behind the handshake.
#[test]
fn no_more_is_read_than_is_wanted() {
    let b = node("b@x", 2);
    let (mut bytes, _) = conversation();
    let whole = bytes.len();
    bytes.extend_from_slice(b"a client's");
    let (mut answer, mut at, mut reads) = (b.answer(8), 0, 0);
    while answer.wants() > 0 {
        let wanted = answer.wants();
        assert_eq!(answer.input(&bytes[at..at + wanted], NOW_MS, &b), wanted);
        (at, reads) = (at + wanted, reads + 1);
    }
    assert_eq!((&*text(&answer), at), ("a@x v1", whole));
    assert!(reads <= 6, "{reads} reads");
}

/// Feeds bytes in pieces of these lengths, the rest at once. Returns how many belong to the handshake.
fn feed(handshake: &mut Handshake, own: &Node, bytes: &[u8], lengths: &[usize]) -> usize {
    let (mut rest, mut taken) = (bytes, 0);
    for &len in lengths.iter().chain([&usize::MAX]) {
        let (piece, left) = rest.split_at(len.min(rest.len()));
        taken += handshake.input(piece, own.now_ms, own);
        rest = left;
    }
    taken
}

#[test]
fn cut_anywhere_it_waits() {
    let b = node("b@x", 2);
    let (by_caller, by_called) = conversation();
    for cut in 0..by_caller.len() {
        let mut answer = b.answer(8);
        assert_eq!(answer.input(&by_caller[..cut], NOW_MS, &b), cut);
        assert_eq!(text(&answer), "waits", "cut at {cut}");
        answer.input(&by_caller[cut..], NOW_MS, &b);
        assert_eq!((&*text(&answer), answer.take_output()), ("a@x v1", by_called.clone()));
    }
}

proptest! {
    /// However it is split, with whatever behind it and whatever changed in it.
    #[test]
    fn splits_do_not_matter(
        lengths in vec(0..40_usize, 0..40),
        changes in vec((0..200_usize, any::<u8>()), 0..2),
        frames in vec(any::<u8>(), 0..40),
    ) {
        let b = node("b@x", 2);
        let (mut bytes, _) = conversation();
        for (at, to) in changes {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = to;
            }
        }
        let whole = bytes.len();
        bytes.extend_from_slice(&frames);
        let (mut at_once, mut split) = (b.answer(8), b.answer(8));
        let taken = [feed(&mut at_once, &b, &bytes, &[]), feed(&mut split, &b, &bytes, &lengths)];
        prop_assert_eq!(at_once.outcome(), split.outcome());
        if at_once.outcome().is_some_and(Result::is_ok) {
            prop_assert_eq!(taken, [whole, whole]);
        }
        prop_assert_eq!(at_once.take_output(), split.take_output());
    }

    /// Bytes at random, behind what is right: no panic, and no memory beyond a message's.
    #[test]
    fn noise(
        right in 0..300_usize,
        noise in vec(any::<u8>(), 0..3000),
        lengths in vec(0..400_usize, 0..10),
        calls in any::<bool>(),
    ) {
        let (a, b) = (node("a@x", 1), node("b@x", 2));
        let (by_caller, by_called) = conversation();
        let (mut side, own, mut bytes) = match calls {
            true => (a.call(7), &a, by_called),
            false => (b.answer(8), &b, by_caller),
        };
        bytes.truncate(right);
        bytes.extend_from_slice(&noise);
        let before = counting::live_bytes();
        let largest = counting::largest(|| {
            feed(&mut side, own, &bytes, &lengths);
        });
        // A text of 1 KiB, with every letter escaped, is the most.
        prop_assert!(largest <= 16 * MESSAGE_MAX, "{} bytes at once", largest);
        prop_assert!(counting::live_bytes() - before <= 32 * MESSAGE_MAX as i64);
    }
}
