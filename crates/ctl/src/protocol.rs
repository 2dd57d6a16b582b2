//! What `leveret ctl` and the node say to each other over the control socket.
//!
//! Each line is one JSON object in UTF-8, ended by a line feed. The tool sends a request, the node
//! answers it with a response, in order; either side may close between them.
//!
//! ```text
//! {"command":"list_queues","args":{"vhost":"/","columns":["name","messages"]}}
//! {"ok":[{"name":"orders","messages":12}]}
//! {"command":"delete_user","args":{"name":"nobody"}}
//! {"error":{"code":"no_user","text":"User \"nobody\" does not exist"}}
//! ```
//!
//! Lists are answered with an array of [`Row`]s; a row may hold more than the columns asked for.
//! What each command is answered with stands at its variant of [`Request`].

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read, Write};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest line either side takes: definitions of some hundred thousand objects.
pub const LINE_BYTES_MAX: usize = 256 << 20;

/// One row of a list: column names and values. Arguments are JSON objects.
pub type Row = serde_json::Map<String, Value>;

/// A password on its way: in no debug text.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(...)")
    }
}

impl std::ops::Deref for Secret {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// What the tool asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", content = "args", rename_all = "snake_case")]
pub enum Request {
    /// Answered with null.
    Ping,
    /// Answered with a [`Status`].
    Status,
    /// Answered with null before the node stops; the connection is closed when it has.
    Stop,
    /// Answered with null when every file was read and is good.
    ReloadCertificates,
    /// Answered with the version as text.
    Version,
    /// Answered with an object of option keys and values as shown.
    Environment,
    /// Answered with rows of [`columns::QUEUES`](crate::columns::QUEUES).
    ListQueues(ListOf),
    /// Answered with rows of [`columns::EXCHANGES`](crate::columns::EXCHANGES).
    ListExchanges(ListOf),
    /// Answered with rows of [`columns::BINDINGS`](crate::columns::BINDINGS).
    ListBindings(ListOf),
    /// Answered with rows of [`columns::CONSUMERS`](crate::columns::CONSUMERS).
    ListConsumers(ListOf),
    /// Answered with rows of [`columns::CONNECTIONS`](crate::columns::CONNECTIONS), of all vhosts.
    ListConnections(List),
    /// Answered with rows of [`columns::CHANNELS`](crate::columns::CHANNELS), of all vhosts.
    ListChannels(List),
    /// Answered with rows of [`columns::VHOSTS`](crate::columns::VHOSTS).
    ListVhosts(List),
    /// Answered with rows of `user`, `tags` (an array).
    ListUsers,
    /// Answered with rows of `user`, `configure`, `write`, `read`.
    ListPermissions(InVhost),
    /// Answered with rows of `vhost`, `configure`, `write`, `read`.
    ListUserPermissions(Named),
    /// Answered with rows of `user`, `exchange`, `write`, `read`.
    ListTopicPermissions(InVhost),
    /// Answered with rows of `vhost`, `name`, `pattern`, `apply-to`, `definition` (an object),
    /// `priority`.
    ListPolicies(InVhost),
    /// Answered with null once everything is applied.
    ImportDefinitions {
        /// The definitions as RabbitMQ exports them.
        definitions: Value,
    },
    /// Answered with the definitions as RabbitMQ exports them.
    ExportDefinitions,
    /// Answered with null.
    SetPolicy(Policy),
    /// Answered with null.
    ClearPolicy(Object),
    /// Replaces the limits of a vhost. Answered with null.
    SetVhostLimits {
        /// The virtual host.
        vhost: String,
        /// By name.
        limits: BTreeMap<String, i64>,
    },
    /// Answered with null.
    ClearVhostLimits(InVhost),
    /// Begins or ends to trace a vhost. Answered with null.
    SetTracing {
        /// The virtual host.
        vhost: String,
        /// Begins.
        is_on: bool,
    },
    /// Adds to the limits of a user, and replaces those it has. Answered with null.
    SetUserLimits {
        /// The user.
        name: String,
        /// By name.
        limits: BTreeMap<String, i64>,
    },
    /// Answered with null.
    ClearUserLimits {
        /// The user.
        name: String,
        /// Which; all without.
        limit: Option<String>,
    },
    /// Answered with null.
    AddUser {
        /// The new user.
        name: String,
        /// The password, or its hash.
        password: Secret,
        /// Whether `password` is a salted hash in Base64.
        #[serde(default)]
        is_hashed: bool,
    },
    /// Answered with null.
    DeleteUser(Named),
    /// Answered with null.
    ChangePassword {
        /// The user.
        name: String,
        /// The new password.
        password: Secret,
    },
    /// Answered with null if the password is right, else with [`Code::Data`].
    AuthenticateUser {
        /// The user.
        name: String,
        /// The password to check.
        password: Secret,
    },
    /// Answered with null.
    SetUserTags {
        /// The user.
        name: String,
        /// All tags the user has from now on.
        tags: Vec<String>,
    },
    /// Answered with null.
    SetPermissions {
        /// The virtual host.
        vhost: String,
        /// The user.
        user: String,
        /// Pattern of what may be configured.
        configure: String,
        /// Pattern of what may be written to.
        write: String,
        /// Pattern of what may be read.
        read: String,
    },
    /// Takes all permissions of a user in a vhost. Answered with null.
    ClearPermissions(Object),
    /// Answered with null.
    SetTopicPermissions {
        /// The virtual host.
        vhost: String,
        /// The user.
        user: String,
        /// The topic exchange.
        exchange: String,
        /// Pattern of routing keys that may be written.
        write: String,
        /// Pattern of routing keys that may be read.
        read: String,
    },
    /// Answered with null.
    AddVhost {
        /// The new virtual host.
        name: String,
        /// What it is for.
        #[serde(default)]
        description: String,
        /// Its tags.
        #[serde(default)]
        tags: Vec<String>,
        /// Type of queues declared without one.
        #[serde(default)]
        default_queue_type: Option<String>,
    },
    /// Answered with null.
    DeleteVhost(Named),
    /// Answered with null.
    CloseConnection {
        /// The `pid` column of `list_connections`.
        pid: String,
        /// Told to the client.
        reason: String,
    },
    /// Answered with the number of connections told to close.
    CloseAllConnections {
        /// Only of this virtual host; `None` means all.
        vhost: Option<String>,
        /// Close at most so many; 0 means all.
        #[serde(default)]
        limit: u64,
        /// Told to the clients.
        reason: String,
    },
    /// Answered with the number of messages purged.
    PurgeQueue(Object),
    /// Answered with the number of ready messages deleted with the queue.
    DeleteQueue {
        /// The virtual host.
        vhost: String,
        /// The queue.
        name: String,
        /// Refuse when it holds messages.
        #[serde(default)]
        if_empty: bool,
        /// Refuse when it has consumers.
        #[serde(default)]
        if_unused: bool,
    },
    /// Answered with null.
    SetVmMemoryHighWatermark(Watermark),
    /// Answered with null.
    SetDiskFreeLimit(Watermark),
}

/// Which columns of a node-wide list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct List {
    /// The columns that will be shown.
    #[serde(default)]
    pub columns: Vec<String>,
}

