//! Files that are made from others and checked in.
//!
//! A new generator is one more line in [`run`]. It writes its files, or with `check` writes nothing
//! and fails if one is not fresh.

use std::path::Path;

use anyhow::{Context as _, ensure};

use crate::{codegen, root, tidy};

/// Runs every generator.
pub(crate) fn run(check: bool) -> anyhow::Result<()> {
    codegen::run(check)?;
    fresh("docs/configuration.md", &leveret_config::page::markdown(), check)?;
    for name in tidy::SANS_IO {
        fresh(&format!("crates/{name}/clippy.toml"), &tidy::clippy_toml(), check)?;
    }
    Ok(())
}

/// Writes `text` to a file of the workspace if it differs; with `check`, a difference is an error.
fn fresh(name: &str, text: &str, check: bool) -> anyhow::Result<()> {
    let path: &Path = &root().join(name);
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    ensure!(!check, "{name} is not fresh: run `cargo xtask codegen`");
    println!("writing {name}");
    std::fs::write(path, text).with_context(|| format!("writing {name}"))
}

#[cfg(test)]
mod tests {
    #[test]
    fn files_are_fresh() {
        super::run(true).unwrap();
    }
}
