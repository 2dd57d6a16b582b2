//! The chores of the project, behind one door: `cargo xtask`.

mod codegen;

fn main() -> anyhow::Result<()> {
    codegen::run(std::env::args().any(|arg| arg == "--check"))
}
