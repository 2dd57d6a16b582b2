//! The contract of [`Log`](crate::Log) as functions to run against any log.
