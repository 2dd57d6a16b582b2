//! RabbitMQ's tools by their names, the tool over the network, what it leaves in the audit log, the support
//! report, and what the service manager is told.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Output};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leveret_client::{QueueDeclare, Uri};
use rustix::process::Signal;
use serde_json::json;

use crate::auth::request;
use crate::broker::{Broker, PATIENCE, close_reason, leveret, wait_until};

/// Links to the program under the names of the tools.
fn links(dir: &Path) {
    for tool in ["rabbitmqctl", "rabbitmq-diagnostics", "rabbitmq-plugins", "rabbitmq-upgrade"] {
        symlink(env!("CARGO_BIN_EXE_leveret"), dir.join(tool)).unwrap();
    }
}

fn run(command: &mut Command) -> (i32, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let told = [stdout, stderr].concat();
    (status.code().unwrap(), String::from_utf8(told).unwrap())
}

/// Whatever reads a file that a user names.
#[test]
fn files_without_an_end_are_refused() {
    let broker = Broker::start();
    let mut from_input = broker.ctl_command(&["import_definitions"]);
    let mut password = broker.ctl_command(&["add_user", "u"]);
    for command in [&mut from_input, &mut password] {
        command.stdin(File::open("/dev/zero").unwrap());
    }
    let uri = format!("amqp://guest:guest@{}/%2f", broker.address);
    let amqp = broker.address.port();
    let encrypted = format!("amqps://localhost:{amqp}/%2f?cacertfile=/dev/zero");
    let api = format!("https://guest:guest@localhost:{}", broker.listens("http").port());
    let mut all = [
        (broker.ctl_command(&["import_definitions", "/dev/zero"]), 65, "longer than 256 MiB"),
        (from_input, 65, "longer than 256 MiB"),
        (password, 65, "Password has more than 1024 KiB"),
        (
            leveret(&["ctl", "--uri", &api, "--cacertfile", "/dev/zero", "ping"]),
            65,
            "longer than 16 MiB",
        ),
        (leveret(&["perf", "--uri", &uri, "--queue-file", "/dev/zero"]), 1, "longer than 64 MiB"),
        (leveret(&["perf", "--uri", &uri, "--body", "/dev/zero"]), 1, "longer than 512 MiB"),
        (leveret(&["perf", "--uri", &encrypted]), 1, "longer than 16 MiB"),
    ];
    for (command, status, why) in &mut all {
        let (ended, told) = run(command);
        assert_eq!(ended, *status, "{command:?}: {told}");
        assert!(told.contains(*why), "{command:?}: {told}");
    }
}

