//! The program from outside: what it prints and the status it ends with, without a node.

use std::path::Path;
use std::process::{Command, Output};

#[test]
fn statuses() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("bad.conf");
    std::fs::write(&bad, "heartbeet = 1\n\nframe_max = 9\n").unwrap();
    let good = dir.path().join("good.conf");
    std::fs::write(&good, "heartbeat = 1\nnum_acceptors.tcp = 3\n").unwrap();
    let (bad, good) = (bad.display().to_string(), good.display().to_string());

    let told = check(dir.path(), &["serve", "--config", &bad], 78);
    let want = format!(
        "{bad}:1: unknown key 'heartbeet'; did you mean 'heartbeat'?\n\
         {bad}:3: frame_max = 9: expected 0 (no limit) or at least 4096\n"
    );
    assert_eq!(told, want);
    let told = check(dir.path(), &["serve", "--check", "--config", &good], 0);
    assert!(told.contains("num_acceptors.tcp has no meaning here"), "{told}");
    let told = check(dir.path(), &["serve", "--check", "--set", "heartbeat=soon"], 78);
    assert!(told.starts_with("flag --set: heartbeat = soon: expected a duration"), "{told}");
    let told = check(dir.path(), &["serve", "--check", "--port", "x"], 78);
    assert!(told.starts_with("flag --port: listeners.tcp.default = x: expected"), "{told}");

    let told = check(dir.path(), &["serve", "--check", "--data-dir", ""], 78);
    assert!(told.starts_with("flag --data-dir: data_dir = : expected a path"), "{told}");
    let classic = dir.path().join("rabbitmq.config").display().to_string();
    std::fs::write(&classic, "%% mine\n[{rabbit, [{heartbeat, 60}]}].\n").unwrap();
    let told = check(dir.path(), &["serve", "--check", "--config", &classic], 78);
    assert!(told.starts_with(&format!("{classic}:1: ")), "{told}");
    assert!(told.contains("serve --help"), "{told}");
    assert!(told.contains(&format!("{classic}:2: write `heartbeat = 60`\n")), "{told}");
    assert_eq!(told.lines().count(), 2, "{told}");

    // What RabbitMQ would read beside the file.
    let beside = dir.path().join("advanced.config").display().to_string();
    std::fs::write(
        &beside,
        "[{rabbit, [{consumer_timeout, 60000},\n {default_pass, \"s3cret\"}]}].\n",
    )
    .unwrap();
    let told = check(dir.path(), &["serve", "--check", "--config", &good], 0);
    for line in [
        "1: the file is not read: write `consumer_timeout = 60000`",
        "2: the file is not read: write `default_pass",
    ] {
        assert!(told.contains(&format!("warning: {beside}:{line}")), "{told}");
    }
    assert!(!told.contains("s3cret"), "{told}");

    check(dir.path(), &["--version"], 0);
    check(dir.path(), &["man"], 0);
    check(dir.path(), &["completion", "bash"], 0);
    check(dir.path(), &["fly"], 64);
    check(dir.path(), &["serve", "--fly"], 64);
    check(dir.path(), &["ctl", "fly"], 64);
    let told = check(dir.path(), &["ctl", "ping"], 69);
    let socket = dir.path().join("leveret.sock").display().to_string();
    assert!(told.contains(&socket) && told.contains("leveret serve"), "{told}");

    // The configuration that names its socket cannot be read.
    let output = Command::new(env!("CARGO_BIN_EXE_leveret"))
        .args(["ctl", "ping"])
        .env_clear()
        .env("HOME", dir.path())
        .env("LEVERET_CONFIG_FILE", dir.path().join("none.conf"))
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains("control socket /"), "{told}");
    assert!(
        told.contains("may name another one, but cannot be read:\n") && told.contains("none.conf"),
        "{told}"
    );

    // It takes no words.
    let told = check(dir.path(), &["rabbitmq-plugins", "directories"], 69);
    assert!(!told.contains("Usage"), "{told}");

    // Two nodes, and no way to tell which is meant.
    let two = &["ctl", "--socket", "s", "ping", "--uri", "http://u:secret@h"];
    let told = check(dir.path(), two, 64);
    assert!(told.contains("--socket") && told.contains("--uri"), "{told}");
    assert!(!told.contains("secret"), "{told}");
}

