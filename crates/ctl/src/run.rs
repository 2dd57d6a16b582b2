//! From a command to requests, and from answers to what is printed.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Read as _, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::args::{Command, Common, CtlArgs, Formatter};
use crate::client::Client;
use crate::columns;
use crate::format;
use crate::protocol::{
    Code, Fault, InVhost, List, ListOf, Named, Object, Policy, Request, Row, Secret, Status,
    Watermark,
};

/// Does what the command line says; what it has to show goes to `out`. `socket` is used if the
/// command line names none.
pub fn run(args: CtlArgs, socket: &Path, out: &mut dyn Write) -> Result<(), Fault> {
    let CtlArgs { common, command } = args;
    let socket = common.socket.clone().unwrap_or_else(|| socket.to_owned());
    let tool = Tool { common: &common, socket: &socket };
    match command {
        Command::Stop { idempotent } => tool.stop(idempotent, out),
        Command::AwaitStartup => tool.await_startup(out),
        Command::Version => {
            // As rabbitmqctl: the tool's own version, which needs no node.
            print(out, concat!(env!("CARGO_PKG_VERSION"), "\n"))
        }
        Command::ExportDefinitions { file, .. } => tool.export(&file, out),
        command => {
            let plan = plan(command, &common)?;
            tool.banner(&plan.banner, out)?;
            let answer = tool.connect()?.call(&plan.request)?;
            tool.show(plan.answer, answer, out)
        }
    }
}

/// A command that is one request.
struct Plan {
    /// What is being done, in rabbitmqctl's words.
    banner: String,
    request: Request,
    answer: Answer,
}

/// How an answer is shown.
enum Answer {
    Nothing,
    /// A line for humans; `{}` stands for the answer.
    Message(&'static str),
    Rows(Vec<String>),
    Status,
    Options,
}

/// What can be limited for a user.
const USER_LIMITS: &[&str] = &["max-connections", "max-channels"];

/// Limits as a JSON object of numbers.
fn limits(definition: &str, known: &[&str]) -> Result<BTreeMap<String, i64>, Fault> {
    let limits: BTreeMap<String, i64> = serde_json::from_str(definition)
        .map_err(|error| Fault::new(Code::Data, format!("Failed to parse JSON: {error}")))?;
    match limits.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(Fault::new(
            Code::Data,
            format!("there is no limit {name}; known are {}", known.join(", ")),
        )),
        None => Ok(limits),
    }
}

