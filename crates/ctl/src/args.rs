//! The command line of `leveret ctl`: rabbitmqctl's names, arguments and switches.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Steer and look into a running node.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Exit status: 0 done, 64 wrong usage, 65 no such object or bad data, 67 no such user, 68 no node, \
69 not available, 70 failed, 75 timed out.

Example:
  leveret ctl list_queues --vhost / name messages consumers --formatter json")]
pub struct CtlArgs {
    /// What holds for every command.
    #[command(flatten)]
    pub common: Common,

    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// Switches that every command takes.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Control socket of the node [default: as the configuration says]
    #[arg(long, global = true, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Virtual host
    #[arg(short = 'p', long, global = true, default_value = "/", value_name = "VHOST")]
    pub vhost: String,

    /// Shape of the output
    #[arg(long, global = true, value_enum, default_value_t = Formatter::Table)]
    pub formatter: Formatter,

    /// Do not say what is being done
    #[arg(short, long, global = true)]
    pub quiet: bool,

    /// As --quiet, and no table headers
    #[arg(short, long, global = true)]
    pub silent: bool,

    /// No table headers
    #[arg(long, global = true)]
    pub no_table_headers: bool,

    /// Seconds to wait for the node
    #[arg(short, long, global = true, default_value_t = 60, value_name = "SECONDS")]
    pub timeout: u64,

    /// Accepted for rabbitmqctl's sake: the socket says which node
    #[arg(short, long, global = true, value_name = "NODE", hide_short_help = true)]
    pub node: Option<String>,

    /// Accepted for rabbitmqctl's sake
    #[arg(short, long, global = true, hide_short_help = true)]
    pub longnames: bool,
}

/// Shapes of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Formatter {
    /// Columns divided by tabs.
    Table,
    /// Columns in frames.
    PrettyTable,
    /// JSON.
    Json,
    /// Comma-separated values.
    Csv,
}

