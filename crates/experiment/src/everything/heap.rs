//! A vhost and an exchange with so many names that whoever deletes them begins work of many pieces, and operators who make
//! and delete both without knowing of each other.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leveret_ctl::Api;
use serde_json::{Value, json};

use super::chance::Chance;
use super::journal::Journal;
use super::operators::{ask, pause};
use crate::site::encoded;

/// The vhost.
pub(crate) const VHOST: &str = "heap";
/// The exchange in it.
const EXCHANGE: &str = "heap-x";

/// Queues, and bindings for each of them: many times what goes in one piece (512).
const QUEUES: u64 = 3000;
const BINDINGS: u64 = 3;

/// Something that an operator does.
type Deed = fn(&Heap<'_>, &mut Chance);

/// What they do, some of it oftener.
const DEEDS: &[Deed] = &[
    |heap, chance| heap.make(chance),
    |heap, chance| heap.make(chance),
    |heap, chance| heap.delete_exchange(chance),
    |heap, chance| heap.delete_vhost(chance),
    |heap, chance| heap.delete_exchange_and_vhost(chance),
    |heap, chance| heap.set_policy(chance),
    |heap, chance| heap.delete_some(chance),
    |heap, chance| heap.look(chance),
    |heap, chance| heap.look(chance),
];

/// Makes and deletes it until it is told to stop. Several do so at a time.
pub(crate) fn come_and_go(
    api: &Api,
    user: &str,
    mut chance: Chance,
    journal: &Journal,
    stop: &AtomicBool,
) {
    let heap = Heap { api, user, journal };
    heap.make(&mut chance);
    while !stop.load(Ordering::Acquire) {
        chance.of(DEEDS)(&heap, &mut chance);
        pause(Duration::from_millis(chance.below(700)), stop);
    }
}

struct Heap<'a> {
    api: &'a Api,
    user: &'a str,
    journal: &'a Journal,
}

impl Heap<'_> {
    fn ask(&self, method: &str, path: &str, body: &Value) {
        let path = format!("/api/{path}");
        let user = format!("/{}", encoded(self.user));
        let route = path.replace(VHOST, "{vhost}").replace(&user, "/{user}");
        ask(self.api, self.journal, "heap", (method, &route), &path, body);
    }

    /// The vhost, and in it the exchange with all that is bound to it.
    fn make(&self, chance: &mut Chance) {
        self.ask("PUT", &format!("vhosts/{VHOST}"), &json!({}));
        let all = json!({"configure": ".*", "write": ".*", "read": ".*"});
        self.ask("PUT", &format!("permissions/{VHOST}/{}", encoded(self.user)), &all);
        self.ask("POST", &format!("definitions/{VHOST}"), &definitions(chance));
    }

    fn delete_exchange(&self, _: &mut Chance) {
        self.ask("DELETE", &format!("exchanges/{VHOST}/{EXCHANGE}"), &Value::Null);
    }

    fn delete_vhost(&self, _: &mut Chance) {
        self.ask("DELETE", &format!("vhosts/{VHOST}"), &Value::Null);
    }

    /// The second while the first is under way.
    fn delete_exchange_and_vhost(&self, chance: &mut Chance) {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                self.ask("DELETE", &format!("exchanges/{VHOST}/{EXCHANGE}"), &Value::Null)
            });
            std::thread::sleep(Duration::from_millis(chance.below(30)));
            self.ask("DELETE", &format!("vhosts/{VHOST}"), &Value::Null);
        });
    }

    fn set_policy(&self, chance: &mut Chance) {
        let definition = json!({"max-length": 100 + chance.below(1000)});
        let body = json!({"pattern": "^heap", "apply-to": "queues", "definition": definition});
        let path = format!("policies/{VHOST}/p-{}", chance.below(2));
        match chance.below(3) {
            0 => self.ask("DELETE", &path, &Value::Null),
            _ => self.ask("PUT", &path, &body),
        }
    }

    /// A queue that is bound, and a binding.
    fn delete_some(&self, chance: &mut Chance) {
        for _ in 0..20 {
            let queue = format!("heap-{}", chance.below(QUEUES));
            let binding = format!("bindings/{VHOST}/e/{EXCHANGE}/q/{queue}/k.0.%23");
            self.ask("DELETE", &binding, &Value::Null);
            self.ask("DELETE", &format!("queues/{VHOST}/{queue}"), &Value::Null);
        }
    }

    fn look(&self, chance: &mut Chance) {
        let all = [
            format!("queues/{VHOST}"),
            format!("bindings/{VHOST}"),
            format!("exchanges/{VHOST}/{EXCHANGE}/bindings/source"),
            format!("definitions/{VHOST}"),
            "definitions".to_owned(),
            "queues?page=1&page_size=100&sort=messages&sort_reverse=true".to_owned(),
        ];
        let path = &all[chance.below(all.len() as u64) as usize];
        self.ask("GET", path, &Value::Null);
    }
}

/// Everything in it.
fn definitions(chance: &mut Chance) -> Value {
    let queue = |number: u64| json!({"name": format!("heap-{number}"), "durable": true, "auto_delete": false, "arguments": {}});
    let binding = |number: u64| {
        json!({
            "source": EXCHANGE, "destination": format!("heap-{}", number / BINDINGS), "destination_type": "queue",
            "routing_key": format!("k.{}.#", number % BINDINGS), "arguments": {},
        })
    };
    // Sometimes a part, into what is there.
    let queues = QUEUES / (1 + chance.below(2));
    json!({
        "exchanges": [{"name": EXCHANGE, "type": "topic", "durable": true, "auto_delete": false, "internal": false, "arguments": {}}],
        "queues": (0..queues).map(queue).collect::<Value>(),
        "bindings": (0..queues * BINDINGS).map(binding).collect::<Value>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is deleted is larger than what one piece takes, or nothing long is ever under way.
    #[test]
    fn it_takes_many_pieces() {
        let pieces = |count: usize| count / 512;
        for seed in 0..10 {
            let all = definitions(&mut Chance::new(seed, 0));
            let (queues, bindings) = (all["queues"].as_array(), all["bindings"].as_array());
            let (queues, bindings) = (queues.unwrap(), bindings.unwrap());
            assert!(pieces(queues.len()) >= 2 && pieces(bindings.len()) >= 4);
            // Each is bound, and nothing to what is not there.
            let last = |list: &[Value], key: &str| list.last().unwrap()[key].clone();
            assert_eq!(last(queues, "name"), last(bindings, "destination"));
        }
    }
}
