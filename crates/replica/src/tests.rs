//! Tests: what the replica does at single messages, and a world of replicas with faults.

mod bench;
mod members;
mod pitfalls;
mod planted;
mod seeds;
mod world;
