//! `leveret perf` as a program of its own, for machines that only make load.

fn main() -> std::process::ExitCode {
    leveret_load::main_of_process()
}
