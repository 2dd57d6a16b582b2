//! A system that fails, or whose clock is set: a library that is loaded into the broker and looks, at each call
//! that can fail, into a file that the test writes.
//!
//! The broker is the one that users run, and so are its files; only what the system answers is another.

use std::path::PathBuf;
use std::process::Command;
use std::sync::LazyLock;

use crate::broker::{Broker, leveret};

/// Names and numbers: `fdatasync=5` makes every such call fail with error 5, `sync_ms=100` makes it last
/// longer, `read_ms=100` a read, `hold_fill=1` holds the reads that fill queues until it is gone,
/// `hold_turns=1` the threads that run turns as soon as they look at a clock, `hold_log=1` writes to a file `*.log`, `list=5` makes writes and syncs of lists of files fail, `clock=-60` sets the system's clock back by a minute.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long fault(const char *name) {
    char text[256];
    int before = errno;
    const char *path = getenv("FAULTS");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t len = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    errno = before;
    text[len < 0 ? 0 : len] = 0;
    const char *at = strstr(text, name);
    return at ? strtol(at + strlen(name), 0, 10) : 0;
}

static int fails(const char *name) {
    long error = fault(name);
    if (error) errno = error;
    return error != 0;
}

static int is_named(int fd, const char *end) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path), of_end = strlen(end);
    return len > of_end && !memcmp(path + len - of_end, end, of_end);
}

static int list_fails(int fd) {
    return fault("list=") && is_named(fd, "/files") && fails("list=");
}

static void last(long ms) {
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (ms && nanosleep(&left, &left) == -1 && errno == EINTR) {
    }
}

/// Threads whose names begin with `threads` stand still.
static void hold(const char *name, const char *threads) {
    char thread[16];
    while (fault(name) && !prctl(PR_GET_NAME, thread) && !memcmp(thread, threads, strlen(threads))) last(5);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    hold("hold_turns=", "leveret-");
    int result = syscall(SYS_clock_gettime, id, at);
    if (result == 0 && id == CLOCK_REALTIME) at->tv_sec += fault("clock=");
    return result;
}

int fdatasync(int fd) {
    last(fault("sync_ms="));
    return fails("fdatasync=") || list_fails(fd) ? -1 : syscall(SYS_fdatasync, fd);
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at) {
    return fails("pwrite64=") || list_fails(fd) ? -1 : syscall(SYS_pwrite64, fd, bytes, len, at);
}

ssize_t write(int fd, const void *bytes, size_t len) {
    while (fault("hold_log=") && is_named(fd, ".log")) last(5);
    return syscall(SYS_write, fd, bytes, len);
}

ssize_t pread64(int fd, void *bytes, size_t len, off64_t at) {
    hold("hold_fill=", "fill-");
    last(fault("read_ms="));
    return fails("pread64=") ? -1 : syscall(SYS_pread64, fd, bytes, len, at);
}
"#;

/// Compiled once for all tests of the process.
static LIBRARY: LazyLock<(tempfile::TempDir, PathBuf)> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let (source, library) = (dir.path().join("faults.c"), dir.path().join("faults.so"));
    std::fs::write(&source, SOURCE).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o"]).arg(&library).arg(&source);
    assert!(cc.status().unwrap().success());
    (dir, library)
});

/// The faults of one broker.
#[derive(Debug)]
pub(crate) struct Shim(tempfile::TempDir);

impl Shim {
    /// Without faults.
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("faults")
    }

    /// From now on these and no others.
    pub(crate) fn set(&self, faults: &str) {
        let new = self.0.path().join("new");
        std::fs::write(&new, faults).unwrap();
        std::fs::rename(&new, self.file()).unwrap();
    }

    /// A broker with them, on this directory.
    #[track_caller]
    pub(crate) fn broker(&self, dir: tempfile::TempDir) -> Broker {
        Broker::spawn(self.command(), dir)
    }

    /// A broker with them and with these settings.
    #[track_caller]
    pub(crate) fn with(&self, settings: &[&str]) -> Broker {
        let mut command = self.command();
        command.args(settings.iter().flat_map(|setting| ["--set", setting]));
        Broker::spawn(command, tempfile::tempdir().unwrap())
    }

    fn command(&self) -> Command {
        let mut command = leveret(&["serve", "--listen", "127.0.0.1:0"]);
        self.load_into(&mut command);
        command
    }

    /// Has this command run with the library.
    pub(crate) fn load_into(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &LIBRARY.1).env("FAULTS", self.file());
    }

    /// A broker on this directory that lets clients in and does not fill its queues before there are other faults.
    #[track_caller]
    pub(crate) fn filling(&self, dir: tempfile::TempDir) -> Broker {
        self.set("hold_fill=1");
        let mut command = self.command();
        command.arg("--data-dir").arg(dir.path());
        Broker::spawn_until("clients may come in", command, dir)
    }
}