fn plan(command: Command, common: &Common) -> Result<Plan, Fault> {
    let vhost = common.vhost.clone();
    let done = |banner: String, request| Ok(Plan { banner, request, answer: Answer::Nothing });
    let list = |banner: String, request, columns: &[&str]| {
        let columns = columns.iter().map(|it| (*it).to_owned()).collect();
        Ok(Plan { banner, request, answer: Answer::Rows(columns) })
    };
    let rows = |banner: String, request, columns: Vec<String>| {
        Ok(Plan { banner, request, answer: Answer::Rows(columns) })
    };
    match command {
        Command::Ping => Ok(Plan {
            banner: "Will ping the node ...".to_owned(),
            request: Request::Ping,
            answer: Answer::Message("Ping succeeded"),
        }),
        Command::Status => Ok(Plan {
            banner: "Status of the node ...".to_owned(),
            request: Request::Status,
            answer: Answer::Status,
        }),
        Command::Environment => Ok(Plan {
            banner: "Application environment of the node ...".to_owned(),
            request: Request::Environment,
            answer: Answer::Options,
        }),
        Command::ListQueues { columns: asked, .. } => {
            let columns = columns::choose(&asked, &["name", "messages"], columns::QUEUES)?;
            let request = Request::ListQueues(ListOf { vhost, columns: columns.clone() });
            let banner = format!(
                "Timeout: {:?} seconds ...\nListing queues for vhost {} ...",
                common.timeout as f64, common.vhost
            );
            rows(banner, request, columns)
        }
        Command::ListExchanges { columns: asked } => {
            let columns = columns::choose(&asked, &["name", "type"], columns::EXCHANGES)?;
            let banner = format!("Listing exchanges for vhost {vhost} ...");
            rows(
                banner,
                Request::ListExchanges(ListOf { vhost, columns: columns.clone() }),
                columns,
            )
        }
        Command::ListBindings { columns: asked } => {
            let columns = columns::choose(&asked, columns::BINDINGS, columns::BINDINGS)?;
            let banner = format!("Listing bindings for vhost {vhost}...");
            rows(banner, Request::ListBindings(ListOf { vhost, columns: columns.clone() }), columns)
        }
        Command::ListConsumers { columns: asked } => {
            let mut default = columns::CONSUMERS.to_vec();
            default.retain(|column| *column != "activity_status");
            let columns = columns::choose(&asked, &default, columns::CONSUMERS)?;
            let banner = format!("Listing consumers in vhost {vhost} ...");
            rows(
                banner,
                Request::ListConsumers(ListOf { vhost, columns: columns.clone() }),
                columns,
            )
        }
        Command::ListConnections { columns: asked } => {
            let default = ["user", "peer_host", "peer_port", "state"];
            let columns = columns::choose(&asked, &default, columns::CONNECTIONS)?;
            let request = Request::ListConnections(List { columns: columns.clone() });
            rows("Listing connections ...".to_owned(), request, columns)
        }
        Command::ListChannels { columns: asked } => {
            let default = ["pid", "user", "consumer_count", "messages_unacknowledged"];
            let columns = columns::choose(&asked, &default, columns::CHANNELS)?;
            let request = Request::ListChannels(List { columns: columns.clone() });
            rows("Listing channels ...".to_owned(), request, columns)
        }
        Command::ListVhosts { columns: asked } => {
            let columns = columns::choose(&asked, &["name"], columns::VHOSTS)?;
            let request = Request::ListVhosts(List { columns: columns.clone() });
            rows("Listing vhosts ...".to_owned(), request, columns)
        }
        Command::ListUsers => {
            list("Listing users ...".to_owned(), Request::ListUsers, &["user", "tags"])
        }
        Command::ListPermissions => list(
            format!("Listing permissions for vhost \"{vhost}\" ..."),
            Request::ListPermissions(InVhost { vhost }),
            &["user", "configure", "write", "read"],
        ),
        Command::ListUserPermissions { username } => list(
            format!("Listing permissions for user \"{username}\" ..."),
            Request::ListUserPermissions(Named { name: username }),
            &["vhost", "configure", "write", "read"],
        ),
        Command::ListTopicPermissions => list(
            format!("Listing topic permissions for vhost \"{vhost}\" ..."),
            Request::ListTopicPermissions(InVhost { vhost }),
            &["user", "exchange", "write", "read"],
        ),
        Command::ListPolicies => list(
            format!("Listing policies for vhost \"{vhost}\" ..."),
            Request::ListPolicies(InVhost { vhost }),
            &["vhost", "name", "pattern", "apply-to", "definition", "priority"],
        ),
        Command::ImportDefinitions { file, format } => import(&file, format.as_deref()),
        Command::SetPolicy { priority, apply_to, name, pattern, definition } => {
            let banner = format!(
                "Setting policy \"{name}\" for pattern \"{pattern}\" to \"{definition}\" with \
                 priority \"{priority}\" for vhost \"{vhost}\" ..."
            );
            let definition: Value = serde_json::from_str(&definition).map_err(|error| {
                Fault::new(Code::Data, format!("Failed to parse JSON: {error}"))
            })?;
            if !definition.is_object() {
                return Err(Fault::new(Code::Data, "The definition must be a JSON object"));
            }
            let policy = Policy { vhost, name, pattern, apply_to, priority, definition };
            done(banner, Request::SetPolicy(policy))
        }
        Command::ClearPolicy { name } => done(
            format!("Clearing policy \"{name}\" on vhost \"{vhost}\" ..."),
            Request::ClearPolicy(Object { vhost, name }),
        ),
        Command::SetVhostLimits { definition } => {
            let limits = limits(&definition, &["max-connections", "max-queues"])?;
            done(
                format!("Setting vhost limits to \"{definition}\" for vhost \"{vhost}\" ..."),
                Request::SetVhostLimits { vhost, limits },
            )
        }
        Command::ClearVhostLimits => done(
            format!("Clearing vhost \"{vhost}\" limits ..."),
            Request::ClearVhostLimits(InVhost { vhost }),
        ),
        Command::TraceOn => done(
            format!("Starting tracing for vhost \"{vhost}\" ..."),
            Request::SetTracing { vhost, is_on: true },
        ),
        Command::TraceOff => done(
            format!("Stopping tracing for vhost \"{vhost}\" ..."),
            Request::SetTracing { vhost, is_on: false },
        ),
        Command::SetUserLimits { username: name, definition } => {
            let limits = limits(&definition, USER_LIMITS)?;
            done(
                format!("Setting user limits to \"{definition}\" for user \"{name}\" ..."),
                Request::SetUserLimits { name, limits },
            )
        }
        Command::ClearUserLimits { username: name, limit } => {
            let limit = (limit != "all").then_some(limit);
            if let Some(limit) = &limit
                && !USER_LIMITS.contains(&limit.as_str())
            {
                let known = USER_LIMITS.join(", ");
                return Err(Fault::new(Code::Usage, format!("a limit is one of {known}, all")));
            }
            done(
                match &limit {
                    Some(limit) => format!("Clearing \"{limit}\" limit for user \"{name}\" ..."),
                    None => format!("Clearing all limits for user \"{name}\" ..."),
                },
                Request::ClearUserLimits { name, limit },
            )
        }
        Command::AddUser { pre_hashed_password, username: name, password } => Ok(Plan {
            banner: format!("Adding user \"{name}\" ..."),
            request: Request::AddUser {
                name: not_empty(name, "user")?,
                password: password_or_stdin(password)?,
                is_hashed: pre_hashed_password,
            },
            answer: Answer::Message(
                "Done. Don't forget to grant the user permissions to some virtual hosts! \
                 See 'leveret ctl help set_permissions' to learn more.",
            ),
        }),
        Command::DeleteUser { username: name } => {
            done(format!("Deleting user \"{name}\" ..."), Request::DeleteUser(Named { name }))
        }
        Command::ChangePassword { username: name, password } => {
            let banner = format!("Changing password for user \"{name}\" ...");
            let password = password_or_stdin(password)?;
            done(banner, Request::ChangePassword { name, password })
        }
        Command::AuthenticateUser { username: name, password } => Ok(Plan {
            banner: format!("Authenticating user \"{name}\" ..."),
            request: Request::AuthenticateUser { name, password: password_or_stdin(password)? },
            answer: Answer::Message("Success"),
        }),
        Command::SetUserTags { username: name, tags } => done(
            format!("Setting tags for user \"{name}\" to [{}] ...", tags.join(", ")),
            Request::SetUserTags { name, tags },
        ),
        Command::SetPermissions { username: user, conf: configure, write, read } => done(
            format!("Setting permissions for user \"{user}\" in vhost \"{vhost}\" ..."),
            Request::SetPermissions { vhost, user, configure, write, read },
        ),
        Command::ClearPermissions { username: name } => done(
            format!("Clearing permissions for user \"{name}\" in vhost \"{vhost}\" ..."),
            Request::ClearPermissions(Object { vhost, name }),
        ),
        Command::SetTopicPermissions { username: user, exchange, write, read } => done(
            format!(
                "Setting topic permissions on \"{exchange}\" for user \"{user}\" in vhost \
                 \"{vhost}\" ..."
            ),
            Request::SetTopicPermissions { vhost, user, exchange, write, read },
        ),
        Command::AddVhost { name, description, tags, default_queue_type } => {
            let tags = tags.split(',').map(str::trim).filter(|it| !it.is_empty());
            let tags = tags.map(str::to_owned).collect();
            let banner = format!("Adding vhost \"{name}\" ...");
            done(banner, Request::AddVhost { name, description, tags, default_queue_type })
        }
        Command::DeleteVhost { name } => {
            done(format!("Deleting vhost \"{name}\" ..."), Request::DeleteVhost(Named { name }))
        }
        Command::CloseConnection { pid, explanation: reason } => done(
            format!("Closing connection {pid}, reason: {reason}..."),
            Request::CloseConnection { pid, reason },
        ),
        Command::CloseAllConnections { global, limit, explanation: reason, .. } => Ok(Plan {
            banner: match (global, limit) {
                (true, _) => format!(
                    "Closing all connections to the node (across all vhosts), reason: {reason}..."
                ),
                (_, 0) => format!("Closing all connections in vhost {vhost}, reason: {reason}..."),
                _ => format!("Closing {limit} connections in vhost {vhost}, reason: {reason}..."),
            },
            request: Request::CloseAllConnections {
                vhost: (!global).then_some(vhost),
                limit,
                reason,
            },
            answer: Answer::Message("Closed {} connections"),
        }),
        Command::PurgeQueue { queue: name } => done(
            format!("Purging queue '{name}' in vhost '{vhost}' ..."),
            Request::PurgeQueue(Object { vhost, name }),
        ),
        Command::DeleteQueue { if_empty, if_unused, queue: name } => {
            let name = not_empty(name, "queue name")?;
            let conditions = match (if_empty, if_unused) {
                (true, true) => "if queue is empty and if queue is unused ",
                (true, false) => "if queue is empty ",
                (false, true) => "if queue is unused ",
                (false, false) => "",
            };
            Ok(Plan {
                banner: format!("Deleting queue '{name}' on vhost '{vhost}' {conditions}..."),
                request: Request::DeleteQueue { vhost, name, if_empty, if_unused },
                answer: Answer::Message("Queue was successfully deleted with {} ready messages"),
            })
        }
        Command::SetVmMemoryHighWatermark { threshold } => done(
            format!("Setting memory threshold on the node to {} ...", threshold.join(" ")),
            Request::SetVmMemoryHighWatermark(watermark(&threshold)?),
        ),
        Command::SetDiskFreeLimit { threshold } => done(
            format!("Setting disk free limit on the node to {} ...", threshold.join(" ")),
            Request::SetDiskFreeLimit(disk_limit(&threshold)?),
        ),
        Command::ReloadCertificates => {
            done("Reading certificates again ...".to_owned(), Request::ReloadCertificates)
        }
        Command::Stop { .. }
        | Command::AwaitStartup
        | Command::Version
        | Command::ExportDefinitions { .. } => {
            Err(Fault::new(Code::Software, "the command is not a single request"))
        }
    }
}