#[test]
fn links_are_the_tools() {
    let broker = Broker::start();
    let dir = tempfile::tempdir().unwrap();
    links(dir.path());
    let run = |words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let mut command = Command::new(dir.path().join(words[0]));
        command.args(&words[1..]).env_clear().env("LEVERET_DATA_DIR", broker.dir.path());
        run(&mut command)
    };
    assert_eq!(
        run("rabbitmqctl -q list_users"),
        (0, "user\ttags\nguest\t[administrator]\n".into())
    );
    assert_eq!(run("rabbitmq-diagnostics -q ping"), (0, "Ping succeeded\n".into()));
    assert_eq!(run("rabbitmq-diagnostics -q check_running").0, 0);
    assert_eq!(run("rabbitmq-diagnostics check_port_connectivity").0, 0);
    let amqp = broker.address.port();
    assert_eq!(run(&format!("rabbitmq-diagnostics check_port_listener {amqp}")).0, 0);
    assert_eq!(run("rabbitmq-diagnostics check_port_listener 1").0, 69);
    assert_eq!(run("rabbitmq-plugins -q is_enabled rabbitmq_management").0, 0);
    assert_eq!(run("rabbitmq-plugins is_enabled rabbitmq_stomp").0, 69);
    // What is not there is not enabled in silence, with and without the node.
    for offline in ["", " --offline"] {
        let is_there =
            "rabbitmq_prometheus rabbitmq_auth_backend_ldap rabbitmq_top rabbitmq_tracing";
        assert_eq!(run(&format!("rabbitmq-plugins enable{offline} {is_there}")).0, 0);
        assert_eq!(run(&format!("rabbitmq-plugins is_enabled{offline} {is_there}")).0, 0);
        let (status, told) =
            run(&format!("rabbitmq-plugins enable{offline} rabbitmq_shovel rabbitmq_stomp"));
        assert_eq!(status, 65, "{told}");
        assert!(told.contains("were not found: rabbitmq_shovel, rabbitmq_stomp"), "{told}");
    }
    assert_eq!(run("rabbitmq-plugins disable rabbitmq_prometheus").0, 69);
    assert_eq!(run("rabbitmq-plugins disable rabbitmq_shovel").0, 0);
    assert_eq!(
        run("rabbitmq-plugins -q list -m -E ^rabbitmq_p"),
        (0, "rabbitmq_prometheus\n".into())
    );
    let (_, told) = run("rabbitmq-plugins -q list rabbitmq_(stomp|management)$");
    assert!(told.contains("[E*] rabbitmq_management 3.13.7\n[  ] rabbitmq_stomp\n"), "{told}");
    assert_eq!(run("rabbitmqctl enable_feature_flag all").0, 0);
    assert_eq!(run("rabbitmqctl fly").0, 64);
    // What does nothing here is told, and what is not there is refused.
    let (status, told) = run("rabbitmqctl -q set_policy m .* {\"ha-mode\":\"all\"}");
    assert_eq!((status, &*told), (0, "Warning: policy 'm': ha-mode has no effect here\n"));
    broker.log.wait_for("policy 'm': ha-mode has no effect here");
    let (status, told) = run("rabbitmqctl set_parameter shovel s {}");
    assert!(status != 0 && told.contains("component shovel not found"), "{status}: {told}");
    // Without a link the tool is the first word.
    let mut plain = leveret(&["rabbitmqctl", "-q", "list_vhosts"]);
    plain.env("LEVERET_DATA_DIR", broker.dir.path());
    assert_eq!(self::run(&mut plain), (0, "name\n/\n".into()));
}

/// `default_users`, `default_policies`, `default_limits` and a credential validator, at the first start and later.
#[test]
fn new_vhosts_have_what_the_configuration_says() {
    let broker = Broker::with(&[
        "default_users.shop.vhost_pattern=^shop",
        "default_users.shop.password=long enough",
        "default_users.shop.tags=monitoring,management",
        "default_users.shop.write=^out",
        "default_policies.operator.short.vhost_pattern=^(shop|/)",
        "default_policies.operator.short.queue_pattern=^q",
        "default_policies.operator.short.max_length=5",
        "default_policies.operator.short.message_ttl=10s",
        "default_limits.vhosts.all.max_queues=7",
        "default_pass=guest-guest",
        "credential_validator.validation_backend=rabbit_credential_validator_min_password_length",
        "credential_validator.min_length=8",
    ]);
    // By whatever way they are made.
    broker.told(&["add_vhost", "shop-1"]);
    let guest = format!("Basic {}", STANDARD.encode("guest:guest-guest"));
    assert_eq!(request(&broker, "PUT", "/api/vhosts/shop-2", &guest, "").0, 201);
    let file = tempfile::NamedTempFile::new().unwrap();
    let vhosts = json!({"vhosts": [{"name": "shop-3"}], "policies": []});
    std::fs::write(file.path(), vhosts.to_string()).unwrap();
    broker.told(&["import_definitions", &file.path().display().to_string()]);
    let vhosts = json!({"vhosts": [{"name": "shop-4"}]}).to_string();
    assert_eq!(request(&broker, "POST", "/api/definitions", &guest, &vhosts).0, 204);
    broker.told(&["add_vhost", "other"]);
    let limits = json!({"max-queues": 7}).to_string();
    for vhost in ["/", "shop-1", "shop-2", "shop-3", "shop-4", "other"] {
        let told = broker.told(&["-p", vhost, "list_vhost_limits"]);
        assert!(told.contains(&limits), "{vhost}: {told}");
        let told = broker.told(&["-p", vhost, "list_operator_policies"]);
        let policy =
            format!("{vhost}\tshort\t^q\tall\t{{\"max-length\":5,\"message-ttl\":10000}}\t0");
        assert_eq!(told.contains(&policy), vhost != "other", "{told}");
        let told = broker.told(&["-p", vhost, "list_permissions"]);
        assert_eq!(told.contains("shop\t.*\t^out\t.*"), vhost.starts_with("shop"), "{told}");
    }
    broker.told(&["authenticate_user", "shop", "long enough"]);
    assert!(broker.told(&["list_users"]).contains("shop\t[monitoring, management]"));
    let why = "minimum required password length is 8";
    assert!(broker.refused(&["add_user", "u", "seven77"], 65).contains(why));
    broker.told(&["add_user", "u", "eight888"]);
    assert!(broker.refused(&["change_password", "u", "seven77"], 65).contains(why));
}

