//! What an operator does after a refusal, or instead of reading it: whole directories that are gone, or older.

use super::*;

/// What is logged meanwhile, and how the start went.
fn start(dir: &Path) -> (String, anyhow::Result<Open>) {
    start_as(dir, DamagedFiles::Aside)
}

/// Refused, with all of these in the text, and with no byte changed.
#[track_caller]
fn refused(dir: &Path, words: &[&str]) {
    let before = contents(dir);
    let (_, started) = start(dir);
    let text = format!("{:#}", started.err().expect("it is refused"));
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
    assert!(contents(dir) == before, "files changed: {text}");
}

#[test]
fn names_without_layout_and_shards() {
    for end in [End::Stop, End::Kill] {
        let made = made(end);
        let dir = made.dir.path();
        fs::remove_dir_all(dir.join("shards")).unwrap();
        fs::remove_file(dir.join("layout")).unwrap();
        refused(dir, &["layout is missing", "move", "names away too"]);
        fs::remove_dir_all(dir.join("names")).unwrap();
        let (told, started) = start(dir);
        assert!(started.unwrap().meta.is_new());
        let is_told = told.contains("laid out anew: nothing is there any more");
        assert_eq!(is_told, end == End::Stop, "after a stop it is known what there was: {told}");
    }
}

#[test]
fn a_refusal_removes_no_directory() {
    let made = made(End::Kill);
    let dir = made.dir.path();
    fs::remove_file(dir.join("layout")).unwrap();
    fs::remove_dir_all(dir.join("shards/0")).unwrap();
    fs::create_dir(dir.join("shards/0")).unwrap();
    refused(dir, &["layout is missing", "shards/1 has messages"]);
    assert!(dir.join("shards/0").is_dir(), "it is as it was");
}

/// As a node that is killed a while after its start: what it let go of is safe.
fn run_and_kill(mut node: Open, dir: &Path) {
    forget_clean(dir).unwrap();
    node.reclaim();
    node.sync();
    drop(node);
}

/// Puts a directory of the copy in the place of what is there.
fn restore(dir: &Path, copy: &BTreeMap<PathBuf, Vec<u8>>, part: &str) {
    fs::remove_dir_all(dir.join(part)).unwrap();
    for (name, bytes) in copy.iter().filter(|(name, _)| name.starts_with(part)) {
        fs::create_dir_all(dir.join(name).parent().unwrap()).unwrap();
        fs::write(dir.join(name), bytes).unwrap();
    }
}

/// A part of shard 0 is lost in a way, which is told. Later it is put back: the messages of shard 1 whose bodies it had
/// are all there, though the node ran in between.
#[track_caller]
fn places_are_kept(end: End, what: &str, lose: impl Fn(&Path, &Made)) {
    let made = made(end);
    let dir = made.dir.path();
    let right = contents(dir);
    lose(dir, &made);
    for round in 0..2 {
        let (told, started) = start(dir);
        let mut node = started.unwrap();
        let (there, unreadable) = found(&mut node, &made.places).unwrap();
        assert!(there.len() < made.confirmed.len(), "{what}: nothing was lost");
        assert!(!unreadable.is_empty(), "{what}, {round}: places are kept: {told}");
        assert!(told.contains("They keep their places"), "{what}, {round}: {told}");
        run_and_kill(node, dir);
    }
    restore(dir, &right, "shards/0");
    let (told, started) = start(dir);
    let mut node = started.unwrap();
    let (there, unreadable) = found(&mut node, &made.places).unwrap();
    assert!(unreadable.is_empty(), "{what}: {told}");
    let vhost = node.topology.vhost("/").unwrap().id;
    let queues = node.topology.queues(vhost);
    let is_of_other = |id: u64| queues.iter().any(|it| it.id.get() == id && shard_of(it.id) == 1);
    let missing = made.confirmed.iter().filter(|it| is_of_other(it.0) && !there.contains(it));
    assert_eq!(missing.count(), 0, "{what}: {told}");
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|it| it.unwrap().path());
    let mut all: Vec<_> =
        entries.filter(|it| it.extension().is_some_and(|it| it == "seg")).collect();
    all.sort();
    all
}

#[test]
fn an_older_copy_of_a_shard_costs_others_nothing() {
    for end in [End::Stop, End::Kill] {
        places_are_kept(end, "an older copy", |dir, made| {
            let older = contents(made.earlier.path());
            restore(dir, &older, "shards/0");
            let before = contents(dir);
            let refused = Open::start(dir, DamagedFiles::Refuse).err().expect("it is refused");
            assert!(format!("{refused:#}").contains("is of an earlier time"), "{refused:#}");
            assert!(contents(dir) == before);
            let (told, started) = start(dir);
            assert!(started.is_ok() && told.contains(OLDER), "{told}");
        });
    }
}

/// How the ERROR of an older copy of a shard's directory begins.
const OLDER: &str = "the log of a shard is of an earlier time than the last st";