/// A check finds all that a start would refuse, at once, and changes nothing.
#[test]
fn a_check_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (conf, definitions, data) = (file("l.conf"), file("d.json"), dir.path().join("data"));
    let text = format!(
        "listeners.ssl.default = 5671\nssl_options.certfile = {0}/no.pem\nssl_options.keyfile = {0}/no.pem\n\
         management.ssl.port = 15671\nmanagement.ssl.certfile = {0}/none.pem\n\
         management.ssl.keyfile = {0}/none.pem\nmanagement.tcp.ip = 300.1.1.2\nlisteners.tcp.bad = 300.1.1.1:5672\n\
         load_definitions = {definitions}\n",
        dir.path().display()
    );
    std::fs::write(&conf, text).unwrap();
    let text = r#"{"vhosts": [{"name": "/"}], "queues": [{"name": "q", "vhost": "nowhere"},
        {"name": "s", "vhost": "/", "type": "stream"}]}"#;
    std::fs::write(&definitions, text).unwrap();
    let told = check(&data, &["serve", "--check", "--config", &conf], 78);
    let addresses = ["listeners.tcp.bad = 300.1.1.1:5672", "management.tcp.ip = 300.1.1.2"];
    let faults = ["no.pem", "none.pem", addresses[0], addresses[1]];
    for fault in faults.iter().chain(&["\"nowhere\"", "queue type 'stream' of queue 's'"]) {
        assert!(told.contains(fault), "{fault} in {told}");
    }
    assert!(!data.exists());

    let text = format!("load_definitions = {definitions}\ndefinitions.skip_unsupported = true\n");
    std::fs::write(&conf, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_leveret"))
        .args(["serve", "--check", "--config", &conf])
        .env_clear()
        .env("LEVERET_DATA_DIR", &data)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    for what in [&*conf, &*definitions, "listeners.tcp.default", "not checked: ports"] {
        assert!(told.contains(what), "{what} in {told}");
    }
    assert!(!data.exists());
}

/// What new vhosts and passwords have to be like is looked at before the start.
#[test]
#[rustfmt::skip] // a table
fn a_check_looks_at_what_new_vhosts_have() {
    let dir = tempfile::tempdir().unwrap();
    let fault = |settings: &[&str], want: &str| {
        let sets = settings.iter().flat_map(|it| ["--set", it]);
        let words: Vec<&str> = ["serve", "--check"].into_iter().chain(sets).collect();
        let told = check(&dir.path().join("data"), &words, 78);
        assert!(told.contains(want), "{want} in {told}");
    };
    let backend = |kind: &str| format!("credential_validator.validation_backend=rabbit_credential_validator_{kind}");
    let (length, regexp) = (backend("min_password_length"), backend("password_regexp"));
    fault(&[&length, "credential_validator.min_length=6"], "default_pass: credential_validation_failed: minimum required password length is 6");
    fault(&[&regexp],                                      "password_regexp needs credential_validator.regexp");
    fault(&[&regexp, "credential_validator.regexp=("],     "credential_validator.regexp: invalid regular expression '('");
    fault(&[&length, "default_users.u.password=four"],     "default_users.u.password: credential_validation_failed: minimum required password length is 5");
    fault(&["default_users.u.configure=["],                "default_users.u: invalid regular expression '['");
    fault(&["default_limits.vhosts.a.pattern=["],          "default_limits.vhosts.a.pattern: invalid regular expression '['");
    fault(&["default_policies.operator.p.queue_pattern=[", "default_policies.operator.p.max_length=1"], "default_policies.operator.p: pattern should be regular expression but is invalid");
    fault(&["default_policies.operator.p.apply_to=x"],     "default_policies.operator.p.apply_to: apply-to 'x' unrecognised");
    fault(&["default_policies.operator.p.queue_pattern=x"], "default_policies.operator.p: no policy provided");
}

/// A named pipe in the place of a file is refused: whoever reads it may wait for ever.
#[test]
fn pipes_are_no_files() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    for pipe in ["layout", "leveret.lock", "pipe"] {
        assert!(Command::new("mkfifo").arg(at(pipe)).status().unwrap().success());
    }
    let told = check(dir.path(), &["serve", "--check"], 78);
    assert!(told.contains("layout: it is a named pipe, and no file"), "{told}");
    let told = check(dir.path(), &["serve"], 70);
    assert!(told.contains("cannot open") && told.contains("leveret.lock"), "{told}");
    let key = format!("ssl_options.keyfile={}", at("pipe"));
    let certificate = format!("ssl_options.certfile={}", at("pipe"));
    let words =
        ["serve", "--check", "--set", "listeners.ssl.a=1", "--set", &certificate, "--set", &key];
    let told = check(&dir.path().join("data"), &words, 78);
    assert!(told.contains("pipe: it is a named pipe, and no file"), "{told}");
}

/// A broker that is not there is told once, with its address.
#[test]
fn perf_without_a_broker() {
    let dir = tempfile::tempdir().unwrap();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let told = check(dir.path(), &["perf", "-h", &format!("amqp://{free}")], 1);
    assert!(told.contains(&format!("connecting to {free}: ")), "{told}");
    assert_eq!(told.matches("refused").count(), 1, "{told}");
}

/// Runs the program and compares its status; returns what it says on standard error.
#[track_caller]
fn check(data_dir: &Path, words: &[&str], want: i32) -> String {
    let Output { status, stderr, .. } = Command::new(env!("CARGO_BIN_EXE_leveret"))
        .args(words)
        .env_clear()
        .env("LEVERET_DATA_DIR", data_dir)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&stderr).into_owned();
    assert_eq!(status.code(), Some(want), "{words:?}: {told}");
    told
}
