//! A node from outside: it starts without configuration, answers, and ends when it is asked to.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use tempfile::TempDir;

#[test]
fn a_node_starts_answers_and_stops() {
    let node = Node::start();
    let status = node.ctl(&["status"]);
    assert!(status.contains("Product name: RabbitMQ\n"), "{status}");
    assert!(status.contains("Leveret version: "), "{status}");

    // A peer that does not speak AMQP 0-9-1 gets our header, and the end.
    let mut socket = TcpStream::connect(node.address).unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer); // a reset after the header is an end too
    assert_eq!(answer, b"AMQP\0\0\x09\x01");

    assert_eq!(node.ctl(&["-s", "list_users"]), "guest\t[administrator]\n");
    node.ctl(&["add_vhost", "v"]);
    node.ctl(&["add_user", "bob", "secret"]);
    node.ctl(&["set_permissions", "-p", "v", "bob", ".*", "", "^q"]);
    assert_eq!(node.ctl(&["-s", "list_permissions", "-p", "v"]), "bob\t.*\t\t^q\n");
    node.ctl(&["set_policy", "-p", "v", "ttl", "^q", r#"{"message-ttl":1000}"#]);
    let policies = node.ctl(&["-s", "list_policies", "-p", "v"]);
    assert_eq!(policies, "v\tttl\t^q\tall\t{\"message-ttl\":1000}\t0\n");

    let exported = node.ctl(&["export_definitions", "-"]);
    let file = node.dir.path().join("definitions.json");
    std::fs::write(&file, exported).unwrap();
    node.ctl(&["delete_vhost", "v"]);
    node.ctl(&["import_definitions", &file.display().to_string()]);
    assert_eq!(node.ctl(&["-s", "list_policies", "-p", "v"]), policies);

    node.ctl(&["stop"]);
    let mut node = node;
    assert!(node.child.wait().unwrap().success());
}

#[test]
fn a_node_ends_at_sigterm() {
    let mut node = Node::start();
    let id = node.child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert!(node.child.wait().unwrap().success());
}

struct Node {
    child: Child,
    dir: TempDir,
    address: SocketAddr,
}

impl Node {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let child = program(dir.path())
            .args(["serve", "--port", "127.0.0.1:0"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut node = Self { child, dir, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        node.ctl(&["await_startup", "--timeout", "20"]);
        let told: serde_json::Value =
            serde_json::from_str(&node.ctl(&["listeners", "--formatter", "json"])).unwrap();
        let listeners = told["listeners"].as_array().unwrap();
        let amqp = listeners.iter().find(|it| it["protocol"] == "amqp").unwrap();
        node.address.set_port(amqp["port"].as_u64().unwrap() as u16);
        node
    }

    #[track_caller]
    fn ctl(&self, words: &[&str]) -> String {
        let command = &mut program(self.dir.path());
        let Output { status, stdout, stderr } = command.arg("ctl").args(words).output().unwrap();
        assert!(status.success(), "{words:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8(stdout).unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn program(data_dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leveret"));
    command.env_remove("LEVERET_CTL_SOCKET").env("LEVERET_DATA_DIR", data_dir);
    command.env("LEVERET_MANAGEMENT_TCP_PORT", "0").env("LEVERET_PROMETHEUS_TCP_PORT", "0");
    command
}
