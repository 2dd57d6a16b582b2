//! Directories that a node must not use, or not quietly: newer ones, damaged ones, those in use.
//!
//! Where it refuses to start it says which file, where in it and what can be done; and it changes nothing. Where
//! it goes on without what is damaged it says the same, and of which queues that was, and keeps the file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use leveret_client::amqp::table::{Table, Value};
use leveret_client::{Connection, QueueDeclare};

use crate::broker::{Broker, Down, PATIENCE, run, wait_for_ack, wait_until};
use crate::messages::Key;

/// Exit code of a start that failed.
const FAILED: i32 = 70;
const MESSAGES: u32 = 30;
/// Of the header of a segment file and of a batch.
const FILE_HEADER: usize = 128;

/// A node that stored messages in `queues` in turn, one batch each, and is gone.
fn stored_with(stop: bool, settings: &[&str], queues: &[&str]) -> Down {
    let broker = Broker::with(&[&["shards=1"], settings].concat());
    let (mut client, channel) = broker.channel();
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    for queue in queues {
        client.queue_declare(channel, queue, &durable).unwrap();
    }
    client.tx_select(channel).unwrap();
    for (number, queue) in (0..MESSAGES).zip(queues.iter().cycle()) {
        let key = Key { publisher: 1, number };
        client.publish(channel, "", queue, &key.properties(None), &key.body());
        client.tx_commit(channel).unwrap();
    }
    client.close().unwrap();
    if stop { broker.stop() } else { broker.kill() }
}

fn stored(stop: bool) -> Down {
    stored_with(stop, &["storage.damaged_files=refuse"], &["q"])
}

/// The files of a directory, with their bytes. Locks and sockets have none that matter.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                dirs.push(entry.path());
            } else if kind.is_file() {
                files.insert(entry.path(), std::fs::read(entry.path()).unwrap());
            }
        }
    }
    files
}

/// The one segment file of the shard, or of the names.
fn segment(dir: &Path, log: &str) -> PathBuf {
    let all = files(&dir.join(log));
    let mut segments = all.keys().filter(|path| path.extension().is_some_and(|it| it == "seg"));
    let segment = segments.next_back().unwrap().clone();
    assert_eq!(std::fs::read(&segment).unwrap()[..8], *b"LVRTSEG\n");
    segment
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Starts and fails, with all of `parts` in what is told, and every file as it was.
#[track_caller]
fn refuses(down: &Down, parts: &[&str]) {
    let before = files(down.dir.path());
    let (_, errors) = run(down.command(), down.dir.path(), FAILED);
    for part in parts {
        assert!(errors.contains(part), "no {part:?} in: {errors}");
    }
    let after = files(down.dir.path());
    let names = |files: &BTreeMap<PathBuf, Vec<u8>>| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&after), names(&before));
    let changed: Vec<_> = before.iter().filter(|(path, bytes)| after[*path] != **bytes).collect();
    assert!(changed.is_empty(), "{changed:?}");
}

fn messages(broker: &Broker) -> u32 {
    let (mut client, channel) = broker.channel();
    count(&mut client, channel, "q")
}

fn count(client: &mut Connection, channel: u16, queue: &str) -> u32 {
    let passive = QueueDeclare { passive: true, ..QueueDeclare::default() };
    client.queue_declare(channel, queue, &passive).unwrap().message_count
}

#[test]
fn a_later_version_is_named() {
    for log in ["shards/0", "names"] {
        for stop in [true, false] {
            let down = stored(stop);
            let file = segment(down.dir.path(), log);
            change(&file, |bytes| {
                bytes[8..12].copy_from_slice(&9_u32.to_le_bytes());
                bytes[16..48].fill(0);
                bytes[16..29].copy_from_slice(b"leveret 7.0.1");
                let crc = crc32c::crc32c(&bytes[..124]);
                bytes[124..128].copy_from_slice(&crc.to_le_bytes());
            });
            let name = file.file_name().unwrap().to_str().unwrap();
            refuses(&down, &[log, name, "format 9", "leveret 7.0.1", "Start that version"]);
        }
    }
}

