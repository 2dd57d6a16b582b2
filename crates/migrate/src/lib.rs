//! `leveret migrate`: moves what a running broker has to another, its definitions and then its messages.
//!
//! ```text
//! old broker --definitions--> what the new one cannot have is left out --> new broker     management APIs
//!            --deliveries---> publishes ------------------------------------->            AMQP, queue by queue
//!            <-----acks------ confirms <--------------------------------------
//! ```
//!
//! A message leaves the old broker when the new one has confirmed it, so whatever ends this program loses none:
//! those that were sent and not yet confirmed are then on both sides. Either broker may be RabbitMQ.
//!
//! Not here: keeping two brokers alike. What is published to the old one afterwards takes another run.

mod args;
mod definitions;
mod flow;
mod limits;
mod queues;
mod report;
mod vhost;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use leveret_client::Uri;
use leveret_ctl::{Api, Code, Fault};
use serde_json::Value;

pub use args::MigrateArgs;
use queues::Queue;
use report::{Outcome, Report, Row};
use vhost::Pair;

/// How long an API may take for an answer: definitions may be long.
const PATIENCE: Duration = Duration::from_secs(300);

/// Moves what the command line says, and reports on the standard streams. `socket` is the control socket of the node
/// of this machine's configuration.
pub fn main(args: &MigrateArgs, socket: PathBuf) -> ExitCode {
    match run(args, socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            eprintln!("Error: {}", fault.text);
            ExitCode::from(fault.code.exit_status())
        }
    }
}

fn run(args: &MigrateArgs, socket: PathBuf) -> Result<(), Fault> {
    // What is wrong with the command line is told before anything is done.
    args.check()?;
    let (from, to, patterns) = (args.from()?, args.to()?, args.queues()?);
    let old = args.old_api()?;
    let new = match &args.to_api {
        Some(uri) => Api::at(uri, args.cacertfile.clone(), PATIENCE)?,
        None => Api::of_socket(socket, PATIENCE),
    };
    let vhosts: BTreeSet<String> = args.vhosts.iter().cloned().collect();
    let mut report = Report::new();
    let overview = if args.needs_new_api() {
        new.get("/api/overview").map_err(|fault| of("new", "--to-api", fault))?
    } else {
        Value::Null
    };
    if args.messages_only {
        check_vhosts(&old, &vhosts)?;
    } else {
        move_definitions(args, from.as_ref(), (&old, &new), &overview, &vhosts, &report)?;
    }
    let Some(from) = from else { return Ok(()) };
    let to = match to {
        Some(to) => to,
        None => local(&from, &new, &overview)?,
    };
    let mut chosen =
        queues::chosen(&old, &vhosts, &patterns).map_err(|fault| of("old", "--from-api", fault))?;
    for pattern in queues::unmatched(&chosen, &patterns) {
        report.remark(&format!("no queue matches --queue {pattern}"));
    }
    if args.needs_new_api() {
        queues::note_limits(&new, &mut chosen).map_err(|fault| of("new", "--to-api", fault))?;
    } else {
        report.remark(
            "without --to-api it is not known which queues of the new broker drop what does not fit (max-length, \
             max-length-bytes): they are not left out",
        );
    }
    for queue in chosen.iter().filter(|queue| queue.is_stream() && queue.ready > 0) {
        report.note(&format!(
            "messages of queue '{}' in vhost '{}': a stream",
            queue.name, queue.vhost
        ));
    }
    let rows = if args.dry_run {
        chosen.iter().map(Row::not_yet).collect()
    } else {
        let mut rows = move_all(args, &from, &to, &chosen, &mut report)?;
        queues::await_acks(&old, &mut rows).map_err(|fault| of("old", "--from-api", fault))?;
        rows
    };
    report.table(&rows, args.dry_run)
}

/// Looks for the chosen vhosts on the old broker.
fn check_vhosts(old: &Api, vhosts: &BTreeSet<String>) -> Result<(), Fault> {
    if vhosts.is_empty() {
        return Ok(());
    }
    let of_old = |fault| of("old", "--from-api", fault);
    let there = old.get(definitions::VHOSTS).map_err(of_old)?;
    definitions::check_vhosts(vhosts, queues::list(&there).map_err(of_old)?.iter())
}

