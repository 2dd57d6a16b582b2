//! The tool against a node that plays back answers, over a real socket: what it asks, what it prints, how it
//! ends. What it prints is what the tools of RabbitMQ 4.0 print for the same, but where a comment says so.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use clap::{FromArgMatches as _, Parser as _};
use leveret_ctl::{Code, CtlArgs, Fault, Local};

#[derive(clap::Parser)]
struct Tool {
    #[command(flatten)]
    args: CtlArgs,
}

/// What the node is asked and what it answers: method and path, status, document.
type Turn = (&'static str, u16, &'static str);

const QUEUES: &str = r#"[{"name":"q2","messages":1},{"name":"q1","messages":0}]"#;
const USER: &str = r#"{"name":"bob","password_hash":"h","hashing_algorithm":"a","tags":["t"]}"#;
const CLUSTER: &[(&str, u16, &str)] = &[
    (
        "GET /api/leveret/cluster",
        200,
        r#"{"cluster_id":"c","standing":"leads","leader":"a@b","reason":null,"nodes":[
            {"name":"a@b","running":true,"leads":true,"why_not":null,"version":"0.2.0","figures":{"processors":9,"disk_free_alarm":true,"disk_hangs":true}},
            {"name":"b@b","running":true,"leads":false,"why_not":null,"clock_ahead_s":-3600,"version":"0.2.1","figures":{"processors":4,"mem_alarm":true,"disk_free_alarm":true,"disk_hangs":false}},
            {"name":"c@b","running":false,"leads":false,"why_not":"its clock differs","version":"0.2.1","figures":{"mem_alarm":true}},
            {"name":"d@b","running":true,"joins":true,"figures":{"refill_here":7,"refill_of":90}}],
          "groups":[{"group":0,"term":3,"leader":"a@b","last":9,"agreed":9,"matched":[["b@b",9],["c@b",3]],"left_out":[{"node":"c@b","reason":"does not answer"}]},
                    {"group":1,"term":4,"leader":null,"last":2,"agreed":2,"matched":[]}]}"#,
    ),
    (
        "GET /api/leveret/status",
        200,
        r#"{"node":"a@b","processors":2,"product_name":"RabbitMQ","product_version":"3.13.7","rabbitmq_version":"3.13.7","alarms":[]}"#,
    ),
    ("GET /api/feature-flags?columns=name,state", 200, r#"[{"name":"f","state":"enabled"}]"#),
    ("GET /api/cluster-name", 200, r#"{"name":"shop"}"#),
    ("GET /api/overview?columns=cluster_tags", 200, r#"{"cluster_tags":{}}"#),
];
const NONE: &str = r#"{"error":"Object Not Found","reason":"Not Found"}"#;

#[test]
#[rustfmt::skip] // a table
fn lists() {
    let queues = &[("GET /api/queues/%2F?columns=name,messages", 200, QUEUES)];
    check("list_queues", queues, "Timeout: 60.0 seconds ...\nListing queues for vhost / ...\nname\tmessages\nq2\t1\nq1\t0\n");
    check("-q list_queues", queues, "name\tmessages\nq2\t1\nq1\t0\n");
    check("-s list_queues", queues, "q2\t1\nq1\t0\n");
    check("list_queues --formatter json", queues, "[\n{\"name\":\"q2\",\"messages\":1}\n,{\"name\":\"q1\",\"messages\":0}\n]\n");
    check("list_queues -p v name --no-table-headers -q",
        &[("GET /api/queues/v?columns=name", 200, QUEUES)], "q2\nq1\n");
    check("list_bindings -q",
        &[("GET /api/bindings/%2F?columns=source,destination,destination_type,routing_key,arguments", 200,
            r#"[{"source":"amq.topic","destination":"q1","destination_type":"queue","routing_key":"a.b","arguments":{}}]"#)],
        "source_name\tsource_kind\tdestination_name\tdestination_kind\trouting_key\targuments\n\
         amq.topic\texchange\tq1\tqueue\ta.b\t[]\n");
    check("list_users",
        &[("GET /api/users?columns=name,tags", 200, r#"[{"name":"guest","tags":["administrator"]}]"#)],
        "Listing users ...\nuser\ttags\nguest\t[administrator]\n");
    check("list_policies",
        &[("GET /api/policies/%2F?columns=vhost,name,pattern,apply-to,definition,priority", 200,
            r#"[{"vhost":"/","name":"p1","pattern":"^q","apply-to":"all","definition":{"max-length":5},"priority":0}]"#)],
        "Listing policies for vhost \"/\" ...\nvhost\tname\tpattern\tapply-to\tdefinition\tpriority\n/\tp1\t^q\tall\t{\"max-length\":5}\t0\n");
    check("list_vhost_limits",
        &[("GET /api/vhost-limits/%2F", 200, r#"[{"vhost":"/","value":{"max-connections":5}}]"#)],
        "Listing limits for vhost \"/\" ...\n{\"max-connections\":5}\n");
    check("export_definitions --for rabbitmq -",
        &[("GET /api/definitions?for=rabbitmq", 200, r#"{"queues":[],"left_out":["policy 'p'"]}"#)], "{\n  \"queues\": []\n}\n");
    check("export_definitions --for rabbitmq-4 -", &[("GET /api/definitions?for=rabbitmq-4", 200, r#"{"queues":[]}"#)], "{\n  \"queues\": []\n}\n");
    check("-q cluster_status",
        &[("GET /api/leveret/cluster", 200, r#"{"standing":"alone"}"#),
          ("GET /api/leveret/status", 200, r#"{"node":"a@b","processors":2,"product_name":"RabbitMQ","product_version":"3.13.7","leveret_version":"0.1.0"}"#),
          ("GET /api/feature-flags?columns=name,state", 200, r#"[{"name":"f","state":"enabled"}]"#),
          ("GET /api/cluster-name", 200, r#"{"name":"shop"}"#),
          ("GET /api/overview?columns=cluster_tags", 200, r#"{"cluster_tags":{"region":"eu"}}"#)],
        "Basics\n\nCluster name: shop\nTotal CPU cores available cluster-wide: 2\n\n\
         Cluster Tags\n\nregion: eu\n\nDisk Nodes\n\na@b\n\nRunning Nodes\n\na@b\n\n\
         Versions\n\na@b: RabbitMQ 3.13.7 on Leveret 0.1.0\n\nCPU Cores\n\nNode: a@b, available CPU cores: 2\n\n\
         Maintenance status\n\nNode: a@b, status: not under maintenance\n\nAlarms\n\n(none)\n\nNetwork Partitions\n\n(none)\n\n\
         Listeners\n\n(none)\n\nFeature flags\n\nFlag: f, state: enabled\n");
    check("-q cluster_status", CLUSTER,
        "Basics\n\nCluster name: shop\nTotal CPU cores available cluster-wide: 6\n\n\
         Cluster Tags\n\n(none)\n\nDisk Nodes\n\na@b\nb@b\nc@b\n\nRunning Nodes\n\na@b\nb@b\n\n\
         Versions\n\na@b: RabbitMQ 3.13.7 on Leveret 0.2.0\nb@b: RabbitMQ 3.13.7 on Leveret 0.2.1\n\n\
         CPU Cores\n\nNode: a@b, available CPU cores: 2\nNode: b@b, available CPU cores: 4\n\n\
         Maintenance status\n\nNode: a@b, status: not under maintenance\nNode: b@b, status: unknown\n\n\
         Alarms\n\nDisk alarm on node a@b: a write has been under way for seconds\nMemory alarm on node b@b\nFree disk space alarm on node b@b\nClock of node b@b: 3600 s behind that of node a@b\n\nNetwork Partitions\n\n(none)\n\nListeners\n\n(none)\n\n\
         Feature flags\n\nFlag: f, state: enabled\n\n\
         Leader\n\nNode: a@b, leads all groups and serves all clients\nNode: c@b, not there: its clock differs\nNode: d@b, joins: no member until it has all\nNode: d@b, gets files that it lacks: 7 of 90 bytes\n\n\
         Groups\n\nGroup: names, leader: a@b, term: 3, batches agreed upon: 9, b@b lacks 0, c@b lacks 6, confirms by all members leave out c@b, which does not answer\n\
         Group: shard 0, leader: none, term: 4, batches agreed upon: 2\n");
    // One that follows, while nobody leads, has what it knows itself.
    let waits = &[
        ("GET /api/leveret/cluster", 200, r#"{"standing":"waits","leader":null,"reason":"no node leads the cluster now: 1 of 2 nodes is there","nodes":[{"name":"a@b","running":true,"version":"0.2.0"},{"name":"b@b","running":false}],"groups":[]}"#),
        ("GET /api/leveret/status", 200, r#"{"node":"a@b","processors":2,"product_name":"RabbitMQ","product_version":"3.13.7","rabbitmq_version":"3.13.7"}"#),
        ("GET /api/feature-flags?columns=name,state", 503, "{}"),
        ("GET /api/cluster-name", 503, "{}"),
        ("GET /api/overview?columns=cluster_tags", 503, "{}")];
    check("-q cluster_status", waits,
        "Basics\n\nCluster name: \nTotal CPU cores available cluster-wide: 2\n\n\
         Cluster Tags\n\n(none)\n\nDisk Nodes\n\na@b\nb@b\n\nRunning Nodes\n\na@b\n\n\
         Versions\n\na@b: RabbitMQ 3.13.7 on Leveret 0.2.0\n\nCPU Cores\n\nNode: a@b, available CPU cores: 2\n\n\
         Maintenance status\n\nNode: a@b, status: not under maintenance\n\nAlarms\n\n(none)\n\nNetwork Partitions\n\n(none)\n\n\
         Listeners\n\n(none)\n\nFeature flags\n\n(none)\n\n\
         Leader\n\nno node leads the cluster now: 1 of 2 nodes is there\nNode: b@b, not there\n\nGroups\n\n(none)\n");
    check("-q cluster_status --formatter json", waits,
        "{\"alarms\":[],\"cluster_id\":null,\"cluster_name\":null,\"cluster_tags\":{},\"cpu_cores\":{\"a@b\":2},\
         \"disk_nodes\":[\"a@b\",\"b@b\"],\"feature_flags\":[],\"groups\":[],\"joining_nodes\":[],\"leader\":null,\"listeners\":{\"a@b\":null},\
         \"maintenance_status\":{\"a@b\":\"not under maintenance\"},\"partitions\":{},\"ram_nodes\":[],\
         \"reason\":\"no node leads the cluster now: 1 of 2 nodes is there\",\"running_nodes\":[\"a@b\"],\"standing\":\"waits\",\
         \"versions\":{\"a@b\":{\"rabbitmq_version\":\"3.13.7\"}}}\n");
    check("list_unresponsive_queues", &[("GET /api/health/checks/virtual-hosts", 200, r#"{"status":"ok"}"#)],
        "Listing unresponsive queues for vhost / ...\n");
}

#[test]
#[rustfmt::skip] // a table
fn changes() {
    check("add_user bob secret",
        &[("GET /api/users/bob", 404, NONE), (r#"PUT /api/users/bob {"password":"secret","tags":""}"#, 201, "")],
        "Adding user \"bob\" ...\nDone. Don't forget to grant the user permissions to some virtual hosts! See 'rabbitmqctl help set_permissions' to learn more.\n");
    check("set_user_tags bob monitoring management",
        &[("GET /api/users/bob", 200, USER),
          (r#"PUT /api/users/bob {"hashing_algorithm":"a","password_hash":"h","tags":["monitoring","management"]}"#, 204, "")],
        "Setting tags for user \"bob\" to [monitoring, management] ...\n");
    check("change_password bob new",
        &[("GET /api/users/bob", 200, USER), (r#"PUT /api/users/bob {"password":"new","tags":["t"]}"#, 204, "")],
        "Changing password for user \"bob\" ...\n");
    check("-p v delete_queue q-1 --if-empty",
        &[("GET /api/queues/v/q%2D1?columns=messages_ready", 200, r#"{"messages_ready":3}"#),
          ("DELETE /api/queues/v/q%2D1?if-empty=true&if-unused=false", 204, "")],
        "Deleting queue 'q-1' on vhost 'v' if queue is empty ...\nQueue was successfully deleted with 3 ready messages\n");
    check("purge_queue q --count 3", &[("DELETE /api/queues/%2F/q/contents?count=3", 204, "")],
        "Purging queue 'q' in vhost '/' ...\n");
    check("-s move_messages q --to-exchange x --routing-key k --count 2",
        &[(r#"POST /api/queues/%2F/q/move {"count":2,"routing_key":"k","to_exchange":"x"}"#, 200, r#"{"moved":1,"refused":0,"unrouted":1}"#)],
        "moved = 1\nrefused = 0\nunrouted = 1\n");
    check("-s set_queue_arguments q {\"x-max-length\":5,\"x-expires\":null}",
        &[(r#"PATCH /api/queues/%2F/q/arguments {"x-expires":null,"x-max-length":5}"#, 204, "")], "");
    check("pause_queue q", &[("PUT /api/queues/%2F/q/pause null", 204, "")],
        "Pausing queue 'q' in vhost '/' ...\n");
    check("-p v resume_queue q", &[("PUT /api/queues/v/q/resume null", 204, "")],
        "Resuming queue 'q' in vhost 'v' ...\n");
    check("-q trace_path -p v",
        &[("GET /api/leveret/path/v", 200, r#"{"tracing": true, "steps": [
            {"step": "published", "at_us": 5000, "after_us": 0, "number": 2, "exchange": "e", "routing_key": "k", "queues": ["a", "b"], "connection": "c", "channel": 1},
            {"step": "acked", "at_us": 6500, "after_us": 1500, "delivery_tag": 7, "multiple": false, "connection": "d", "channel": 3}]}"#)],
        "at\tafter\tstep\twhat\tchannel\n5.000\t0.000\tpublished\tnumber 2, exchange 'e', key 'k', for a, b\tc (1)\n\
         6.500\t1.500\tacked\ttag 7\td (3)\n");
    check("trace_on", &[("GET /api/vhosts/%2F", 200, "{}"), (r#"PUT /api/vhosts/%2F {"tracing":true}"#, 204, "")],
        "Starting tracing for vhost \"/\" ...\n");
    check("enable_vhost_deletion_protection v", &[("POST /api/vhosts/v/deletion/protection {}", 204, "")],
        "Protecting vhost \"v\" from deletion ...\n");
    check("-s set_policy ttl ^q {\"message-ttl\":5} --priority -1",
        &[(r#"PUT /api/policies/%2F/ttl {"apply-to":"all","definition":{"message-ttl":5},"pattern":"^q","priority":-1}"#, 204, "")],
        "");
    // What imports took once has no name, and neither has the default exchange.
    check("delete_user ", &[("DELETE /api/users/", 204, "")], "Deleting user \"\" ...\n");
    check("-s clear_policy ", &[("DELETE /api/policies/%2F/", 204, "")], "");
    check("-s clear_operator_policy ", &[("DELETE /api/operator-policies/%2F/", 204, "")], "");
    check("-s clear_parameter shovel ", &[("DELETE /api/parameters/shovel/%2F/", 204, "")], "");
    check("-s clear_global_parameter ", &[("DELETE /api/global-parameters/", 204, "")], "");
    for (words, request) in [
        ("-s clear_topic_permissions bob ", "DELETE /api/topic-permissions/%2F/bob/amq.default"),
        ("-s clear_topic_permissions bob x", "DELETE /api/topic-permissions/%2F/bob/x"),
    ] {
        check(words, &[("GET /api/users/bob", 200, USER), ("GET /api/vhosts/%2F", 200, "{}"), (request, 204, "")], "");
    }
    check("set_vhost_limits {\"max-connections\":5}",
        &[(r#"PUT /api/vhost-limits/%2F/max-connections {"value":5}"#, 204, ""),
          ("DELETE /api/vhost-limits/%2F/max-queues", 204, ""),
          ("DELETE /api/vhost-limits/%2F/max-publish-rate", 204, ""),
          ("DELETE /api/vhost-limits/%2F/max-publish-bytes-rate", 204, ""),
          ("DELETE /api/vhost-limits/%2F/max-deliver-rate", 204, "")],
        "Setting vhost limits to \"{\"max-connections\":5}\" for vhost \"/\" ...\n");
    check("close_connection <connection.7@9> bye",
        &[("DELETE /api/connections/%3Cconnection%2E7%409%3E", 204, "")],
        "Closing connection <connection.7@9>, reason: bye...\n");
    check("close_all_connections --limit 1 bye",
        &[("GET /api/vhosts/%2F/connections?columns=pid", 200, r#"[{"pid":"<connection.7>"},{"pid":"<connection.8>"}]"#),
          ("DELETE /api/connections/%3Cconnection%2E7%3E", 204, "")],
        "Closing 1 connections in vhost /, reason: bye...\nClosed 1 connections\n");
    check("set_vm_memory_high_watermark absolute 1GB",
        &[(r#"PUT /api/leveret/watermarks/memory {"absolute":1000000000}"#, 204, "")],
        "Setting memory threshold on rabbit@here to 1GB bytes ...\n");
    check("version", &[], "3.13.7\n");
    check("enable_feature_flag all", &[("PUT /api/feature-flags/all/enable null", 204, "")], "Enabling all feature flags ...\n");
    check("clear_user_limits bob all",
        &[("DELETE /api/user-limits/bob/max-connections", 204, ""), ("DELETE /api/user-limits/bob/max-channels", 204, ""),
          ("DELETE /api/user-limits/bob/max-publish-rate", 204, ""), ("DELETE /api/user-limits/bob/max-publish-bytes-rate", 204, ""),
          ("DELETE /api/user-limits/bob/max-deliver-rate", 204, "")],
        "Clearing all limits for user \"bob\" ...\n");
    check("set_disk_free_limit mem_relative 1.5",
        &[(r#"PUT /api/leveret/watermarks/disk {"relative":1.5}"#, 204, "")],
        "Setting disk free limit on rabbit@here to 1.5 times the total RAM ...\n");
    check("update_vhost_metadata v1 --description dd",
        &[("GET /api/vhosts/v1", 200, "{}"), (r#"PUT /api/vhosts/v1 {"description":"dd"}"#, 204, "")],
        "Updating metadata of vhost \"v1\" ...\n");
    check("eval rabbit_alarm:set_alarm({{resource_limit, disk, node()}, []}).",
        &[(r#"PUT /api/leveret/watermarks/disk {"absolute":18446744073709551615}"#, 204, "")], "ok\n");
    check("eval rabbit_alarm:clear_alarm({resource_limit, disk, node()}).",
        &[("DELETE /api/leveret/watermarks/disk", 204, "")], "ok\n");
    check("eval rabbit_nodes:reached_target_cluster_size().",
        &[("GET /api/health/checks/reached-target-cluster-size", 200, "{}")], "true\n");
}

const TLS: &str = r#"{"versions": ["tlsv1.3", "tlsv1.2"], "cipher_suites": ["ONE", "TWO"], "enabled_cipher_suites": ["ONE"],
    "listeners": [{"protocol": "amqp/ssl", "interface": "::1", "port": 5671, "certfile": "c.pem", "cacertfile": null,
        "certificates": [{"subject": "CN=a", "issuer": "CN=b", "serial_number": "1f", "validity": "x - y"}]}]}"#;

#[test]
#[rustfmt::skip] // a table
fn looks() {
    check("message_size_stats",
        &[("GET /api/leveret/message-sizes", 200, r#"{"bytes": 9, "sizes": [{"at_most": 100, "count": 3}, {"at_most": 1000, "count": 1}]}"#)],
        "Gathering message size statistics across the cluster using node rabbit@here ...\nMessage Size\tCount\tPercentage\n\
         below 100B\t3\t75.00\nbetween 100B and 1KB\t1\t25.00\n");
    check("-q runtime_thread_stats -i 0",
        &[("GET /api/leveret/threads", 200, r#"{"at_ms": 1000, "threads": [{"id": 1, "name": "a", "user_ms": 10, "system_ms": 0}]}"#),
          ("GET /api/leveret/threads", 200, r#"{"at_ms": 3000, "threads": [{"id": 1, "name": "a", "user_ms": 110, "system_ms": 20},
              {"id": 2, "name": "b", "user_ms": 1000, "system_ms": 1000}]}"#)],
        "thread\tid\tuser\tsystem\tsleep\nb\t2\t50.00\t50.00\t0.00\na\t1\t5.00\t1.00\t94.00\n");
    check("-q tls_versions --formatter json", &[("GET /api/leveret/tls", 200, TLS)], "{\"versions\":[\"tlsv1.3\",\"tlsv1.2\"]}\n");
    check("-q cipher_suites", &[("GET /api/leveret/tls", 200, TLS)], "ONE\n");
    check("-q cipher_suites --all", &[("GET /api/leveret/tls", 200, TLS)], "ONE\nTWO\n");
    check("-q certificates", &[("GET /api/leveret/tls", 200, TLS)],
        "amqp/ssl on ::1:5671, certfile c.pem, cacertfile \n  CN=a\n    issued by CN=b, serial number 1f, valid x - y\n");
    check("-q peek q 1001",
        &[("GET /api/queues/%2F/q/messages?from=0&limit=1000&truncate=0&columns=next", 200, r#"{"next": 1007}"#),
          ("GET /api/queues/%2F/q/messages?from=1007&limit=1&truncate=64", 200,
           r#"{"messages": [{"payload": "p", "exchange": "e", "routing_key": "k", "delivery_count": 2,
               "properties": {"priority": 3, "headers": {"h": 1}}}]}"#)],
        "keys\tvalues\npayload (max 64 bytes)\tp\nexchange\te\nrouting_keys\t[k]\nheader.h\t1\npriority\t3\nheader.x-delivery-count\t2\n");
    check("consume_event_stream -d 0 --pattern ^queue",
        &[("GET /api/events?since=18446744073709551615", 200, r#"{"events": [], "last": 7}"#),
          ("GET /api/events?since=7", 200, r#"{"last": 9, "events": [{"name": "queue.created", "facts": {"name": "q"}},
              {"name": "user.created", "facts": {}}]}"#)],
        "{\"event\":\"queue.created\",\"name\":\"q\"}\n");
    check("log_tail_stream -d 0",
        &[("GET /api/leveret/log?lines=0", 200, r#"{"lines": [], "end": 5}"#),
          ("GET /api/leveret/log?from=5", 200, r#"{"lines": ["one", "two"], "end": 13}"#)],
        "one\ntwo\n");
    check("list_policies_with_classic_queue_mirroring -s",
        &[("GET /api/policies", 200, r#"[{"vhost": "v", "name": "m", "pattern": ".*", "apply-to": "all", "priority": 0, "definition": {"ha-mode": "all"}},
            {"vhost": "v", "name": "n", "definition": {"max-length": 1}}]"#)],
        "v\tm\t.*\tall\t{\"ha-mode\":\"all\"}\t0\n");
    check("rotate_logs", &[("POST /api/leveret/log/rotate null", 204, "")], "Rotating logs for node rabbit@here ...\n");
    check("-q set_log_level debug", &[(r#"PUT /api/leveret/log/level {"level":"debug"}"#, 204, "")], "");
    check("-q autocomplete list_qu", &[], "list_queues\n");
    let nodes: &[_] = &[("GET /api/leveret/cluster", 200, r#"{"nodes": [{"name": "rabbit@here"}]}"#)];
    check("grow rabbit@here all", nodes, "");
    check("add_member q rabbit@here", nodes, "");
    let nodes: &[_] = &[("GET /api/leveret/cluster", 200, r#"{"nodes": [{"name": "rabbit@here"}, {"name": "rabbit@b"}]}"#)];
    check("add_member q rabbit@b", nodes, "");
    check("grow_to_count 2 all", nodes, "");
    let critical = "GET /api/health/checks/node-is-quorum-critical";
    check("-q check_if_node_is_quorum_critical", &[(critical, 200, r#"{"status": "ok"}"#)],
        "Node rabbit@here reported no quorum queues with minimum quorum\n");
    check("-q check_if_node_is_quorum_critical", &[(critical, 200, r#"{"status": "ok", "reason": "single node cluster"}"#)],
        "Node rabbit@here seems to be the only one in a single node cluster, the check does not apply\n");
    check("-q await_online_quorum_plus_one", &[(critical, 503, r#"{"status": "failed"}"#), (critical, 200, r#"{"status": "ok"}"#)], "");
    let (cluster, two) = ("GET /api/leveret/cluster", r#"{"nodes": [{"running": true}, {"running": true}, {"running": false}]}"#);
    let follows = r#"{"node": "rabbit@here", "standing": "follows", "nodes": [{"name": "rabbit@here", "joins": false}, {"name": "rabbit@there"}]}"#;
    check("-q join_cluster rabbit@there", &[("GET /api/leveret/cluster", 200, follows)],
        "The node is already a member of this cluster\n");
    check("-q await_online_nodes 2", &[(cluster, 200, r#"{"nodes": [{"running": true}]}"#), (cluster, 200, two)], "");
    // As RabbitMQ's `encode` made it.
    check("decode {encrypted,<<\"37gYgVR5f3by1n8K0688LLJ6n7CDDKHIf9CKRq++vN4FZctkCWUA9LPlS937qK6V\">>} pass", &[],
        "Decrypting an advanced.config (Erlang term) value...\n<<\"se cret\">>\n");
    check("-q decrypt_conf_value encrypted:lrEpdWHa7LNhdLmN123O0TZDvCntD/axbMZEVBL0Xj+oJ3dZ6ERgsDiasPSD6qH6 pass", &[],
        "\"se cret\"\n");
    check("-q list_ciphers", &[], "[aes_128_cbc,aes_192_cbc,aes_256_cbc]\n");
    check("-q --formatter json list_hashes", &[], "[\"sha256\",\"sha384\",\"sha512\"]\n");
    check("-q list_mqtt_connections", &[("GET /api/version", 200, "{}")], "");
}

#[test]
#[rustfmt::skip] // a table
fn refusals() {
    refused("rotate_logs", &[("POST /api/leveret/log/rotate null", 404, NONE)], Code::Unavailable, "logs to no file");
    refused("set_log_level loud", &[], Code::Unavailable, "level loud is not supported");
    refused("encode <<\"x\">> secret --cipher rot13", &[], Code::Usage, "cipher is not supported");
    refused("encode <<\"x\">> secret --hash md5", &[], Code::Usage, "hash is not supported");
    refused("encode <<\"x\">> secret --iterations 0", &[], Code::Usage, "number of iterations");
    refused("decode encrypted:37gYgVR5f3by1n8K0688LLJ6n7CDDKHIf9CKRq++vN4FZctkCWUA9LPlS937qK6V other", &[],
        Code::Unavailable, "Is the passphrase correct?");
    refused("stream_status s", &[], Code::Unavailable, "streams are not there");
    refused("erlang_version", &[], Code::Unavailable, "not written in Erlang");
    refused("peek q 0", &[], Code::Usage, "positive integer");
    refused("peek q 1", &[("GET /api/queues/%2F/q/messages?from=0&limit=1&truncate=64", 200, r#"{"messages": []}"#)],
        Code::Software, "does not have a message at that position");
    refused("peek q 2", &[("GET /api/queues/%2F/q/messages?from=0&limit=1&truncate=0&columns=next", 200, r#"{"next": null}"#)],
        Code::Software, "does not have a message at that position");
    refused("peek no 1", &[("GET /api/queues/%2F/no/messages?from=0&limit=1&truncate=64", 404, NONE)],
        Code::Software, "Target queue was not found in virtual host '/'");
    refused("transfer_leadership q n",
        &[("GET /api/queues/%2F/q?columns=type,leader", 200, r#"{"type": "classic"}"#)],
        Code::Software, "non-quorum queue");
    refused("transfer_leadership q rabbit@here",
        &[("GET /api/queues/%2F/q?columns=type,leader", 200, r#"{"type": "quorum", "leader": "rabbit@here"}"#)],
        Code::Software, "already the leader");
    refused("consume_event_stream --pattern (", &[("GET /api/events?since=18446744073709551615", 200, "{}")], Code::Usage, "the pattern");
    refused("delete_user x", &[("DELETE /api/users/x", 404, NONE)], Code::NoUser, "User \"x\" does not exist");
    refused("add_user bob x", &[("GET /api/users/bob", 200, USER)], Code::Software, "User \"bob\" already exists");
    refused("add_user bob x",
        &[("GET /api/users/bob", 404, NONE),
          (r#"PUT /api/users/bob {"password":"x","tags":""}"#, 400, r#"{"error":"bad_request","reason":"credential_validation_failed: minimum required password length is 5"}"#)],
        Code::Data, "minimum required password length is 5");
    refused("set_permissions nobody a b c", &[("GET /api/users/nobody", 404, NONE)], Code::NoUser, "User nobody does not exist");
    refused("-p no set_permissions guest a b c",
        &[("GET /api/users/guest", 200, USER), ("GET /api/vhosts/no", 404, NONE)], Code::Unavailable, "Virtual host no does not exist");
    refused("set_policy p ^q {\"x\":1}",
        &[(r#"PUT /api/policies/%2F/p {"apply-to":"all","definition":{"x":1},"pattern":"^q","priority":0}"#, 400,
            r#"{"error":"bad_request","reason":"Validation failed\n\n[{<<\"x\">>,1}] are not recognised policy settings\n"}"#)],
        Code::Unavailable, "are not recognised policy settings");
    refused("delete_queue q", &[("GET /api/queues/%2F/q?columns=messages_ready", 404, NONE)], Code::Usage, "No such queue was found");
    refused("delete_queue q --if-empty",
        &[("GET /api/queues/%2F/q?columns=messages_ready", 200, r#"{"messages_ready":1}"#),
          ("DELETE /api/queues/%2F/q?if-empty=true&if-unused=false", 400, r#"{"error":"bad_request","reason":"queue 'q' in vhost '/' not empty"}"#)],
        Code::Unavailable, "queue 'q' in vhost '/' not empty");
    refused("enable_feature_flag x",
        &[("PUT /api/feature-flags/x/enable null", 400, r#"{"error":"bad_request","reason":"there is no feature flag 'x'"}"#),
          ("GET /api/nodes?columns=name,leads", 200, r#"[{"name":"rabbit@here"}]"#)],
        Code::Usage, "This feature flag is not supported by node rabbit@here");
    refused("list_queues -p no", &[("GET /api/queues/no?columns=name,messages", 404, NONE)], Code::Data, "Virtual host 'no' does not exist");
    refused("purge_queue q", &[("DELETE /api/queues/%2F/q/contents", 404, NONE)], Code::Data, "Queue 'q' in vhost '/' does not exist");
    refused("clear_policy nope", &[("DELETE /api/policies/%2F/nope", 404, NONE)], Code::Unavailable, "Parameter does not exist");
    refused("check_port_listener 5998",
        &[("GET /api/health/checks/port-listener/5998", 503, r#"{"status":"failed","reason":"No active listener","missing":5998,"ports":[5672,15672]}"#)],
        Code::Unavailable, "No listener for port 5998 is active on node rabbit@here. Found listeners that use the following ports: 15672, 5672");
    // An empty word, in the words of RabbitMQ's tools for users.
    for (words, name) in [
        ("add_vhost ", "name"), ("delete_vhost ", "name"), ("add_user  p", "user"), ("change_password  p", "user"),
        ("set_permissions  a b c", "user"), ("set_user_limits  {\"max-channels\":5}", "user"), ("-p  list_queues", "vhost"), ("-p  trace_on", "vhost"),
        ("set_policy  ^q {}", "name"), ("set_parameter  n {}", "component_name"),
        ("set_parameter shovel  {}", "name"), ("purge_queue ", "queue"), ("delete_queue ", "queue name"),
        ("pause_queue ", "queue"), ("hash_password ", "password"), ("-p  clear_policy p", "vhost"), ("clear_parameter  n", "component_name"),
    ] {
        refused(words, &[], Code::Data, &format!("{name} cannot be an empty string"));
    }
    refused("delete_user ", &[("DELETE /api/users/", 404, NONE)], Code::NoUser, "User \"\" does not exist");
    refused("clear_policy ", &[("DELETE /api/policies/%2F/", 404, NONE)], Code::Unavailable, "Parameter does not exist");
    refused("add_vhost v", &[("PUT /api/vhosts/v {}", 400, r#"{"error":"bad_request","reason":"no"}"#)], Code::Data, "no");
    refused("list_users", &[("GET /api/users?columns=name,tags", 401, r#"{"error":"not_authorised","reason":"Not administrator user"}"#)], Code::NoPermission, "Not administrator user");
    refused("list_queues colour", &[], Code::Usage, "Info key(s) colour are not supported; there are name, durable,");
    refused("set_policy a b {", &[], Code::Unavailable, "Could not parse JSON document");
    refused("set_vm_memory_high_watermark 1.5", &[], Code::Data, "The threshold should be");
    refused("set_user_limits u {\"max-queues\":1}", &[], Code::Unavailable, "Unrecognised terms [{<<\"max-queues\">>,1}] in limits");
    refused("clear_user_limits u some", &[], Code::Usage, "a limit is one of");
    refused("await_online_nodes 2", &[("GET /api/leveret/cluster", 200, r#"{"standing": "alone", "nodes": [{"running": true}]}"#)],
        Code::Unavailable, "this node stands alone");
    let alone = ("GET /api/leveret/cluster", 200, r#"{"node": "rabbit@here", "standing": "alone", "nodes": [{"name": "rabbit@here"}]}"#);
    refused("grow rabbit@there all", &[alone], Code::Usage, "not a member of the cluster: this node stands alone");
    refused("grow_to_count 3 all", &[alone], Code::Usage, "one member, and no more");
    let three = ("GET /api/leveret/cluster", 200,
        r#"{"standing": "leads", "nodes": [{"name": "rabbit@a"}, {"name": "rabbit@b"}, {"name": "rabbit@c"}, {"name": "rabbit@d", "joins": true}]}"#);
    refused("add_member q rabbit@d", &[three], Code::Usage, "not a member of the cluster: its members keep a copy of every queue");
    refused("delete_member q rabbit@b", &[three], Code::Unavailable, "forget_cluster_node rabbit@b");
    refused("shrink rabbit@d", &[three], Code::Usage, "not a member of the cluster");
    refused("grow_to_count 4 all", &[three], Code::Usage, "on each node of the cluster: 3");
    let led = ("GET /api/queues/%2F/q?columns=type,leader", 200, r#"{"type": "quorum", "leader": "rabbit@a"}"#);
    refused("transfer_leadership q rabbit@a", &[led], Code::Software, "already the leader");
    refused("transfer_leadership q rabbit@b", &[led, three], Code::Unavailable, "one node leads all queues");
    refused("join_cluster rabbit@there", &[alone], Code::Unavailable, "in the lists of all nodes");
    refused("join_cluster rabbit@here", &[alone], Code::Software, "cannot cluster node with itself: rabbit@here");
    let joining = r#"{"node": "rabbit@here", "standing": "follows", "nodes": [{"name": "rabbit@here", "joins": true}, {"name": "rabbit@there"}]}"#;
    refused("join_cluster rabbit@there", &[("GET /api/leveret/cluster", 200, joining)], Code::Unavailable, "in the lists of all nodes");
    refused("forget_cluster_node --offline rabbit@there", &[], Code::Unavailable, "which has to run");
    let gone = "DELETE /api/leveret/cluster/nodes/rabbit%40there";
    refused("forget_cluster_node rabbit@there", &[(gone, 404, r#"{"error":"not_found","reason":"The node selected is not in the cluster."}"#)],
        Code::Unavailable, "The node selected is not in the cluster.");
    refused("forget_cluster_node rabbit@there", &[(gone, 412, r#"{"error":"precondition_failed","reason":"node rabbit@there is running: it has to be stopped"}"#)],
        Code::Unavailable, "is running");
    refused("eval 1+1.", &[], Code::Unavailable, "not written in Erlang");
    refused("export_definitions --for rabbitmq-5 -", &[], Code::Usage, "--for knows rabbitmq and rabbitmq-4");
    refused("log_tail -N many", &[], Code::Usage, "number must be a whole number");
}

#[test]
fn nobody_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let nobody = dir.path().join("none.sock");
    let fault = run(&nobody, "ping").unwrap_err();
    assert_eq!(fault.code.exit_status(), 69);
    assert!(fault.text.contains("leveret serve") && fault.text.contains("--socket"), "{fault}");
    assert_eq!(run(&nobody, "-q stop --idempotent").unwrap(), "The node is no longer running\n");
    assert_eq!(run(&nobody, "await_startup -t 0").unwrap_err().code, Code::TempFail);
    assert_eq!(
        run(&nobody, "--uri http://a:b@nowhere.invalid:1 ping").unwrap_err().code,
        Code::NoHost
    );
    assert_eq!(run(&nobody, "--uri amqp://a:b@here ping").unwrap_err().code, Code::Usage);
}

/// However a node is not reached, the socket that was tried is named, and in one form.
#[test]
fn every_failure_names_the_socket() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.sock");
    let check = |words: &str, status: u8, why: &str| {
        let fault = run(&path, words).unwrap_err();
        assert_eq!(fault.code.exit_status(), status, "{fault}");
        let socket = path.display();
        let want = format!("cannot reach the node by the control socket {socket}: {why}");
        assert!(fault.text.starts_with(&want), "no {want:?} in {fault}");
    };
    check("ping", 69, "no node is running: nobody listens there\n");
    std::fs::write(&path, "no socket").unwrap();
    check("list_queues", 69, "no node is running: nobody listens there\n");
    std::fs::remove_file(&path).unwrap();
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| drop(listener.accept()));
        check("list_queues", 69, "the connection is lost: ");
    });
    // It is accepted by the system, and nobody answers.
    check("-t 1 list_queues", 75, "there was no answer in time");
    drop(listener);
    let below = dir.path().join("node.sock/below");
    let fault = run(&below, "ping").unwrap_err();
    assert!(fault.text.contains(&format!("control socket {}: ", below.display())), "{fault}");
    // What a node answers is no failure of the way.
    refused("delete_user x", &[("DELETE /api/users/x", 404, NONE)], Code::NoUser, "User");
    let fault = run(&path, "--uri http://a:b@127.0.0.1:1 ping").unwrap_err();
    let want = "cannot reach the node by the management API at 127.0.0.1:1: ";
    assert!(fault.text.starts_with(want), "{fault}");
}

/// A node reads its logs before it listens, and writes the last of them when it does so no more: it holds its directory
/// all the while.
#[test]
fn a_node_that_is_not_ready_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("leveret.sock");
    let lock = std::fs::File::create(dir.path().join("leveret.lock")).unwrap();
    assert!(run(&socket, "ping").unwrap_err().text.contains("no node is running"));
    lock.lock().unwrap();
    let fault = run(&socket, "ping").unwrap_err();
    assert_eq!(fault.code.exit_status(), 69);
    let process = format!("process {} ", std::process::id());
    for part in [&process, "is starting or stopping", "leveret.sock"] {
        assert!(fault.text.contains(part), "no {part:?} in {fault}");
    }
    // It is not gone, and it may come.
    assert_eq!(run(&socket, "-q stop --idempotent").unwrap_err(), fault);
    assert_eq!(run(&socket, "await_startup -t 0").unwrap_err().code, Code::TempFail);
    drop(lock);
    assert!(run(&socket, "ping").unwrap_err().text.contains("no node is running"));
}

/// A link of the name of one of RabbitMQ's tools has the commands of that tool.
#[test]
#[rustfmt::skip] // a table
fn tools_have_their_own_commands() {
    let check = |words: &str, want: bool| {
        let words: Vec<&str> = words.split(' ').collect();
        let tool = leveret_ctl::tool(words[0]).unwrap();
        let parsed = tool.try_get_matches_from(&words).and_then(|it| CtlArgs::from_arg_matches(&it));
        assert_eq!(parsed.is_ok(), want, "{words:?}");
    };
    check("rabbitmqctl list_queues name",                            true);
    check("rabbitmqctl -n rabbit@x add_user a b",                    true);
    check("rabbitmqctl check_alarms",                                false);
    check("rabbitmq-diagnostics check_alarms",                       true);
    check("rabbitmq-diagnostics -q ping",                            true);
    check("rabbitmq-diagnostics add_user a b",                       false);
    check("rabbitmq-diagnostics ping --socket s",                    true);
    check("rabbitmq-diagnostics --uri http://h ping --socket s",     false);
    check("rabbitmq-queues rebalance all",                           true);
    check("rabbitmq-plugins enable rabbitmq_management --offline",   true);
    check("rabbitmq-plugins list -m -e",                             true);
    check("rabbitmq-upgrade await_online_quorum_plus_one -t 5",      true);
    check("rabbitmq-upgrade drain",                                  true);
    check("rabbitmq-upgrade stop",                                   false);
    assert!(leveret_ctl::tool("rabbitmq-server").is_none());
}

/// Row by row: each tool has every command that RabbitMQ's tool of that name has.
#[test]
fn every_command_of_rabbitmqs_tools_is_there() {
    let mut missing = Vec::new();
    for row in include_str!("commands.txt").lines().filter(|row| !row.starts_with('#')) {
        let (tool, name) = row.split_once(' ').unwrap();
        let mut tool = leveret_ctl::tool(tool).unwrap_or_else(|| panic!("no tool {tool}"));
        tool.build();
        if tool.find_subcommand(name).is_none() {
            missing.push(row);
        }
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

#[track_caller]
fn check(words: &str, turns: &[Turn], output: &str) {
    assert_eq!(converse(words, turns).as_deref(), Ok(output), "{words}");
}

#[track_caller]
fn refused(words: &str, turns: &[Turn], code: Code, text: &str) {
    let fault = converse(words, turns).unwrap_err();
    assert_eq!(fault.code, code, "{words}: {fault}");
    assert!(fault.text.starts_with(text) || fault.text.contains(text), "{words}: {fault}");
}

/// Runs the tool against a node that expects these requests.
#[track_caller]
fn converse(words: &str, turns: &[Turn]) -> Result<String, Fault> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let wanted: Vec<_> = turns.iter().map(|(request, ..)| (*request).to_owned()).collect();
    let turns = turns.to_vec();
    let node = std::thread::spawn(move || {
        let mut asked = Vec::new();
        if turns.is_empty() {
            return asked;
        }
        let mut socket = BufReader::new(listener.accept().unwrap().0);
        for (_, status, body) in turns {
            let Some(request) = request(&mut socket) else { break };
            asked.push(request);
            let answer =
                format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            socket.get_mut().write_all(answer.as_bytes()).unwrap();
        }
        asked
    });
    let result = run(&path, words);
    // Should it not have connected at all, the node stops waiting for it.
    drop(UnixStream::connect(&path));
    assert_eq!(node.join().unwrap(), wanted, "{words}: {result:?}");
    result
}

/// Method and path of a request, and its body if it has one.
fn request(socket: &mut BufReader<UnixStream>) -> Option<String> {
    let mut head = String::new();
    let mut body_len = 0;
    loop {
        let mut line = String::new();
        if socket.read_line(&mut line).unwrap() == 0 {
            return None;
        }
        if let Some(len) = line.to_lowercase().strip_prefix("content-length:") {
            body_len = len.trim().parse().unwrap();
        }
        if head.is_empty() {
            head = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; body_len];
    socket.read_exact(&mut body).unwrap();
    let body = String::from_utf8(body).unwrap();
    Some(if body.is_empty() { head } else { format!("{head} {body}") })
}

fn run(socket: &Path, words: &str) -> Result<String, Fault> {
    let words = ["ctl"].into_iter().chain(words.split(' '));
    let tool = Tool::try_parse_from(words).unwrap();
    let local = Local {
        socket: socket.to_owned(),
        doubt: None,
        node: "rabbit@here".to_owned(),
        rabbitmq_version: "3.13.7",
    };
    let mut out = Vec::new();
    leveret_ctl::run(&tool.args, local, &mut out).map(|()| String::from_utf8(out).unwrap())
}