fn import(file: &Path, format: Option<&str>) -> Result<Plan, Fault> {
    if format.is_some_and(|format| !format.eq_ignore_ascii_case("json")) {
        return Err(Fault::new(Code::Data, "Format should be json"));
    }
    let (banner, text) = if file == Path::new("-") {
        let mut text = Vec::new();
        let read = std::io::stdin().read_to_end(&mut text);
        ("Importing definitions in JSON from standard input ...".to_owned(), read.map(|_| text))
    } else {
        let shown = file.display();
        let banner = format!("Importing definitions in JSON from a file at \"{shown}\" ...");
        (banner, std::fs::read(file))
    };
    let shown = file.display();
    let text = text
        .map_err(|error| Fault::new(Code::Data, format!("Could not read from {shown}: {error}")))?;
    let definitions = serde_json::from_slice(&text).map_err(|error| {
        let text = format!("Failed to deserialise input (format: JSON) (error: {error})");
        Fault::new(Code::Data, text)
    })?;
    let request = Request::ImportDefinitions { definitions };
    Ok(Plan { banner, request, answer: Answer::Message("Successfully imported definitions.") })
}

/// `0.4`, or `absolute` and a number of bytes with or without a unit.
fn watermark(words: &[String]) -> Result<Watermark, Fault> {
    let refused = |why: &str| Err(Fault::new(Code::Data, why));
    match words {
        [absolute, bytes] if absolute == "absolute" => match bytes_of(bytes) {
            Some(bytes) => Ok(Watermark::Absolute(bytes)),
            None => refused("Invalid units."),
        },
        [fraction] => match fraction.parse::<f64>() {
            Ok(fraction) if (0.0..=1.0).contains(&fraction) => Ok(Watermark::Relative(fraction)),
            _ => refused("The threshold should be a fraction between 0.0 and 1.0"),
        },
        _ => Err(Fault::new(Code::Usage, "expected <fraction> or absolute <bytes>")),
    }
}

