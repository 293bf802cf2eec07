//! HTTP in: a request's body is the payload of a call, and the response is the response's body. Runs in `cwasi gateway`
//! and in shims that serve `cwasi.http`, on a tokio runtime.
//!
//! Invariants: clients are not trusted. Connections, requests, head, body, memory and every wait are bounded
//! ([`HttpLimits`]). A request ends with one response; beyond a bound that is 4xx or 503, and nothing is queued here.
//!
//! - [`front`]: one request to one function. [`status`]: errors of calls as statuses.
//! - [`metadata`]: heads. `request_body`: a body becomes a payload; [`response_body`]: a response is streamed.
//! - [`openwhisk`]: the same port for OpenWhisk's action protocol.
//! - [`server`]: accepts clients, within the slots of [`connections`]. `head_timer`: waits for heads. [`port`]:
//!   `cwasi.http=PORT`. `stall`: clients that stop reading. `strict`: refuses heads that hyper accepts.

use std::time::Duration;

use cwasi_config::HttpConfig;

pub mod connections;
pub mod front;
mod head_timer;
pub mod metadata;
pub mod openwhisk;
pub mod port;
mod request_body;
pub mod response_body;
pub mod server;
mod stall;
pub mod status;
mod strict;

/// Bounds of a server.
#[derive(Clone, Debug)]
pub struct HttpLimits {
    /// Most requests at a time; more get 429.
    pub requests: usize,
    /// Most connections at a time; one more takes the slot of one whose client keeps the server waiting.
    pub connections: usize,
    /// Most bytes of all large bodies that are on their way to a function; a body beyond gets 429. As many of large
    /// responses that clients have not read; a response beyond becomes 503.
    pub body_bytes: u64,
    /// Longest wait for the first request, and for the rest of a request's head.
    pub head_timeout: Duration,
    /// Longest wait of an idle connection for the next request.
    pub idle_timeout: Duration,
    /// Longest pause of a client that sends a body or reads a response.
    pub stall_timeout: Duration,
    /// Longest request, from its head to its response.
    pub request_timeout: Duration,
}

impl Default for HttpLimits {
    fn default() -> Self {
        Self {
            requests: 1024,
            connections: 4096,
            body_bytes: 1 << 30,
            head_timeout: Duration::from_secs(15),
            idle_timeout: HttpConfig::default().idle_timeout(),
            stall_timeout: Duration::from_secs(15),
            request_timeout: Duration::from_secs(60),
        }
    }
}