/// As a container is started: the user comes from outside, and `guest` is not there.
#[test]
fn the_environment_names_the_first_user() {
    let dir = tempfile::tempdir().unwrap();
    let start = |dir| {
        let mut command = leveret(&["serve", "--listen", "0.0.0.0:0"]);
        command.env("RABBITMQ_DEFAULT_USER", "shop").env("RABBITMQ_DEFAULT_PASS", "s3cret");
        command.env("RABBITMQ_DEFAULT_VHOST", "orders");
        Broker::spawn(command, dir)
    };
    let broker = start(dir);
    assert_eq!(broker.told(&["list_users"]), "user\ttags\nshop\t[administrator]\n");
    assert_eq!(broker.told(&["list_vhosts"]), "name\norders\n");
    assert!(broker.told(&["-p", "orders", "list_permissions"]).contains("shop\t.*\t.*\t.*"));
    broker.told(&["authenticate_user", "shop", "s3cret"]);
    // Only `guest` is bound to the machine itself.
    let environment = broker.told(&["environment"]);
    assert!(environment.contains("loopback_users.$user = guest"), "{environment}");
    assert!(!environment.contains("s3cret"), "{environment}");
}

#[test]
fn new_vhosts_have_the_default_queue_type() {
    let broker = Broker::with(&["default_queue_type=quorum"]);
    broker.told(&["add_vhost", "v"]);
    broker.told(&["add_vhost", "c", "--default-queue-type", "classic"]);
    let told = broker.told(&["list_vhosts", "name", "default_queue_type"]);
    for row in ["/\tquorum", "v\tquorum", "c\tclassic"] {
        assert!(told.contains(row), "{told}");
    }
}

#[test]
fn a_node_elsewhere() {
    let broker = Broker::start();
    let elsewhere = |login: &str, words: &[&str]| {
        let mut command = leveret(&["ctl", "-q"]);
        command.env("LEVERET_URI", format!("http://{login}@{}", broker.listens("http")));
        run(command.args(words))
    };
    assert_eq!(elsewhere("guest:guest", &["add_user", "u", "p"]).0, 0);
    assert_eq!(elsewhere("guest:guest", &["set_permissions", "u", ".*", ".*", ".*"]).0, 0);
    let (_, told) = elsewhere("guest:guest", &["list_permissions"]);
    assert!(told.contains("u\t.*\t.*\t.*\n"), "{told}");
    // No management user, a wrong password, and what only the machine itself may ask for.
    assert_eq!(elsewhere("u:p", &["list_queues"]).0, 77);
    assert_eq!(elsewhere("guest:wrong", &["list_queues"]).0, 77);
    let (status, told) = elsewhere("guest:guest", &["stop"]);
    assert_eq!(status, 77, "{told}");
    let audit = broker.log.wait_for("audit: changed");
    assert!(audit.contains("user=\"guest\"") && audit.contains("/api/users/u"), "{audit}");
    assert!(!audit.contains("\"p\""), "{audit}");
}

