//! The tool against a node that plays back answers, over a real socket.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;

use clap::Parser as _;
use leveret_ctl::CtlArgs;
use leveret_ctl::protocol::{Code, Fault, Request, Response};
use serde_json::json;

#[derive(clap::Parser)]
struct Tool {
    #[command(flatten)]
    args: CtlArgs,
}

#[test]
fn lists() {
    let queues = json!([{"name": "a", "messages": 1}, {"name": "b", "messages": 0}]);
    let answer = Response::of(&queues);
    check(
        &["list_queues"],
        &answer,
        r#"{"command":"list_queues","args":{"vhost":"/","columns":["name","messages"]}}"#,
        "Timeout: 60.0 seconds ...\nListing queues for vhost / ...\nname\tmessages\na\t1\nb\t0\n",
    );
    check(
        &["-q", "list_queues", "-p", "v", "name", "--no-table-headers"],
        &answer,
        r#"{"command":"list_queues","args":{"vhost":"v","columns":["name"]}}"#,
        "a\nb\n",
    );
    check(
        &["list_queues", "--formatter", "json", "name"],
        &answer,
        r#"{"command":"list_queues","args":{"vhost":"/","columns":["name"]}}"#,
        "[\n{\"name\":\"a\"}\n,{\"name\":\"b\"}\n]\n",
    );
}

#[test]
fn definitions_are_json_texts() {
    let policies = json!([{"name": "ttl", "priority": 1, "definition": {"message-ttl": 5}}]);
    let (_, output) = converse(&["-q", "list_policies"], &Response::of(&policies));
    let want = "vhost\tname\tpattern\tapply-to\tdefinition\tpriority\n\
                \tttl\t\t\t{\"message-ttl\":5}\t1\n";
    assert_eq!(output.unwrap(), want);
}

#[test]
fn commands() {
    check(
        &["-p", "v", "delete_queue", "q", "--if-empty"],
        &Response::of(&3),
        r#"{"command":"delete_queue","args":{"vhost":"v","name":"q","if_empty":true,"if_unused":false}}"#,
        "Deleting queue 'q' on vhost 'v' if queue is empty ...\n\
         Queue was successfully deleted with 3 ready messages\n",
    );
    check(
        &["-s", "set_policy", "ttl", "^q", r#"{"message-ttl":5}"#, "--priority", "-1"],
        &Response::DONE,
        r#"{"command":"set_policy","args":{"vhost":"/","name":"ttl","pattern":"^q","apply_to":"all","priority":-1,"definition":{"message-ttl":5}}}"#,
        "",
    );
    check(
        &["add_user", "bob", "secret", "--formatter", "json"],
        &Response::DONE,
        r#"{"command":"add_user","args":{"name":"bob","password":"secret","is_hashed":false}}"#,
        "{\"result\":\"ok\",\"value\":null}\n",
    );
    check(
        &["set_vhost_limits", "-p", "v", r#"{"max-connections":5}"#],
        &Response::DONE,
        r#"{"command":"set_vhost_limits","args":{"vhost":"v","limits":{"max-connections":5}}}"#,
        "Setting vhost limits to \"{\"max-connections\":5}\" for vhost \"v\" ...\n",
    );
    check(
        &["clear_user_limits", "bob", "all"],
        &Response::DONE,
        r#"{"command":"clear_user_limits","args":{"name":"bob","limit":null}}"#,
        "Clearing all limits for user \"bob\" ...\n",
    );
    check(&["-q", "stop"], &Response::DONE, r#"{"command":"stop"}"#, "");
}

#[test]
fn refusals() {
    let (_, result) = converse(&["delete_user", "x"], &Response::Error(Fault::no_user("x")));
    assert_eq!(result, Err(Fault::no_user("x")));
    assert_eq!(Code::NoUser.exit_status(), 67);

    let dir = tempfile::tempdir().unwrap();
    let nobody = dir.path().join("none.sock");
    let fault = run(&nobody, &["ping"]).unwrap_err();
    assert_eq!(fault.code.exit_status(), 69);
    assert!(fault.text.contains("leveret serve") && fault.text.contains("--socket"), "{fault}");
    assert_eq!(run(&nobody, &["-q", "stop", "--idempotent"]).unwrap(), "");
    assert_eq!(run(&nobody, &["list_queues", "colour"]).unwrap_err().code, Code::Usage);
    assert_eq!(run(&nobody, &["set_policy", "a", "b", "{"]).unwrap_err().code, Code::Data);
    assert_eq!(run(&nobody, &["await_startup", "-t", "0"]).unwrap_err().code, Code::TempFail);
}

#[track_caller]
fn check(words: &[&str], answer: &Response, request: &str, output: &str) {
    assert_eq!(converse(words, answer), (request.to_owned(), Ok(output.to_owned())));
}

/// Runs the tool against a node that gives `answer` to its one request; returns the request.
#[track_caller]
fn converse(words: &[&str], answer: &Response) -> (String, Result<String, Fault>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("node.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let answer = answer.to_line();
    let node = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&socket).read_line(&mut line).unwrap();
        Request::from_line(line.as_bytes()).unwrap();
        socket.write_all(&answer).unwrap();
        line.trim_end().to_owned()
    });
    let result = run(&path, words);
    (node.join().unwrap(), result)
}

fn run(socket: &Path, words: &[&str]) -> Result<String, Fault> {
    let tool = Tool::try_parse_from(["ctl"].iter().chain(words)).unwrap();
    let mut out = Vec::new();
    leveret_ctl::run(tool.args, socket, &mut out).map(|()| String::from_utf8(out).unwrap())
}