#[test]
fn a_damaged_middle_is_named_with_its_place() {
    for log in ["shards/0", "names"] {
        for stop in [true, false] {
            let down = stored(stop);
            let file = segment(down.dir.path(), log);
            // In the index of the first batch.
            change(&file, |bytes| bytes[FILE_HEADER + 90] ^= 1);
            let name = file.file_name().unwrap().to_str().unwrap();
            let place = format!("{name} is damaged at byte {FILE_HEADER}");
            refuses(&down, &[log, &place, "Restore the file from a copy", "move it away"]);
            // With the remedy it goes on. Without names nobody would find the messages.
            std::fs::remove_file(&file).unwrap();
            refuses(&down, &[log, name, "is missing", "make the file `files` beside it empty"]);
            std::fs::write(file.with_file_name("files"), "").unwrap();
            if log == "names" {
                refuses(&down, &["names is empty", "30 messages", "Restore it from a copy"]);
                // Nor does it begin anew beside what is left of the names.
                for part in ["shards", "names"] {
                    std::fs::remove_dir_all(down.dir.path().join(part)).unwrap();
                }
                std::fs::remove_file(down.dir.path().join("layout")).unwrap();
                let broker = down.start_again();
                assert_eq!(broker.log.with(" ERROR "), Vec::<String>::new());
            } else {
                assert_eq!(messages(&down.start_again()), 0);
            }
        }
    }
}

/// A checksum of its own covers what a record says, which is looked at when it is read.
#[test]
fn a_damaged_name_is_refused_with_its_file() {
    let down = stored(true);
    let file = segment(down.dir.path(), "names");
    change(&file, |bytes| {
        let at = bytes.windows(10).position(|part| part == b"amq.fanout").unwrap();
        bytes[at] ^= 1;
    });
    let name = file.file_name().unwrap().to_str().unwrap();
    let names = down.dir.path().join("names");
    refuses(
        &down,
        &[
            names.to_str().unwrap(),
            &format!("is damaged in file {name} at byte "),
            "of the kind exchange",
            "restored from a copy",
        ],
    );
}

#[test]
fn a_damaged_file_header_is_named() {
    let mut down = stored(false);
    let file = segment(down.dir.path(), "shards/0");
    change(&file, |bytes| bytes[60] ^= 1);
    let name = file.file_name().unwrap().to_str().unwrap();
    refuses(
        &down,
        &[&format!("{name} is damaged at byte 0"), "not the header", "damaged_files = aside"],
    );
    // Nothing but the header is lost, and it can be done without.
    down.set("storage.damaged_files=aside");
    let broker = down.start_again();
    broker.log.once("all messages in it are there");
    assert_eq!(broker.log.with(" ERROR "), Vec::<String>::new());
    assert_eq!(messages(&broker), MESSAGES);
}

