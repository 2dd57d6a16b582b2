//! Programs of the system that a chore needs.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use anyhow::bail;

use crate::steps::succeed;

/// Debian's packages ask it whether their services may be started.
const POLICY: &str = "/usr/sbin/policy-rc.d";

/// While it is there, nothing that is installed is started as a service, where nothing else decides that.
struct Policy {
    is_ours: bool,
}

impl Policy {
    fn lay_down() -> Self {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(POLICY);
        Self {
            is_ours: file.is_ok_and(|mut file| file.write_all(b"#!/bin/sh\nexit 101\n").is_ok()),
        }
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        if self.is_ours {
            // What stays behind is told of by the next package that asks it.
            let _ = fs::remove_file(POLICY);
        }
    }
}

/// Makes sure that `name` can be run; if not, installs Debian's `packages` that hold it. Services are not started: a
/// broker of theirs would have the ports that tests need.
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
    let _policy = Policy::lay_down();
    let install = ["-qq", "install", "--yes", "--no-install-recommends"];
    succeed(apt().args(install).args(packages.split(' ')))
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}