/// Empties the directory of a shard, as it is also found where it is a mount point and nothing is mounted.
fn empty(dir: &Path, shard: usize) {
    let shard = shard_dir(dir, shard);
    fs::remove_dir_all(&shard).unwrap();
    fs::create_dir(shard).unwrap();
}

#[test]
fn an_emptied_shard_is_refused() {
    for end in [End::Stop, End::Kill, End::PowerCut] {
        let made = made(end);
        let dir = made.dir.path();
        let right = contents(dir);
        for shard in 0..SHARDS {
            empty(dir, shard);
            let name = format!("shards/{shard} is empty");
            let list = format!("shards/{shard}/files and start again");
            refused(dir, &[&name, "Nothing was changed", "mount", &list]);
            let again = Open::start(dir, DamagedFiles::Refuse).err().expect("it is refused");
            let again = format!("{again:#}");
            // After a stop it may be told by its first file, too.
            assert!(again.contains(&format!("shards/{shard}")), "{again}");
            assert!(shard_dir(dir, shard).is_dir());
            restore(dir, &right, &format!("shards/{shard}"));
        }
        let mut node = start(dir).1.unwrap();
        let (there, _) = found(&mut node, &made.places).unwrap();
        assert!(made.confirmed.is_subset(&there), "all is back");
    }
}

/// Its owner says so by an empty list.
#[test]
fn an_emptied_shard_that_is_gone_on_without_costs_others_nothing() {
    for end in [End::Stop, End::Kill] {
        places_are_kept(end, "an empty list", |dir, _| {
            empty(dir, 0);
            fs::write(dir.join("shards/0/files"), []).unwrap();
        });
    }
}

/// Also one that never had a message.
#[test]
fn a_shard_without_messages_is_missed() {
    let place = directory();
    let dir = place.path();
    run_and_kill(Open::start(dir, DamagedFiles::Aside).unwrap(), dir);
    let node = Open::start(dir, DamagedFiles::Aside).unwrap();
    assert!(node.meta.is_new());
    run_and_kill(node, dir);
    assert_eq!(segments(&dir.join("shards/1")), [] as [PathBuf; 0]);
    // No list says yet that there was one.
    empty(dir, 1);
    let mut node = Open::start(dir, DamagedFiles::Aside).unwrap();
    node.topology.import_definitions(&definitions(QUEUES)).unwrap();
    node.save();
    run_and_kill(node, dir);
    empty(dir, 1);
    refused(dir, &["shards/1 is empty"]);
}

/// A kill between any two of the writes of a start, the first one and a later one, hurts nobody.
#[test]
fn a_start_may_be_killed_between_its_lists() {
    let place = directory();
    let dir = place.path();
    lay_out(dir, SHARDS).unwrap();
    let laid_out = contents(dir);
    let mut node = Open::start(dir, DamagedFiles::Aside).unwrap();
    let mut starts = vec![(laid_out, contents(dir))];
    node.topology.import_definitions(&definitions(QUEUES)).unwrap();
    node.save();
    let vhost = node.topology.vhost("/").unwrap().id;
    let queues: Vec<_> = node.topology.queues(vhost).iter().map(|queue| queue.id).collect();
    run_and_kill(node, dir);
    for queue in queues {
        let before = contents(dir);
        let mut node = Open::start(dir, DamagedFiles::Aside).unwrap();
        starts.push((before, contents(dir)));
        node.store(queue, 1);
        run_and_kill(node, dir);
    }
    for (before, after) in starts {
        for done in 0..1 << SHARDS {
            let mut files = before.clone();
            for shard in (0..SHARDS).filter(|shard| done & 1 << shard != 0) {
                let list = PathBuf::from(format!("shards/{shard}/files"));
                files.insert(list.clone(), after[&list].clone());
            }
            write_all(dir, &files);
            (0..SHARDS).for_each(|shard| fs::create_dir_all(shard_dir(dir, shard)).unwrap());
            for round in 0..2 {
                let (told, started) = start_as(dir, DamagedFiles::Refuse);
                let node = started.unwrap_or_else(|error| panic!("{done}, {round}: {error:#}"));
                assert!(!told.contains("ERROR") && !told.contains("WARN"), "{told}");
                run_and_kill(node, dir);
            }
        }
    }
}

/// A list that finds no room fails no start, and nothing is missed that is not there.
#[test]
fn a_list_of_a_shard_without_room() {
    let place = directory();
    let dir = place.path();
    lay_out(dir, SHARDS).unwrap();
    let full = dir.join("shards/1/files.new");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let mut node = Open::start(dir, DamagedFiles::Refuse).unwrap();
    node.topology.import_definitions(&definitions(QUEUES)).unwrap();
    node.save();
    run_and_kill(node, dir);
    let lists = [0, 1].map(|shard| dir.join(format!("shards/{shard}/files")).exists());
    assert_eq!(lists, [true, false]);
    for _ in 0..2 {
        let (told, started) = start_as(dir, DamagedFiles::Refuse);
        assert!(started.is_ok(), "{:#}", started.err().unwrap());
        assert!(!told.contains("ERROR") && !told.contains("WARN"), "{told}");
        run_and_kill(started.unwrap(), dir);
    }
    fs::remove_file(full).unwrap();
    run_and_kill(start(dir).1.unwrap(), dir);
    empty(dir, 1);
    refused(dir, &["shards/1 is empty"]);
}

