//! What each request of `leveret ctl` does.

use std::sync::Arc;

use leveret_amqp::reply::ReplyCode;
use leveret_broker::message::{AdminCommand, Reply, ToSession, ToShard};
use leveret_ctl::protocol::{Code, Fault, Listening, Request, Status, Watermark};
use leveret_topology::{Hashing, PasswordHash, QueueId};
use serde_json::{Value, json};

use leveret_server::COMPATIBLE_VERSION;
use leveret_server::alarms::{Resource, free_bytes, look};
use leveret_server::connection::{Connection, Letter};
use leveret_server::front::About;
use leveret_server::node::Node;
use leveret_server::runner::with_runner;

use super::ask::{self, Refusal};
use super::{Ops, lists, system};

/// Answers one request.
pub(crate) async fn answer(ops: &Ops, request: Request) -> Result<Value, Fault> {
    let (node, about) = (&ops.node, &ops.about);
    match request {
        // `stop` is the caller's: it needs the socket to stay open.
        Request::Ping | Request::Stop => Ok(Value::Null),
        Request::ReloadCertificates => {
            let reloaded = node.certificates.reload();
            reloaded.map(|_| Value::Null).map_err(|why| Fault::new(Code::Data, why))
        }
        Request::Version => Ok(json!(about.product_version)),
        Request::Status => status(node, about),
        Request::Environment => Ok(about
            .environment
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect::<serde_json::Map<_, _>>()
            .into()),
        Request::ListQueues(of) => lists::queues(ops, &of.vhost).await,
        Request::ListConsumers(of) => lists::consumers(node, &of.vhost).await,
        Request::ListExchanges(of) => lists::exchanges(node, &of.vhost),
        Request::ListBindings(of) => lists::bindings(node, &of.vhost),
        Request::ListConnections(_) => Ok(lists::connections(node)),
        Request::ListChannels(_) => Ok(lists::channels(node)),
        Request::ListVhosts(_) => Ok(lists::vhosts(node)),
        Request::ListUsers => Ok(lists::users(node)),
        Request::ListPermissions(of) => lists::permissions(node, &of.vhost),
        Request::ListUserPermissions(of) => lists::user_permissions(node, &of.name),
        Request::ListTopicPermissions(of) => lists::topic_permissions(node, &of.vhost),
        Request::ListPolicies(of) => lists::policies(node, &of.vhost),
        Request::ExportDefinitions => {
            let text = node.topology().export_definitions();
            serde_json::from_str(&text)
                .map_err(|error| Fault::new(Code::Software, error.to_string()))
        }
        Request::ImportDefinitions { definitions } => {
            admin(node, AdminCommand::ImportDefinitions { json: definitions.to_string() }).await
        }
        Request::SetPolicy(policy) => {
            let Value::Object(definition) = policy.definition else {
                return Err(Fault::new(Code::Data, "the definition of a policy is a JSON object"));
            };
            let leveret_ctl::protocol::Policy { vhost, name, pattern, apply_to, priority, .. } =
                policy;
            let command =
                AdminCommand::SetPolicy { vhost, name, pattern, definition, priority, apply_to };
            admin(node, command).await
        }
        Request::ClearPolicy(of) => {
            admin(node, AdminCommand::ClearPolicy { vhost: of.vhost, name: of.name }).await
        }
        Request::SetVhostLimits { vhost, limits } => {
            admin(node, AdminCommand::SetVhostLimits { vhost, limits }).await
        }
        Request::SetTracing { vhost, is_on } => {
            admin(node, AdminCommand::SetTracing { vhost, is_on }).await
        }
        Request::ClearVhostLimits(of) => {
            admin(node, AdminCommand::ClearVhostLimits { vhost: of.vhost, limit: None }).await
        }
        Request::SetUserLimits { name, limits } => {
            known_user(node, &name)?;
            admin(node, AdminCommand::SetUserLimits { name, limits }).await
        }
        Request::ClearUserLimits { name, limit } => {
            known_user(node, &name)?;
            admin(node, AdminCommand::ClearUserLimits { name, limit }).await
        }
        Request::AddUser { name, password, is_hashed } => {
            if node.topology().user(&name).is_some() {
                return Err(Fault::user_exists(&name));
            }
            let password = if is_hashed {
                let is_argon2id = password.starts_with("$argon2id$");
                let hashing = if is_argon2id { Hashing::Argon2id } else { Hashing::Sha256 };
                PasswordHash::from_base64(&name, &password, hashing)
                    .map_err(|error| Fault::new(Code::Data, error.to_string()))?
            } else {
                node.logins.hash(&password)
            };
            admin(node, AdminCommand::AddUser { name, password, tags: Vec::new() }).await
        }
        Request::DeleteUser(of) => {
            known_user(node, &of.name)?;
            admin(node, AdminCommand::DeleteUser { name: of.name }).await
        }
        Request::ChangePassword { name, password } => {
            known_user(node, &name)?;
            let password = node.logins.hash(&password);
            admin(node, AdminCommand::ChangePassword { name, password }).await
        }
        Request::AuthenticateUser { name, password } => {
            let proven = node.logins.prove(node, &name, &password);
            proven.map(|()| Value::Null).map_err(|why| Fault::new(Code::Data, why))
        }
        Request::SetUserTags { name, tags } => {
            known_user(node, &name)?;
            admin(node, AdminCommand::SetUserTags { name, tags }).await
        }
        Request::SetPermissions { vhost, user, configure, write, read } => {
            known_user(node, &user)?;
            admin(node, AdminCommand::SetPermissions { user, vhost, configure, write, read }).await
        }
        Request::ClearPermissions(of) => {
            known_user(node, &of.name)?;
            admin(node, AdminCommand::ClearPermissions { user: of.name, vhost: of.vhost }).await
        }
        Request::SetTopicPermissions { vhost, user, exchange, write, read } => {
            known_user(node, &user)?;
            let command = AdminCommand::SetTopicPermissions { user, vhost, exchange, write, read };
            admin(node, command).await
        }
        Request::AddVhost { name, description, tags, default_queue_type } => {
            let description = (!description.is_empty()).then_some(description);
            let tags = (!tags.is_empty()).then_some(tags);
            let command = AdminCommand::PutVhost {
                name,
                description,
                tags,
                default_queue_type,
                tracing: None,
            };
            admin(node, command).await
        }
        Request::DeleteVhost(of) => {
            if node.topology().vhost(&of.name).is_none() {
                return Err(Fault::no_vhost(&of.name));
            }
            close_all(node, Some(&of.name), 0, &format!("vhost '{}' is deleted", of.name));
            admin(node, AdminCommand::DeleteVhost { name: of.name }).await
        }
        Request::CloseConnection { pid, reason } => {
            let connections = node.connections();
            let found = connections.iter().find(|one| one.id().pid() == pid);
            let Some(connection) = found else {
                return Err(Fault::new(Code::Data, format!("there is no connection {pid}")));
            };
            close(node, connection, &reason);
            Ok(Value::Null)
        }
        Request::CloseAllConnections { vhost, limit, reason } => {
            Ok(json!(close_all(node, vhost.as_deref(), limit, &reason)))
        }
        Request::PurgeQueue(of) => {
            let queue = queue_id(node, &of.vhost, &of.name)?;
            let letter = |reply| ToShard::Purge { reply, queue };
            match ask::shard(node, queue, letter).await? {
                Reply::Purged(count) => Ok(json!(count)),
                _ => Err(no_queue(&of.vhost, &of.name)),
            }
        }
        Request::DeleteQueue { vhost, name, if_empty, if_unused } => {
            let queue = queue_id(node, &vhost, &name)?;
            let letter = |reply| ToShard::Delete {
                user: CTL_USER.into(),
                reply: Some(reply),
                queue,
                if_unused,
                if_empty,
            };
            match ask::shard(node, queue, letter).await? {
                Reply::Deleted(count) => Ok(json!(count)),
                _ => Err(no_queue(&vhost, &name)),
            }
        }
        Request::SetVmMemoryHighWatermark(watermark) => {
            let limit = match watermark {
                Watermark::Absolute(bytes) => bytes,
                Watermark::Relative(part) if (0.0..=1.0).contains(&part) => {
                    (about.machine_memory as f64 * part) as u64
                }
                Watermark::Relative(part) => {
                    let text = format!("expected a part of the memory from 0 to 1, got {part}");
                    return Err(Fault::new(Code::Data, text));
                }
            };
            if let Some(change) = node.set_memory_limit(limit) {
                with_runner(node, |runner| {
                    runner.announce(Resource::Memory, change);
                    runner.work();
                });
            }
            Ok(Value::Null)
        }
        Request::SetDiskFreeLimit(limit) => {
            node.alarms.set_disk_limit(match limit {
                Watermark::Absolute(bytes) => bytes,
                Watermark::Relative(part) => (about.machine_memory as f64 * part.max(0.0)) as u64,
            });
            let free = free_bytes(&about.data_dir)
                .map_err(|error| Fault::new(Code::Software, error.to_string()))?;
            look(node, free);
            Ok(Value::Null)
        }
    }
}