/// Which columns of a list in a vhost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ListOf {
    /// The virtual host.
    pub vhost: String,
    /// The columns that will be shown.
    #[serde(default)]
    pub columns: Vec<String>,
}

/// A virtual host as a whole.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InVhost {
    /// The virtual host.
    pub vhost: String,
}

/// Something that has a name on the whole node: a user or a virtual host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Named {
    /// Its name.
    pub name: String,
}

/// Something that has a name in a virtual host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Object {
    /// The virtual host.
    pub vhost: String,
    /// Its name.
    pub name: String,
}

/// A policy to be set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// The virtual host.
    pub vhost: String,
    /// Its name.
    pub name: String,
    /// Which queues or exchanges it is for.
    pub pattern: String,
    /// `queues`, `classic_queues`, `quorum_queues`, `streams`, `exchanges` or `all`.
    pub apply_to: String,
    /// The higher one wins.
    pub priority: i64,
    /// An object of keys and values.
    pub definition: Value,
}

/// A threshold of memory or of free disk space.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Watermark {
    /// A part of the machine's memory, from 0 to 1.
    Relative(f64),
    /// Bytes.
    Absolute(u64),
}

/// The state of a node at a glance.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// The node's name.
    pub node: String,
    /// Product name, `Leveret` unless configured otherwise.
    pub product_name: String,
    /// Product version.
    pub product_version: String,
    /// Version of RabbitMQ that clients are told to expect.
    pub rabbitmq_version: String,
    /// Process id.
    pub pid: u32,
    /// Operating system and machine.
    pub os: String,
    /// Seconds since the start.
    pub uptime: u64,
    /// Directory of the node's data.
    pub data_directory: String,
    /// Files the configuration was read from.
    pub config_files: Vec<String>,
    /// Files and streams that are logged to.
    pub log_files: Vec<String>,
    /// Alarms that are on now, such as `memory`.
    pub alarms: Vec<String>,
    /// Memory of the process in bytes.
    pub memory_bytes: u64,
    /// Of it, what messages, queues and connections take as the broker counts them; compared with the
    /// watermark.
    #[serde(default)]
    pub message_bytes: u64,
    /// Watermark of memory in bytes.
    pub memory_limit_bytes: u64,
    /// Free bytes of the data directory's disk.
    pub disk_free_bytes: u64,
    /// Free bytes under which publishers are blocked.
    pub disk_limit_bytes: u64,
    /// Open file descriptors.
    pub file_descriptors: u64,
    /// Limit of file descriptors.
    pub file_descriptors_limit: u64,
    /// Threads that serve connections.
    pub threads: u32,
    /// Shards that own the queues.
    pub shards: u32,
    /// Open connections.
    pub connections: u64,
    /// Queues of all virtual hosts.
    pub queues: u64,
    /// Virtual hosts.
    pub vhosts: u64,
    /// Addresses that are listened on.
    pub listeners: Vec<Listening>,
}

