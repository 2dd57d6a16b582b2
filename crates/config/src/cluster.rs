//! The nodes that form a cluster, and how they reach each other.

use std::fmt;

use crate::option::options;
use crate::setting::{KeyMatch, ListenAddress, NamedValues, Setting};
use crate::tls::{CipherNames, TlsSettings, TlsVersions, Verify};
use crate::value::{ByteSize, Secret, Value, words};

/// Bytes of `cluster.secret` at least.
const SECRET_MIN: usize = 16;

/// Letters of a node's name at most.
const NAME_MAX: usize = 255;

words! {
    /// Where the sessions of a cluster's AMQP clients are.
    Sessions {
        /// On the node that leads, to which the others relay the bytes of their clients.
        Relayed = "relayed",
        /// On the node that the client is connected to.
        Own = "own",
    }
}

words! {
    /// How the nodes of a cluster find each other.
    Discovery {
        /// They are listed.
        ClassicConfig = "classic_config" | "rabbit_peer_discovery_classic_config",
    }
    refuses {
        "dns" | "rabbit_peer_discovery_dns" | "k8s" | "kubernetes" | "rabbit_peer_discovery_k8s"
        | "aws" | "rabbit_peer_discovery_aws" | "consul" | "rabbit_peer_discovery_consul"
        | "etcd" | "rabbit_peer_discovery_etcd" =>
        "nodes do not find each other so yet, and this one would stay alone: list them with cluster_formation.classic_config.nodes, or leave the key out"
    }
}

/// What is listed under `nodes` or `addresses`, by the word that says which node it is about.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed<T>(NamedValues<T>);

impl<T> Listed<T> {
    fn none() -> Self {
        Self(NamedValues::of([]))
    }
}

impl<T: Value> Setting for Listed<T> {
    fn set(&mut self, key: &KeyMatch<'_>, text: &str) -> Result<(), String> {
        self.0.put(key.name, T::read(text)?);
        Ok(())
    }

    fn form() -> &'static str {
        T::FORM
    }

    fn display(&self) -> String {
        let all: Vec<_> =
            self.0.iter().map(|(name, it)| format!("{name} = {}", it.show())).collect();
        if all.is_empty() { "none".to_owned() } else { all.join(", ") }
    }
}

/// A node's name, with the host where it is: `rabbit@host`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FullName(String);

impl FullName {
    fn host(&self) -> &str {
        self.0.split_once('@').map_or("", |(_, host)| host)
    }
}

impl Value for FullName {
    const FORM: &'static str = "NAME@HOST";

    fn read(text: &str) -> Result<Self, String> {
        let is_word = |word: &str| !word.is_empty() && !word.contains(['@', '/']);
        let is_name =
            text.split_once('@').is_some_and(|(name, host)| is_word(name) && is_word(host));
        if is_name && text.len() <= NAME_MAX && text.chars().all(|it| !it.is_whitespace()) {
            return Ok(Self(text.to_owned()));
        }
        Err(format!("expected a node's name such as rabbit@host, of at most {NAME_MAX} bytes"))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

/// Where a node is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeAddress {
    /// An IP address or host name.
    pub host: String,
    /// Never 0.
    pub port: u16,
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ListenAddress { host: Some(self.host.clone()), port: self.port }.fmt(f)
    }
}

impl Value for NodeAddress {
    const FORM: &'static str = "HOST:PORT";

