//! What an operator does after a refusal, or instead of reading it: whole directories that are gone, or older.

use super::*;

/// What is logged meanwhile, and how the start went.
fn start(dir: &Path) -> (String, anyhow::Result<Open>) {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let started =
        tracing::subscriber::with_default(subscriber, || Open::start(dir, DamagedFiles::Aside));
    let told = String::from_utf8_lossy(&lines.0.lock().unwrap()).into_owned();
    (told, started)
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
