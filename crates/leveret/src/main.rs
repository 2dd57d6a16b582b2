//! The `leveret` program: the broker, its control tool and its load tool in one file.

mod allocator;
mod cli;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use leveret_config::files;

use cli::{Cli, Part, ServeArgs};

/// `sysexits.h`: the command line, the program itself, the configuration.
const USAGE: u8 = 64;
const SOFTWARE: u8 = 70;
const CONFIG: u8 = 78;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(told) => {
            // Help and version end here too; a reader who has enough is no failure.
            let _ = told.print();
            return if told.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match cli.part {
        Part::Serve(args) => serve(args),
        Part::Ctl(args) => {
            // A broken configuration must not keep anybody from stopping a node.
            let config = files::load(None, Vec::new()).map(|it| it.config).unwrap_or_default();
            leveret_ctl::main(args, &files::ctl_socket(&config))
        }
        Part::Perf(args) => leveret_load::main(args),
        Part::Man => print(&cli::manual()),
        Part::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "leveret", &mut script);
            print(&script)
        }
    }
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
        loaded.notices.iter().for_each(|notice| eprintln!("{}", notice.text));
        return ExitCode::SUCCESS;
    }
    let front = leveret_admin::front(&loaded.config);
    match leveret_server::serve(&loaded, front, allocator::give_back) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leveret: {error:#}");
            ExitCode::from(SOFTWARE)
        }
    }
}

fn print(text: &[u8]) -> ExitCode {
    match std::io::stdout().write_all(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(SOFTWARE),
    }
}
