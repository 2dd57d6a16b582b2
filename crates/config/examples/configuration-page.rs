//! Writes the text of `docs/configuration.md` to standard output.

use std::io::Write as _;

fn main() -> std::io::Result<()> {
    std::io::stdout().write_all(leveret_config::page::markdown().as_bytes())
}