/// Queues share the files: those whose messages are whole have all of them, and the other is named.
#[test]
fn undamaged_queues_start() {
    for stop in [true, false] {
        let down = stored_with(stop, &[], &["q", "other"]);
        let file = segment(down.dir.path(), "shards/0");
        let whole = std::fs::read(&file).unwrap();
        // The head of the first record, which is in "q".
        change(&file, |bytes| bytes[FILE_HEADER + 88 + 10] ^= 1);
        let damaged = std::fs::read(&file).unwrap();
        let broker = down.start_again();
        let name = file.file_name().unwrap().to_str().unwrap();
        let error = broker.log.once(" ERROR ");
        let place = format!("position={FILE_HEADER}");
        for part in [name, &place, "at most 1 messages", "'q' in vhost '/'", "put a good copy of"] {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
        assert!(!error.contains("'other'"), "{error}");
        let (mut client, channel) = broker.channel();
        assert_eq!(count(&mut client, channel, "q"), MESSAGES / 2 - 1);
        assert_eq!(count(&mut client, channel, "other"), MESSAGES / 2);
        // An ack may have been lost: whatever comes may have come before.
        assert!(client.get(channel, "other", true).unwrap().unwrap().redelivered);
        client.close().unwrap();
        let kept = file.with_file_name(format!("{name}.damaged"));
        assert_eq!(std::fs::read(&kept).unwrap(), damaged);
        // The next starts say only that it is still there.
        let down = broker.stop();
        let broker = down.start_again();
        assert_eq!(broker.log.with(" ERROR "), Vec::<String>::new());
        broker.log.once("are kept here");
        assert_eq!(messages(&broker), MESSAGES / 2 - 1);
        // What the error said brings it back.
        let down = broker.stop();
        let rest = name.replace(".0.seg", ".1.seg");
        assert!(error.contains(&rest), "{error}");
        std::fs::remove_file(file.with_file_name(rest)).unwrap();
        std::fs::write(&file, &whole).unwrap();
        std::fs::remove_file(&kept).unwrap();
        let broker = down.start_again();
        assert_eq!(broker.log.with(" ERROR "), Vec::<String>::new());
        assert_eq!(messages(&broker), MESSAGES / 2);
    }
}

/// A body is looked at when it is read: what dies and cannot be read is named and kept, whatever the strategy,
/// and is there again with the file.
#[test]
fn a_damaged_dead_letter_is_kept() {
    for strategy in ["at-most-once", "at-least-once"] {
        let broker = Broker::with(&["shards=1"]);
        let (mut client, channel) = broker.channel();
        let text = |text: &str| Value::LongStr(text.as_bytes().to_vec());
        let mut mortal = QueueDeclare { durable: true, ..QueueDeclare::default() };
        for (name, value) in [
            ("x-queue-type", text("quorum")),
            ("x-message-ttl", Value::I32(2_000)),
            ("x-overflow", text("reject-publish")),
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text("graves")),
            ("x-dead-letter-strategy", text(strategy)),
        ] {
            mortal.arguments.set(name, value);
        }
        client.queue_declare(channel, "q", &mortal).unwrap();
        let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
        client.queue_declare(channel, "graves", &durable).unwrap();
        client.tx_select(channel).unwrap();
        for number in 0..3 {
            let key = Key { publisher: 1, number };
            client.publish(channel, "", "q", &key.properties(None), &key.body());
            client.tx_commit(channel).unwrap();
        }
        let down = broker.kill();
        let file = segment(down.dir.path(), "shards/0");
        let body = Key { publisher: 1, number: 1 }.body();
        let whole = std::fs::read(&file).unwrap();
        let at = whole.windows(body.len()).position(|it| it == body).expect("its body");
        change(&file, |bytes| bytes[at] ^= 1);
        let broker = down.start_again();
        let error = broker.log.wait_for("cannot be read");
        let name = file.file_name().unwrap().to_str().unwrap();
        for part in ["ERROR", name, "record ", "'q' in vhost '/'", "messages=1", "restore the file"]
        {
            assert!(error.contains(part), "no {part:?} in {error}");
        }
        let (mut client, channel) = broker.channel();
        wait_until(PATIENCE, "the others are dead letters", || {
            count(&mut client, channel, "graves") == 2
        });
        client.close().unwrap();
        let down = broker.stop();
        change(&file, |bytes| bytes[at] ^= 1);
        let broker = down.start_again();
        let (mut client, channel) = broker.channel();
        wait_until(PATIENCE, "it died", || count(&mut client, channel, "graves") > 2);
        assert_eq!(broker.log.with("cannot be read"), Vec::<String>::new());
    }
}

/// Queues of two shards that get the same large messages.
const SHARED_BY: [&str; 4] = ["q-0", "q-1", "q-2", "q-3"];

/// The body of such a message.
fn large(number: u8) -> Vec<u8> {
    vec![number; 50_000]
}