/// Moves the definitions, once it is clear that messages could follow; a dry run tells of them alone.
fn move_definitions(
    args: &MigrateArgs,
    from: Option<&Uri>,
    (old, new): (&Api, &Api),
    overview: &Value,
    vhosts: &BTreeSet<String>,
    report: &Report,
) -> Result<(), Fault> {
    let of_old = |fault| of("old", "--from-api", fault);
    let mut all = old.get(definitions::query(overview)).map_err(of_old)?;
    let exchanges = old.get(definitions::EXCHANGES).map_err(of_old)?;
    definitions::add_internal(&mut all, &exchanges).map_err(of_old)?;
    let chosen = definitions::chosen(all, vhosts, overview)?;
    if let Some(from) = from {
        vhost::check_login(from)?;
    }
    chosen.left_out.iter().for_each(|text| report.note(text));
    different(new, &chosen.document)?.iter().for_each(|text| report.remark(text));
    report.say(&format!("definitions: {}", chosen.counts()))?;
    if args.dry_run {
        return Ok(());
    }
    // RabbitMQ does not look at the query.
    let path = "/api/definitions?skip_unsupported=true";
    let answer = new.post(path, &chosen.document).map_err(|fault| {
        let text = format!("the new broker does not take the definitions: {}", fault.text);
        Fault::new(fault.code, text)
    })?;
    definitions::left_out(&answer).for_each(|text| report.note(text));
    Ok(())
}

/// What the new broker has by names of the definitions, and otherwise.
fn different(new: &Api, document: &Value) -> Result<Vec<String>, Fault> {
    let get = |path| new.get(path).map_err(|fault| of("new", "--to-api", fault));
    let (queues, exchanges) = (get(definitions::QUEUES)?, get(definitions::EXCHANGES)?);
    let list = |answer| queues::list(answer).map_err(|fault| of("new", "--to-api", fault));
    Ok(definitions::different(document, list(&queues)?, list(&exchanges)?))
}

/// Moves every queue; a failure that only some of them share is told in their rows.
fn move_all(
    args: &MigrateArgs,
    from: &Uri,
    to: &Uri,
    chosen: &[Queue],
    report: &mut Report,
) -> Result<Vec<Row>, Fault> {
    let mut rows: Vec<Row> = Vec::new();
    report.begin(chosen);
    for of_vhost in chosen.chunk_by(|a, b| a.vhost == b.vhost) {
        let vhost = &of_vhost[0].vhost;
        let mut pair = match queues::unopened(vhost) {
            Some(why) => Err(why),
            None => match Pair::open(from, to, vhost, args.prefetch) {
                // What was moved before is to be told.
                Err(fault) if !rows.is_empty() => Err(fault.text),
                pair => pair?,
            },
        };
        for queue in of_vhost {
            let outcome = match (&mut pair, queue.why_not()) {
                (_, Some(why)) => Outcome::not_moved(queue, &why),
                (Err(why), None) => Outcome::not_moved(queue, why),
                (Ok(pair), None) => pair.move_queue(queue, report),
            };
            if let Some(why) = pair.as_ref().ok().and_then(Pair::lost) {
                pair = Err(why.to_owned());
            }
            report.done(queue, &outcome);
            rows.push(Row::new(queue, outcome));
        }
    }
    Ok(rows)
}

/// The node behind the API, with the login of the old broker: the definitions have brought its user along.
fn local(from: &Uri, new: &Api, overview: &Value) -> Result<Uri, Fault> {
    let listeners = overview["listeners"].as_array();
    let amqp = listeners.into_iter().flatten().find(|it| it["protocol"] == "amqp");
    let port = amqp.and_then(|it| u16::try_from(it["port"].as_u64()?).ok()).ok_or_else(|| {
        let text = "the new broker does not tell where it listens for AMQP: name it with --to";
        Fault::new(Code::Unavailable, text)
    })?;
    let bound = amqp.and_then(|it| it["ip_address"].as_str()).unwrap_or_default();
    let host = match (new.host(), bound) {
        (Some(host), _) => host,
        (None, "" | "0.0.0.0" | "::") => "localhost",
        (None, bound) => bound,
    };
    Ok(Uri {
        host: host.to_owned(),
        port,
        user: from.user.clone(),
        password: from.password.clone(),
        ..Uri::default()
    })
}

/// A failure of one of the two APIs, and the option to look at.
fn of(which: &str, option: &str, fault: Fault) -> Fault {
    let hint = match fault.code {
        // It is not about the broker.
        Code::Usage => return fault,
        Code::NoPermission => {
            " It takes a user with the tag administrator; 'guest' gets in only from the broker's own machine."
        }
        Code::Data => " Is this the management API, with rabbitmq_management enabled?",
        _ => "",
    };
    Fault::new(fault.code, format!("the {which} broker ({option}): {}.{hint}", fault.text))
}