    fn read(text: &str) -> Result<Self, String> {
        match ListenAddress::read(text) {
            Ok(ListenAddress { host: Some(host), port: 1.. }) if !text.contains('/') => {
                let port = ListenAddress::read(text)?.port;
                Ok(Self { host, port })
            }
            _ => {
                Err("expected an address such as 10.0.0.1:25672, host:25672 or [::1]:25672".into())
            }
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

options! {
    /// The cluster that the node is a part of.
    ClusterOptions, "Cluster";

    /// How the nodes of a cluster find each other: `classic_config`, from a list that all of them have.
    ///
    /// RabbitMQ's other ways are not there yet. A node that is told one of them does not start, as it would stay alone.
    discovery: Discovery = Discovery::ClassicConfig,
        keys = ["cluster_formation.peer_discovery_backend"];

    /// The nodes of the cluster, this one among them: `cluster_formation.classic_config.nodes.1 = rabbit@a`.
    ///
    /// All nodes have the same list, in any order. When all of them are there for the first time, they form the cluster.
    /// With fewer than two a node is alone. See the page about clustering.
    nodes: Listed<FullName> = Listed::none(), keys = ["cluster_formation.classic_config.nodes.$node"];

    /// Where a listed node is called: `cluster_formation.classic_config.addresses.1` is about `nodes.1`.
    ///
    /// Not set: the host of the node's name, and `cluster.port`. Several nodes of one machine need it.
    addresses: Listed<NodeAddress> = Listed::none(),
        keys = ["cluster_formation.classic_config.addresses.$node"];

    /// What nodes prove to each other that they know. It is the same on all of them, and at least 16 bytes long.
    ///
    /// Without it nobody would be kept from joining. It is never sent. It takes the place of RabbitMQ's Erlang cookie.
    secret: Option<Secret> = None, keys = ["cluster.secret"], check = secret;

    /// Port for the other nodes of the cluster.
    ///
    /// Messages and passwords' hashes go over it, as they are if there is no `cluster.ssl_options.certfile`. Only the other nodes
    /// should reach it.
    port: u16 = 25_672, keys = ["cluster.port"], env = ["RABBITMQ_DIST_PORT" => "cluster.port"],
        range = 1..=u16::MAX;

    /// Address of that port. Not set: all addresses, IPv6 and IPv4.
    listen: Option<String> = None, keys = ["cluster.listen"], check = listen;

    /// Size of what the node that leads keeps of each log, besides what queues need, while another node lacks it.
    ///
    /// The other nodes keep a sixteenth of it. A node that was away for longer lacks more than that, and gets files in place of batches.
    kept_size: ByteSize = ByteSize::mib(1024), keys = ["cluster.kept_size"],
        range = ByteSize::mib(1)..=ByteSize::mib(1024 * 1024);

    /// Where the sessions of AMQP clients are: on the node that a client is connected to (`own`), or on the node that leads (`relayed`).
    ///
    /// With `own` a client of a node that does not lead keeps its connection when another node begins to lead, and notices a pause. With
    /// `relayed` all connections end then, and nodes that do not lead need less CPU. It is the same on all nodes.
    sessions: Sessions = Sessions::Own, keys = ["cluster.sessions"];
}

options! {
    /// TLS of the connections between the nodes of a cluster.
    ///
    /// All of them have it, or none. It is version 1.3 alone, as there is a node of ours at both ends. See the page about clustering.
    ClusterTlsOptions, "TLS between nodes";

    /// File of the authorities that have signed the certificates of all nodes, in PEM.
    cacertfile: Option<String> = None, keys = ["cluster.ssl_options.cacertfile"];

    /// File of the node's certificate and, behind it, those that lead to its authority, in PEM. With it links have TLS.
    ///
    /// A node calls and is called: if the certificate has an extended key usage, that has both `serverAuth` and `clientAuth`. The names
    /// in it are not looked at, as nodes prove by `cluster.secret` who they are. The file is read again as `ssl_options.certfile` is;
    /// connections that are there stay.
    certfile: Option<String> = None, keys = ["cluster.ssl_options.certfile"];

    /// File of the certificate's private key, in PEM (PKCS #8, PKCS #1 or SEC 1).
    keyfile: Option<String> = None, keys = ["cluster.ssl_options.keyfile"];

    /// Password of the key file, if that is encrypted (PKCS #8).
    password: Option<Secret> = None, keys = ["cluster.ssl_options.password"];

    /// Whether a node has to show a certificate that one of `cacertfile` has signed.
    ///
    /// With `verify_none` nobody in between reads or changes what goes over a link, as `cluster.secret` is proved for the very channel.
    verify: Verify = Verify::Peer, keys = ["cluster.ssl_options.verify"];

    /// Largest number of certificates between a node's certificate and its authority.
    depth: u32 = 10, keys = ["cluster.ssl_options.depth"], range = 0..=100;

    /// Whether nodes that have no TLS for links are let in, too, and are called without it.
    ///
    /// It is for the time in which the nodes of a running cluster get TLS, one after the other. Whoever is in between may keep two
    /// such nodes from using it.
    accept_plain: bool = false, keys = ["cluster.ssl_options.accept_plain"];
}

impl ClusterTlsOptions {
    /// What links are encrypted with; none if they are not. Files that are missing are told when it is used.
    pub fn settings(&self) -> Option<TlsSettings> {
        let files = [&self.cacertfile, &self.certfile, &self.keyfile];
        files.into_iter().any(Option::is_some).then(|| TlsSettings {
            prefix: "cluster.ssl_options",
            cacertfile: self.cacertfile.clone(),
            certfile: self.certfile.clone(),
            keyfile: self.keyfile.clone(),
            password: self.password.clone(),
            verify: self.verify,
            fail_if_no_peer_cert: self.verify == Verify::Peer,
            versions: TlsVersions::newest(),
            ciphers: CipherNames::default(),
            depth: self.depth,
            honor_cipher_order: false,
        })
    }
}

fn secret(value: &Option<Secret>) -> Result<(), String> {
    match value.as_ref().map(|it| it.reveal().len()) {
        Some(len) if len < SECRET_MIN => {
            Err(format!("expected at least {SECRET_MIN} bytes, got {len}"))
        }
        _ => Ok(()),
    }
}

fn listen(value: &Option<String>) -> Result<(), String> {
    match value.as_deref() {
        Some(it) if it.is_empty() || it.contains([' ', '/', '[']) => {
            Err("expected an address such as 10.0.0.1 or ::1; cluster.port is the port".to_owned())
        }
        _ => Ok(()),
    }
}

/// The cluster that a node is to form with others.
#[derive(Clone, Debug, PartialEq)]
pub struct Formation {
    /// All nodes, this one among them, by name. At least two; no name and no address is there twice.
    pub nodes: Vec<ConfiguredNode>,
    /// What all of them know.
    pub secret: Secret,
    /// Where this one listens; all addresses if there is none.
    pub listen: Option<String>,
    /// The port for it.
    pub port: u16,
    /// Where the sessions of its clients are.
    pub sessions: Sessions,
}

/// A node of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfiguredNode {
    /// Its name, with the host.
    pub name: String,
    /// Where it is called.
    pub address: NodeAddress,
}

impl ClusterOptions {
    /// The cluster that the node called `own` is to form; none if it is alone.
    ///
    /// # Errors
    ///
    /// What is wrong with the list, in a sentence.
    pub fn formation(&self, own: &str) -> Result<Option<Formation>, String> {
        let found = self.look(Some(own));
        found.map_err(|why| format!("cluster_formation.classic_config: {why}"))
    }

    /// What of it is wrong, whatever the name of this node is if it is not known.
    pub(crate) fn fault(&self, own: Option<&str>) -> Option<String> {
        self.look(own).err()
    }

    fn look(&self, own: Option<&str>) -> Result<Option<Formation>, String> {
        let mut nodes: Vec<ConfiguredNode> = Vec::new();
        for (word, name) in self.nodes.0.iter() {
            let default = || NodeAddress { host: name.host().to_owned(), port: self.port };
            let address = self.addresses.0.get(word).cloned().unwrap_or_else(default);
            let node = ConfiguredNode { name: name.0.clone(), address };
            if nodes.iter().any(|other| other.name == node.name) {
                return Err(format!("{} is listed twice", node.name));
            }
            if let Some(other) = nodes.iter().find(|other| other.address == node.address) {
                return Err(format!(
                    "{} and {} have the same address, {}: addresses.{word} says where the latter is",
                    other.name, node.name, node.address
                ));
            }
            nodes.push(node);
        }
        if let Some((word, _)) =
            self.addresses.0.iter().find(|(word, _)| self.nodes.0.get(word).is_none())
        {
            return Err(format!("addresses.{word} is about no node: there is no nodes.{word}"));
        }
        if let Some(own) =
            own.filter(|own| !nodes.is_empty() && nodes.iter().all(|it| it.name != *own))
        {
            return Err(format!(
                "this node, {own}, is not listed: the list names all nodes, and node_name is one of them"
            ));
        }
        if nodes.len() < 2 {
            return Ok(None);
        }
        let Some(secret) = self.secret.clone() else {
            return Err(
                "cluster.secret is not set, and the nodes need one: the same at all of them"
                    .to_owned(),
            );
        };
        nodes.sort_by(|one, other| one.name.cmp(&other.name));
        let Self { listen, port, sessions, .. } = self;
        let (listen, port, sessions) = (listen.clone(), *port, *sessions);
        Ok(Some(Formation { nodes, secret, listen, port, sessions }))
    }
}