#[test]
fn without_a_list_others_lose_nothing() {
    type Change = fn(&Path);
    let lists: [(&str, Change); 3] = [
        ("made empty", |list| fs::write(list, []).unwrap()),
        ("removed", |list| fs::remove_file(list).unwrap()),
        ("damaged", |list| fs::write(list, [7; 640]).unwrap()),
    ];
    for (what, change) in lists {
        places_are_kept(End::Kill, what, |dir, _| {
            let shard = dir.join("shards/0");
            // Not the last: that says that there is a list.
            let all = segments(&shard);
            assert!(all.len() > 1, "{all:?}");
            all.iter().rev().skip(1).for_each(|file| fs::remove_file(file).unwrap());
            change(&shard.join("files"));
        });
    }
}

/// Takes a queue from the names, of which the shards are not told, and says which it was and how many messages it has.
fn lose_a_queue(made: &Made) -> (u64, usize) {
    let mut node = Open::start(made.dir.path(), DamagedFiles::Aside).unwrap();
    let vhost = node.topology.vhost("/").unwrap().id;
    let queue = node.topology.queues(vhost).last().unwrap().id;
    let _ = node.topology.remove_queue(queue);
    node.save();
    run_and_kill(node, made.dir.path());
    let messages = made.confirmed.iter().filter(|it| it.0 == queue.get());
    (queue.get(), messages.count())
}

#[test]
fn messages_of_names_that_are_lost_are_kept() {
    let made = made(End::Kill);
    let dir = made.dir.path();
    let (queue, messages) = lose_a_queue(&made);
    // As the refusal says when a file of names is gone.
    fs::write(dir.join("names/files"), []).unwrap();
    for round in 0..3 {
        let (told, started) = start(dir);
        let mut node = started.unwrap();
        assert_eq!((node.orphans, node.kept.orphans), (0, messages as u64), "{round}: {told}");
        let says =
            [format!("messages={messages} "), format!("queues=\"{queue}\""), "drop-orphans".into()];
        assert!(
            says.iter().all(|it| told.contains(it)) && told.contains("ERROR"),
            "{round}: {told}"
        );
        // No queue gets them that is declared now.
        node.topology.import_definitions(&definitions(QUEUES)).unwrap();
        node.save();
        let vhost = node.topology.vhost("/").unwrap().id;
        let again = node.topology.queues(vhost).iter().any(|it| it.id.get() == queue);
        assert!(!again, "{round}");
        run_and_kill(node, dir);
    }
    let mut config = leveret_config::Config::default();
    config.node.data_dir = Some(dir.display().to_string());
    assert!(drop_orphans(&config).unwrap());
    assert!(!drop_orphans(&config).unwrap());
    let (told, started) = start(dir);
    assert_eq!(started.unwrap().orphans, messages as u64, "they are let go: {told}");
}

#[test]
fn messages_of_queues_that_were_deleted_are_let_go() {
    let made = made(End::Kill);
    let (_, messages) = lose_a_queue(&made);
    let (told, started) = start(made.dir.path());
    assert_eq!(started.unwrap().orphans, messages as u64, "{told}");
    assert!(!made.dir.path().join("orphans.kept").exists());
}

#[test]
fn names_that_lost_nothing_keep_nothing() {
    let made = made(End::Kill);
    let dir = made.dir.path();
    fs::write(dir.join("names/files"), []).unwrap();
    let (told, started) = start(dir);
    assert!(started.is_ok() && !told.contains("drop-orphans"), "{told}");
    assert!(!dir.join("orphans.kept").exists(), "no longer");
}

#[test]
fn older_names_cost_no_message() {
    let made = made(End::Kill);
    let dir = made.dir.path();
    let right = contents(dir);
    restore(dir, &contents(made.earlier.path()), "names");
    refused(dir, &["is of an earlier time", "files empty", "drop-orphans"]);
    for shard in 0..SHARDS {
        fs::write(dir.join(format!("shards/{shard}/files")), []).unwrap();
    }
    let (told, started) = start(dir);
    let node = started.unwrap();
    assert!(node.kept.orphans > 0 && told.contains("drop-orphans"), "{told}");
    run_and_kill(node, dir);
    restore(dir, &right, "names");
    let (told, started) = start(dir);
    let (there, _) = found(&mut started.unwrap(), &made.places).unwrap();
    assert!(made.confirmed.is_subset(&there), "{told}");
    assert!(!dir.join("orphans.kept").exists(), "there are none");
}
