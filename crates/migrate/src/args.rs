//! The command line.

use std::path::PathBuf;

use clap::Args;
use fancy_regex::Regex;
use leveret_client::Uri;
use leveret_ctl::{Api, Code, Fault};

use crate::PATIENCE;

/// Move the definitions and messages of a running broker, RabbitMQ or Leveret, to another.
///
/// A message leaves the old broker when the new one has confirmed it. If this program is ended, nothing is lost: run it
/// again. What was sent and not yet confirmed, at most --prefetch messages, is then there twice.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Exit status: 0 everything was moved (streams and exclusive queues stay), 64 wrong usage, 65 bad definitions,
68 no such host, 69 a broker is not there, 75 something is left on the old broker (the table tells what, and why), 77 not allowed.

Example:
  leveret migrate --from-api http://admin:secret@old:15672 --from amqp://admin:secret@old")]
pub struct MigrateArgs {
    /// Management API of the old broker: http://USER:PASSWORD@HOST:15672, or https
    #[arg(long, value_name = "URI", env = "LEVERET_FROM_API", hide_env_values = true)]
    pub(crate) from_api: String,

    /// The old broker: amqp://USER:PASSWORD@HOST, or amqps. In user and password '/', '@', ':' and '%' are percent-encoded
    #[arg(
        long,
        value_name = "URI",
        env = "LEVERET_FROM",
        hide_env_values = true,
        required_unless_present = "definitions_only"
    )]
    pub(crate) from: Option<String>,

    /// Management API of the new broker [default: the control socket of the node of this machine]
    #[arg(long, value_name = "URI", env = "LEVERET_TO_API", hide_env_values = true)]
    pub(crate) to_api: Option<String>,

    /// The new broker [default: where its API says that it listens, with the user of --from]
    #[arg(long, value_name = "URI", env = "LEVERET_TO", hide_env_values = true)]
    pub(crate) to: Option<String>,

    /// Certificates of the authorities to trust with https; amqps:// takes ?cacertfile= [default: the system's]
    #[arg(long, value_name = "FILE")]
    pub(crate) cacertfile: Option<PathBuf>,

    /// Only this virtual host; may be repeated [default: all]
    #[arg(long = "vhost", value_name = "VHOST")]
    pub(crate) vhosts: Vec<String>,

    /// Only the messages of queues whose names match; may be repeated [default: all]
    #[arg(long = "queue", value_name = "REGEX")]
    queues: Vec<String>,

    /// Move no messages
    #[arg(long, conflicts_with = "messages_only")]
    definitions_only: bool,

    /// Take the definitions to be there
    #[arg(long)]
    pub(crate) messages_only: bool,

    /// Tell what would be moved, and move nothing
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Messages on their way at once: more are faster over a long line
    #[arg(long, value_name = "COUNT", default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) prefetch: u16,
}

impl MigrateArgs {
    /// What clap cannot tell.
    pub(crate) fn check(&self) -> Result<(), Fault> {
        if self.to.is_some() && self.to_api.is_none() && !self.messages_only {
            return Err(usage(
                "--to names a broker, and nothing says where its definitions go: name its API with --to-api, \
                 or move --messages-only",
            ));
        }
        Ok(())
    }

    /// The API of the new broker is asked where it listens, what it knows, and to import.
    pub(crate) fn needs_new_api(&self) -> bool {
        !self.messages_only || self.to.is_none() || self.to_api.is_some()
    }

    pub(crate) fn old_api(&self) -> Result<Api, Fault> {
        Api::at(&self.from_api, self.cacertfile.clone(), PATIENCE)
    }

    /// Where messages come from, if any are to be moved.
    pub(crate) fn from(&self) -> Result<Option<Uri>, Fault> {
        let text = self.from.as_deref().filter(|_| !self.definitions_only);
        text.map(|text| uri("--from", text)).transpose()
    }

    /// Where they go, if it was told.
    pub(crate) fn to(&self) -> Result<Option<Uri>, Fault> {
        self.to.as_deref().map(|text| uri("--to", text)).transpose()
    }

    /// The patterns of queues; none is all.
    pub(crate) fn queues(&self) -> Result<Vec<Regex>, Fault> {
        let compiled = self.queues.iter().map(|text| {
            Regex::new(text).map_err(|error| usage(&format!("--queue {text}: {error}")))
        });
        compiled.collect()
    }
}

fn uri(option: &str, text: &str) -> Result<Uri, Fault> {
    let uri: Uri = text.parse().map_err(|error| usage(&format!("{option}: {error}")))?;
    if uri.vhost != Uri::default().vhost {
        return Err(usage(&format!(
            "{option} names a virtual host; choose those to be moved with --vhost {}",
            uri.vhost
        )));
    }
    Ok(uri)
}

fn usage(text: &str) -> Fault {
    Fault::new(Code::Usage, text)
}