/// Messages 1 to 3, each in four queues; one of the two shards has the bytes.
fn shared() -> Broker {
    let broker = Broker::with(&["shards=2"]);
    let (mut client, channel) = broker.channel();
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    for queue in SHARED_BY {
        client.queue_declare(channel, queue, &durable).unwrap();
        client.queue_bind(channel, queue, "amq.fanout", "", &Table::default()).unwrap();
    }
    client.confirm_select(channel).unwrap();
    for number in 1..=3 {
        let key = Key { publisher: 1, number: number.into() };
        client.publish(channel, "amq.fanout", "", &key.properties(None), &large(number));
        wait_for_ack(&mut client);
    }
    broker
}

/// The one file that has the body of message 1, and where in it.
fn first_body(down: &Down) -> (PathBuf, usize) {
    let logs = ["shards/0", "shards/1"].map(|log| segment(down.dir.path(), log));
    let place = |path: &PathBuf| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(1000).position(|it| it == [1; 1000])
    };
    let mut found = logs.into_iter().filter_map(|path| Some((place(&path)?, path)));
    let (at, path) = found.next().expect("one shard has the body");
    assert_eq!(found.next(), None, "and only one");
    (path, at)
}

/// Takes what each of the queues has, which is to be these messages.
#[track_caller]
fn take_all(broker: &Broker, numbers: std::ops::RangeInclusive<u8>) {
    let (mut client, channel) = broker.channel();
    for queue in SHARED_BY {
        for number in numbers.clone() {
            let got = client.get(channel, queue, true).unwrap().expect("a message");
            assert_eq!(got.body, large(number), "{queue}");
        }
        assert!(client.get(channel, queue, true).unwrap().is_none(), "{queue}");
    }
    client.close().unwrap();
}

/// What cannot be read of a message that shards share is set aside in the queues of both, which go on, and is there
/// again with a good file.
#[test]
fn a_damaged_message_that_shards_share() {
    let down = shared().kill();
    let (file, at) = first_body(&down);
    change(&file, |bytes| bytes[at] ^= 1);
    let broker = down.start_again();
    take_all(&broker, 2..=3);
    let name = file.file_name().unwrap().to_str().unwrap();
    for queue in SHARED_BY {
        // Lines are on their way to the log while clients are served.
        let line = broker.log.wait_for(&format!("queue=\"queue '{queue}' in vhost '/'\""));
        let parts = ["ERROR", name, "cannot be read", "messages=1"];
        assert!(parts.iter().all(|part| line.contains(part)), "{line}");
    }
    let down = broker.stop();
    change(&file, |bytes| bytes[at] ^= 1);
    take_all(&down.start_again(), 1..=1);
}

/// A shard that has lost a file has lost the bodies of others' messages, too. They stay, are told, and are there again
/// with the file.
#[test]
fn a_missing_file_with_messages_that_shards_share() {
    let down = shared().stop();
    let (file, _) = first_body(&down);
    let moved = down.dir.path().join("moved");
    std::fs::rename(&file, &moved).unwrap();
    let broker = down.start_again();
    let line =
        broker.log.wait_for("whose bodies were in what is damaged, missing or of an earlier time");
    assert!(line.contains("ERROR") && line.contains("restore the file"), "{line}");
    let other = if file.parent().unwrap().ends_with("0") { "q-1" } else { "q-0" };
    let (mut client, channel) = broker.channel();
    let mut there = Vec::new();
    while let Some(got) = client.get(channel, other, false).unwrap() {
        there.push(got.body[0]);
    }
    assert!(!there.contains(&1), "{there:?}");
    broker.log.wait_for("of log");
    drop(client);
    let down = broker.kill();
    std::fs::rename(&moved, &file).unwrap();
    take_all(&down.start_again(), 1..=3);
}

/// It is not the directory's fault: what was not delivered is still known not to be.
#[test]
fn a_start_that_fails_for_its_port_loses_nothing() {
    let down = stored(true);
    let other = std::net::TcpListener::bind(down.address).unwrap();
    // The names' log has new ids promised by now; that the last stop was in good order is still known.
    let (_, errors) = run(down.command(), down.dir.path(), FAILED);
    assert!(errors.contains("cannot listen on"), "{errors}");
    drop(other);
    let broker = down.start_again();
    let (mut client, channel) = broker.channel();
    assert!(!client.get(channel, "q", false).unwrap().unwrap().redelivered);
}

