//! Limits of virtual hosts and of users.

use serde_json::{Map, Value, json};

use super::{Command, Tools, Word, flag, one, value};
use crate::call::{Answer, Call};
use crate::fault::{Code, Fault};

const USER: Word = one("username", "The user");
const NO_USER: &str = "User \"{username}\" does not exist";

/// What can be limited in a vhost, and for a user.
const OF_VHOST: [&str; 5] = [
    "max-connections",
    "max-queues",
    "max-publish-rate",
    "max-publish-bytes-rate",
    "max-deliver-rate",
];
const OF_USER: [&str; 5] = [
    "max-connections",
    "max-channels",
    "max-publish-rate",
    "max-publish-bytes-rate",
    "max-deliver-rate",
];

/// The limits of the word `definition`: a JSON object of whole numbers under known names.
fn limits(it: &Call<'_>, known: &[&str]) -> Result<Map<String, Value>, Fault> {
    let Value::Object(limits) = it.json("definition")? else {
        return Err(Fault::data("expected a JSON object of limits"));
    };
    for (name, limit) in &limits {
        if !known.contains(&name.as_str()) {
            let known = known.join(", ");
            return Err(Fault::unavailable(format!(
                "Validation failed\n\nUnrecognised terms [{{<<\"{name}\">>,{limit}}}] in limits: known are {known}"
            )));
        }
        if limit.as_i64().is_none() {
            return Err(Fault::data(format!("{name} must be a whole number, not {limit}")));
        }
    }
    Ok(limits)
}

/// Deletes limits; those that are not there are as good as deleted.
fn clear(it: &mut Call<'_>, of: &str, names: &[&str]) -> Result<(), Fault> {
    for name in names {
        it.delete(&format!("{of}/{name}"))?;
    }
    Ok(())
}

/// The limits of one as JSON, or of all as rows.
fn list(it: &mut Call<'_>, one: &str, all: &str, whose: &'static str) -> Result<Answer, Fault> {
    if it.flag("global") {
        it.say_this(&format!("Listing limits for all {whose}s ..."))?;
        let columns: &[&'static str] = match whose {
            "user" => &["user", "limits!=value"],
            _ => &["vhost", "limits!=value"],
        };
        return it.table(all, columns);
    }
    let found = it.get(one)?;
    Ok(match found.get(0) {
        Some(limits) => Answer::Document(limits["value"].clone(), format!("{}\n", limits["value"])),
        None => Answer::Done,
    })
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new(
        "set_vhost_limits",
        Tools::CTL,
        "Limit a virtual host's connections and queues",
        |it| {
            let limits = limits(it, &OF_VHOST)?;
            // All of them are set: those that are not named are none.
            for name in OF_VHOST {
                let path = format!("/api/vhost-limits/{{vhost}}/{name}");
                match limits.get(name) {
                    Some(limit) => it.put(&path, &json!({"value": limit}))?,
                    None => it.delete(&path)?,
                };
            }
            Ok(Answer::Done)
        },
    )
    .takes(&[one(
        "definition",
        "A JSON object of max-connections, max-queues and rates; a negative number is no limit",
    )])
    .says("Setting vhost limits to \"{definition}\" for vhost \"{vhost}\" ..."),
    Command::new(
        "clear_vhost_limits",
        Tools::CTL,
        "Take the limits of a virtual host away",
        |it| {
            clear(it, "/api/vhost-limits/{vhost}", &OF_VHOST)?;
            Ok(Answer::Done)
        },
    )
    .says("Clearing vhost \"{vhost}\" limits ..."),
    Command::new(
        "list_vhost_limits",
        Tools::CTL_AND_DIAGNOSTICS,
        "Show the limits of a virtual host",
        |it| list(it, "/api/vhost-limits/{vhost}", "/api/vhost-limits", "vhost"),
    )
    .takes(&[flag("global", "Of all virtual hosts")])
    .says("Listing limits for vhost \"{vhost}\" ..."),
    Command::new(
        "set_user_limits",
        Tools::CTL,
        "Limit a user's connections and channels; limits that are not named stay",
        |it| {
            for (name, limit) in limits(it, &OF_USER)? {
                it.put(&format!("/api/user-limits/{{username}}/{name}"), &json!({"value": limit}))?;
            }
            Ok(Answer::Done)
        },
    )
    .takes(&[
        USER,
        one(
            "definition",
            "A JSON object of max-connections and max-channels; negative is no limit",
        ),
    ])
    .says("Setting user limits to \"{definition}\" for user \"{username}\" ...")
    .or_missing(Code::NoUser, NO_USER),
    Command::new("clear_user_limits", Tools::CTL, "Take limits of a user away", |it| {
        match it.word("limit") {
            "all" => {
                it.say_this(&it.fill("Clearing all limits for user \"{username}\" ..."))?;
                clear(it, "/api/user-limits/{username}", &OF_USER)?;
            }
            one if OF_USER.contains(&one) => {
                it.delete("/api/user-limits/{username}/{limit}")?;
            }
            _ => {
                let known = OF_USER.join(", ");
                return Err(Fault::usage(format!("a limit is one of {known}, all")));
            }
        }
        Ok(Answer::Done)
    })
    .takes(&[USER, one("limit", "max-connections, max-channels or all")])
    .says("Clearing \"{limit}\" limit for user \"{username}\" ...")
    .or_missing(Code::NoUser, NO_USER),
    Command::new(
        "list_user_limits",
        Tools::CTL_AND_DIAGNOSTICS,
        "Show the limits of a user",
        |it| list(it, "/api/user-limits/{user}", "/api/user-limits", "user"),
    )
    .takes(&[value("user", "guest", "The user"), flag("global", "Of all users")])
    .says("Listing limits for user \"{user}\" ...")
    .or_missing(Code::NoUser, "User \"{user}\" does not exist"),
];
