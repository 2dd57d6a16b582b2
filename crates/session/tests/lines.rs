//! What the log says of queues that go: one line each, with who did it.

mod node;

use std::fmt::{self, Write as _};
use std::sync::{Arc, Mutex};

use leveret_amqp::method::{basic, channel, queue};
use node::{Node, SHARDS};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Keeps the messages of all events.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    /// Those of queues, since it was last asked.
    fn take(&self) -> Vec<String> {
        let all = std::mem::take(&mut *self.0.lock().unwrap());
        all.into_iter().filter(|line| line.contains("queue '")).collect()
    }
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(format!("{} ", event.metadata().level()));
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn logged(work: impl FnOnce(&Lines)) {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || work(&lines));
}

/// Two connections delete a queue at the same time: both are told that it is gone, and one of them did it.
#[test]
fn a_deletion_is_logged_once() {
    logged(|lines| {
        let mut node = Node::new();
        let (first, second) = (node.client(), node.client());
        node.declare(first, "q");
        (0..SHARDS).for_each(|shard| node.hold(shard));
        let delete = queue::Delete { queue: "q", ..Default::default() };
        assert_eq!(node.say(first, 1, &delete), "");
        assert_eq!(node.say(second, 1, &delete), "");
        (0..SHARDS).for_each(|shard| node.release(shard));
        assert_eq!(node.read(first), "1 queue.delete-ok 0");
        assert_eq!(node.read(second), "1 queue.delete-ok 0");
        let said = lines.take();
        assert_eq!(said.len(), 1, "{said:#?}");
        assert!(said[0].starts_with("INFO queue 'q' in vhost '/' deleted by user 'guest' from"));
    });
}

/// At debug level, as RabbitMQ has it: queues that come and go with clients are nobody's deed.
#[test]
fn queues_that_go_by_themselves_are_told_in_rabbitmqs_words() {
    logged(|lines| {
        let mut node = Node::new();
        let link = node.client();
        let auto_delete = queue::Declare { queue: "q", auto_delete: true, ..Default::default() };
        let consume = basic::Consume { queue: "q", consumer_tag: "t", ..Default::default() };
        node.say(link, 1, &auto_delete);
        node.say(link, 1, &consume);
        node.say(link, 1, &basic::Cancel { consumer_tag: "t", no_wait: false });
        let prefix = "DEBUG Deleting auto-delete queue 'q' in vhost '/' because";
        let want = format!("{prefix} its last consumer with tag 't' was cancelled");
        assert_eq!(lines.take(), [want]);

        node.say(link, 1, &auto_delete);
        node.say(link, 1, &consume);
        node.say(link, 1, &channel::Close { reply_code: 200, ..Default::default() });
        let want = format!("{prefix} all of its consumers were on a channel that was closed");
        assert_eq!(lines.take(), std::slice::from_ref(&want));

        let other = node.client();
        node.say(other, 1, &auto_delete);
        node.say(other, 1, &consume);
        node.say(other, 1, &queue::Declare { queue: "mine", exclusive: true, ..auto_delete });
        node.drop_link(other);
        let owner = format!(
            "DEBUG Deleting exclusive queue 'mine' in vhost '/' because its declaring connection \
             <connection.{other}> was closed"
        );
        let mut said = lines.take();
        said.sort();
        assert_eq!(said, [want, owner]);
    });
}
