//! `leveret perf experiment failover`: its account is right when the broker is, and finds what is done to messages behind its back.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use leveret_client::amqp::method::Method;
use leveret_client::{Consume, Event};
use serde_json::Value;

use crate::broker::{Broker, PATIENCE, leveret, wait_until};

/// The experiment, which is told what happens; through one broker, as if it was three.
struct Experiment {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    dir: tempfile::TempDir,
}

impl Experiment {
    fn start(broker: &Broker) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let uri = format!("amqp://guest:guest@{}/%2F", broker.address);
        let mut command =
            leveret(&["perf", "experiment", "failover", "--told", "--json", "out.json"]);
        command.args(["--node", &uri, "--node", &uri, "--node", &uri]).current_dir(dir.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut experiment = Self { child, input, output, dir };
        experiment.settle();
        experiment
    }

    fn tell(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer
    }

    fn settle(&mut self) {
        let answer = self.tell("settle 60");
        assert!(answer.starts_with("settled "), "{answer}");
    }

    /// What it says at the end, its figures, and its status.
    fn end(mut self) -> (String, Value, Option<i32>) {
        drop(self.input);
        let mut told = String::new();
        self.output.read_to_string(&mut told).unwrap();
        let status = self.child.wait().unwrap().code();
        let json = std::fs::read_to_string(self.dir.path().join("out.json")).unwrap();
        (told, serde_json::from_str(&json).unwrap(), status)
    }
}

#[test]
fn a_broker_that_is_killed_keeps_every_message() {
    let broker = Broker::start();
    let mut experiment = Experiment::start(&broker);
    assert_eq!(experiment.tell("fault killed 1"), "begun\n");
    let broker = broker.kill().start_again();
    experiment.settle();
    let (told, json, status) = experiment.end();
    assert_eq!((status, &json["findings"]), (Some(0), &0.into()), "{told}");
    let phase = &json["phases"][1];
    assert_eq!((&phase["name"], &phase["nodes"][0]), (&"killed".into(), &1.into()), "{told}");
    assert!(phase["confirmed"].as_u64() > Some(0) && phase["lost"] == 0, "{phase}");
    for node in 0..3 {
        // Each client has seen its connection end, and has waited.
        assert!(phase["pauses_ms"][node].as_f64() > Some(1.0), "{phase}");
        assert!(phase["errors"][node].as_u64() > Some(0), "{phase}");
    }
    let sum = &json["sum"];
    assert!(sum["confirmed"].as_u64() > Some(0) && sum["lost"] == 0, "{sum}");
    assert!(told.contains("0 lost, 0 twice without a reason, 0 out of order"), "{told}");
    drop(broker);
}

/// Another consumer of a queue takes messages: one vanishes, one comes back late, one comes back twice.
#[test]
fn what_vanishes_comes_late_or_twice_is_found() {
    let broker = Broker::start();
    let mut experiment = Experiment::start(&broker);
    let (mut thief, channel) = broker.channel();
    let how = Consume { no_ack: true, ..Consume::default() };
    let tag = thief.consume(channel, "failover-0", &how).unwrap();
    let mut taken: Vec<Vec<u8>> = Vec::new();
    wait_until(PATIENCE, "some messages", || {
        thief.wait(Duration::from_millis(100)).unwrap();
        while let Some(event) = thief.next_event().unwrap() {
            if let Event::Content { method: Method::BasicDeliver(_), body, .. } = event {
                taken.push(body.to_vec());
            }
        }
        taken.len() >= 4
    });
    thief.cancel(channel, &tag).unwrap();
    // Later ones have come meanwhile.
    experiment.settle();
    for body in [&taken[1], &taken[2], &taken[2]] {
        thief.publish(channel, "", "failover-0", &[0, 0], body);
    }
    thief.publish(channel, "", "failover-0", &[0, 0], b"nobody's");
    thief.close().unwrap();
    experiment.settle();
    let (told, json, status) = experiment.end();
    let sum = &json["sum"];
    assert_eq!(status, Some(1), "{told}");
    assert!(sum["lost"].as_u64() > Some(0), "{told}");
    assert_eq!(sum["duplicates"], 1, "{told}");
    assert!(sum["out_of_order"].as_u64() > Some(0), "{told}");
    assert_eq!(sum["strange"], 1, "{told}");
    for words in
        ["is lost: confirmed, delivered 0 times", "came twice on one", "came after message"]
    {
        assert!(told.contains(words), "{words}: {told}");
    }
}