/// A number of bytes with or without a unit, or `mem_relative` and a part of the memory.
fn disk_limit(words: &[String]) -> Result<Watermark, Fault> {
    match words {
        [relative, part] if relative == "mem_relative" => match part.parse::<f64>() {
            Ok(part) if (0.0..=1000.0).contains(&part) => Ok(Watermark::Relative(part)),
            _ => Err(Fault::new(Code::Data, "The fraction should be a number, 0.0 or more")),
        },
        [bytes] => match bytes_of(bytes) {
            Some(bytes) => Ok(Watermark::Absolute(bytes)),
            None => Err(Fault::new(Code::Data, "Invalid units.")),
        },
        _ => Err(Fault::new(Code::Usage, "expected <bytes> or mem_relative <fraction>")),
    }
}

/// RabbitMQ's units: `kB` is 1000, `KiB` is 1024.
fn bytes_of(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = text.get(digits.len()..)?.to_ascii_lowercase();
    let (letter, base) = match unit.trim_end_matches('b').strip_suffix('i') {
        Some(letter) => (letter, 1024_u64),
        None => (unit.trim_end_matches('b'), 1000),
    };
    let power = ["", "k", "m", "g", "t", "p"].iter().position(|it| *it == letter)?;
    digits.parse::<u64>().ok()?.checked_mul(base.pow(power as u32))
}

