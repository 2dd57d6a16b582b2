//! Programs of the system that a chore needs.

use std::path::PathBuf;
use std::process::Command;

use anyhow::bail;

use crate::steps::succeed;

/// Makes sure that `name` can be run; if not, installs Debian's `packages` that hold it.
pub(crate) fn program(name: &str, packages: &str) -> anyhow::Result<()> {
    if find(name).is_some() {
        return Ok(());
    }
    if find("apt-get").is_none() {
        bail!("'{name}' is missing; install it (on Debian: {packages})");
    }
    println!("installing {packages}");
    let apt = || {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive");
        command
    };
    succeed(apt().args(["-qq", "update"]))?;
    let install = ["-qq", "install", "--yes", "--no-install-recommends"];
    succeed(apt().args(install).args(packages.split(' ')))
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}
