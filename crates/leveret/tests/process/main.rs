//! The broker as users run it: the built program, its sockets, its signals, its memory.
//!
//! Every test starts a node of its own on a port the system chooses, with its own data directory. Nothing
//! waits for a fixed time: tests wait for something with a name, and fail when it does not come.

mod auth;
mod bodies;
mod broker;
mod budget;
mod cluster;
mod control;
mod damage;
mod disk;
mod events;
mod experiment;
mod failover;
mod faults;
mod filling;
mod floods;
mod flow;
mod kill;
mod lines;
mod logins;
mod memory;
mod messages;
mod metrics;
mod migrate;
mod older;
mod rates;
mod raw;
mod restart;
mod shim;
mod start;
mod stop;
mod stored;
mod tls;
mod tools;
mod watchdog;
mod wire;