fn not_empty(name: String, what: &str) -> Result<String, Fault> {
    if name.is_empty() {
        return Err(Fault::new(Code::Data, format!("{what} cannot be an empty string")));
    }
    Ok(name)
}

fn password_or_stdin(given: Option<String>) -> Result<Secret, Fault> {
    if let Some(password) = given {
        return Ok(Secret(password));
    }
    let missing = || {
        let text = "Password is not provided via argument or stdin";
        Fault::new(Code::Data, text)
    };
    // Reading from a terminal would show the password.
    if std::io::stdin().is_terminal() {
        return Err(missing());
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).map_err(|_| missing())?;
    let password = line.trim_end_matches(['\n', '\r']);
    if password.is_empty() { Err(missing()) } else { Ok(Secret(password.to_owned())) }
}

struct Tool<'a> {
    common: &'a Common,
    socket: &'a Path,
}

impl Tool<'_> {
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.common.timeout)
    }

    fn connect(&self) -> Result<Client, Fault> {
        Client::connect(self.socket, self.timeout())
    }

    fn is_for_machines(&self) -> bool {
        matches!(self.common.formatter, Formatter::Json | Formatter::Csv)
    }

    fn banner(&self, text: &str, out: &mut dyn Write) -> Result<(), Fault> {
        if self.common.quiet || self.common.silent || self.is_for_machines() {
            return Ok(());
        }
        print(out, &format!("{text}\n"))
    }

    fn show(&self, how: Answer, answer: Value, out: &mut dyn Write) -> Result<(), Fault> {
        let is_json = self.common.formatter == Formatter::Json;
        let text = match how {
            Answer::Nothing if is_json => format!("{}\n", json!({"result": "ok"})),
            Answer::Nothing => String::new(),
            Answer::Message(_) if is_json => {
                format!("{}\n", json!({"result": "ok", "value": answer}))
            }
            Answer::Message(text) => format!("{}\n", text.replace("{}", &format::cell(&answer))),
            Answer::Rows(columns) => {
                let mut rows: Vec<Row> = serde_json::from_value(answer).map_err(bad_answer)?;
                for definition in rows.iter_mut().filter_map(|row| row.get_mut("definition")) {
                    // rabbitmqctl shows a policy's definition as JSON, in every format.
                    *definition = Value::String(definition.to_string());
                }
                format::rows(&rows, &columns, self.common)
            }
            Answer::Status if is_json => format!("{answer:#}\n"),
            Answer::Status => {
                let status: Status = serde_json::from_value(answer).map_err(bad_answer)?;
                crate::status::text(&status)
            }
            Answer::Options if is_json => format!("{answer:#}\n"),
            Answer::Options => {
                let options: Row = serde_json::from_value(answer).map_err(bad_answer)?;
                options.iter().map(|(key, it)| format!("{key} = {}\n", format::cell(it))).collect()
            }
        };
        print(out, &text)
    }

    fn stop(&self, idempotent: bool, out: &mut dyn Write) -> Result<(), Fault> {
        self.banner("Stopping and halting the node ...", out)?;
        match self.connect() {
            Ok(mut client) => {
                client.call(&Request::Stop)?;
                client.wait_for_end()
            }
            Err(fault) if idempotent && fault.code == Code::Unavailable => {
                self.banner("The node is no longer running", out)
            }
            Err(fault) => Err(fault),
        }
    }

    fn await_startup(&self, out: &mut dyn Write) -> Result<(), Fault> {
        self.banner("Waiting for the node to start ...", out)?;
        let deadline = Instant::now() + self.timeout();
        loop {
            match self.connect().and_then(|mut client| client.call(&Request::Ping)) {
                Ok(_) => return Ok(()),
                Err(fault) if fault.code != Code::Unavailable => return Err(fault),
                Err(_) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(fault) => return Err(Fault::new(Code::TempFail, fault.text)),
            }
        }
    }

    fn export(&self, file: &Path, out: &mut dyn Write) -> Result<(), Fault> {
        let is_stdout = file == Path::new("-");
        if !is_stdout {
            let shown = file.display();
            let banner = format!("Exporting definitions in JSON to a file at \"{shown}\" ...");
            self.banner(&banner, out)?;
        }
        let definitions = self.connect()?.call(&Request::ExportDefinitions)?;
        if is_stdout {
            return print(out, &format!("{definitions:#}\n"));
        }
        std::fs::write(file, format!("{definitions:#}\n")).map_err(|error| {
            Fault::new(Code::Data, format!("Could not write to file {}: {error}", file.display()))
        })
    }
}

