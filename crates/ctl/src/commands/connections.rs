//! Closing connections.

use std::time::Duration;

use super::{Command, Tools, Word, flag, one, value};
use crate::call::{Answer, Call};
use crate::fault::Fault;

const EXPLANATION: Word = one("explanation", "Told to the clients");

/// Closes the connection of this name or pid, and says whether it was still there.
fn close(it: &mut Call<'_>, name: &str) -> Result<bool, Fault> {
    let reason = it.word("explanation").to_owned();
    let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
    let path = format!("/api/connections/{name}");
    let reply = it.send(hyper::Method::DELETE, &path, &[("x-reason", &reason)], None)?;
    match reply.status {
        hyper::StatusCode::NOT_FOUND => Ok(false),
        status if status.is_success() => Ok(true),
        _ => Err(it.refusal(&reply)),
    }
}

fn close_one(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let pid = it.word("pid").to_owned();
    if pid.is_empty() || !close(it, &pid)? {
        return Err(Fault::data(it.fill("there is no connection {pid}")));
    }
    Ok(Answer::Done)
}

fn close_all(it: &mut Call<'_>) -> Result<Answer, Fault> {
    let (is_global, limit) = (it.flag("global"), it.number("limit")?);
    let banner = match (is_global, limit) {
        (true, _) => {
            "Closing all connections to node {node} (across all vhosts), reason: {explanation}..."
        }
        (_, 0) => "Closing all connections in vhost {vhost}, reason: {explanation}...",
        _ => "Closing {limit} connections in vhost {vhost}, reason: {explanation}...",
    };
    it.say_this(&it.fill(banner))?;
    let delay = Duration::from_millis(it.number("per-connection-delay")?);
    let all = it.get(match is_global {
        true => "/api/connections?columns=pid",
        false => "/api/vhosts/{vhost}/connections?columns=pid",
    })?;
    let mut closed = 0;
    for row in all.as_array().into_iter().flatten() {
        if limit > 0 && closed == limit {
            break;
        }
        if closed > 0 {
            std::thread::sleep(delay);
        }
        closed += u64::from(close(it, row["pid"].as_str().unwrap_or_default())?);
    }
    Ok(Answer::Message(format!("Closed {closed} connections")))
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new("close_connection", Tools::CTL, "Close a connection", close_one)
        .takes(&[one("pid", "Its column pid or name of list_connections"), EXPLANATION])
        .says("Closing connection {pid}, reason: {explanation}..."),
    Command::new(
        "close_all_connections",
        Tools::CTL,
        "Close connections of a virtual host",
        close_all,
    )
    .takes(&[
        flag("global", "Of all virtual hosts"),
        value("limit", "0", "At most so many; 0 means all"),
        value("per-connection-delay", "0", "Milliseconds between two of them"),
        EXPLANATION,
    ]),
    Command::new("close_all_user_connections", Tools::CTL, "Close connections of a user", |it| {
        let reason = it.word("explanation").to_owned();
        it.delete_because("/api/connections/username/{username}", &reason)?;
        Ok(Answer::Done)
    })
    .takes(&[one("username", "The user"), EXPLANATION])
    .says("Closing connections of user {username}, reason: {explanation}..."),
];
