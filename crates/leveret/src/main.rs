//! The `leveret` program: the broker, its control tool and its load tool in one file.

mod cli;
mod memory;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{FromArgMatches as _, Parser as _};
use leveret_config::{Config, Loaded, files};
use leveret_ctl::{CtlArgs, Local};
use leveret_server::Signals;
use leveret_server::check::Checked;
use leveret_server::front::Fronts;
use rustix::process::{Signal, getpid, kill_process};

use cli::{Cli, DropOrphansArgs, Part, PerfPart, PerfWords, ServeArgs};

/// `sysexits.h`: the command line, the program itself, the configuration.
const USAGE: u8 = 64;
const SOFTWARE: u8 = 70;
const CONFIG: u8 = 78;

fn main() -> ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    if let Some((tool, words)) = tool(&words) {
        let parsed = tool.try_get_matches_from(words);
        return match parsed.and_then(|given| CtlArgs::from_arg_matches(&given)) {
            Ok(args) => ctl(&args),
            Err(told) => tell(&told),
        };
    }
    match Cli::try_parse_from(words).map(|cli| cli.part) {
        Err(told) => tell(&told),
        Ok(Part::Serve(args)) => serve(args),
        Ok(Part::Ctl(args)) => ctl(&args),
        Ok(Part::Migrate(args)) => leveret_migrate::main(&args, local().socket),
        Ok(Part::DropOrphans(args)) => drop_orphans(args),
        Ok(Part::Perf(PerfWords { part: Some(PerfPart::Experiment(args)), .. })) => {
            leveret_experiment::main(&args)
        }
        Ok(Part::Perf(PerfWords { part: Some(PerfPart::Probe(args)), .. })) => {
            leveret_load::probe::main(&args)
        }
        Ok(Part::Perf(PerfWords { load, .. })) => leveret_load::main(load),
        Ok(Part::Man { page }) => print_or_refuse(cli::manual(page.as_deref()), "such page"),
        Ok(Part::Completion { shell, program }) => {
            let script = cli::program(&program).map(|mut command| {
                let mut script = Vec::new();
                clap_complete::generate(shell, &mut command, program, &mut script);
                script
            });
            print_or_refuse(script, "such program")
        }
    }
}

/// One of RabbitMQ's tools, if the program is called by a link of that name, or if that is its first word; and
/// the words of that tool.
fn tool(words: &[OsString]) -> Option<(clap::Command, &[OsString])> {
    let of = |word: &OsString| leveret_ctl::tool(Path::new(word).file_name()?.to_str()?);
    let second = || Some((of(words.get(1)?)?, &words[1..]));
    words.first().and_then(of).map(|tool| (tool, words)).or_else(second)
}

/// What is wrong with the command line, or help and versions; a reader who has enough is no failure.
fn tell(told: &clap::Error) -> ExitCode {
    let _ = told.print();
    if told.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS }
}

fn ctl(args: &CtlArgs) -> ExitCode {
    leveret_ctl::main(args, local())
}

/// The node of this machine.
fn local() -> Local {
    // A broken configuration must not keep anybody from stopping a node.
    let (config, doubt) = match files::load(None, Vec::new()) {
        Ok(loaded) => (loaded.config, None),
        Err(errors) => {
            let doubt =
                format!("The configuration may name another one, but cannot be read:\n{errors}");
            (Config::default(), Some(doubt))
        }
    };
    let (socket, node) = (files::ctl_socket(&config), leveret_server::node_name(&config));
    let rabbitmq_version = leveret_server::COMPATIBLE_VERSION;
    Local { socket, doubt, node, rabbitmq_version }
}

fn serve(args: ServeArgs) -> ExitCode {
    let loaded = match files::load(args.config.as_deref(), args.options.settings) {
        Ok(loaded) => loaded,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::from(CONFIG);
        }
    };
    if args.check {
        return check(&loaded);
    }
    let signals = match Signals::take() {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("leveret: cannot wait for signals: {error}");
            return ExitCode::from(SOFTWARE);
        }
    };
    // Only now: it ends the node by one.
    if args.until_eof {
        std::thread::spawn(stop_at_eof);
    }
    let (broker, standby) =
        (leveret_admin::front(&loaded.config), leveret_admin::standby(&loaded.config));
    match leveret_server::serve(&loaded, signals, Fronts { broker, standby }, memory::give_back) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leveret: {error:#}");
            ExitCode::from(SOFTWARE)
        }
    }
}

/// Tells all that a start would refuse, and what was looked at.
fn check(loaded: &Loaded) -> ExitCode {
    for notice in &loaded.notices {
        eprintln!("{}: {}", if notice.is_warning { "warning" } else { "info" }, notice.text);
    }
    let Checked { looked_at, faults } = leveret_server::check::check(loaded);
    let looked_at: String = looked_at.iter().map(|what| format!("checked: {what}\n")).collect();
    let text = format!("{looked_at}not checked: ports in use, stored messages and names\n");
    let printed = print_or_refuse(Some(text.into_bytes()), "such text");
    faults.iter().for_each(|fault| eprintln!("error: {fault}"));
    if faults.is_empty() { printed } else { ExitCode::from(CONFIG) }
}

fn drop_orphans(args: DropOrphansArgs) -> ExitCode {
    let loaded = match files::load(args.config.as_deref(), args.options.settings) {
        Ok(loaded) => loaded,
        Err(errors) => {
            eprintln!("{errors}");
            return ExitCode::from(CONFIG);
        }
    };
    let text = match leveret_server::drop_orphans(&loaded.config) {
        Ok(true) => "the next start lets go of messages whose queues are not known\n",
        Ok(false) => "no messages are kept whose queues are not known\n",
        Err(error) => {
            eprintln!("leveret: {error:#}");
            return ExitCode::from(SOFTWARE);
        }
    };
    print_or_refuse(Some(text.as_bytes().to_vec()), "such text")
}

/// Reads standard input to its end, and then stops this process as an operator would.
fn stop_at_eof() {
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    let _ = kill_process(getpid(), Signal::TERM);
}

fn print_or_refuse(text: Option<Vec<u8>>, what: &str) -> ExitCode {
    let Some(text) = text else {
        eprintln!("leveret: there is no {what}");
        return ExitCode::from(USAGE);
    };
    match std::io::stdout().write_all(&text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(SOFTWARE),
    }
}
