//! The chores of the project, behind one door: `cargo xtask`.

#![allow(clippy::print_stdout, reason = "a tool that talks to people")]

mod bench;
mod clients;
mod cluster;
mod codegen;
mod deny;
mod generate;
mod install;
mod node;
mod optimize;
mod package;
mod page;
mod programs;
mod steps;
mod suite;
mod tidy;

use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

/// The chores of the project.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Xtask {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// What to run before a commit: format, lints, tidy, generated files, documents, tests
    Check,
    /// Everything there is; the last line says how much passed and failed
    Test {
        /// Only these steps
        steps: Vec<String>,
    },
    /// Check the layers and the sources
    Tidy,
    /// Write every generated file
    Codegen {
        /// Write nothing; fail if a file is not fresh
        #[arg(long)]
        check: bool,
    },
    /// Check licences, versions, sources and advisories of the dependencies
    Deny,
    /// Run the simulator
    Sim(Passed),
    /// Play every recorded conversation to a new node
    Conform(Passed),
    /// Play one recorded conversation, or record it with --record
    Script(Passed),
    /// Run real clients' test suites against a running broker
    Clients {
        /// Only these suites
        names: Vec<String>,
        /// The broker's port on 127.0.0.1
        #[arg(long, default_value_t = 5672)]
        port: u16,
        /// The port of its management API
        #[arg(long, default_value_t = 15672)]
        http_port: u16,
    },
    /// Kill, stop and cut off real nodes of a cluster under traffic, and account for every message
    Cluster(cluster::ClusterArgs),
    /// Measure brokers and print a Markdown table
    Bench(Box<bench::BenchArgs>),
    /// Test the management page in a browser, against a new node; build it; take pictures of it
    Page {
        /// Only tests whose names hold one of these
        names: Vec<String>,
        /// Build it from its sources and write what is checked in
        #[arg(long, conflicts_with_all = ["names", "look"])]
        write: bool,
        /// Take pictures of every page of this broker, for example http://127.0.0.1:15672/
        #[arg(long, value_name = "ADDRESS", conflicts_with = "names")]
        look: Option<String>,
    },
    /// Load a running broker
    Load(Passed),
    /// Build the program as it is released, in target/optimized: two builds and a run under load between them
    Optimize,
    /// Build the Debian packages of the release build, in target/package
    Package {
        /// Of the program that `optimize` builds: what is released
        #[arg(long)]
        optimized: bool,
    },
}

/// Words for another program.
#[derive(Args)]
struct Passed {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<String>,
}

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("{error:#}");
        ExitCode::FAILURE
    })
}

fn run() -> anyhow::Result<ExitCode> {
    match Xtask::parse().chore {
        Chore::Check => suite::run(&suite::check(), &[]),
        Chore::Test { steps } => suite::run(&suite::test(), &steps),
        Chore::Tidy => done(tidy::run()),
        Chore::Codegen { check } => done(generate::run(check)),
        Chore::Deny => done(deny::run()),
        Chore::Sim(it) => programs::sim(&it.words),
        Chore::Conform(it) => programs::conform(&it.words),
        Chore::Script(it) => programs::script(&it.words),
        Chore::Clients { names, port, http_port } => {
            done(clients::run(&names, clients::Ports { amqp: port, http: http_port }))
        }
        Chore::Cluster(args) => done(cluster::run(&args).and_then(steps::all_passed)),
        Chore::Bench(args) => done(bench::run(&args)),
        Chore::Page { look: Some(address), .. } => done(page::look(&address)),
        Chore::Page { write: true, .. } => done(page::build(true).map(|_| ())),
        Chore::Page { names, .. } => done(page::browse(&names).and_then(steps::all_passed)),
        Chore::Load(it) => programs::load(&it.words),
        Chore::Optimize => done(optimize::build().map(|program| println!("{}", program.display()))),
        Chore::Package { optimized } => done(package::of_release(optimized)),
    }
}

fn done(result: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    result.map(|()| ExitCode::SUCCESS)
}

/// The directory of the workspace.
fn root() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}
