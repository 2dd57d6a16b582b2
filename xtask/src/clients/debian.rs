//! Files of Debian's archive, from the mirror that this machine's apt is set up for.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};

use super::tools::SuitePlace;

/// apt's own downloader: it knows apt's proxies, and refuses a file with another checksum.
const HELPER: &str = "/usr/lib/apt/apt-helper";

/// A file of the archive.
#[derive(Debug)]
pub(super) struct File {
    /// Below the mirror's root.
    pub path: &'static str,
    /// Its checksum.
    pub sha256: &'static str,
}

/// Fetches a tar archive, once, and unpacks it into `into`, which is made anew. The archive's own top
/// folder is left out.
pub(super) fn unpack(place: &SuitePlace, file: &File, into: &Path) -> anyhow::Result<()> {
    let name = file.path.rsplit('/').next().unwrap_or(file.path);
    let archive = place.dir.join(name);
    if !archive.exists() {
        fetch(place, file, &archive)?;
    }
    if into.exists() {
        fs::remove_dir_all(into)?;
    }
    fs::create_dir_all(into)?;
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(&archive).arg("-C").arg(into).arg("--strip-components=1");
    place.must("unpack", 2, &mut tar)?;
    Ok(())
}

/// Fetches a file.
pub(super) fn fetch(place: &SuitePlace, file: &File, to: &Path) -> anyhow::Result<()> {
    let mut said = String::new();
    for mirror in mirrors(place)? {
        let uri = format!("{}/{}", mirror.trim_end_matches('/'), file.path);
        let mut download = Command::new(HELPER);
        download.args(["download-file", &uri]).arg(to).arg(format!("SHA256:{}", file.sha256));
        let (output, ok) = place.run("download", 3, &mut download)?;
        if ok {
            return Ok(());
        }
        // What did not have the right checksum must not be there the next time.
        let _ = fs::remove_file(to);
        said = output;
    }
    bail!("no mirror of this machine's apt has {}\n{said}", file.path)
}

/// Roots of the archives that apt fetches packages from: one for each `URIs:` in its sources.
pub(super) fn mirrors(place: &SuitePlace) -> anyhow::Result<Vec<String>> {
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]);
    let output = place
        .must("mirrors", 1, &mut targets)
        .context("this suite's source comes from a mirror of Debian, by apt")?;
    let mut roots: Vec<String> = output.lines().map(str::to_owned).collect();
    roots.sort_unstable();
    roots.dedup();
    Ok(roots)
}