#[test]
fn a_torn_tail_is_cut_off_with_a_warning() {
    for cut in [1, 40, 100] {
        let mut down = stored(false);
        let file = segment(down.dir.path(), "shards/0");
        change(&file, |bytes| bytes.truncate(bytes.len() - cut));
        // What was not synced, its list does not know.
        std::fs::write(file.with_file_name("files"), "").unwrap();
        for start in 0..2 {
            let broker = down.start_again();
            // Beside it an empty list is told, and later that its shard may have lost more.
            let warnings = broker.log.with("the last write was interrupted");
            assert_eq!(warnings.len(), usize::from(start == 0), "{warnings:?}");
            assert_eq!(broker.log.with(" ERROR "), Vec::<String>::new());
            assert_eq!(messages(&broker), MESSAGES - 1, "cut by {cut}");
            down = broker.kill();
        }
    }
}

/// What was confirmed was on the disk, and no file is missing that was not needed: what is not there, or not any more
/// what it was, is told, after a stop and after a kill, and not taken for the end of the log.
#[test]
fn what_is_missing_is_told() {
    type Change = fn(&mut Vec<u8>);
    let changes: [(&str, Option<Change>); 5] = [
        ("is damaged", Some(|bytes| bytes.truncate(bytes.len() / 2))),
        ("is damaged", Some(|bytes| bytes.truncate(bytes.len() - 1))),
        ("is damaged", Some(|bytes| bytes.iter_mut().rev().take(200).for_each(|byte| *byte = 0))),
        ("is damaged", Some(Vec::clear)),
        ("is missing, which had", None),
    ];
    for stop in [true, false] {
        for log in ["shards/0", "names"] {
            for (text, how) in changes {
                let mut down = stored(stop);
                let file = segment(down.dir.path(), log);
                let whole = std::fs::read(&file).unwrap();
                match how {
                    Some(how) => change(&file, how),
                    None => std::fs::remove_file(&file).unwrap(),
                }
                let name = file.file_name().unwrap().to_str().unwrap();
                refuses(&down, &[log, name, text, "Restore the file from a copy"]);
                down.set("storage.damaged_files=aside");
                if log == "names" {
                    refuses(&down, &[log, name, text]);
                } else {
                    let broker = down.start_again();
                    let error = broker.log.once(" ERROR ");
                    for part in [name, "is lost", " messages\""] {
                        assert!(error.contains(part), "no {part:?} in {error}");
                    }
                    assert_eq!(broker.log.with("was interrupted"), Vec::<String>::new());
                    assert!(messages(&broker) < MESSAGES);
                    // It is told once; then a warning says that it was.
                    down = broker.stop();
                    let broker = down.start_again();
                    assert_eq!(broker.log.with(" ERROR "), Vec::<String>::new());
                    broker.log.once("are kept here");
                    continue;
                }
                std::fs::write(&file, &whole).unwrap();
                // That it was a stop in good order is no reason not to start.
                std::fs::write(down.dir.path().join("clean"), [0xff, b' ', b'7', b'\n']).unwrap();
                assert_eq!(messages(&down.start_again()), MESSAGES);
            }
        }
    }
}

/// Also what a mount point looks like on which nothing is mounted.
#[test]
fn an_emptied_directory_of_a_shard_is_refused() {
    for stop in [false, true] {
        let down = stored_with(stop, &["shards=2"], &["q", "other"]);
        let shard = down.dir.path().join("shards/0");
        let away = down.dir.path().join("away");
        std::fs::rename(&shard, &away).unwrap();
        std::fs::create_dir(&shard).unwrap();
        refuses(
            &down,
            &["shards/0 is empty", "Nothing was changed", "shards/0/files and start again"],
        );
        std::fs::remove_dir(&shard).unwrap();
        std::fs::rename(&away, &shard).unwrap();
        let broker = down.start_again();
        let (mut client, channel) = broker.channel();
        for queue in ["q", "other"] {
            assert_eq!(count(&mut client, channel, queue), MESSAGES / 2);
        }
        assert_eq!(broker.log.with(" ERROR "), Vec::<String>::new());
        client.close().unwrap();
        // Its owner goes on without it.
        let down = broker.kill();
        std::fs::remove_dir_all(&shard).unwrap();
        std::fs::create_dir(&shard).unwrap();
        std::fs::write(shard.join("files"), []).unwrap();
        let broker = down.start_again();
        broker.log.once("`files`, is empty");
        let (mut client, channel) = broker.channel();
        let there = ["q", "other"].map(|queue| count(&mut client, channel, queue));
        assert_eq!(there.iter().sum::<u32>(), MESSAGES / 2);
    }
}