#[test]
fn changes_are_in_the_audit_log_and_looks_are_not() {
    let broker = Broker::start();
    broker.told(&["list_queues"]);
    broker.told(&["ping"]);
    broker.told(&["add_vhost", "v"]);
    let told = broker.log.wait_for("audit: changed");
    for part in ["user=\"rmq-cli\"", "control socket, uid", "method=PUT", "/api/vhosts/v"] {
        assert!(told.contains(part), "{told}");
    }
    broker.log.once("audit: changed");
    // Who asks as the operator is no user, and gets no permissions.
    assert_eq!(broker.told(&["-p", "v", "list_permissions"]), "");
    broker.refused(&["delete_user", "rmq-cli"], 67);
}

/// By the tool, and as logrotate does it: the file is moved away, then SIGHUP.
#[test]
fn the_log_file_makes_way() {
    let mut broker = Broker::with(&["log.file=x.log"]);
    let dir = broker.dir.path().join("log");
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).unwrap_or_default();
    // One output may have it a moment before another.
    wait_until(PATIENCE, "the file has it too", || read("x.log").contains(" is ready"));
    broker.told(&["rotate_logs"]);
    assert!(read("x.log.0").contains(" is ready"));
    assert!(!read("x.log").contains(" is ready"));
    std::fs::rename(dir.join("x.log"), dir.join("moved")).unwrap();
    broker.signal(Signal::HUP);
    broker.log.wait_for("SIGHUP: opening log file");
    broker.told(&["add_vhost", "after"]);
    // It waits for what is not written yet.
    assert!(broker.told(&["log_tail"]).contains("/api/vhosts/after"));
    assert!(!read("moved").contains("/api/vhosts/after"));
    assert!(read("x.log").contains("/api/vhosts/after"));
    // What has less than the level is not written, to file or console.
    broker.told(&["set_log_level", "none"]);
    broker.told(&["add_vhost", "quiet"]);
    broker.told(&["set_log_level", "info"]);
    broker.told(&["add_vhost", "loud"]);
    assert!(broker.told(&["log_tail"]).contains("/api/vhosts/loud"));
    assert!(!read("x.log").contains("/api/vhosts/quiet"));
    broker.log.wait_for("/api/vhosts/loud");
    assert!(broker.log.with("/api/vhosts/quiet").is_empty());
    broker.signal(Signal::TERM);
    assert!(broker.ended(PATIENCE).success());
}

#[test]
fn a_look_at_the_node_and_at_what_happens() {
    let broker = Broker::start();
    let (mut client, channel) = broker.channel();
    client.queue_declare(channel, "longest", &QueueDeclare::default()).unwrap();
    for _ in 0..3 {
        client.publish(channel, "", "longest", &[0, 0], b"12345");
    }
    client.publish(channel, "", "longest", &[0, 0], b"the fourth");
    client.flush().unwrap();
    wait_until(PATIENCE, "they are there", || broker.json(&["list_queues"])[0]["messages"] == 4);
    // It ends when it is told to, however long its interval is.
    let begun = std::time::Instant::now();
    let pictures = broker.told(&["observer", "-i", "1000", "--duration", "1"]);
    assert_eq!(pictures.matches("messages 4 ready").count(), 2, "{pictures}");
    assert!(begun.elapsed() < PATIENCE);
    let picture = broker.told(&["observer", "--rounds", "1"]);
    assert!(picture.contains("messages 4 ready, 0 unacked"), "{picture}");
    assert!(picture.lines().any(|it| it.starts_with("longest ")), "{picture}");
    assert!(
        picture.contains(" 1 connections, 1 channels")
            || picture.contains("\n1 connections, 1 channels"),
        "{picture}"
    );
    let peeked = broker.json(&["peek", "longest", "4"]);
    assert_eq!(peeked[0], json!({"keys": "payload (max 64 bytes)", "values": "the fourth"}));
    broker.refused(&["peek", "longest", "5"], 70);
    broker.refused(&["transfer_leadership", "longest", "rabbit@there"], 70);

    let mut watching = broker.ctl_command(&["consume_event_stream", "--pattern", "^vhost"]);
    let mut watching = watching.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines =
        std::io::BufRead::lines(std::io::BufReader::new(watching.stdout.take().unwrap()));
    // The tool sees what comes after it began to look; when that is only it knows.
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if done.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                broker.told(&["add_vhost", &format!("v{number}")]);
            }
        });
        let line = lines.next().unwrap().unwrap();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(event["event"], "vhost.created");
        assert!(event["name"].as_str().is_some_and(|name| name.starts_with('v')), "{event}");
    });
    watching.kill().unwrap();
    watching.wait().unwrap();
}

