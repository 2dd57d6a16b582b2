//! The machine that an experiment runs on.

use std::{fmt, fs};

use serde::Serialize;

/// What a reader has to know of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Machine {
    /// Processors this process may use.
    pub(crate) cores: usize,
    /// What they are.
    pub(crate) processor: String,
    /// Memory in bytes.
    pub(crate) memory_bytes: u64,
    /// The kernel and its version.
    pub(crate) kernel: String,
}

impl Machine {
    /// This machine, as far as `/proc` tells.
    pub(crate) fn here() -> Self {
        let read = |name: &str| fs::read_to_string(format!("/proc/{name}")).unwrap_or_default();
        let memory_kib = after(&read("meminfo"), "MemTotal")
            .and_then(|it| it.split(' ').next()?.parse::<u64>().ok());
        let kernel = |part| read(&format!("sys/kernel/{part}")).trim().to_owned();
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            processor: after(&read("cpuinfo"), "model name").unwrap_or_default(),
            memory_bytes: memory_kib.unwrap_or(0) * 1024,
            kernel: format!("{} {}", kernel("ostype"), kernel("osrelease")),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cores, processor, memory_bytes, kernel } = self;
        let gib = *memory_bytes as f64 / f64::from(1 << 30);
        write!(f, "{cores} cores ({processor}), {gib:.1} GiB of memory, {kernel}")
    }
}

/// What follows `key` and a colon.
fn after(text: &str, key: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_something() {
        let here = Machine::here();
        assert!(here.cores > 0 && here.memory_bytes > 0);
        assert!(here.kernel.starts_with("Linux "), "{}", here.kernel);
    }

    #[test]
    fn lines_of_proc() {
        let text = "processor\t: 0\nmodel name\t: A  CPU @ 2 GHz\n";
        assert_eq!(after(text, "model name").as_deref(), Some("A  CPU @ 2 GHz"));
        assert_eq!(after(text, "cache"), None);
    }
}
