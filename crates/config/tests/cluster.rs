//! What says who forms a cluster, and what is wrong with it.

use leveret_config::{Config, File, Inputs};

const SECRET: &str = "cluster.secret = 0123456789abcdef\n";
const TWO: &str = "\
    cluster_formation.classic_config.nodes.1 = rabbit@b\n\
    cluster_formation.classic_config.nodes.2 = rabbit@a\n";

fn load(text: &str) -> Result<Config, String> {
    let files = vec![File { name: "f.conf".to_owned(), text: text.to_owned() }];
    let loaded = Config::load(&Inputs { files, ..Inputs::default() });
    loaded.map(|it| it.config).map_err(|errors| errors.to_string())
}

#[test]
fn nodes_and_where_they_are() {
    let more = "\
        cluster.port = 25673\n\
        cluster.listen = 10.0.0.1\n\
        cluster_formation.classic_config.addresses.2 = [::1]:7\n\
        cluster_formation.peer_discovery_backend = rabbit_peer_discovery_classic_config\n";
    let config = load(&format!("{TWO}{SECRET}{more}")).unwrap();
    let formation = config.cluster.formation("rabbit@a").unwrap().unwrap();
    let nodes = formation.nodes.iter().map(|it| format!("{} {}", it.name, it.address));
    // By name, however they are listed: the first founds.
    assert_eq!(nodes.collect::<Vec<_>>(), ["rabbit@a [::1]:7", "rabbit@b b:25673"]);
    assert_eq!((formation.listen.as_deref(), formation.port), (Some("10.0.0.1"), 25_673));
    assert_eq!(formation.secret.reveal(), "0123456789abcdef");
}

#[test]
fn a_node_alone() {
    for text in ["", SECRET, "cluster_formation.classic_config.nodes.1 = rabbit@a\n"] {
        assert_eq!(load(text).unwrap().cluster.formation("rabbit@a"), Ok(None), "{text}");
    }
}

/// The name is the machine's unless it is set: then only a start, or a look as before one, can tell.
#[test]
fn a_node_that_is_not_listed() {
    let config = load(&format!("{TWO}{SECRET}")).unwrap();
    let why = config.cluster.formation("rabbit@c").unwrap_err();
    assert_eq!(
        why,
        "cluster_formation.classic_config: this node, rabbit@c, is not listed: the list names all nodes, and node_name is one of them"
    );
}

#[test]
#[rustfmt::skip] // a table
fn faults() {
    let list = "cluster_formation.classic_config";
    check(TWO,                                            &format!("f.conf:2: {list}.nodes.2 = rabbit@a: cluster.secret is not set, and the nodes need one: the same at all of them"));
    check("cluster.secret = 0123456789abcde\n",           "f.conf:1: cluster.secret = (hidden): expected at least 16 bytes, got 15");
    check(&format!("{SECRET}{TWO}node_name = rabbit@c"),  &format!("f.conf:3: {list}.nodes.2 = rabbit@a: this node, rabbit@c, is not listed: the list names all nodes, and node_name is one of them"));
    // One that is listed alone: the node would stay alone, beside it.
    check(&format!("{list}.nodes.1 = rabbit@a\nnode_name = rabbit@b"),
                                                          &format!("f.conf:1: {list}.nodes.1 = rabbit@a: this node, rabbit@b, is not listed: the list names all nodes, and node_name is one of them"));
    check(&format!("{SECRET}{TWO}{list}.nodes.3 = rabbit@b"),
                                                          &format!("f.conf:4: {list}.nodes.3 = rabbit@b: rabbit@b is listed twice"));
    check(&format!("{SECRET}{TWO}{list}.nodes.3 = hare@b"),
                                                          &format!("f.conf:4: {list}.nodes.3 = hare@b: rabbit@b and hare@b have the same address, b:25672: addresses.3 says where the latter is"));
    check(&format!("{SECRET}{TWO}{list}.addresses.3 = c:1"),
                                                          &format!("f.conf:4: {list}.addresses.3 = c:1: addresses.3 is about no node: there is no nodes.3"));
    check(&format!("{list}.addresses.1 = c"),             &format!("f.conf:1: {list}.addresses.1 = c: expected an address such as 10.0.0.1:25672, host:25672 or [::1]:25672"));
    check(&format!("{list}.addresses.1 = 25672"),         &format!("f.conf:1: {list}.addresses.1 = 25672: expected an address such as 10.0.0.1:25672, host:25672 or [::1]:25672"));
    check(&format!("{list}.addresses.1 = c:0"),           &format!("f.conf:1: {list}.addresses.1 = c:0: expected an address such as 10.0.0.1:25672, host:25672 or [::1]:25672"));
    check(&format!("{list}.nodes.1 = rabbit"),            &format!("f.conf:1: {list}.nodes.1 = rabbit: expected a node's name such as rabbit@host, of at most 255 bytes"));
    check(&format!("{list}.nodes.1 = a@b@c"),             &format!("f.conf:1: {list}.nodes.1 = a@b@c: expected a node's name such as rabbit@host, of at most 255 bytes"));
    check("cluster.listen = 10.0.0.1 ",                   "");
    check("cluster.listen = [::1]:1",                     "f.conf:1: cluster.listen = [::1]:1: expected an address such as 10.0.0.1 or ::1; cluster.port is the port");
    check("cluster.port = 0",                             "f.conf:1: cluster.port = 0: expected a value from 1 to 65535");
    let links = "links have no TLS without cluster.ssl_options.certfile, .keyfile and .cacertfile, and this would do nothing";
    for line in ["verify = verify_none", "depth = 3", "accept_plain = true", "password = letmein"] {
        let line = format!("cluster.ssl_options.{line}");
        let shown = line.replace("letmein", "(hidden)");
        check(&line, &format!("f.conf:1: {shown}: {links}"));
        check(&format!("{line}\ncluster.ssl_options.certfile = a.pem"), "");
    }
    let alone = "nodes do not find each other so yet, and this one would stay alone: list them with cluster_formation.classic_config.nodes, or leave the key out";
    for backend in ["dns", "k8s", "kubernetes", "aws", "consul", "etcd", "rabbit_peer_discovery_k8s"] {
        let line = format!("cluster_formation.peer_discovery_backend = {backend}");
        check(&line, &format!("f.conf:1: {line}: {alone}"));
    }
}

#[track_caller]
fn check(text: &str, want: &str) {
    assert_eq!(load(text).err().unwrap_or_default(), want, "{text}");
}
