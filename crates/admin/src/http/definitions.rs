//! Definitions: everything that is declared, out and in, of the node or of one vhost.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::vec;

use leveret_broker::message::AdminCommand;
use leveret_server::node::Node;
use leveret_topology::{
    ExchangeId, Import, ImportError, ImportReason, Lines, Queue, QueueId, Reader, ResourceRef,
    Topology, Vhost, VhostId, for_rabbitmq, loose_topic, weight,
};
use serde_json::{Map, Value, json};

use super::answer::{Answer, Fault, text};
use super::call::{Call, aside};
use super::cluster;
use super::stream::{self, Pieces, Written};
use crate::ops::ask;
use crate::ops::pages::{self, Slice};

/// Lists of a document whose entries belong to a vhost.
const OF_VHOST: [&str; 5] = ["parameters", "policies", "queues", "exchanges", "bindings"];

/// `GET /api/definitions`, `/api/all-configuration` and `/api/definitions/{vhost}`.
pub(super) async fn get(mut call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let vhost = call.optional("vhost").map(str::to_owned);
    let vhost = vhost.as_deref();
    let (settings, vhosts) = {
        let topology = call.node().topology();
        if let Some(vhost) = vhost {
            topology.vhost(vhost).ok_or_else(|| Fault::bad("vhost_not_found"))?;
        }
        let is_wanted = |it: &&Vhost| vhost.is_none_or(|name| *name == *it.name);
        let vhosts: Vec<VhostId> = topology.vhosts().filter(is_wanted).map(|it| it.id).collect();
        (topology.export_settings(), vhosts)
    };
    let mut all = Value::Object(settings);
    all["original_cluster_name"] = json!(cluster::name(&call));
    if let Some(vhost) = vhost {
        all = only(vhost, &all);
    }
    let reader = match call.query("for") {
        None => Reader::Leveret,
        Some("rabbitmq") => Reader::RabbitMq,
        Some("rabbitmq-4") => Reader::RabbitMq4,
        Some(other) => {
            let why = format!("'for' must be rabbitmq or rabbitmq-4, not '{other}'");
            return Err(Fault::bad(why));
        }
    };
    let mut parts = BTreeMap::new();
    let unnamed = names(&mut call, &vhosts, reader, &mut parts).await?;
    if !reader.is_leveret() {
        let mut told = Lines::default();
        for_rabbitmq(&mut all, reader, &mut told);
        without_loose_topics(call.node(), &mut all, &mut told).await;
        let of_vhost = |topology: &Topology, vhost| topology.left_out_for_rabbitmq(vhost);
        let of_vhosts = pages::copied(call.node(), vhosts.iter().copied(), of_vhost).await;
        of_vhosts.into_iter().chain(unnamed).for_each(|line| told.push(line));
        // RabbitMQ takes no notice of a key that it does not know.
        all["left_out"] = json!(told.finish());
    }
    for (key, value) in all.as_object().into_iter().flatten() {
        parts.insert(key.clone(), Part::Text(text(value)));
    }
    let name = call.query("download").map(str::to_owned);
    let is_one = vhost.is_some();
    let export = Export {
        call,
        vhosts,
        is_one,
        reader,
        parts: parts.into_iter().collect(),
        has_begun: false,
        count: None,
    };
    Ok(match stream::written(export).await? {
        Written::Whole(text) => {
            let text = String::from_utf8_lossy(&text).into_owned();
            Answer::File { kind: "application/json", name, text }
        }
        Written::Long(made) => Answer::Stream(made, name),
    })
}

/// Queues that are told to be left out, at most.
const LINES_MAX: usize = 100;

/// Transient queues that are named, at most.
const NAMED_MAX: usize = 3;

/// Queues that newer brokers refuse, and a whole file with them: transient ones. Exclusive ones are never exported.
#[derive(Debug, Default)]
struct Transient {
    count: usize,
    /// The first ones.
    named: Vec<String>,
}

impl Transient {
    fn add(&mut self, queue: &Queue, topology: &Topology) {
        self.count += 1;
        if self.named.len() < NAMED_MAX
            && let Some(vhost) = topology.vhost_by_id(queue.vhost)
        {
            self.named.push(ResourceRef::queue(&queue.name, &vhost.name).to_string());
        }
    }

    fn sentence(&self, reader: Reader) -> Option<String> {
        if self.count == 0 {
            return None;
        }
        let named = self.named.join(", ");
        let more = match self.count - self.named.len() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        if reader == Reader::RabbitMq4 {
            return Some(format!(
                "nothing of {named}{more}, but transient queues are durable in this file"
            ));
        }
        Some(format!(
            "nothing of {named}{more}, but RabbitMQ 4.3 refuses transient queues that are not exclusive, unless it has \
             deprecated_features.permit.transient_nonexcl_queues = true; versions before take them"
        ))
    }
}

