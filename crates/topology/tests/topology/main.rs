//! The topology as its users see it.

mod access;
mod bounds;
mod brought;
mod changes;
mod common;
mod declare;
mod definitions;
mod going;
mod policies;
mod routing;
mod scale;
mod stored;
