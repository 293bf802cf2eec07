//! Networked buffer: caller and callee on different hosts, Redis or Valkey between them (`docs/modes.md`).
//!
//! Runs in the shim daemon; guests and workers never see Redis. This module moves bytes and stores names. The shim
//! (`cwasi_host::network`) decides who may call whom, and interprets answers. Sole importer of `redis`.
//!
//! - [`backoff`]: pauses between attempts.
//! - [`link`]: keeps the connections up and subscribes to this daemon's channels.
//! - `target`: where Redis is.
//! - [`session`]: commands on one set of connections. [`NetworkError`]: their errors.
//! - [`claims`]: large payloads as chunks that expire, sent and received at the same time.
//! - `bulk`, `resp`: the connections for chunks, and Redis' wire protocol on them.
//! - [`streams`]: messages that are kept until they are handled. [`quota`]: how much of them.
//! - [`locations`]: the instances of each function, with expiry.
//! - [`nodes`]: the keys of nodes for direct connections.
//! - [`channels`]: which shim listens to a channel of others for a function.
//! - [`demand`]: functions that are started on demand, and their calls.
//!
//! | name in Redis | content |
//! |---|---|
//! | `cwasi:in:<instance>` | channel of one callable instance |
//! | `cwasi:re:<shim>` | channel of one shim for answers |
//! | `cwasi:try:<try id>` | the first decision about one publication of a call |
//! | `cwasi:pay:<random>` | list: the chunks of one payload that are there |
//! | `cwasi:pay:<random>:<index>` | one chunk |
//! | `cwasi:pay:<random>:stop` | the receiver wants no further chunks |
//! | `cwasi:fn:<identity>` | set: instances of a function |
//! | `cwasi:at:<instance>` | location of one instance |
//! | `cwasi:node:<key>` | name of the node with this public key |
//! | `cwasi:demand:<identity>` | announcement of a function that is started on demand |
//! | `cwasi:demand` | channel for the calls of such functions |
//! | `cwasi:since` | expires so long after this database was first written to: tells how old it is |
//! | `cwasi:ev:<identity>` | stream: messages for a function, group `cwasi` |
//! | `cwasi:dead:<identity>` | stream: messages that its handler failed to handle |
//! | `cwasi:listen:<identity>:<channel>` | the instance whose shim listens to a channel of others |
//! | `cwasi:sent:<namespace>` | hash: bytes of its waiting messages by `<sender>:<callee>` |
//! | `cwasi:sent:<namespace>:corrected` | this hash was compared with the streams a moment ago |
//!
//! All of them begin with `cwasi:`, so `~cwasi:* &cwasi:*` is what an ACL user needs. The streams and channels of
//! triggers (`cwasi.triggers`) come to that: in such a stream a function's group is `cwasi:<identity>`, written out.

pub mod backoff;
mod bulk;
pub mod channels;
pub mod claims;
pub mod demand;
mod error;
pub mod limits;
pub mod link;
pub mod locations;
pub mod nodes;
mod ping;
pub mod quota;
/// Public for its fuzz target.
pub mod resp;
pub mod session;
pub mod streams;
mod target;

pub use backoff::Backoff;
pub use error::NetworkError;
pub use link::{Listener, RedisLink, RedisTarget};
pub use session::RedisSession;

use cwasi_wire::ids::Identity;
use cwasi_wire::network::TryId;

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

#[must_use]
pub fn stream_key(identity: &Identity) -> String {
    short_stream_key(&identity.short())
}

/// The stream of the function with this [`Identity::short`].
fn short_stream_key(short: &str) -> String {
    format!("cwasi:ev:{short}")
}

fn try_key(id: TryId) -> String {
    format!("cwasi:try:{}", hex::encode(id.0))
}

fn instances_key(identity: &Identity) -> String {
    format!("cwasi:fn:{}", identity.short())
}

fn announcement_key(identity: &Identity) -> String {
    format!("cwasi:demand:{}", identity.short())
}

fn location_key(instance: &str) -> String {
    format!("cwasi:at:{instance}")
}
