//! `leveret ctl`: rabbitmqctl's commands for a running node, over a Unix socket.
//!
//! ```text
//! args --run--> Request --client--> socket --> node
//!                                     |
//! output <--format-- Response <-------+
//! ```
//!
//! The tool never links the broker. What both sides say is [`protocol`]; the server implements the
//! other end from those types.

mod args;
mod client;
pub mod columns;
mod format;
pub mod protocol;
mod run;
mod status;

pub use args::{Command, Common, CtlArgs, Formatter};
pub use run::run;

use std::path::Path;
use std::process::ExitCode;

/// Runs one command and reports on the standard streams. `socket` is where a node of this
/// machine's configuration listens; `--socket` overrides it.
pub fn main(args: CtlArgs, socket: &Path) -> ExitCode {
    let is_json = args.common.formatter == Formatter::Json;
    match run(args, socket, &mut std::io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            if is_json {
                let error = serde_json::json!({"result": "error", "message": fault.text});
                eprintln!("{error}");
            } else {
                eprintln!("Error:\n{}", fault.text);
            }
            ExitCode::from(fault.code.exit_status())
        }
    }
}