/// An older copy of a shard's directory, list and all, and whole: after a kill, too, it is told.
#[test]
fn an_older_copy_of_a_shard_is_told() {
    let down = stored_with(false, &["shards=1"], &["q"]);
    let shard = down.dir.path().join("shards/0");
    let older = files(&shard);
    let broker = down.start_again();
    let (mut client, channel) = broker.channel();
    client.confirm_select(channel).unwrap();
    let key = Key { publisher: 1, number: 100 };
    client.publish(channel, "", "q", &key.properties(None), &key.body());
    wait_for_ack(&mut client);
    let mut down = broker.kill();
    std::fs::remove_dir_all(&shard).unwrap();
    std::fs::create_dir(&shard).unwrap();
    older.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    down.set("storage.damaged_files=refuse");
    refuses(&down, &["shards/0 is of an earlier time", "storage.damaged_files = aside"]);
    down.set("storage.damaged_files=aside");
    let broker = down.start_again();
    let error = broker.log.once(" ERROR ");
    assert!(error.contains("is of an earlier time than the last start"), "{error}");
    assert_eq!(messages(&broker), MESSAGES);
    // It is told once.
    let broker = broker.kill().start_again();
    assert_eq!(broker.log.with(" ERROR "), Vec::<String>::new());
}

/// Names without some of the queues that there were, and whole all the same: messages of the others are not let go.
#[test]
fn older_names_are_refused() {
    let down = stored_with(true, &[], &["q"]);
    let names = down.dir.path().join("names");
    let older = files(&names);
    let broker = down.start_again();
    let (mut client, channel) = broker.channel();
    let durable = QueueDeclare { durable: true, ..QueueDeclare::default() };
    client.queue_declare(channel, "later", &durable).unwrap();
    client.confirm_select(channel).unwrap();
    let key = Key { publisher: 1, number: 100 };
    client.publish(channel, "", "later", &key.properties(None), &key.body());
    wait_for_ack(&mut client);
    let down = broker.kill();
    let newer = files(&names);
    let put = |all: &BTreeMap<PathBuf, Vec<u8>>| {
        std::fs::remove_dir_all(&names).unwrap();
        std::fs::create_dir(&names).unwrap();
        all.iter().for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    };
    put(&older);
    refuses(&down, &["names is of an earlier time", "shards/0", "Restore both from one copy"]);
    put(&newer);
    let broker = down.start_again();
    assert_eq!(messages(&broker), MESSAGES);
    let (mut client, channel) = broker.channel();
    assert_eq!(count(&mut client, channel, "later"), 1);
}

#[test]
fn garbage_after_the_last_write_is_cut_off_and_told() {
    let down = stored(false);
    let file = segment(down.dir.path(), "shards/0");
    change(&file, |bytes| bytes.extend([7; 5000]));
    let broker = down.start_again();
    // It may be what a file had that was used again, so it is no warning.
    assert_eq!(broker.log.with(" WARN "), Vec::<String>::new());
    broker.log.once("what was behind the last write was cut off");
    assert_eq!(messages(&broker), MESSAGES);
}