/// Finds queues and exchanges in the order of their names, and where bindings are: there may be very many. A sentence for each
/// queue that the broker gave a name, which no broker takes, and one for those that not every RabbitMQ takes.
async fn names(
    call: &mut Call,
    vhosts: &[VhostId],
    reader: Reader,
    parts: &mut BTreeMap<String, Part>,
) -> Result<Vec<String>, Fault> {
    let (count, places) = {
        let topology = call.node().topology();
        (topology.queue_count() + topology.exchange_count(), topology.binding_places())
    };
    // Names are there while ids are sorted by them.
    call.hold(count * 2 * size_of::<(Arc<str>, QueueId)>()).await?;
    let (mut queues, mut exchanges) = (Vec::new(), Vec::new());
    let (mut told, mut more) = (Vec::new(), 0);
    let mut transient = Transient::default();
    for &vhost in vhosts {
        let (queue_ids, exchange_ids) = {
            let topology = call.node().topology();
            (topology.queue_ids(vhost), topology.exchange_ids(vhost))
        };
        let name = |it: &Topology, id| {
            let queue = it.queue_by_id(id).filter(|queue| queue.exclusive_owner.is_none())?;
            if !queue.name.starts_with("amq.") {
                if !queue.durable {
                    transient.add(queue, it);
                }
                return Some((Arc::clone(&queue.name), id));
            }
            if told.len() < LINES_MAX {
                let queue = ResourceRef::queue(&queue.name, &it.vhost_by_id(queue.vhost)?.name);
                told.push(format!("{queue}: its name is the broker's"));
            } else {
                more += 1;
            }
            None
        };
        let own = pages::copied(call.node(), queue_ids, name).await;
        queues.append(&mut in_order(own).await);
        let name = |it: &Topology, id| {
            it.exchange_by_id(id).map(|exchange| (Arc::clone(&exchange.name), id))
        };
        let own = pages::copied(call.node(), exchange_ids, name).await;
        exchanges.append(&mut in_order(own).await);
    }
    call.keep(count * size_of::<QueueId>());
    parts.insert("queues".to_owned(), Part::Queues(queues.into_iter()));
    parts.insert("exchanges".to_owned(), Part::Exchanges(exchanges.into_iter()));
    parts.insert("bindings".to_owned(), Part::Bindings(0..places));
    if more > 0 {
        told.push(format!("{more} more queues whose names are the broker's"));
    }
    told.extend(transient.sentence(reader));
    Ok(told)
}

/// Takes out topic permissions that RabbitMQ refuses.
async fn without_loose_topics(node: &Node, all: &mut Value, told: &mut Lines) {
    let Some(entries) = all.get_mut("topic_permissions").and_then(Value::as_array_mut) else {
        return;
    };
    let look = |topology: &Topology, entry| Some((topology.is_loose_topic(&entry), entry));
    for (is_loose, entry) in pages::copied(node, std::mem::take(entries), look).await {
        if is_loose {
            told.push_with(|| loose_topic(&entry));
        } else {
            entries.push(entry);
        }
    }
}

async fn in_order<I: Send>(mut named: Vec<(Arc<str>, I)>) -> Vec<I> {
    pages::sort(&mut named, |a, b| a.0.cmp(&b.0)).await;
    let mut ids = Vec::with_capacity(named.len());
    let mut slice = Slice::begin();
    for (name, id) in named {
        drop(name);
        ids.push(id);
        slice.share().await;
    }
    ids
}

/// An entry of a document: what is not written of it.
enum Part {
    Text(Vec<u8>),
    Queues(vec::IntoIter<QueueId>),
    Exchanges(vec::IntoIter<ExchangeId>),
    /// Places of the arena.
    Bindings(Range<u32>),
}

