//! Where the broker is, and how to connect.

use super::values::{Wait, whole};

/// Where the broker is, and how to connect.
#[derive(Clone, Debug, clap::Args)]
pub struct BrokerArgs {
    /// Broker to load
    #[arg(short = 'h', long, default_value = "amqp://guest:guest@localhost:5672/%2F")]
    pub uri: String,
    /// Several brokers, separated by commas; connections go to one after the other
    #[arg(short = 'H', long, value_delimiter = ',')]
    pub uris: Vec<String>,
    /// Heartbeat to ask for, seconds; 0 is none
    #[arg(short = 'b', long)]
    pub heartbeat: Option<u16>,
    /// Largest frame to ask for, bytes; 0 is the broker's limit
    #[arg(short = 'M', long, value_name = "BYTES", value_parser = whole)]
    pub framemax: Option<u64>,
    /// Log in by the client's certificate
    #[arg(long)]
    pub sasl_external: bool,
    /// Name to ask for in TLS
    #[arg(long, value_name = "NAME")]
    pub server_name_indication: Option<String>,
    /// Wait so many seconds for brokers that are not there yet [default: fail at once]
    #[arg(long, value_name = "SECONDS", value_parser = whole)]
    pub servers_startup_timeout: Option<u64>,
    /// So many brokers must be there [default: all that are named]
    #[arg(long, value_name = "COUNT", value_parser = whole)]
    pub servers_up_limit: Option<u64>,
    /// Fail when a connection is lost, instead of connecting again
    #[arg(long)]
    pub disable_connection_recovery: bool,
    /// Seconds before connecting again, or a range such as 30-60
    #[arg(long, value_name = "SECONDS", default_value = "5")]
    pub connection_recovery_interval: Wait,
    /// Send buffer of the sockets
    #[arg(long, value_name = "BYTES", value_parser = whole)]
    pub tcp_send_buffer_size: Option<u64>,
    /// Receive buffer of the sockets
    #[arg(long, value_name = "BYTES", value_parser = whole)]
    pub tcp_receive_buffer_size: Option<u64>,
    /// Send small packets at once
    #[arg(long, value_name = "BOOL", default_value = "true", action = clap::ArgAction::Set)]
    pub tcp_no_delay: bool,
}
