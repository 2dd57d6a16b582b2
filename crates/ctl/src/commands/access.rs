//! Users, passwords, tags, permissions.

use serde_json::{Value, json};

use super::{Command, Tools, Word, flag, ignored_value, many, maybe, one, value};
use crate::call::{Answer, Call};
use crate::fault::{Code, Fault};

const USER: Word = one("username", "The user");
const PASSWORD: Word = maybe("password", "The password [default: a line of standard input]");
const WRITE: Word = one("write", "What may be written to, as a regular expression");
const READ: Word = one("read", "What may be read, as a regular expression");
const CONF: Word = one("conf", "What may be configured, as a regular expression");

const NO_USER: &str = "User \"{username}\" does not exist";
const USER_PATH: &str = "/api/users/{username}";

/// Changes one thing of a user, who has to be there; the others stay.
fn change(it: &mut Call<'_>, change: Value) -> Result<Answer, Fault> {
    let user = it.get(USER_PATH)?;
    let mut body = json!({"tags": user["tags"]});
    let is_password = change.get("password").is_some() || change.get("password_hash").is_some();
    if !is_password {
        body["password_hash"] = user["password_hash"].clone();
        body["hashing_algorithm"] = user["hashing_algorithm"].clone();
    }
    if let (Value::Object(body), Value::Object(change)) = (&mut body, change) {
        body.extend(change);
    }
    it.put(USER_PATH, &body)?;
    Ok(Answer::Done)
}

/// As [`must_find_both`], with the words that RabbitMQ's tools have when permissions are set.
fn must_find_both_to_set(it: &mut Call<'_>) -> Result<(), Fault> {
    it.must_find(USER_PATH, Code::NoUser, "User {username} does not exist")?;
    let missing = "Virtual host {vhost} does not exist";
    it.must_find("/api/vhosts/{vhost}", Code::Unavailable, missing)
}

/// The user and the vhost of a permission have to be there.
fn must_find_both(it: &mut Call<'_>) -> Result<(), Fault> {
    it.must_find(USER_PATH, Code::NoUser, "User {username} does not exist")?;
    it.must_find("/api/vhosts/{vhost}", Code::Data, "Virtual host '{vhost}' does not exist")
}

/// Deletes permissions; those that are not there are as good as deleted.
fn clear(it: &mut Call<'_>, path: &str) -> Result<Answer, Fault> {
    must_find_both(it)?;
    let reply = it.send(hyper::Method::DELETE, path, &[], None)?;
    match reply.status {
        hyper::StatusCode::NOT_FOUND => Ok(Answer::Done),
        status if status.is_success() => Ok(Answer::Done),
        _ => Err(it.refusal(&reply)),
    }
}

/// Sets the permissions of the command line in the vhost at hand.
fn put_permissions(it: &mut Call<'_>) -> Result<(), Fault> {
    let body = json!({
        "configure": it.word("conf"), "write": it.word("write"), "read": it.word("read"),
    });
    it.put("/api/permissions/{vhost}/{username}", &body).map(drop)
}

