//! x
#![allow(dead_code)]
mod client;
mod plan;
mod random;
mod shadow;
mod trace;
