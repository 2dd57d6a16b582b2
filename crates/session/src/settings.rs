//! What a session is told by the configuration and by the server that accepted its socket.

use core::net::SocketAddr;
use std::borrow::Cow;
use std::sync::Arc;

use leveret_broker::bodies::BodyRoom;
use leveret_topology::{COMPATIBLE_VERSION, Password};
use serde::{Deserialize, Serialize};

/// How a client may prove who it is, in `connection.start`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// User and password between NULs.
    Plain,
    /// A field table with `LOGIN` and `PASSWORD`.
    AmqPlain,
    /// No proof: the connection becomes [`Settings::anonymous_login`].
    Anonymous,
    /// The client's certificate. Offered over TLS only.
    External,
}

impl Mechanism {
    /// Its name in `connection.start`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::AmqPlain => "AMQPLAIN",
            Self::Anonymous => "ANONYMOUS",
            Self::External => "EXTERNAL",
        }
    }
}

/// Limits and names that hold for every connection. Shared, never changed while a connection lives.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Server property `product`.
    pub product: String,
    /// Server property `version`: clients branch on it, so it is one of RabbitMQ's.
    pub version: String,
    /// Server property `platform`.
    pub platform: String,
    /// Server property `copyright`.
    pub copyright: String,
    /// Server property `information`.
    pub information: String,
    /// Server property `cluster_name`.
    pub cluster_name: String,
    /// Largest frame offered in `connection.tune`, in bytes; 0 for no limit.
    pub frame_max: u32,
    /// Largest frame taken before a client has logged in, in bytes.
    pub initial_frame_max: u32,
    /// Most channels offered in `connection.tune`; 0 for no limit.
    pub channel_max: u16,
    /// Heartbeat offered in `connection.tune`, in seconds; 0 for none.
    pub heartbeat_s: u16,
    /// How long a client may take from the first byte to `connection.open`, in ms.
    pub handshake_timeout_ms: u64,
    /// Longest body taken, in bytes.
    pub max_message_size: u64,
    /// How long a body, or a frame, may hardly move before its connection is closed, in ms.
    pub unfinished_timeout_ms: u64,
    /// Room for the bodies of all connections that are not whole.
    pub bodies: Arc<BodyRoom>,
    /// A persistent message for queues of several shards is stored once if it has at least so many bytes of
    /// names, properties and body; a shorter one by each of them.
    pub embed_bytes_below: u64,
    /// Users that may only come from this machine.
    pub loopback_users: Vec<String>,
    /// In the order they are offered.
    pub mechanisms: Vec<Mechanism>,
    /// Who a client is that logs in by [`Mechanism::Anonymous`]: user and password.
    pub anonymous_login: Option<(String, Password)>,
    /// How long a delivery may stay unacked, in ms, where queue and consumer say nothing.
    pub consumer_timeout_ms: Option<u64>,
    /// Most consumers on one channel.
    pub consumer_max_per_channel: Option<u32>,
    /// `basic.qos` of a new channel.
    pub default_prefetch: u16,
    /// Queues that messages of one turn go to, about, since the last message is taken whole; messages that methods for many
    /// settle in it count like these.
    pub turn_spent_max: usize,
    /// Bytes waiting for one socket above which nothing more is dispatched to it.
    pub output_bytes_max: u64,
    /// Shards share no memory with sessions: they are told by letters what consumers may be given.
    pub allows_by_letters: bool,
    /// The vhost made at the first start. AMQP clients always name theirs: only other protocols need it.
    pub default_vhost: String,
    /// Why nobody is served: `connection.open` is answered with it, whoever the client is. Before that most clients show no reason.
    pub serves_nobody: Option<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            product: "RabbitMQ".to_owned(),
            version: COMPATIBLE_VERSION.to_owned(),
            platform: "Rust".to_owned(),
            copyright: "Copyright (c) the Leveret authors".to_owned(),
            information: "Licensed under the Apache License 2.0".to_owned(),
            cluster_name: "leveret@localhost".to_owned(),
            frame_max: 131_072,
            initial_frame_max: 8192,
            channel_max: 2047,
            heartbeat_s: 60,
            handshake_timeout_ms: 10_000,
            max_message_size: 134_217_728,
            unfinished_timeout_ms: 60_000,
            bodies: Arc::default(),
            embed_bytes_below: 4096,
            loopback_users: vec!["guest".to_owned()],
            mechanisms: vec![Mechanism::Plain, Mechanism::AmqPlain, Mechanism::Anonymous],
            anonymous_login: Some(("guest".to_owned(), Password::new("guest"))),
            consumer_timeout_ms: Some(1_800_000),
            consumer_max_per_channel: None,
            default_prefetch: 0,
            turn_spent_max: 32 << 10,
            output_bytes_max: 1 << 20,
            allows_by_letters: false,
            default_vhost: "/".to_owned(),
            serves_nobody: None,
        }
    }
}

/// The other end of the socket.
#[derive(Clone, Debug)]
pub struct Peer {
    /// For logs and listings: `127.0.0.1:40012`.
    pub address: String,
    /// Our own end: address and port.
    pub local: SocketAddr,
    /// Whether it is on this machine.
    pub is_loopback: bool,
    /// How it is encrypted, if it is.
    pub tls: Option<Arc<TlsFacts>>,
}

/// How a connection is encrypted, in RabbitMQ's words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TlsFacts {
    /// `tlsv1.3`, ...
    pub protocol: Cow<'static, str>,
    /// `ecdhe_rsa`, ...; `any` for TLS 1.3, which agrees on it apart from the rest.
    pub key_exchange: Cow<'static, str>,
    /// `aes_256_gcm`, ...
    pub cipher: Cow<'static, str>,
    /// `aead`.
    pub hash: Cow<'static, str>,
    /// What the client showed, if it showed one. It was found good.
    pub certificate: Option<CertificateFacts>,
}

/// What a client's certificate says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateFacts {
    /// Whose it is, as RFC 4514 writes it.
    pub subject: String,
    /// Who signed it, as RFC 4514 writes it.
    pub issuer: String,
    /// In hexadecimal digits.
    pub serial_number: String,
    /// `2026-01-01T00:00:00Z - 2027-01-01T00:00:00Z`.
    pub validity: String,
    /// The user it stands for, as far as the configured part of it has something to say.
    pub login: Option<String>,
}