pub(super) const COMMANDS: &[Command] = &[
    Command::new("list_users", Tools::CTL_AND_DIAGNOSTICS, "List users with their tags", |it| {
        it.table("/api/users", &["user=name", "tags"])
    })
    .says("Listing users ..."),
    Command::new("add_user", Tools::CTL, "Add a user, who has no permissions yet", |it| {
        let password = it.password("password")?;
        let body = match it.flag("pre-hashed-password") {
            false => json!({"password": password, "tags": ""}),
            true if password.starts_with("$argon2id$") => json!({
                "password_hash": password,
                "hashing_algorithm": "leveret_password_hashing_argon2id",
                "tags": "",
            }),
            true => json!({"password_hash": password, "tags": ""}),
        };
        let exists = it.send(hyper::Method::GET, USER_PATH, &[], None)?;
        if exists.status.is_success() {
            return Err(Fault::software(it.fill("User \"{username}\" already exists")));
        }
        it.put(USER_PATH, &body)?;
        Ok(Answer::Message(
            "Done. Don't forget to grant the user permissions to some virtual hosts! \
             See 'rabbitmqctl help set_permissions' to learn more."
                .to_owned(),
        ))
    })
    .takes(&[
        flag("pre-hashed-password", "The second argument is a salted hash in Base64"),
        USER,
        PASSWORD,
    ])
    .says("Adding user \"{username}\" ..."),
    Command::new("delete_user", Tools::CTL, "Delete a user", |it| {
        it.delete(USER_PATH)?;
        Ok(Answer::Done)
    })
    .takes(&[USER])
    .says("Deleting user \"{username}\" ...")
    .or_missing(Code::NoUser, NO_USER),
    Command::new("change_password", Tools::CTL, "Change a user's password", |it| {
        let password = it.password("password")?;
        change(it, json!({"password": password}))
    })
    .takes(&[USER, PASSWORD])
    .says("Changing password for user \"{username}\" ...")
    .or_missing(Code::NoUser, NO_USER),
    Command::new("clear_password", Tools::CTL, "Let nobody log in by the user's password", |it| {
        change(it, json!({"password_hash": ""}))
    })
    .takes(&[USER])
    .says("Clearing password for user \"{username}\" ...")
    .or_missing(Code::NoUser, NO_USER),
    Command::new("authenticate_user", Tools::CTL, "Check a user's password", |it| {
        let body = json!({"username": it.word("username"), "password": it.password("password")?});
        it.post("/api/leveret/authenticate", &body).map_err(|fault| {
            let first = it.fill("Error: failed to authenticate user \"{username}\"");
            Fault { text: format!("{first}\n{}", fault.text), ..fault }
        })?;
        Ok(Answer::Message("Success".to_owned()))
    })
    .takes(&[USER, PASSWORD])
    .says("Authenticating user \"{username}\" ..."),
    Command::new("set_user_tags", Tools::CTL, "Set all tags of a user", |it| {
        change(it, json!({"tags": it.words("tags")}))
    })
    .takes(&[USER, many("tags", "The tags, such as administrator; none takes all away")])
    .says("Setting tags for user \"{username}\" to [{tags}] ...")
    .or_missing(Code::NoUser, NO_USER),
    Command::new("hash_password", Tools::CTL, "Hash a password as the node would", |it| {
        let algorithm = it.optional("hashing-algorithm").map(str::to_lowercase);
        if let Some(other) = algorithm.filter(|it| it != "sha256") {
            return Err(Fault::usage(format!(
                "{other} is not offered: the node hashes as password_hashing_module says"
            )));
        }
        let hashed = it.get("/api/auth/hash_password/{password}")?;
        Ok(Answer::Value(hashed["ok"].clone()))
    })
    .takes(&[one("password", "The password"), value("hashing-algorithm", "", "sha256")])
    .says("Will hash the password"),
    Command::new(
        "list_permissions",
        Tools::CTL_AND_DIAGNOSTICS,
        "List permissions in a virtual host",
        |it| it.table("/api/vhosts/{vhost}/permissions", &["user", "configure", "write", "read"]),
    )
    .says("Listing permissions for vhost \"{vhost}\" ..."),
    Command::new(
        "list_user_permissions",
        Tools::CTL_AND_DIAGNOSTICS,
        "List a user's permissions in all virtual hosts",
        |it| {
            let columns = ["vhost", "configure", "write", "read"];
            it.table("/api/users/{username}/permissions", &columns)
        },
    )
    .takes(&[USER])
    .says("Listing permissions for user \"{username}\" ...")
    .or_missing(Code::NoUser, NO_USER),
    Command::new(
        "set_permissions",
        Tools::CTL,
        "Set a user's permissions in a virtual host",
        |it| {
            must_find_both_to_set(it)?;
            put_permissions(it)?;
            Ok(Answer::Done)
        },
    )
    .takes(&[USER, CONF, WRITE, READ])
    .says("Setting permissions for user \"{username}\" in vhost \"{vhost}\" ..."),
    Command::new(
        "set_permissions_globally",
        Tools::CTL,
        "Set a user's permissions in all virtual hosts that there are",
        |it| {
            it.must_find(USER_PATH, Code::NoUser, "User {username} does not exist")?;
            let vhosts = it.get("/api/vhosts?columns=name")?;
            for name in vhosts.as_array().into_iter().flatten() {
                let name = name["name"].as_str().unwrap_or_default().to_owned();
                put_permissions(it.with_vhost(&name))?;
            }
            Ok(Answer::Done)
        },
    )
    .takes(&[USER, CONF, WRITE, READ])
    .says("Setting permissions for user \"{username}\" in all virtual hosts ..."),
    Command::new(
        "clear_permissions",
        Tools::CTL,
        "Take a user's permissions in a virtual host",
        |it| clear(it, "/api/permissions/{vhost}/{username}"),
    )
    .takes(&[USER])
    .says("Clearing permissions for user \"{username}\" in vhost \"{vhost}\" ..."),
    Command::new(
        "list_topic_permissions",
        Tools::CTL_AND_DIAGNOSTICS,
        "List topic permissions in a virtual host",
        |it| {
            let columns = ["user", "exchange", "write", "read"];
            it.table("/api/vhosts/{vhost}/topic-permissions", &columns)
        },
    )
    .says("Listing topic permissions for vhost \"{vhost}\" ..."),
    Command::new(
        "list_user_topic_permissions",
        Tools::CTL_AND_DIAGNOSTICS,
        "List a user's topic permissions in all virtual hosts",
        |it| {
            let columns = ["vhost", "exchange", "write", "read"];
            it.table("/api/users/{username}/topic-permissions", &columns)
        },
    )
    .takes(&[USER])
    .says("Listing topic permissions for user \"{username}\" ...")
    .or_missing(Code::NoUser, NO_USER),
    Command::new(
        "set_topic_permissions",
        Tools::CTL,
        "Set a user's permissions on routing keys of a topic exchange",
        |it| {
            must_find_both_to_set(it)?;
            let body = json!({
                "exchange": it.word("exchange"), "write": it.word("write"), "read": it.word("read"),
            });
            it.put("/api/topic-permissions/{vhost}/{username}", &body)?;
            Ok(Answer::Done)
        },
    )
    .takes(&[USER, one("exchange", "The topic exchange"), WRITE, READ])
    .says(
        "Setting topic permissions on \"{exchange}\" for user \"{username}\" in vhost \"{vhost}\" \
         ...",
    ),
    Command::new(
        "clear_topic_permissions",
        Tools::CTL,
        "Take a user's topic permissions in a virtual host",
        |it| match it.optional("exchange") {
            // As paths call it.
            Some("") => clear(it, "/api/topic-permissions/{vhost}/{username}/amq.default"),
            Some(_) => clear(it, "/api/topic-permissions/{vhost}/{username}/{exchange}"),
            None => clear(it, "/api/topic-permissions/{vhost}/{username}"),
        },
    )
    .takes(&[USER, maybe("exchange", "Only on this exchange")])
    .says("Clearing topic permissions for user \"{username}\" in vhost \"{vhost}\" ..."),
    Command::new(
        "list_node_auth_attempt_stats",
        Tools::CTL_AND_DIAGNOSTICS,
        "Count logins by protocol, or by address and user",
        |it| {
            const COUNTS: [&str; 3] =
                ["auth_attempts", "auth_attempts_failed", "auth_attempts_succeeded"];
            let mut columns = vec!["protocol"];
            let mut path = "/api/auth/attempts/{node}";
            if it.flag("by-source") {
                columns.splice(0..0, ["remote_address", "username"]);
                path = "/api/auth/attempts/{node}/source";
            }
            columns.extend(COUNTS);
            it.learn_node()?;
            it.table(path, &columns)
        },
    )
    .takes(&[flag("by-source", "By address and user, too")])
    .says("Listing authentication attempts for node \"{node}\" ..."),
    Command::new(
        "reset_node_auth_attempt_metrics",
        Tools::DIAGNOSTICS,
        "Count logins from nothing again",
        |it| {
            it.learn_node()?;
            it.delete("/api/auth/attempts/{node}")?;
            Ok(Answer::Done)
        },
    )
    .takes(&[ignored_value("protocol")])
    .says("Resetting auth attempt metrics on node {node} ..."),
];