/// The commands.
#[derive(Subcommand, Clone, Debug)]
#[command(rename_all = "snake_case")]
pub enum Command {
    /// Show the node's state
    Status,
    /// Stop the node
    #[command(alias = "shutdown")]
    Stop {
        /// Succeed if the node is not running
        #[arg(long)]
        idempotent: bool,
    },
    /// Read certificates and keys of TLS again
    #[command(name = "reload_certificates")]
    ReloadCertificates,
    /// Check that the node answers
    Ping,
    /// Wait until the node answers
    #[command(alias = "wait")]
    AwaitStartup,
    /// Show the node's version
    Version,
    /// Show every option with its value
    Environment,
    /// List queues
    ListQueues {
        /// Accepted for rabbitmqctl's sake
        #[arg(long, hide = true)]
        online: bool,
        /// Accepted for rabbitmqctl's sake
        #[arg(long, hide = true)]
        offline: bool,
        /// Accepted for rabbitmqctl's sake
        #[arg(long, hide = true)]
        local: bool,
        /// What to show of each [default: name messages]
        columns: Vec<String>,
    },
    /// List exchanges
    ListExchanges {
        /// What to show of each [default: name type]
        columns: Vec<String>,
    },
    /// List bindings
    ListBindings {
        /// What to show of each [default: all]
        columns: Vec<String>,
    },
    /// List consumers
    ListConsumers {
        /// What to show of each [default: all]
        columns: Vec<String>,
    },
    /// List connections
    ListConnections {
        /// What to show of each [default: user peer_host peer_port state]
        columns: Vec<String>,
    },
    /// List channels
    ListChannels {
        /// What to show of each [default: pid user consumer_count messages_unacknowledged]
        columns: Vec<String>,
    },
    /// List virtual hosts
    ListVhosts {
        /// What to show of each [default: name]
        columns: Vec<String>,
    },
    /// List users with their tags
    ListUsers,
    /// List permissions in a virtual host
    ListPermissions,
    /// List a user's permissions in all virtual hosts
    ListUserPermissions {
        /// The user
        username: String,
    },
    /// List topic permissions in a virtual host
    ListTopicPermissions,
    /// List policies of a virtual host
    ListPolicies,
    /// Add what a definitions file holds
    ImportDefinitions {
        /// A JSON file, or - for standard input
        #[arg(default_value = "-")]
        file: PathBuf,
        /// Accepted for rabbitmqctl's sake: only JSON
        #[arg(long, hide = true)]
        format: Option<String>,
    },
    /// Write everything that is defined to a file
    ExportDefinitions {
        /// The JSON file to write, or - for standard output
        file: PathBuf,
        /// Accepted for rabbitmqctl's sake: only JSON
        #[arg(long, hide = true)]
        format: Option<String>,
    },
    /// Set a policy
    SetPolicy {
        /// The higher one wins
        #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
        priority: i64,
        /// queues, classic_queues, quorum_queues, streams, exchanges or all
        #[arg(long = "apply-to", default_value = "all")]
        apply_to: String,
        /// Its name
        name: String,
        /// Which queues or exchanges it is for, as a regular expression
        pattern: String,
        /// What it sets, as a JSON object
        definition: String,
    },
    /// Remove a policy
    ClearPolicy {
        /// Its name
        name: String,
    },
    /// Limit a virtual host's connections and queues
    SetVhostLimits {
        /// A JSON object of max-connections and max-queues; a negative number is no limit
        definition: String,
    },
    /// Take the limits of a virtual host away
    ClearVhostLimits,
    /// Copy all messages of a virtual host to its exchange amq.rabbitmq.trace, until the node stops
    TraceOn,
    /// Copy them no longer
    TraceOff,
    /// Limit a user's connections and channels; limits that are not named stay
    SetUserLimits {
        /// The user
        username: String,
        /// A JSON object of max-connections and max-channels; a negative number is no limit
        definition: String,
    },
    /// Take limits of a user away
    ClearUserLimits {
        /// The user
        username: String,
        /// max-connections, max-channels or all
        limit: String,
    },
    /// Add a user, who has no permissions yet
    AddUser {
        /// The second argument is a salted hash in Base64
        #[arg(long = "pre-hashed-password")]
        pre_hashed_password: bool,
        /// The new user
        username: String,
        /// The password [default: a line of standard input]
        password: Option<String>,
    },
    /// Delete a user
    DeleteUser {
        /// The user
        username: String,
    },
    /// Change a user's password
    ChangePassword {
        /// The user
        username: String,
        /// The password [default: a line of standard input]
        password: Option<String>,
    },
    /// Check a user's password
    AuthenticateUser {
        /// The user
        username: String,
        /// The password [default: a line of standard input]
        password: Option<String>,
    },
    /// Set all tags of a user
    SetUserTags {
        /// The user
        username: String,
        /// The tags, such as administrator; none takes all away
        tags: Vec<String>,
    },
    /// Set a user's permissions in a virtual host
    SetPermissions {
        /// The user
        username: String,
        /// What may be configured, as a regular expression
        conf: String,
        /// What may be written to, as a regular expression
        write: String,
        /// What may be read, as a regular expression
        read: String,
    },
    /// Take a user's permissions in a virtual host
    ClearPermissions {
        /// The user
        username: String,
    },
    /// Set a user's permissions on routing keys of a topic exchange
    SetTopicPermissions {
        /// The user
        username: String,
        /// The topic exchange
        exchange: String,
        /// Routing keys that may be written, as a regular expression
        write: String,
        /// Routing keys that may be read, as a regular expression
        read: String,
    },
    /// Add a virtual host
    AddVhost {
        /// Its name
        name: String,
        /// What it is for
        #[arg(long, default_value = "")]
        description: String,
        /// Its tags, divided by commas
        #[arg(long, default_value = "", value_name = "TAGS")]
        tags: String,
        /// Type of queues declared without one
        #[arg(long = "default-queue-type", value_name = "TYPE")]
        default_queue_type: Option<String>,
    },
    /// Delete a virtual host and all it holds
    DeleteVhost {
        /// Its name
        name: String,
    },
    /// Close a connection
    CloseConnection {
        /// The connection, as column pid of list_connections shows it
        pid: String,
        /// Told to the client
        explanation: String,
    },
    /// Close the connections of a virtual host
    CloseAllConnections {
        /// Of all virtual hosts
        #[arg(long)]
        global: bool,
        /// At most so many; 0 means all
        #[arg(long, default_value_t = 0)]
        limit: u64,
        /// Accepted for rabbitmqctl's sake
        #[arg(long = "per-connection-delay", hide = true)]
        per_connection_delay: Option<u64>,
        /// Told to the clients
        explanation: String,
    },
    /// Delete all ready messages of a queue
    PurgeQueue {
        /// The queue
        queue: String,
    },
    /// Delete a queue and every message in it
    DeleteQueue {
        /// Refuse when the queue holds messages
        #[arg(short = 'e', long = "if-empty")]
        if_empty: bool,
        /// Refuse when the queue has consumers
        #[arg(short = 'u', long = "if-unused")]
        if_unused: bool,
        /// The queue
        queue: String,
    },
    /// Set the memory use at which publishers are blocked, until the next start
    SetVmMemoryHighWatermark {
        /// A part of the machine's memory, or: absolute BYTES
        #[arg(required = true, num_args = 1..=2, value_names = ["FRACTION|absolute", "BYTES"])]
        threshold: Vec<String>,
    },
    /// Set the free disk space under which publishers are blocked, until the next start
    SetDiskFreeLimit {
        /// Bytes, with or without a unit, or: mem_relative FRACTION of the machine's memory
        #[arg(required = true, num_args = 1..=2, value_names = ["BYTES|mem_relative", "FRACTION"])]
        threshold: Vec<String>,
    },
}