/// Who does what `leveret ctl` asks for, as RabbitMQ's tools name themselves.
const CTL_USER: &str = "rmq-cli";

/// A change by the topology's owner.
async fn admin(node: &Arc<Node>, command: AdminCommand) -> Result<Value, Fault> {
    Ok(ask::admin(node, CTL_USER, command).await?.map_or(Value::Null, Value::String))
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Refused { text, .. } => Self::new(Code::Data, text),
            Refusal::Stopping => Self::new(Code::Unavailable, refusal.to_string()),
        }
    }
}

fn known_user(node: &Node, name: &str) -> Result<(), Fault> {
    match node.topology().user(name) {
        Some(_) => Ok(()),
        None => Err(Fault::no_user(name)),
    }
}

fn queue_id(node: &Node, vhost: &str, name: &str) -> Result<QueueId, Fault> {
    let topology = node.topology();
    let vhost_id = topology.vhost(vhost).ok_or_else(|| Fault::no_vhost(vhost))?.id;
    topology.queue(vhost_id, name).map(|queue| queue.id).ok_or_else(|| no_queue(vhost, name))
}

fn no_queue(vhost: &str, name: &str) -> Fault {
    Fault::new(Code::Data, format!("Queue '{name}' in vhost '{vhost}' does not exist"))
}

