//! Definitions: everything that is declared, out and in, of the node or of one vhost.

use std::collections::BTreeMap;

use bytes::Bytes;
use leveret_broker::message::AdminCommand;
use leveret_topology::{Import, Topology, Vhost, VhostId, for_rabbitmq};
use serde_json::{Map, Value, json};

use super::answer::{Answer, Fault, text};
use super::call::Call;
use super::{cluster, stream};
use crate::ops::ask;
use crate::ops::pages::{self, Slice};

/// Lists of a document whose entries belong to a vhost.
const OF_VHOST: [&str; 5] = ["parameters", "policies", "queues", "exchanges", "bindings"];

/// `GET /api/definitions`, `/api/all-configuration` and `/api/definitions/{vhost}`.
pub(super) async fn get(call: Call) -> Result<Answer, Fault> {
    call.login.must_admin()?;
    let vhost = call.optional("vhost");
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
    match call.query("for") {
        None => {}
        // RabbitMQ takes no notice of a key that it does not know.
        Some("rabbitmq") => all["left_out"] = json!(for_rabbitmq(&mut all)),
        Some(other) => {
            return Err(Fault::bad(format!("'for' must be rabbitmq, not '{other}'")));
        }
    }
    let mut written = Written::default();
    for (key, value) in all.as_object().into_iter().flatten() {
        written.0.insert(key.clone(), text(value).into());
    }
    names(&call, &vhosts, vhost.is_some(), &mut written).await;
    let name = call.query("download").map(str::to_owned);
    Ok(written.answer(name))
}

/// Queues, exchanges and bindings, of which there may be very many.
async fn names(call: &Call, vhosts: &[VhostId], is_one: bool, written: &mut Written) {
    let by_name = |a: &Value, b: &Value| a["name"].as_str().cmp(&b["name"].as_str());
    let (mut queues, mut exchanges) = (Vec::new(), Vec::new());
    for &vhost in vhosts {
        let (queue_ids, exchange_ids) = {
            let topology = call.node().topology();
            (topology.queue_ids(vhost), topology.exchange_ids(vhost))
        };
        let mut own = pages::copied(call.node(), queue_ids, Topology::export_queue).await;
        pages::sort(&mut own, by_name).await;
        queues.append(&mut own);
        let mut own = pages::copied(call.node(), exchange_ids, Topology::export_exchange).await;
        pages::sort(&mut own, by_name).await;
        exchanges.append(&mut own);
    }
    written.put("queues", queues, is_one).await;
    written.put("exchanges", exchanges, is_one).await;
    let places = call.node().topology().binding_places();
    let binding = |topology: &Topology, place| {
        let binding = topology.binding_at(place)?;
        let source = topology.exchange_by_id(binding.source)?;
        vhosts.contains(&source.vhost).then(|| topology.export_binding(binding)).flatten()
    };
    let bindings = pages::copied(call.node(), 0..places, binding).await;
    written.put("bindings", bindings, is_one).await;
}

/// The entries of a document as they are sent, in the order of their names.
#[derive(Debug, Default)]
struct Written(BTreeMap<String, Bytes>);

impl Written {
    /// Adds a list; one of a single vhost does not name it.
    async fn put(&mut self, key: &str, entries: Vec<Value>, is_one: bool) {
        let mut out = vec![b'['];
        let mut slice = Slice::begin();
        for mut entry in entries {
            if is_one {
                entry.as_object_mut().map(|entry| entry.remove("vhost"));
            }
            if out.len() > 1 {
                out.push(b',');
            }
            out.extend_from_slice(&text(&entry));
            slice.share().await;
        }
        out.push(b']');
        self.0.insert(key.to_owned(), out.into());
    }

    fn answer(self, name: Option<String>) -> Answer {
        let mut parts = Vec::new();
        for (key, value) in self.0 {
            let begin = if parts.is_empty() { '{' } else { ',' };
            parts.push(format!("{begin}{}:", Value::String(key)).into());
            parts.push(value);
        }
        parts.push(Bytes::from_static(b"}"));
        if parts.iter().map(Bytes::len).sum::<usize>() <= stream::CHUNK {
            let text = String::from_utf8_lossy(&parts.concat()).into_owned();
            return Answer::File { kind: "application/json", name, text };
        }
        let made = stream::made(|mut to| async move {
            let mut chunk = Vec::new();
            for mut part in parts {
                while !part.is_empty() {
                    chunk.extend_from_slice(&part.split_to(part.len().min(stream::CHUNK)));
                    if chunk.len() >= stream::CHUNK {
                        to.send(std::mem::take(&mut chunk)).await?;
                    }
                }
            }
            to.send(chunk).await
        });
        Answer::Stream(made, name)
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
    let document = match bytes {
        b"" => Value::Object(Map::new()),
        bytes => serde_json::from_slice(bytes)
            .map_err(|error| Fault::bad(format!("failed_to_parse_json: {error}")))?,
    };
    let Value::Object(mut document) = document else {
        return Err(Fault::bad("definitions must be a JSON object"));
    };
    if let Some(vhost) = call.optional("vhost") {
        let known = call.node().topology().vhost(vhost).is_some();
        if !known {
            return Err(Fault::missing("vhost_not_found"));
        }
        document = into_vhost(vhost, document)?;
    }
    let definitions = Box::new(Import::new(document));
    let command = AdminCommand::ImportDefinitions { definitions };
    ask::admin(call.node(), &call.login.name, command).await?;
    Ok(Answer::Done)
}

/// A document of one vhost, with its name in every entry. What concerns the whole node is left out.
fn into_vhost(vhost: &str, document: Map<String, Value>) -> Result<Map<String, Value>, Fault> {
    let mut own = Map::new();
    for (key, value) in document {
        if !OF_VHOST.contains(&key.as_str()) {
            continue;
        }
        let Value::Array(mut entries) = value else {
            return Err(Fault::bad(format!("'{key}' must be a list")));
        };
        for entry in &mut entries {
            let Value::Object(entry) = entry else {
                return Err(Fault::bad(format!("'{key}' must be a list of objects")));
            };
            entry.insert("vhost".to_owned(), json!(vhost));
        }
        own.insert(key, Value::Array(entries));
    }
    Ok(own)
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
        let back = into_vhost("w", own.as_object().unwrap().clone()).unwrap();
        assert_eq!(Value::from(back), json!({"queues": [{"name": "b", "vhost": "w"}]}));
        let bad = into_vhost("w", json!({"queues": 1}).as_object().unwrap().clone());
        assert!(bad.is_err());
    }
}