/// One listener.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listening {
    /// The address.
    pub interface: String,
    /// The port.
    pub port: u16,
    /// `amqp` and the like.
    pub protocol: String,
    /// In words.
    pub purpose: String,
}

/// What the node answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Done, with what was asked for.
    Ok(Value),
    /// Refused.
    Error(Fault),
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{text}")]
pub struct Fault {
    /// What kind of refusal; decides the tool's exit status.
    pub code: Code,
    /// For the user.
    pub text: String,
}

/// Kinds of refusal, after `sysexits.h`, as RabbitMQ's tools use them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request makes no sense.
    Usage,
    /// It names something that does not exist, or holds bad data.
    Data,
    /// There is no such user.
    NoUser,
    /// The node cannot be found.
    NoHost,
    /// The node cannot do it now, or not yet.
    Unavailable,
    /// Anything else went wrong.
    Software,
    /// It took too long.
    TempFail,
}

impl Code {
    /// The tool's exit status.
    pub const fn exit_status(self) -> u8 {
        match self {
            Self::Usage => 64,
            Self::Data => 65,
            Self::NoUser => 67,
            Self::NoHost => 68,
            Self::Unavailable => 69,
            Self::Software => 70,
            Self::TempFail => 75,
        }
    }
}

impl Fault {
    /// A refusal.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// RabbitMQ's words for a missing virtual host.
    pub fn no_vhost(name: &str) -> Self {
        Self::new(Code::Data, format!("Virtual host '{name}' does not exist"))
    }

    /// RabbitMQ's words for a missing user.
    pub fn no_user(name: &str) -> Self {
        Self::new(Code::NoUser, format!("User \"{name}\" does not exist"))
    }

    /// RabbitMQ's words for a user that is already there.
    pub fn user_exists(name: &str) -> Self {
        Self::new(Code::Software, format!("User \"{name}\" already exists"))
    }
}

impl Request {
    /// Reads one line.
    pub fn from_line(line: &[u8]) -> Result<Self, Fault> {
        serde_json::from_slice(line)
            .map_err(|error| Fault::new(Code::Usage, format!("bad request: {error}")))
    }

    /// Writes one line.
    pub fn to_line(&self) -> Vec<u8> {
        to_line(self)
    }
}

impl Response {
    /// Done, with nothing to tell.
    pub const DONE: Self = Self::Ok(Value::Null);

