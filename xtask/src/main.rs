//! The chores of the project, behind one door: `cargo xtask`.

mod bench;
mod codegen;

use clap::Parser as _;

#[derive(clap::Parser)]
#[command(name = "cargo xtask", about)]
enum Chore {
    /// Write the generated sources anew
    Codegen {
        /// Only say whether they are up to date
        #[arg(long)]
        check: bool,
    },
    Bench(bench::BenchArgs),
}

fn main() -> anyhow::Result<()> {
    match Chore::parse() {
        Chore::Codegen { check } => codegen::run(check),
        Chore::Bench(args) => bench::run(args),
    }
}