#[test]
fn test_suites_set_alarms_and_clear_them() {
    let broker = Broker::start();
    for resource in ["memory", "disk"] {
        let set =
            format!("rabbit_alarm:set_alarm({{{{resource_limit, {resource}, node()}}, []}}).");
        assert_eq!(broker.told(&["eval", &set]), "ok\n");
        broker.refused(&["check_alarms"], 69);
        let clear = format!("rabbit_alarm:clear_alarm({{resource_limit, {resource}, node()}}).");
        assert_eq!(broker.told(&["eval", &clear]), "ok\n");
        broker.told(&["check_alarms"]);
    }
}

/// Orchestrators probe every few seconds; ten thousand queues must not make that dear.
#[test]
fn a_probe_costs_the_node_next_to_nothing() {
    let broker = Broker::start();
    let queue = |n: u32| {
        json!({
            "name": format!("q{n}"), "vhost": "/", "durable": false, "auto_delete": false,
            "arguments": {},
        })
    };
    let queues: Vec<_> = (0..3000).map(queue).collect();
    let file = broker.dir.path().join("queues.json").display().to_string();
    std::fs::write(&file, json!({"queues": queues}).to_string()).unwrap();
    broker.told(&["import_definitions", &file]);
    let before = broker.cpu_ms();
    for _ in 0..20 {
        broker.told(&["ping"]);
        broker.told(&["check_running"]);
    }
    let each = (broker.cpu_ms() - before) / 40;
    assert!(each < 10, "{each} ms each");
}

/// The operator of the machine may what no user may: delete a queue that another connection has for itself.
#[test]
fn the_operator_needs_no_permissions() {
    let broker = Broker::start();
    broker.told(&["clear_permissions", "guest"]);
    broker.told(&["set_permissions", "guest", ".*", ".*", ".*"]);
    let (mut client, channel) = broker.channel();
    let own = QueueDeclare { exclusive: true, ..Default::default() };
    client.queue_declare(channel, "own", &own).unwrap();
    let (status, told) = {
        let mut command = leveret(&["ctl", "-q", "delete_queue", "own"]);
        let uri = format!("http://guest:guest@{}", broker.listens("http"));
        run(command.env("LEVERET_URI", uri))
    };
    assert_eq!(status, 65, "{told}");
    assert!(told.contains("exclusive access to locked queue 'own'"), "{told}");
    broker.told(&["delete_queue", "own"]);
    assert_eq!(broker.told(&["list_queues"]), "");
}

#[test]
fn a_node_that_is_drained_takes_no_clients_until_it_is_revived() {
    let broker = Broker::start();
    let mut client = broker.connect();
    broker.told(&["drain"]);
    assert!(close_reason(&mut client).text.contains("maintenance"), "it says why");
    assert!(std::net::TcpStream::connect(broker.address).is_err());
    assert_eq!(broker.json(&["status"])["is_under_maintenance"], true);
    broker.told(&["check_running"]);
    broker.refused(&["node_health_check"], 69);
    broker.told(&["revive"]);
    broker.connect().close().unwrap();
    broker.told(&["node_health_check"]);
}

