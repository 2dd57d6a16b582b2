//! `leveret ctl`: the commands of rabbitmqctl and its kin, for a node of this machine or elsewhere.
//!
//! ```text
//! args --> entry of the table --run--> Call --client--> management API, over the control socket or the network
//!                                       |
//! output <--format-- Answer <-----------+
//! ```
//!
//! A command is one entry of the tables in [`commands`]: name, words, what it says, which path of the API
//! it asks, which columns it shows. The tool never links the broker. On the control socket it asks as the
//! operator of the machine, without a password; over the network as the user of the URI.

mod api;
mod args;
mod call;
mod client;
mod columns;
mod commands;
mod fault;
mod format;
mod target;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use args::Formatter;
use call::Call;
use target::{Address, Target};

pub use api::Api;
pub use args::CtlArgs;
pub use commands::{names, tool};
pub use fault::{Code, Fault};

/// The node of this machine's configuration, for a command line that names no other.
#[derive(Clone, Debug)]
pub struct Local {
    /// Where it listens.
    pub socket: PathBuf,
    /// Why it may listen elsewhere: the configuration that says so cannot be read.
    pub doubt: Option<String>,
    /// Its name, for messages.
    pub node: String,
    /// The version of RabbitMQ that the tools stand for: scripts look at it to know what they can ask.
    pub rabbitmq_version: &'static str,
}

/// Runs one command and reports on the standard streams.
pub fn main(args: &CtlArgs, local: Local) -> ExitCode {
    match run(args, local, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            if args.common.formatter == Formatter::Json {
                let error = serde_json::json!({"result": "error", "message": fault.text});
                eprintln!("{error}");
            } else {
                eprintln!("Error:\n{}", fault.text);
            }
            ExitCode::from(fault.code.exit_status())
        }
    }
}

/// Does what the command line says; what it has to show goes to `out`.
///
/// # Errors
///
/// When it was not done, or when a check failed.
pub fn run(args: &CtlArgs, local: Local, out: &mut dyn Write) -> Result<(), Fault> {
    let common = &args.common;
    let target = match (&common.uri, &common.socket) {
        (Some(uri), None) => Target::Network(Address::parse(uri, common.cacertfile.clone())?),
        (_, Some(path)) => Target::Socket(path.clone()),
        (None, None) => Target::Socket(local.socket),
    };
    let node = common.node.clone().unwrap_or_else(|| match &target {
        Target::Network(address) => format!("rabbit@{}", address.host),
        Target::Socket(_) => local.node,
    });
    let doubt = local.doubt.filter(|_| common.uri.is_none() && common.socket.is_none());
    let mut call = Call::new(args, target, doubt, node, local.rabbitmq_version, out);
    let answer = (args.entry.run)(&mut call)?;
    call.say()?;
    let text = format::answer(&answer, common);
    call.print(&text)
}
