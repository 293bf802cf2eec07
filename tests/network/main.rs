//! The networked buffer between nodes of this process with a real server between them: what faults do to calls.
//!
//! Real: Redis, links, shims' networks, bridges, receivers. In place of a function, a thread that notes every
//! call that it runs, so that executions are counted apart from answers.

#![expect(clippy::unwrap_used, reason = "a test fails where it panics")]

mod chunks;
mod demand;
mod direct;
mod direct_certificates;
mod direct_faults;
mod direct_outages;
mod emits;
mod failover;
mod faults;
mod fixture;
mod lost_data;
mod many;
mod memory;
mod packet_filter;
mod quotas;
mod security;
mod slow_callers;
mod triggers;