impl Part {
    /// What a few entries are made of, and whether there are more.
    async fn some(
        &mut self,
        node: &Node,
        vhosts: &[VhostId],
        reader: Reader,
    ) -> Vec<Option<Value>> {
        match self {
            Self::Text(_) => Vec::new(),
            Self::Queues(ids) => {
                let some = ids.as_slice();
                let some = &some[..some.len().min(pages::ROWS)];
                let made = pages::some(node, some, |topology, &id| {
                    let queue = topology.queue_by_id(id);
                    let bytes = queue.map_or(0, |queue| weight::table(&queue.arguments));
                    let mut made = topology.export_queue(id);
                    if reader == Reader::RabbitMq4
                        && let Some(queue) = &mut made
                    {
                        queue["durable"] = true.into();
                    }
                    (made, bytes)
                })
                .await;
                ids.by_ref().take(made.len()).for_each(drop);
                made
            }
            Self::Exchanges(ids) => {
                let some = ids.as_slice();
                let some = &some[..some.len().min(pages::ROWS)];
                let made = pages::some(node, some, |topology, &id| {
                    let exchange = topology.exchange_by_id(id);
                    let bytes = exchange.map_or(0, |it| weight::table(&it.arguments));
                    (topology.export_exchange(id), bytes)
                })
                .await;
                ids.by_ref().take(made.len()).for_each(drop);
                made
            }
            Self::Bindings(places) => {
                let some: Vec<u32> = places.clone().take(pages::ROWS).collect();
                let made = pages::some(node, &some, |topology, &place| {
                    let Some(binding) = topology.binding_at(place) else { return (None, 0) };
                    let source = topology.exchange_by_id(binding.source);
                    if !source.is_some_and(|source| vhosts.contains(&source.vhost)) {
                        return (None, 0);
                    }
                    let made = match reader.is_leveret() {
                        true => topology.export_binding(binding),
                        false => topology.export_binding_for_rabbitmq(binding),
                    };
                    (made, weight::table(&binding.arguments))
                })
                .await;
                places.by_ref().take(made.len()).for_each(drop);
                made
            }
        }
    }

    fn is_over(&self) -> bool {
        match self {
            Self::Text(_) => true,
            Self::Queues(ids) => ids.len() == 0,
            Self::Exchanges(ids) => ids.len() == 0,
            Self::Bindings(places) => places.is_empty(),
        }
    }
}

/// A document while it is written, its entries in the order of their names.
struct Export {
    call: Call,
    vhosts: Vec<VhostId>,
    /// Whether it is of one vhost alone, whose entries do not name it.
    is_one: bool,
    /// What it refuses is left out.
    reader: Reader,
    parts: VecDeque<(String, Part)>,
    has_begun: bool,
    /// Entries so far of the list that is being written; none between two lists.
    count: Option<usize>,
}

impl Pieces for Export {
    async fn more(&mut self, out: &mut Vec<u8>) -> Result<bool, Fault> {
        let Self { call, vhosts, is_one, reader, parts, has_begun, count } = self;
        let Some((key, part)) = parts.front_mut() else {
            out.push(b'}');
            return Ok(false);
        };
        if count.is_none() {
            out.push(if std::mem::replace(has_begun, true) { b',' } else { b'{' });
            out.extend_from_slice(&text(&Value::String(std::mem::take(key))));
            out.push(b':');
        }
        if let Part::Text(text) = part {
            out.append(text);
            parts.pop_front();
            return Ok(true);
        }
        if count.is_none() {
            out.push(b'[');
        }
        let count = count.get_or_insert(0);
        let mut slice = Slice::begin();
        for mut entry in part.some(call.node(), vhosts, *reader).await.into_iter().flatten() {
            if *is_one {
                entry.as_object_mut().map(|entry| entry.remove("vhost"));
            }
            if *count > 0 {
                out.push(b',');
            }
            *count += 1;
            out.extend_from_slice(&text(&entry));
            slice.share().await;
        }
        if part.is_over() {
            out.push(b']');
            parts.pop_front();
            self.count = None;
        }
        Ok(true)
    }

    fn call(&mut self) -> &mut Call {
        &mut self.call
    }
}

/// What belongs to a vhost, without saying so.
fn only(vhost: &str, all: &Value) -> Value {
    let mut document = Map::new();
    for (key, value) in all.as_object().into_iter().flatten() {
        let Value::Array(entries) = value else {
            document.insert(key.clone(), value.clone());
            continue;
        };
        if OF_VHOST.contains(&key.as_str()) {
            let own = entries.iter().filter(|entry| entry["vhost"] == vhost).cloned();
            let own = own.map(|mut entry| {
                entry.as_object_mut().map(|entry| entry.remove("vhost"));
                entry
            });
            document.insert(key.clone(), own.collect());
        }
    }
    document.insert("rabbitmq_definition_format".to_owned(), json!("single_virtual_host"));
    document
        .insert("explanation".to_owned(), json!(format!("Definitions of virtual host '{vhost}'")));
    document.insert("original_vhost_name".to_owned(), json!(vhost));
    let own = all["vhosts"].as_array().into_iter().flatten().find(|it| it["name"] == vhost);
    for key in ["description", "metadata", "limits", "default_queue_type"] {
        let value = own.and_then(|own| own.get(key).or_else(|| own["metadata"].get(key)));
        document.extend(value.map(|value| (key.to_owned(), value.clone())));
    }
    document.into()
}

