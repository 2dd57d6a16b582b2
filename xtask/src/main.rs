//! The chores of the project, behind one door: `cargo xtask`.
fn main() {}