#[test]
fn a_log_file_that_cannot_make_way_is_told() {
    let broker = Broker::with(&["log.file=x.log"]);
    let dir = broker.dir.path().join("log");
    std::fs::rename(&dir, broker.dir.path().join("elsewhere")).unwrap();
    std::fs::write(&dir, "no directory").unwrap();
    let Output { status, stdout, stderr } = broker.ctl(&["rotate_logs"]);
    let (told, errors) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert_eq!(status.code(), Some(69), "{told}{errors}");
    let file = dir.join("x.log");
    let want = format!("Error:\nthe log file stays: {}: Not a directory", file.display());
    assert!(errors.starts_with(&want) && !told.contains("stays"), "{told}{errors}");
    std::fs::remove_file(&dir).unwrap();
    std::fs::rename(broker.dir.path().join("elsewhere"), &dir).unwrap();
    broker.told(&["rotate_logs"]);
    assert!(dir.join("x.log.0").exists());
    // Without a log file there is none to make way.
    let none = Broker::start();
    assert!(none.refused(&["rotate_logs"], 69).contains("the node logs to no file"));
}

#[test]
fn the_report_has_everything_but_secrets() {
    let broker = Broker::with(&["log.file=leveret.log", "default_pass=very-secret"]);
    broker.told(&["add_user", "u", "also-secret"]);
    broker.told(&["add_vhost", "v"]);
    broker.told(&["set_policy", "-p", "v", "short", "^q", r#"{"max-length": 4}"#]);
    let mut command = broker.ctl_command(&[]);
    command.args(["report"]);
    let (status, told) = run(&mut command);
    assert_eq!(status, 0, "{told}");
    for part in [
        "Node data directory: ",
        "default_user = guest",
        "default_pass = (hidden)",
        "u\t[]",
        "v\tshort\t^q",
        "audit: changed",
        "rabbitmq_identity_info",
    ] {
        assert!(told.contains(part), "{part} is missing in {told}");
    }
    assert!(!told.contains("very-secret") && !told.contains("also-secret"), "{told}");
    assert!(!told.contains("Error:"), "{told}");
    let tail = broker.told(&["log_tail", "-N", "1"]);
    assert_eq!(tail.lines().count(), 1);
}

#[test]
fn the_service_manager_hears_of_the_start_of_every_moment_and_of_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut command = leveret(&["serve", "--listen", "127.0.0.1:0"]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "100000");
    let mut broker = Broker::spawn(command, tempfile::tempdir().unwrap());
    let next = || {
        let mut heard = [0; 64];
        let len = manager.recv(&mut heard).expect("the manager hears in time");
        String::from_utf8_lossy(&heard[..len]).into_owned()
    };
    assert_eq!(next(), "READY=1\nSTATUS=Serving clients");
    assert_eq!([next(), next(), next()], ["WATCHDOG=1"; 3]);
    broker.signal(Signal::TERM);
    wait_until(PATIENCE, "the manager hears of the end", || next().starts_with("STOPPING=1"));
    assert!(broker.ended(PATIENCE).success());
}

/// One socket serves both kinds of addresses; a client of IPv4 is named as such.
#[test]
fn connections_are_named_as_in_rabbitmq() {
    let serve = leveret(&["serve", "--listen", "[::]:0"]);
    let broker = Broker::spawn(serve, tempfile::tempdir().unwrap());
    let uri = Uri { host: "127.0.0.1".into(), ..broker.uri() };
    let mut client = broker.connect_as(&uri);
    let connections = broker.json(&["list_connections", "name", "peer_host", "host"]);
    let name = connections[0]["name"].as_str().unwrap();
    let (peer, ours) = name.split_once(" -> ").unwrap();
    assert_eq!(peer.rsplit_once(':').unwrap().0, "127.0.0.1");
    assert_eq!(ours, format!("127.0.0.1:{}", broker.address.port()));
    assert_eq!(connections[0]["peer_host"], "127.0.0.1");
    assert_eq!(connections[0]["host"], "127.0.0.1");
    broker.log.wait_for(&format!("peer=\"{peer}\""));
    broker.ctl(&["close_all_connections", "the end"]);
    assert!(client.open_channel().is_err());
}
