//! A disk whose sync takes longer: a library that is loaded into the broker and sleeps before each sync.
//!
//! The broker is the one that users run. The kernel, the file system and the device are left as they
//! are, so writes cost what they cost; only who waits for a sync waits longer, as on a disk whose
//! cache has to be emptied first.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// The program's syncs come through the C library, which looks here first.
const SHIM: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sys/types.h>
#include <time.h>

static void delay(void) {
    struct timespec left = {DELAY_NS / 1000000000LL, DELAY_NS % 1000000000LL};
    while (nanosleep(&left, &left) == -1 && errno == EINTR) {
    }
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    delay();
    return real(fd);
}

int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    delay();
    return real(fd);
}

int sync_file_range(int fd, off64_t offset, off64_t length, unsigned flags) {
    int (*real)(int, off64_t, off64_t, unsigned) =
        (int (*)(int, off64_t, off64_t, unsigned))dlsym(RTLD_NEXT, "sync_file_range");
    delay();
    return real(fd, offset, length, flags);
}
"#;

/// The compiled library; goes with this value.
#[derive(Debug)]
pub(crate) struct SlowDisk {
    directory: PathBuf,
}

impl SlowDisk {
    /// Compiles the library for this delay.
    pub(crate) fn new(delay: Duration) -> Result<Self> {
        let name = format!("leveret-bench-sync-{}", std::process::id());
        let it = Self { directory: std::env::temp_dir().join(name) };
        std::fs::create_dir_all(&it.directory)?;
        let source = it.directory.join("slow.c");
        std::fs::write(&source, SHIM)?;
        let compiled = Command::new("cc")
            .args(["-O1", "-shared", "-fPIC", "-Wall", "-Werror"])
            .arg(format!("-DDELAY_NS={}LL", delay.as_nanos()))
            .arg("-o")
            .arg(it.library())
            .arg(&source)
            .arg("-ldl")
            .status()
            .context("running cc")?;
        if !compiled.success() {
            bail!("the library that slows syncs down does not compile");
        }
        Ok(it)
    }

    /// What `LD_PRELOAD` is to name.
    pub(crate) fn library(&self) -> PathBuf {
        self.directory.join("slow.so")
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Reads `5ms`, `250us`, `1s`.
pub(crate) fn parse_delay(text: &str) -> Result<Duration, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| format!("no number in '{text}'"))?;
    match unit {
        "us" => Ok(Duration::from_micros(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => Err(format!("'{text}': the units are us, ms and s")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    #[rustfmt::skip] // a table
    fn delays_have_units() {
        assert_eq!(parse_delay("5ms"),   Ok(Duration::from_millis(5)));
        assert_eq!(parse_delay("250us"), Ok(Duration::from_micros(250)));
        assert_eq!(parse_delay("1s"),    Ok(Duration::from_secs(1)));
        assert!(parse_delay("5").is_err());
        assert!(parse_delay("ms").is_err());
    }

    #[test]
    fn a_sync_takes_longer() {
        let slow = SlowDisk::new(Duration::from_millis(200)).unwrap();
        let began = Instant::now();
        // `sync FILE` of coreutils is one fsync.
        let synced = Command::new("sync")
            .arg(slow.directory.join("slow.c"))
            .env("LD_PRELOAD", slow.library())
            .status();
        assert!(synced.unwrap().success());
        assert!(began.elapsed() >= Duration::from_millis(200));
    }
}
