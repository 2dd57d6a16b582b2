//! Words that are too vague to be a type's whole name, and words with two meanings: the glossary lists both.

use std::collections::BTreeSet;

use anyhow::Context as _;

use super::{files, shown};
use crate::root;

const GLOSSARY: &str = "docs/glossary.md";

/// The heading of the glossary's list.
const HEADING: &str = "## Words that name no type";

/// The heading of its table of words that have two.
const SECOND_MEANINGS: &str = "## Words with a second meaning";

/// Checks every source of the workspace.
pub(super) fn check(breaches: &mut Vec<String>) -> anyhow::Result<()> {
    let glossary = std::fs::read_to_string(root().join(GLOSSARY)).context(GLOSSARY)?;
    let words = listed(&glossary);
    if words.is_empty() {
        breaches.push(format!("{GLOSSARY}: no words below '{HEADING}'"));
    }
    breaches.extend(unlisted(&glossary).map(|word| {
        format!("{GLOSSARY}: '{word}' has several rows, and none below '{SECOND_MEANINGS}'")
    }));
    for dir in ["crates", "xtask"] {
        for path in files(&root().join(dir), "rs")? {
            let name = shown(&path);
            if name.contains("/src/") {
                let text = std::fs::read_to_string(&path)?;
                breaches.extend(breaches_of(&name, &text, &words));
            }
        }
    }
    Ok(())
}

/// The words in backquotes in the first paragraph below the heading.
fn listed(glossary: &str) -> Vec<&str> {
    let Some((_, section)) = glossary.split_once(HEADING) else { return Vec::new() };
    let paragraph = section.trim_start().split("\n\n").next().unwrap_or_default();
    let quoted = paragraph.split('`').skip(1).step_by(2);
    quoted.filter(|word| word.chars().all(char::is_alphabetic)).collect()
}

/// Words with more than one row, and none among those with a second meaning.
fn unlisted(glossary: &str) -> impl Iterator<Item = &str> {
    let (all, seconds) = glossary.split_once(SECOND_MEANINGS).unwrap_or((glossary, ""));
    let seconds = seconds.split("\n## ").next().unwrap_or_default();
    let listed: BTreeSet<&str> = rows(seconds).collect();
    let mut seen = BTreeSet::new();
    let again = rows(all).filter(move |word| !seen.insert(*word));
    again.filter(move |word| *word != "word" && !word.starts_with('-') && !listed.contains(word))
}

/// The words in the first column of tables.
fn rows(text: &str) -> impl Iterator<Item = &str> {
    let columns = text.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    columns.flat_map(|words| words.split(", "))
}

/// The types of a source that have one of these words for a name. Types that a trait asks of those who implement it do not
/// count: iterators have an `Item`.
fn breaches_of(name: &str, text: &str, words: &[&str]) -> Vec<String> {
    let mut breaches = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let is_associated = code.starts_with(' ') && code.trim_start().starts_with("type ");
        let declared = code.split_once("struct ").or_else(|| code.split_once("enum "));
        let declared = declared.or_else(|| code.split_once("trait "));
        let declared = declared.or_else(|| code.split_once("type "));
        let Some((before, after)) = declared.filter(|_| !is_associated) else { continue };
        let word = after.split(|letter: char| !letter.is_alphanumeric()).next().unwrap_or_default();
        let is_declaration =
            before.trim_start().is_empty() || before.trim_start().starts_with("pub");
        if is_declaration && words.contains(&word) {
            breaches
                .push(format!("{name}:{}: '{word}' is no type's whole name: {GLOSSARY}", at + 1));
        }
    }
    breaches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn names() {
        check("pub(crate) struct Slot<T> {",      "a.rs:1: 'Slot' is no type's whole name: docs/glossary.md");
        check("    enum Item {",                  "a.rs:1: 'Item' is no type's whole name: docs/glossary.md");
        check("type Item = u64;",                 "a.rs:1: 'Item' is no type's whole name: docs/glossary.md");
        check("    type Item = u64;",             "");
        check("struct SlabSlot;",                 "");
        check("/// struct Slot",                  "");
        check("let text = \"a struct Slot\";",    "");
    }

    #[test]
    fn meanings() {
        let check = |glossary: &str, want: &[&str]| {
            assert_eq!(unlisted(glossary).collect::<Vec<_>>(), want, "{glossary}");
        };
        let rows =
            "| word | meaning |\n|---|---|\n| one, two | x |\n\n| word | meaning |\n| two | y |\n";
        check(rows, &["two"]);
        let seconds =
            "## Words with a second meaning\n\n| word | its term |\n|---|---|\n| two | z |\n";
        check(&format!("{rows}{seconds}\n## B\n| one | |"), &[]);
        check(&format!("{rows}{}", seconds.replace("two", "three")), &["two"]);
    }

    #[track_caller]
    fn check(source: &str, want: &str) {
        let glossary = "## A\n`Other`\n## Words that name no type\n\nNot `Slot`,\nnot `Item`.\n\nBut `SlabSlot`.\n\n## B\n`More`";
        let words = listed(glossary);
        assert_eq!(words, ["Slot", "Item"]);
        assert_eq!(breaches_of("a.rs", source, &words).join("\n"), want);
    }
}
