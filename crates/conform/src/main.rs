//! Plays scripts to a broker by TCP, or records them from one.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use leveret_conform::tcp::Tcp;
use leveret_conform::{Outcome, Script, Settings, run};

/// Play recorded AMQP conversations to a broker.
///
/// Exit status: 0 all passed, 1 some failed.
#[derive(Parser)]
struct Options {
    /// Address of the broker
    #[arg(long, default_value = "127.0.0.1:5672")]
    address: SocketAddr,
    /// What the broker is: leveret, 3.10 or 4.x
    #[arg(long, default_value = "leveret")]
    dialect: String,
    /// Write what the broker says into the scripts
    #[arg(long)]
    record: bool,
    /// Silence that ends the recording of one step, in milliseconds
    #[arg(long, default_value_t = 150)]
    quiet_ms: u64,
    /// Longest wait for one expected line, in seconds
    #[arg(long, default_value_t = 20)]
    deadline_s: u64,
    /// Only conversations whose name contains this
    #[arg(long, default_value = "")]
    only: String,
    /// Scripts, or folders of them
    #[arg(default_value = "tests/scripts")]
    scripts: Vec<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    let mut dialects = vec![options.dialect.clone()];
    if options.dialect != "3.10" {
        dialects.push("3.10".to_owned());
    }
    let settings = Settings {
        dialects,
        deadline: Duration::from_secs(options.deadline_s),
        record: options.record.then(|| Duration::from_millis(options.quiet_ms)),
    };
    let mut files = Vec::new();
    for path in &options.scripts {
        if path.is_dir() {
            for entry in std::fs::read_dir(path)? {
                let path = entry?.path();
                if path.extension().is_some_and(|e| e == "txt") {
                    files.push(path);
                }
            }
        } else {
            files.push(path.clone());
        }
    }
    files.sort();
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    let mut out = std::io::stdout();
    for file in files {
        let text = std::fs::read_to_string(&file).with_context(|| format!("{}", file.display()))?;
        let name = file.display().to_string();
        let script = Script::parse(&name, &text).map_err(anyhow::Error::msg)?;
        let report = run(&script, &mut Tcp::new(options.address), &settings, &options.only);
        for (name, outcome) in &report.outcomes {
            match outcome {
                Outcome::Passed => passed += 1,
                Outcome::Skipped(_) => skipped += 1,
                Outcome::Failed(why) => {
                    failed += 1;
                    writeln!(out, "FAILED {name}\n  {why}")?;
                }
            }
        }
        if let Some(text) = report.rewritten {
            writeln!(out, "recorded {}", file.display())?;
            std::fs::write(&file, text)?;
        }
        out.flush()?;
    }
    writeln!(out, "{passed} passed, {failed} failed, {skipped} skipped")?;
    if failed > 0 {
        std::process::exit(1);
    }
    Ok(())
}