#[test]
fn a_damaged_or_later_layout_is_named() {
    let down = stored(true);
    let layout = down.dir.path().join("layout");
    let whole = std::fs::read_to_string(&layout).unwrap();
    for damaged in ["", "format 1\n", "format 1\nshards x\n", "\0\0\0\0"] {
        std::fs::write(&layout, damaged).unwrap();
        refuses(&down, &["layout is damaged", "format 1", "shards N"]);
    }
    std::fs::write(&layout, whole.replace("format 1", "format 2")).unwrap();
    refuses(&down, &["has format 2", "Start the version that"]);
    // More shards than there are, or fewer, would put queues where their messages are not.
    std::fs::write(&layout, whole.replace("shards 1", "shards 2")).unwrap();
    refuses(&down, &["layout says that there are 2 shards", "shards/1 is not there", "Restore it"]);
    std::fs::remove_file(&layout).unwrap();
    refuses(&down, &["layout is missing", "has messages"]);
    std::fs::write(&layout, &whole).unwrap();
    // One that somebody made is not missing anything.
    let shards = down.dir.path().join("shards");
    std::fs::create_dir(shards.join("7")).unwrap();
    refuses(&down, &["shards/7 is the directory of no shard", "there is 1", "move it away"]);
    std::fs::remove_dir(shards.join("7")).unwrap();
    // As many as there should be, but not those.
    std::fs::rename(shards.join("0"), shards.join("7")).unwrap();
    refuses(&down, &["shards/0 is not there", "shards/7"]);
    std::fs::rename(shards.join("7"), shards.join("0")).unwrap();
    assert_eq!(messages(&down.start_again()), MESSAGES);
}

/// Messages know their queues by number, and a queue's number says in which shard it lives: in another one they would
/// be taken for those of a queue that is gone.
#[test]
fn shards_that_were_swapped_are_refused() {
    for stop in [true, false] {
        let down = stored_with(stop, &["shards=2"], &["q", "other"]);
        let shards = down.dir.path().join("shards");
        let swap = || {
            for (from, to) in [("0", "x"), ("1", "0"), ("x", "1")] {
                std::fs::rename(shards.join(from), shards.join(to)).unwrap();
            }
        };
        swap();
        let before = files(&shards);
        let (_, errors) = run(down.command(), down.dir.path(), FAILED);
        for part in ["shards/0 has messages of queues of shard 1", "Nothing was changed"] {
            assert!(errors.contains(part), "no {part:?} in: {errors}");
        }
        assert!(files(&shards) == before);
        swap();
        let broker = down.start_again();
        let (mut client, channel) = broker.channel();
        for queue in ["q", "other"] {
            assert_eq!(count(&mut client, channel, queue), MESSAGES / 2);
        }
        // What was not delivered is still known not to be.
        let got = client.get(channel, "q", true).unwrap().unwrap();
        assert_eq!(got.redelivered, !stop);
    }
}

/// The same where one shard has no bytes of its own, but those that the other has written for it, and the other has no
/// messages: it is seen before what nobody seems to refer to is let go.
#[test]
fn shards_that_were_swapped_are_refused_for_what_they_share() {
    for (emptied, left) in [(["q-0", "q-2"], ["q-1", "q-3"]), (["q-1", "q-3"], ["q-0", "q-2"])] {
        let broker = shared();
        let (mut client, channel) = broker.channel();
        for queue in emptied {
            (1..=3).for_each(|_| drop(client.get(channel, queue, true).unwrap().unwrap()));
        }
        client.close().unwrap();
        let down = broker.stop();
        // As after a crash that came when all this was on the disk.
        std::fs::remove_file(down.dir.path().join("clean")).unwrap();
        let shards = down.dir.path().join("shards");
        let swap = || {
            for (from, to) in [("0", "x"), ("1", "0"), ("x", "1")] {
                std::fs::rename(shards.join(from), shards.join(to)).unwrap();
            }
        };
        swap();
        refuses(&down, &["has messages of queues of shard", "Nothing was changed"]);
        swap();
        let broker = down.start_again();
        let (mut client, channel) = broker.channel();
        for queue in left {
            assert_eq!(client.get(channel, queue, true).unwrap().unwrap().body, large(1));
        }
        assert!(emptied.iter().all(|queue| count(&mut client, channel, queue) == 0));
    }
}
