//! The start: the ready line, bad configurations, ports and directories in use.

use std::time::{Duration, Instant};

use crate::broker::{Broker, by_shell, leveret, run};

/// The build that users run is ready in 100 ms on an idle machine; this one may share its machine.
const START_MAX: Duration = Duration::from_secs(5);

#[test]
fn says_once_that_it_is_ready() {
    let began = Instant::now();
    let broker = Broker::start();
    assert!(began.elapsed() < START_MAX, "{:?}", began.elapsed());
    broker.connect().close().unwrap();
    let ready = broker.log.with(" is ready");
    assert_eq!(ready.len(), 1, "{ready:?}");
    assert!(ready[0].contains(&broker.address.to_string()), "{ready:?}");
    let data_dir = format!("data_dir={}", broker.dir.path().display());
    let told = [&data_dir, "config=\"defaults\"", "memory_limit_bytes=", "disk_free_limit_bytes="];
    for part in told.into_iter().chain(["vhosts=1 queues=0 messages=0"]) {
        assert!(ready[0].contains(part), "{part} in {ready:?}");
    }
    assert_eq!(broker.errors.with(""), Vec::<String>::new());
    broker.assert_quiet();
}

#[test]
fn raises_its_limit_of_open_files() {
    let dir = tempfile::tempdir().unwrap();
    let script = "ulimit -S -n 256; exec \"$0\" serve --listen 127.0.0.1:0 \"$@\"";
    let broker = Broker::spawn(by_shell(script), dir);
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", broker.pid())).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let words: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(words[3], words[4], "soft and hard limit: {line}");
}

#[test]
fn a_low_limit_of_open_files_is_told() {
    let script = "ulimit -n 256; exec \"$0\" serve --listen 127.0.0.1:0 \"$@\"";
    let broker = Broker::spawn(by_shell(script), tempfile::tempdir().unwrap());
    let told = broker.log.with("the limit of open files is low");
    assert!(told.len() == 1 && told[0].contains("open_files_max=256"), "{told:?}");
}

#[test]
fn an_unknown_key_is_told_with_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("leveret.conf");
    std::fs::write(&file, "# mine\nheartbeet = 10\n").unwrap();
    let file = file.display().to_string();
    let (_, errors) = run(leveret(&["serve", "--config", &file]), dir.path(), 78);
    assert_eq!(errors, format!("{file}:2: unknown key 'heartbeet'; did you mean 'heartbeat'?\n"));
}

#[test]
fn a_key_of_rabbitmq_without_meaning_is_logged() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rabbitmq.conf");
    std::fs::write(&file, "num_acceptors.tcp = 3\nheartbeat = 7\n").unwrap();
    let file = file.display().to_string();
    let command = leveret(&["serve", "--config", &file, "--listen", "127.0.0.1:0"]);
    let broker = Broker::spawn(command, dir);
    let told = broker.log.with("num_acceptors.tcp");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("no meaning"), "{told:?}");
    let environment = broker.json(&["environment"]).to_string();
    assert!(environment.contains(r#""heartbeat":"7""#), "{environment}");
}

#[test]
fn a_port_in_use_is_a_clear_error() {
    let used = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = used.local_addr().unwrap();
    let port = address.port();
    #[rustfmt::skip] // a table
    let rows = [
        ("--listen",              address.to_string(), "",                        "listeners.tcp.default"),
        ("--management-tcp-port", port.to_string(),    " for the management API", "management.tcp.port"),
        ("--prometheus-tcp-port", port.to_string(),    " for metrics",            "prometheus.tcp.port"),
    ];
    for (option, value, what, key) in rows {
        let dir = tempfile::tempdir().unwrap();
        let mut command = leveret(&["serve"]);
        for free in ["--management-tcp-port", "--prometheus-tcp-port"] {
            command.args([free, "0"].iter().filter(|_| free != option));
        }
        command.args(["--listen", "127.0.0.1:0"].iter().filter(|_| option != "--listen"));
        command.args([option, &value]);
        let (_, errors) = run(command, dir.path(), 70);
        assert!(
            errors.contains("cannot listen on ") && errors.contains(&format!(":{port}{what}")),
            "{errors}"
        );
        assert!(errors.contains(key), "{errors}");
    }
}

#[test]
fn one_node_per_data_directory() {
    let first = Broker::start();
    let socket = tempfile::tempdir().unwrap();
    let socket = format!("ctl.socket={}", socket.path().join("other").display());
    // With another control socket, too: it is the directory that must not be shared.
    for more in [&[][..], &["--set", &socket][..]] {
        let mut command = leveret(&["serve", "--listen", "127.0.0.1:0"]);
        command.args(more);
        let (_, errors) = run(command, first.dir.path(), 70);
        assert!(errors.contains("already"), "{errors}");
        assert!(errors.contains("--data-dir"), "{errors}");
        // What is locked is what is open, whatever names there are.
        let _ = std::fs::remove_file(first.dir.path().join("leveret.lock"));
    }
    // The first one did not suffer.
    first.told(&["ping"]);
    first.connect().close().unwrap();
}

/// Whatever the umask, and whatever was there.
#[test]
fn nobody_else_reads_the_data_directory() {
    use std::os::unix::fs::PermissionsExt as _;
    let mode =
        |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for umask in ["000", "077"] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("names")).unwrap();
        for open in ["", "names"] {
            let mode = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(dir.path().join(open), mode).unwrap();
        }
        let program = env!("CARGO_BIN_EXE_leveret");
        let mut command = std::process::Command::new("sh");
        let script = format!("umask {umask}; exec {program} \"$@\"");
        command.args(["-c", &script, "sh", "serve", "--listen", "127.0.0.1:0"]).env_clear();
        let broker = Broker::spawn(command, dir);
        let down = broker.stop();
        assert_eq!(mode(down.dir.path()), 0o750, "{umask}");
        let mut dirs = vec![down.dir.path().to_owned()];
        let mut files = 0;
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    assert_eq!(mode(&path), 0o750, "{umask} {}", path.display());
                    dirs.push(path);
                } else {
                    assert_eq!(mode(&path), 0o640, "{umask} {}", path.display());
                    files += 1;
                }
            }
        }
        assert!(files > 3, "{files}");
    }
}

#[test]
fn a_killed_node_leaves_nothing_that_keeps_the_next_one_from_starting() {
    let mut first = Broker::start();
    first.signal(rustix::process::Signal::KILL);
    first.ended(START_MAX);
    let empty = tempfile::tempdir().unwrap();
    let dir = std::mem::replace(&mut first.dir, empty);
    let second = Broker::spawn(leveret(&["serve", "--listen", "127.0.0.1:0"]), dir);
    second.told(&["ping"]);
}
