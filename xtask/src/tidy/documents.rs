//! What documents name must be there: paths of the workspace, and what the manual links to.

use std::path::Path;

use anyhow::Context as _;

use crate::root;

/// Beginnings of words that are paths of the workspace.
const PATHS: [&str; 6] = ["crates/", "docs/", "xtask/", "tests/", "fuzz/", ".ci/"];

/// Checks the documents beside the sources, and the manual.
pub(super) fn check(breaches: &mut Vec<String>) -> anyhow::Result<()> {
    for document in ["ARCHITECTURE.md", "HACKING.md", "README.md", "CHANGELOG.md"] {
        let Ok(text) = std::fs::read_to_string(root().join(document)) else { continue };
        for (line, path) in paths(&text) {
            if !root().join(&path).exists() {
                breaches.push(format!("{document}:{line}: {path} is not there"));
            }
        }
        if document == "ARCHITECTURE.md" {
            for entry in std::fs::read_dir(root().join("crates"))? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                // The program itself is in the picture, not in the table.
                if name != "leveret" && !text.contains(&format!("`{name}`")) {
                    breaches.push(format!("{document}: no word about the crate `{name}`"));
                }
            }
        }
    }
    let mut pages = vec![root().join("README.md")];
    for entry in std::fs::read_dir(root().join("docs"))? {
        pages.push(entry?.path());
    }
    pages.retain(|page| page.extension().is_some_and(|ending| ending == "md"));
    pages.sort();
    for page in pages {
        check_links(&page, breaches)?;
    }
    Ok(())
}

/// Checks where a page leads to: other pages, and headings in them.
fn check_links(page: &Path, breaches: &mut Vec<String>) -> anyhow::Result<()> {
    let dir = page.parent().context("a page is in a directory")?;
    let text = std::fs::read_to_string(page)?;
    for (line, link) in links(&text) {
        let (path, heading) = link.split_once('#').unwrap_or((link, ""));
        let target = if path.is_empty() { page.to_owned() } else { dir.join(path) };
        let is_there = match heading {
            "" => target.exists(),
            heading => {
                std::fs::read_to_string(&target).is_ok_and(|text| has_heading(&text, heading))
            }
        };
        if !is_there {
            breaches.push(format!("{}:{line}: {link} leads nowhere", page.display()));
        }
    }
    Ok(())
}

/// Links that are not to other sites, with their lines.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().flat_map(|(at, line)| {
        let links = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        links.filter(|link| !link.contains("://")).map(move |link| (at + 1, link))
    })
}

/// Whether a heading becomes this anchor: small letters, `-` for spaces, no signs.
fn has_heading(text: &str, anchor: &str) -> bool {
    let headings = text.lines().filter_map(|line| line.strip_prefix('#'));
    let mut anchors = headings.map(|heading| {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>()
    });
    anchors.any(|own| own == anchor)
}

/// The paths of the workspace that a text names between backquotes, with their lines.
fn paths(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut in_block = false;
    for (at, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        }
        if in_block {
            continue;
        }
        for word in line.split('`').skip(1).step_by(2) {
            let is_pattern = word.contains(['*', '<', '{', ' ', '$']);
            if PATHS.iter().any(|start| word.starts_with(start)) && !is_pattern {
                found.push((at + 1, word.to_owned()));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_found() {
        let text = "see `crates/a` and `cargo x`,\n```\n`crates/b`\n```\n`docs/<x>` `docs/y.md`";
        assert_eq!(paths(text), [(1, "crates/a".to_owned()), (5, "docs/y.md".to_owned())]);
    }

    #[test]
    fn links_are_found() {
        let text = "see [a](b.md) and [c](https://d/e)\n[f](#g-h)";
        assert_eq!(links(text).collect::<Vec<_>>(), [(1, "b.md"), (2, "#g-h")]);
        assert!(has_heading("# A\n## Acks that do not come: x\n", "acks-that-do-not-come-x"));
        assert!(!has_heading("# A\n", "b"));
    }
}
