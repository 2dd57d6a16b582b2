//! The topology as its users see it.

mod common;
mod declare;
mod routing;
