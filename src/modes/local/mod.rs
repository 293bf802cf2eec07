//! Local buffer: caller and callee on one host, a `SOCK_SEQPACKET` connection that the broker made.
//!
//! A payload travels inside the frame up to [`INLINE_MAX`] bytes and as a sealed
//! memfd above. One call is one message each way, so a connection needs no reassembly.
//!
//! [`INLINE_MAX`]: crate::wire::frame::INLINE_MAX
