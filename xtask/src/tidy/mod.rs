//! Rules of the house that no compiler checks.
//!
//! | rule | in |
//! |---|---|
//! | who may depend on whom | [`layers`] |
//! | what a source may not contain, sizes, unreachable files | [`sources`] |
//! | paths and crates that documents name | [`documents`] |
//! | options that nobody reads | [`options`] |
//! | words that are no type's whole name | [`words`] |

mod documents;
mod layers;
mod options;
mod sources;
mod words;

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::root;

pub(crate) use layers::SANS_IO;
pub(crate) use sources::clippy_toml;

/// Checks every rule and tells every breach at once.
pub(crate) fn run() -> anyhow::Result<()> {
    let mut breaches = Vec::new();
    layers::check(&mut breaches)?;
    sources::check(&mut breaches)?;
    documents::check(&mut breaches)?;
    options::check(&mut breaches)?;
    words::check(&mut breaches)?;
    if breaches.is_empty() {
        return Ok(());
    }
    bail!("{}", breaches.join("\n"));
}

/// Every file below `dir` whose name has this ending, in order.
fn files(dir: &Path, ending: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    if dir.is_dir() {
        for entry in std::fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                found.extend(files(&path, ending)?);
            } else if path.extension().is_some_and(|it| it == ending) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// A path as people write it: from the root of the workspace.
fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_house_is_tidy() {
        super::run().unwrap();
    }
}
