//! The direct path of the networked buffer: TLS connections between the shims of two hosts (`docs/modes.md`).
//!
//! Runs in the shim daemon; guests and workers never see it. This crate moves bytes and says whether a call ran. The
//! shim (`cwasi_host::network`) decides who may call whom.
//!
//! One connection carries one call at a time, and is kept for the next one. So no call waits behind another one, and
//! TCP's own window is the flow control of a payload.
//!
//! - [`key`]: the node's key. [`certificates`]: its certificate, if its operator has a PKI; `rotation`: when that is
//!   renewed.
//! - [`tls`]: connections on which both sides prove their node.
//! - [`port`]: one TCP port for all shims of a node. [`unproven`]: bounds connections before they prove a node.
//! - [`peers`]: connections to other shims. [`connection`]: messages and payloads on one.
//! - [`exchange`]: one call as its caller's shim sees it; [`decisions`]: which calls this shim has accepted. Both
//!   without clock and sockets.
//!
//! A connection begins with TLS 1.3 (protocol [`tls::PROTOCOL`], server name `<shim>.cwasi`, or [`tls::ANY_SHIM`] in
//! place of the shim). Then messages follow, each with a head of 8 bytes ([`connection::Kind`], three zeros, length),
//! and after it the payload that it announces:
//!
//! | from | message |
//! |---|---|
//! | caller's shim | a call ([`cwasi_wire::network::Call`]), or the id of a call that it gives up |
//! | | which instances of a function there are ([`cwasi_wire::network::Question`]) |
//! | callee's shim | first that it is ready; at last why it takes no calls |
//! | | answers ([`cwasi_wire::network::Answer`], [`cwasi_wire::network::LocationList`]) |

pub mod certificates;
mod ciphers;
pub mod connection;
pub mod decisions;
pub mod exchange;
pub mod key;
pub mod peers;
pub mod port;
mod rotation;
pub mod tls;
pub mod unproven;
mod verifiers;
