//! `rabbitmqadmin` of Debian's package, unchanged: its whole set of commands against the management API.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use super::debian::{self, File};
use super::tools::{Counts, SuitePlace};

/// RabbitMQ as Debian 12 packages it.
const PACKAGE: File = File {
    path: "pool/main/r/rabbitmq-server/rabbitmq-server_3.10.8-1.1+deb12u1_all.deb",
    sha256: "b88e03a102134e3dbc1ba563e6f678eec29a500a933c00c68c71b45b778cd5b0",
};

/// Where the package keeps the program.
const PROGRAM: &str = "usr/lib/rabbitmq/lib/rabbitmq_server-3.10.8/plugins/\
                       rabbitmq_management-3.10.8/priv/www/cli/rabbitmqadmin";

/// One call: words, whether it succeeds, a part of what it prints. `@` stands for the suite's folder.
type Row = (&'static str, bool, &'static str);

#[rustfmt::skip] // a table
const ROWS: &[Row] = &[
    ("show overview",                                                  true,  "rabbitmq_version"),
    ("declare vhost name=ra",                                          true,  "vhost declared"),
    ("declare vhost name=ra tracing=false",                            true,  "vhost declared"),
    ("declare user name=ra password=p tags=management",                true,  "user declared"),
    ("declare user name=rb password_hash= tags=",                      true,  "user declared"),
    ("declare permission vhost=ra user=ra configure=.* write=.* read=.*", true, "permission declared"),
    ("list permissions",                                               true,  "ra"),
    ("list users name tags",                                           true,  "management"),
    ("list vhosts",                                                    true,  "ra"),
    ("list nodes",                                                     true,  "disc"),
    ("-V ra declare exchange name=x type=topic",                       true,  "exchange declared"),
    ("-V ra declare exchange name=x type=fanout",                      false, "inequivalent arg 'type'"),
    ("-V ra declare exchange name=i type=direct internal=true durable=false auto_delete=true", true, "declared"),
    ("-V ra list exchanges",                                           true,  "topic"),
    ("-V ra declare queue name=q durable=true",                        true,  "queue declared"),
    (r#"-V ra declare queue name=qq queue_type=quorum arguments={"x-delivery-limit":3}"#, true, "queue declared"),
    ("-V ra declare queue name=n node=rabbit@nowhere",                 false, "rabbit@nowhere"),
    ("-V ra declare binding source=x destination=q routing_key=a.#",   true,  "binding declared"),
    ("-V ra declare binding source=x destination=amq.fanout destination_type=exchange", true, "binding declared"),
    (r#"-V ra declare binding source=amq.headers destination=q arguments={"a":1}"#, true, "binding declared"),
    ("-V ra list bindings",                                            true,  "a.#"),
    ("-V ra publish routing_key=q payload=one",                        true,  "Message published"),
    ("-V ra publish exchange=x routing_key=b payload=lost",            true,  "NOT routed"),
    (r#"-V ra publish exchange=x routing_key=a.b payload=dHdv payload_encoding=base64 properties={"delivery_mode":2}"#, true, "Message published"),
    ("-V ra get queue=q count=2",                                      true,  "one"),
    ("-V ra get queue=q count=1 ackmode=ack_requeue_false",            true,  "one"),
    ("-V ra get queue=q ackmode=reject_requeue_false payload_file=@/payload", true, ""),
    ("-V ra get queue=none",                                           false, "Not found"),
    ("-V ra list queues name messages consumers",                      true,  "qq"),
    ("-f long -V ra list queues",                                      true,  "messages: "),
    ("-f raw_json -V ra list queues name",                             true,  r#""name":"q""#),
    ("-f pretty_json -V ra list queues name",                          true,  r#""name": "q""#),
    ("-f tsv -V ra list queues name",                                  true,  "name"),
    ("-f kvp -V ra list queues name",                                  true,  "name=\"q\""),
    ("-f bash -V ra list queues name",                                 true,  "q qq"),
    ("-S name -R -V ra list queues name",                              true,  "qq"),
    ("-d 3 list nodes",                                                true,  "rabbit@"),
    ("-V ra publish routing_key=q payload=two",                        true,  "Message published"),
    ("-V ra purge queue name=q",                                       true,  "queue purged"),
    ("-V ra purge queue name=none",                                    false, "Not found"),
    (r#"-V ra declare policy name=p pattern=^q definition={"max-length":7} priority=2 apply-to=queues"#, true, "policy declared"),
    (r#"-V ra declare policy name=bad pattern=( definition={"max-length":7}"#, false, "Validation failed"),
    ("-V ra list policies",                                            true,  "max-length"),
    (r#"-V ra declare operator_policy name=o pattern=^q definition={"max-length":5}"#, true, "operator_policy declared"),
    ("-V ra list operator_policies",                                   true,  "max-length"),
    (r#"-V ra declare parameter component=federation-upstream name=f value={"uri":"amqp://nowhere"}"#, false, "component federation-upstream not found"),
    ("-V ra list parameters",                                          true,  ""),
    ("declare vhost_limit vhost=ra name=max-queues value=9",           true,  "vhost_limit declared"),
    ("list vhost_limits",                                              true,  "max-queues"),
    ("list connections",                                               true,  ""),
    ("list channels",                                                  true,  ""),
    ("list consumers",                                                 true,  ""),
    ("close connection name=none",                                     false, "Not found"),
    ("export @/definitions.json",                                      true,  "Exported definitions"),
    ("-V ra export @/vhost.json",                                      true,  "Exported definitions"),
    ("delete vhost_limit vhost=ra name=max-queues",                    true,  "vhost_limit deleted"),
    ("-V ra delete parameter component=federation-upstream name=f",    false, "Not found"),
    ("-V ra delete operator_policy name=o",                            true,  "operator_policy deleted"),
    ("-V ra delete policy name=p",                                     true,  "policy deleted"),
    ("-V ra delete binding source=x destination_type=queue destination=q properties_key=a.%23", true, "binding deleted"),
    ("-V ra delete binding source=x destination_type=exchange destination=amq.fanout", true, "binding deleted"),
    ("-V ra delete queue name=q",                                      true,  "queue deleted"),
    ("-V ra delete queue name=q",                                      false, "Not found"),
    ("-V ra delete exchange name=x",                                   true,  "exchange deleted"),
    ("-V ra import @/vhost.json",                                      true,  "Uploaded definitions"),
    ("import @/definitions.json",                                      true,  "Uploaded definitions"),
    ("-V ra list queues",                                              true,  "qq"),
    ("-u ra -p p -V ra list queues",                                   true,  "qq"),
    ("-u ra -p p list users",                                          false, "Access refused"),
    ("-u ra -p wrong list queues",                                     false, "Access refused"),
    ("delete permission vhost=ra user=ra",                             true,  "permission deleted"),
    ("delete user name=ra",                                            true,  "user deleted"),
    ("delete user name=rb",                                            true,  "user deleted"),
    ("delete vhost name=ra",                                           true,  "vhost deleted"),
    ("list nonsense",                                                  false, ""),
];

/// Runs every row.
pub(super) fn rabbitmqadmin(place: &SuitePlace) -> anyhow::Result<Counts> {
    let program = program(place)?;
    let mut counts = Counts::default();
    for (words, succeeds, part) in ROWS {
        let words = words.replace('@', &place.dir.display().to_string());
        let words = words.replace(&format!("{}nowhere", place.dir.display()), "@nowhere");
        let mut command = Command::new("python3");
        command.arg(&program).args(["-H", "127.0.0.1", "-P", &place.http_port.to_string()]);
        command.args(words.split(' ')).env("HOME", &place.dir);
        let output = command.output()?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        let is_good = output.status.success() == *succeeds && text.contains(part);
        if !is_good {
            println!("  {words}: {}", text.trim());
        }
        counts.add(&words, is_good);
    }
    Ok(counts)
}

/// The program, out of the package.
fn program(place: &SuitePlace) -> anyhow::Result<PathBuf> {
    let unpacked = place.dir.join("package");
    let program = unpacked.join(PROGRAM);
    if !program.exists() {
        let package = place.dir.join("package.deb");
        debian::fetch(place, &PACKAGE, &package)?;
        fs::create_dir_all(&unpacked)?;
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("-x").arg(&package).arg(&unpacked);
        place.must("unpack", 2, &mut unpack)?;
    }
    Ok(program)
}