    /// Done, with anything that JSON can say.
    pub fn of(answer: &impl Serialize) -> Self {
        match serde_json::to_value(answer) {
            Ok(value) => Self::Ok(value),
            Err(error) => Self::Error(Fault::new(Code::Software, error.to_string())),
        }
    }

    /// Reads one line.
    pub fn from_line(line: &[u8]) -> Result<Self, Fault> {
        serde_json::from_slice(line)
            .map_err(|error| Fault::new(Code::Software, format!("bad answer: {error}")))
    }

    /// Writes one line.
    pub fn to_line(&self) -> Vec<u8> {
        to_line(self)
    }
}

impl From<Result<Value, Fault>> for Response {
    fn from(result: Result<Value, Fault>) -> Self {
        match result {
            Ok(value) => Self::Ok(value),
            Err(fault) => Self::Error(fault),
        }
    }
}

/// The node's side of one connection, for a thread of its own: answers each request with what
/// `handle` makes of it, until the tool closes or sends a line that is too long.
///
/// # Errors
///
/// When the connection breaks.
pub fn answer<S: Read + Write>(
    stream: S,
    mut handle: impl FnMut(Request) -> Response,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        stream.by_ref().take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
        if !line.ends_with(b"\n") {
            return Ok(());
        }
        let response = match Request::from_line(&line) {
            Ok(request) => handle(request),
            Err(fault) => Response::Error(fault),
        };
        stream.get_mut().write_all(&response.to_line())?;
    }
}

fn to_line(message: &impl Serialize) -> Vec<u8> {
    // Serialising to memory fails only for maps whose keys are no strings; there are none.
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    #[rustfmt::skip] // a table
    fn requests() {
        check(Request::Ping,                                 r#"{"command":"ping"}"#);
        check(Request::ListUsers,                            r#"{"command":"list_users"}"#);
        check(Request::DeleteUser(Named { name: "a".into() }),
                                                             r#"{"command":"delete_user","args":{"name":"a"}}"#);
        check(Request::ListQueues(ListOf { vhost: "/".into(), columns: vec!["name".into()] }),
                                                             r#"{"command":"list_queues","args":{"vhost":"/","columns":["name"]}}"#);
        check(Request::SetVmMemoryHighWatermark(Watermark::Relative(0.5)),
                                                             r#"{"command":"set_vm_memory_high_watermark","args":{"relative":0.5}}"#);
    }

    #[track_caller]
    fn check(request: Request, line: &str) {
        assert_eq!(String::from_utf8(request.to_line()).unwrap(), format!("{line}\n"));
        assert_eq!(Request::from_line(line.as_bytes()).unwrap(), request);
    }

    #[test]
    fn responses() {
        let done = Response::DONE.to_line();
        assert_eq!(done, b"{\"ok\":null}\n");
        assert_eq!(Response::from_line(&done).unwrap(), Response::DONE);
        let fault = Response::Error(Fault::no_user("x"));
        let line = fault.to_line();
        let want = json!({"error": {"code": "no_user", "text": "User \"x\" does not exist"}});
        assert_eq!(serde_json::from_slice::<Value>(&line).unwrap(), want);
        assert_eq!(Response::from_line(&line).unwrap(), fault);
    }

    #[test]
    fn a_connection_is_answered() {
        let (mut tool, node) = std::os::unix::net::UnixStream::pair().unwrap();
        tool.write_all(b"{\"command\":\"version\"}\nx\n{\"command\":\"ping\"}").unwrap();
        tool.shutdown(std::net::Shutdown::Write).unwrap();
        let mut asked = Vec::new();
        let handle = |request| {
            asked.push(request);
            Response::DONE
        };
        answer(node, handle).unwrap();
        let mut said = String::new();
        tool.read_to_string(&mut said).unwrap();
        assert_eq!(asked, [Request::Version]); // the last line has no end
        let said: Vec<_> = said.lines().map(|line| line.starts_with("{\"ok\"")).collect();
        assert_eq!(said, [true, false]);
    }

    #[test]
    fn nonsense_is_refused() {
        for line in ["", "x", "{}", "[]", r#"{"command":"fly"}"#, r#"{"command":"delete_user"}"#] {
            assert_eq!(
                Request::from_line(line.as_bytes()).unwrap_err().code,
                Code::Usage,
                "{line}"
            );
        }
    }
}
