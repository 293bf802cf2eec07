//! The sandbox binary against the real kernel and the real libcontainer, without containerd: these tests
//! take the shim's place. They need root.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod beside_runc;
mod direct;
mod elastic;
mod fan_in;
mod fixture;
mod frames;
mod function;
mod guests;
mod in_flight;
mod late_readers;
mod limits;
mod mounts;
mod native;
mod native_code;
mod nodes;
mod not_begun;
mod primary;
mod requests;
mod secondary;
mod sockets;
mod specification;
mod states;
mod system_calls;
mod taken_over;
mod traced;
mod worker_table;
