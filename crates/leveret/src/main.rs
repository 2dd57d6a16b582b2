//! The `leveret` program.
fn main() {}
