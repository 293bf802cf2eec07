//! Networked buffer: caller and callee on different hosts, Redis or Valkey between them (`docs/modes.md`).
//!
//! Runs in the shim daemon; guests and workers never see Redis. This module moves bytes and keeps names; who
//! may call whom and what an answer means is the shim's ([`crate::shim::network`]). Sole importer of `redis`.
//!
//! - [`backoff`]: pauses between attempts.
//! - [`link`]: the connections, kept up, with the channels that this daemon listens to.
//! - [`session`]: commands on one set of connections; gone with it. [`NetworkError`]: why one failed.
//! - [`claims`]: large payloads as chunks that expire, put and taken at the same time.
//! - `bulk`, `resp`: the connections that chunks take, and Redis' wire protocol on them.
//! - [`streams`]: messages that are kept until they are handled.
//! - [`locations`]: which instances of a function exist, with expiry.
//!
//! | name in Redis | what |
//! |---|---|
//! | `cwasi:in:<instance>` | channel of one callable instance |
//! | `cwasi:re:<shim>` | channel of one shim for answers |
//! | `cwasi:try:<try id>` | who decided first about one publication of a call |
//! | `cwasi:pay:<random>` | list: which chunks of one payload are there |
//! | `cwasi:pay:<random>:<index>` | one chunk |
//! | `cwasi:pay:<random>:stop` | nobody wants the others |
//! | `cwasi:fn:<identity>` | set: instances of a function |
//! | `cwasi:at:<instance>` | location of one instance |
//! | `cwasi:since` | expires so long after this database was first written to: tells how old it is |
//! | `cwasi:ev:<identity>` | stream: messages for a function, group `cwasi` |
//! | `cwasi:dead:<identity>` | stream: messages that its handler failed to handle |
//!
//! All of them begin with `cwasi:`, so `~cwasi:* &cwasi:*` is what an ACL user needs.

pub mod backoff;
mod bulk;
pub mod claims;
mod error;
pub mod link;
pub mod locations;
mod resp;
pub mod session;
pub mod streams;

pub use backoff::Backoff;
pub use error::NetworkError;
pub use link::{Link, Listener, Target};
pub use session::Session;

use crate::wire::ids::Identity;
use crate::wire::network::TryId;

/// Channel of one callable instance.
#[must_use]
pub fn instance_channel(instance: &str) -> String {
    format!("cwasi:in:{instance}")
}

/// Channel for the answers to one shim.
#[must_use]
pub fn reply_channel(shim: &str) -> String {
    format!("cwasi:re:{shim}")
}

fn try_key(id: TryId) -> String {
    format!("cwasi:try:{}", hex::encode(id.0))
}

fn instances_key(identity: &Identity) -> String {
    format!("cwasi:fn:{}", identity.short())
}

fn location_key(instance: &str) -> String {
    format!("cwasi:at:{instance}")
}