fn print(out: &mut dyn Write, text: &str) -> Result<(), Fault> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // Whoever read the output has enough: `leveret ctl list_queues | head`.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(Fault::new(Code::Software, format!("cannot write the output: {error}"))),
        Ok(()) => Ok(()),
    }
}

fn bad_answer(error: serde_json::Error) -> Fault {
    Fault::new(Code::Software, format!("the node's answer is not understood: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn watermarks() {
        check("0.4",            Some(Watermark::Relative(0.4)));
        check("1.1",            None);
        check("half",           None);
        check("absolute 1GB",   Some(Watermark::Absolute(1_000_000_000)));
        check("absolute 1GiB",  Some(Watermark::Absolute(1 << 30)));
        check("absolute 4096",  Some(Watermark::Absolute(4096)));
        check("absolute 1XB",   None);
        check("absolute",       None);
    }

    #[test]
    #[rustfmt::skip] // a table
    fn disk_limits() {
        for (words, want) in [
            ("50MB",                Some(Watermark::Absolute(50_000_000))),
            ("1024",                Some(Watermark::Absolute(1024))),
            ("mem_relative 1.5",    Some(Watermark::Relative(1.5))),
            ("mem_relative -1",     None),
            ("lots",                None),
            ("absolute 5",          None),
        ] {
            let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
            assert_eq!(disk_limit(&words).ok(), want, "{words:?}");
        }
    }

    #[track_caller]
    fn check(words: &str, want: Option<Watermark>) {
        let words: Vec<_> = words.split(' ').map(str::to_owned).collect();
        assert_eq!(watermark(&words).ok(), want, "{words:?}");
    }
}
