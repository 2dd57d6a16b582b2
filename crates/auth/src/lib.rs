//! Users who are kept elsewhere: web services, directories, tokens that somebody else signs.
//!
//! A [`UserSource`] says who a user is; what it says includes the [`Rights`](leveret_topology::rights::Rights) that
//! say what the user may do. [`Sources`] are all that are configured, in the order in which they are asked.
//! Nothing here is for a thread that serves clients: everything may take its time.
//!
//! ```text
//!   Sources --> entry: authn, authz --> Http --------> a web service
//!                                   --> Ldap --------> a directory
//!                                   --> OAuth2 ------> a token, keys from its issuer
//!                                   --> Cache -------> one of these
//!                                   --> (none) ------> the names, which the server knows
//! ```

mod cache;
mod client;
mod http;
mod keys;
mod ldap;
mod oauth2;
mod scope;
mod source;

pub use source::{Candidate, Denied, SourcePair, Sources, TlsMaker, UserSource, network_of};