/// `POST` and `PUT` of the same: a document, or a form with it in the part `file`.
pub(super) async fn put(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let kind = call.headers.get("content-type").and_then(|kind| kind.to_str().ok());
    let bytes = match kind.and_then(boundary) {
        Some(boundary) => part(&call.body, &boundary, "file").ok_or_else(|| {
            Fault::bad("the form has no part called 'file' that holds the definitions")
        })?,
        None => &call.body,
    };
    let bytes = call.body.slice_ref(bytes);
    let vhost = call.optional("vhost").map(str::to_owned);
    if let Some(vhost) = &vhost {
        let known = call.node().topology().vhost(vhost).is_some();
        if !known {
            return Err(Fault::missing("vhost_not_found"));
        }
    }
    let skips = match call.query("skip_unsupported") {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => {
            let text = format!("'skip_unsupported' must be true or false, not '{other}'");
            return Err(Fault::bad(text));
        }
    };
    let read = move || match vhost {
        Some(vhost) => Import::into_vhost(&vhost, bytes),
        None => Import::of(bytes),
    };
    // One of a hundred thousand objects takes longer to read than others may wait for this thread.
    let definitions = aside(read).await?.map_err(unread)?;
    let definitions = Box::new(definitions.skip_unsupported(skips));
    let command = AdminCommand::ImportDefinitions { definitions };
    let imported = ask::admin(call.node(), call.by(), command).await?;
    // RabbitMQ's answer is empty.
    let answer = match imported.skipped {
        told if skips && !told.is_empty() => Answer::Json(json!({ "left_out": told })),
        _ => Answer::Done,
    };
    Ok(answer.with_warnings(imported.without_effect))
}

/// Why a document could not be read.
fn unread(error: ImportError) -> Fault {
    Fault::bad(match *error.reason {
        ImportReason::NotJson(why) => format!("failed_to_parse_json: {why}"),
        ImportReason::Expected("an object") => "definitions must be a JSON object".to_owned(),
        _ => error.to_string(),
    })
}

/// What divides the parts of a form.
fn boundary(kind: &str) -> Option<String> {
    let (kind, rest) = kind.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let boundary = rest.split(';').find_map(|one| one.trim().strip_prefix("boundary="))?;
    Some(boundary.trim_matches('"').to_owned())
}

/// The bytes of a part by its name.
fn part<'a>(body: &'a [u8], boundary: &str, name: &str) -> Option<&'a [u8]> {
    let divider = format!("--{boundary}");
    let mut rest = body;
    loop {
        let at = find(rest, divider.as_bytes())?;
        rest = rest.get(at + divider.len()..)?;
        let head_end = find(rest, b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(&rest[..head_end]).into_owned();
        let content = &rest[head_end + 4..];
        let end = find(content, format!("\r\n{divider}").as_bytes())?;
        let has_name = head.split(';').any(|one| {
            let one = one.trim().lines().next().unwrap_or_default();
            one == format!("name=\"{name}\"") || one == format!("name={name}")
        });
        if has_name {
            return Some(&content[..end]);
        }
        rest = &content[end..];
    }
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        let body =
            b"--X\r\nContent-Disposition: form-data; name=\"redirect\"\r\n\r\n../#/\r\n--X\r\n\
            Content-Disposition: form-data; name=\"file\"; filename=\"a.json\"\r\n\
            Content-Type: application/json\r\n\r\n{\"a\": 1}\r\n--X--\r\n";
        assert_eq!(part(body, "X", "file"), Some(&b"{\"a\": 1}"[..]));
        assert_eq!(part(body, "X", "redirect"), Some(&b"../#/"[..]));
        assert_eq!(part(body, "X", "other"), None);
        assert_eq!(part(b"--X\r\nname=\"file\"", "X", "file"), None);
        assert_eq!(part(b"", "X", "file"), None);
        assert_eq!(boundary("multipart/form-data; boundary=\"a b\"").as_deref(), Some("a b"));
        assert_eq!(boundary("application/json"), None);
    }

    #[test]
    fn one_vhost() {
        let all = json!({
            "rabbit_version": "x",
            "users": [{"name": "u"}],
            "queues": [{"name": "a", "vhost": "/"}, {"name": "b", "vhost": "v"}],
        });
        let own = only("v", &all);
        assert_eq!(own["queues"], json!([{"name": "b"}]));
        assert_eq!(own.get("users"), None);
    }
}
