//! What documents name must be there.

use crate::root;

/// Beginnings of words that are paths of the workspace.
const PATHS: [&str; 6] = ["crates/", "docs/", "xtask/", "tests/", "fuzz/", ".ci/"];

/// Checks `ARCHITECTURE.md` and `README.md`, as far as they are written.
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
    Ok(())
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
}
