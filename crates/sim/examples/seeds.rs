//! `cargo run -p leveret-sim --example seeds FIRST COUNT STEPS`
#![allow(clippy::print_stdout, reason = "the result of the program")]
fn main() {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().expect("a number"));
    let first = args.next().unwrap_or(0);
    let count = args.next().unwrap_or(100);
    let steps = args.next().unwrap_or(3000) as u32;
    match leveret_sim::run_seeds(first, count, steps) {
        Ok(report) => println!("{report:#?}"),
        Err(failure) => println!("{failure}"),
    }
}