pub(crate) fn close(node: &Arc<Node>, connection: &Arc<Connection>, reason: &str) {
    let letter = ToSession::Close { code: ReplyCode::ConnectionForced, text: reason.to_owned() };
    with_runner(node, |runner| runner.run_connection(connection, Letter::Session(letter)));
}

/// Closes connections of a vhost, or all, up to `limit` (0 for all); returns how many.
pub(crate) fn close_all(node: &Arc<Node>, vhost: Option<&str>, limit: u64, reason: &str) -> u64 {
    let mut closed = 0;
    for connection in node.connections() {
        if limit > 0 && closed == limit {
            break;
        }
        if vhost.is_none_or(|vhost| connection.facts().vhost == vhost) {
            close(node, &connection, reason);
            closed += 1;
        }
    }
    closed
}

fn status(node: &Arc<Node>, about: &About) -> Result<Value, Fault> {
    let topology = node.topology();
    let (files, files_max) = system::open_files();
    let disk_free = system::free_bytes(&about.data_dir);
    let alarms = node.alarms.raised().into_iter().map(|it| it.name().to_owned()).collect();
    let listeners = about.listeners.iter().map(|listener| Listening {
        interface: listener.address.ip().to_string(),
        port: listener.address.port(),
        protocol: listener.protocol.to_owned(),
        purpose: listener.purpose.to_owned(),
    });
    let status = Status {
        node: about.node_name.clone(),
        product_name: about.product_name.clone(),
        product_version: about.product_version.clone(),
        rabbitmq_version: COMPATIBLE_VERSION.to_owned(),
        pid: std::process::id(),
        os: system::os(),
        config_files: about.config_files.clone(),
        log_files: about.log_files.clone(),
        uptime: about.started.elapsed().as_secs(),
        data_directory: about.data_dir.display().to_string(),
        alarms,
        memory_bytes: system::resident_bytes(),
        message_bytes: node.held_bytes(),
        memory_limit_bytes: node.alarms.memory_limit(),
        disk_free_bytes: disk_free,
        disk_limit_bytes: node.alarms.disk_limit(),
        file_descriptors: files,
        file_descriptors_limit: files_max,
        threads: about.threads as u32,
        shards: node.shards.len() as u32,
        connections: node.connections().len() as u64,
        queues: topology.queue_count() as u64,
        vhosts: topology.vhosts().count() as u64,
        listeners: listeners.collect(),
    };
    serde_json::to_value(status).map_err(|error| Fault::new(Code::Software, error.to_string()))
}
